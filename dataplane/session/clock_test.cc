// SPDX-License-Identifier: Apache-2.0
#include "session/clock.h"

#include <gtest/gtest.h>

namespace farpool::session {
namespace {

constexpr std::uint64_t kWall = 1'700'000'000'000'000'000ull;
using base::kMillisecond;
using base::kSecond;
using base::Nanos;

TEST(NodeClock, FollowsTheHostAndNeverGoesBack) {
  NodeClock clock;
  EXPECT_EQ(clock.read(kWall, 5, 0), kWall);
  EXPECT_EQ(clock.read(kWall + kSecond, 5 + kSecond, 0), kWall + kSecond);
  // The host's clock is set back by an hour: this one goes on.
  const std::uint64_t back = kWall - 3600 * kSecond;
  EXPECT_EQ(clock.read(back, 5 + 2 * kSecond, 0), kWall + 2 * kSecond);
  // And forward by a minute: this one goes along.
  EXPECT_EQ(clock.read(kWall + 60 * kSecond, 5 + 3 * kSecond, 0), kWall + 60 * kSecond);
}

TEST(NodeClock, GoesByAClientOnlyBeyondTheSlack) {
  NodeClock clock;
  EXPECT_EQ(clock.read(kWall, 5, kWall + kClockSlack), kWall);
  EXPECT_EQ(clock.read(kWall, 5, kWall + kClockSlack + 1), kWall + kClockSlack + 1);
  EXPECT_EQ(clock.read(kWall + kMillisecond, 5 + kMillisecond, kWall), kWall + kClockSlack + 1 + kMillisecond);
}

TEST(PoolClock, KnowsNoTimeUntilItIsTold) {
  PoolClock clock;
  EXPECT_FALSE(clock.known());
  EXPECT_EQ(clock.now(7), 0u);
  clock.learn(1, 0, 7, kSecond);
  EXPECT_FALSE(clock.known());
  clock.learn(1, kWall, 7, kSecond);
  EXPECT_EQ(clock.now(7), kWall);
  EXPECT_EQ(clock.now(7 + kSecond), kWall + kSecond);
}

TEST(PoolClock, NeverGoesBack) {
  PoolClock clock;
  clock.learn(1, kWall, 0, kSecond);
  EXPECT_EQ(clock.now(100 * kMillisecond), kWall + 100 * kMillisecond);
  // Its own clock was fast.
  clock.learn(1, kWall + 90 * kMillisecond, 100 * kMillisecond, kSecond);
  EXPECT_EQ(clock.now(100 * kMillisecond), kWall + 100 * kMillisecond);
  EXPECT_EQ(clock.now(105 * kMillisecond), kWall + 100 * kMillisecond);
  EXPECT_EQ(clock.now(120 * kMillisecond), kWall + 110 * kMillisecond);
}

TEST(PoolClock, GoesByTheNodeThatIsAhead) {
  PoolClock clock;
  clock.learn(1, kWall, 0, kSecond);
  clock.learn(2, kWall + 5 * kMillisecond, kMillisecond, kSecond);
  EXPECT_EQ(clock.now(kMillisecond), kWall + 5 * kMillisecond);
  clock.learn(1, kWall + 2 * kMillisecond, 2 * kMillisecond, kSecond);
  EXPECT_EQ(clock.now(2 * kMillisecond), kWall + 6 * kMillisecond);
}

TEST(PoolClock, GoesOnWithAnotherNodeWhenOneIsSilent) {
  PoolClock clock;
  clock.learn(2, kWall + 5 * kMillisecond, 0, kSecond);
  const Nanos later = kSecond + kMillisecond;
  clock.learn(1, kWall + later, later, kSecond);
  // It waits until that one has come as far.
  EXPECT_EQ(clock.now(later), kWall + later + 5 * kMillisecond);
  EXPECT_EQ(clock.now(later + 4 * kMillisecond), kWall + later + 5 * kMillisecond);
  EXPECT_EQ(clock.now(later + 9 * kMillisecond), kWall + later + 9 * kMillisecond);
}

}  // namespace
}  // namespace farpool::session
