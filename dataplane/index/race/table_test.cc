// SPDX-License-Identifier: Apache-2.0
#include "index/race/table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "directory/directory.h"
#include "index/race/layout.h"
#include "index/race/locate.h"
#include "index/race/verify.h"
#include "layout/extent.h"
#include "layout/operation_slot.h"
#include "node/audit.h"
#include "node/memory_node.h"
#include "sim/housekeeping.h"
#include "sim/survey.h"
#include "sim/world.h"

namespace farpool::race {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using fabric::Cost;
using sim::Client;
using sim::World;
using task::Task;

constexpr Nanos kPatience = 5 * base::kSecond;

sim::WorldOptions options_of(std::uint64_t table_percent = 1) {
  sim::WorldOptions options;
  options.geometry = {.memory_bytes = 16 << 20,
                      .table_percent = table_percent,
                      .max_sessions = 8,
                      .slots_per_session = 2,
                      .protocol = layout::Protocol::race};
  return options;
}

template <class T>
Task<void> into(Task<Result<T>> task, std::optional<Result<T>>* result) {
  result->emplace(co_await std::move(task));
}
template <class T>
Result<T> run(World& world, Client& client, Task<Result<T>> task) {
  std::optional<Result<T>> result;
  world.run(client, into(std::move(task), &result));
  if (!result) return base::Status(Code::internal, "the operation did not come to an end");
  return *result;
}

// Their slots are more than one chain can carry.
TEST(RaceTableOfManySessions, IsCountedAndRepaired) {
  sim::WorldOptions options = options_of();
  options.geometry.memory_bytes = 64 << 20;
  options.geometry.max_sessions = 480;
  options.geometry.slots_per_session = 64;
  World world(options);
  ASSERT_GT(world.geometry().at(layout::kSlots).bytes, 2 * fabric::kMaxChainBytes);
  Cost cost;
  Client& client = world.connect("a");
  const auto deadline = [&] { return client.port().now() + kPatience; };
  for (int i = 1; i < 479; ++i) world.connect("b" + std::to_string(i));
  Client& victim = world.connect("victim");
  EXPECT_EQ(*run(world, victim, victim.table().insert("key", "value", deadline(), cost)), true);
  const auto totals = run(world, client, client.table().count(deadline(), cost));
  ASSERT_TRUE(totals.ok()) << totals.status().message();
  EXPECT_EQ(totals->keys, 1u);
  const auto swept = run(world, client, client.table().sweep(deadline(), cost));
  ASSERT_TRUE(swept.ok()) << swept.status().message();
  EXPECT_EQ(swept->left, 0u) << swept->trouble;
}

struct RaceTable : ::testing::Test {
  World world{options_of()};
  Client& client = world.connect("a");
  Cost cost;

  Nanos deadline() { return client.port().now() + kPatience; }
  index::Table& table() { return client.table(); }
  std::optional<std::string> get(const std::string& key, Client* by = nullptr) {
    Client& who = by == nullptr ? client : *by;
    auto value = run(world, who, who.table().lookup(key, deadline(), cost));
    EXPECT_TRUE(value.ok()) << value.status().message();
    return value.ok() ? *value : std::nullopt;
  }
  bool insert(const std::string& key, const std::string& value) {
    return good(table().insert(key, value, deadline(), cost));
  }
  bool update(const std::string& key, const std::string& value) {
    return good(table().update(key, value, deadline(), cost));
  }
  bool put(const std::string& key, const std::string& value) { return good(table().put(key, value, deadline(), cost)); }
  bool remove(const std::string& key) { return good(table().remove(key, deadline(), cost)); }
  bool good(Task<Result<bool>> task) {
    const auto result = run(world, client, std::move(task));
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() && *result;
  }
  void in_order() {
    ASSERT_TRUE(world.quiesce());
    EXPECT_EQ(sim::survey(world).report(), "");
  }
};

// The key hash is the table's, so a test can write a slot where a client looks for it.
struct RaceSlots : RaceTable {
  static Task<void> cas_into(Client* client, std::uint64_t offset, std::uint64_t compare, std::uint64_t swap,
                             std::uint64_t* before) {
    Cost cost;
    const std::array chain{fabric::Op::cas({layout::kTable, offset}, *before, compare, swap)};
    (void)co_await client->session().post(chain, client->port().now() + base::kSecond, cost);
  }
  std::uint64_t cas(std::uint64_t offset, std::uint64_t compare, std::uint64_t swap) {
    std::uint64_t before = 0;
    world.run(client, cas_into(&client, offset, compare, swap, &before));
    return before;
  }
  Slot slot_at(std::uint64_t offset) const {
    return Slot(base::load<std::uint64_t>(world.region(layout::kTable).data() + offset));
  }
  // Returns the place of a key's committed or tentative slot.
  std::optional<std::uint64_t> find(const std::string& key) const {
    const std::uint64_t hash = base::keyed_hash(world.table_seed(), base::bytes_of(key));
    for (const Place& place : locate(hash, world.geometry().rows)) {
      for (std::uint64_t i = 0; i < kCombinedSlots; ++i) {
        const Slot slot = slot_at(place.slot_offset(i));
        if (slot.empty() || slot.print() != print_of(hash)) continue;
        return place.slot_offset(i);
      }
    }
    return std::nullopt;
  }
  // Makes the key's slot tentative, as if its inserter had died before it committed.
  std::uint64_t leave_tentative(const std::string& key) {
    EXPECT_TRUE(insert(key, "of the dead"));
    const std::uint64_t offset = find(key).value();
    const Slot slot = slot_at(offset);
    EXPECT_EQ(cas(offset, slot.word(), slot.as(Slot::State::tentative).word()), slot.word());
    return offset;
  }
};

TEST_F(RaceSlots, NobodyHeedsATentativeSlot) {
  const std::uint64_t offset = leave_tentative("k");
  EXPECT_EQ(get("k"), std::nullopt);
  EXPECT_FALSE(update("k", "1"));
  EXPECT_FALSE(remove("k"));
  EXPECT_TRUE(slot_at(offset).tentative());
}

TEST_F(RaceSlots, AnInsertTakesARivalAwayThatStands) {
  const std::uint64_t offset = leave_tentative("k");
  Client& other = world.connect("b");
  const Nanos begun = world.network().now();
  const auto inserted = run(world, other, other.table().insert("k", "mine", deadline(), cost));
  ASSERT_TRUE(inserted.ok()) << inserted.status().message();
  EXPECT_TRUE(*inserted);
  EXPECT_EQ(get("k"), "mine");
  EXPECT_GT(other.table().marks().rivals, 0u);
  EXPECT_EQ(other.table().marks().removed, 1u);
  EXPECT_TRUE(slot_at(offset).empty());
  EXPECT_LT(world.network().now() - begun, options_of().failure_timeout / 4);
}

// All slots of a key's buckets are taken, one of them by an insert that never ends.
TEST_F(RaceSlots, AFullBucketGivesUpATentativeSlot) {
  const std::string wanted = "wanted";
  const Places places = locate(base::keyed_hash(world.table_seed(), base::bytes_of(wanted)), world.geometry().rows);
  std::vector<std::uint64_t> filled;
  ASSERT_TRUE(insert("filler", "f"));
  const Slot filler = slot_at(find("filler").value());
  const std::uint64_t print = (print_of(base::keyed_hash(world.table_seed(), base::bytes_of(wanted))) + 1) & 0xff;
  const Slot taken = Slot::of(print, filler.block(), 64, Slot::State::committed);
  for (const Place& place : places) {
    for (std::uint64_t i = 0; i < kCombinedSlots; ++i) EXPECT_EQ(cas(place.slot_offset(i), 0, taken.word()), 0u);
  }
  const auto full = run(world, client, table().insert(wanted, "v", deadline(), cost));
  EXPECT_EQ(full.code(), Code::out_of_memory);
  const std::uint64_t offset = places[1].slot_offset(9);
  EXPECT_EQ(cas(offset, taken.word(), taken.as(Slot::State::tentative).word()), taken.word());
  EXPECT_TRUE(insert(wanted, "v"));
  EXPECT_EQ(find(wanted), offset);
  EXPECT_EQ(table().marks().removed, 1u);
}

TEST_F(RaceSlots, SaysWhatCannotBe) {
  ASSERT_TRUE(insert("k", "v"));
  const std::uint64_t offset = find("k").value();
  const Slot slot = slot_at(offset);
  const auto look = [&] { return run(world, client, table().lookup("k", deadline(), cost)).code(); };
  const std::uint64_t nowhere = Slot::of(slot.print(), SlotWord::Block::kMax, 64, Slot::State::committed).word();
  for (const std::uint64_t word : {nowhere, slot.word() & ~SlotWord::Units::kMask}) {
    cas(offset, slot.word(), word);
    EXPECT_EQ(look(), Code::corrupt);
    EXPECT_EQ(verify(world.geometry(), world.region(layout::kTable), world.region(layout::kHeap), world.table_seed(),
                     {.directory = world.region(layout::kDirectory), .pool_secret = world.pool_secret()})
                  .defect_count(),
              1u);
    cas(offset, word, slot.word());
  }
  // The block of another slot.
  const Slot other = Slot::of(slot.print(), slot.block() + 1, 64, Slot::State::committed);
  cas(offset, slot.word(), other.word());
  EXPECT_EQ(look(), Code::corrupt);
  EXPECT_GT(table().marks().stale_extents, 0u);
  cas(offset, other.word(), slot.word());
  EXPECT_EQ(get("k"), "v");
  // A bucket of other keys.
  const std::uint64_t hash =
      directory::hash_of(client.session().grant().pool_secret, base::bytes_of(std::string_view("k")));
  const Places places =
      locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view("k"))), world.geometry().rows);
  const std::uint64_t main = places[0].slot_offset(0) - 8;
  cas(main, HeaderWord::of(0, 0), HeaderWord::of(1, 1 - (hash & 1)));
  EXPECT_EQ(look(), Code::corrupt);
  cas(main, HeaderWord::of(1, 1 - (hash & 1)), HeaderWord::of(1, hash & 1));
  EXPECT_EQ(get("k"), "v");
}

// Its group's mark stays, so a scan that finds nothing else begins no round in vain.
TEST_F(RaceSlots, AScanAsksForNoClearingWhereATentativeSlotLies) {
  leave_tentative("k");
  ASSERT_TRUE(world.run(client, world.scan(client, {}, {.count = 64}, kPatience)));
  ASSERT_TRUE(world.run(client, sim::clear_marks(client)));
  EXPECT_EQ(table().marks().cleared_marks + table().marks().kept_marks, 0u);
}

// What a client holds when it dies in the middle of an insert is freed when its segments change hands.
TEST_F(RaceSlots, WhatTheDeadLeftIsFoundAndFreed) {
  Client& victim = world.connect("victim");
  const auto die = [](Client* who) -> Task<void> {
    Cost cost;
    (void)co_await who->table().insert("k", std::string(50, 'x'), who->port().now() + kPatience, cost);
  };
  // Segment and counters first.
  ASSERT_TRUE(run(world, victim, victim.table().put("warm", std::string(50, 'w'), deadline(), cost)).ok());
  ASSERT_TRUE(world.quiesce());
  const std::uint64_t extent_words = layout::extent_bytes(1, 50) / 8;
  victim.port().crash_after(extent_words + 2,
                            fabric::sim::InFlight::cut);  // the extent, the mark and the tentative slot
  world.spawn(victim, die(&victim));
  ASSERT_TRUE(world.run_until([&] { return victim.crashed(); }));
  ASSERT_EQ(sim::survey(world).tentative, 1u);
  EXPECT_EQ(get("k"), std::nullopt);
  const auto tend = [](Client* who) -> Task<void> {
    for (int i = 0; i < 12; ++i) {
      co_await who->heap()->maintain(who->port().now() + base::kSecond);
      co_await who->port().sleep_for(who->session().grant().tick);
    }
  };
  const Nanos lease_over = world.network().now() + 3 * base::kSecond;
  world.run_until([&] { return world.network().now() >= lease_over; });
  ASSERT_TRUE(world.run(client, tend(&client)));
  EXPECT_EQ(world.node().stats().segments.dead, 0u);
  EXPECT_EQ(sim::survey(world).tentative, 0u);
  EXPECT_EQ(table().marks().removed, 1u);
  EXPECT_EQ(get("warm"), std::string(50, 'w'));
  in_order();
}

// A memory node that takes up the memory of its last life removes tentative slots and keeps everything else.
TEST_F(RaceSlots, AMemoryNodeTakesItUpAgain) {
  for (int i = 0; i < 50; ++i)
    EXPECT_FALSE(put("key" + std::to_string(i), std::string(static_cast<std::size_t>(i) * 9, 'v')));
  EXPECT_TRUE(remove("key7"));
  leave_tentative("t");
  ASSERT_TRUE(world.quiesce());
  struct Aligned {
    explicit Aligned(base::Bytes bytes)
        : data(static_cast<std::byte*>(std::aligned_alloc(layout::kPage, bytes.size()))), size(bytes.size()) {
      std::memcpy(data, bytes.data(), size);
    }
    ~Aligned() { std::free(data); }
    std::byte* data;
    std::size_t size;
  } memory(world.memory());
  const base::Bytes all(memory.data, memory.size);
  const auto before = node::audit_memory(all);
  ASSERT_TRUE(before.ok()) << before.status().message();
  EXPECT_EQ(before->audit.damage(), 0u);
  EXPECT_EQ(before->audit.count(node::Wrong::insert_half_done), 1u);
  EXPECT_EQ(before->audit.table.keys, 49u);
  // What this protocol never writes is damage, and is removed.
  std::byte* const locks = memory.data + world.geometry().at(layout::kLocks).offset;
  std::byte* const slots = memory.data + world.geometry().at(layout::kSlots).offset;
  base::store(locks, std::uint64_t{1});
  base::store(slots + layout::kSlotHolder.offset, std::uint64_t{7});
  const auto damaged = node::audit_memory(all);
  ASSERT_TRUE(damaged.ok());
  EXPECT_EQ(damaged->audit.count(node::Wrong::lock_without_holder), 1u);
  EXPECT_EQ(damaged->audit.count(node::Wrong::claim_impossible), 1u);
  EXPECT_EQ(damaged->audit.damage(), 2u);
  fabric::sim::Network network({});
  auto node = node::MemoryNode::create({.name = "node-0",
                                        .pool_uid = "pool-of-the-simulation",
                                        .endpoint = "node-0:7400",
                                        .geometry = options_of().geometry},
                                       {memory.data, memory.size}, network.add_node("node-0:7400"));
  ASSERT_TRUE(node.ok()) << node.status().message();
  EXPECT_EQ((*node)->stats().defects, 0u);
  EXPECT_EQ((*node)->stats().repaired, 1u);
  EXPECT_EQ((*node)->stats().lives, 2u);
  const layout::Geometry& g = (*node)->geometry();
  const auto part = [&](layout::RegionId id) { return all.subspan(g.at(id).offset, g.at(id).bytes); };
  const auto after = node::audit_memory(all);
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_EQ(after->audit.damage() + after->audit.explained(), 0u);
  EXPECT_EQ(after->audit.table.keys, 49u);
  EXPECT_EQ(std::accumulate(after->audit.bytes_of_use.begin(), after->audit.bytes_of_use.end(), std::uint64_t{0}),
            g.memory_bytes);
  std::uint64_t counted = 0;
  for (std::uint64_t at = 0; at < part(layout::kSlots).size(); at += sizeof(layout::OperationSlot)) {
    counted += base::load<std::uint64_t>(part(layout::kSlots).data() + at);
  }
  EXPECT_EQ(counted, 49u) << "the tentative key had been counted";
}

}  // namespace
}  // namespace farpool::race
