// SPDX-License-Identifier: Apache-2.0
#include "layout/segment.h"

#include "base/check.h"

namespace farpool::layout {
namespace {
// 64, 128, 192, then four sizes to every doubling from 256 on.
constexpr std::uint64_t kLinear = 3;
constexpr std::uint64_t kClasses = 160;
}  // namespace

std::uint64_t block_bytes(std::uint64_t size_class) {
  FARPOOL_CHECK(size_class < kClasses);
  if (size_class < kLinear) return kBlockUnit * (size_class + 1);
  const std::uint64_t step = size_class - kLinear;
  return (4 + step % 4) * (kBlockUnit << (step / 4));
}

std::uint64_t largest_class(std::uint64_t segment_bytes) {
  std::uint64_t largest = 0;
  while (block_bytes(largest + 1) <= segment_bytes / 4) ++largest;
  return largest;
}

std::uint64_t size_class_for(std::uint64_t bytes, std::uint64_t segment_bytes) {
  for (std::uint64_t size_class = 0;; ++size_class) {
    const std::uint64_t holds = block_bytes(size_class);
    if (holds > segment_bytes / 4) return kRun;
    if (holds >= bytes) return size_class;
  }
}

SegmentShape segment_shape(std::uint64_t size_class, std::uint64_t segment_bytes) {
  SegmentShape shape;
  if (size_class == kRun) {
    shape.blocks = 1;
    shape.bitmap_words = 1;
    shape.first_block = kRunHeader;
    shape.block_bytes = segment_bytes - kRunHeader;
    return shape;
  }
  shape.block_bytes = block_bytes(size_class);
  // The bitmap grows with the blocks it leaves room for: start without one and give up blocks until both fit.
  shape.blocks = (segment_bytes - sizeof(SegmentHeader)) / shape.block_bytes;
  for (;;) {
    shape.bitmap_words = (shape.blocks + 63) / 64;
    shape.first_block = base::round_up(sizeof(SegmentHeader) + shape.bitmap_words * 8, kBlockUnit);
    if (shape.first_block + shape.blocks * shape.block_bytes <= segment_bytes) return shape;
    --shape.blocks;
  }
}

}  // namespace farpool::layout
