// SPDX-License-Identifier: Apache-2.0
// Decides whether a loop that has nothing to do looks at its pollers for a while before it sleeps.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace farpool::net {

// Looking pays where things come so fast that the loop would soon be woken: then nobody has to wake it. A wait of up to
// ten times the bound counts as short, although the loop sleeps through most of it. What it waits for may be another
// loop that has to be woken, too, and comes within the bound once both look. So a loop looks in vain for at most a
// tenth of a time in which little happens, and one that others take the processor from stops. One thread's.
class Spin {
 public:
  explicit Spin(base::Nanos bound) : bound_(bound) {}
  bool on() const { return bound_ > 0; }
  // Returns how long to look in vain before sleeping: the bound, or 0.
  base::Nanos patience() const { return score_ >= kFull / 2 ? bound_ : 0; }
  // Tells how long the loop has had nothing to do.
  void waited(base::Nanos time) { score_ += ((time <= kShort * bound_ ? kFull : 0) - score_) / kWeight; }

 private:
  static constexpr base::Nanos kShort = 10;
  static constexpr std::int64_t kFull = 1 << 20;
  static constexpr std::int64_t kWeight = 16;  // how many waits it takes to change the mind, about
  base::Nanos bound_;
  std::int64_t score_ = kFull;
};

}  // namespace farpool::net
