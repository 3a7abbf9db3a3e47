// SPDX-License-Identifier: Apache-2.0
#include "heap/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "base/random.h"

namespace farpool::heap {
namespace {

using layout::Pressure;
using Origin = SizeClass::Origin;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kSegmentBytes = 64 * 1024;
constexpr std::uint64_t kSegments = 64;
constexpr std::uint64_t kBytes = 1000;  // of most blocks here: about 60 in a segment
constexpr base::Nanos kTick = base::kMillisecond;

struct Ledgered {
  explicit Ledgered(int segments = 1, std::uint64_t bytes = kBytes, Origin origin = Origin::fresh)
      : ledger(kSegments * kSegmentBytes, kSegmentBytes), of(ledger.class_for(bytes)) {
    for (int i = 0; i < segments; ++i) ledger.add(of, static_cast<std::uint64_t>(i), origin, deaths);
  }
  std::optional<Block> take(Purpose purpose = Purpose::replacement, Pressure pressure = Pressure::none) {
    return of.take(purpose, safe_era, pressure);
  }
  // A block that an entry points to.
  Block use() {
    const std::optional<Block> block = take();
    EXPECT_TRUE(block.has_value());
    ledger.published(*block);
    return *block;
  }
  std::vector<Block> use_all() {
    std::vector<Block> blocks;
    while (const std::optional<Block> block = take()) {
      ledger.published(*block);
      blocks.push_back(*block);
    }
    return blocks;
  }
  bool free(Block block) { return !ledger.free(block.units, block.bytes, era).has_value(); }
  Ledger::Place place(Block block) const { return ledger.find_place(of, block.units).value(); }
  // Returns a bitmap with the marks of these blocks of one segment.
  std::vector<std::byte> marks(const std::vector<Block>& blocks) const {
    std::vector<std::uint64_t> words(of.shape.bitmap_words);
    for (const Block& block : blocks) words[place(block).block / 64] |= 1ull << place(block).block % 64;
    std::vector<std::byte> bytes(words.size() * 8);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return bytes;
  }

  Ledger ledger;
  SizeClass& of;
  std::uint64_t era = 10, safe_era = 9, deaths = 0;
};

TEST(Ledger, PlacesAreThoseOfBlocks) {
  Ledgered world;
  const layout::SegmentShape& shape = world.of.shape;
  for (std::uint64_t block = 0; block < shape.blocks; ++block) {
    const Block at = world.of.block_at(3, block);
    EXPECT_EQ(world.ledger.find_place(world.of, at.units), (Ledger::Place{3, block}));
    EXPECT_EQ(world.ledger.find_place(world.of, at.units + 1), std::nullopt);
  }
  EXPECT_EQ(world.ledger.find_place(world.of, 3 * kSegmentBytes / layout::kBlockUnit), std::nullopt);  // its header
  EXPECT_EQ(world.ledger.find_place(world.of, world.of.block_at(kSegments, 0).units), std::nullopt);
  EXPECT_EQ(world.ledger.find_place(world.of, ~0ull), std::nullopt);
  // A run that would reach beyond the heap.
  SizeClass& run = world.ledger.class_for(3 * kSegmentBytes);
  EXPECT_EQ(run.run, 4u);
  EXPECT_EQ(world.ledger.find_place(run, run.block_at(kSegments - 4, 0).units), (Ledger::Place{kSegments - 4, 0}));
  EXPECT_EQ(world.ledger.find_place(run, run.block_at(kSegments - 3, 0).units), std::nullopt);
}

TEST(Ledger, EachRunLengthIsAClass) {
  Ledgered world;
  EXPECT_EQ(&world.ledger.class_for(kBytes), &world.ledger.class_for(kBytes + 1));
  EXPECT_NE(&world.ledger.class_for(2 * kSegmentBytes), &world.ledger.class_for(3 * kSegmentBytes));
  EXPECT_TRUE(world.ledger.fits(kSegments * kSegmentBytes - layout::kRunHeader));
  EXPECT_FALSE(world.ledger.fits(kSegments * kSegmentBytes));
  EXPECT_TRUE(world.ledger.has_segments(kSegments - 1, 1));
  EXPECT_FALSE(world.ledger.has_segments(kSegments - 1, 2));
  EXPECT_FALSE(world.ledger.has_segments(kSegments, 0));
  EXPECT_FALSE(world.ledger.has_segments(1, ~0ull));
}

TEST(Ledger, ABlockReplacesOneThatIsNoSmaller) {
  const Ledgered world;
  EXPECT_EQ(world.ledger.purpose_of(kBytes, 0), Purpose::addition);
  EXPECT_EQ(world.ledger.purpose_of(kBytes, kBytes + 1), Purpose::replacement);
  EXPECT_EQ(world.ledger.purpose_of(kBytes, kBytes - 1), Purpose::replacement);  // of the same class
  EXPECT_EQ(world.ledger.purpose_of(kBytes, kBytes / 2), Purpose::addition);
  EXPECT_EQ(world.ledger.purpose_of(2 * kSegmentBytes, kBytes), Purpose::addition);
  EXPECT_EQ(world.ledger.purpose_of(2 * kSegmentBytes, 2 * kSegmentBytes + 1), Purpose::replacement);
}

TEST(Ledger, HandsOutEachBlockOnce) {
  Ledgered world(3);
  std::set<std::uint64_t> units;
  for (const Block& block : world.use_all()) EXPECT_TRUE(units.insert(block.units).second);
  EXPECT_EQ(units.size(), 3 * world.of.shape.blocks);
  EXPECT_EQ(world.of.free_count(), 0u);
}

TEST(Ledger, TakesFromTheFullestSegment) {
  Ledgered world(2);
  const std::uint64_t first = world.place(world.use()).first;
  for (std::uint64_t i = 1; i < world.of.shape.blocks; ++i) EXPECT_EQ(world.place(world.use()).first, first);
  EXPECT_NE(world.place(world.use()).first, first);
}

TEST(Ledger, AFreedBlockIsReusedOnceNoSessionCanHoldItsAddress) {
  Ledgered world;
  const std::vector<Block> blocks = world.use_all();
  EXPECT_TRUE(world.free(blocks[5]));  // in era 10, as far as this client was told: a reader may have begun in 11
  EXPECT_EQ(world.of.limbo_count(), 1u);
  for (world.safe_era = 9; world.safe_era <= 11; ++world.safe_era) EXPECT_EQ(world.take(), std::nullopt);
  world.safe_era = 12;
  EXPECT_EQ(world.take(), blocks[5]);
  EXPECT_EQ(world.of.limbo_count(), 0u);
}

TEST(Ledger, ADiscardedBlockIsReusableAtOnce) {
  Ledgered world;
  (void)world.use_all();
  EXPECT_EQ(world.take(), std::nullopt);
  world.ledger.add(world.of, 7, Origin::fresh, 0);
  const Block block = *world.take();
  EXPECT_EQ(world.of.at(7).out_count(), 1u);
  EXPECT_TRUE(world.ledger.discard(block));
  EXPECT_EQ(world.of.at(7).out_count(), 0u);
  EXPECT_TRUE(world.of.is_wholly_free(world.of.at(7)));
  const Block again = *world.take();
  world.of.remove(7);
  EXPECT_FALSE(world.ledger.discard(again));  // its segment is another's now
  world.ledger.published(again);              // has no effect
}

TEST(Ledger, FreesThatCannotBeAreCountedAndChangeNothing) {
  Ledgered world;
  const Block block = world.use();
  EXPECT_TRUE(world.free(block));
  EXPECT_TRUE(world.free(block));  // twice
  EXPECT_TRUE(world.free(*world.ledger.classes().begin()->second.take(Purpose::replacement, 0, Pressure::none)));
  EXPECT_EQ(world.ledger.anomalies, 1u);
  EXPECT_TRUE(world.free({block.units + 1, block.bytes}));            // no place of a block
  EXPECT_TRUE(world.free({block.units, 0}));                          // of no size
  EXPECT_TRUE(world.free({block.units, kSegments * kSegmentBytes}));  // larger than the heap
  EXPECT_EQ(world.ledger.anomalies, 4u);
  EXPECT_EQ(world.of.limbo_count(), 2u);
}

TEST(Ledger, FreesOfOthersBlocksAreNotedOnceForEachWord) {
  Ledgered world;
  const auto mark = [&](std::uint64_t first, std::uint64_t block) {
    return world.ledger.free(world.of.block_at(first, block).units, kBytes, world.era).value();
  };
  EXPECT_EQ(mark(9, 2), (BitmapAdd{9 * kSegmentBytes + sizeof(layout::SegmentHeader), 4}));
  EXPECT_FALSE(world.ledger.has_noted());
  EXPECT_TRUE(world.ledger.note(mark(9, 2)));
  EXPECT_FALSE(world.ledger.note(mark(9, 5)));
  EXPECT_TRUE(world.ledger.note(mark(8, 5)));
  EXPECT_FALSE(world.ledger.note(mark(9, 2)));
  EXPECT_EQ(world.ledger.anomalies, 1u);
  EXPECT_TRUE(world.ledger.has_noted());
  EXPECT_THAT(world.ledger.take_noted(), ElementsAre(BitmapAdd{mark(9, 0).offset, 0x24}, mark(8, 5)));
  EXPECT_FALSE(world.ledger.has_noted());
}

TEST(Ledger, MarksOfOthersAreTakenBackAndImpossibleOnesAreNotBelieved) {
  Ledgered world;
  const std::vector<Block> blocks = world.use_all();
  const std::uint64_t first = world.place(blocks[0]).first;
  ASSERT_TRUE(world.free(blocks[1]));
  std::vector<std::byte> bitmap = world.marks({blocks[0], blocks[1], blocks[2]});
  bitmap.back() |= std::byte{0x80};  // of no block
  std::vector<BitmapAdd> back;
  EXPECT_EQ(world.of.take_marks(first, bitmap, world.era, back), 2u);
  EXPECT_EQ(world.of.limbo_count(), 3u);
  ASSERT_EQ(back.size(), world.of.shape.bitmap_words);
  for (std::size_t word = 0; word < back.size(); ++word) {
    EXPECT_EQ(back[word].offset, world.of.bitmap_at(first, word));
    EXPECT_EQ(back[word].bits + base::load<std::uint64_t>(bitmap.data() + word * 8), 0u);
  }
  world.safe_era = 12;
  EXPECT_EQ(world.use_all().size(), 3u);
}

TEST(Ledger, AnAdoptedSegmentHasWhatItsBitmapSays) {
  Ledgered world(1, kBytes, Origin::orphan);
  EXPECT_EQ(world.take(), std::nullopt);
  std::vector<BitmapAdd> back;
  EXPECT_EQ(world.of.take_marks(0, world.marks({world.of.block_at(0, 4)}), world.era, back), 0u);
  world.safe_era = 12;
  EXPECT_EQ(world.take(), world.of.block_at(0, 4));
}

TEST(Ledger, WhatIsGivenUpIsMarkedFreeAsFarAsItIsKnownToBe) {
  Ledgered world;
  const std::vector<Block> blocks = world.use_all();
  ASSERT_TRUE(world.free(blocks[0]));
  world.safe_era = 12;
  world.of.settle(world.safe_era);
  ASSERT_TRUE(world.free(blocks[1]));
  std::vector<BitmapAdd> marks;
  world.of.give_up(0, marks);
  EXPECT_THAT(marks, ElementsAre(BitmapAdd{world.of.bitmap_at(0, 0), 3}));
  EXPECT_EQ(world.of.unused(), 0u);
  EXPECT_EQ(world.take(), std::nullopt);
  world.safe_era = 20;
  world.of.settle(world.safe_era);  // forgets the limbo of a segment that is gone
  EXPECT_EQ(world.of.free_count(), 0u);
}

TEST(Ledger, SomeBlocksAreLeftForReplacements) {
  Ledgered world(4);
  const std::uint64_t blocks = world.of.shape.blocks;
  std::uint64_t added = 0;
  while (world.take(Purpose::addition)) ++added;
  EXPECT_EQ(added, 4 * blocks - blocks / 16);
  EXPECT_FALSE(world.of.has_room(Purpose::addition, Pressure::none));
  EXPECT_TRUE(world.of.has_room(Purpose::replacement, Pressure::dry));
  EXPECT_EQ(world.use_all().size(), blocks / 16);
}

TEST(Ledger, MoreAreLeftWhereNoSegmentIsAndAllWhereReplacementsWait) {
  Ledgered world(4);
  const std::uint64_t blocks = world.of.shape.blocks;
  EXPECT_EQ(world.take(Purpose::addition, Pressure::dry), std::nullopt);
  std::uint64_t added = 0;
  while (world.take(Purpose::addition, Pressure::spent)) ++added;
  EXPECT_EQ(added, 4 * blocks - 4 * blocks / 16);
  EXPECT_TRUE(world.take(Purpose::replacement, Pressure::dry));
}

TEST(Ledger, ABlockThatIsTakenEndsTheBeliefThatTheHeapIsFull) {
  Ledgered world;
  world.of.full_for(Purpose::addition).found = true;
  world.of.full_for(Purpose::replacement).found = true;
  EXPECT_FALSE(world.of.wants_refill());
  (void)world.take(Purpose::addition);
  EXPECT_FALSE(world.of.full_for(Purpose::addition).found);
  EXPECT_TRUE(world.of.full_for(Purpose::replacement).found);
}

TEST(Ledger, SpareSegmentsAreReturnedAQuarterAtATime) {
  Ledgered world(9);
  EXPECT_EQ(world.of.spare(true).size(), 9u);
  const std::uint64_t first = world.place(world.use()).first;
  EXPECT_EQ(world.of.spare(true).size(), 8u);
  const std::vector<std::uint64_t> spare = world.of.spare(false);
  EXPECT_EQ(spare.size(), 2u);  // of the 8 that are wholly free, one or so is kept
  EXPECT_THAT(spare, testing::Not(testing::Contains(first)));
  world.of.begin_emptying(world.of.at(spare[0]));
  EXPECT_THAT(world.of.spare(true), testing::Not(testing::Contains(spare[0])));
}

TEST(Ledger, SurplusIsWhatHasRoomAndIsNotNeeded) {
  Ledgered world(4);
  const std::uint64_t blocks = world.of.shape.blocks;
  const std::vector<Block> used = world.use_all();
  world.safe_era = 12;
  // Half of segments 0 and 1, one block of 2.
  for (const Block& block : used) {
    const Ledger::Place at = world.place(block);
    if ((at.first < 2 && at.block < blocks / 2) || (at.first == 2 && at.block == 0)) ASSERT_TRUE(world.free(block));
  }
  world.of.settle(world.safe_era);
  EXPECT_THAT(world.of.surplus(Pressure::none), IsEmpty());  // all has been taken just now
  for (base::Nanos now = kTick; now < 100 * kTick; now += kTick) world.of.look_at_demand(now, kTick);
  ASSERT_TRUE(world.of.is_quiet());
  EXPECT_THAT(world.of.surplus(Pressure::none), ElementsAre(0));  // the other one is kept
  // A class that takes nothing keeps nothing when others are short; the smallest free part counts when no segment is
  // left.
  EXPECT_THAT(world.of.surplus(Pressure::scarce), ElementsAre(0, 1));
  EXPECT_THAT(world.of.surplus(Pressure::dry), ElementsAre(1, 0, 2));
  // A class with a waiting request keeps what it may need.
  world.of.waiting = 1;
  EXPECT_THAT(world.of.surplus(Pressure::scarce), ElementsAre(0));
  world.of.waiting = 0;
  // Keeps segments with a block that is about to be published, and segments that are being looked through or emptied.
  const Block block = *world.take();
  const std::uint64_t out = world.place(block).first;
  EXPECT_THAT(world.of.surplus(Pressure::dry), testing::Not(testing::Contains(out)));
  world.ledger.published(block);
  world.of.begin_look(world.of.at(0));
  world.of.begin_emptying(world.of.at(1));
  EXPECT_THAT(world.of.surplus(Pressure::dry),
              testing::AllOf(testing::Not(testing::Contains(0)), testing::Not(testing::Contains(1))));
}

TEST(Ledger, AClassOfWhichMostIsInLimboWaitsForAnEraThoughNotForLong) {
  Ledgered world;
  const std::vector<Block> used = world.use_all();
  EXPECT_FALSE(world.of.waits_for_era(true, kTick, kTick));  // nothing is in limbo
  for (const Block& block : used) ASSERT_TRUE(world.free(block));
  EXPECT_TRUE(world.of.needs_era());
  EXPECT_TRUE(world.of.waits_for_era(true, kTick, kTick));
  EXPECT_TRUE(world.of.waits_for_era(true, 2 * kTick - 1, kTick));
  EXPECT_FALSE(world.of.waits_for_era(true, 2 * kTick, kTick));
  world.safe_era = 12;
  (void)world.use();  // the wait is over: the next begins anew
  EXPECT_TRUE(world.of.waits_for_era(false, 9 * kTick, kTick));
  EXPECT_FALSE(world.of.needs_era());
}

TEST(Ledger, ScansAreDueAfterAPartOfASegmentHasBeenTaken) {
  Ledgered world(2);
  EXPECT_TRUE(world.of.scan_is_due());
  world.of.scanned(world.of.ever_free());  // nothing was found
  const std::uint64_t blocks = world.of.shape.blocks;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    EXPECT_FALSE(world.of.scan_is_due());
    (void)world.use();
  }
  EXPECT_TRUE(world.of.scan_is_due());
  world.of.scanned(world.of.ever_free() - 1);  // something was
  for (std::uint64_t i = 0; i < blocks / 4; ++i) {
    EXPECT_FALSE(world.of.scan_is_due());
    (void)world.use();
  }
  EXPECT_TRUE(world.of.scan_is_due());
  world.of.scanned(world.of.ever_free());
  world.of.scan_soon();
  EXPECT_TRUE(world.of.scan_is_due());
  Ledgered none(0);
  EXPECT_FALSE(none.of.scan_is_due());
}

TEST(Ledger, SegmentsAreScannedAFewAtATimeInTurn) {
  Ledgered world(5);
  EXPECT_THAT(world.of.next_few(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(world.of.next_few(3), ElementsAre(3, 4, 0));
  world.of.remove(1);
  EXPECT_THAT(world.of.next_few(9), ElementsAre(2, 3, 4, 0));
  EXPECT_THAT(Ledgered(0).of.next_few(3), IsEmpty());
}

TEST(Ledger, QuietClassesTakeTurns) {
  Ledgered world;
  SizeClass& other = world.ledger.class_for(100);
  const std::set<std::uint64_t> both{world.of.id, other.id};
  std::set<std::uint64_t> seen{world.ledger.next_quiet_class().value()};
  seen.insert(world.ledger.next_quiet_class().value());
  EXPECT_EQ(seen, both);
  other.waiting = 1;
  EXPECT_EQ(world.ledger.next_quiet_class(), world.of.id);
  EXPECT_EQ(world.ledger.next_quiet_class(), world.of.id);
  (void)world.use();
  EXPECT_EQ(world.ledger.next_quiet_class(), std::nullopt);
}

TEST(Ledger, ALookDoubtsWhatMayBeInUseAndReclaimsWhatNothingSpeaksFor) {
  Ledgered world(1, kBytes, Origin::dead);
  world.deaths = 3;
  EXPECT_FALSE(world.ledger.is_examined(world.deaths));
  const std::uint64_t blocks = world.of.shape.blocks;
  Segment& segment = world.of.at(0);
  EXPECT_EQ(segment.examined(), 0u);
  std::vector<BitmapAdd> back;
  ASSERT_EQ(world.of.take_marks(0, world.marks({world.of.block_at(0, 0), world.of.block_at(0, 1)}), world.era, back),
            0u);
  world.safe_era = 12;
  const Block out = *world.take();
  world.of.begin_look(segment);
  EXPECT_TRUE(segment.is_looked_through());
  EXPECT_FALSE(segment.is_doubted(0));
  EXPECT_FALSE(segment.is_doubted(1));
  for (std::uint64_t block = 2; block < blocks; ++block) EXPECT_TRUE(segment.is_doubted(block));
  world.of.believe_marks(segment, world.marks({world.of.block_at(0, 2)}));
  EXPECT_FALSE(segment.is_doubted(2));
  for (std::uint64_t block = 3; block + 3 < blocks; ++block) world.of.believe(segment, block);
  EXPECT_TRUE(world.of.has_doubts(segment));
  // Three are left. An operation of this client frees one of them meanwhile; another client marks one.
  ASSERT_TRUE(world.free(world.of.block_at(0, blocks - 3)));
  EXPECT_FALSE(segment.is_doubted(blocks - 3));
  EXPECT_EQ(world.of.reclaim(segment, world.marks({world.of.block_at(0, blocks - 2)})), 1u);
  EXPECT_FALSE(world.of.has_doubts(segment));
  world.of.full_for(Purpose::addition).found = true;
  world.of.end_look(segment, world.deaths);
  EXPECT_EQ(segment.examined(), world.deaths + 1);
  EXPECT_FALSE(segment.is_looked_through());
  EXPECT_FALSE(world.of.full_for(Purpose::addition).found);
  world.ledger.published(out);
  const Block freed = world.of.block_at(0, blocks - 3), lost = world.of.block_at(0, blocks - 1);
  const Block other = world.of.block_at(0, out == world.of.block_at(0, 0) ? 1 : 0);
  EXPECT_THAT(world.use_all(), testing::UnorderedElementsAre(other, freed, lost));
}

TEST(Ledger, ASegmentOfTheDeadIsUnexaminedHoweverManyWereBefore) {
  Ledgered world;
  world.ledger.all_examined(4);
  EXPECT_TRUE(world.ledger.is_examined(4));
  EXPECT_FALSE(world.ledger.is_examined(5));
  world.ledger.add(world.of, 5, Origin::fresh, 4);
  EXPECT_TRUE(world.ledger.is_examined(4));
  world.ledger.add(world.of, 6, Origin::dead, 4);
  EXPECT_FALSE(world.ledger.is_examined(4));
  EXPECT_FALSE(world.ledger.is_examined(0));
}

TEST(Ledger, TheEmptiestAreEmptiedIfTheOthersHaveRoom) {
  Ledgered world(4);
  const std::uint64_t blocks = world.of.shape.blocks;
  std::map<std::uint64_t, std::uint64_t> leave{{0, blocks}, {1, 5}, {2, 2}, {3, blocks - 1}};  // in use
  for (const Block& block : world.use_all()) {
    const Ledger::Place at = world.place(block);
    if (at.block >= leave[at.first]) ASSERT_TRUE(world.free(block));
  }
  world.safe_era = 12;
  world.of.settle(world.safe_era);
  const auto firsts = [&](std::uint64_t wanted) {
    std::vector<std::uint64_t> firsts;
    for (const Ledger::Sparse& one : world.ledger.choose_sparse(wanted, {})) firsts.push_back(one.first);
    return firsts;
  };
  EXPECT_THAT(firsts(layout::kRun), ElementsAre(2));  // what is in 1 would not have room
  EXPECT_THAT(firsts(world.of.id), IsEmpty());        // it is wanted itself
  Segment& emptied = world.of.at(2);
  const std::uint64_t before = world.of.free_count();
  world.of.begin_emptying(emptied);
  EXPECT_TRUE(world.of.has_emptied());
  EXPECT_EQ(world.of.free_count(), before - (blocks - 2));
  EXPECT_THAT(world.of.in_use(emptied), ElementsAre(world.of.block_at(2, 0).units, world.of.block_at(2, 1).units));
  while (const std::optional<Block> block = world.take()) EXPECT_NE(world.place(*block).first, 2u);
  ASSERT_TRUE(world.free(world.of.block_at(2, 0)));
  ASSERT_TRUE(world.free(world.of.block_at(2, 1)));
  world.of.settle(world.safe_era);
  EXPECT_TRUE(world.of.is_wholly_free(emptied));
  EXPECT_EQ(world.of.free_count(), 0u);
  world.of.end_emptying(emptied);
  EXPECT_EQ(world.of.free_count(), blocks);
  EXPECT_EQ(world.place(*world.take()).first, 2u);
}

TEST(Ledger, WhatIsInTheWayOfARunIsEmptiedFirst) {
  Ledgered world(4);
  const std::uint64_t blocks = world.of.shape.blocks;
  const std::vector<Block> used = world.use_all();
  for (const Block& block : used) {
    const Ledger::Place at = world.place(block);
    if (at.first >= 2 && at.block >= blocks / 2) ASSERT_TRUE(world.free(block));
  }
  world.safe_era = 12;
  world.of.settle(world.safe_era);
  SizeClass& pair = world.ledger.class_for(2 * kSegmentBytes - layout::kRunHeader);
  world.ledger.add(pair, 8, Origin::orphan, 0);
  SizeClass& long_run = world.ledger.class_for(4 * kSegmentBytes - layout::kRunHeader);
  world.ledger.add(long_run, 16, Origin::orphan, 0);
  const auto firsts = [&](std::uint64_t wanted, layout::Stretch cleared) {
    std::vector<std::uint64_t> firsts;
    for (const Ledger::Sparse& one : world.ledger.choose_sparse(wanted, cleared)) firsts.push_back(one.first);
    return firsts;
  };
  EXPECT_THAT(firsts(layout::kRun, {}), ElementsAre(2));
  // A full segment takes the room in the half-full ones.
  EXPECT_THAT(firsts(layout::kRun, {.first = 0, .count = 1}), ElementsAre(0));
  EXPECT_THAT(firsts(world.of.id, {.first = 0, .count = 1}), IsEmpty());
  EXPECT_THAT(firsts(layout::kRun, {.first = 9, .count = 3}), ElementsAre(8, 2));
  EXPECT_THAT(firsts(layout::kRun, {.first = 18, .count = 4}), ElementsAre(2)) << "a run as long has nowhere to go";
  // A block that is about to be published stays.
  EXPECT_THAT(world.of.in_the_way({.first = 0, .count = 4}), ElementsAre(0, 1, 2, 3));
  const Block block = *world.take();
  EXPECT_THAT(world.of.in_the_way({.first = 0, .count = 4}), testing::Not(testing::Contains(world.place(block).first)));
}

TEST(Ledger, CountsWhatItHasFreedLessWhatItHasPublished) {
  Ledgered world;
  const Block one = world.use(), other = world.use();
  const auto each = static_cast<std::int64_t>(world.of.shape.block_bytes);
  EXPECT_EQ(world.ledger.freed(), -2 * each);
  ASSERT_TRUE(world.free(one));
  ASSERT_TRUE(world.free(one));
  EXPECT_EQ(world.ledger.freed(), -each) << "it was free already";
  ASSERT_TRUE(world.ledger.free(world.of.block_at(9, 0).units, kBytes, world.era).has_value()) << "another's";
  EXPECT_EQ(world.ledger.freed(), 0);
  ASSERT_TRUE(world.free(other));
  EXPECT_EQ(world.ledger.freed(), each);
}

// Does random things to a ledger, beside a model that knows the state of each block.
class Walk {
 public:
  explicit Walk(std::uint64_t seed) : random_(seed) {}

  void step() {
    switch (random_.below(12)) {
      case 0:
        if (world_.of.segments().size() < 6) add();
        break;
      case 1:
        era_passes();
        break;
      case 2:
        give_up();
        break;
      case 3:
        marks();
        break;
      case 4:
      case 5:
      case 6:
        settle_out();
        break;
      case 7:
      case 8:
        free();
        break;
      default:
        take();
    }
    check();
  }

 private:
  enum class Is { free, limbo, out, used };
  struct Known {
    Is is = Is::free;
    std::uint64_t era = 0;  // in which it was freed
  };

  void add() {
    const std::uint64_t first = random_.below(kSegments);
    if (world_.of.find(first) != nullptr) return;
    world_.ledger.add(world_.of, first, Origin::fresh, 0);
    for (std::uint64_t block = 0; block < world_.of.shape.blocks; ++block) known_[{first, block}] = {};
  }
  void era_passes() {
    ++world_.era;
    world_.safe_era = world_.era - 1 - random_.below(2);
  }
  void give_up() {
    if (world_.of.segments().size() < 4 || !random_.chance(0.2)) return;
    const std::vector<std::uint64_t> firsts = world_.of.firsts();
    const std::uint64_t first = firsts[random_.below(firsts.size())];
    std::vector<BitmapAdd> marks;
    world_.of.give_up(first, marks);
    std::map<std::uint64_t, std::uint64_t> want;
    std::erase_if(known_, [&](const auto& one) {
      if (one.first.first != first) return false;
      const std::uint64_t block = one.first.second;
      if (one.second.is == Is::free || one.second.is == Is::limbo)
        want[world_.of.bitmap_at(first, block / 64)] |= 1ull << block % 64;
      return true;
    });
    ASSERT_EQ(marks.size(), want.size());
    for (const BitmapAdd& mark : marks) EXPECT_EQ(mark.bits, want[mark.offset]);
  }
  void marks() {
    auto* const one = any(Is::used);
    if (one == nullptr) return;
    std::vector<BitmapAdd> back;
    const auto bitmap = world_.marks({world_.of.block_at(one->first.first, one->first.second)});
    EXPECT_EQ(world_.of.take_marks(one->first.first, bitmap, world_.era, back), 0u);
    EXPECT_EQ(back.size(), 1u);
    one->second = {Is::limbo, world_.era};
  }
  void settle_out() {
    auto* const one = any(Is::out);
    if (one == nullptr) return;
    const Block block = world_.of.block_at(one->first.first, one->first.second);
    if (random_.chance(0.3)) {
      EXPECT_TRUE(world_.ledger.discard(block));
      one->second.is = Is::free;
    } else {
      world_.ledger.published(block);
      one->second.is = Is::used;
    }
  }
  void free() {
    auto* const one = any(Is::used);
    if (one == nullptr) return;
    EXPECT_TRUE(world_.free(world_.of.block_at(one->first.first, one->first.second)));
    one->second = {Is::limbo, world_.era};
  }
  void take() {
    const std::optional<Block> block = world_.take();
    for (auto& [place, known] : known_) {
      if (known.is == Is::limbo && known.era + 1 < world_.safe_era) known.is = Is::free;
    }
    EXPECT_EQ(block.has_value(), any(Is::free) != nullptr);
    if (!block) return;
    const Ledger::Place at = world_.place(*block);
    Known& known = known_.at({at.first, at.block});
    EXPECT_EQ(known.is, Is::free);
    known.is = Is::out;
  }

  std::pair<const std::pair<std::uint64_t, std::uint64_t>, Known>* any(Is is) {
    std::vector<std::pair<const std::pair<std::uint64_t, std::uint64_t>, Known>*> found;
    for (auto& one : known_) {
      if (one.second.is == is) found.push_back(&one);
    }
    return found.empty() ? nullptr : found[random_.below(found.size())];
  }
  void check() const {
    std::uint64_t unused = 0;
    std::map<std::uint64_t, std::uint64_t> out;
    for (const auto& [place, known] : known_) {
      const Segment& segment = world_.of.segments().at(place.first);
      const bool is_unused = known.is == Is::free || known.is == Is::limbo;
      ASSERT_EQ(segment.is_unused(place.second), is_unused);
      unused += is_unused ? 1 : 0;
      out[place.first] += known.is == Is::out ? 1 : 0;
    }
    ASSERT_EQ(world_.of.unused(), unused);
    for (const auto& [first, segment] : world_.of.segments()) ASSERT_EQ(segment.out_count(), out[first]);
    ASSERT_EQ(world_.ledger.anomalies, 0u);
  }

  base::Random random_;
  Ledgered world_{0, 3000};
  std::map<std::pair<std::uint64_t, std::uint64_t>, Known> known_;  // by segment and block
};

TEST(Ledger, KeepsStepWithAModel) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Walk walk(seed);
    for (int i = 0; i < 2000; ++i) {
      walk.step();
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace farpool::heap
