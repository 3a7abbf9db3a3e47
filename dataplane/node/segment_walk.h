// SPDX-License-Identifier: Apache-2.0
// What the heap of a memory that nobody changes consists of, segment by segment as their headers say, and which of
// their blocks are in use. Pure; takes any bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "index/image.h"
#include "layout/geometry.h"
#include "layout/segment.h"

namespace farpool::node {

struct FoundSegment {
  enum class Kind : std::uint8_t {
    free,     // not handed out
    owned,    // by a session: what is not marked free may be used, or free with its owner
    orphan,   // given up by its owner: what is free in it is marked so
    damaged,  // its header is impossible, or an entry points into it where no block begins
  };
  Kind kind = Kind::free;
  std::uint64_t first = 0;
  std::uint64_t run = 1;    // segments
  std::uint64_t owner = 0;  // session
  std::uint64_t size_class = 0;
  layout::SegmentShape shape;         // of owned ones and orphans
  std::vector<std::uint64_t> in_use;  // bits of blocks that an entry points to
  std::vector<std::uint64_t> marked;  // bits of blocks that are marked free, and of no other blocks
};

// What must not be in the heap.
struct SegmentDefect {
  enum class Kind : std::uint8_t {
    header,    // that the memory node never writes
    bitmap,    // marks blocks free that the segment does not have
    marked,    // a block that an entry points to is marked free
    size,      // a block is of another size class than its entry says
    no_block,  // an entry points where no block begins
  };
  static constexpr std::size_t kKinds = 5;
  Kind kind = Kind::header;
  std::uint64_t first = 0;   // of the segment, or run
  std::uint64_t offset = 0;  // in the heap
  std::string what;
};

// Visits every segment once, in order. Removes from `reached` what entries point to as it finds it.
void walk_segments(const layout::Geometry& geometry, base::Bytes heap, index::Reached& reached,
                   const std::function<void(const FoundSegment&)>& visit,
                   const std::function<void(SegmentDefect)>& defect);

}  // namespace farpool::node
