// SPDX-License-Identifier: Apache-2.0
// The pool's clock (docs/adr/0038-expiry.md): nanoseconds since 1970 that a memory node tells in the replies to ticks,
// and that clients carry on by their own clocks from one tick to the next. Pure: the time comes from the callers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/counter.h"
#include "base/time.h"

namespace farpool::session {

// What two clocks of a pool may differ by before a memory node goes by the other. Without it, what clients' clocks gain
// between ticks would add up.
inline constexpr std::uint64_t kClockSlack = 10 * base::kMillisecond;

// How far ahead of what it can compare with a clock may be and still be believed: a memory node believes a client that
// is so far ahead of the node's host, and a client a memory node that is so far ahead of all others. It is more than the
// hour by which hosts are wrong that somebody has set by the wrong time zone, and bounds what one member of a pool can
// let expire before its time.
inline constexpr std::uint64_t kClockTrust = 7200ull * base::kSecond;

// Returns `time` after `span`, or the end of time.
inline constexpr std::uint64_t later(std::uint64_t time, std::uint64_t span) {
  return time + std::min(span, std::numeric_limits<std::uint64_t>::max() - time);
}

inline constexpr std::uint64_t elapsed(base::Nanos from, base::Nanos to) {
  return to > from ? static_cast<std::uint64_t>(to - from) : 0;
}

// A memory node's side. It never goes back, and goes on where the wall clock is set back.
class NodeClock {
 public:
  // `wall` is the host's clock, `now` that of the fabric. `told` is what a client believes; 0: it knows no time yet.
  // Returns nanoseconds since 1970.
  std::uint64_t read(std::uint64_t wall, base::Nanos now, std::uint64_t told) {
    time_ = time_ == 0 ? wall : std::max(wall, later(time_, elapsed(at_, now)));
    if (told > later(time_, kClockSlack) && told <= later(wall, kClockTrust)) time_ = told;
    at_ = now;
    return time_;
  }

 private:
  std::uint64_t time_ = 0;  // when it was read last; 0: not yet
  base::Nanos at_ = 0;
};

// A client's side: what the memory node whose clock is ahead has told last, and what has gone by since. It is behind
// that node by at most the time that the reply took, and never goes back.
class PoolClock {
 public:
  // Counts what it was told and did not believe in `doubted`, which outlives it.
  explicit PoolClock(base::Counter* doubted = nullptr) : doubted_(doubted) {}

  // Returns 0 if no memory node has told the time yet.
  std::uint64_t now(base::Nanos now) {
    if (chosen_.time == 0) return 0;
    return latest_ = std::max(latest_, chosen_.carried(now));
  }
  bool known() const { return chosen_.time != 0; }
  // Returns what memory nodes are told: now(), but it commits the client to nothing. 0: not known yet.
  std::uint64_t to_tell(base::Nanos now) const {
    return chosen_.time == 0 ? 0 : std::max(latest_, chosen_.carried(now));
  }
  // Takes what `node` has told, in a reply that has come now. The client goes by the node that is ahead; what one has
  // told that has been silent for `patience` no longer counts. Returns whether it believes this node: one that is more
  // than kClockTrust ahead of all others is left out, if there are others.
  bool learn(std::uint64_t node, std::uint64_t told, base::Nanos now, base::Nanos patience) {
    if (told == 0) return true;
    std::erase_if(told_, [&](const Told& one) { return one.node == node || now - one.at >= patience; });
    told_.push_back({.node = node, .time = told, .at = now});
    const auto behind = [&](const Told& a, const Told& b) { return a.carried(now) < b.carried(now); };
    const auto ahead = std::max_element(told_.begin(), told_.end(), behind);
    std::iter_swap(ahead, told_.end() - 1);
    chosen_ = told_.back();
    if (told_.size() == 1) return true;
    const Told& second = *std::max_element(told_.begin(), told_.end() - 1, behind);
    if (chosen_.carried(now) <= later(second.carried(now), kClockTrust)) return true;
    const bool believed = chosen_.node != node;
    if (!believed && doubted_ != nullptr) doubted_->add();
    chosen_ = second;
    return believed;
  }

 private:
  struct Told {
    std::uint64_t node = 0;  // its incarnation
    std::uint64_t time = 0;
    base::Nanos at = 0;

    std::uint64_t carried(base::Nanos now) const { return later(time, elapsed(at, now)); }
  };

  base::Counter* doubted_;
  std::vector<Told> told_;    // by each memory node, last; a handful, looked at once a tick
  Told chosen_;               // that the client goes by
  std::uint64_t latest_ = 0;  // that any caller has been given
};

}  // namespace farpool::session
