// SPDX-License-Identifier: Apache-2.0
// A step of a scan, for whoever has the table's state. Internal to the room.
#pragma once

#include "index/page.h"
#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {

// index::Table::scan(), of so many rows from `first` on. What it reads behind them, to find all that belongs to them,
// is the same for many rows as for few.
Task<Result<index::Page>> scan(Table::State& state, std::uint64_t first, std::uint64_t rows, Nanos deadline,
                               Cost& cost);

}  // namespace farpool::rcuckoo
