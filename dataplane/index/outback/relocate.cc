// SPDX-License-Identifier: Apache-2.0
#include "index/outback/relocate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "index/operation.h"
#include "layout/directory.h"
#include "layout/lease.h"
#include "task/scope.h"

namespace farpool::outback {

using base::Code;
using base::Nanos;
using base::Result;
using fabric::Cost;
using task::Task;

namespace {

constexpr std::size_t kAtOnce = 8;           // keys that are on their way
constexpr std::uint64_t kKeysOfAStep = 256;  // of the scan that finds them

}  // namespace

Nanos Relocation::soon() const { return state_.port.now() + 4 * state_.options.patience; }

// Adds a key; the table has been closed.
Task<Result<bool>> Relocation::admit(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return add_as_mover(state_, key, value, deadline, cost);
}

Task<Result<index::Movable::Standing>> Relocation::standing() {
  if (base::Status status = co_await state_.ready(soon(), cost_); !status.ok()) co_return status;
  const std::shared_ptr<Connection> held = state_.connection;
  fabric::Buffer words = state_.port.buffer(16);
  index::Chain chain;
  chain.add(
      fabric::Op::read({layout::kDirectory, layout::move_offset(state_.options.geometry.tables)}, words.first(8)));
  chain.add(fabric::Op::read({layout::kLeases, 8 * layout::kMoveLease}, words.span().subspan(8, 8)));
  const fabric::Outcome outcome = co_await held->post(chain.ops(), soon(), cost_);
  if (outcome.fate != fabric::Fate::done) {
    co_return base::Status(Code::unavailable, "how far a move is could not be read: " + held->why().message());
  }
  co_return Standing{base::load<std::uint64_t>(words.data()), base::load<std::uint64_t>(words.data() + 8)};
}

// Asks for a step that needs no key. The memory node refuses it if this session's lease has been lost.
Task<Result<Reply>> Relocation::ask_zone(Op op, std::uint64_t move, std::uint64_t zone) {
  fabric::Buffer request, room;
  const Result<Reply> reply =
      co_await state_.ask({.op = op, .place = zone, .move = move}, request, room, soon(), cost_);
  if (!reply.ok()) co_return reply.status();
  if (reply->status == Status::old_map) co_return index::map_is_old(move);
  if (reply->status != Status::done) co_return state_.refusal(reply->status);
  co_return reply;
}

Task<Result<Relocation::Left>> Relocation::ask_of(Op op, std::uint64_t move, std::string_view key) {
  const Nanos deadline = soon();
  fabric::Buffer request, room;
  for (;;) {
    if (base::Status status = co_await state_.ready(deadline, cost_); !status.ok()) co_return status;
    const Hold hold(state_);
    const LocatorHeader header = state_.locator->header();
    const Spot spot = state_.locator->find(hash_of(state_.options.secret, header.salt, base::bytes_of(key)));
    const Request asked{
        .op = op, .place = spot.bucket, .generation = header.generation, .move = move, .key = base::bytes_of(key)};
    const Result<Reply> reply = co_await state_.ask(asked, request, room, deadline, cost_);
    if (!reply.ok()) co_return reply.status();
    if (reply->status == Status::stale) {
      if (base::Status status = co_await state_.renew(header.generation, deadline, cost_); !status.ok()) {
        co_return status;
      }
      continue;
    }
    if (reply->status == Status::old_map) co_return index::map_is_old(move);
    if (is_refusal(reply->status)) co_return state_.refusal(reply->status);
    if (op != Op::leave || reply->status != Status::done) co_return Left{reply->status, {}};
    if ((reply->flags & Reply::kElsewhere) == 0) {
      co_return Left{Status::done, std::string(base::text_of(reply->value))};
    }
    fabric::Buffer block;
    const auto view = co_await state_.read_elsewhere(*reply, block, deadline, cost_);
    if (!view.ok()) co_return view.status();
    if (*view) co_return Left{Status::done, std::string(base::text_of((*view)->value))};
    if (state_.port.now() >= deadline) {
      co_return base::Status(Code::timed_out, "the value of a key that leaves could not be read");
    }
  }
}

// One zone after the other. Each is closed under its lock, so that no operation by an older map is in the middle there.
Task<base::Status> Relocation::close(index::Arrivals*, const GoOn& go_on) {
  const std::uint64_t move = state_.move.number;
  for (std::uint64_t zone = 0;;) {
    if (base::Status status = go_on(); !status.ok()) co_return status;
    const Result<Reply> closed = co_await ask_zone(Op::close, move, zone);
    if (!closed.ok()) co_return closed.status();
    if (closed->number == 0) co_return go_on();
    zone = closed->number;
  }
}

// No key that leaves has come since the table was closed, so one scan finds them all.
Task<base::Status> Relocation::move_away(index::Arrivals& arrivals, const GoOn& go_on) {
  Work work{.arrivals = arrivals, .go_on = go_on, .move = state_.move.number, .later = {}};
  for (std::uint64_t position = 0;;) {
    Result<index::Page> page = co_await table_.scan(position, kKeysOfAStep, soon(), cost_);
    if (!page.ok()) co_return page.status();
    if (base::Status status = co_await send_all(work, page->keys); !status.ok()) co_return status;
    if (page->next == 0) break;
    position = page->next;
  }
  // By now all keys that another mover had marked have left.
  while (!work.later.empty()) {
    const std::vector<std::string> keys = std::exchange(work.later, {});
    if (base::Status status = co_await send_all(work, keys); !status.ok()) co_return status;
    // Somebody's keys have left in each round, or marks are of no key at all.
    if (work.later.size() >= keys.size()) {
      co_return base::Status(Code::corrupt, std::to_string(keys.size()) +
                                                " keys cannot leave, because all marks of leaving keys are taken, and "
                                                "none is of a key that is there: let farpool-fsck look at the memory");
    }
  }
  if (state_.move.number != work.move) co_return base::Status(Code::stale, "the shard map has another move by now");
  co_return (co_await ask_zone(Op::finish, work.move, 0)).status();
}

Task<base::Status> Relocation::send_all(Work& work, const std::vector<std::string>& keys) {
  for (std::size_t next = 0; next < keys.size();) {
    if (base::Status status = work.go_on(); !status.ok()) co_return status;
    if (state_.move.number != work.move) co_return base::Status(Code::stale, "the shard map has another move by now");
    std::array<base::Status, kAtOnce> done;
    task::Scope scope;
    for (std::size_t i = 0; i < kAtOnce && next < keys.size(); ++next) {
      if (state_.way_of(keys[next]).leaves) scope.spawn(send(work, keys[next], done[i++]));
    }
    co_await scope.join();
    for (base::Status& status : done) {
      if (!status.ok()) co_return std::move(status);
    }
  }
  co_return work.go_on();
}

// From the first step to the last only the mover changes the key, here and there: it can be read here until it is
// there.
Task<void> Relocation::send(Work& work, const std::string& key, base::Status& status) {
  Result<Left> here = co_await ask_of(Op::leave, work.move, key);
  status = here.status();
  if (!here.ok() || here->status == Status::absent) co_return;  // absent: it has been removed
  if (here->status == Status::full) {
    work.later.push_back(key);
    co_return;
  }
  status = co_await work.arrivals.take_in(key, here->value);
  if (!status.ok()) {
    status = co_await give_up(work, key, std::move(status));
    co_return;
  }
  here = co_await ask_of(Op::left, work.move, key);
  status = here.status();
  if (!status.ok()) co_return;
  if (here->status == Status::done) {
    ++state_.marks.moved_away;
  } else {
    status = {Code::corrupt, "a key was removed while it was on its way"};
  }
}

// Handles a key that could not be sent: if it is certain not to be at the target, clients may change it here again.
Task<base::Status> Relocation::give_up(Work& work, const std::string& key, base::Status why) {
  const Result<bool> has = co_await work.arrivals.has(key);
  if (has.ok() && !*has) (void)co_await ask_of(Op::stay, work.move, key);
  co_return why;
}

}  // namespace farpool::outback
