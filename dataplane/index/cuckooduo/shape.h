// SPDX-License-Identifier: Apache-2.0
// How a CuckooDuo table is cut, and how its places are numbered. Pure.
//
// The index, in its owner's memory, and the vault, on the memory node, have the same places: two arrays of buckets, and
// behind them the stash. A place is a number: the first array's slots in order of their buckets, the second array's,
// the stash. The vault's slot of place p begins at byte p * slot_bytes, so that the index stores no locations.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace farpool::cuckooduo {

using Place = std::uint64_t;
// Stands for a pair that is in no place yet.
inline constexpr Place kNowhere = ~0ull;

struct Shape {
  static constexpr std::uint32_t kMostBuckets = 1u << 30;
  static constexpr std::uint32_t kMostSlots = 16;
  static constexpr std::uint32_t kMostPrintBits = 16;
  static constexpr std::uint32_t kMostStash = 4096;
  static constexpr std::uint32_t kMostPath = 6;

  std::uint32_t buckets = 1;      // of each array; m in the paper
  std::uint32_t slots = 8;        // of a bucket; d
  std::uint32_t second = 2;       // of a bucket of the first array: its last slots, which have second prints; d2
  std::uint32_t print_bits = 16;  // of a print; f
  std::uint32_t path = 2;         // pairs that an insert may move; L
  std::uint32_t slot_bytes = 64;  // of a slot of the vault, a multiple of 8
  std::uint32_t stash = 64;       // slots of the stash
  std::uint32_t spares = 8;       // slots of the stash that inserts leave to updates

  // Says what is impossible about the shape, or ok.
  base::Status check() const;

  constexpr std::uint64_t rows() const { return 2 * std::uint64_t{buckets}; }
  constexpr std::uint64_t array_slots() const { return std::uint64_t{buckets} * slots; }
  constexpr Place stash_begin() const { return 2 * array_slots(); }
  constexpr Place end() const { return stash_begin() + stash; }
  constexpr std::uint64_t vault_bytes() const { return end() * slot_bytes; }
  // Returns the bytes of all slots that one key may lie in.
  constexpr std::uint64_t lookup_bytes() const { return (2 * std::uint64_t{slots} + stash) * slot_bytes; }

  // Buckets of both arrays have one numbering: the rows of a path search.
  constexpr std::uint64_t row(std::uint32_t array, std::uint64_t bucket) const {
    return array * std::uint64_t{buckets} + bucket;
  }
  constexpr Place place(std::uint64_t row, std::uint32_t slot) const { return row * slots + slot; }
  constexpr std::uint64_t row_of(Place place) const { return place / slots; }
  constexpr std::uint32_t slot_of(Place place) const { return static_cast<std::uint32_t>(place % slots); }
  constexpr bool in_stash(Place place) const { return place >= stash_begin(); }
  constexpr bool in_first_array(Place place) const { return place < array_slots(); }
  // Says whether the place has second prints.
  constexpr bool is_second(Place place) const { return in_first_array(place) && slot_of(place) >= slots - second; }

  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace farpool::cuckooduo
