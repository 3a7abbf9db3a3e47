// SPDX-License-Identifier: Apache-2.0
// Marks of rows that have had entries (layout/geometry.h), as a client sets them and a scan reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "index/operation.h"
#include "layout/geometry.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::index {

// Knows which marks are set. None is ever cleared while the memory node lives, so what is known stays true.
class RowMarks {
 public:
  RowMarks(session::Session& session, const layout::Geometry& geometry);

  // Adds the WRITE of the row's mark, unless it is known to be set. To be called before what puts an entry into the row
  // is added to the chain.
  void add_to(Chain& chain, std::uint64_t row);
  // The chain has been executed.
  void landed(std::uint64_t row) { known_[geometry_.mark_of(row)] = true; }

 private:
  const layout::Geometry& geometry_;
  std::vector<bool> known_;
  fabric::Buffer one_;
};

// Reads `count` marks from `first` on, and behind them the first `also` marks of the table.
task::Task<base::Result<std::vector<bool>>> read_marks(session::Session& session, const layout::Geometry& geometry,
                                                       std::uint64_t first, std::uint64_t count, std::uint64_t also,
                                                       base::Nanos deadline, fabric::Cost& cost);

}  // namespace farpool::index
