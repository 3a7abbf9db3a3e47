// SPDX-License-Identifier: Apache-2.0
// How a change takes the locks of its rows, and gives them back.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "index/rcuckoo/changing.h"

namespace farpool::rcuckoo {
namespace {

// Failed attempts at one lock word after which the words before it are given back.
constexpr unsigned kHoldPatience = 8;
// Failed attempts after which the rows are no longer read with the lock: a client that waits for long, for example
// behind a dead one, would fill the link with them. It reads them once it has the lock, in one more trip.
constexpr unsigned kReadPatience = 4;
// Failed searches among held rows after which the client stops guessing and fetches what its search looks at.
constexpr unsigned kGuesses = 3;

}  // namespace

Task<Status> Change::choose_rows() {
  row_count_ = 0;
  rows_[row_count_++] = places_.first;
  if (places_.second != places_.first) rows_[row_count_++] = places_.second;
  full_ = false;
  if (wish_.close.count > 0) {
    for (row_count_ = 0; row_count_ < wish_.close.count; ++row_count_)
      rows_[row_count_] = wish_.close.first + row_count_;
    co_return Status();
  }
  const bool asks = std::exchange(guesses_, false);
  if (!sweeps_ && !asks) co_return Status();
  const bool guessed = failed_searches_ < kGuesses && planner_.speculate(path_);
  // A row of which nothing is known is presumed to have room: more often than not it has.
  if (asks) sweeps_ = !guessed || path_.length > 1;
  if (!sweeps_) co_return Status();
  if (!guessed) {
    Result<bool> found = co_await planner_.explore(path_, deadline_, cost_);
    if (!found.ok()) co_return found.status();
    full_ = !*found;
    if (full_) co_return Status();
  }
  for (const Displacement& step : path_.steps()) {
    if (step.row != places_.first && step.row != places_.second) rows_[row_count_++] = step.row;
  }
  co_return Status();
}

void Change::plan_locks() {
  const Geometry& g = state_.geometry;
  // Takes lock words in increasing order; locks that share a physical bit take it once.
  word_count_ = 0;
  for (std::size_t i = 0; i < row_count_; ++i) {
    const LockBit bit = lock_bit(g, lock_of(g, rows_[i]));
    const auto end = words_.begin() + static_cast<std::ptrdiff_t>(word_count_);
    const auto at =
        std::find_if(words_.begin(), end, [&bit](const LockWord& word) { return word.offset == bit.offset; });
    if (at == end) {
      words_[word_count_++] = {bit.offset, bit.mask, 0};
    } else {
      at->mask |= bit.mask;
    }
  }
  std::sort(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(word_count_),
            [](const LockWord& a, const LockWord& b) { return a.offset < b.offset; });
  FARPOOL_CHECK(word_count_ <= layout::OperationSlot::kLockWords);
  if (word_count_ > 1) ++state_.marks.multi_word_locks;
}

// Neighbours share a READ.
void Change::plan_reads(bool all) {
  const Geometry& g = state_.geometry;
  std::array<std::uint64_t, kMaxRows> sorted = rows_;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(row_count_));
  stretch_count_ = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < row_count_; ++i) {
    const std::uint64_t first = all ? lock_of(g, sorted[i]) * g.rows_per_lock : sorted[i];
    const std::uint64_t end = all ? std::min(first + g.rows_per_lock, g.rows) : first + 1;
    if (stretch_count_ > 0) {
      Stretch& last = stretches_[stretch_count_ - 1];
      if (first < last.first + last.count) continue;  // the same lock
      if (first == last.first + last.count) {
        last.count += end - first;
        bytes += (end - first) * g.row_bytes();
        continue;
      }
    }
    stretches_[stretch_count_++] = {first, end - first, bytes};
    bytes += (end - first) * g.row_bytes();
  }
  if (buffer_.size() < bytes) buffer_ = state_.port().buffer(bytes);
}

Task<Status> Change::take_turn() {
  for (std::size_t i = 0; i < word_count_; ++i) turn_[i] = {words_[i].offset, words_[i].mask};
  const Turns::Bits bits = std::span(turn_).first(word_count_);
  while (!state_.turns.take(bits)) {
    if (co_await state_.turns.queue().wait(deadline_)) continue;
    co_return timed_out();
  }
  turn_count_ = word_count_;
  co_return Status();
}

void Change::say_in(session::Slot& slot) const {
  layout::OperationSlot& said = slot.words();
  said.state = SlotState::Kind::put(static_cast<std::uint64_t>(wish_.kind)) | SlotState::Table::put(state_.table_id) |
               SlotState::Move::put(reaches());
  said.lock_word = {};
  for (std::size_t i = 0; i < word_count_; ++i) said.lock_word[i] = {words_[i].offset, words_[i].mask};
}

// Takes one lock word a trip by masked CAS, in increasing order; the READs go with the last. An atomic executes before
// a READ that follows it, so the rows are read under the locks. The claim is written before the first lock, and again
// after each failed attempt: a slot that changes is not a dead client's. A lock of a barred word is never taken.
Task<Result<bool>> Change::lock(session::Slot& slot) {
  say_in(slot);
  taken_ = 0;
  unsigned failed_here = 0;
  Chain chain;
  for (;;) {
    LockWord& word = words_[taken_];
    chain.clear();
    if (extent_used_ && !extent_sent_) chain.add(Op::write(state_.block_at(block_.units), extent_.first(extent_size_)));
    if (taken_ == 0 || failed_here > 0) chain.add(slot.claim(taken_, cost_));
    chain.add(
        Op::masked_cas({layout::kLocks, word.offset}, word.old, 0, word.mask | layout::kBarrier, word.mask, word.mask));
    const bool last = taken_ + 1 == word_count_;
    const bool reads = last && failed_here < kReadPatience;
    if (reads) add_reads(chain);
    const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
    if (outcome.fate != Fate::done) {
      co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
    }
    extent_sent_ = extent_used_;

    const std::uint64_t conflict = word.old & (word.mask | layout::kBarrier);
    if (conflict == 0) {
      suspicion_.came_free(word.offset);
      failed_here = 0;
      ++taken_;
      if (!last) continue;
      if (reads) co_return true;
      chain.clear();
      add_reads(chain);
      const Outcome read = co_await state_.session.post(chain.ops(), deadline_, cost_);
      if (read.fate == Fate::done) co_return true;
      co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
    }
    ++failed_here;
    ++state_.marks.lock_conflicts;
    suspicion_.blocked(word.offset, conflict);
    const Result<bool> dead = co_await suspicion_.judge(deadline_, cost_);
    Status status = dead.status();
    if (status.ok() && !*dead && state_.now() >= deadline_) status = timed_out();
    if (!status.ok() || *dead) {
      co_await release();
      if (!status.ok()) co_return status;
      co_return false;
    }
    if (taken_ > 0 && failed_here >= kHoldPatience) {
      ++state_.marks.lock_restarts;
      co_await release();
      if (!state_.session.alive()) {
        co_return state_.gone(Code::unavailable,
                              "the session ended before " + std::string(name()) + " changed anything");
      }
      failed_here = 1;
    }
    co_await backoff_.wait(deadline_);
  }
}

void Change::add_reads(Chain& chain) {
  for (std::size_t i = 0; i < stretch_count_; ++i) {
    const Stretch& stretch = stretches_[i];
    chain.add(Op::read(state_.row_at(stretch.first),
                       buffer_.span().subspan(stretch.at, stretch.count * state_.geometry.row_bytes())));
  }
}

void Change::add_releases(Chain& chain, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) {
    LockWord& word = words_[i];
    chain.add(Op::masked_cas({layout::kLocks, word.offset}, word.old, word.mask, word.mask, 0, word.mask));
  }
}

bool Change::released(std::size_t words) const {
  return std::all_of(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(words),
                     [](const LockWord& word) { return (word.old & word.mask) == word.mask; });
}

Task<void> Change::release() {
  const std::size_t words = std::exchange(taken_, 0);
  if (words == 0 || !state_.session.alive()) co_return;
  Chain chain;
  add_releases(chain, words);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate == Fate::done && !released(words)) {
    state_.session.end(
        {Code::corrupt, "locks of table " + std::to_string(state_.table_id) + " that were held had been taken away"});
  }
}

}  // namespace farpool::rcuckoo
