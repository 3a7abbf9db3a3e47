// SPDX-License-Identifier: Apache-2.0
#include "index/race/table.h"

#include <utility>

#include "index/race/buckets.h"
#include "index/race/change.h"
#include "index/race/state.h"
#include "layout/extent.h"

namespace farpool::race {

Table::Table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry, std::uint32_t table_id)
    : state_(std::make_unique<State>(session, heap, geometry, table_id)) {
  heap.set_references(*state_);
}
Table::~Table() = default;

const layout::Geometry& Table::geometry() const { return state_->geometry; }
const Marks& Table::marks() const { return state_->marks; }
session::Repairer& Table::repairer() { return state_->repairer; }

Task<Result<bool>> Table::insert(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  Result<bool> existed = co_await change(
      *state_, key, {.name = "an insert", .if_present = Edit::Kind::keep, .if_absent = Edit::Kind::put, .value = value},
      deadline, cost);
  if (!existed.ok()) co_return existed;
  co_return !*existed;
}

Task<Result<bool>> Table::update(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return change(*state_, key,
                {.name = "an update", .if_present = Edit::Kind::put, .if_absent = Edit::Kind::keep, .value = value},
                deadline, cost);
}

Task<Result<bool>> Table::remove(std::string_view key, Nanos deadline, Cost& cost) {
  return change(*state_, key, {.name = "a remove", .if_present = Edit::Kind::erase, .if_absent = Edit::Kind::keep},
                deadline, cost);
}

Task<Result<bool>> Table::put(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return change(*state_, key,
                {.name = "a put", .if_present = Edit::Kind::put, .if_absent = Edit::Kind::put, .value = value},
                deadline, cost);
}

// Exact: the CAS succeeds only on the slot whose block the editor has seen, or where no other copy has been committed.
Task<Result<bool>> Table::modify(std::string_view key, Editor& editor, Nanos deadline, Cost& cost) {
  return change(*state_, key, {.name = "a modify", .editor = &editor}, deadline, cost);
}

Task<Result<index::Totals>> Table::count(Nanos deadline, Cost& cost) {
  if (Status status = co_await state_->tally.settle(deadline); !status.ok()) co_return status;
  co_return co_await index::count_slots(state_->session, deadline, cost);
}

// No operation of this protocol claims or plans anything.
Task<Result<std::optional<std::string>>> Table::State::finish(const layout::OperationSlot&, Nanos, Cost&) {
  co_return std::optional<std::string>("a plan, and operations of RACE make none");
}

// The block is of a client that has ended, or has been published: nobody is still to commit a slot that points to it. A
// key's copy does not move, so one READ finds it.
Task<Result<bool>> Table::State::refers(std::uint64_t units, base::Bytes extent, Nanos deadline, Cost& cost) {
  const auto whole = layout::read_extent(extent, units);
  if (!whole || whole->key.size() > layout::kMaxKeyBytes) co_return false;
  const session::EraPin pin = session.pin();
  Buckets buckets(*this, base::text_of(whole->key));
  Chain chain;
  buckets.add_reads(chain);
  for (;;) {
    if (now() >= deadline) co_return Status(Code::timed_out, "the slots of a block's key could not be read in time");
    const Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
    if (outcome.fate != Fate::done) co_return gone(Code::unavailable, "the slots of a block's key could not be read");
    if (Status status = buckets.check(); !status.ok()) co_return status;
    bool committed = false;
    std::optional<std::pair<std::uint64_t, Slot>> tentative;
    buckets.each(false, [&](std::uint64_t offset, Slot slot) {
      if (slot.block() != units) return;
      if (slot.committed()) {
        committed = true;
      } else {
        tentative.emplace(offset, slot);
      }
    });
    if (committed || !tentative) co_return committed;
    std::uint64_t before = 0;
    chain.clear();
    chain.add(Op::cas({layout::kTable, tentative->first}, before, tentative->second.word(), 0));
    const Outcome removed = co_await session.post(chain.ops(), deadline, cost);
    if (removed.fate != Fate::done) co_return gone(Code::unavailable, "a tentative slot could not be taken away");
    if (before == tentative->second.word()) ++marks.removed;
    chain.clear();
    buckets.add_reads(chain);
  }
}

// --- Counting

void Tally::add(std::int64_t keys, std::int64_t bytes, Cost& cost) {
  if (keys == 0 && bytes == 0) return;
  keys_ += static_cast<std::uint64_t>(keys);
  bytes_ += static_cast<std::uint64_t>(bytes);
  if (!std::exchange(pending_, true)) {
    std::uint64_t counters[layout::kSlotCounters.bytes / 8] = {};
    cost.charge_background(std::array{Op::write({layout::kSlots, 0}, std::as_writable_bytes(std::span(counters)))});
  }
  if (!flushing_) {
    flushing_ = true;
    session_.background().spawn(flush());
  }
}

Task<void> Tally::flush() {
  const auto soon = [this] { return session_.port().now() + session_.grant().failure_timeout; };
  if (!slot_) {
    Result<session::Slot> slot = co_await session_.take_slot(soon());
    if (slot.ok()) slot_.emplace(std::move(*slot));
  }
  while (slot_ && pending_ && session_.alive()) {
    layout::OperationSlot& said = slot_->words();
    said.keys_after = said.keys + std::exchange(keys_, 0);
    said.bytes_after = said.bytes + std::exchange(bytes_, 0);
    pending_ = false;
    Cost charged_already;
    const std::array chain{slot_->settle()};
    (void)co_await session_.post(chain, soon(), charged_already);
  }
  flushing_ = false;
  flushed_.wake_all();
}

Task<Status> Tally::settle(Nanos deadline) {
  while (flushing_) {
    if (session_.port().now() >= deadline) {
      co_return Status(Code::timed_out, "the keys of this client were not counted in time");
    }
    (void)co_await flushed_.wait(deadline);
  }
  co_return Status();
}

}  // namespace farpool::race
