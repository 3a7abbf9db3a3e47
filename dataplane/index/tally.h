// SPDX-License-Identifier: Apache-2.0
// How a client counts the keys of a table where nothing that an operation WRITEs counts them.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "fabric/cost.h"
#include "session/session.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::index {

// Keys and bytes that this client has added, net, on their way to the counters of an operation slot: what changes while
// a WRITE is under way goes into the next one. Only count() waits for them. The session outlives it.
class Tally {
 public:
  explicit Tally(session::Session& session) : session_(session), flushed_(session.port()) {}
  // Counts behind the operation: the WRITE is charged to `cost` as background.
  void add(std::int64_t keys, std::int64_t bytes, fabric::Cost& cost);
  // Waits until everything has been written. timed_out: it was not in time.
  task::Task<base::Status> settle(base::Nanos deadline);

 private:
  task::Task<void> flush();

  session::Session& session_;
  std::optional<session::Slot> slot_;
  std::uint64_t keys_ = 0;
  std::uint64_t bytes_ = 0;
  bool pending_ = false;
  bool flushing_ = false;
  session::WaitQueue flushed_;
};

}  // namespace farpool::index
