// SPDX-License-Identifier: Apache-2.0
#include "sim/last_words.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace farpool::sim {
namespace {

TEST(LastWords, SayHowToReplayWhatABrokenInvariantEnded) {
  EXPECT_DEATH(
      {
        const LastWords outer("--seed 7");
        { const LastWords inner("--seed 8"); }
        FARPOOL_CHECK(1 + 1 == 3);
      },
      "invariant broken: 1 \\+ 1 == 3\n+replay: simulate --seed 7\n");
}

}  // namespace
}  // namespace farpool::sim
