// SPDX-License-Identifier: Apache-2.0
// The pool's clock (docs/adr/0038-expiry.md): nanoseconds since 1970 that a memory node tells in the replies to ticks,
// and that clients carry on by their own clocks from one tick to the next. Pure: the time comes from the callers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/counter.h"
#include "base/time.h"

namespace farpool::session {

// What two clocks of a pool may differ by before a memory node goes by the other. Without it, what clients' clocks gain
// between ticks would add up.
inline constexpr std::uint64_t kClockSlack = 10 * base::kMillisecond;

// How far ahead of what it can compare with a clock may be and still be believed: a memory node believes a client that
// is so far ahead of the node's host, and a client a memory node that is so far ahead of another one. It is more than the
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
  std::uint64_t now(base::Nanos now) { return latest_ = to_tell(now); }
  bool known() const { return time_ != 0; }
  // Returns what memory nodes are told: now(), but it commits the client to nothing. 0: not known yet.
  std::uint64_t to_tell(base::Nanos now) const {
    return time_ == 0 ? 0 : std::max(latest_, later(time_, elapsed(at_, now)));
  }
  // Takes what `node` has told, in a reply that has come now. A node whose clock is ahead of the one that the client
  // goes by takes its place; so does any once that has been silent for `patience`. If the two are further apart than
  // kClockTrust, the client goes by the one that is behind. Returns whether it believes this node.
  bool learn(std::uint64_t node, std::uint64_t told, base::Nanos now, base::Nanos patience) {
    if (told == 0) return true;
    const std::uint64_t believed = to_tell(now);
    const bool other = known() && node != node_ && now - at_ < patience;
    if (other && told > later(believed, kClockTrust)) {
      if (doubted_ != nullptr) doubted_->add();
      return false;
    }
    if (!other || later(told, kClockTrust) >= believed) {
      latest_ = believed;
      if (other && told <= believed) return true;
    }
    node_ = node;
    time_ = told;
    at_ = now;
    return true;
  }

 private:
  base::Counter* doubted_;
  std::uint64_t node_ = 0;  // that told it
  std::uint64_t time_ = 0;
  base::Nanos at_ = 0;
  std::uint64_t latest_ = 0;  // that any caller has been given
};

}  // namespace farpool::session
