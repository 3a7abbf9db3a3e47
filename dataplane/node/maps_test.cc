// SPDX-License-Identifier: Apache-2.0
#include "node/maps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "map/shard_map.h"

namespace farpool::node {
namespace {

using ::testing::HasSubstr;
using v1alpha1::MemoryNodeEntry;
using v1alpha1::ShardMap;

constexpr base::HashSecret kSecret{1, 2};

MemoryNodeEntry own_entry() {
  MemoryNodeEntry node;
  node.set_name("memory-0");
  node.set_endpoint("10.0.0.1:7400");
  node.set_incarnation(100);
  node.set_state(MemoryNodeEntry::STATE_SERVING);
  node.set_memory_bytes(1 << 30);
  node.mutable_rcuckoo()->set_entry_bytes(16);
  node.mutable_rcuckoo()->set_entries_per_row(8);
  node.mutable_rcuckoo()->set_rows_per_lock(16);
  node.mutable_rcuckoo()->set_rows(8000);
  return node;
}

ShardMap map_of(std::uint64_t epoch, std::uint64_t move = 0) {
  ShardMap map;
  map.set_pool_uid("pool");
  map.set_epoch(epoch);
  map.set_move(move);
  *map.add_nodes() = own_entry();
  map.add_tables();
  map.add_directory(0);
  return map;
}

struct Held {
  Maps::Memory memory;
  Maps maps{"pool", nullptr, ""};

  void follow(const ShardMap& map) {
    maps.follow(map);
    memory.epoch = map.epoch();
    memory.pool_secret = kSecret;
  }
  std::optional<Maps::Refusal> refusal(const ShardMap& map, const base::HashSecret& secret = kSecret) const {
    return maps.refusal(map, secret, memory, own_entry());
  }
  void expect_refused(const ShardMap& map, Verdict verdict, const std::string& why) const {
    const auto refused = refusal(map);
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->verdict, verdict);
    EXPECT_THAT(refused->why, HasSubstr(why));
  }
};

TEST(Maps, EpochsAndMovesGoForwardAlone) {
  Held held;
  EXPECT_FALSE(held.refusal(map_of(5, 2)));
  held.follow(map_of(5, 2));
  EXPECT_FALSE(held.refusal(map_of(5, 2))) << "the same again";
  EXPECT_FALSE(held.refusal(map_of(6, 2)));
  EXPECT_FALSE(held.refusal(map_of(6, 3)));
  held.expect_refused(map_of(4, 2), Verdict::older_epoch, "follows epoch 5, move 2, and receives epoch 4, move 2");
  held.expect_refused(map_of(6, 1), Verdict::conflicting, "follows epoch 5, move 2, and receives epoch 6, move 1");
  ShardMap other = map_of(5, 2);
  other.mutable_nodes(0)->set_endpoint("10.0.0.2:7400");
  held.expect_refused(other, Verdict::conflicting, "the same epoch with different content");
  const auto secret = held.refusal(map_of(6, 2), {1, 3});
  ASSERT_TRUE(secret.has_value());
  EXPECT_EQ(secret->verdict, Verdict::conflicting);
}

TEST(Maps, AMapThatIsPreparedHoldsAndIsNotFollowed) {
  Held held;
  held.follow(map_of(5));
  held.maps.hold(map_of(7));
  EXPECT_EQ(held.maps.followed().epoch(), 5u);
  EXPECT_EQ(held.maps.newest().epoch(), 7u);
  EXPECT_EQ(held.maps.epoch(held.memory), 7u);
  held.expect_refused(map_of(6), Verdict::older_epoch, "has kept a map with its memory, of epoch 7, move 0");
  EXPECT_FALSE(held.refusal(map_of(7)));
  held.follow(map_of(7));
  EXPECT_FALSE(held.maps.knows_kept());
  EXPECT_EQ(held.maps.followed().epoch(), 7u);
}

TEST(Maps, AMemoryThatLostItsMapKnowsItsEpochAndItsMoves) {
  Held held;
  held.memory = {.epoch = 8, .pool_secret = kSecret, .move_finished = 3};
  held.expect_refused(map_of(7, 3), Verdict::older_epoch, "has lost its map, of epoch 8, move 3");
  held.expect_refused(map_of(9, 2), Verdict::conflicting, "Restore the newest ShardMap");
  EXPECT_FALSE(held.refusal(map_of(9, 3)));
  held.memory.move_finished = ~0ull;  // of no move: the word is damaged
  EXPECT_FALSE(held.refusal(map_of(9, 0)));
}

TEST(Maps, AMapOfAnotherPoolOrShapeIsInvalid) {
  const Held held{};
  ShardMap map = map_of(5);
  map.set_pool_uid("another");
  held.expect_refused(map, Verdict::invalid, "of another pool");
  map = map_of(5);
  map.mutable_nodes(0)->set_name("memory-1");
  held.expect_refused(map, Verdict::invalid, "another name or geometry");
  map = map_of(5);
  map.mutable_nodes(0)->mutable_rcuckoo()->set_rows(4000);
  held.expect_refused(map, Verdict::invalid, "another name or geometry");
  map = map_of(5);
  map.mutable_nodes(0)->set_incarnation(101);  // another life, of which this one knows nothing
  EXPECT_FALSE(held.refusal(map));
  map.clear_tables();
  ASSERT_TRUE(held.refusal(map).has_value());
  EXPECT_EQ(held.refusal(map)->verdict, Verdict::invalid);
}

// A key that has signed no map.
class SignedNothing final : public base::SignatureCheck {
  bool holds(std::string_view, std::string_view) const override { return false; }
};

TEST(Maps, AMapThatIsNotSignedIsInvalidWhereThereIsAKey) {
  const Maps maps("pool", std::make_shared<SignedNothing>(), "");
  ShardMap map = map_of(5);
  map.set_signature(std::string(64, 's'));
  const auto refused = maps.refusal(map, kSecret, {}, own_entry());
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->verdict, Verdict::invalid);
}

TEST(Maps, WhatAnEarlierProcessKeptCountsIfItCanBeBelieved) {
  const std::string kept = map::deterministic_bytes(map_of(7, 2));
  EXPECT_EQ(Maps("pool", nullptr, kept).newest().epoch(), 7u);
  EXPECT_FALSE(Maps("another", nullptr, kept).knows_kept());
  EXPECT_FALSE(Maps("pool", nullptr, kept.substr(0, kept.size() / 2)).knows_kept());
  EXPECT_FALSE(Maps("pool", nullptr, "").knows_kept());
  EXPECT_FALSE(Maps("pool", std::make_shared<SignedNothing>(), kept).knows_kept());
}

TEST(Maps, AReadThatHasNoRoomLearnsTheLength) {
  Held held;
  held.follow(map_of(5));
  const std::string bytes = map::deterministic_bytes(map_of(5));
  std::vector<std::byte> reply(bytes.size() + 16, std::byte{0xff});
  const auto whole = held.maps.read(reply);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(*whole % 8, 0u);
  EXPECT_GE(*whole, 8 + bytes.size());
  EXPECT_EQ(base::load<std::uint64_t>(reply.data()), bytes.size());
  EXPECT_EQ(base::text_of(base::Bytes(reply).subspan(8, bytes.size())), bytes);
  for (std::size_t i = 8 + bytes.size(); i < *whole; ++i) EXPECT_EQ(reply[i], std::byte{0}) << "the padding";
  EXPECT_EQ(held.maps.read(base::MutableBytes(reply).first(15)), 8u);
  EXPECT_EQ(held.maps.read(base::MutableBytes(reply).first(7)), std::nullopt);
}

TEST(Maps, AnEntryIsFoundByItsIncarnation) {
  const ShardMap map = map_of(5);
  ASSERT_NE(entry_of(map, 100), nullptr);
  EXPECT_EQ(entry_of(map, 100)->name(), "memory-0");
  EXPECT_EQ(entry_of(map, 101), nullptr);
}

}  // namespace
}  // namespace farpool::node
