// SPDX-License-Identifier: Apache-2.0
// Marks of rows that may have entries (layout/geometry.h), as a client sets them and a scan reads them. How they are
// cleared: index/clearing.h.
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

// Knows which marks this client has set. What it knows counts until the memory node has sessions forget it, so an
// operation that uses it holds an era until the entry has been put.
class RowMarks {
 public:
  RowMarks(session::Session& session, const layout::Geometry& geometry);

  // Adds what sets the row's mark, unless the mark is known to be set. To be called before what puts an entry into the
  // row is added to the chain. Returns true if it added something: then a WRITE of the row needs a fence.
  bool add_to(Chain& chain, std::uint64_t row);
  // The same, whatever is known.
  void add_anew_to(Chain& chain, std::uint64_t row);
  // The chain has been executed that was made when forgets() was this.
  void landed(std::uint64_t row, std::uint64_t forgets);
  std::uint64_t forgets() const { return session_.forgets(); }

 private:
  void forget_what_is_old();

  session::Session& session_;
  const layout::Geometry& geometry_;
  std::vector<bool> known_;
  std::uint64_t known_since_ = 0;  // forgets() when all of it was learned
  std::uint64_t before_ = 0;       // what a mark was that was set; nobody asks
};

// Reads `count` marks from `first` on, and behind them the first `also` marks of the table. Says which are set.
task::Task<base::Result<std::vector<bool>>> read_marks(session::Session& session, const layout::Geometry& geometry,
                                                       std::uint64_t first, std::uint64_t count, std::uint64_t also,
                                                       base::Nanos deadline, fabric::Cost& cost);

}  // namespace farpool::index
