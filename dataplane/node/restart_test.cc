// SPDX-License-Identifier: Apache-2.0
// A memory node over the memory that an earlier one left.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/crc64.h"
#include "heap/heap.h"
#include "layout/directory.h"
#include "layout/private_page.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "layout/superblock.h"
#include "map/shard_map.h"
#include "node/image_test.h"
#include "node/world_test.h"

namespace farpool::node {
namespace {

using base::Code;

TEST(Restart, IsANewIncarnationOfTheSameMemory) {
  TestWorld world;
  EXPECT_TRUE(world.node->facts().memory_node().memory_fresh());
  ASSERT_EQ(world.node->publish(map_with(*world.node, 7), {1, 2}).verdict, Verdict::adopted);
  const std::uint64_t incarnation = world.node->incarnation();
  const layout::PrivateRecord before = world.record();
  EXPECT_EQ(before.epoch, 7u);
  EXPECT_EQ(before.lives, 1u);
  for (std::uint64_t life = 2; life < 6; ++life) {
    world.kill();
    world.begin_life();
    EXPECT_NE(world.node->incarnation(), incarnation);
    EXPECT_FALSE(world.node->facts().memory_node().memory_fresh());
    EXPECT_FALSE(world.node->stats().serving);
    EXPECT_EQ(world.node->stats().lives, life);
    EXPECT_EQ(world.node->stats().defects, 0u);
    const layout::PrivateRecord after = world.record();
    EXPECT_EQ(after.incarnation, world.node->incarnation());
    EXPECT_EQ(after.table_seed, before.table_seed);
    EXPECT_EQ(after.pool_secret, before.pool_secret);
    EXPECT_EQ(layout::parse_superblock(world.memory.span().first(layout::kPage))->incarnation,
              world.node->incarnation());
  }
}

TEST(Restart, GoesOnFromTheEpochItFollowed) {
  TestWorld world;
  ASSERT_EQ(world.node->publish(map_with(*world.node, 7), {1, 2}).verdict, Verdict::adopted);
  world.kill();
  world.begin_life();
  EXPECT_EQ(world.node->publish(map_with(*world.node, 6), {1, 2}).verdict, Verdict::older_epoch);
  EXPECT_EQ(world.node->publish(map_with(*world.node, 8), {1, 3}).verdict, Verdict::conflicting);
  EXPECT_EQ(world.node->publish(map_with(*world.node, 8), {1, 2}).verdict, Verdict::adopted);
  world.kill();
  world.begin_life();
  const auto alone = world.node->stand_alone();
  EXPECT_EQ(alone.verdict, Verdict::adopted);
  EXPECT_EQ(alone.epoch, 9u);
  auto session = world.open(world.client());
  EXPECT_EQ(session->grant().pool_secret, (base::HashSecret{1, 2}));
  EXPECT_EQ(session->grant().table_seed, world.record().table_seed);
  world.close(std::move(session));
}

// A process that knows no map reports the one that an earlier process has kept, and the epoch that its memory has
// followed.
TEST(Restart, TellsOfAMapThatWasKept) {
  TestWorld world;
  std::string kept;
  world.options.keep_map = [&kept](const std::string& map) { kept = map; };
  world.kill();
  world.begin_life();
  EXPECT_FALSE(world.node->facts().memory_node().has_map());
  EXPECT_EQ(world.node->facts().memory_node().recorded_epoch(), 0u);
  const v1alpha1::ShardMap map = map_with(*world.node, 7);
  ASSERT_EQ(world.node->publish(map, {1, 2}).verdict, Verdict::adopted);
  for (const std::string& what : {kept, std::string("no map at all"), std::string()}) {
    world.options.kept_map = what;
    world.kill();
    world.begin_life();
    const v1alpha1::Facts facts = world.node->facts();
    EXPECT_EQ(facts.epoch(), 0u) << "it follows none";
    EXPECT_FALSE(facts.ready());
    EXPECT_EQ(facts.memory_node().recorded_epoch(), 7u);
    EXPECT_EQ(facts.memory_node().has_map(), what == kept);
    EXPECT_EQ(facts.memory_node().map().SerializeAsString(), what == kept ? map.SerializeAsString() : "");
  }
  world.options.kept_map = kept;
  world.kill();
  world.options.pool_uid = "another";
  world.memory = std::move(*Memory::anonymous(world.memory.span().size()));
  world.begin_life();
  EXPECT_FALSE(world.node->facts().memory_node().has_map()) << "of another pool";
}

// An operator whose API server came back from an old backup sends a new life an old map. The map that was kept
// contradicts it.
struct Kept {
  Kept(std::uint64_t epoch, std::uint64_t move) {
    world.options.keep_map = [this](const std::string& map) { world.options.kept_map = map; };
    restart();
    before = map_of(epoch, move);
    EXPECT_EQ(publish(before).verdict, Verdict::adopted);
  }
  void restart() {
    world.kill();
    world.begin_life();
  }
  v1alpha1::ShardMap map_of(std::uint64_t epoch, std::uint64_t move) const {
    v1alpha1::ShardMap map = map_with(*world.node, epoch);
    map.set_move(move);
    return map;
  }
  MemoryNode::Published publish(const v1alpha1::ShardMap& map) { return world.node->publish(map, {1, 2}); }
  // The refusal names what the node holds, what it received, and what to do.
  void expect_refused(const v1alpha1::ShardMap& map, Verdict verdict, const std::vector<const char*>& says) {
    const std::string kept = world.options.kept_map;
    const v1alpha1::Facts facts = world.node->facts();
    const layout::PrivateRecord record = world.record();
    const MemoryNode::Published refused = publish(map);
    EXPECT_EQ(refused.verdict, verdict) << refused.message;
    for (const char* what : says) EXPECT_NE(refused.message.find(what), std::string::npos) << refused.message;
    EXPECT_NE(world.log.back().find(refused.message), std::string::npos);
    EXPECT_EQ(world.options.kept_map, kept) << "a map that is refused is not kept";
    EXPECT_EQ(world.node->facts().SerializeAsString(), facts.SerializeAsString());
    EXPECT_EQ(world.record(), record);
  }

  TestWorld world;
  v1alpha1::ShardMap before;
};

TEST(Restart, RefusesWhatIsBeforeTheMapThatWasKept) {
  Kept kept(7, 3);
  const auto refuses = [&kept](const char* holds) {
    kept.expect_refused(kept.map_of(6, 3), Verdict::older_epoch,
                        {holds, "epoch 7, move 3", "receives epoch 6, move 3", "Make the next epoch from the map in"});
    // The operator learned of the epoch from its agent, but knows no later move than its backup's.
    kept.expect_refused(kept.map_of(8, 2), Verdict::conflicting,
                        {holds, "epoch 7, move 3", "receives epoch 8, move 2", "with its move"});
    kept.expect_refused(kept.map_of(8, 0), Verdict::conflicting, {holds, "receives epoch 8, move 0"});
  };
  refuses("follows");
  for (int life = 0; life < 3; ++life) {
    kept.restart();
    refuses("has kept a map with its memory");
    kept.expect_refused(kept.map_of(7, 3), Verdict::conflicting, {"the same epoch with different content", "epoch 7"});
  }
  // The same map is accepted, and so is a map with the next epoch and that move.
  EXPECT_EQ(kept.publish(kept.before).verdict, Verdict::adopted);
  EXPECT_FALSE(kept.world.node->facts().ready()) << "it names an earlier life";
  EXPECT_EQ(kept.publish(kept.map_of(8, 3)).verdict, Verdict::adopted);
  EXPECT_TRUE(kept.world.node->facts().ready());
  kept.restart();
  EXPECT_EQ(kept.publish(kept.map_of(9, 4)).verdict, Verdict::adopted);
}

// A process may be killed between the two phases: its promise binds the next process.
TEST(Restart, AMapThatWasPreparedAndNotFollowedCounts) {
  Kept kept(7, 3);
  ASSERT_EQ(kept.world.node->prepare(kept.map_of(9, 4), {1, 2}).verdict, Verdict::adopted);
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(kept.world.record().epoch, 7u);
    EXPECT_EQ(kept.world.node->facts().memory_node().map().epoch(), 9u);
    kept.expect_refused(kept.map_of(8, 4), Verdict::older_epoch, {"has kept a map", "epoch 9, move 4"});
    kept.expect_refused(kept.map_of(10, 3), Verdict::conflicting, {"has kept a map", "epoch 9, move 4"});
    kept.restart();
  }
  EXPECT_EQ(kept.world.node->stand_alone().epoch, 10u);
  EXPECT_EQ(kept.world.node->facts().memory_node().map().move(), 4u);
}

// Without the file, the memory itself knows its epoch, and the move in which keys have left it.
TEST(Restart, AMemoryThatLostItsMapKnowsEpochAndMove) {
  Kept kept(7, 3);
  for (const char* left : {"", "no map at all"}) {
    kept.world.kill();
    kept.world.options.kept_map = left;
    const layout::Geometry geometry = kept.world.record().geometry;
    base::store(
        kept.world.memory.span().data() + geometry.at(layout::kDirectory).offset + layout::move_offset(geometry.tables),
        std::uint64_t{3});
    kept.world.begin_life();
    EXPECT_EQ(std::ranges::count_if(kept.world.log,
                                    [](const std::string& line) {
                                      return line.find("earlier process has kept is left alone") != std::string::npos;
                                    }),
              *left == '\0' ? 0 : 1);
    kept.expect_refused(kept.map_of(6, 3), Verdict::older_epoch,
                        {"has lost its map, of epoch 7, move 3", "Restore the newest ShardMap"});
    kept.expect_refused(kept.map_of(8, 2), Verdict::conflicting, {"has lost its map, of epoch 7, move 3"});
  }
  EXPECT_EQ(kept.publish(kept.map_of(8, 3)).verdict, Verdict::adopted);
}

// A memory that has to begin empty beside the map of the one before: that map is still the newest that this node knows.
TEST(Restart, AnEmptyMemoryBesideAMapThatWasKept) {
  Kept kept(7, 3);
  kept.world.kill();
  kept.world.memory = std::move(*Memory::anonymous(kept.world.memory.span().size()));
  kept.world.begin_life();
  EXPECT_TRUE(kept.world.node->facts().memory_node().memory_fresh());
  kept.expect_refused(kept.map_of(6, 3), Verdict::older_epoch, {"epoch 7, move 3"});
  kept.expect_refused(kept.map_of(8, 2), Verdict::conflicting, {"epoch 7, move 3"});
  EXPECT_EQ(kept.world.node->stand_alone().epoch, 8u);
}

// A memory that begins empty and receives the map of its node's earlier life has an epoch, and no keys. When the
// operator hears of a later life, it must not take this memory for the earlier one's.
TEST(Restart, AMemoryThatNoMapHasNamedIsEmptyInLaterLivesToo) {
  TestWorld world;
  const v1alpha1::ShardMap of_earlier_life = map_with(*world.node, 7);
  ASSERT_EQ(world.node->publish(of_earlier_life, {1, 2}).verdict, Verdict::adopted);
  world.kill();
  world.memory = std::move(*Memory::anonymous(world.memory.span().size()));
  world.begin_life();
  EXPECT_TRUE(world.node->facts().memory_node().memory_fresh());
  ASSERT_EQ(world.node->publish(of_earlier_life, {1, 2}).verdict, Verdict::adopted);
  for (int life = 0; life < 2; ++life) {
    world.kill();
    world.begin_life();
    EXPECT_TRUE(world.node->facts().memory_node().memory_fresh());
    EXPECT_EQ(world.node->facts().memory_node().recorded_epoch(), 7u);
  }
  ASSERT_EQ(world.node->publish(map_with(*world.node, 8), {1, 2}).verdict, Verdict::adopted);
  world.kill();
  world.begin_life();
  EXPECT_FALSE(world.node->facts().memory_node().memory_fresh());
  // A life between two maps follows the old one, which names its predecessor: the keys are there.
  ASSERT_EQ(world.node->publish(map_with(*world.node, 9), {1, 2}).verdict, Verdict::adopted);
  world.kill();
  world.begin_life();
  EXPECT_FALSE(world.node->facts().memory_node().memory_fresh());
}

TEST(Restart, ASuperblockThatWasBeingWrittenIsWrittenAgain) {
  TestWorld world;
  world.kill();
  const base::MutableBytes superblock = world.memory.span().first(layout::kPage);
  std::fill(superblock.begin() + 16, superblock.begin() + 24, std::byte{0x77});
  ASSERT_FALSE(layout::parse_superblock(superblock).ok());
  world.begin_life();
  EXPECT_TRUE(layout::parse_superblock(superblock).ok());
}

TEST(Restart, WhatCannotBeTakenUpIsLeftAsItIs) {
  struct Case {
    const char* says;
    std::function<void(TestWorld&)> change;
    Code code = Code::corrupt;
  };
  // Other flags of the earlier process are no damage: no memory may begin empty because of them.
  const Case cases[] = {
      {"another pool", [](TestWorld& world) { world.options.pool_uid = "other"; }},
      {"with other flags: --entries-per-row was 8 and is 4; give the earlier flags again",
       [](TestWorld& world) { world.options.geometry.entries_per_row = 4; }, Code::invalid_argument},
      {"with other flags: --max-sessions was 4 and is 8;",
       [](TestWorld& world) { world.options.geometry.max_sessions = 8; }, Code::invalid_argument},
      {"with other flags: --table-percent is another",
       [](TestWorld& world) { world.options.geometry.table_percent = 40; }, Code::invalid_argument},
      {"with other flags: --entry-bytes was 16 and is 32, --max-sessions was 4 and is 2;",
       [](TestWorld& world) {
         world.options.geometry.entry_bytes = 32;
         world.options.geometry.max_sessions = 2;
       },
       Code::invalid_argument},
      {"with other flags: --protocol was rcuckoo and is race; give",
       [](TestWorld& world) { world.options.geometry.protocol = layout::Protocol::race; }, Code::invalid_argument},
      {"with other flags: --rows-per-lock was ", [](TestWorld& world) { world.options.geometry.rows_per_lock = 2; },
       Code::invalid_argument},
      {"with other flags: none that can be named",
       [](TestWorld& world) {
         layout::PrivateRecord record = world.record();
         --record.geometry.segments;
         record.geometry.region[layout::kHeap].bytes -= record.geometry.segment_bytes;
         layout::write_private_page(world.memory.span().last(layout::kPage), record);
       },
       Code::invalid_argument},
      {"private page",
       [](TestWorld& world) {
         world.memory.span().last(layout::kPage)[40] ^= std::byte{1};
         world.memory.span().last(layout::kPage / 2)[40] ^= std::byte{1};
       }},
      {"format 8, and this program reads format 7: run a version of farpool that reads format 8, or remove the memory",
       [](TestWorld& world) {
         const base::MutableBytes page = world.memory.span().last(layout::kPage);
         for (const std::size_t at : {std::size_t{0}, layout::kPage / 2}) {
           const base::MutableBytes record = page.subspan(at, layout::kPage / 2);
           base::store(record.data() + 16, layout::kVersion + 1);
           base::store(record.data() + 64, base::crc64(record.first(64)));
         }
       },
       Code::invalid_argument},
      {"superblock contradicts",
       [](TestWorld& world) {
         const auto page = layout::write_superblock({.incarnation = 1, .pool = 2, .geometry = world.node->geometry()});
         std::copy(page.begin(), page.end(), world.memory.span().begin());
       }},
  };
  for (const Case& each : cases) {
    TestWorld world;
    world.node->stand_alone();
    each.change(world);
    world.kill();
    const std::vector<std::byte> before(world.memory.span().begin(), world.memory.span().end());
    const base::Status status = world.try_begin_life();
    EXPECT_EQ(status.code(), each.code) << each.says;
    EXPECT_NE(status.message().find(each.says), std::string::npos) << status.message();
    EXPECT_TRUE(std::equal(before.begin(), before.end(), world.memory.span().begin())) << each.says;
  }
}

// The number of tables that a memory begins with is used when it is formatted, and never again.
TEST(Restart, WhatIsTakenUpKeepsItsTables) {
  TestWorld world;
  world.kill();
  world.memory = std::move(*Memory::anonymous(world.memory.span().size()));
  world.options.geometry.protocol = layout::Protocol::race;
  world.options.geometry.tables = 4;
  world.begin_life();
  const auto directory = [&] {
    const layout::Span& at = world.geometry().at(layout::kDirectory);
    const base::Bytes bytes = base::Bytes(world.memory.span()).subspan(at.offset, at.bytes);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const std::vector<std::byte> before = directory();
  world.kill();
  world.options.initial_tables = 4;
  world.begin_life();
  EXPECT_EQ(world.node->stats().lives, 2u);
  EXPECT_EQ(directory(), before);
  world.kill();
  world.options.geometry.tables = 8;
  const base::Status other = world.try_begin_life();
  EXPECT_NE(other.message().find("with other flags: --tables was 4 and is 8;"), std::string::npos) << other.message();
}

// Scans pass over rows whose mark is zero: a mark is cleared only if its rows are certain to be empty.
TEST(Restart, MarksOfEmptyRowsGoIfNothingIsDamaged) {
  for (const bool damaged : {false, true}) {
    TestWorld world;
    const layout::Geometry geometry = world.geometry();
    world.kill();
    std::byte* mark = world.memory.span().data() + geometry.at(layout::kTable).offset + geometry.mark_offset(0);
    base::store(mark, std::uint64_t{1});
    if (damaged) {
      base::store(world.memory.span().data() + geometry.at(layout::kHeap).offset,
                  layout::SegmentHeader{.owner = 5, .size_class = 200, .run = 1});
    }
    world.begin_life();
    EXPECT_EQ(world.node->stats().defects, damaged ? 1u : 0u);
    EXPECT_EQ(base::load<std::uint64_t>(mark), damaged ? 1u : 0u);
  }
}

// The sum of the slots' counters is the number of keys. The node corrects it in a slot that nobody holds, and leaves a
// right sum alone.
TEST(Restart, CountersThatDoNotAddUpAreSetRight) {
  for (const std::uint64_t keys : {0u, 5u}) {
    TestWorld world;
    const auto slot = [&](std::uint64_t index) {
      return world.memory.span().data() + world.geometry().at(layout::kSlots).offset +
             index * sizeof(layout::OperationSlot);
    };
    std::byte* const first = slot(0);
    std::byte* const second = slot(1);
    const std::uint64_t all = world.geometry().max_sessions * world.geometry().slots_per_session;
    world.kill();
    base::store(first, layout::OperationSlot{.keys = 3, .bytes = 30});
    base::store(second, layout::OperationSlot{.keys = keys - 3, .bytes = 10 * keys - 30});
    world.begin_life();
    std::uint64_t sum = 0, bytes = 0;
    for (std::uint64_t i = 0; i < all; ++i) {
      sum += world.slot(i).keys;
      bytes += world.slot(i).bytes;
    }
    EXPECT_EQ(sum, 0u);
    EXPECT_EQ(bytes, 0u);
    EXPECT_EQ(world.node->stats().keys, 0u);
    EXPECT_EQ(world.node->stats().bytes, 0u);
    EXPECT_EQ(
        std::ranges::any_of(world.log, [](const std::string& line) { return line.find("set right") != line.npos; }),
        keys != 0);
    if (keys == 0) EXPECT_EQ(world.slot(0).keys, 3u);
  }
}

// A slot in quarantine keeps its counters: the correction goes into one that nobody holds.
TEST(Restart, CountersAreSetRightInASlotThatNobodyHolds) {
  TestWorld world;
  world.kill();
  const layout::Span slots = layout::plan_geometry([&] {
                               layout::GeometryRequest request = world.options.geometry;
                               request.memory_bytes = world.memory.span().size();
                               return request;
                             }())
                                 ->at(layout::kSlots);
  std::byte* const first = world.memory.span().data() + slots.offset;
  base::store(first, layout::OperationSlot{.keys = 7, .done = layout::OperationSlot::kQuarantined, .holder = 5});
  world.begin_life();
  EXPECT_EQ(world.slot(0).keys, 7u);
  EXPECT_EQ(world.slot(0).holder, 5u);
  EXPECT_EQ(world.slot(1).keys, static_cast<std::uint64_t>(-7));
  EXPECT_EQ(world.node->stats().keys, 0u);
  // Here it is of a session place that nobody had before.
  world.kill();
  for (std::uint64_t i = 1; i < 4; ++i) {
    base::store(first + i * sizeof(layout::OperationSlot),
                layout::OperationSlot{.keys = 7, .done = layout::OperationSlot::kQuarantined, .holder = 5});
  }
  world.begin_life();
  EXPECT_EQ(world.slot(4).keys, static_cast<std::uint64_t>(-28));
  EXPECT_EQ(world.node->stats().keys, 0u);
}

TEST(Restart, SaysWhatItHasRepaired) {
  TestWorld world;
  const std::uint64_t slots = world.geometry().at(layout::kSlots).offset;
  EXPECT_EQ(world.node->stats().repaired, 0u);
  world.kill();
  base::store(world.memory.span().data() + slots, layout::OperationSlot{.holder = 5});
  world.begin_life();
  EXPECT_EQ(world.node->stats().repaired, 1u);
  EXPECT_TRUE(std::ranges::any_of(world.log, [](const std::string& line) {
    return line.find("found 1 operations half done") != std::string::npos;
  }));
  world.log.clear();
  world.kill();
  world.begin_life();
  EXPECT_EQ(world.node->stats().repaired, 0u);
}

// Clients repair the slots of all session places that were ever admitted: a life that forgets some leaves their locks
// for ever.
TEST(Restart, ThePlacesOfEarlierSessionsAreKnown) {
  TestWorld world;
  const std::uint64_t index = 2 * world.geometry().slots_per_session + 1;
  std::byte* const slot =
      world.memory.span().data() + world.geometry().at(layout::kSlots).offset + index * sizeof(layout::OperationSlot);
  world.kill();
  base::store(slot, layout::OperationSlot{.sequence = 9});
  world.begin_life();
  world.node->stand_alone();
  auto session = world.open(world.client());
  world.run(session->tick_now(world.network.now() + kSecond));
  EXPECT_EQ(session->places(), 3u);
  world.close(std::move(session));
}

TEST(Restart, SaysHowFarTheStartHasCome) {
  TestWorld world;
  struct Call {
    std::string step;
    std::uint64_t done;
  };
  std::vector<Call> calls;
  Nanos each_takes = 0;
  world.options.progress = [&](std::string_view step, std::uint64_t done, std::uint64_t of) {
    EXPECT_LE(done, of);
    calls.push_back({std::string(step), done});
    if (each_takes != 0) world.pass(each_takes);
  };
  const auto lines = [&world] {
    return std::ranges::count_if(world.log, [](const std::string& line) {
      return line.find("looks through the memory that it found: ") != std::string::npos;
    });
  };
  world.kill();
  world.memory = std::move(*Memory::anonymous(world.memory.span().size()));
  world.begin_life();
  ASSERT_FALSE(calls.empty());
  EXPECT_EQ(calls.front().done, 0u);
  for (const Call& call : calls) EXPECT_EQ(call.step, "formats its table");
  calls.clear();
  world.kill();
  world.begin_life();
  const auto looks = [&calls] {
    return std::ranges::count(calls, "looks through the memory that it found", &Call::step);
  };
  EXPECT_GT(looks(), 0);
  EXPECT_EQ(lines(), 0) << "it took no time";
  calls.clear();
  each_takes = 3 * kSecond;
  world.kill();
  world.begin_life();
  EXPECT_EQ(lines(), looks() / 2) << "a line every five seconds";
  EXPECT_GE(world.node->stats().verification, looks() * each_takes);
}

// A defect is worth a line, up to a number of them. What a death explains is not.
TEST(Restart, TheFirstDefectsAreToldOf) {
  TestWorld world(1, 16 << 20);
  const layout::Geometry geometry = world.geometry();
  world.kill();
  ASSERT_GE(geometry.segments, 26u);
  for (std::uint64_t i = 0; i < 26; ++i) {
    const layout::SegmentHeader damaged{.owner = 5, .size_class = 200, .run = 1}, lost{.size_class = 3, .run = 1};
    base::store(world.memory.span().data() + geometry.at(layout::kHeap).offset + i * geometry.segment_bytes,
                i == 0 ? lost : damaged);
  }
  world.begin_life();
  EXPECT_EQ(world.node->stats().defects, 25u);
  const auto lines = [&world](const char* what) {
    return std::ranges::count_if(world.log,
                                 [what](const std::string& line) { return line.find(what) != std::string::npos; });
  };
  EXPECT_EQ(lines("cannot be"), 20);
  EXPECT_EQ(lines("neither in use nor marked free"), 0);
  EXPECT_EQ(lines("25 defects"), 1);
}

// Scans pass over rows whose mark is zero.
TEST(Restart, MarksOfRowsWithKeysAreSet) {
  TestImage image;
  TestWorld world;
  world.kill();
  world.options.geometry = TestImage::kGeometry;
  world.memory = std::move(*Memory::anonymous(image.bytes().size()));
  std::ranges::copy(image.bytes(), world.memory.span().begin());
  world.begin_life();
  EXPECT_EQ(world.node->stats().defects, 0u);
  EXPECT_EQ(world.node->stats().keys, 27u);
  const layout::Geometry& geometry = world.geometry();
  for (const char* key : {"small0", "large0", "huge"}) {
    const std::uint64_t mark = geometry.mark_of(image.place(key).row);
    EXPECT_NE(base::load<std::uint64_t>(world.memory.span().data() + geometry.at(layout::kTable).offset +
                                        geometry.mark_offset(mark)),
              0u)
        << key;
  }
}

struct Owner {
  std::unique_ptr<Session> session;
  std::unique_ptr<heap::Heap> heap;
  std::vector<heap::Block> blocks;
};

task::Task<void> fill(heap::Heap& heap, fabric::Port& port, std::uint64_t bytes, std::vector<heap::Block>& into) {
  fabric::Cost cost;
  for (;;) {
    auto block = co_await heap.allocate(bytes, heap::Purpose::addition, port.now() + 60 * kSecond, cost);
    if (!block.ok()) co_return;
    into.push_back(*block);
  }
}

// Blocks of every kind, with anything in them, and no entry that points to one.
TEST(Restart, WhatNoEntryPointsToIsFree) {
  for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{20'000}, std::uint64_t{600'000}}) {
    TestWorld world;
    world.node->stand_alone();
    std::size_t most = 0;
    for (int life = 0; life < 3; ++life) {
      SimPort& port = world.client();
      Owner owner{.session = world.open(port), .heap = nullptr, .blocks = {}};
      owner.heap = std::make_unique<heap::Heap>(*owner.session, world.geometry().at(layout::kHeap).bytes,
                                                world.geometry().segment_bytes);
      world.run(fill(*owner.heap, port, bytes, owner.blocks));
      ASSERT_FALSE(owner.blocks.empty());
      if (life == 0) most = owner.blocks.size();
      EXPECT_EQ(owner.blocks.size(), most) << bytes << ", life " << life;
      EXPECT_EQ(world.node->stats().segments.damaged, 0u);
      // Where a later segment of a run would have its header, a value has any bytes.
      for (const heap::Block& block : owner.blocks) {
        std::byte* at =
            world.memory.span().data() + world.geometry().at(layout::kHeap).offset + layout::block_offset(block.units);
        std::fill(at, at + block.bytes, std::byte{0x01});
      }
      // Some are given back, and rest when the node dies.
      fabric::Cost cost;
      for (std::size_t i = 0; i < owner.blocks.size(); i += 2) owner.heap->free(owner.blocks[i].units, bytes, cost);
      if (life == 1) world.run(owner.heap->release(world.network.now() + kSecond));
      world.kill();
      world.begin_life();
      ASSERT_EQ(world.node->stand_alone().verdict, Verdict::adopted);
      EXPECT_EQ(world.node->stats().segments, (SegmentLedger::Counts{.free = world.geometry().segments}));
      world.close(std::move(owner.session));
    }
  }
}

task::Task<void> take_bit(Session& session, fabric::Port& port, std::uint64_t& old) {
  fabric::Cost cost;
  const std::array chain{fabric::Op::masked_cas({layout::kLocks, 8}, old, 0, 4, 4, 4)};
  EXPECT_EQ((co_await session.post(chain, port.now() + kSecond, cost)).fate, fabric::Fate::done);
}

TEST(Restart, LocksInTheNicAreThisLifesAlone) {
  TestWorld world;
  world.options.locks = LockPlacement::device_required;
  world.wire.set_device_bytes(1 << 16);
  const layout::Span locks = world.geometry().at(layout::kLocks);
  const auto in_memory = [&] { return base::load<std::uint64_t>(world.memory.span().data() + locks.offset + 8); };
  const auto in_nic = [&] { return base::load<std::uint64_t>(world.wire.device_words().data() + 8); };
  for (int life = 0; life < 2; ++life) {
    world.kill();
    world.begin_life();
    EXPECT_EQ(world.node->entry().lock_region().placement(), v1alpha1::LockRegion::PLACEMENT_DEVICE_MEMORY);
    EXPECT_EQ(world.node->facts().memory_node().lock_region().placement(),
              v1alpha1::LockRegion::PLACEMENT_DEVICE_MEMORY);
    EXPECT_TRUE(world.node->stats().locks_in_device);
    ASSERT_EQ(world.wire.device_words().size(), locks.bytes);
    ASSERT_EQ(world.node->stand_alone().verdict, Verdict::adopted);
    SimPort& port = world.client();
    auto session = world.open(port);
    std::uint64_t old = ~0ull;
    world.run(take_bit(*session, port, old));
    EXPECT_EQ(old, 0u) << "a lock of the life before";
    EXPECT_EQ(in_nic(), 4u);
    EXPECT_EQ(in_memory(), 0u);
    world.close(std::move(session));
  }
  // The map must name what was granted.
  auto map = map_with(*world.node, 99);
  map.mutable_nodes(0)->mutable_lock_region()->set_placement(v1alpha1::LockRegion::PLACEMENT_HOST_MEMORY);
  EXPECT_EQ(world.node->publish(map, world.record().pool_secret).verdict, Verdict::invalid);
}

// A NIC's memory is asked for only where it is wanted, and where there are locks.
TEST(Restart, LocksLieInTheNicOnlyIfTheyShallAndThereAreSome) {
  TestWorld world;
  world.wire.set_device_bytes(1 << 16);
  world.kill();
  world.options.locks = LockPlacement::host;
  world.begin_life();
  EXPECT_FALSE(world.node->stats().locks_in_device);
  world.kill();
  world.wire.set_device_bytes(0);
  world.memory = std::move(*Memory::anonymous(world.memory.span().size()));
  world.options.geometry.protocol = layout::Protocol::race;
  world.options.locks = LockPlacement::device_required;
  world.begin_life();
  EXPECT_FALSE(world.node->stats().locks_in_device);
}

TEST(Restart, ANicThatIsTooSmallIsToldOfOrRefused) {
  TestWorld world;
  world.wire.set_device_bytes(8);
  world.options.locks = LockPlacement::device_preferred;
  world.kill();
  world.begin_life();
  EXPECT_EQ(world.node->entry().lock_region().placement(), v1alpha1::LockRegion::PLACEMENT_HOST_MEMORY);
  EXPECT_FALSE(world.node->stats().locks_in_device);
  EXPECT_TRUE(std::ranges::any_of(world.log, [](const std::string& line) {
    return line.find("lie in host memory, as the NIC's cannot take them: the NIC has 8 bytes") != std::string::npos;
  }));
  world.options.locks = LockPlacement::device_required;
  world.kill();
  const base::Status status = world.try_begin_life();
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find("have to lie in the NIC's memory"), std::string::npos) << status.message();
  // Another life that asks for less can still take the memory up.
  world.options.locks = LockPlacement::host;
  world.begin_life();
  EXPECT_EQ(world.node->stats().defects, 0u);
}

TEST(Restart, ADamagedHeaderIsSetAsideAndToldOf) {
  TestWorld world;
  const layout::Geometry geometry = world.geometry();
  world.kill();
  layout::SegmentHeader header{.owner = 5, .size_class = 200, .run = 1};
  base::store(world.memory.span().data() + geometry.at(layout::kHeap).offset + 2 * geometry.segment_bytes, header);
  world.begin_life();
  EXPECT_EQ(world.node->stats().defects, 1u);
  EXPECT_EQ(world.node->stats().segments, (SegmentLedger::Counts{.free = world.geometry().segments - 1, .damaged = 1}));
  EXPECT_NE(world.node->facts().message().find("epoch"), std::string::npos);
  world.node->stand_alone();
  EXPECT_NE(world.node->facts().message().find("1 defects"), std::string::npos);
  EXPECT_TRUE(std::any_of(world.log.begin(), world.log.end(), [](const std::string& line) {
    return line.find("the header of segment 2 cannot be") != std::string::npos;
  }));
}

}  // namespace
}  // namespace farpool::node
