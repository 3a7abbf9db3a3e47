// SPDX-License-Identifier: Apache-2.0
// Named fields of a 64-bit word. Never C bit-fields: their order is the compiler's.
#pragma once

#include <bit>
#include <cstdint>

namespace farpool::layout {

template <unsigned kShift, unsigned kBits>
struct Field {
  static_assert(kBits > 0 && kShift + kBits <= 64);
  static constexpr std::uint64_t kMax = ~0ull >> (64 - kBits);
  static constexpr std::uint64_t kMask = kMax << kShift;
  static constexpr std::uint64_t get(std::uint64_t word) { return (word & kMask) >> kShift; }
  static constexpr std::uint64_t put(std::uint64_t value) { return (value & kMax) << kShift; }
};

// True when the fields leave no gap and do not overlap.
template <class... F>
inline constexpr bool tiles_a_word = ((F::kMask | ...) == ~0ull) && ((std::popcount(F::kMask) + ...) == 64);

}  // namespace farpool::layout
