// SPDX-License-Identifier: Apache-2.0
// Where a key may lie: two combined buckets in two groups, and a print of eight bits that tells most other keys from
// it. All three derive from disjoint bits of a mix of one keyed hash. The directory uses none of these bits: it has a
// hash of its own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/hash.h"
#include "index/race/layout.h"

namespace farpool::race {

struct Place {
  std::uint64_t group = 0;
  std::uint64_t side = 0;  // 0: main 0 and overflow, 1: overflow and main 1
  // Returns the place in the table region.
  constexpr std::uint64_t offset() const { return group * kGroupBytes + side * kBucketBytes; }
  constexpr std::uint64_t slot_offset(std::uint64_t index) const {
    return offset() + CombinedView::offset(side, index);
  }
  friend constexpr bool operator==(const Place&, const Place&) = default;
};
using Places = std::array<Place, 2>;

// Returns a key's places; `groups` is at least 2, and less than 2^32.
constexpr Places locate(std::uint64_t hash, std::uint64_t groups) {
  FARPOOL_CHECK(groups >= 2 && groups >> 32 == 0);
  // The high half of each mix scales to a group, its lowest bit is the side.
  const std::uint64_t h1 = base::mix(hash ^ 0x9e3779b97f4a7c15ull), h2 = base::mix(hash ^ 0xbf58476d1ce4e5b9ull);
  const std::uint64_t first = (h1 >> 32) * groups >> 32;
  // Any group but the first one, each alike.
  const std::uint64_t step = 1 + ((h2 >> 32) * (groups - 1) >> 32);
  const std::uint64_t second = first + step;
  return {Place{first, h1 & 1}, Place{second < groups ? second : second - groups, h2 & 1}};
}

constexpr std::uint64_t print_of(std::uint64_t hash) { return base::mix(hash ^ 0x94d049bb133111ebull) >> 56; }

// The slot that an insert takes: in the less loaded main bucket, or, only if both are full, in the less loaded overflow
// bucket. Without this balance a table is full at 72 percent instead of 90.
struct Choice {
  std::size_t place = 0;    // which of the two
  std::uint64_t index = 0;  // of the slot in the combined bucket
};
inline std::optional<Choice> choose(const std::array<CombinedView, 2>& buckets) {
  for (const bool overflow : {false, true}) {
    const std::array<std::uint64_t, 2> load = {buckets[0].load(overflow), buckets[1].load(overflow)};
    const std::size_t place = load[1] < load[0] ? 1 : 0;
    if (load[place] == kBucketSlots) continue;
    const std::uint64_t first = overflow ? kBucketSlots : 0;
    for (std::uint64_t i = first; i < first + kBucketSlots; ++i) {
      if (buckets[place].slot(i).empty()) return Choice{place, i};
    }
  }
  return std::nullopt;
}

}  // namespace farpool::race
