// SPDX-License-Identifier: Apache-2.0
#include "index/image.h"

#include <numeric>

#include "layout/segment.h"

namespace farpool::index {

Reached::Reached(std::uint64_t heap_bytes) : units_(heap_bytes / layout::kBlockUnit), words_((units_ + 63) / 64, 0) {}

bool Reached::any(std::uint64_t first, std::uint64_t count) const {
  for (std::uint64_t unit = first, end = first + count; unit < end;) {
    if (unit % 64 == 0 && words_[unit / 64] == 0) {
      unit += 64;
    } else if (at(unit++)) {
      return true;
    }
  }
  return false;
}

bool Reached::mark(std::uint64_t first, std::uint64_t count) {
  bool fresh = true;
  for (std::uint64_t unit = first; unit < first + count; ++unit) {
    fresh = fresh && !at(unit);
    words_[unit / 64] |= 1ull << (unit % 64);
  }
  return fresh;
}

void Reached::clear(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t unit = first; unit < first + count; ++unit) words_[unit / 64] &= ~(1ull << (unit % 64));
}

std::uint64_t Report::defect_count() const {
  return std::accumulate(of_kind.begin(), of_kind.end(), std::uint64_t{0}) - count(Defect::Kind::tentative);
}

}  // namespace farpool::index
