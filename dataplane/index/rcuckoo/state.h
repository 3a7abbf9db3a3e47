// SPDX-License-Identifier: Apache-2.0
// What the operations of one table share. Internal to the room.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/memory.h"
#include "index/rcuckoo/path.h"
#include "index/rcuckoo/table.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "session/wait.h"

namespace farpool::rcuckoo {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using fabric::Remote;
using task::Task;

// A chain in the making, in the frame of the coroutine that posts it.
class Chain {
 public:
  void clear() { count_ = 0; }
  void add(const Op& op) {
    FARPOOL_CHECK(count_ < ops_.size());
    ops_[count_++] = op;
  }
  std::span<const Op> ops() const { return {ops_.data(), count_}; }
  std::size_t size() const { return count_; }

 private:
  std::array<Op, fabric::kMaxChain> ops_{};
  std::size_t count_ = 0;
};

// Operations of one client that want the same lock take turns here, instead of against each other on the memory node:
// however many wait for a popular key, one of them asks for its lock.
class Turns {
 public:
  explicit Turns(fabric::Port& port) : queue_(port) {}
  using Bits = std::span<const layout::HeldLocks>;

  bool take(Bits bits) {
    for (const layout::HeldLocks& one : bits) {
      for (const layout::HeldLocks& held : held_) {
        if (held.offset == one.offset && (held.mask & one.mask) != 0) return false;
      }
    }
    held_.insert(held_.end(), bits.begin(), bits.end());
    return true;
  }
  void give_back(Bits bits) {
    for (const layout::HeldLocks& one : bits) {
      const auto at = std::find_if(held_.begin(), held_.end(), [&one](const layout::HeldLocks& held) {
        return held.offset == one.offset && held.mask == one.mask;
      });
      FARPOOL_CHECK(at != held_.end());
      *at = held_.back();
      held_.pop_back();
    }
    queue_.wake_all();  // in the order in which they came
  }
  session::WaitQueue& queue() { return queue_; }

 private:
  std::vector<layout::HeldLocks> held_;
  session::WaitQueue queue_;
};

struct Table::State {
  State(session::Session& session, heap::Heap& heap, const Geometry& geometry, std::uint32_t table_id)
      : session(session), heap(heap), geometry(geometry), table_id(table_id), cache(geometry), turns(session.port()) {}

  session::Session& session;
  heap::Heap& heap;
  const Geometry geometry;
  const std::uint32_t table_id;
  RowCache cache;
  PathSearch search;  // scratch; never in use across a suspension
  Marks marks;
  Turns turns;
  // Which lock was last found to be held by somebody who stands still, for those who waited behind whoever found out.
  struct {
    layout::HeldLocks bits;
    Nanos at = 0;
    std::string message;
  } accusation;

  fabric::Port& port() { return session.port(); }
  Nanos now() { return session.port().now(); }
  Nanos failure_timeout() { return session.grant().failure_timeout; }
  const base::HashSecret& seed() { return session.grant().table_seed; }
  std::uint64_t hash(std::string_view key) { return base::keyed_hash(seed(), base::bytes_of(key)); }

  Remote row_at(std::uint64_t row) const { return {layout::kTable, row * geometry.row_bytes()}; }
  Remote block_at(std::uint64_t units) const { return {layout::kHeap, layout::block_offset(units)}; }
  // Whether an entry points into the heap at all; a READ beyond it would end the session.
  bool in_heap(const Entry& entry) const {
    const std::uint64_t bytes = geometry.at(layout::kHeap).bytes;
    return entry.block() <= bytes / layout::kBlockUnit && entry.bytes() <= bytes - layout::block_offset(entry.block());
  }

  std::string name_row(std::uint64_t row) const {
    return "row " + std::to_string(row) + " of table " + std::to_string(table_id);
  }
  Status gone(Code otherwise, const std::string& what);
  static Status check_sizes(std::string_view key, std::size_t value_bytes);
};

// Waits longer after each time, by chance: those who collide must not do so in step for ever.
class Backoff {
 public:
  explicit Backoff(Table::State& state) : state_(state) {}
  Task<void> wait(Nanos deadline);

 private:
  Table::State& state_;
  unsigned times_ = 0;
};

// Follows one place that stays locked or torn, and finds out who holds it: reads all operation slots twice, a failure
// timeout apart. Those that cover the place both times and did not move in between are its suspects.
class Suspicion {
 public:
  explicit Suspicion(Table::State& state) : state_(state) {}

  // The place was seen blocked now: bits of `mask` in the lock word at `offset`. Bits that came free in between start
  // it anew.
  void blocked(std::uint64_t offset, std::uint64_t mask);
  // The lock word at `offset` was taken.
  void came_free(std::uint64_t offset) {
    if (offset == offset_) mask_ = 0;
  }
  bool active() const { return mask_ != 0; }

  // Locked, with the holders named, if the place has stood blocked for the failure timeout; also, once `deadline` is
  // near, what is known by then, as timed_out. Ok: go on trying.
  Task<Status> judge(Nanos deadline, Cost& cost);

 private:
  struct Claim {
    std::uint64_t slot = 0;
    std::uint64_t holder = 0;
    std::uint64_t sequence = 0;
  };
  Task<Status> look(Nanos deadline, Cost& cost, std::vector<Claim>& into);
  Status accuse(Code code, const std::vector<Claim>& again, Nanos stood) const;

  Table::State& state_;
  std::uint64_t offset_ = 0;
  std::uint64_t mask_ = 0;
  Nanos since_ = 0;
  Nanos looked_at_ = 0;  // 0: not yet
  std::vector<Claim> first_;
};

}  // namespace farpool::rcuckoo
