// SPDX-License-Identifier: Apache-2.0
// Decides whether a loop that has nothing to do looks at its pollers for a while before it sleeps.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace farpool::net {

// Looking pays if something comes within the bound: then nobody has to wake the loop. Whether that is likely is judged
// by the loop's last waits. A loop whose processor is wanted by others loses it while it looks, waits for longer than
// the bound, and so stops looking. One thread's.
class Spin {
 public:
  explicit Spin(base::Nanos bound) : bound_(bound) {}
  bool on() const { return bound_ > 0; }
  // Returns how long to look in vain before sleeping: the bound, or 0.
  base::Nanos patience() const { return score_ >= kFull / 2 ? bound_ : 0; }
  // Tells how long the loop has had nothing to do, and whether it slept. Being woken takes time of its own: a wait that
  // the loop has slept through would have been shorter if it had looked.
  void waited(base::Nanos time, bool slept) {
    const bool pays = time <= (slept ? 2 * bound_ : bound_);
    score_ += ((pays ? kFull : 0) - score_) / kWeight;
  }

 private:
  static constexpr std::int64_t kFull = 1 << 20;
  static constexpr std::int64_t kWeight = 16;  // how many waits it takes to change the mind, about
  base::Nanos bound_;
  std::int64_t score_ = kFull;
};

}  // namespace farpool::net
