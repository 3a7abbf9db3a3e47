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

TEST(NodeClock, BelievesNoClientThatIsFarAheadOfItsHost) {
  NodeClock clock;
  EXPECT_EQ(clock.read(kWall, 5, kWall + kClockTrust + 1), kWall);
  EXPECT_EQ(clock.read(kWall, 5, ~0ull), kWall);
  EXPECT_EQ(clock.read(kWall, 5, kWall + kClockTrust), kWall + kClockTrust);
  // What it has believed lets nobody take it further.
  EXPECT_EQ(clock.read(kWall, 5, kWall + kClockTrust + kClockTrust), kWall + kClockTrust);
  EXPECT_EQ(clock.read(kWall, 5 + kSecond, 0), kWall + kClockTrust + kSecond);
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
  EXPECT_EQ(clock.now(later), kWall + later + 5 * kMillisecond);
  clock.learn(1, kWall + later, later, kSecond);
  // It waits until that one has come as far.
  EXPECT_EQ(clock.now(later), kWall + later + 5 * kMillisecond);
  EXPECT_EQ(clock.now(later + 4 * kMillisecond), kWall + later + 5 * kMillisecond);
  EXPECT_EQ(clock.now(later + 9 * kMillisecond), kWall + later + 9 * kMillisecond);
}

TEST(PoolClock, LeavesOutANodeThatIsFarAheadOfAllOthers) {
  base::Counter doubted;
  PoolClock clock(&doubted);
  EXPECT_TRUE(clock.learn(1, kWall, 0, kSecond));
  EXPECT_FALSE(clock.learn(2, kWall + kClockTrust + kMillisecond, 0, kSecond));
  EXPECT_EQ(clock.now(0), kWall);
  EXPECT_FALSE(clock.learn(2, ~0ull, 0, kSecond));
  EXPECT_EQ(clock.now(kMillisecond), kWall + kMillisecond);
  EXPECT_EQ(doubted.get(), 2u);
  EXPECT_TRUE(clock.learn(3, kWall + kSecond, kMillisecond, kSecond));
  EXPECT_EQ(clock.now(kMillisecond), kWall + kSecond) << "the one that is ahead of all believed ones";
  EXPECT_TRUE(clock.learn(1, kWall + kSecond + kClockTrust, kMillisecond, kSecond));
  EXPECT_EQ(clock.now(kMillisecond), kWall + kSecond + kClockTrust) << "two that are ahead are believed";
}

TEST(PoolClock, ANodeThatWasAloneAndFarAheadIsLeftOutOnceThereIsAnother) {
  PoolClock clock;
  EXPECT_TRUE(clock.learn(1, kWall + 2 * kClockTrust, 0, kSecond));
  EXPECT_EQ(clock.to_tell(0), kWall + 2 * kClockTrust) << "as a session opens, before the next one does";
  EXPECT_TRUE(clock.learn(2, kWall, 0, kSecond));
  EXPECT_FALSE(clock.learn(1, kWall + 2 * kClockTrust, 0, kSecond));
  EXPECT_EQ(clock.now(0), kWall) << "to tell it did not commit the client";
  // The other falls silent.
  EXPECT_TRUE(clock.learn(1, kWall + 2 * kClockTrust, kSecond, kSecond));
  EXPECT_EQ(clock.now(kSecond), kWall + 2 * kClockTrust);
  EXPECT_TRUE(clock.learn(2, kWall + kSecond, kSecond, kSecond));
  EXPECT_EQ(clock.now(kSecond), kWall + 2 * kClockTrust) << "it never goes back";
}

TEST(PoolClock, TheEndOfTimeIsNotBeforeItsBeginning) {
  PoolClock clock;
  EXPECT_TRUE(clock.learn(1, ~0ull - 1, 0, kSecond));
  EXPECT_EQ(clock.now(kSecond), ~0ull);
}

}  // namespace
}  // namespace farpool::session
