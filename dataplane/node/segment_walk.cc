// SPDX-License-Identifier: Apache-2.0
#include "node/segment_walk.h"

#include <algorithm>
#include <bit>
#include <string>

namespace farpool::node {
namespace {

using Kind = FoundSegment::Kind;
using Wrong = SegmentDefect::Kind;
using layout::blocks_of_word;
using layout::kBlockUnit;
using layout::kRun;

FoundSegment classify(const layout::Geometry& g, base::Bytes heap, std::uint64_t first) {
  const auto header = base::load<layout::SegmentHeader>(heap.data() + first * g.segment_bytes);
  FoundSegment found{.first = first};
  const bool zeros =
      std::all_of(std::begin(header.reserved), std::end(header.reserved), [](std::uint64_t word) { return word == 0; });
  // The memory node writes the length last when it hands a segment out, and removes it first.
  if (header.run == 0) {
    found.kind = zeros ? Kind::free : Kind::damaged;
    return found;
  }
  const bool run = header.size_class == kRun;
  if (!zeros || header.run > g.segments - first || (!run && header.run != 1) ||
      (!run && header.size_class > layout::largest_class(g.segment_bytes))) {
    found.kind = Kind::damaged;
    return found;
  }
  found.kind = header.owner == 0 ? Kind::orphan : Kind::owned;
  found.run = header.run;
  found.owner = header.owner;
  found.size_class = header.size_class;
  found.shape = layout::segment_shape(header.size_class, run ? header.run * g.segment_bytes : g.segment_bytes);
  return found;
}

}  // namespace

void walk_segments(const layout::Geometry& g, base::Bytes heap, index::Reached& reached,
                   const std::function<void(const FoundSegment&)>& visit,
                   const std::function<void(SegmentDefect)>& defect) {
  const std::uint64_t units = g.segment_bytes / kBlockUnit;
  for (std::uint64_t first = 0; first < g.segments;) {
    FoundSegment found = classify(g, heap, first);
    const std::string name = "segment " + std::to_string(first);
    const auto tell = [&](Wrong kind, std::uint64_t within, std::string what) {
      defect({kind, first, first * g.segment_bytes + within, std::move(what)});
    };
    if (found.kind == Kind::damaged) tell(Wrong::header, 0, "the header of " + name + " cannot be");
    if (found.kind == Kind::owned || found.kind == Kind::orphan) {
      const layout::SegmentShape& shape = found.shape;
      found.in_use.assign(shape.bitmap_words, 0);
      found.marked.assign(shape.bitmap_words, 0);
      const auto tell_of_block = [&](Wrong kind, std::uint64_t block, const char* what) {
        tell(kind, shape.first_block + block * shape.block_bytes,
             "block " + std::to_string(block) + " of " + name + what);
      };
      const std::uint64_t each = shape.block_bytes / kBlockUnit;
      const std::uint64_t begin = first * units + shape.first_block / kBlockUnit;
      for (std::uint64_t block = 0; block < shape.blocks; ++block) {
        const std::uint64_t unit = begin + block * each;
        if (!reached.at(unit)) continue;
        std::uint64_t used = 1;
        while (used < each && reached.at(unit + used)) ++used;
        reached.clear(unit, used);
        found.in_use[block / 64] |= 1ull << (block % 64);
        const std::uint64_t bytes = used * kBlockUnit;
        if (layout::size_class_for(bytes, g.segment_bytes) != found.size_class ||
            (found.size_class == kRun && layout::run_segments(bytes, g.segment_bytes) != found.run)) {
          tell_of_block(Wrong::size, block, " is of another size than its entry says");
        }
      }
      for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
        const std::uint64_t at = sizeof(layout::SegmentHeader) + word * 8;
        const auto bits = base::load<std::uint64_t>(heap.data() + first * g.segment_bytes + at);
        found.marked[word] = bits & blocks_of_word(shape, word) & ~found.in_use[word];
        if ((bits & ~blocks_of_word(shape, word)) != 0) {
          tell(Wrong::bitmap, at, name + " marks blocks free that it does not have");
        }
        for (std::uint64_t both = bits & found.in_use[word]; both != 0; both &= both - 1) {
          tell_of_block(Wrong::marked, word * 64 + static_cast<std::uint64_t>(std::countr_zero(both)),
                        " is in use and marked free");
        }
      }
    }
    if (reached.any(first * units, found.run * units)) {
      if (found.kind != Kind::damaged) {
        tell(Wrong::no_block, 0, "an entry points into " + name + " where no block of it begins");
      }
      found.kind = Kind::damaged;
      reached.clear(first * units, found.run * units);
    }
    visit(found);
    first += found.run;
  }
}

}  // namespace farpool::node
