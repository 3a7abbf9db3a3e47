// SPDX-License-Identifier: Apache-2.0
// A step of a scan, for code that has the table's state. Internal to the room.
#pragma once

#include <bit>
#include <cstdint>

#include "index/page.h"
#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {

// Returns the rows of one position of a scan: a power of two, 1 in tables of up to 2^35 rows. So the positions of the
// largest table that a memory node can have fit into a cursor, and a step covers whole positions.
constexpr std::uint64_t rows_per_position(std::uint64_t rows) {
  return std::bit_ceil((rows + (1ull << index::kPositionBits) - 1) >> index::kPositionBits);
}

// Does index::Table::scan() for so many rows from `first` on. For few rows it reads as far behind them as for many, to
// find every entry that belongs to them.
Task<Result<index::Page>> scan(Table::State& state, std::uint64_t first, std::uint64_t rows, Nanos deadline,
                               Cost& cost);

}  // namespace farpool::rcuckoo
