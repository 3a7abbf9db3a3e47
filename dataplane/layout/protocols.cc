// SPDX-License-Identifier: Apache-2.0
// One entry for each index protocol, and nothing else.
#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "layout/directory.h"
#include "layout/geometry.h"
#include "layout/protocol.h"

namespace farpool::layout {
namespace {

base::Status invalid(std::string message) { return {base::Code::invalid_argument, std::move(message)}; }

// --- RCuckoo: rows of entries with a version and a checksum behind them

base::Status check_rcuckoo(const TableFigures& figures) {
  constexpr std::array<std::uint64_t, 5> kEntryBytes = {16, 24, 32, 48, 64};
  if (std::find(kEntryBytes.begin(), kEntryBytes.end(), figures.entry_bytes) == kEntryBytes.end()) {
    return invalid("entry bytes " + std::to_string(figures.entry_bytes) +
                   " are not possible: use 16, 24, 32, 48 or 64");
  }
  if (figures.entries_per_row < 2 || figures.entries_per_row > kMaxEntriesPerRow) {
    return invalid("entries per row " + std::to_string(figures.entries_per_row) + " are not possible: use 2 to " +
                   std::to_string(kMaxEntriesPerRow));
  }
  if (!std::has_single_bit(figures.rows_per_lock) || figures.rows_per_lock > kMaxRowsPerLock) {
    return invalid("rows per lock " + std::to_string(figures.rows_per_lock) +
                   " are not possible: use a power of two from 1 to " + std::to_string(kMaxRowsPerLock));
  }
  return {};
}

// --- RACE: groups of three buckets for rows, 21 slots of a word and three headers; no locks

constexpr TableFigures kRaceFigures{.entry_bytes = 8, .entries_per_row = 21, .rows_per_lock = 1};

base::Status check_race(const TableFigures& figures) {
  if (figures.entry_bytes == kRaceFigures.entry_bytes && figures.entries_per_row == kRaceFigures.entries_per_row &&
      figures.rows_per_lock == kRaceFigures.rows_per_lock) {
    return {};
  }
  return invalid("a RACE table has slots of 8 bytes, " + std::to_string(kRaceFigures.entries_per_row) + " in a group");
}

// --- Outback: buckets of four slots of a word for rows, with a seed and the head of a list each. The memory node serves
// them. There is room for all rows, but a table begins with a small part of them, and doubles (docs/adr/0034). The
// table region has room for a locator of as many keys as there are slots at last.

constexpr TableFigures kOutbackFigures{.entry_bytes = 8, .entries_per_row = 4, .rows_per_lock = 1};
constexpr std::uint64_t kPartitionBuckets = 4096, kFewPartitionBuckets = 256, kPartitionsAtFirst = 16;
constexpr std::uint64_t kMostDoublings = 8;
constexpr std::uint64_t kPositionBits = 35;  // of a scan (index/table.h)

// A scan's position tells locators of the table apart, and a doubling is another locator. A table has two buckets at
// least.
constexpr std::uint64_t outback_doublings(std::uint64_t rows) {
  const std::uint64_t tags = (std::uint64_t{1} << kPositionBits) / rows;
  return std::min({kMostDoublings, tags / 4, static_cast<std::uint64_t>(std::bit_width(rows | 2) - 2)});
}

// As many partitions as threads need at first, if these are not too small.
constexpr std::uint64_t outback_partitions(std::uint64_t rows) {
  const std::uint64_t at_first = std::max<std::uint64_t>(rows >> outback_doublings(rows), 1);
  const std::uint64_t fewest = (at_first + kPartitionBuckets - 1) / kPartitionBuckets;
  return std::max(fewest, std::min(kPartitionsAtFirst, at_first / kFewPartitionBuckets)) << outback_doublings(rows);
}

// All partitions have the same number of buckets, an even one: two seeds share a word.
std::uint64_t outback_rows(std::uint64_t most) {
  std::uint64_t rows = std::min<std::uint64_t>(most, 1ull << 31);
  while (rows > 0 && rows % (2 * outback_partitions(rows)) != 0) rows -= rows % (2 * outback_partitions(rows));
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
  return invalid("an Outback table has buckets of " + std::to_string(kOutbackFigures.entries_per_row) +
                 " slots of 8 bytes");
}

}  // namespace

constinit const Shape kShapes[] = {
    {.name = "rcuckoo", .row_trailer = 16, .locks = true, .check = check_rcuckoo},
    {.name = "race",
     .row_trailer = 24,
     .most_tables = kMostTables,
     .most_rows = (1ull << 32) - 1,
     .fixed = &kRaceFigures,
     .check = check_race},
    {.name = "outback",
     .row_trailer = 12,
     .most_rows = 1ull << 31,
     .fixed = &kOutbackFigures,
     .served = &kOutbackServed,
     .check = check_outback},
};
constinit const std::size_t kShapeCount = std::size(kShapes);

}  // namespace farpool::layout
