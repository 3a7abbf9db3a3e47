// SPDX-License-Identifier: Apache-2.0
// The common parts of every protocol's operations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "fabric/fabric.h"
#include "index/table.h"
#include "session/session.h"
#include "session/trips.h"
#include "task/task.h"

namespace farpool::index {

// A chain in the making. Its verbs lie in a block of the pool of frames, not in the coroutine that posts it: an
// operation posts up to fourteen chains, one at a time, of which most have fewer than eight verbs, and the compiler
// would give each of them room for 64 in the frame.
class Chain {
 public:
  Chain() = default;
  Chain(const Chain&) = delete;
  ~Chain() {
    if (ops_ != nullptr) task::free_frame(ops_, room_ * sizeof(fabric::Op));
  }
  void clear() { count_ = 0; }
  void add(const fabric::Op& op) {
    FARPOOL_CHECK(count_ < fabric::kMaxChain);
    if (count_ == room_) grow();
    std::construct_at(ops_ + count_++, op);
  }
  // Valid until a verb is added.
  std::span<const fabric::Op> ops() const { return {ops_, count_}; }
  std::size_t size() const { return count_; }

 private:
  static_assert(std::is_trivially_copyable_v<fabric::Op>);
  static constexpr std::size_t kFew = 9;  // verbs, which most chains do not exceed
  void grow();

  fabric::Op* ops_ = nullptr;
  std::size_t count_ = 0, room_ = 0;
};

// Waits longer after each time, by chance, because clients that collide must not stay in step.
class Backoff {
 public:
  explicit Backoff(session::Session& session) : session_(session) {}
  task::Task<void> wait(base::Nanos deadline);

 private:
  session::Session& session_;
  unsigned times_ = 0;
};

using session::gone;

base::Status check_sizes(std::string_view key, std::size_t value_bytes);

// Returns the error for a key that is not where it was looked for, because keys move between memory nodes. `known_move`
// is the last move that the client knew when it looked.
base::Status map_is_old(std::uint64_t known_move);
base::Status moved_away();

// Implement Movable::standing(), and write the word that says that a move is finished.
task::Task<base::Result<Movable::Standing>> move_standing(session::Session& session, std::uint64_t tables,
                                                          base::Nanos deadline, fabric::Cost& cost);
task::Task<base::Status> finish_move(session::Session& session, std::uint64_t tables, std::uint64_t number,
                                     base::Nanos deadline, fabric::Cost& cost);

// Implements index::Table::count().
task::Task<base::Result<Totals>> count_slots(session::Session& session, base::Nanos deadline, fabric::Cost& cost);

}  // namespace farpool::index
