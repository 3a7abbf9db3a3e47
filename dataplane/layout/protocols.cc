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

}  // namespace

constinit const Shape kShapes[] = {
    {.name = "rcuckoo", .row_trailer = 16, .locks = true, .check = check_rcuckoo},
    {.name = "race",
     .row_trailer = 24,
     .most_tables = kMostTables,
     .most_rows = (1ull << 32) - 1,
     .fixed = &kRaceFigures,
     .check = check_race},
};
constinit const std::size_t kShapeCount = std::size(kShapes);

}  // namespace farpool::layout
