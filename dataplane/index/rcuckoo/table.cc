// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/table.h"

#include <algorithm>

#include "index/rcuckoo/relocate.h"
#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {

Table::Table(session::Session& session, const layout::Geometry& geometry, std::uint32_t table_id)
    : state_(std::make_unique<State>(session, nullptr, geometry, table_id)) {}
Table::Table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry, std::uint32_t table_id)
    : state_(std::make_unique<State>(session, &heap, geometry, table_id)) {}
Table::~Table() = default;

Table::State::State(session::Session& session, heap::Heap* other_heap, const Geometry& geometry, std::uint32_t table_id)
    : session(session),
      own_heap(other_heap != nullptr
                   ? nullptr
                   : std::make_unique<heap::Heap>(session, geometry.at(layout::kHeap).bytes, geometry.segment_bytes)),
      heap(other_heap != nullptr ? *other_heap : *own_heap),
      geometry(geometry),
      table_id(table_id),
      cache(geometry),
      row_marks(session, this->geometry),
      clearing(session, this->geometry, 0, *this, marks),
      turns(session.port()),
      repairer(session, *this),
      relocation(std::make_unique<Relocation>(*this)) {
  heap.set_references(*this);
}
Table::State::~State() = default;

const layout::Geometry& Table::geometry() const { return state_->geometry; }
const Marks& Table::marks() const { return state_->marks; }
Task<void> Table::maintain(Nanos deadline) {
  state_->clearing.maintain();
  return state_->heap.maintain(deadline);
}
Task<void> Table::release(Nanos deadline) { return state_->heap.release(deadline); }
void Table::set_make_room(std::function<bool(std::uint64_t)> make_room) {
  state_->heap.set_make_room(std::move(make_room));
}
heap::Heap* Table::heap() { return &state_->heap; }
session::Repairer* Table::repairer() { return &state_->repairer; }
index::Movable* Table::movable() { return state_->relocation.get(); }

Task<Result<index::Totals>> Table::count(Nanos deadline, Cost& cost) {
  return index::count_slots(state_->session, deadline, cost);
}

Task<Status> TornRow::wait(std::uint64_t row, std::uint64_t checksum, Nanos deadline, Cost& cost) {
  const Nanos timeout = state_.failure_timeout();
  if (since_ == 0 || row != row_ || checksum != checksum_) {
    since_ = state_.now();
    row_ = row;
    checksum_ = checksum;
    was_free_ = false;
  }
  if (state_.now() - since_ >= timeout / 16) {
    // The row was read torn before and after its lock was free, and is unchanged: no client is writing it. One reading
    // is not enough, because the row may have been finished between the two.
    if (was_free_) {
      co_return Status(Code::corrupt, state_.name_row(row) +
                                          " or an extent of it is damaged: it does not match its "
                                          "checksum, and nobody holds its lock");
    }
    const LockBit bit = lock_bit(state_.geometry, lock_of(state_.geometry, row));
    fabric::Buffer word = state_.port().buffer(8);
    Chain chain;
    chain.add(Op::read({layout::kLocks, bit.offset}, word.first(8)));
    const Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
    if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "a lock word could not be read");
    const std::uint64_t taken = base::load<std::uint64_t>(word.data()) & bit.mask;
    if (taken != 0) {
      suspicion_.blocked(bit.offset, taken);
      const Result<bool> dead = co_await suspicion_.judge(deadline, cost);
      Status status = dead.status();
      if (status.ok() && *dead) status = co_await suspicion_.repair(deadline, cost);
      if (!status.ok()) {
        co_return Status(status.code(), state_.name_row(row) + " stays half written: " + status.message());
      }
    } else {
      suspicion_.came_free(bit.offset);
      was_free_ = state_.now() - since_ >= timeout;
    }
  }
  co_await backoff_.wait(deadline);
  co_return Status();
}

}  // namespace farpool::rcuckoo
