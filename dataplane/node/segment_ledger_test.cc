// SPDX-License-Identifier: Apache-2.0
#include "node/segment_ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "base/hash.h"
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

// Everything beside a hole can be moved, except runs.
TEST(SegmentLedger, ARunTakesNoRoomFromOthersOfItsLength) {
  SegmentLedger ledger(12);
  for (std::uint64_t i = 0; i < 12; ++i) ASSERT_EQ(ledger.grant(1, 0, 7), i);
  for (std::uint64_t i = 5; i < 10; ++i) ASSERT_TRUE(ledger.give_back(i, 1, 7, 1));
  ledger.settle(2);
  EXPECT_EQ(ledger.grant(3, kRun, 7), 6u);
  for (std::uint64_t i = 2; i < 5; ++i) ASSERT_TRUE(ledger.give_back(i, 1, 7, 2));
  ledger.settle(3);
  EXPECT_EQ(ledger.grant(3, kRun, 7), 3u);
  ASSERT_TRUE(ledger.give_back(10, 1, 7, 3));
  ASSERT_TRUE(ledger.give_back(11, 1, 7, 3));
  ledger.settle(4);
  EXPECT_EQ(ledger.grant(3, kRun, 7), 9u);
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

// What is marked free in them is free, whichever client has died. If they are given up, they are the dead's again:
// nobody has looked through them.
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

constexpr std::uint64_t kSegmentBytes = 256 << 10;
constexpr std::uint64_t kClass = 3;
const std::uint64_t kBlocks = layout::segment_shape(kClass, kSegmentBytes).blocks;

TEST(SegmentLedger, TheStretchIsChosenInWhichTheLeastIsInUseIfThatFitsElsewhere) {
  SegmentLedger ledger(8);
  std::map<std::uint64_t, std::uint64_t> free{{0, 0},           {1, kBlocks / 2}, {2, kBlocks - 1}, {3, 0},
                                              {4, kBlocks - 9}, {5, kBlocks - 2}, {6, 20},          {7, kBlocks / 4}};
  const auto free_blocks = [&](std::uint64_t first, std::uint64_t) { return free[first]; };
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  for (const std::uint64_t first : {1u, 2u, 4u, 5u, 7u}) ASSERT_TRUE(ledger.orphan(first, 1, 7));
  EXPECT_EQ(ledger.choose_stretch(2, 0, kSegmentBytes, free_blocks), (layout::Stretch{.first = 4, .count = 2}));
  // The contents of 6 would not fit into what is left beside these.
  free[1] = free[7] = free[2] = 0;
  EXPECT_EQ(ledger.choose_stretch(3, 0, kSegmentBytes, free_blocks), std::nullopt);
  ASSERT_TRUE(ledger.give_back(0, 1, 7, 1));
  EXPECT_EQ(ledger.choose_stretch(3, 0, kSegmentBytes, free_blocks), (layout::Stretch{.first = 4, .count = 3}))
      << "a segment that rests takes it";
  EXPECT_EQ(ledger.choose_stretch(9, 0, kSegmentBytes, free_blocks), std::nullopt);
  // What cannot leave lies in no stretch.
  EXPECT_EQ(ledger.bury(7), 2u);
  EXPECT_EQ(ledger.choose_stretch(3, 0, kSegmentBytes, free_blocks), std::nullopt);
}

// A stretch may not leave too few segments between runs for another run.
TEST(SegmentLedger, AStretchTakesNoRoomFromOthersOfItsLength) {
  SegmentLedger ledger(10);
  constexpr std::array<std::uint64_t, 10> used{9, 9, 1, 1, 1, 9, 8, 9, 9, 0};
  const auto free_blocks = [&](std::uint64_t first, std::uint64_t) { return kBlocks - used[first]; };
  for (std::uint64_t i = 0; i < 10; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  for (std::uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(ledger.orphan(i, 1, 7));
  ASSERT_EQ(ledger.bury(7), 1u);  // the last stays where it is
  EXPECT_EQ(ledger.choose_stretch(3, 0, kSegmentBytes, free_blocks), (layout::Stretch{.first = 3, .count = 3}));
}

TEST(SegmentLedger, RunsLeaveAStretchForLongerOnes) {
  SegmentLedger ledger(6);
  const auto nothing = [](std::uint64_t, std::uint64_t) { return std::uint64_t{0}; };
  ASSERT_EQ(ledger.grant(2, kRun, 7), 4u);
  ASSERT_EQ(ledger.grant(2, kRun, 7), 2u);
  ASSERT_EQ(ledger.grant(2, kRun, 7), 0u);
  ASSERT_TRUE(ledger.give_back(0, 2, 7, 1));
  ASSERT_TRUE(ledger.give_back(4, 2, 7, 1));
  ledger.settle(2);
  EXPECT_EQ(ledger.choose_stretch(2, 0, kSegmentBytes, nothing)->count, 2u);
  const auto stretch = ledger.choose_stretch(3, 0, kSegmentBytes, nothing);
  ASSERT_TRUE(stretch.has_value());
  ledger.clear(*stretch, kSegmentBytes, nothing);
  EXPECT_EQ(ledger.adopt_sparse(kRun, 8, kSegmentBytes, nothing), std::nullopt) << "it is owned";
  ASSERT_TRUE(ledger.orphan(2, 2, 7));
  EXPECT_EQ(ledger.adopt_sparse(kRun, 8, kSegmentBytes, nothing), 2u);
}

TEST(SegmentLedger, WhatIsFreeInAStretchThatIsClearedIsForRuns) {
  SegmentLedger ledger(6);
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  const auto full = [](std::uint64_t, std::uint64_t) { return std::uint64_t{0}; };
  ledger.clear({.first = 1, .count = 3}, kSegmentBytes, full);
  for (const std::uint64_t first : {1u, 3u, 5u}) ASSERT_TRUE(ledger.give_back(first, 1, 7, 1));
  ledger.settle(2);
  EXPECT_EQ(ledger.grant(1, kClass, 8), 5u);
  EXPECT_EQ(ledger.grant(1, kClass, 8), std::nullopt);
  EXPECT_EQ(ledger.grant(1, kClass, 8, true), 1u) << "asked for last";
  ASSERT_TRUE(ledger.give_back(1, 1, 8, 3));
  // A segment in the way is adopted and emptied, however full it is, but not for its own class.
  ASSERT_TRUE(ledger.orphan(2, 1, 7));
  ASSERT_TRUE(ledger.orphan(4, 1, 7));
  EXPECT_EQ(ledger.adopt_sparse(kClass, 8, kSegmentBytes, full), std::nullopt);
  EXPECT_EQ(ledger.adopt_sparse(kRun, 8, kSegmentBytes, full), 2u);
  EXPECT_EQ(ledger.adopt_sparse(kRun, 8, kSegmentBytes, full), std::nullopt) << "4 is full, and not in the way";
  ASSERT_TRUE(ledger.give_back(2, 1, 8, 3));
  ledger.settle(4);
  EXPECT_EQ(ledger.grant(3, kRun, 8), 1u);
  EXPECT_EQ(ledger.cleared().count, 0u);
}

// A client that has a segment there may never empty it.
TEST(SegmentLedger, AStretchInWhichNothingComesFreeIsPassedOver) {
  SegmentLedger ledger(8);
  std::array<std::uint64_t, 8> used{5, 5, 1, 1, 3, 3, 9, 9};
  const auto free_blocks = [&](std::uint64_t first, std::uint64_t) { return kBlocks - used[first]; };
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  const auto choose = [&] { return ledger.choose_stretch(2, 0, kSegmentBytes, free_blocks); };
  const auto clear = [&](std::uint64_t first) {
    const auto stretch = choose();
    ASSERT_TRUE(stretch.has_value());
    EXPECT_EQ(*stretch, (layout::Stretch{.first = first, .count = 2}));
    ledger.clear(*stretch, kSegmentBytes, free_blocks);
  };
  clear(2);
  used[3] = 0;
  ledger.end_clearing(kSegmentBytes, free_blocks);
  clear(2);  // it comes free
  ledger.end_clearing(kSegmentBytes, free_blocks);
  clear(4);
  ledger.end_clearing(kSegmentBytes, free_blocks);
  clear(0);
  ledger.end_clearing(kSegmentBytes, free_blocks);
  clear(6);
  ledger.end_clearing(kSegmentBytes, free_blocks);
  EXPECT_EQ(choose(), std::nullopt);
  clear(2);  // from the beginning
  ledger.end_clearing(kSegmentBytes, free_blocks);
  // Others have it now.
  ASSERT_TRUE(ledger.orphan(2, 1, 7));
  ASSERT_EQ(ledger.adopt(kClass, 8, [](std::uint64_t) { return true; }), (SegmentLedger::Adopted{.first = 2}));
  ASSERT_TRUE(ledger.give_back(3, 1, 7, 1));
  clear(2);
}

// Some segments are kept from requests for new keys.
TEST(SegmentLedger, NoStretchIsClearedForARunThatWouldStillBeRefused) {
  SegmentLedger ledger(6);
  const auto free_blocks = [](std::uint64_t, std::uint64_t) { return kBlocks - 1; };
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  for (const std::uint64_t first : {0u, 5u}) ASSERT_TRUE(ledger.give_back(first, 1, 7, 1));
  EXPECT_TRUE(ledger.choose_stretch(2, 1, kSegmentBytes, free_blocks).has_value());
  EXPECT_EQ(ledger.choose_stretch(2, 2, kSegmentBytes, free_blocks), std::nullopt);
}

// Sets up what an earlier life left: a segment or run of a class at each of these places.
void restore(SegmentLedger& ledger, std::uint64_t size_class, std::uint64_t count,
             std::initializer_list<std::uint64_t> firsts) {
  for (const std::uint64_t first : firsts) ledger.restore_orphan(first, count, size_class);
}

TEST(SegmentLedger, ASingleComesFromTheSmallestHoleWhereverThatLies) {
  SegmentLedger ledger(16);
  restore(ledger, kClass, 1, {0, 4, 7, 12});  // the holes have 3, 2, 4 and 3 segments
  for (const std::uint64_t first : {5u, 6u, 1u, 2u, 3u, 13u, 14u, 15u, 8u})
    EXPECT_EQ(ledger.grant(1, kClass, 7), first);
  EXPECT_EQ(ledger.grant(0, kRun, 7), std::nullopt);
  EXPECT_EQ(ledger.grant(17, kRun, 7), std::nullopt);
}

TEST(SegmentLedger, AShorterRunLiesBeforeOrBehindAStretchThatIsCleared) {
  SegmentLedger ledger(12);
  const auto nothing = [](std::uint64_t, std::uint64_t) { return std::uint64_t{0}; };
  restore(ledger, kClass, 1, {0, 1, 9, 10, 11});
  ledger.clear({.first = 4, .count = 3}, kSegmentBytes, nothing);
  EXPECT_EQ(ledger.grant(2, kRun, 7), 7u);
  EXPECT_EQ(ledger.grant(2, kRun, 7), 2u);
  EXPECT_EQ(ledger.grant(2, kRun, 7), std::nullopt);
  EXPECT_EQ(ledger.cleared().count, 3u);
  EXPECT_EQ(ledger.grant(2, kRun, 7, true), 5u);
  EXPECT_EQ(ledger.cleared().count, 0u);
}

// A run that is as long stays where it is, so the count of further runs begins and ends there.
TEST(SegmentLedger, ARunLiesWhereTheMostOthersHaveRoomBesideIt) {
  SegmentLedger before(14);
  restore(before, kRun, 4, {0});
  restore(before, kClass, 1, {4, 9, 10});
  restore(before, kRun, 3, {11});
  EXPECT_EQ(before.grant(3, kRun, 7), 5u) << "another has room behind it, and none before it";
  SegmentLedger behind(15);
  restore(behind, kRun, 4, {0});
  restore(behind, kClass, 1, {4, 10, 11});
  restore(behind, kRun, 3, {12});
  EXPECT_EQ(behind.grant(3, kRun, 7), 7u) << "another has room before it, with a segment that can move";
  SegmentLedger narrow(12);
  restore(narrow, kClass, 1, {0, 1, 2, 3, 7, 8, 9, 10, 11});
  EXPECT_EQ(narrow.grant(3, kRun, 7), 4u) << "there is no other place";
}

TEST(SegmentLedger, EachSegmentOfTheDeadIsHandedOverOnce) {
  SegmentLedger ledger(6);
  for (std::uint64_t i = 0; i < 2; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  ASSERT_EQ(ledger.grant(1, 2, 7), 2u);
  ASSERT_EQ(ledger.grant(2, kRun, 7), 4u);
  restore(ledger, kClass, 1, {3});
  ledger.doubt();
  EXPECT_EQ(ledger.bury(7), 5u);
  EXPECT_EQ(ledger.left_by(7), 5u);
  EXPECT_EQ(ledger.left_by(0), 0u) << "an orphan was left by no session that has ended";
  EXPECT_EQ(ledger.adopt(kClass, 8, [](std::uint64_t first) { return first == 0; }),
            (SegmentLedger::Adopted{.first = 0, .doubted = true}));
  EXPECT_EQ(ledger.left_by(7), 4u);
  EXPECT_EQ(ledger.adopt(2, 8, kRoom), (SegmentLedger::Adopted{.first = 2, .doubted = true}));
  EXPECT_EQ(ledger.adopt(2, 8, kRoom), std::nullopt);
  // One of the class and length that a client wants comes first, then any.
  const auto run = ledger.inherit(kRun, 2, 8);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->first, 4u);
  EXPECT_EQ(run->run, 2u);
  for (int i = 0; i < 2; ++i) {
    const auto any = ledger.inherit(2, 1, 8);
    ASSERT_TRUE(any.has_value());
    EXPECT_EQ(any->size_class, kClass);
  }
  EXPECT_EQ(ledger.inherit(kClass, 1, 8), std::nullopt);
  EXPECT_EQ(ledger.left_by(7), 0u);
  EXPECT_EQ(ledger.counts(), (SegmentLedger::Counts{.free = 0, .owned = 6}));
}

// The client that died may have unlinked blocks in a segment that a living one gives up later. The dead have not left it.
TEST(SegmentLedger, ASegmentFromBeforeADeathIsTheDeadsWhenItIsGivenUp) {
  SegmentLedger ledger(4);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  ledger.doubt();
  EXPECT_EQ(ledger.deaths(), 1u);
  ASSERT_EQ(ledger.grant(1, 2, 7), 3u);
  ASSERT_TRUE(ledger.orphan(0, 1, 7));
  ASSERT_TRUE(ledger.orphan(3, 1, 7));
  EXPECT_EQ(ledger.counts(), (SegmentLedger::Counts{.owned = 2, .orphaned = 1, .dead = 1}));
  EXPECT_EQ(ledger.bury(7), 2u);
  EXPECT_EQ(ledger.left_by(7), 2u);
  auto by_class = ledger.counts_by_class();
  EXPECT_EQ(by_class[kClass], (SegmentLedger::Counts{.dead = 3}));
  EXPECT_EQ(by_class[2], (SegmentLedger::Counts{.orphaned = 1}));
  EXPECT_EQ(ledger.inherit(kClass, 1, 8)->first, 0u);
  EXPECT_EQ(ledger.left_by(7), 2u) << "it was given up before its owner ended";
  EXPECT_EQ(ledger.counts_by_class()[kClass], (SegmentLedger::Counts{.owned = 1, .dead = 2}));
}

TEST(SegmentLedger, TheEmptiestOrphanOfAnotherClassIsHandedOver) {
  SegmentLedger ledger(10);
  restore(ledger, 2, 1, {0});
  restore(ledger, kClass, 1, {1, 2, 5});
  restore(ledger, 5, 1, {3});
  restore(ledger, 6, 1, {4});
  restore(ledger, kRun, 2, {6});
  // Segment 5 is full, and of the run and of class 6 nothing is in use.
  const auto free_blocks = [](std::uint64_t first, std::uint64_t size_class) {
    const std::uint64_t blocks = layout::segment_shape(size_class, kSegmentBytes).blocks;
    return first == 0                 ? blocks / 2
           : first == 1 || first == 2 ? blocks - 9
           : first == 3               ? blocks / 3
           : first == 5               ? 0
                                      : blocks;
  };
  for (const std::uint64_t first : {1u, 2u, 0u, 3u}) {
    EXPECT_EQ(ledger.adopt_sparse(6, 8, kSegmentBytes, free_blocks), first);
  }
  EXPECT_EQ(ledger.adopt_sparse(6, 8, kSegmentBytes, free_blocks), std::nullopt);
}

TEST(SegmentLedger, AStretchHasAllThatIsFreeOrWillBe) {
  SegmentLedger ledger(6);
  const auto nothing = [](std::uint64_t, std::uint64_t) { return std::uint64_t{0}; };
  ASSERT_EQ(ledger.grant(3, kRun, 7), 3u);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(ledger.grant(1, kClass, 7), i);
  ASSERT_TRUE(ledger.give_back(3, 3, 7, 1));
  const auto almost_full = [](std::uint64_t, std::uint64_t size_class) { return std::uint64_t{size_class != kRun}; };
  EXPECT_EQ(ledger.choose_stretch(3, 0, kSegmentBytes, almost_full), (layout::Stretch{.first = 3, .count = 3}))
      << "a run that rests is in nobody's way, and nothing in it is in use";
  EXPECT_EQ(ledger.choose_stretch(0, 0, kSegmentBytes, nothing), std::nullopt);
  SegmentLedger large(300);
  for (const std::uint64_t first : {128u, 172u, 128u}) {
    EXPECT_EQ(large.choose_stretch(128, 0, kSegmentBytes, nothing), (layout::Stretch{.first = first, .count = 128}))
        << "each look goes on where the last one ended";
  }
  EXPECT_EQ(large.choose_stretch(129, 0, kSegmentBytes, nothing), std::nullopt) << "more than is looked at";
}

// What a stretch contains needs room outside of it, in segments of its own class or in free ones.
TEST(SegmentLedger, NoStretchIsClearedWhoseContentsHaveNoRoomElsewhere) {
  const auto choose = [](SegmentLedger& ledger, std::uint64_t count, std::uint64_t used) {
    return ledger.choose_stretch(count, 0, kSegmentBytes, [used](std::uint64_t, std::uint64_t size_class) {
      const std::uint64_t blocks = layout::segment_shape(size_class, kSegmentBytes).blocks;
      return size_class == kRun ? 0 : blocks - std::min(used, blocks);
    });
  };
  SegmentLedger full(4);
  restore(full, kClass, 1, {0, 2});
  EXPECT_EQ(choose(full, 2, kBlocks), (layout::Stretch{.first = 2, .count = 2})) << "1 is free for what is in 2";
  SegmentLedger inside(2);
  restore(inside, kClass, 1, {0});
  EXPECT_EQ(choose(inside, 2, kBlocks), std::nullopt) << "the free segment is part of it";
  SegmentLedger other_class(8);
  restore(other_class, kClass, 1, {0, 2, 4});
  restore(other_class, 5, 1, {6, 7});
  for (const std::uint64_t first : {1u, 3u, 5u}) other_class.set_aside(first, 1);
  EXPECT_EQ(choose(other_class, 2, 1), std::nullopt) << "there is room, but of another class";
  // Runs need segments side by side, and leave as many free as are kept.
  SegmentLedger room(9);
  restore(room, kRun, 2, {1});
  room.set_aside(4, 1);
  room.set_aside(7, 2);
  const auto full_runs = [](std::uint64_t, std::uint64_t) { return std::uint64_t{0}; };
  EXPECT_EQ(room.choose_stretch(3, 1, kSegmentBytes, full_runs), (layout::Stretch{.first = 1, .count = 3}));
  EXPECT_EQ(room.choose_stretch(3, 2, kSegmentBytes, full_runs), std::nullopt);
  SegmentLedger no_room(4);
  restore(no_room, kRun, 2, {1});
  EXPECT_EQ(choose(no_room, 3, 1), std::nullopt);
  SegmentLedger room_inside(8);
  restore(room_inside, kRun, 2, {2});
  for (const std::uint64_t first : {4u, 6u}) room_inside.set_aside(first, 1);
  EXPECT_EQ(choose(room_inside, 4, 1), std::nullopt);
  SegmentLedger outside(6);
  restore(outside, kRun, 2, {0});
  restore(outside, kClass, 1, {2, 3, 4});
  EXPECT_EQ(choose(outside, 3, 1), (layout::Stretch{.first = 3, .count = 3})) << "the run need not move";
}

// This holds while stretches are being cleared and clients die, too.
TEST(SegmentLedger, RandomHistoriesLoseAndShareNoSegment) {
  std::uint64_t stretches = 0, granted_in_one = 0, adopted = 0, deaths = 0, inherited = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    base::Random random(seed);
    constexpr std::uint64_t kSegments = 40;
    SegmentLedger ledger(kSegments);
    using Held = std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>>;  // first -> count, session
    Held owned, orphans, dead;  // of orphans and dead, the session does not count
    const auto free_blocks = [&](std::uint64_t first, std::uint64_t size_class) {
      return size_class == kRun ? 0 : base::mix(first ^ seed << 32) % (kBlocks + 1);
    };
    std::uint64_t era = 1;
    const auto of_the_dead = [](const Held& segments) {
      std::uint64_t count = 0;
      for (const auto& [first, held] : segments) count += held.first;
      return count;
    };
    const auto any_of = [&](Held& held) {
      return std::next(held.begin(), static_cast<std::ptrdiff_t>(random.below(held.size())));
    };
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t session = 1 + random.below(3);
      switch (random.below(9)) {
        case 0:
        case 1:
        case 2: {
          const std::uint64_t count = random.chance(0.3) ? 2 + random.below(5) : 1;
          const bool anywhere = random.chance(0.2);
          const layout::Stretch cleared = ledger.cleared();
          const auto first = ledger.grant(count, count > 1 ? kRun : kClass, session, anywhere);
          if (!first) break;
          for (const Held& held : {owned, orphans, dead}) {
            for (const auto& [other, of] : held) {
              EXPECT_TRUE(*first + count <= other || other + of.first <= *first) << "shared, seed " << seed;
            }
          }
          EXPECT_LE(*first + count, kSegments);
          if (cleared.overlaps(*first, count)) {
            EXPECT_TRUE(anywhere || count >= cleared.count) << "seed " << seed;
            EXPECT_EQ(ledger.cleared().count, count > 1 ? 0 : cleared.count);
            ++granted_in_one;
          }
          owned[*first] = {count, session};
          break;
        }
        case 3:
          if (!owned.empty()) {
            const auto entry = any_of(owned);
            EXPECT_TRUE(ledger.give_back(entry->first, entry->second.first, entry->second.second, era));
            owned.erase(entry);
          }
          break;
        case 4:
          if (!owned.empty()) {
            const auto entry = any_of(owned);
            EXPECT_TRUE(ledger.orphan(entry->first, entry->second.first, entry->second.second));
            (ledger.counts().dead > of_the_dead(dead) ? dead : orphans).insert(owned.extract(entry));
          }
          break;
        case 5: {
          const layout::Stretch cleared = ledger.cleared();
          const auto first =
              ledger.adopt_sparse(random.chance(0.5) ? kRun : kClass, session, kSegmentBytes, free_blocks);
          if (!first) break;
          ASSERT_TRUE(orphans.contains(*first)) << "seed " << seed;
          const std::uint64_t count = orphans.at(*first).first;
          EXPECT_EQ(ledger.run_of(*first), count);
          EXPECT_TRUE(count == 1 || (cleared.overlaps(*first, count) && count < cleared.count)) << "seed " << seed;
          orphans.erase(*first);
          owned[*first] = {count, session};
          ++adopted;
          break;
        }
        case 6: {
          if (random.chance(0.3)) ledger.end_clearing(kSegmentBytes, free_blocks);
          const std::uint64_t count = 2 + random.below(5);
          const auto stretch = ledger.choose_stretch(count, 0, kSegmentBytes, free_blocks);
          if (!stretch) break;
          EXPECT_EQ(stretch->count, count);
          EXPECT_LE(stretch->first + count, kSegments);
          ledger.clear(*stretch, kSegmentBytes, free_blocks);
          ++stretches;
          break;
        }
        case 7:
          if (random.chance(0.1)) {  // a client dies
            ledger.doubt();
            const std::uint64_t buried = ledger.bury(session);
            std::uint64_t had = 0;
            for (auto entry = owned.begin(); entry != owned.end();) {
              const auto next = std::next(entry);
              if (entry->second.second == session) {
                had += entry->second.first;
                dead.insert(owned.extract(entry));
              }
              entry = next;
            }
            EXPECT_EQ(buried, had) << "seed " << seed;
            dead.merge(orphans);
            ++deaths;
          } else if (const auto got = ledger.inherit(kClass, 1, session)) {
            ASSERT_TRUE(dead.contains(got->first)) << "seed " << seed;
            EXPECT_EQ(got->run, dead.at(got->first).first);
            dead.erase(got->first);
            owned[got->first] = {got->run, session};
            ++inherited;
          } else {
            EXPECT_TRUE(dead.empty()) << "seed " << seed;
          }
          break;
        default:
          ledger.settle(++era);
          break;
      }
      const auto& counts = ledger.counts();
      EXPECT_EQ(counts.free + counts.owned + counts.orphaned + counts.dead + counts.resting, kSegments);
      EXPECT_EQ(counts.dead, of_the_dead(dead)) << "seed " << seed;
    }
    while (const auto got = ledger.inherit(kClass, 1, 1)) owned[got->first] = {got->run, 1};
    for (const auto& [first, held] : owned) EXPECT_TRUE(ledger.give_back(first, held.first, held.second, era));
    EXPECT_EQ(ledger.rest_empty_orphans(era, [](std::uint64_t, std::uint64_t) { return true; }), orphans.size());
    ledger.settle(era + 1);
    EXPECT_EQ(ledger.counts().free, kSegments);
    EXPECT_EQ(ledger.largest_hole(), kSegments);
  }
  EXPECT_GT(stretches, 100u);
  EXPECT_GT(granted_in_one, 100u);
  EXPECT_GT(adopted, 100u);
  EXPECT_GT(deaths, 100u);
  EXPECT_GT(inherited, 100u);
}

}  // namespace
}  // namespace farpool::node
