// SPDX-License-Identifier: Apache-2.0
// What the operations of one table share. Internal to the room.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "index/clearing.h"
#include "index/marks.h"
#include "index/operation.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/memory.h"
#include "index/rcuckoo/path.h"
#include "index/rcuckoo/table.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "session/repair.h"
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
using index::Backoff;
using index::Chain;
using index::check_sizes;
using task::Task;

// Operations of one client that want the same lock take turns here, not against each other on the memory node: however
// many wait for a popular key, one of them asks for its lock.
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

class Relocation;

struct Table::State final : session::Repairable, heap::References, index::Stretches {
  // Uses a heap of its own if there is no other.
  State(session::Session& session, heap::Heap* other_heap, const Geometry& geometry, std::uint32_t table_id);
  ~State() override;

  session::Session& session;
  const std::unique_ptr<heap::Heap> own_heap;
  heap::Heap& heap;
  const Geometry geometry;
  const std::uint32_t table_id;
  RowCache cache;
  PathSearch search;  // scratch; never in use across a suspension
  Marks marks;
  index::RowMarks row_marks;
  index::Clearing clearing;
  Turns turns;
  session::Repairer repairer;
  index::Move move;  // the pool's latest, as far as this client knows
  std::unique_ptr<Relocation> relocation;

  Task<Result<std::optional<std::string>>> finish(const layout::OperationSlot& slot, Nanos deadline,
                                                  Cost& cost) override;
  Task<Result<std::vector<bool>>> empty(std::span<const std::uint64_t> marks, Nanos deadline, Cost& cost) override;
  Task<Result<bool>> refers(std::uint64_t units, base::Bytes extent, Nanos deadline, Cost& cost) override;
  Task<Status> rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes, Nanos deadline,
                       Cost& cost) override;
  fabric::Port& port() { return session.port(); }
  Nanos now() { return session.port().now(); }
  Nanos failure_timeout() { return session.grant().failure_timeout; }
  const base::HashSecret& seed() { return session.grant().table_seed; }
  bool leaves(std::string_view key) {
    return !move.leaving.empty() && move.leaves(base::keyed_hash(session.grant().pool_secret, base::bytes_of(key)));
  }
  std::uint64_t hash(std::string_view key) { return base::keyed_hash(seed(), base::bytes_of(key)); }

  Remote row_at(std::uint64_t row) const { return {layout::kTable, row * geometry.row_bytes()}; }
  Remote block_at(std::uint64_t units) const { return {layout::kHeap, layout::block_offset(units)}; }
  // Returns the slot of an entry that cannot be, or points out of the heap; a READ there would end the session.
  std::optional<std::uint64_t> impossible(const RowView& row) const {
    return row.impossible(geometry.at(layout::kHeap).bytes);
  }

  std::string name_row(std::uint64_t row) const {
    return "row " + std::to_string(row) + " of table " + std::to_string(table_id);
  }
  Status gone(Code otherwise, const std::string& what) { return index::gone(session, otherwise, what); }
};

// Waits for a row that does not match its checksum, or whose extent does not. A row in the middle of a WRITE is whole
// again a moment later. A row that stays torn was left by a client that died, as its lock shows, or is damaged.
class TornRow {
 public:
  explicit TornRow(Table::State& state)
      : state_(state), suspicion_(state.session, state.repairer), backoff_(state.session) {}

  // Called when the row was read and was torn, with this checksum in it. Returns when it is worth reading again. The
  // caller holds no lock and claims none.
  Task<Status> wait(std::uint64_t row, std::uint64_t checksum, Nanos deadline, Cost& cost);
  void came_good() { since_ = 0; }

 private:
  Table::State& state_;
  session::Suspicion suspicion_;
  Backoff backoff_;
  Nanos since_ = 0;  // 0: nothing is waited for
  std::uint64_t row_ = 0;
  std::uint64_t checksum_ = 0;
  bool was_free_ = false;  // its lock, after it had been torn for the failure timeout
};

}  // namespace farpool::rcuckoo
