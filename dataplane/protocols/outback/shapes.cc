// SPDX-License-Identifier: Apache-2.0
// In the place of layout/protocols.cc: Outback is the third, and the others have no tables here.
#include <algorithm>
#include <string>

#include "layout/protocol.h"

namespace farpool::layout {
namespace {

// --- Outback: buckets of four slots of a word for rows, with a seed and the head of a list each. The memory node serves
// them. The table region has room for a locator of as many keys as there are slots.

constexpr TableFigures kOutbackFigures{.entry_bytes = 8, .entries_per_row = 4, .rows_per_lock = 1};
constexpr std::uint64_t kPartitionBuckets = 4096;

constexpr std::uint64_t outback_partitions(std::uint64_t rows) {
  return (rows + kPartitionBuckets - 1) / kPartitionBuckets;
}

// All partitions have the same number of buckets.
std::uint64_t outback_rows(std::uint64_t most) {
  std::uint64_t rows = std::min<std::uint64_t>(most, 1ull << 31);
  while (rows > 0 && rows % outback_partitions(rows) != 0) rows -= rows % outback_partitions(rows);
  return rows;
}

std::uint64_t outback_locator_bytes(std::uint64_t rows) {
  constexpr std::uint64_t kHeaderWords = 10;
  const std::uint64_t partitions = outback_partitions(rows), buckets = rows / partitions;
  // 1.165 bits of each of two arrays for each key.
  const std::uint64_t array_words = buckets * kOutbackFigures.entries_per_row * 1165 / 1000 / 64 + 2;
  return 8 * (kHeaderWords + partitions * (1 + 2 * array_words + (buckets + 7) / 8));
}

constexpr Served kOutbackServed{.rows = outback_rows, .table_bytes = outback_locator_bytes};

base::Status check_outback(const TableFigures& figures) {
  if (figures.entry_bytes == kOutbackFigures.entry_bytes &&
      figures.entries_per_row == kOutbackFigures.entries_per_row &&
      figures.rows_per_lock == kOutbackFigures.rows_per_lock) {
    return {};
  }
  return base::Status{
      base::Code::invalid_argument,
      "an Outback table has buckets of " + std::to_string(kOutbackFigures.entries_per_row) + " slots of 8 bytes"};
}

base::Status refuse(const TableFigures&) { return {base::Code::invalid_argument, "this program has no such tables"}; }

}  // namespace

constinit const Shape kShapes[] = {
    {.name = "first", .check = refuse},
    {.name = "second", .check = refuse},
    {.name = "outback",
     .row_trailer = 12,
     .most_rows = 1ull << 31,
     .fixed = &kOutbackFigures,
     .served = &kOutbackServed,
     .check = check_outback},
};
constinit const std::size_t kShapeCount = std::size(kShapes);

}  // namespace farpool::layout
