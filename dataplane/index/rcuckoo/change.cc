// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/change.h"

#include <string>
#include <utility>

#include "index/rcuckoo/changing.h"

namespace farpool::rcuckoo {

std::string_view Change::name() const {
  switch (wish_.kind) {
    case Operation::insert:
      return "an insert";
    case Operation::update:
      return "an update";
    case Operation::remove:
      return "a remove";
    case Operation::put:
      return "a put";
    case Operation::close:
      return "a move";
    default:
      return "a modify";
  }
}

Status Change::timed_out() const {
  return {Code::timed_out,
          "the deadline passed before the locks for " + std::string(name()) + " were free; nothing was changed"};
}

Status Change::full() const {
  return {Code::out_of_memory, "table " + std::to_string(state_.table_id) + " is full: no key within " +
                                   std::to_string(kDepth) + " moves of " + state_.name_row(places_.first) +
                                   " can make room; remove keys or lend more memory"};
}

Task<Result<bool>> Change::run() {
  if (Status status = check_sizes(key_, wish_.value.size()); !status.ok()) co_return status;
  const bool known =
      wish_.editor == nullptr && (wish_.if_present == Edit::Kind::put || wish_.if_absent == Edit::Kind::put);
  if (known) value_ = wish_.value;
  // If the key may have left, room is requested only when it is found: a full memory node must not keep it from its
  // next one.
  if (known && !leaves_) {
    Status status;
    if (!compose()) status = co_await fetch_block();
    if (status.ok()) (void)compose();
    // A full heap may still have room to replace what the key has.
    if (!status.ok() && status.code() != Code::out_of_memory) co_return status;
  }
  HeldSlot slot;
  Result<bool> existed = false;
  if (Status status = co_await take_slot(slot); !status.ok()) {
    existed = status;
  } else {
    existed = co_await attempts(slot);
  }
  // A block that no entry points to was never published, unless the outcome is unknown.
  if (block_.bytes != 0 && existed.code() != Code::unknown_outcome) state_.heap.discard(block_);
  if (slot) slot->clear(cost_);
  co_return existed;
}

Task<Status> Change::take_slot(HeldSlot& slot) {
  Result<session::Slot> taken = co_await state_.session.take_slot(deadline_);
  if (taken.ok()) slot.emplace(std::move(*taken));
  co_return taken.status();
}

Task<Result<bool>> Change::attempts(HeldSlot& slot) {
  for (;;) {
    if (state_.now() >= deadline_) co_return timed_out();
    Attempt held(*this);
    const Result<Next> next = co_await attempt(*slot, held);
    if (taken_ > 0) co_await release();  // after any result: others wait for the locks
    if (!next.ok()) co_return next.status();
    if (*next == Next::finished) co_return found_.present;
    if (Status status = co_await prepare(*next, held, slot); !status.ok()) co_return status;
  }
}

Task<Result<Change::Next>> Change::attempt(session::Slot& slot, Attempt& held) {
  // Locate.
  if (Status status = co_await choose_rows(); !status.ok()) co_return status;
  plan_locks();
  plan_reads(sweeps_);
  if (Status status = co_await take_turn(); !status.ok()) co_return status;
  // Ask.
  const Result<bool> locked = co_await lock(slot);
  if (!locked.ok()) co_return locked.status();
  if (!*locked) co_return Next::after_repair;
  held.pin();
  // Judge.
  if (Status status = check_key_rows(); !status.ok()) co_return status;
  if (wish_.close.count > 0) co_return co_await close(slot);
  if (wish_.block) {
    found_.present = points_to(*wish_.block);
    co_return Next::finished;
  }
  const std::uint64_t reached = move_of_key_rows();
  if (reached > known_move_) co_return index::map_is_old(known_move_);
  if (Status status = co_await find(); !status.ok()) co_return status;
  // A leaving key cannot come to a row that the move has reached: if it is not here now, it will not be.
  if (!found_.present && leaves_ && reached == known_move_) co_return index::moved_away();
  const Edit::Kind kind = decide();
  // Nothing is written, and the answer is true while the locks are held, whatever the release does.
  if (kind == Edit::Kind::keep) co_return Next::finished;
  if (found_.entry.leaving() && wish_.leave == Wish::Leave::none) {
    ++state_.marks.move_waits;
    co_return Next::after_move;
  }
  if (kind == Edit::Kind::put) {
    if (Status status = check_sizes(key_, value_.size()); !status.ok()) co_return status;
    if (!composed_ && !compose()) co_return Next::with_block;
    if (!found_.present) {
      const Result<bool> placed = co_await place();
      if (!placed.ok()) co_return placed.status();
      if (!*placed && full_) co_return full();
      if (!*placed) co_return Next::with_path;
    }
  }
  // Settle.
  co_return co_await commit(slot, kind);
}

Task<Status> Change::prepare(Next next, Attempt& held, HeldSlot& slot) {
  slot->clear(cost_);  // a claim that stands still would be suspected
  switch (next) {
    case Next::finished:
      break;
    case Next::after_repair:
      leave_turn();
      co_return co_await suspicion_.repair(deadline_, cost_);
    case Next::after_move:
      held.give_up(slot);  // the mover may be of this client, and want the same locks, and a slot
      co_await backoff_.wait(deadline_);
      co_return co_await take_slot(slot);
    case Next::with_block:
      held.give_up(slot);  // the heap needs one to find out what the dead have left, and waits for eras
      if (Status status = co_await fetch_block(); !status.ok()) co_return status;
      co_return co_await take_slot(slot);  // an editor decides anew; the block is kept for it
    case Next::with_path:
      if (!std::exchange(sweeps_, true)) {
        ++state_.marks.escalations;
      } else {
        ++failed_searches_;
        ++state_.marks.failed_searches;
        co_await backoff_.wait(deadline_);
      }
  }
  co_return Status();
}

Task<Result<bool>> change(Table::State& state, std::string_view key, Wish wish, Nanos deadline, Cost& cost) {
  Change change(state, key, wish, deadline, cost);
  co_return co_await change.run();
}

}  // namespace farpool::rcuckoo
