// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/relocate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "index/rcuckoo/change.h"
#include "index/rcuckoo/scan.h"
#include "task/scope.h"

namespace farpool::rcuckoo {
namespace {

constexpr std::uint64_t kRowsAtOnce = 256;
constexpr std::uint64_t kRowsOfAPlan = layout::OperationSlot::kRows;
constexpr std::size_t kAtOnce = 8;  // keys, or plans
constexpr std::uint64_t kRowsOfAPage = 1024;

}  // namespace

// Closes the row that the key comes to, to clients that do not know of the move: by an older map, the key may have been
// leaving this memory node.
Task<Result<bool>> Relocation::admit(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return add(state_, key, value, true, deadline, cost);
}

Task<Result<index::Movable::Standing>> Relocation::standing() {
  return index::move_standing(state_.session, state_.geometry.tables, soon(), cost_);
}

// At a target, admit() closes rows one by one.
Task<Status> Relocation::close(index::Arrivals* arrivals, const GoOn& go_on) {
  if (arrivals == nullptr) co_return Status();
  for (std::uint64_t row = 0; row < state_.geometry.rows; row += kRowsAtOnce) {
    const std::uint64_t count = std::min(kRowsAtOnce, state_.geometry.rows - row);
    Status status = co_await close_some(row, count);
    if (status.ok()) status = go_on();
    if (!status.ok()) co_return status;
  }
  co_return Status();
}

// Skips rows that the move has reached already. A row's number never decreases, so it is the only thing that can be
// believed of what is read here.
Task<Status> Relocation::close_some(std::uint64_t first, std::uint64_t count) {
  const std::uint64_t bytes = state_.geometry.row_bytes(), end = first + count;
  fabric::Buffer rows = state_.port().buffer(count * bytes);
  Chain chain;
  chain.add(Op::read(state_.row_at(first), rows.first(count * bytes)));
  const Outcome outcome = co_await state_.session.post(chain.ops(), soon(), cost_);
  if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "rows could not be read");
  const auto open = [&](std::uint64_t row) {
    const RowView view(state_.geometry, rows.span().subspan((row - first) * bytes, bytes));
    return !view.whole(row) || view.move() < state_.move.number;
  };
  Status status;
  for (std::uint64_t row = first; row < end && status.ok();) {
    std::array<Status, kAtOnce> done;
    task::Scope scope;
    for (std::size_t plans = 0; plans < kAtOnce && row < end;) {
      if (!open(row)) {
        ++row;
        continue;
      }
      const std::uint64_t begin = row;
      while (row < end && row < begin + kRowsOfAPlan && open(row)) ++row;
      scope.spawn(close_neighbours(begin, row - begin, done[plans++]));
    }
    co_await scope.join();
    for (Status& one : done) {
      if (status.ok()) status = std::move(one);
    }
  }
  co_return status;
}

Task<void> Relocation::close_neighbours(std::uint64_t first, std::uint64_t count, Status& status) {
  const Result<bool> done =
      co_await change(state_, {}, {.kind = Operation::close, .close = {first, count}}, soon(), cost_);
  status = done.status();
}

// No leaving key comes any more, so a scan meets all of them.
Task<Status> Relocation::move_away(index::Arrivals& arrivals, const GoOn& go_on) {
  const std::uint64_t number = state_.move.number;
  std::uint64_t position = 0;
  do {
    Result<index::Page> page = co_await scan(state_, position, kRowsOfAPage, soon(), cost_);
    if (!page.ok()) co_return page.status();
    if (Status status = co_await send_all(arrivals, page->keys, go_on); !status.ok()) co_return status;
    position = page->next;
  } while (position != 0);
  if (state_.move.number != number) co_return Status(Code::stale, "the shard map has another move by now");
  co_return co_await index::finish_move(state_.session, state_.geometry.tables, number, soon(), cost_);
}

Task<Status> Relocation::send_all(index::Arrivals& arrivals, const std::vector<std::string>& keys, const GoOn& go_on) {
  for (std::size_t next = 0; next < keys.size();) {
    if (Status status = go_on(); !status.ok()) co_return status;
    std::array<Status, kAtOnce> done;
    task::Scope scope;
    for (std::size_t i = 0; i < kAtOnce && next < keys.size(); ++next) {
      if (state_.leaves(keys[next])) scope.spawn(send(arrivals, keys[next], done[i++]));
    }
    co_await scope.join();
    for (Status& status : done) {
      if (!status.ok()) co_return std::move(status);
    }
  }
  co_return go_on();
}

// From the first step to the last only the mover changes the key, here and there: it can be read here until it is
// there.
Task<void> Relocation::send(index::Arrivals& arrivals, const std::string& key, Status& status) {
  std::string value;
  const Wish begin{.kind = Operation::modify, .leave = Wish::Leave::begin, .leaving_value = &value};
  Result<bool> here = co_await change(state_, key, begin, soon(), cost_);
  if (here.code() == Code::moved) co_return;  // it has been removed
  if (here.ok() && *here) {
    status = co_await arrivals.take_in(key, value);
    if (!status.ok()) {
      co_await spare(arrivals, key);
      co_return;
    }
    here = co_await change(state_, key, {.kind = Operation::remove, .leave = Wish::Leave::end}, soon(), cost_);
    if (here.ok()) ++state_.marks.moved_away;
    if (here.code() == Code::moved) here = Status(Code::corrupt, "a key was removed while it was on its way");
  }
  status = here.status();
}

// Handles a key that could not be sent: if it is certain not to be at the target, clients may use it here again.
Task<void> Relocation::spare(index::Arrivals& arrivals, const std::string& key) {
  const Result<bool> has = co_await arrivals.has(key);
  if (!has.ok() || *has) co_return;
  const Wish give_up{.kind = Operation::modify, .leave = Wish::Leave::give_up};
  (void)co_await change(state_, key, give_up, soon(), cost_);
}

}  // namespace farpool::rcuckoo
