// SPDX-License-Identifier: Apache-2.0
#include "directory/splitter.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "layout/regions.h"
#include "task/scope.h"

namespace farpool::directory {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Op;
using layout::SplitWord;
using task::Task;

namespace {

constexpr std::uint64_t kRowsAtOnce = 8;
constexpr std::size_t kWordsAtOnce = 32;

}  // namespace

Nanos Splitter::soon() const { return session_.port().now() + 8 * session_.grant().failure_timeout; }

Status Splitter::grow(std::uint64_t table, std::uint64_t depth) {
  if (geometry_.tables == 1) return {Code::out_of_memory, "it is the only table that there is"};
  if (no_tables_left_) {
    return {Code::out_of_memory, "all " + std::to_string(geometry_.tables) + " tables are in use"};
  }
  if (deepest_.contains(table)) return {Code::out_of_memory, "it has been split as often as can be"};
  if (!busy_) spawn(table, depth);
  return {};
}

void Splitter::watch(std::uint64_t table) {
  session_.hurry_eras();  // its end waits for one
  const Nanos now = session_.port().now(), timeout = session_.grant().failure_timeout;
  if (busy_) return;
  // What was seen longer ago than that may have been another split.
  if (watched_ != table || now - watched_last_ > timeout) watched_since_ = now;
  watched_ = table;
  watched_last_ = now;
  if (now - watched_since_ > timeout / 16) spawn(table, std::nullopt);
}

void Splitter::spawn(std::uint64_t table, std::optional<std::uint64_t> depth) {
  busy_ = true;
  session_.background().spawn(run(table, depth));
}

Task<Status> Splitter::idle(Nanos deadline) {
  while (busy_) {
    if (session_.port().now() >= deadline) co_return Status(Code::timed_out, "a split goes on beyond the deadline");
    (void)co_await idle_.wait(deadline);
  }
  co_return Status();
}

Task<Status> Splitter::pause(Nanos deadline) {
  Status status = co_await idle(deadline);
  if (status.ok()) busy_ = true;
  co_return status;
}

void Splitter::resume() {
  busy_ = false;
  idle_.wake_all();
}

Task<Splitter::Swept> Splitter::sweep(Nanos deadline) {
  const auto swept = std::make_shared<Swept>();
  if (geometry_.tables == 1) co_return *swept;
  Status status = co_await idle(deadline);
  if (status.ok()) {
    busy_ = true;
    session_.background().spawn(take_over_all(swept));
    status = co_await idle(deadline);
  }
  if (!status.ok()) {
    ++swept->under_way;
    swept->trouble = std::move(status);
  }
  co_return *swept;
}

Task<void> Splitter::take_over_all(std::shared_ptr<Swept> swept) {
  co_await take_over_each(*swept);
  co_await rest();
}

Task<void> Splitter::take_over_each(Swept& swept) {
  fabric::Buffer leases;
  if (swept.trouble = co_await read(&leases); !swept.trouble.ok()) {
    ++swept.under_way;
    co_return;
  }
  std::vector<std::uint64_t> splits;  // as of now: the image changes with each
  const View view(image_.span(), geometry_.tables);
  for (std::uint64_t table = 0; table < geometry_.tables; ++table) {
    if (view.split(table) != 0) splits.push_back(table);
  }
  for (const std::uint64_t table : splits) {
    const bool others =
        layout::LeaseWord::held(base::load<std::uint64_t>(leases.data() + 8 * layout::table_lease(table)));
    if (others) {
      ++swept.under_way;
      continue;
    }
    const std::uint64_t before = marks_.finished;
    Status status = co_await attend(table, std::nullopt);
    swept.finished += marks_.finished - before;
    if (status.ok()) continue;
    ++swept.under_way;
    swept.trouble = std::move(status);
  }
}

Task<void> Splitter::run(std::uint64_t table, std::optional<std::uint64_t> depth) {
  (void)co_await attend(table, depth);
  co_await rest();
}

Task<void> Splitter::rest() {
  if (session_.alive()) (void)co_await cache_.refresh(soon(), cost_);
  watched_.reset();
  resume();
}

Task<Status> Splitter::attend(std::uint64_t table, std::optional<std::uint64_t> depth) {
  Leases leases;
  Status status = co_await repairer_.take_lease(layout::table_lease(table), leases, soon(), cost_);
  if (status.ok()) status = co_await work(table, depth, leases);
  co_await repairer_.give_back(leases, soon(), cost_);
  co_return status;
}

Task<Status> Splitter::work(std::uint64_t table, std::optional<std::uint64_t> depth, Leases& leases) {
  if (Status status = co_await read(); !status.ok()) co_return status;
  const View view(image_.span(), geometry_.tables);
  if (view.split(table) != 0) {
    ++marks_.taken_over;
  } else if (!depth || layout::HomeWord::Depth::get(view.home(table)) != *depth) {
    co_return Status();  // another client has been here
  }
  Status status = co_await with_directory(table, true, leases);
  const std::optional<Split> split = under_way(view, table);
  if (!status.ok() || !split) co_return status;
  if (SplitWord::phase(view.split(table)) == SplitWord::moving) {
    status = co_await each_row(*split, true, view.progress(table), leases);
    if (status.ok()) status = co_await write(begin_clearing(view, table));
    if (!status.ok()) co_return status;
  }
  if (SplitWord::phase(view.split(table)) == SplitWord::clearing) {
    status = co_await outlive_readers(leases);
    if (status.ok()) status = co_await each_row(*split, false, view.progress(table), leases);
    if (!status.ok()) co_return status;
  }
  status = co_await with_directory(table, false, leases);
  if (status.ok()) ++marks_.finished;
  co_return status;
}

// What needs the directory's own lease, which is held for a few trips: to begin a split, or to end it.
Task<Status> Splitter::with_directory(std::uint64_t table, bool begins, Leases& leases) {
  if (Status status = co_await repairer_.take_lease(layout::kDirectoryLease, leases, soon(), cost_); !status.ok()) {
    co_return status;
  }
  Status status = co_await read();
  if (status.ok()) {
    const View view(image_.span(), geometry_.tables);
    const bool fresh = view.split(table) == 0;
    Result<Changes> changes = begins ? begin(view, table) : Result<Changes>(end(view, table));
    status = changes.status();
    if (changes.ok()) {
      status = co_await write(std::move(*changes));
      if (begins && fresh && status.ok()) ++marks_.begun;
    } else if (status.code() == Code::out_of_memory) {
      const std::uint64_t depth = layout::HomeWord::Depth::get(view.home(table));
      if (depth == view.most_depth()) {
        deepest_.insert(table);
      } else {
        no_tables_left_ = true;  // numbers are never used again
      }
    }
  }
  Leases own(1, leases.back());
  leases.pop_back();
  co_await repairer_.give_back(own, soon(), cost_);
  co_return status;
}

Task<Status> Splitter::each_row(const Split& split, bool moves, std::uint64_t first, Leases& leases) {
  const std::uint64_t rows = geometry_.rows_per_table();
  for (std::uint64_t row = first; row < rows;) {
    const std::uint64_t end = std::min(row + kRowsAtOnce, rows);
    std::array<Status, kRowsAtOnce> done;
    task::Scope scope;
    for (std::uint64_t i = row; i < end; ++i) scope.spawn(one_row(split, moves, i, done[i - row]));
    co_await scope.join();
    for (Status& status : done) {
      if (!status.ok()) co_return std::move(status);
    }
    row = end;
    if (Status status = co_await go_on(leases); !status.ok()) co_return status;
    Changes progress(1, {layout::record_offset(geometry_.tables, split.from) + layout::kRecordProgress, row});
    if (Status status = co_await write(std::move(progress)); !status.ok()) co_return status;
  }
  co_return Status();
}

Task<void> Splitter::one_row(const Split& split, bool moves, std::uint64_t row, Status& status) {
  status = moves ? co_await rows_.move(split, row, soon(), cost_) : co_await rows_.clear(split, row, soon(), cost_);
}

// A reader may have begun in the era after the one that the last tick told of. One that lags for too long is fenced by
// the memory node, so this ends.
Task<Status> Splitter::outlive_readers(Leases& leases) {
  const std::uint64_t era = session_.era();
  while (session_.safe_era() <= era + 1) {
    if (!session_.alive()) co_return session_.why();
    // Now and then the leases are to be renewed.
    co_await session_.tick_now(session_.port().now() + session_.grant().failure_timeout / 16);
    if (Status status = co_await go_on(leases); !status.ok()) co_return status;
  }
  co_return Status();
}

// A client that says goodbye leaves its split where it is, rather than wait for its end: others go on with it.
Task<Status> Splitter::go_on(Leases& leases) {
  Status status = co_await repairer_.renew(leases, soon(), cost_);
  if (status.ok() && session_.leaving()) {
    status = Status(Code::unavailable, "a split was left to others: the session is being closed");
  }
  co_return status;
}

// And the lease words, as they are behind it.
Task<Status> Splitter::read(fabric::Buffer* leases) {
  const std::uint64_t bytes = layout::directory_bytes(geometry_.tables);
  if (image_.size() == 0) image_ = session_.port().buffer(bytes);
  std::vector<Op> chain(1, Op::read({layout::kDirectory, 0}, image_.first(bytes)));
  if (leases != nullptr) {
    *leases = session_.port().buffer(8 * layout::kLeaseWords);
    chain.push_back(Op::read({layout::kLeases, 0}, leases->first(8 * layout::kLeaseWords)));
  }
  const fabric::Outcome outcome = co_await session_.post(chain, soon(), cost_);
  if (outcome.fate == fabric::Fate::done) co_return Status();
  co_return Status(Code::unavailable, "the directory could not be read: " + session_.why().message());
}

// In this order: WRITEs of a lane are.
Task<Status> Splitter::write(Changes changes) {
  fabric::Buffer words = session_.port().buffer(8 * std::max<std::size_t>(1, changes.size()));
  for (std::size_t i = 0; i < changes.size();) {
    std::vector<Op> chain;
    for (; i < changes.size() && chain.size() < kWordsAtOnce; ++i) {
      base::store(words.data() + 8 * i, changes[i].word);
      chain.push_back(Op::write({layout::kDirectory, changes[i].offset}, words.span().subspan(8 * i, 8)));
    }
    const fabric::Outcome outcome = co_await session_.post(chain, soon(), cost_);
    if (outcome.fate != fabric::Fate::done) {
      co_return Status(Code::unavailable, "the directory could not be written: " + session_.why().message());
    }
  }
  for (const Change& change : changes) base::store(image_.data() + change.offset, change.word);
  co_return Status();
}

}  // namespace farpool::directory
