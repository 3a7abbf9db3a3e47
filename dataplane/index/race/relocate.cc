// SPDX-License-Identifier: Apache-2.0
#include "index/race/relocate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "index/race/change.h"
#include "layout/directory.h"
#include "layout/extent.h"
#include "session/tenure.h"
#include "task/scope.h"

namespace farpool::race {

using layout::SplitWord;

namespace {

constexpr std::uint64_t kGroupsAtOnce = 8;
// How many groups of a table are moved under one lease: a splitter waits for so many.
constexpr std::uint64_t kStretch = 256;

bool tentative(Slot slot) { return slot.tentative(); }
bool there(Slot slot) { return slot.committed() || slot.leaving(); }

}  // namespace

Task<Status> Relocation::post(const Chain& chain) {
  const Outcome outcome = co_await state_.session.post(chain.ops(), soon(), cost_);
  if (outcome.fate == Fate::done) co_return Status();
  co_return state_.gone(Code::unavailable, "a move of keys to another memory node was cut short");
}

Task<Result<index::Movable::Standing>> Relocation::standing() {
  return index::move_standing(state_.session, state_.geometry.tables, soon(), cost_);
}

// Adds a key; its buckets have been closed.
Task<Result<bool>> Relocation::admit(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return add(state_, key, value, deadline, cost);
}

Task<Status> Relocation::close(index::Arrivals* arrivals, const GoOn& go_on) {
  Status status = co_await each_group({.closes = true, .arrivals = arrivals, .go_on = go_on});
  if (status.ok()) status = co_await outlive_clients(go_on);
  co_return status;
}

Task<Status> Relocation::move_away(index::Arrivals& arrivals, const GoOn& go_on) {
  const std::uint64_t number = state_.move.number;
  Status status = co_await each_group({.closes = false, .arrivals = &arrivals, .go_on = go_on});
  if (!status.ok()) co_return status;
  if (state_.move.number != number) co_return Status(Code::stale, "the shard map has another move by now");
  co_return co_await index::finish_move(state_.session, state_.geometry.tables, number, soon(), cost_);
}

// A table that a split makes has a higher number than all others, and what its old table had received. So a mover that
// goes through the tables in order meets every key: in the old table before the split, or in the new one.
Task<Status> Relocation::each_group(const Work& work) {
  for (std::uint64_t table = 0; table < state_.geometry.tables; ++table) {
    for (std::uint64_t row = 0; row < state_.geometry.rows_per_table();) {
      session::Tenure tenure(state_.session);
      Result<Found> found = Found::table;
      const std::uint64_t lease = layout::table_lease(table);
      Status status = co_await tenure.take(lease, soon());
      const bool waited = status.code() == Code::timed_out;  // a long split goes on
      if (status.ok()) {
        found = co_await stretch(work, table, row);
        status = found.ok() ? tenure.trouble() : found.status();
      }
      co_await tenure.give_back(soon());
      if (state_.session.leases().wanted(lease)) co_await state_.port().sleep_for(state_.failure_timeout() / 8);
      if (status.ok() || waited) status = work.go_on();
      if (!status.ok()) co_return status;
      if (waited) continue;
      if (*found == Found::no_table) co_return Status();
      if (*found == Found::split) {
        const directory::Splitter::Swept swept = co_await state_.splitter.sweep(soon());
        if (!swept.trouble.ok()) co_return swept.trouble;
        if (swept.under_way > 0) co_await state_.port().sleep_for(state_.failure_timeout() / 16);
      }
    }
  }
  co_return Status();
}

// Works on some groups from `row` on, and raises it. No table: neither this one nor any behind it exists. A split: it
// was abandoned, for other clients to finish; before that, this does what the split waits for.
Task<Result<Relocation::Found>> Relocation::stretch(const Work& work, std::uint64_t table, std::uint64_t& row) {
  const std::uint64_t rows = state_.geometry.rows_per_table();
  const Result<Found> found = co_await look_up(table);
  if (!found.ok() || *found == Found::no_table) co_return found;
  const bool split = *found == Found::split;
  if (split && work.arrivals == nullptr) co_return found;
  // Keys that a dead mover left on their way may lie anywhere.
  const std::uint64_t first = split ? 0 : row, end = split ? rows : std::min(row + kStretch, rows);
  for (std::uint64_t at = first; at < end; at += kGroupsAtOnce) {
    Status status = co_await some_groups(work, split, table, at, std::min(at + kGroupsAtOnce, end));
    if (status.ok()) status = work.go_on();
    if (!status.ok()) co_return status;
  }
  if (!split) row = end;
  co_return found;
}

Task<Result<Relocation::Found>> Relocation::look_up(std::uint64_t table) {
  const std::uint64_t record = layout::record_offset(state_.geometry.tables, table);
  fabric::Buffer words = state_.port().buffer(16);
  static_assert(layout::kRecordSplit == 8);
  Chain chain;
  chain.add(Op::read({layout::kDirectory, record}, words.first(16)));
  if (Status status = co_await post(chain); !status.ok()) co_return status;
  if (base::load<std::uint64_t>(words.data()) == 0) co_return Found::no_table;
  const auto split = base::load<std::uint64_t>(words.data() + 8);
  co_return SplitWord::phase(split) == SplitWord::none ? Found::table : Found::split;
}

Task<Status> Relocation::some_groups(const Work& work, bool split, std::uint64_t table, std::uint64_t first,
                                     std::uint64_t end) {
  std::array<Status, kGroupsAtOnce> done;
  task::Scope scope;
  for (std::uint64_t i = first; i < end; ++i) scope.spawn(one_group(work, split, table, i, done[i - first]));
  co_await scope.join();
  for (Status& status : done) {
    if (!status.ok()) co_return std::move(status);
  }
  co_return Status();
}

Task<void> Relocation::one_group(const Work& work, bool split, std::uint64_t table, std::uint64_t row, Status& status) {
  Group group(state_, table, row);
  if (work.closes && !split) {
    status = co_await close_group(work, group);
    co_return;
  }
  if (split) {
    Chain chain;
    chain.add(group.read());
    status = co_await post(chain);
  } else {
    status = co_await freeze(group);
  }
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    if (!group.slot(i).leaving()) continue;
    if (status.ok()) status = co_await send(*work.arrivals, group, i);
    if (!status.ok()) co_await spare(*work.arrivals, group, i);
  }
}

// A split has yet to write a header of 0, with the number of the old table's.
Task<Status> Relocation::close_group(const Work& work, Group& group) {
  const session::EraPin pin = state_.session.pin();
  Chain chain;
  chain.add(group.read());
  for (;;) {
    if (Status status = co_await post(chain); !status.ok()) co_return status;
    chain.clear();
    std::array<std::uint64_t, Group::kBuckets> header{};
    std::array<std::uint64_t, kGroupSlots> slot{};
    for (std::uint64_t i = 0; i < Group::kBuckets; ++i) {
      const std::uint64_t before = group.header(i);
      if (before == 0 || HeaderWord::Move::get(before) >= state_.move.number) continue;
      chain.add(Op::cas(group.header_at(i), header[i], before, HeaderWord::reached_by(before, state_.move.number)));
    }
    if (work.arrivals != nullptr) {
      if (Status status = co_await group.learn(tentative, soon(), cost_); !status.ok()) co_return status;
      for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
        if (!group.slot(i).tentative()) continue;
        if (group.known(i).readable && !leaves(group.known(i))) continue;
        chain.add(Op::cas(group.slot_at(i), slot[i], group.slot(i).word(), 0));  // costs its inserter another try
      }
    }
    if (chain.size() == 0) co_return Status();
    chain.add(group.read());
  }
}

// Makes committed slots of leaving keys leaving. No new ones come: all headers are closed.
Task<Status> Relocation::freeze(Group& group) {
  const session::EraPin pin = state_.session.pin();
  Chain chain;
  chain.add(group.read());
  for (;;) {
    if (Status status = co_await post(chain); !status.ok()) co_return status;
    chain.clear();
    if (Status status = co_await group.learn(there, soon(), cost_); !status.ok()) co_return status;
    std::array<std::uint64_t, kGroupSlots> found{};
    for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
      const Slot slot = group.slot(i);
      if (!slot.committed()) continue;
      if (!group.known(i).readable) {
        co_return Status(Code::corrupt, "a slot's extent is damaged: nobody knows whether its key is to be moved");
      }
      if (!leaves(group.known(i))) continue;
      chain.add(Op::cas(group.slot_at(i), found[i], slot.word(), slot.as(Slot::State::leaving).word()));
    }
    if (chain.size() == 0) co_return Status();
    chain.add(group.read());
  }
}

// Changes a leaving slot, which only the holder of the lease does.
Task<Result<bool>> Relocation::change(Remote at, Slot from, Slot to) {
  std::uint64_t before = 0;
  Chain chain;
  chain.add(Op::cas(at, before, from.word(), to.word()));
  if (Status status = co_await post(chain); !status.ok()) co_return status;
  co_return before == from.word();
}

// Sends a key: first it exists there, then no longer here.
Task<Status> Relocation::send(index::Arrivals& arrivals, Group& group, std::uint64_t slot) {
  if (Status status = co_await group.learn(there, soon(), cost_); !status.ok()) co_return status;
  const Slot leaving = group.slot(slot);
  const Group::Known& known = group.known(slot);
  std::optional<layout::ExtentView> extent;
  fabric::Buffer bytes;
  if (known.readable && known.extent_bytes <= known.bytes.size()) {  // it was read whole, to learn whose it is
    extent = layout::read_extent(known.bytes.first(known.extent_bytes), leaving.block());
  } else if (known.readable) {
    bytes = state_.port().buffer(known.extent_bytes);
    Chain chain;
    chain.add(Op::read(state_.block_at(leaving.block()), bytes.first(known.extent_bytes)));
    if (Status status = co_await post(chain); !status.ok()) co_return status;
    extent = layout::read_extent(bytes.first(known.extent_bytes), leaving.block());
  }
  if (!extent) co_return Status(Code::corrupt, "the extent of a key that is to be moved is damaged");
  Status status = co_await arrivals.take_in(base::text_of(extent->key), base::text_of(extent->value));
  if (!status.ok()) co_return status;
  const Result<bool> cleared = co_await change(group.slot_at(slot), leaving, Slot());
  if (!cleared.ok()) co_return cleared.status();
  if (!*cleared) co_return Status(Code::corrupt, "a slot was changed while its key was on its way");
  state_.heap.free(leaving.block(), known.extent_bytes, cost_);
  state_.tally.add(-1, -static_cast<std::int64_t>(known.pair_bytes), cost_);
  ++state_.marks.moved_away;
  co_return Status();
}

// Handles a key that could not be sent: if it is certain not to be at the target, clients may use it here again.
Task<void> Relocation::spare(index::Arrivals& arrivals, Group& group, std::uint64_t slot) {
  const Status learned = co_await group.learn(there, soon(), cost_);
  const Group::Known& known = group.known(slot);
  if (!learned.ok() || !known.readable) co_return;
  const base::Bytes key = base::Bytes(known.bytes.span()).subspan(layout::kExtentHeader, known.key_bytes);
  const Result<bool> has = co_await arrivals.has(base::text_of(key));
  if (!has.ok() || *has) co_return;
  const Slot leaving = group.slot(slot);
  (void)co_await change(group.slot_at(slot), leaving, leaving.as(Slot::State::committed));
}

// Waits until every operation that read a header before it was closed has ended. A client may have begun in the era
// after the one that the last tick reported.
Task<Status> Relocation::outlive_clients(const GoOn& go_on) {
  const std::uint64_t era = state_.session.era();
  while (state_.session.safe_era() <= era + 1) {
    if (!state_.session.alive()) co_return state_.session.why();
    if (Status status = go_on(); !status.ok()) co_return status;
    state_.session.hurry_eras();
    co_await state_.port().sleep_for(state_.failure_timeout() / 16);
  }
  co_return Status();
}

}  // namespace farpool::race
