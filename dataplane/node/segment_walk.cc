// SPDX-License-Identifier: Apache-2.0
#include "node/segment_walk.h"

#include <algorithm>
#include <bit>
#include <string>

namespace farpool::node {
namespace {

using Kind = FoundSegment::Kind;
using layout::blocks_of_word;
using layout::kBlockUnit;
using layout::kRun;

FoundSegment classify(const layout::Geometry& g, base::Bytes heap, std::uint64_t first) {
  const auto header = base::load<layout::SegmentHeader>(heap.data() + first * g.segment_bytes);
  FoundSegment found{.first = first};
  const bool zeros =
      std::all_of(std::begin(header.reserved), std::end(header.reserved), [](std::uint64_t word) { return word == 0; });
  // The memory node writes the length last when it hands a segment out, and takes it away first.
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
  found.size_class = header.size_class;
  found.shape = layout::segment_shape(header.size_class, run ? header.run * g.segment_bytes : g.segment_bytes);
  return found;
}

}  // namespace

void walk_segments(const layout::Geometry& g, base::Bytes heap, rcuckoo::Reached& reached,
                   const std::function<void(const FoundSegment&)>& visit,
                   const std::function<void(std::string)>& defect) {
  const std::uint64_t units = g.segment_bytes / kBlockUnit;
  for (std::uint64_t first = 0; first < g.segments;) {
    FoundSegment found = classify(g, heap, first);
    const std::string name = "segment " + std::to_string(first);
    const auto block_name = [&](std::uint64_t block) { return "block " + std::to_string(block) + " of " + name; };
    if (found.kind == Kind::damaged) defect("the header of " + name + " cannot be");
    if (found.kind == Kind::owned || found.kind == Kind::orphan) {
      const layout::SegmentShape& shape = found.shape;
      found.in_use.assign(shape.bitmap_words, 0);
      found.marked.assign(shape.bitmap_words, 0);
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
          defect(block_name(block) + " is of another size than its entry says");
        }
      }
      for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
        const std::byte* at = heap.data() + first * g.segment_bytes + sizeof(layout::SegmentHeader) + word * 8;
        const auto bits = base::load<std::uint64_t>(at);
        found.marked[word] = bits & blocks_of_word(shape, word) & ~found.in_use[word];
        if ((bits & ~blocks_of_word(shape, word)) != 0) defect(name + " marks blocks free that it does not have");
        if ((bits & found.in_use[word]) != 0) {
          const auto block = word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits & found.in_use[word]));
          defect(block_name(block) + " is in use and marked free");
        }
      }
    }
    if (reached.any(first * units, found.run * units)) {
      if (found.kind != Kind::damaged) defect("an entry points into " + name + " where no block of it begins");
      found.kind = Kind::damaged;
      reached.clear(first * units, found.run * units);
    }
    visit(found);
    first += found.run;
  }
}

}  // namespace farpool::node
