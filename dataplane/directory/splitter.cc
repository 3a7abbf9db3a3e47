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
// That this client begins. Others wait for eras, which the dead may hold up, while one moves rows.
constexpr std::size_t kSplitsAtOnce = 4;

}  // namespace

Nanos Splitter::soon() const { return session_.port().now() + 8 * session_.grant().failure_timeout; }

// A split waits so long before its splitter is looked at.
Nanos Splitter::patience() const { return session_.grant().failure_timeout / 16; }

Status Splitter::grow(std::uint64_t table, std::uint64_t depth) {
  if (geometry_.tables == 1) return {Code::out_of_memory, "it is the only table that there is"};
  if (no_tables_left_) {
    return {Code::out_of_memory, "all " + std::to_string(geometry_.tables) + " tables are in use"};
  }
  if (deepest_.contains(table)) return {Code::out_of_memory, "it has been split as often as can be"};
  const auto other = others_.find(table);
  if (other != others_.end() && session_.port().now() - other->second < patience()) return {};
  if (under_way_.size() < kSplitsAtOnce && !under_way_.contains(table)) spawn(table, depth);
  return {};
}

void Splitter::watch(std::uint64_t table) {
  session_.hurry_eras();  // its end waits for one
  const Nanos now = session_.port().now();
  Watched& watched = watched_.try_emplace(table, Watched{now, now}).first->second;
  // What was seen longer ago than that may have been another split.
  if (now - watched.last > session_.grant().failure_timeout) watched.since = now;
  watched.last = now;
  if (now - watched.since <= patience() || under_way_.contains(table)) return;
  watched.since = now;
  spawn(table, std::nullopt);
}

void Splitter::spawn(std::uint64_t table, std::optional<std::uint64_t> depth) {
  under_way_.insert(table);
  session_.background().spawn(run(table, depth));
}

Task<Status> Splitter::idle(Nanos deadline) {
  while (!under_way_.empty()) {
    if (session_.port().now() >= deadline) co_return Status(Code::timed_out, "a split goes on beyond the deadline");
    (void)co_await idle_.wait(deadline);
  }
  co_return Status();
}

Task<Splitter::Swept> Splitter::sweep(Nanos deadline) {
  const auto sweep = std::make_shared<Sweep>();
  if (geometry_.tables == 1) co_return sweep->swept;
  session_.background().spawn(take_over_all(sweep));
  while (!sweep->over && session_.port().now() < deadline) (void)co_await idle_.wait(deadline);
  Swept swept = sweep->swept;
  if (!sweep->over) ++swept.under_way;
  co_return swept;
}

Task<void> Splitter::take_over_all(std::shared_ptr<Sweep> sweep) {
  co_await take_over_each(sweep->swept);
  sweep->over = true;
  idle_.wake_all();
}

Task<void> Splitter::take_over_each(Swept& swept) {
  fabric::Buffer image, leases;
  if (swept.trouble = co_await read(image, &leases); !swept.trouble.ok()) {
    ++swept.under_way;
    co_return;
  }
  const View view(image.span(), geometry_.tables);
  for (std::uint64_t table = 0; table < geometry_.tables; ++table) {
    if (view.split(table) == 0) continue;
    const bool others =
        layout::LeaseWord::held(base::load<std::uint64_t>(leases.data() + 8 * layout::table_lease(table)));
    if (others || under_way_.contains(table)) {
      ++swept.under_way;
      continue;
    }
    under_way_.insert(table);
    const std::uint64_t before = counts_.finished;
    Status status = co_await attend(table, std::nullopt);
    leave(table);
    swept.finished += counts_.finished - before;
    if (status.ok()) continue;
    ++swept.under_way;
    if (status.code() != Code::locked) swept.trouble = std::move(status);
  }
}

Task<void> Splitter::run(std::uint64_t table, std::optional<std::uint64_t> depth) {
  Status status = co_await attend(table, depth);
  // That there are no more tables, grow() says.
  if (status.code() != Code::locked && status.code() != Code::out_of_memory) trouble_ = std::move(status);
  leave(table);
}

void Splitter::leave(std::uint64_t table) {
  under_way_.erase(table);
  idle_.wake_all();
}

// locked: another client is about it, and lives as far as is known; or this one is, about it or a table of that lease.
Task<Status> Splitter::attend(std::uint64_t table, std::optional<std::uint64_t> depth) {
  Run run{.table = table, .depth = depth, .leases = {}, .image = {}};
  const Result<bool> taken = co_await session_.leases().attempt(layout::table_lease(table), run.leases, soon(), cost_);
  if (!taken.ok()) co_return taken.status();
  if (!*taken) {
    others_[table] = session_.port().now();
    co_return Status(Code::locked, "the lease is held of table " + std::to_string(table));
  }
  others_.erase(table);
  Status status = co_await work(run);
  co_await session_.leases().give_back(run.leases, soon(), cost_);
  if (session_.alive()) (void)co_await cache_.refresh(soon(), cost_);
  watched_.erase(table);
  co_return status;
}

Task<Status> Splitter::work(Run& run) {
  if (Status status = co_await read(run.image); !status.ok()) co_return status;
  const View view(run.image.span(), geometry_.tables);
  const std::uint64_t table = run.table;
  if (view.split(table) != 0) {
    ++counts_.taken_over;
  } else if (!run.depth || layout::HomeWord::Depth::get(view.home(table)) != *run.depth) {
    co_return Status();  // another client has been here
  }
  Status status = co_await with_directory(run, true);
  const std::optional<Split> split = under_way(view, table);
  if (!status.ok() || !split) co_return status;
  if (SplitWord::phase(view.split(table)) == SplitWord::moving) {
    status = co_await each_row(run, *split, true, view.progress(table));
    if (status.ok()) status = co_await write(run, begin_clearing(view, table));
    if (!status.ok()) co_return status;
  }
  if (SplitWord::phase(view.split(table)) == SplitWord::clearing) {
    status = co_await outlive_readers(run);
    if (status.ok()) status = co_await each_row(run, *split, false, view.progress(table));
    if (!status.ok()) co_return status;
  }
  status = co_await with_directory(run, false);
  if (status.ok()) ++counts_.finished;
  co_return status;
}

// What needs the directory's own lease, which is held for a few trips: to begin a split, or to end it.
Task<Status> Splitter::with_directory(Run& run, bool begins) {
  Status status = co_await session_.leases().take(layout::kDirectoryLease, run.leases, soon(), cost_);
  if (status.ok()) {
    status = co_await change_directory(run, begins);
    std::vector<session::Lease> own(1, run.leases.back());
    run.leases.pop_back();
    co_await session_.leases().give_back(own, soon(), cost_);
  }
  co_return status;
}

Task<Status> Splitter::change_directory(Run& run, bool begins) {
  if (Status status = co_await read(run.image); !status.ok()) co_return status;
  const View view(run.image.span(), geometry_.tables);
  const bool fresh = view.split(run.table) == 0;
  Result<WordChanges> changes = begins ? begin(view, run.table) : Result<WordChanges>(end(view, run.table));
  if (changes.ok()) {
    Status status = co_await write(run, std::move(*changes));
    if (begins && fresh && status.ok()) ++counts_.begun;
    co_return status;
  }
  if (changes.code() == Code::out_of_memory) {
    const std::uint64_t depth = layout::HomeWord::Depth::get(view.home(run.table));
    if (depth == view.most_depth()) {
      deepest_.insert(run.table);
    } else {
      no_tables_left_ = true;  // numbers are never used again
    }
  }
  co_return changes.status();
}

Task<Status> Splitter::each_row(Run& run, const Split& split, bool moves, std::uint64_t first) {
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
    if (Status status = co_await go_on(run); !status.ok()) co_return status;
    WordChanges progress(1, {layout::record_offset(geometry_.tables, split.from) + layout::kRecordProgress, row});
    if (Status status = co_await write(run, std::move(progress)); !status.ok()) co_return status;
  }
  co_return Status();
}

Task<void> Splitter::one_row(const Split& split, bool moves, std::uint64_t row, Status& status) {
  status = moves ? co_await rows_.move(split, row, soon(), cost_) : co_await rows_.clear(split, row, soon(), cost_);
}

// A reader may have begun in the era after the one that the last tick told of. One that lags for too long is fenced by
// the memory node, so this ends.
Task<Status> Splitter::outlive_readers(Run& run) {
  const std::uint64_t era = session_.era();
  while (session_.safe_era() <= era + 1) {
    if (!session_.alive()) co_return session_.why();
    // Now and then the leases are to be renewed.
    co_await session_.tick_now(session_.port().now() + session_.grant().failure_timeout / 16);
    if (Status status = co_await go_on(run); !status.ok()) co_return status;
  }
  co_return Status();
}

// A client that says goodbye leaves its split where it is, rather than wait for its end: others go on with it.
Task<Status> Splitter::go_on(Run& run) {
  Status status = co_await session_.leases().renew(run.leases, soon(), cost_);
  if (status.ok() && session_.leaving()) {
    status = Status(Code::unavailable, "a split was left to others: the session is being closed");
  }
  co_return status;
}

// And the lease words, as they are behind it.
Task<Status> Splitter::read(fabric::Buffer& image, fabric::Buffer* leases) {
  const std::uint64_t bytes = layout::directory_bytes(geometry_.tables);
  if (image.size() == 0) image = session_.port().buffer(bytes);
  std::vector<Op> chain(1, Op::read({layout::kDirectory, 0}, image.first(bytes)));
  if (leases != nullptr) {
    *leases = session_.port().buffer(8 * layout::kLeaseWords);
    chain.push_back(Op::read({layout::kLeases, 0}, leases->first(8 * layout::kLeaseWords)));
  }
  const fabric::Outcome outcome = co_await session_.post(chain, soon(), cost_);
  if (outcome.fate == fabric::Fate::done) co_return Status();
  co_return Status(Code::unavailable, "the directory could not be read: " + session_.why().message());
}

// In this order: WRITEs of a lane are.
Task<Status> Splitter::write(Run& run, WordChanges changes) {
  fabric::Buffer words = session_.port().buffer(8 * std::max<std::size_t>(1, changes.size()));
  for (std::size_t i = 0; i < changes.size();) {
    // A doubling may be a thousand chains.
    if (Status status = co_await session_.leases().renew(run.leases, soon(), cost_); !status.ok()) co_return status;
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
  for (const WordChange& change : changes) base::store(run.image.data() + change.offset, change.word);
  co_return Status();
}

}  // namespace farpool::directory
