// SPDX-License-Identifier: Apache-2.0
#include "map/shard_map.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>

namespace farpool::map {
namespace {

using v1alpha1::MemoryNodeEntry;
using v1alpha1::ShardMap;

ShardMap two_nodes() {
  ShardMap map;
  map.set_pool_uid("pool");
  map.set_epoch(7);
  for (int i = 0; i < 2; ++i) {
    auto& node = *map.add_nodes();
    node.set_name("memory-" + std::to_string(i));
    node.set_endpoint(i == 0 ? "10.0.0.1:7400" : "[fd00::1]:7400");
    node.set_incarnation(100 + static_cast<std::uint64_t>(i));
    node.set_state(MemoryNodeEntry::STATE_SERVING);
    node.set_memory_bytes(1 << 30);
    node.mutable_lock_region()->set_placement(v1alpha1::LockRegion::PLACEMENT_HOST_MEMORY);
    node.mutable_lock_region()->set_bytes(64);
    node.mutable_lock_region()->set_locks(500);
    node.mutable_lock_region()->set_rows_per_lock(16);
    node.mutable_rcuckoo()->set_entry_bytes(16);
    node.mutable_rcuckoo()->set_entries_per_row(8);
    node.mutable_rcuckoo()->set_rows_per_lock(16);
    node.mutable_rcuckoo()->set_rows(8000);
    auto& table = *map.add_tables();
    table.set_id(static_cast<std::uint32_t>(10 * i));
    table.set_node(static_cast<std::uint32_t>(i));
  }
  map.set_directory_depth(2);
  for (std::uint32_t id : {0u, 10u, 0u, 10u}) map.add_directory(id);
  return map;
}

TEST(ShardMap, RoutesByTheLowBitsOfTheDirectoryHash) {
  const auto map = Map::from(two_nodes());
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map->table_of(0).id(), 0u);
  EXPECT_EQ(map->table_of(1).id(), 10u);
  EXPECT_EQ(map->table_of(~0ull).id(), 10u);
  EXPECT_EQ(map->table_of(0xfffffffffffffff6ull).id(), 0u);
  EXPECT_EQ(map->node_of(map->table_of(1)).name(), "memory-1");
  EXPECT_EQ(map->node("memory-0")->incarnation(), 100u);
  EXPECT_EQ(map->node("memory-2"), nullptr);
  EXPECT_EQ(map->table(5), nullptr);
}

TEST(ShardMap, SpreadsKeysOverTablesAndDependsOnTheSecret) {
  const auto map = Map::from(two_nodes());
  ASSERT_TRUE(map.ok());
  std::map<std::uint32_t, int> keys;
  int moved = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string key = "key" + std::to_string(i);
    const auto one = map->table_of(directory_hash({1, 2}, base::bytes_of(key))).id();
    moved += one != map->table_of(directory_hash({1, 3}, base::bytes_of(key))).id();
    ++keys[one];
  }
  EXPECT_GT(keys[0], 1800);
  EXPECT_GT(keys[10], 1800);
  EXPECT_GT(moved, 1800);
}

TEST(ShardMap, RefusesWhatDoesNotHangTogetherAndSaysWhy) {
  struct Case {
    const char* says;
    std::function<void(ShardMap&)> spoil;
  };
  const Case cases[] = {
      {"pool_uid", [](ShardMap& m) { m.clear_pool_uid(); }},
      {"epoch is 0", [](ShardMap& m) { m.set_epoch(0); }},
      {"sorted by name", [](ShardMap& m) { m.mutable_nodes()->SwapElements(0, 1); }},
      {"sorted by name", [](ShardMap& m) { m.mutable_nodes(1)->set_name("memory-0"); }},
      {"incarnation of another", [](ShardMap& m) { m.mutable_nodes(1)->set_incarnation(100); }},
      {"incarnation 0", [](ShardMap& m) { m.mutable_nodes(1)->set_incarnation(0); }},
      {"neither serving nor stopped", [](ShardMap& m) { m.mutable_nodes(0)->clear_state(); }},
      {"a node's name", [](ShardMap& m) { m.mutable_nodes(0)->set_name("a\nb"); }},
      {"not host:port", [](ShardMap& m) { m.mutable_nodes(0)->set_endpoint("10.0.0.1"); }},
      {"not host:port", [](ShardMap& m) { m.mutable_nodes(0)->set_endpoint("10.0.0.1:"); }},
      {"not host:port", [](ShardMap& m) { m.mutable_nodes(0)->set_endpoint(":7400"); }},
      {"not host:port", [](ShardMap& m) { m.mutable_nodes(0)->set_endpoint("h:65536"); }},
      {"not host:port", [](ShardMap& m) { m.mutable_nodes(0)->set_endpoint("h:7x"); }},
      {"not host:port", [](ShardMap& m) { m.mutable_nodes(0)->set_endpoint("a b:7400"); }},
      {"geometry", [](ShardMap& m) { m.mutable_nodes(0)->mutable_rcuckoo()->set_rows(0); }},
      {"no table geometry", [](ShardMap& m) { m.mutable_nodes(0)->clear_shape(); }},
      {"entry_bytes is 0", [](ShardMap& m) { m.mutable_nodes(0)->mutable_rcuckoo()->set_entry_bytes(0); }},
      {"lock region", [](ShardMap& m) { m.mutable_nodes(0)->mutable_lock_region()->set_bytes(12); }},
      {"lock region", [](ShardMap& m) { m.mutable_nodes(0)->mutable_lock_region()->set_locks(513); }},
      {"lock region", [](ShardMap& m) { m.mutable_nodes(0)->mutable_lock_region()->set_rows_per_lock(0); }},
      {"sorted by id", [](ShardMap& m) { m.mutable_tables()->SwapElements(0, 1); }},
      {"node number 2 of 2", [](ShardMap& m) { m.mutable_tables(1)->set_node(2); }},
      {"depth 21", [](ShardMap& m) { m.set_directory_depth(21); }},
      {"it needs 8", [](ShardMap& m) { m.set_directory_depth(3); }},
      {"it needs 4", [](ShardMap& m) { m.add_directory(0); }},
      {"names table 3", [](ShardMap& m) { m.set_directory(2, 3); }},
      {"it needs 0", [](ShardMap& m) { m.clear_tables(); }},
      {"split into 6", [](ShardMap& m) { m.set_least_tables(6); }},
      {"split into 32768", [](ShardMap& m) { m.set_least_tables(1 << 15); }},
  };
  for (const Case& c : cases) {
    ShardMap map = two_nodes();
    c.spoil(map);
    const base::Status status = validate(map);
    ASSERT_FALSE(status.ok()) << c.says;
    EXPECT_EQ(status.code(), base::Code::invalid_argument);
    EXPECT_NE(status.message().find(c.says), std::string::npos) << status.message();
  }
  EXPECT_FALSE(Map::parse("\xff\xff").ok());
}

TEST(ShardMap, ANodeHasATableOfEitherProtocol) {
  ShardMap map = two_nodes();
  map.mutable_nodes(0)->clear_lock_region();
  map.mutable_nodes(0)->mutable_race()->set_groups(100);
  EXPECT_TRUE(validate(map).ok()) << validate(map).message();
}

// Part 2 is on its way from the first node to the second.
ShardMap moving() {
  ShardMap map = two_nodes();
  map.set_directory(2, 10);
  map.set_move(3);
  auto& departure = *map.add_departures();
  departure.set_part(2);
  departure.set_from(0);
  return map;
}

TEST(ShardMap, SaysWhereAPartComesFromThatIsOnItsWay) {
  const auto map = Map::from(moving());
  ASSERT_TRUE(map.ok()) << map.status().message();
  ASSERT_NE(map->source_of(6), nullptr);
  EXPECT_EQ(map->source_of(6)->id(), 0u);
  EXPECT_EQ(map->table_of(6).id(), 10u);
  for (const std::uint64_t hash : {0u, 1u, 3u, 5u}) EXPECT_EQ(map->source_of(hash), nullptr) << hash;
  EXPECT_EQ(Map::from(two_nodes())->source_of(6), nullptr);
}

TEST(ShardMap, RefusesMovesThatCannotBe) {
  struct Case {
    std::function<void(ShardMap&)> spoil;
    const char* says;
  };
  const Case cases[] = {
      {[](ShardMap& map) { map.set_move(0); }, "in no move"},
      {[](ShardMap& map) { map.set_move(1 << 23); }, "one too many"},
      {[](ShardMap& map) { map.mutable_departures(0)->set_part(4); }, "has 4 parts"},
      {[](ShardMap& map) { map.mutable_departures(0)->set_from(5); }, "table 5"},
      {[](ShardMap& map) { map.mutable_departures(0)->set_from(10); }, "from and to node number 1"},
      {[](ShardMap& map) { *map.add_departures() = map.departures(0); }, "not sorted"},
      {[](ShardMap& map) {
         auto& back = *map.add_departures();
         back.set_part(3);
         back.set_from(10);
         map.set_directory(3, 0);
       },
       "from and to node number"},
  };
  for (const Case& one : cases) {
    ShardMap map = moving();
    one.spoil(map);
    const base::Status status = validate(map);
    EXPECT_EQ(status.code(), base::Code::invalid_argument) << one.says;
    EXPECT_NE(status.message().find(one.says), std::string::npos) << status.message();
  }
}

TEST(ShardMap, APoolWithoutNodesHasAnEmptyDirectory) {
  ShardMap map;
  map.set_pool_uid("pool");
  map.set_epoch(1);
  EXPECT_TRUE(validate(map).ok());
}

TEST(ShardMap, TheGoldenMapIsValidAndKeepsItsBytes) {
  std::ifstream file("../../api/testdata/shard_map.bin", std::ios::binary);
  ASSERT_TRUE(file) << "run the test from dataplane/map";
  const std::string golden((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto map = Map::parse(golden);
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map->bytes(), golden);
}

}  // namespace
}  // namespace farpool::map
