// SPDX-License-Identifier: Apache-2.0
// The pool's clock (docs/adr/0038-expiry.md): nanoseconds since 1970 that a memory node tells in the replies to ticks,
// and that clients carry on by their own clocks from one tick to the next. Pure: the time comes from the callers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace farpool::session {

// What two clocks of a pool may differ by before a memory node goes by the other. Without it, what clients' clocks gain
// between ticks would add up.
inline constexpr std::uint64_t kClockSlack = 10 * base::kMillisecond;

// A memory node's side. It never goes back, and goes on where the wall clock is set back.
class NodeClock {
 public:
  // `wall` is the host's clock, `now` that of the fabric. `told` is what a client believes; 0: it knows no time yet.
  std::uint64_t read(std::uint64_t wall, base::Nanos now, std::uint64_t told) {
    const std::uint64_t elapsed = now > at_ ? static_cast<std::uint64_t>(now - at_) : 0;
    time_ = time_ == 0 ? wall : std::max(wall, time_ + elapsed);
    if (told > time_ + kClockSlack) time_ = told;
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
  // Returns 0 if no memory node has told the time yet.
  std::uint64_t now(base::Nanos now) {
    if (time_ == 0) return 0;
    return latest_ = std::max(latest_, time_ + static_cast<std::uint64_t>(std::max<base::Nanos>(0, now - at_)));
  }
  bool known() const { return time_ != 0; }
  // Takes what `node` has told, in a reply that has come now. A node whose clock is ahead of the one that the client
  // goes by takes its place; so does any once that has been silent for `patience`.
  void learn(std::uint64_t node, std::uint64_t told, base::Nanos now, base::Nanos patience) {
    if (told == 0) return;
    const std::uint64_t believed = this->now(now);
    if (node != node_ && told <= believed && now - at_ < patience) return;
    node_ = node;
    time_ = told;
    at_ = now;
  }

 private:
  std::uint64_t node_ = 0;  // that told it
  std::uint64_t time_ = 0;
  base::Nanos at_ = 0;
  std::uint64_t latest_ = 0;  // that any caller has been given
};

}  // namespace farpool::session
