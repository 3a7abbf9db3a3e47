// SPDX-License-Identifier: Apache-2.0
#include "index/clearing.h"

#include <algorithm>
#include <array>
#include <utility>

#include "index/operation.h"
#include "layout/regions.h"

namespace farpool::index {

using base::Code;
using base::Result;
using base::Status;
using fabric::Op;
using layout::MarkWord;
using task::Task;

namespace {

// Every round costs each client an FAA for each stretch that it goes on putting entries into.
constexpr base::Nanos kTicksBetweenRounds = 16;
constexpr std::size_t kMarksAtOnce = 16;
constexpr std::uint64_t kReadBytes = 256 << 10;  // of a chain

}  // namespace

Task<Result<std::vector<bool>>> are_empty(session::Session& session, std::size_t marks, std::vector<RowsOfMark> rows,
                                          std::uint64_t row_bytes, std::function<bool(base::Bytes row)> is_empty,
                                          base::Nanos deadline, fabric::Cost& cost) {
  std::vector<bool> empty(marks, true);
  const std::uint64_t most = kReadBytes / row_bytes;  // rows of a chain
  fabric::Buffer buffer = session.port().buffer(most * row_bytes);
  for (std::size_t next = 0; next < rows.size();) {
    struct Part {
      std::size_t of = 0;
      std::uint64_t end = 0;  // in the buffer
    };
    std::vector<Part> parts;
    Chain chain;
    for (std::uint64_t left = most; left > 0 && next < rows.size() && chain.size() < fabric::kMaxChain;) {
      RowsOfMark& from = rows[next];
      const std::uint64_t count = std::min(left, from.count), at = (most - left) * row_bytes;
      chain.add(Op::read({layout::kTable, from.offset}, buffer.span().subspan(at, count * row_bytes)));
      parts.push_back({from.of, at + count * row_bytes});
      left -= count;
      from.offset += count * row_bytes;
      from.count -= count;
      if (from.count == 0) ++next;
    }
    const fabric::Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
    if (outcome.fate != fabric::Fate::done) co_return gone(session, Code::unavailable, "rows could not be read");
    std::uint64_t at = 0;
    for (const Part& part : parts) {
      for (; at < part.end; at += row_bytes) {
        empty[part.of] = empty[part.of] && is_empty(buffer.span().subspan(at, row_bytes));
      }
    }
  }
  co_return empty;
}

Clearing::Clearing(session::Session& session, const layout::Geometry& geometry, std::uint64_t position_bits,
                   Stretches& rows, Marks& marks)
    : session_(session),
      geometry_(geometry),
      stretch_(geometry.rows_per_mark() << position_bits),
      end_(geometry.rows_per_table() << position_bits),
      rows_(rows),
      counts_(marks),
      suspected_(geometry.marks(), false) {}

void Clearing::seen(std::uint64_t first, std::uint64_t end, bool empty) {
  auto run = std::find_if(runs_.begin(), runs_.end(), [first](const Run& one) { return one.end == first; });
  if (!empty) {
    if (run != runs_.end()) *run = {};
    return;
  }
  if (run == runs_.end()) {
    run = runs_.begin() + static_cast<std::ptrdiff_t>(next_run_);
    next_run_ = (next_run_ + 1) % kScansAtOnce;
    run->first = first;
  }
  run->end = end;
  for (std::uint64_t mark = (run->first + stretch_ - 1) / stretch_; mark < suspected_.size(); ++mark) {
    const std::uint64_t behind = std::min((mark + 1) * stretch_, end_);
    if (behind > run->end) break;
    run->first = behind;
    if (!suspected_[mark]) ++suspects_;
    suspected_[mark] = true;
  }
}

void Clearing::maintain() {
  if (running_ || suspects_ == 0 || session_.port().now() < due_ || !goes_on()) return;
  running_ = true;
  session_.background().spawn(round());
}

Task<void> Clearing::round() {
  std::vector<std::uint64_t> marks;
  for (std::uint64_t mark = 0; mark < suspected_.size(); ++mark) {
    if (suspected_[mark]) marks.push_back(mark);
  }
  suspected_.assign(suspected_.size(), false);
  suspects_ = 0;
  // What does not come to its end is found again by another scan.
  (void)co_await clear(std::move(marks));
  running_ = false;
  due_ = session_.port().now() + kTicksBetweenRounds * session_.grant().tick;
}

Task<Status> Clearing::clear(std::vector<std::uint64_t> marks) {
  const Result<Suspects> suspects = co_await read(marks);
  if (!suspects.ok() || suspects->empty()) co_return suspects.status();
  const Result<std::uint64_t> era = co_await session_.ask_to_forget(session_.port().now() + session_.grant().lease);
  if (!era.ok()) co_return era.status();
  if (Status status = co_await outlast(*era); !status.ok()) co_return status;
  for (std::size_t first = 0; first < suspects->size() && goes_on(); first += kMarksAtOnce) {
    const std::size_t count = std::min(kMarksAtOnce, suspects->size() - first);
    if (Status status = co_await settle(std::span(*suspects).subspan(first, count)); !status.ok()) co_return status;
  }
  co_return Status();
}

Task<Result<Clearing::Suspects>> Clearing::read(std::span<const std::uint64_t> marks) {
  Suspects set;
  fabric::Buffer buffer = session_.port().buffer(fabric::kMaxChain * 8);
  for (std::size_t first = 0; first < marks.size(); first += fabric::kMaxChain) {
    const auto some = marks.subspan(first, std::min(fabric::kMaxChain, marks.size() - first));
    Chain chain;
    for (std::size_t i = 0; i < some.size(); ++i) {
      chain.add(Op::read({layout::kTable, geometry_.mark_offset(some[i])}, buffer.span().subspan(i * 8, 8)));
    }
    const fabric::Outcome outcome = co_await session_.post(chain.ops(), soon(), cost_);
    if (outcome.fate != fabric::Fate::done) co_return cut_short();
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto word = base::load<std::uint64_t>(buffer.data() + i * 8);
      if (MarkWord::is_set(word)) set.push_back({some[i], word});
    }
  }
  co_return set;
}

// An operation that holds this era may go by what it knew, and a scan that holds the next one may have begun beside it.
Task<Status> Clearing::outlast(std::uint64_t era) {
  while (session_.safe_era() <= era + 1) {
    if (!goes_on()) co_return cut_short();
    co_await session_.port().sleep_for(session_.grant().tick / 4);
  }
  co_return Status();
}

Task<Status> Clearing::settle(std::span<const Suspect> suspects) {
  std::vector<std::uint64_t> marks;
  for (const Suspect& one : suspects) marks.push_back(one.mark);
  const Result<std::vector<bool>> empty = co_await rows_.empty(marks, soon(), cost_);
  if (!empty.ok()) co_return empty.status();
  Suspects found;
  for (std::size_t i = 0; i < suspects.size(); ++i) {
    if ((*empty)[i]) found.push_back(suspects[i]);
  }
  counts_.kept_marks += suspects.size() - found.size();
  if (found.empty()) co_return Status();
  std::array<std::uint64_t, kMarksAtOnce> before{};
  Chain chain;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::uint64_t offset = geometry_.mark_offset(found[i].mark);
    chain.add(Op::cas({layout::kTable, offset}, before[i], found[i].word, MarkWord::cleared(found[i].word)));
  }
  const fabric::Outcome outcome = co_await session_.post(chain.ops(), soon(), cost_);
  if (outcome.fate != fabric::Fate::done) co_return cut_short();
  for (std::size_t i = 0; i < found.size(); ++i) {
    ++(before[i] == found[i].word ? counts_.cleared_marks : counts_.kept_marks);
  }
  co_return Status();
}

Status Clearing::cut_short() const {
  return gone(session_, Code::unavailable, "the session ends before the marks of rows could be cleared");
}

}  // namespace farpool::index
