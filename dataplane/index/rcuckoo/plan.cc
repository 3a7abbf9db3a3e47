// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/plan.h"

#include <algorithm>

namespace farpool::rcuckoo {
namespace {

constexpr unsigned kMaxWords = layout::OperationSlot::kLockWords;

struct FromCache {
  const RowCache& cache;
  base::Bytes operator()(std::uint64_t row) const { return cache.recall(row); }
};

// Knows the fetched rows, and notes which others the search asked for.
struct FromFetched {
  const std::unordered_map<std::uint64_t, std::vector<std::byte>>& rows;
  std::vector<std::uint64_t>& missing;
  base::Bytes operator()(std::uint64_t row) const {
    const auto found = rows.find(row);
    if (found != rows.end()) return found->second;
    missing.push_back(row);
    return {};
  }
};

}  // namespace

bool Planner::speculate(Path& path) {
  const FromCache at{state_.cache};
  RowsAt<FromCache, Sight::unknown> rows(state_, roots_, at, kMaxWords);
  return state_.search.find(rows, state_.geometry.entries_per_row, roots_, kDepth, path);
}

Task<Result<bool>> Planner::explore(Path& path, Nanos deadline, Cost& cost) {
  ++state_.marks.explorations;
  fetched_.clear();
  TornRow torn(state_);
  std::vector<std::uint64_t> missing;
  for (;;) {
    missing.clear();
    torn_.reset();
    const FromFetched at{fetched_, missing};
    RowsAt<FromFetched, Sight::excluded> rows(state_, roots_, at, kMaxWords);
    if (state_.search.find(rows, state_.geometry.entries_per_row, roots_, kDepth, path)) co_return true;
    if (missing.empty()) co_return false;
    if (state_.now() >= deadline) {
      co_return Status(Code::timed_out, "no room was found before the deadline, and " +
                                            std::to_string(fetched_.size()) +
                                            " rows had been looked at: try again with a longer one");
    }
    // Fetches in the order of the search, so that short paths are found first.
    if (missing.size() > fabric::kMaxChain) missing.resize(fabric::kMaxChain);
    if (Status status = co_await fetch(missing, deadline, cost); !status.ok()) co_return status;
    if (!torn_) {
      torn.came_good();
    } else if (Status status = co_await torn.wait(torn_->row, torn_->checksum, deadline, cost); !status.ok()) {
      co_return status;
    }
  }
}

Task<Status> Planner::fetch(std::span<const std::uint64_t> rows, Nanos deadline, Cost& cost) {
  const std::uint64_t bytes = state_.geometry.row_bytes();
  fabric::Buffer buffer = state_.port().buffer(rows.size() * bytes);
  Chain chain;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    chain.add(Op::read(state_.row_at(rows[i]), buffer.span().subspan(i * bytes, bytes)));
  }
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done)
    co_return state_.gone(Code::unavailable, "rows could not be read, nothing was changed");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const base::Bytes row = buffer.span().subspan(i * bytes, bytes);
    const RowView view(state_.geometry, row);
    if (!view.whole(rows[i])) {
      if (!torn_) torn_ = Torn{rows[i], view.checksum()};  // stays missing, so it is fetched again
      ++state_.marks.torn_rows;
      continue;
    }
    fetched_.emplace(rows[i], std::vector<std::byte>(row.begin(), row.end()));
    state_.cache.learn(rows[i], row);
  }
  co_return Status();
}

}  // namespace farpool::rcuckoo
