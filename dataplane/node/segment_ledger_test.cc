// SPDX-License-Identifier: Apache-2.0
#include "node/segment_ledger.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "layout/segment.h"

namespace farpool::node {
namespace {

using layout::kRun;
const auto kNever = [](std::uint64_t, std::uint64_t) { return false; };
const auto kRoom = [](std::uint64_t) { return true; };

TEST(SegmentLedger, GrantsUntilFullAndTakesBackOnlyWhatWasGranted) {
  SegmentLedger ledger(4);
  EXPECT_EQ(ledger.grant(1, 0, 7), 0u);
  EXPECT_EQ(ledger.grant(2, kRun, 7), 2u);  // at the far end
  EXPECT_EQ(ledger.grant(2, kRun, 7), std::nullopt);
  EXPECT_EQ(ledger.grant(1, 0, 8), 1u);
  EXPECT_EQ(ledger.grant(1, 0, 8), std::nullopt);
  EXPECT_FALSE(ledger.give_back(1, 1, 7, 1));   // another's
  EXPECT_FALSE(ledger.give_back(2, 1, 7, 1));   // half a run
  EXPECT_FALSE(ledger.give_back(3, 1, 7, 1));   // the rest of a run
  EXPECT_FALSE(ledger.give_back(99, 1, 7, 1));  // nowhere
  EXPECT_TRUE(ledger.give_back(2, 2, 7, 1));
  EXPECT_FALSE(ledger.give_back(2, 2, 7, 1));  // twice
  EXPECT_FALSE(ledger.orphan(2, 2, 7));
}

TEST(SegmentLedger, WhatWasGivenBackRestsUntilTheEraIsSafe) {
  SegmentLedger ledger(2);
  ASSERT_TRUE(ledger.grant(2, kRun, 7));
  ASSERT_TRUE(ledger.give_back(0, 2, 7, 5));
  EXPECT_EQ(ledger.settle(5), 0u);
  EXPECT_EQ(ledger.grant(1, 0, 7), std::nullopt);
  EXPECT_EQ(ledger.settle(6), 2u);
  EXPECT_EQ(ledger.counts(), (SegmentLedger::Counts{.free = 2}));
  EXPECT_EQ(ledger.largest_hole(), 2u);
}

TEST(SegmentLedger, SinglesFillSmallHolesAndLeaveLargeOnesToRuns) {
  SegmentLedger ledger(16);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ledger.grant(1, 0, 7));
  ASSERT_TRUE(ledger.give_back(1, 1, 7, 1));
  ledger.settle(2);
  EXPECT_EQ(ledger.grant(3, kRun, 7), 13u);
  EXPECT_EQ(ledger.grant(1, 0, 7), 1u);
  EXPECT_EQ(ledger.grant(1, 0, 7), 4u);
  EXPECT_EQ(ledger.largest_hole(), 8u);
}

TEST(SegmentLedger, OrphansAreAdoptedByClassIfTheyHaveRoom) {
  SegmentLedger ledger(3);
  ASSERT_EQ(ledger.grant(1, 2, 7), 0u);
  ASSERT_EQ(ledger.grant(1, 3, 7), 1u);
  ASSERT_TRUE(ledger.orphan(0, 1, 7));
  ASSERT_TRUE(ledger.orphan(1, 1, 7));
  EXPECT_EQ(ledger.adopt(4, 8, kRoom), std::nullopt);
  EXPECT_EQ(ledger.adopt(3, 8, [](std::uint64_t) { return false; }), std::nullopt);
  EXPECT_EQ(ledger.adopt(3, 8, kRoom), (SegmentLedger::Adopted{.first = 1}));
  EXPECT_EQ(ledger.adopt(3, 8, kRoom), std::nullopt);
  EXPECT_FALSE(ledger.give_back(1, 1, 7, 1));
  EXPECT_TRUE(ledger.give_back(1, 1, 8, 1));
}

// What is marked free in them is, no matter who has died. Given up, they are what they were: nobody has looked through
// them.
TEST(SegmentLedger, SegmentsOfTheDeadAreAdoptedByClassAfterOrphans) {
  SegmentLedger ledger(4);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(ledger.grant(1, i == 3 ? 2 : 3, 7 + i), i);
  ASSERT_TRUE(ledger.orphan(0, 1, 7));
  ledger.doubt();
  EXPECT_EQ(ledger.bury(8), 1u);
  ASSERT_TRUE(ledger.give_back(2, 1, 9, 1));
  ledger.settle(2);
  ASSERT_EQ(ledger.grant(1, 3, 9), 2u);
  ASSERT_TRUE(ledger.orphan(2, 1, 9));
  EXPECT_EQ(ledger.left_by(8), 1u);
  EXPECT_EQ(ledger.counts(), (SegmentLedger::Counts{.owned = 1, .orphaned = 1, .dead = 2}));

  EXPECT_EQ(ledger.adopt(3, 10, kRoom), (SegmentLedger::Adopted{.first = 2}));
  EXPECT_EQ(ledger.adopt(3, 10, [](std::uint64_t first) { return first == 1; }),
            (SegmentLedger::Adopted{.first = 1, .doubted = true}));
  EXPECT_EQ(ledger.left_by(8), 0u);
  EXPECT_EQ(ledger.adopt(2, 10, kRoom), std::nullopt);
  EXPECT_EQ(ledger.adopt(3, 10, [](std::uint64_t) { return false; }), std::nullopt);
  EXPECT_EQ(ledger.counts(), (SegmentLedger::Counts{.owned = 3, .dead = 1}));
  ASSERT_TRUE(ledger.orphan(1, 1, 10));
  ASSERT_TRUE(ledger.orphan(2, 1, 10));
  EXPECT_EQ(ledger.counts(), (SegmentLedger::Counts{.owned = 1, .orphaned = 1, .dead = 2}));
}

TEST(SegmentLedger, OrphansThatBecameEmptyRest) {
  SegmentLedger ledger(4);
  ASSERT_TRUE(ledger.grant(1, 2, 7));
  ASSERT_TRUE(ledger.grant(3, kRun, 7));
  ASSERT_TRUE(ledger.orphan(0, 1, 7));
  ASSERT_TRUE(ledger.orphan(1, 3, 7));
  EXPECT_EQ(ledger.rest_empty_orphans(4, kNever), 0u);
  EXPECT_EQ(ledger.rest_empty_orphans(
                4, [](std::uint64_t first, std::uint64_t size_class) { return first == 1 && size_class == kRun; }),
            1u);
  EXPECT_EQ(ledger.settle(5), 3u);
  EXPECT_EQ(ledger.counts(), (SegmentLedger::Counts{.free = 3, .orphaned = 1}));
}

TEST(SegmentLedger, RandomHistoriesLoseAndShareNoSegment) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    base::Random random(seed);
    constexpr std::uint64_t kSegments = 40;
    SegmentLedger ledger(kSegments);
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> owned;  // first -> count, session
    std::uint64_t era = 1;
    for (int step = 0; step < 2000; ++step) {
      switch (random.below(4)) {
        case 0:
        case 1: {
          const std::uint64_t count = random.chance(0.3) ? 2 + random.below(5) : 1;
          const std::uint64_t session = 1 + random.below(3);
          if (const auto first = ledger.grant(count, count > 1 ? kRun : 1, session)) {
            for (const auto& [other, held] : owned) {
              EXPECT_TRUE(*first + count <= other || other + held.first <= *first) << "shared, seed " << seed;
            }
            EXPECT_LE(*first + count, kSegments);
            owned[*first] = {count, session};
          }
          break;
        }
        case 2:
          if (!owned.empty()) {
            auto entry = std::next(owned.begin(), static_cast<std::ptrdiff_t>(random.below(owned.size())));
            EXPECT_TRUE(ledger.give_back(entry->first, entry->second.first, entry->second.second, era));
            owned.erase(entry);
          }
          break;
        default:
          ledger.settle(++era);
          break;
      }
      const auto& counts = ledger.counts();
      EXPECT_EQ(counts.free + counts.owned + counts.orphaned + counts.resting, kSegments);
    }
    for (const auto& [first, held] : owned) EXPECT_TRUE(ledger.give_back(first, held.first, held.second, era));
    ledger.settle(era + 1);
    EXPECT_EQ(ledger.counts().free, kSegments);
    EXPECT_EQ(ledger.largest_hole(), kSegments);
  }
}

}  // namespace
}  // namespace farpool::node
