// SPDX-License-Identifier: Apache-2.0
#include "fabric/once.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "fabric/words.h"

namespace farpool::fabric {

Once::Once(std::uint32_t lines, std::size_t longest_outcome)
    : lines_(lines),
      longest_(base::round_up(longest_outcome, 8)),
      line_(std::make_unique<Line[]>(lines)),
      outcomes_(std::make_unique<std::uint64_t[]>(lines * (longest_ / 8))) {
  FARPOOL_CHECK(lines > 0 && lines <= RequestId::kMostLines);
}

Once::Line* Once::line_of(RequestId id) const {
  return id.number == 0 || id.line >= lines_ ? nullptr : &line_[id.line];
}

std::byte* Once::outcome_of(std::uint32_t line) const {
  return reinterpret_cast<std::byte*>(outcomes_.get() + line * (longest_ / 8));
}

Once::Turn Once::begin(RequestId id, base::MutableBytes outcome, std::size_t& bytes) {
  bytes = 0;
  Line* line = line_of(id);
  if (line == nullptr) return Turn::bad;
  std::uint64_t state = line->state.load(std::memory_order_acquire);
  for (;;) {
    const std::uint64_t last = state >> 1;
    if (id.number < last) return Turn::old;
    if ((state & 1) == kRunning) {
      // A later request of a line waits while the line's last one still runs; otherwise there would be two outcomes to
      // remember.
      return Turn::running;
    }
    if (id.number == last) break;
    const std::uint64_t before = state;
    if (!line->state.compare_exchange_weak(state, state_of(id.number, kRunning), std::memory_order_acq_rel)) continue;
    line->before.store(before, std::memory_order_relaxed);
    return Turn::first;
  }
  // Copies word by word, because another thread may begin the line's next request meanwhile: then this outcome is
  // forgotten.
  const std::uint64_t length = line->bytes.load(std::memory_order_acquire);
  const std::size_t taken = std::min<std::size_t>(length, outcome.size());
  for (std::size_t i = 0; i < taken; i += 8) {
    const std::uint64_t word = word_at(outcome_of(id.line) + i).load(std::memory_order_relaxed);
    std::memcpy(outcome.data() + i, &word, std::min<std::size_t>(8, taken - i));
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  if (line->state.load(std::memory_order_relaxed) != state) return Turn::old;
  bytes = length;
  return Turn::again;
}

bool Once::finish(RequestId id, base::Bytes outcome) {
  Line* line = line_of(id);
  FARPOOL_CHECK(line != nullptr && line->state.load(std::memory_order_relaxed) == state_of(id.number, kRunning));
  if (outcome.size() > longest_) return false;
  std::atomic_thread_fence(std::memory_order_release);  // a reader of a word of it sees the state before it, too
  for (std::size_t i = 0; i < outcome.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, outcome.data() + i, std::min<std::size_t>(8, outcome.size() - i));
    word_at(outcome_of(id.line) + i).store(word, std::memory_order_relaxed);
  }
  line->bytes.store(outcome.size(), std::memory_order_relaxed);
  line->state.store(state_of(id.number, kDone), std::memory_order_release);
  return true;
}

void Once::abandon(RequestId id) {
  Line* line = line_of(id);
  FARPOOL_CHECK(line != nullptr && line->state.load(std::memory_order_relaxed) == state_of(id.number, kRunning));
  line->state.store(line->before.load(std::memory_order_relaxed), std::memory_order_release);
}

bool Once::restore(RequestId id, base::Bytes outcome) {
  Line* line = line_of(id);
  if (line == nullptr || outcome.size() > longest_) return false;
  if (id.number < line->state.load(std::memory_order_relaxed) >> 1) return true;
  line->state.store(state_of(id.number, kRunning), std::memory_order_relaxed);
  return finish(id, outcome);
}

}  // namespace farpool::fabric
