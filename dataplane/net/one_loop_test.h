// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection on the test's own thread, and one loop for them.
#pragma once

#include <functional>

#include "base/time.h"
#include "net/loop.h"

namespace farpool::net {

inline constexpr Nanos kPatience = 20 * base::kSecond;

// A base of fixtures: the loop ends after all that they have on it.
class OneLoop {
 protected:
  // Lets the loop turn until something is so, or for kPatience. Returns whether it is so.
  bool until(const std::function<bool()>& done) {
    const Nanos end = Loop::now() + kPatience;
    std::function<void()> look = [&] {
      if (done() || Loop::now() >= end) return loop.stop();
      loop.post(look);
    };
    loop.post(look);
    loop.run();
    return done();
  }
  // Lets the loop turn so often.
  void turns(int count) {
    until([&count] { return count-- <= 0; });
  }

  Loop loop;
};

}  // namespace farpool::net
