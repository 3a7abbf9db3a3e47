// SPDX-License-Identifier: Apache-2.0
// Dependent hashing: key hash -> the two rows where its entry may lie. Both derive from one 64-bit keyed hash, so an
// entry that holds only the hash can be moved without reading its key.
//
//   L1 = h1 mod T        L2 = (L1 + offset) mod T
//   offset from h2 mod floor(f^(f+Z)), Z = trailing zeros of h3, f = 2.3
//
// The printed formula gives 10.5 percent of the keys the same row twice; nine such keys of one row fill the table for
// ever. With one added to the offset every key has two rows. docs/measurements/rcuckoo-fill.md has both; the table uses
// `plus_one`.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/bytes.h"
#include "base/hash.h"

namespace farpool::rcuckoo {

enum class Offset : std::uint8_t { printed, plus_one };
inline constexpr Offset kOffset = Offset::plus_one;

// floor(2.3^(2.3+z)) for z = 0 to 64; values above the largest number of rows are cut off.
inline constexpr std::array<std::uint64_t, 65> kRange = [] {
  constexpr double kBase = 2.3;
  constexpr double kPower = 6.791630075247877;  // 2.3^2.3
  constexpr double kTop = 0x1.0p53;
  std::array<std::uint64_t, 65> range{};
  double product = kPower;
  for (auto& value : range) {
    value = static_cast<std::uint64_t>(product);
    product = std::min(product * kBase, kTop);
  }
  return range;
}();

struct Places {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

constexpr Places locate(std::uint64_t hash, std::uint64_t rows, Offset offset = kOffset) {
  const std::uint64_t h1 = base::mix(hash ^ 0x8ebc6af09c88c6e3ull);
  const std::uint64_t h2 = base::mix(hash ^ 0x589965cc75374cc3ull);
  const std::uint64_t h3 = base::mix(hash ^ 0x1d8e4e27c47d124full);
  const std::uint64_t range = kRange[static_cast<std::size_t>(std::countr_zero(h3))];
  const std::uint64_t first = h1 % rows;
  const std::uint64_t distance =
      offset == Offset::printed ? h2 % std::min(range, rows) : 1 + h2 % std::min(range, rows - 1);
  const std::uint64_t second = first + distance;
  return {first, second < rows ? second : second - rows};
}

// Returns the other row where an entry of `row` may lie.
constexpr std::uint64_t alternate(std::uint64_t hash, std::uint64_t row, std::uint64_t rows, Offset offset = kOffset) {
  const Places places = locate(hash, rows, offset);
  return places.first == row ? places.second : places.first;
}

// Entries are displaced to and fro only between rows that are at most so far apart. The others, two of a hundred, are
// displaced once, to the row with the higher number, and never back. So a client that reads some rows, and so many
// behind them, has read all places of entries that may come back; and a client that reads the rows in ascending order
// does not miss an entry that goes up (scan.cc).
inline constexpr std::uint64_t kReach = 256;
constexpr bool near(const Places& places, std::uint64_t rows) {
  const std::uint64_t distance = places.second >= places.first ? places.second - places.first  //
                                                               : places.second + rows - places.first;
  return distance <= kReach;
}

// Returns the row that an entry of `row` may be displaced to; `row` itself if it stays.
constexpr std::uint64_t displaced_to(std::uint64_t hash, std::uint64_t row, std::uint64_t rows,
                                     Offset offset = kOffset) {
  const Places places = locate(hash, rows, offset);
  const std::uint64_t other = places.first == row ? places.second : places.first;
  return near(places, rows) ? other : std::max(row, other);
}

}  // namespace farpool::rcuckoo
