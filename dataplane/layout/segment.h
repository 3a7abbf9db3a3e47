// SPDX-License-Identifier: Apache-2.0
// Segments and blocks of the heap region.
//
// The heap region is an array of segments of equal size (a power of two, in the superblock). A segment begins with its
// header:
//
// OFFSET SIZE  segment header
//      0    8  owner       session id; 0 = not handed out; only the memory node writes it
//      8    8  size_class  of its blocks, or kRun for the first segment of a run that holds one large block
//     16    8  run         segments in the run; 1 for a segment of blocks
//     24    8  incarnation of the owner
//     32   32  reserved, zero
//     64    n  free bitmap, one bit a block: set by FAA by the client that frees the block, exactly once, and taken
//              back by FAA by the owner
//
// Blocks follow at the first multiple of 64 after the bitmap.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace farpool::layout {

inline constexpr std::uint64_t kBlockUnit = 64;   // block sizes and addresses are multiples of this
inline constexpr std::uint64_t kRun = 255;        // size class of a run
inline constexpr std::uint64_t kRunHeader = 128;  // of a run: its segment header and one bitmap word, then the block

struct SegmentHeader {
  std::uint64_t owner = 0;
  std::uint64_t size_class = 0;
  std::uint64_t run = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t reserved[4] = {};
};
static_assert(sizeof(SegmentHeader) == 64 && base::wire_safe<SegmentHeader>);

// Bytes of a block of a size class: 64 * {1, 1.25, 1.5, 1.75} * 2^k rounded up to 64, without duplicates.
std::uint64_t block_bytes(std::uint64_t size_class);
// The largest class of blocks that share a segment.
std::uint64_t largest_class(std::uint64_t segment_bytes);
// The smallest class whose blocks hold `bytes`; kRun if none that is at most a quarter of a segment.
std::uint64_t size_class_for(std::uint64_t bytes, std::uint64_t segment_bytes);

// Segments of the run that holds one block of `bytes`.
constexpr std::uint64_t run_segments(std::uint64_t bytes, std::uint64_t segment_bytes) {
  return (kRunHeader + bytes + segment_bytes - 1) / segment_bytes;
}

// The shape of a segment of one class; for kRun, of a run that takes `segment_bytes` in all.
struct SegmentShape {
  std::uint64_t blocks = 0;
  std::uint64_t bitmap_words = 0;
  std::uint64_t first_block = 0;  // offset in the segment
  std::uint64_t block_bytes = 0;
};
SegmentShape segment_shape(std::uint64_t size_class, std::uint64_t segment_bytes);
// The bits of a word of its bitmap that stand for blocks.
constexpr std::uint64_t blocks_of_word(const SegmentShape& shape, std::uint64_t word) {
  const std::uint64_t left = shape.blocks - word * 64;
  return left >= 64 ? ~0ull : (1ull << left) - 1;
}

// Where a block is: the offset in the heap region in units of 64 bytes, as an index entry stores it.
constexpr std::uint64_t block_offset(std::uint64_t units) { return units * kBlockUnit; }

}  // namespace farpool::layout
