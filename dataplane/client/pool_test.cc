// SPDX-License-Identifier: Apache-2.0
// A pool of two memory nodes in virtual time, seen through the client library.
#include "client/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "client/pool_world_test.h"
#include "fabric/sim/network.h"
#include "index/race/layout.h"
#include "layout/extent.h"
#include "layout/geometry.h"
#include "layout/lease.h"
#include "layout/operation_slot.h"
#include "layout/segment.h"

namespace farpool::client {
namespace {

Task<void> everything_once(Pool& pool) {
  EXPECT_EQ((co_await pool.get("a")).value(), std::nullopt);
  EXPECT_TRUE((co_await pool.put("a", "1")).ok());
  EXPECT_EQ((co_await pool.get("a")).value(), "1");
  Appender editor("2");
  EXPECT_TRUE((co_await pool.modify("a", editor)).ok());
  EXPECT_TRUE((co_await pool.modify("b", editor)).ok());
  std::vector<std::string_view> keys{"a", "nope", "b"};
  auto values = co_await pool.multi_read(std::move(keys));
  EXPECT_EQ(values.value(), (std::vector<std::optional<Value>>{Value{"12"}, std::nullopt, Value{"2"}}));
  EXPECT_EQ((co_await pool.erase("a")).value(), true);
  EXPECT_EQ((co_await pool.erase("a")).value(), false);
  EXPECT_EQ((co_await pool.get("a")).value(), std::nullopt);
  EXPECT_EQ((co_await pool.count()).value(), 1u);
  EXPECT_EQ((co_await pool.put(std::string(65537, 'k'), "v")).code(), Code::too_large);
}

TEST_F(PoolTest, DoesEveryOperation) {
  publish(map_of(1));
  Client& client = connect();
  run(client, everything_once(*client.pool));
  const PoolCounters& counters = client.pool->counters();
  const auto& gets = counters.operations[static_cast<std::size_t>(Operation::get)];
  EXPECT_EQ(gets.outcomes[static_cast<std::size_t>(Code::ok)].get(), 6u);
  EXPECT_GE(gets.trips.get(), 6u);
  EXPECT_GT(gets.bytes.get(), 0u);
  const auto& puts = counters.operations[static_cast<std::size_t>(Operation::put)];
  EXPECT_EQ(puts.outcomes[static_cast<std::size_t>(Code::ok)].get(), 1u);
  EXPECT_EQ(puts.outcomes[static_cast<std::size_t>(Code::too_large)].get(), 1u);
  EXPECT_EQ(counters.sessions.get(), 2u);
}

TEST_F(PoolTest, SpreadsKeysOverNodesAndCountsThemAll) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 300, "v"));
  run(client, expect_all(client, 0, 300, "v"));
  EXPECT_EQ(count(client).value(), 300u);
  Client& other = connect();
  run(other, expect_all(other, 0, 300, "v"));
  EXPECT_EQ(count(other).value(), 300u);
  for (const node::MemoryNode* node : nodes_) {
    ASSERT_TRUE(run_until([node] { return node->stats().keys > 100; })) << "one node has next to no keys";
  }
}

TEST_F(PoolTest, ModifiesAtomicallyAcrossClients) {
  publish(map_of(1));
  for (int i = 0; i < 3; ++i) connect();
  for (auto& client : clients_) {
    client->scope.spawn(increment(*client, 40));
    client->scope.spawn(increment(*client, 40));
  }
  ASSERT_TRUE(run_until([this] {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->scope.running() == 0; });
  }));
  Increment last;
  Client& reader = *clients_[0];
  run(reader, increment(reader, 1));
  bool seen = false;
  const auto read = [](Pool& pool, bool& seen) -> Task<void> {
    EXPECT_EQ((co_await pool.get("sum")).value(), "241");
    seen = true;
  };
  run(reader, read(*reader.pool, seen));
  EXPECT_TRUE(seen);
}

TEST_F(PoolTest, WaitsForAPoolThatComesUpLater) {
  Client& client = connect({"node-9:7400"}, 20 * base::kSecond);
  client.scope.spawn(put_all(client, 0, 20, "v"));
  EXPECT_FALSE(run_until([&client] { return client.scope.running() == 0; }, base::kSecond));
  EXPECT_FALSE(client.pool->state().ready);
  client.pool->set_bootstrap({"node-0:7400", "node-1:7400"});
  EXPECT_FALSE(run_until([&client] { return client.scope.running() == 0; }, base::kSecond)) << "there is no epoch yet";
  publish(map_of(1));
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 10 * base::kSecond));
  EXPECT_TRUE(client.pool->state().ready) << client.pool->state().message;
  EXPECT_EQ(client.pool->state().epoch, 1u);
}

TEST_F(PoolTest, ScansTheKeysOfAllNodes) {
  publish(map_of(1));
  Client& client = connect();
  Client& other = connect();
  std::optional<std::string> any;
  run(client, any_into(client, any));
  EXPECT_FALSE(any);
  run(client, put_all(client, 0, 700, "v"));
  run(other, put_all(other, 700, 710, std::string(500, 'v')));
  for (const std::uint64_t count : {0ull, 1ull, 100ull, ~0ull}) {
    std::map<std::string, int> times;
    std::uint64_t cursor = 0;
    run(other, scan_into(other, count, true, cursor, times));
    EXPECT_EQ(times.size(), 710u) << count;
    for (const auto& [key, often] : times) EXPECT_EQ(often, 1) << key;
  }
  // A scan may continue from any cursor, and a cursor may be nonsense.
  std::map<std::string, int> times;
  std::uint64_t cursor = 0;
  run(client, scan_into(client, 10, false, cursor, times));
  EXPECT_LT(times.size(), 300u);
  ASSERT_NE(cursor, 0u);
  run(other, scan_into(other, 10, true, cursor, times));
  EXPECT_EQ(times.size(), 710u);
  for (int bits = 0; bits < 64; bits += 9) {
    for (const std::uint64_t wild : {1ull << bits, ~0ull >> bits, ~0ull << bits}) {
      base::Result<Page> page = Page();
      run(client, scan_once(client, wild, page));
      EXPECT_TRUE(page.ok()) << page.status().message();
    }
  }
  std::set<std::string> chosen;
  for (int i = 0; i < 8; ++i) {
    run(client, any_into(client, any));
    ASSERT_TRUE(any && times.contains(*any));
    chosen.insert(*any);
  }
  EXPECT_GT(chosen.size(), 2u);
  EXPECT_GT(client.pool->counters().operations[static_cast<std::size_t>(Operation::scan)].trips.get(), 0u);
}

// Cursors with the highest numbers of tables and moves are doubles, too; a table without a place in a cursor is
// refused.
TEST_F(PoolTest, CursorsOfTheHighestNumbersAreDoubles) {
  for (const std::uint64_t move : std::array{126ul, 127ul, 128ul, 254ul, layout::kMostMoves}) {
    v1alpha1::ShardMap map = map_of(move);
    map.set_move(move);
    map.mutable_tables(1)->set_id(1023);
    for (std::uint32_t& part : *map.mutable_directory()) part = part == 0 ? 0 : 1023;
    publish(map);
    Client& client = connect();
    if (move == 126) run(client, put_all(client, 0, 300, "v"));
    std::map<std::string, int> times;
    std::uint64_t cursor = 0;
    run(client, scan_into(client, 1, true, cursor, times));
    EXPECT_EQ(times.size(), 300u) << move;
  }
  v1alpha1::ShardMap map = map_of(layout::kMostMoves + 1);
  map.set_move(layout::kMostMoves);
  map.mutable_tables(1)->set_id(1024);
  for (std::uint32_t& part : *map.mutable_directory()) part = part == 0 ? 0 : 1024;
  publish(map);
  Client& client = connect();
  base::Result<Page> page = Page();
  for (std::uint64_t cursor = 0, steps = 0; steps < 1000 && page.ok(); ++steps, cursor = page.ok() ? page->next : 0) {
    run(client, scan_once(client, cursor, page));
  }
  EXPECT_EQ(page.code(), Code::internal);
  EXPECT_NE(page.status().message().find("table 1024 cannot be scanned"), std::string::npos);
}

TEST_F(PoolTest, AScanSaysThatAPartOfTheKeysIsOutOfReach) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 50, "v"));
  v1alpha1::ShardMap map = map_of(2);
  map.mutable_nodes(1)->set_state(v1alpha1::MemoryNodeEntry::STATE_STOPPED);
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * base::kSecond));
  base::Result<Page> page = Page();
  for (std::uint64_t cursor = 0, steps = 0; steps < 1000 && page.ok(); ++steps) {
    run(client, scan_once(client, cursor, page));
    if (page.ok()) cursor = page->next;
    ASSERT_TRUE(!page.ok() || cursor != 0) << "it passes for a whole scan";
  }
  EXPECT_EQ(page.code(), Code::unavailable);
  EXPECT_NE(page.status().message().find("mn-1"), std::string::npos) << page.status().message();
}

TEST_F(PoolTest, FollowsANewEpochAndKeepsItsSessions) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 50, "v"));
  publish(map_of(2));
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * base::kSecond));
  run(client, expect_all(client, 0, 50, "v"));
  EXPECT_EQ(client.pool->counters().sessions_opened.get(), 2u);
  EXPECT_EQ(client.pool->counters().sessions_lost.get(), 0u);
  EXPECT_EQ(client.pool->counters().epoch.get(), 2u);
  EXPECT_EQ(client.told.epoch, 2u);
}

TEST_F(PoolTest, BelievesNoMemoryNodeAboutMapsAndEpochs) {
  map_key_ = std::make_shared<Seal>();
  publish(Seal::sealed(map_of(1)));
  Client& client = connect();
  run(client, put_all(client, 0, 50, "v"));
  // A map that gives all keys to the liar, under an epoch that the operator will not reach.
  v1alpha1::ShardMap forged = Seal::sealed(map_of(2));
  forged.set_epoch(9'999'999'999);
  for (int i = 0; i < forged.directory_size(); ++i) forged.set_directory(i, 1);
  ASSERT_EQ(nodes_[1]->publish(forged, kSecret).verdict, node::MemoryNode::Verdict::adopted);
  ASSERT_TRUE(run_until([&client] { return client.pool->counters().failed_map_fetches.get() > 0; }, 10 * base::kSecond))
      << "it has not heard of that epoch";
  EXPECT_GT(client.pool->counters().forged_maps.get(), 0u);
  EXPECT_EQ(client.pool->state().epoch, 1u);
  run(client, expect_all(client, 0, 50, "v"));
  // What the operator says still arrives, though its epoch is older than the liar's.
  ASSERT_EQ(nodes_[0]->publish(Seal::sealed(map_of(2)), kSecret).verdict, node::MemoryNode::Verdict::adopted);
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * base::kSecond));
  run(client, expect_all(client, 0, 50, "v"));
  // An old map with a good signature takes no client back.
  EXPECT_EQ(nodes_[0]->publish(Seal::sealed(map_of(1)), kSecret).verdict, node::MemoryNode::Verdict::older_epoch);
}

TEST_F(PoolTest, FindsARestartedNodeAgainWithoutAnErrorToItsCallers) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 30 * base::kSecond);
  run(client, put_all(client, 0, 100, "v"));
  // What a restart does to others: the old life serves no more; the new one begins empty and is in the next epoch.
  node::MemoryNode* before = nodes_[1];
  begin_life(1);
  const v1alpha1::ShardMap map = map_of(2);
  (void)before->publish(map, kSecret);
  client.scope.spawn(put_all(client, 0, 100, "w"));
  EXPECT_FALSE(run_until([&client] { return client.scope.running() == 0; }, base::kSecond))
      << "the new life serves nobody yet";
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 20 * base::kSecond));
  run(client, expect_all(client, 0, 100, "w"));
  EXPECT_EQ(client.pool->state().epoch, 2u);
  EXPECT_EQ(client.pool->counters().sessions_lost.get() + client.pool->counters().sessions_opened.get(), 4u);
  EXPECT_EQ(count(client).value(), 100u);
}

// Every operation continues when its session is cut.
TEST_F(PoolTest, EveryOperationGoesOnInANewSession) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 30 * base::kSecond);
  run(client, put_all(client, 0, 100, "v"));
  node::MemoryNode* before = nodes_[0];
  begin_life(0);
  const v1alpha1::ShardMap map = map_of(2);
  (void)before->publish(map, kSecret);
  // Operations on one key would wait for each other.
  auto key_there = [this, next = 0]() mutable {
    std::string key;
    do key = "of-" + std::to_string(next++);
    while (node_of(key) != 0);
    return key;
  };
  base::Result<bool> erased(base::Status(Code::internal, "never done"));
  base::Result<std::uint64_t> keys(base::Status(Code::internal, "never done"));
  base::Status written(Code::internal, "never done"), read(Code::internal, "never done");
  std::map<std::string, int> times;
  std::uint64_t cursor = 0;
  client.scope.spawn(erase_into(client, key_there(), erased));
  client.scope.spawn(append_to(client, key_there()));
  client.scope.spawn(put_into(client, key_there(), written));
  client.scope.spawn(read_into(client, key_there(), read));
  client.scope.spawn(scan_into(client, 10, true, cursor, times));
  client.scope.spawn(count_into(client, keys));
  EXPECT_FALSE(run_until([&client] { return client.scope.running() == 0; }, base::kSecond));
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 20 * base::kSecond));
  EXPECT_TRUE(erased.ok()) << erased.status().message();
  EXPECT_TRUE(written.ok()) << written.message();
  EXPECT_TRUE(read.ok()) << read.message();
  EXPECT_TRUE(keys.ok()) << keys.status().message();
  for (int i = 0; i < 100; ++i) {
    const std::string key = "key-" + std::to_string(i);
    EXPECT_EQ(times.contains(key), node_of(key) == 1) << key << ": the new life of the other node is empty";
  }
}

// An operation that reads, and loses its session, asks again until its deadline.
TEST_F(PoolTest, WhatReadsIsTriedAgainUntilItsDeadline) {
  publish(map_of(1));
  for (const bool in_time : {true, false}) {
    Client& client = connect({"node-0:7400", "node-1:7400"}, in_time ? 5 * base::kSecond : 10 * base::kMillisecond);
    ASSERT_TRUE(run_until_ready(client));
    if (in_time) run(client, put_all(client, 0, 100, "v"));
    base::Result<std::uint64_t> keys(base::Status(Code::internal, "never done"));
    base::Result<Page> page(base::Status(Code::internal, "never done"));
    base::Status read(Code::internal, "never done"), any(Code::internal, "never done");
    network_.options().lose_reply = 1;
    client.scope.spawn(count_into(client, keys));
    client.scope.spawn(scan_once(client, 0, page));
    client.scope.spawn(any_status(client, any));
    client.scope.spawn(read_into(client, key_on(0), read));
    EXPECT_EQ(run_until([&client] { return client.scope.running() == 0; }, 100 * base::kMillisecond), !in_time);
    network_.options().lose_reply = 0;
    ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 5 * base::kSecond));
    const Code expected = in_time ? Code::ok : Code::unavailable;
    EXPECT_EQ(keys.code(), expected) << keys.status().message();
    EXPECT_EQ(page.code(), expected) << page.status().message();
    EXPECT_EQ(any.code(), expected) << any.message();
    EXPECT_EQ(read.code(), expected) << read.message();
    if (in_time) EXPECT_EQ(*keys, 100u);
    for (const Operation operation : {Operation::count, Operation::scan, Operation::get}) {
      EXPECT_EQ(retries(client, operation) > 0, in_time) << name_of(operation);
    }
    ASSERT_TRUE(run_until_ready(client));
    EXPECT_EQ(count(client).value(), 100u);
  }
}

// Changes of one key take turns: a change whose turn does not come in time has done nothing, and says why.
TEST_F(PoolTest, AChangeWhoseTurnDoesNotComeDoesNothing) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 10 * base::kMillisecond);
  ASSERT_TRUE(run_until_ready(client));
  base::Status first(Code::internal, "never done"), put(first), append(first);
  base::Result<bool> erased(first);
  network_.options().lose_reply = 1;
  client.scope.spawn(put_into(client, "a", first));
  client.scope.spawn(put_into(client, "a", put));
  client.scope.spawn(append_into(client, "a", append));
  client.scope.spawn(erase_into(client, "a", erased));
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 1; }, 20 * base::kMillisecond));
  EXPECT_EQ(first.code(), Code::internal) << "it holds the key no longer";
  for (const base::Status& late : {put, append, erased.status()}) {
    EXPECT_EQ(late.code(), Code::timed_out) << late.message();
    EXPECT_NE(late.message().find("on the same key took until the deadline"), std::string::npos) << late.message();
  }
  network_.options().lose_reply = 0;
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, base::kSecond));
  EXPECT_NE(first.code(), Code::internal);
  for (const Operation operation : {Operation::put, Operation::modify, Operation::erase}) {
    const auto& outcomes = client.pool->counters().operations[static_cast<std::size_t>(operation)].outcomes;
    EXPECT_EQ(outcomes[static_cast<std::size_t>(Code::timed_out)].get(), 1u) << name_of(operation);
  }
}

// Another attempt would meet the same damage.
TEST_F(PoolTest, AScanOfADamagedTableSaysSo) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 300, "v"));
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const layout::Geometry& geometry = nodes_[i]->geometry();
    std::byte* table = memory_[i].get() + geometry.at(layout::kTable).offset;
    for (std::uint64_t at = 0; at < geometry.rows * geometry.row_bytes(); ++at) {
      if (table[at] != std::byte{}) table[at] ^= std::byte{0x55};
    }
  }
  base::Result<Page> page = Page();
  run(client, scan_once(client, 0, page));
  EXPECT_EQ(page.code(), Code::corrupt) << page.status().message();
  base::Status any;
  run(client, any_status(client, any));
  EXPECT_EQ(any.code(), Code::corrupt) << any.message();
  EXPECT_EQ(retries(client, Operation::scan), 0u);
}

// A memory node that all keys have left is an example.
TEST_F(PoolTest, AMemoryNodeWithoutATableIsNotWaitedFor) {
  v1alpha1::ShardMap map = map_of(1);
  map.mutable_tables()->RemoveLast();
  for (std::uint32_t& part : *map.mutable_directory()) part = 0;
  publish(map);
  Client& client = connect();
  run(client, put_all(client, 0, 100, "v"));
  const Nanos before = network_.now();
  EXPECT_EQ(count(client).value(), 100u);
  std::vector<Pool::Repair> repairs;
  const auto repair = [](Client& client, std::vector<Pool::Repair>& into) -> Task<void> {
    into = co_await client.pool->repair(client.port->now() + base::kSecond);
  };
  run(client, repair(client, repairs));
  ASSERT_EQ(repairs.size(), 1u);
  EXPECT_EQ(repairs[0].node, "mn-0");
  EXPECT_EQ(repairs[0].trouble, "");
  EXPECT_LT(network_.now() - before, 100 * base::kMillisecond);
  EXPECT_TRUE(client.pool->state().ready) << client.pool->state().message;
  EXPECT_EQ(client.pool->state().nodes.size(), 1u);
}

TEST_F(PoolTest, AMemoryNodeThatLosesItsTableIsTakenLeaveOf) {
  publish(map_of(1));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  EXPECT_EQ(client.pool->counters().sessions.get(), 2u);
  v1alpha1::ShardMap map = map_of(2);
  map.mutable_tables()->RemoveLast();
  for (std::uint32_t& part : *map.mutable_directory()) part = 0;
  map.set_directory_version(2);
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.pool->counters().sessions.get() == 1; }, 10 * base::kSecond));
  EXPECT_EQ(client.pool->counters().sessions_lost.get(), 0u);
  EXPECT_EQ(lines_with(client.log, "lost the session"), 0);
  // It is asked for no map any more, either.
  publish(map_of(3));
  EXPECT_TRUE(run_until([&client] { return client.pool->state().epoch == 3; }, 60 * base::kSecond));
}

// No operation needs the row that the dead client has locked.
TEST_F(PoolTest, WhatTheDeadLeftIsRepairedAndToldOf) {
  publish(map_of(1));
  Client& other = connect();
  Client& doomed = connect();
  ASSERT_TRUE(run_until_ready(other) && run_until_ready(doomed));
  const auto claimed = [this] { return claimed_slots(0) + claimed_slots(1); };
  std::set<int> there;
  doomed.scope.spawn(put_known(doomed, 0, 1000, "v", there));
  ASSERT_TRUE(run_until([&] { return there.size() > 10 && claimed() == 1; }));
  doomed.port->pause();
  ASSERT_TRUE(run_until([&other] { return lines_with(other.log, "repaired 1 operation slots") > 0; }));
  EXPECT_TRUE(run_until([&] { return claimed() == 0; }, 10 * base::kSecond));
  EXPECT_EQ(lines_with(other.log, "are left on memory node"), 0);
  EXPECT_EQ(lines_with(other.log, "splits of tables"), 0);
  doomed.port->resume();
  ASSERT_TRUE(run_until([&doomed] { return doomed.scope.running() == 0; }));
}

TEST_F(PoolTest, APoolThatIsWholeSeldomReadsTheMap) {
  publish(map_of(1));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  const std::uint64_t before = client.pool->counters().map_fetches.get();
  EXPECT_FALSE(run_until([] { return false; }, 60 * base::kSecond));
  EXPECT_GE(client.pool->counters().map_fetches.get(), before + 2);
  EXPECT_LE(client.pool->counters().map_fetches.get(), before + 8);
}

TEST_F(PoolTest, ATroubleIsToldOnceAndTriedAgainLessAndLessOften) {
  v1alpha1::ShardMap map = map_of(1);
  map.mutable_nodes(1)->set_incarnation(nodes_[1]->incarnation() ^ 1);
  publish(map);
  Client& absent = connect({"node-9:7400"});
  Client& client = connect();
  EXPECT_FALSE(run_until([] { return false; }, 30 * base::kSecond));
  EXPECT_EQ(lines_with(absent.log, "node-9:7400"), 1) << absent.log.back();
  EXPECT_EQ(absent.changes, 1);
  EXPECT_NE(absent.told.message.find("node-9:7400"), std::string::npos) << absent.told.message;
  EXPECT_LE(absent.pool->counters().map_fetches.get(), 60u);
  EXPECT_EQ(lines_with(client.log, "no session with memory node mn-1"), 1) << client.log.back();
  EXPECT_GE(client.pool->counters().failed_opens.get(), 5u);
  EXPECT_LE(client.pool->counters().failed_opens.get(), 120u);
  EXPECT_EQ(client.pool->counters().sessions.get(), 1u);
}

// The first one that it knew is gone.
TEST_F(PoolTest, APoolAsksTheMemoryNodesOfItsMapForTheNext) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400"});
  ASSERT_TRUE(run_until_ready(client));
  const v1alpha1::ShardMap map = map_of(2);
  responders_[0]->stop();
  ASSERT_EQ(nodes_[1]->publish(map, kSecret).verdict, node::MemoryNode::Verdict::adopted);
  EXPECT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 60 * base::kSecond));
}

// A pool whose first memory node is still to come is an example.
TEST_F(PoolTest, APoolWithoutMemoryNodesHasNoKeys) {
  v1alpha1::ShardMap map;
  map.set_pool_uid(kUid);
  map.set_epoch(1);
  publish(map);
  Client& client = connect({"node-0:7400"}, base::kSecond);
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 1; }, 10 * base::kSecond));
  EXPECT_FALSE(client.pool->state().ready);
  EXPECT_NE(client.pool->state().message.find("has no memory node that serves"), std::string::npos)
      << client.pool->state().message;
  EXPECT_EQ(put(client, "a").code(), Code::unavailable);
  base::Result<Page> page = Page();
  run(client, scan_once(client, 0, page));
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_TRUE(page->keys.empty());
  EXPECT_EQ(page->next, 0u);
  Code any = Code::ok;
  run(client, no_key(client, any));
  EXPECT_EQ(any, Code::unavailable);
}

TEST_F(PoolTest, ACursorOfATableThatHasGoneBeginsTheNextOne) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 700, "v"));
  std::map<std::string, int> times;
  std::uint64_t cursor = 0;
  run(client, scan_into(client, 10, false, cursor, times));
  ASSERT_LT(times.size(), 300u) << "it is in the middle of the first table";
  ASSERT_TRUE(std::ranges::all_of(times, [this](const auto& seen) { return node_of(seen.first) == 0; }));
  v1alpha1::ShardMap map = map_of(2);
  map.mutable_tables()->DeleteSubrange(0, 1);
  map.set_directory(0, 1);
  map.set_directory_version(2);
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * base::kSecond));
  run(client, scan_into(client, 100, true, cursor, times));
  for (int i = 0; i < 700; ++i) {
    const std::string key = "key-" + std::to_string(i);
    if (node_of(key) == 1) EXPECT_EQ(times[key], 1) << key;
  }
}

TEST_F(PoolTest, LeavesAStoppedNodeAloneAndServesTheRest) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 50, "v"));
  v1alpha1::ShardMap map = map_of(2);
  map.mutable_nodes(1)->set_state(v1alpha1::MemoryNodeEntry::STATE_STOPPED);
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * base::kSecond));
  const Nanos before = network_.now();
  const base::Status status = put(client, key_on(1));
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find("mn-1"), std::string::npos) << status.message();
  EXPECT_LT(network_.now() - before, base::kSecond) << "nothing to wait for";
  EXPECT_TRUE(put(client, key_on(0)).ok());
  EXPECT_EQ(count(client).code(), Code::unavailable) << "a part of the keys cannot be counted";
  EXPECT_TRUE(client.pool->state().ready);
  publish(map_of(3));
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 3 && client.pool->state().ready; },
                        10 * base::kSecond));
  EXPECT_TRUE(put(client, key_on(1)).ok());
}

TEST_F(PoolTest, BeginsANewIncarnationAfterItsLeaseRanOut) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 50, "v"));
  client.port->pause();
  ASSERT_TRUE(run_until([this] { return nodes_[0]->stats().sessions == 0 && nodes_[1]->stats().sessions == 0; },
                        20 * base::kSecond))
      << "a silent client is not fenced";
  client.port->resume();
  run(client, expect_all(client, 0, 50, "v"));
  run(client, put_all(client, 0, 50, "w"));
  EXPECT_EQ(client.pool->counters().sessions_lost.get(), 2u);
  EXPECT_EQ(client.pool->counters().sessions.get(), 2u);
}

TEST_F(PoolTest, SaysGoodbyeWhenItCloses) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 50, std::string(500, 'v')));
  const Nanos before = network_.now();
  client.scope.spawn(put_all(client, 0, 1, "last"));  // under way
  finish(client);
  EXPECT_LT(network_.now() - before, base::kSecond);
  EXPECT_EQ(nodes_[0]->stats().sessions_closed + nodes_[1]->stats().sessions_closed, 2u);
  EXPECT_EQ(nodes_[0]->stats().sessions + nodes_[1]->stats().sessions, 0u);
  EXPECT_EQ(nodes_[0]->stats().sessions_fenced + nodes_[1]->stats().sessions_fenced, 0u);
  for (const node::MemoryNode* node : nodes_) EXPECT_EQ(node->stats().segments.dead, 0u) << "it has given them back";
}

// Its operations end by the deadline of the goodbye, whatever their own is.
TEST_F(PoolTest, AGoodbyeEndsByItsDeadline) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 30 * base::kSecond);
  ASSERT_TRUE(run_until_ready(client));
  network_.options().lose_reply = 1;
  base::Status written(Code::internal, "never done");
  client.scope.spawn(put_into(client, key_on(0), written));
  const auto close_by = [](Client& client, Nanos deadline) -> Task<void> { co_await client.pool->close(deadline); };
  const Nanos deadline = network_.now() + 100 * base::kMillisecond;
  client.scope.spawn(close_by(client, deadline));
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, base::kSecond));
  EXPECT_LT(network_.now(), deadline + 300 * base::kMillisecond);
  EXPECT_FALSE(written.ok());
  network_.options().lose_reply = 0;
  client.pool.reset();
}

// At any moment, also between two attempts to read the map.
TEST_F(PoolTest, APoolThatHasReachedNobodyClosesAtOnce) {
  for (Nanos after = 0; after < 600 * base::kMillisecond; after += 5 * base::kMillisecond) {
    Client& client = connect({"node-9:7400"});
    const Nanos when = network_.now() + after;
    run_until([&] { return network_.now() >= when; }, after + 1);
    const Nanos before = network_.now();
    finish(client);
    EXPECT_LT(network_.now() - before, 40 * base::kMillisecond) << "after " << after;
  }
}

// The hash of a key names its table: with two secrets one key would be looked for at two nodes, and be there twice.
TEST_F(PoolTest, LeavesANodeAloneThatGrantsAnotherHashSecret) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    ASSERT_EQ(nodes_[i]->publish(map_of(1), i == 0 ? kSecret : base::HashSecret{33, 44}).verdict,
              node::MemoryNode::Verdict::adopted);
  }
  Client& client = connect({"node-0:7400", "node-1:7400"}, 500 * base::kMillisecond);
  int taken = 0, refused = 0;
  for (int i = 0; i < 20; ++i) {
    const base::Status status = put(client, "key-" + std::to_string(i));
    ++(status.ok() ? taken : refused);
    if (!status.ok()) EXPECT_NE(status.message().find("another hash secret"), std::string::npos) << status.message();
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(refused, 0);
  run_until([] { return false; }, 3 * base::kSecond);
  EXPECT_EQ(std::min(nodes_[0]->stats().keys, nodes_[1]->stats().keys), 0u);
  EXPECT_EQ(nodes_[0]->stats().sessions_fenced + nodes_[1]->stats().sessions_fenced, 0u) << "it says goodbye to it";
}

TEST_F(PoolTest, RefusesAPoolOfAnotherName) {
  publish(map_of(1));
  clients_.push_back(std::make_unique<Client>());
  Client& client = *clients_.back();
  client.port = &network_.add_client({.pool_uid = "pool-2", .role = "client", .name = "c", .authenticated = true});
  client.pool = std::make_unique<Pool>(
      *client.port,
      Pool::Options{
          .pool_uid = "pool-2", .client_name = "c", .bootstrap = {"node-0:7400"}, .operation_deadline = base::kSecond});
  client.pool->start();
  EXPECT_EQ(put(client, "a").code(), Code::unavailable);
  EXPECT_FALSE(client.pool->state().ready);
  EXPECT_EQ(nodes_[0]->stats().sessions, 0u);
}

// A client's wire that can do less than the memory node's.
class PoorPort final : public fabric::Port {
 public:
  explicit PoorPort(SimPort& port) : port_(port) {}
  fabric::Caps caps() const override {
    fabric::Caps caps = port_.caps();
    caps.max_chain = 1;
    return caps;
  }
  Nanos now() const override { return port_.now(); }
  std::uint64_t random() override { return port_.random(); }
  Task<base::Result<std::unique_ptr<fabric::Lane>>> open_lane(fabric::LaneGrant grant, Nanos deadline) override {
    return port_.open_lane(std::move(grant), deadline);
  }
  void arm(fabric::Timer& timer) override { port_.arm(timer); }
  void disarm(fabric::Timer& timer) override { port_.disarm(timer); }

 private:
  Task<base::Result<std::string>> exchange_with(std::string node_name, std::string endpoint, std::string request,
                                                Nanos deadline) override {
    return port_.exchange(std::move(endpoint), std::move(request), deadline, std::move(node_name));
  }
  SimPort& port_;
};

TEST_F(PoolTest, OpensNoTableOverAWireThatCannotServeItsProtocol) {
  publish(map_of(1));
  clients_.push_back(std::make_unique<Client>());
  Client& client = *clients_.back();
  client.port = &network_.add_client({.pool_uid = kUid, .role = "client", .name = "c", .authenticated = true});
  PoorPort poor(*client.port);
  client.pool = std::make_unique<Pool>(
      poor,
      Pool::Options{
          .pool_uid = kUid, .client_name = "c", .bootstrap = {"node-0:7400"}, .operation_deadline = base::kSecond});
  client.pool->start();
  const base::Status refused = put(client, key_on(0));
  EXPECT_EQ(refused.code(), Code::unavailable);
  EXPECT_NE(refused.message().find("cannot serve the protocol"), std::string::npos) << refused.message();
  EXPECT_GT(nodes_[0]->stats().sessions_closed, 1u) << "it says goodbye, and tries again later";
  finish(client);
  EXPECT_EQ(nodes_[0]->stats().sessions + nodes_[1]->stats().sessions, 0u);
}

class PoolOverASlowWireTest : public PoolTest {
 protected:
  PoolOverASlowWireTest() : PoolTest(41 * base::kMillisecond) {}
};

TEST_F(PoolOverASlowWireTest, RefusesNodesThatTakeClientsForDeadBeforeTheWireHasTriedAgain) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, base::kSecond);
  const base::Status refused = put(client, "a");
  EXPECT_EQ(refused.code(), Code::unavailable);
  for (const char* said : {"for 40 ms", "up to 41 ms", "--failure-timeout"}) {
    EXPECT_NE(refused.message().find(said), std::string::npos) << refused.message();
  }
  EXPECT_FALSE(client.pool->state().ready);
}

class PatientPoolTest : public PoolTest {
 protected:
  PatientPoolTest() : PoolTest(0, kGeometry, 20 * base::kSecond) {}
  void take(Nanos message) { network_.options().min_delay = network_.options().max_delay = message; }
};

// A client that may stand still for so long without being taken for dead has so long to answer.
TEST_F(PatientPoolTest, ConnectsForAsLongAsThePoolsFailureTimeout) {
  publish(map_of(1));
  take(700 * base::kMillisecond);  // each answer comes in time, a whole handshake does not
  Client& client = connect();
  ASSERT_TRUE(run_until([&client] { return client.pool->state().ready; })) << client.pool->state().message;
  EXPECT_EQ(client.pool->counters().failed_opens.get(), 0u);

  take(2 * base::kSecond);
  publish(map_of(2));
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; })) << "the map was not read in time";
  EXPECT_EQ(client.pool->counters().failed_map_fetches.get(), 0u);
  EXPECT_EQ(client.pool->counters().sessions_lost.get(), 0u);
}

// All keys of a memory node have the same low bits of the hash by which the map chose it.
TEST_F(PoolOfManyTablesTest, EverySplitMovesKeys) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 1500, "v"));
  run(client, expect_all(client, 0, 1500, "v"));
  run(client, expect_all(connect(), 0, 1500, "v"));
  ASSERT_TRUE(run_until([this] { return splitting(0) + splitting(1) == 0; }, 10 * base::kSecond));
  ASSERT_TRUE(run_until([&client] { return client.pool->counters().index.get(&index::Marks::splits_finished) > 1; },
                        10 * base::kSecond));
  const auto& counts = client.pool->counters().index;
  const std::uint64_t splits = counts.get(&index::Marks::splits);
  EXPECT_EQ(splits, counts.get(&index::Marks::splits_finished));
  EXPECT_GT(counts.get(&index::Marks::moved), 100 * splits);
}

// A scan that continues while tables are split returns every key that was there when it began.
TEST_F(PoolOfManyTablesTest, AScanGoesOnThroughSplits) {
  publish(map_of(1));
  Client& client = connect();
  Client& reader = connect();
  run(client, put_all(client, 0, 200, "v"));
  std::map<std::string, int> times;
  std::uint64_t cursor = 0;
  run(reader, scan_into(reader, 1, false, cursor, times));
  ASSERT_NE(cursor, 0u);
  run(client, put_all(client, 200, 1500, "v"));
  run(reader, scan_into(reader, 1, false, cursor, times));
  ASSERT_NE(cursor, 0u);
  run(client, put_all(client, 1500, 2500, "v"));
  ASSERT_TRUE(run_until([&client] { return client.pool->counters().index.get(&index::Marks::splits_finished) > 3; },
                        10 * base::kSecond));
  run(reader, scan_into(reader, 100, true, cursor, times));
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(times.contains("key-" + std::to_string(i))) << i;
}

TEST_F(PoolOfManyTablesTest, TheSplitsOfTheDeadAreFinishedWithoutAClientThatNeedsThem) {
  publish(map_of(1));
  Client& other = connect();
  for (const bool asked : {false, true}) {
    Client& doomed = connect();
    std::set<int> there;
    for (int keys = asked ? 5000 : 0; splitting(0) == 0; keys += 50) {
      doomed.scope.spawn(put_known(doomed, keys, keys + 50, "v", there));
      run_until([&] { return splitting(0) > 0 || doomed.scope.running() == 0; });
    }
    doomed.port->pause();
    const std::uint64_t fenced = nodes_[0]->stats().sessions_fenced;
    ASSERT_TRUE(run_until([&] { return nodes_[0]->stats().sessions_fenced > fenced; }, 20 * base::kSecond));
    EXPECT_EQ(splitting(0), 1u) << "nobody has finished it yet";
    if (asked) {
      std::vector<Pool::Repair> repairs;
      run(other, repair(other, repairs));
      ASSERT_EQ(repairs.size(), 2u);
      for (const Pool::Repair& one : repairs) EXPECT_EQ(one.trouble, "");
      EXPECT_EQ(splitting(0), 0u);
    } else {
      EXPECT_TRUE(run_until([this] { return splitting(0) == 0; }, 20 * base::kSecond)) << "nobody finishes it";
      EXPECT_TRUE(run_until([&other] { return lines_with(other.log, "finished 1 splits of tables") == 1; }));
    }
    doomed.port->resume();
    ASSERT_TRUE(run_until([&doomed] { return doomed.scope.running() == 0; }));
    EXPECT_GT(there.size(), 500u);
    for (const int key : there) run(other, expect_all(other, key, key + 1, "v"));
  }
  EXPECT_GT(other.pool->counters().index.get(&index::Marks::splits_taken_over), 0u);
}

// No client adds a key. One of the splitters dies.
TEST_F(PoolOfManyTablesTest, TablesAreSplitAheadWhileClientsWork) {
  publish(map_of(1));
  Client& client = connect();
  Client& doomed = connect();
  run(client, put_all(client, 0, 200, "v"));
  const auto tables = [this](std::size_t i) { return nodes_[i]->facts().memory_node().even_tables(); };
  EXPECT_EQ(tables(0) * tables(1), 1u);

  v1alpha1::ShardMap map = map_of(2);
  map.set_least_tables(8);
  publish(map);
  ASSERT_TRUE(run_until([this] { return splitting(0) + splitting(1) > 1; }, 10 * base::kSecond));
  doomed.port->pause();
  while (tables(0) < 8 || tables(1) < 8) {
    ASSERT_LT(network_.now(), 60 * base::kSecond) << tables(0) << " and " << tables(1) << " tables";
    run(client, expect_all(client, 0, 200, "v"));
    run(client, put_all(client, 0, 200, "v"));
  }
  EXPECT_GT(client.pool->counters().index.get(&index::Marks::splits_taken_over) +
                doomed.pool->counters().index.get(&index::Marks::splits_finished),
            0u);
  EXPECT_EQ(count(client).value(), 200u);
  doomed.port->resume();

  // Splits no more than the map asked for.
  map.set_epoch(3);
  publish(map);
  const Nanos then = network_.now() + 2 * base::kSecond;
  ASSERT_TRUE(run_until([&] { return network_.now() > then; }));
  run(client, expect_all(client, 0, 200, "v"));
  EXPECT_EQ(tables(0) + tables(1), 16u);
  EXPECT_EQ(splitting(0) + splitting(1), 0u);
  EXPECT_EQ(lines_with(client.log, "are not all split ahead"), 0);
}

// A client that says goodbye leaves its splits unfinished, and no client works on a key of theirs.
TEST_F(PoolOfManyTablesTest, SplitsAheadThatWereLeftAreFinished) {
  publish(map_of(1));
  Client& other = connect();
  run(other, put_all(other, 0, 200, "v"));
  const Nanos settled = network_.now() + 2 * base::kSecond;
  ASSERT_TRUE(run_until([&] { return network_.now() > settled; }));
  Client& leaver = connect();
  run(leaver, expect_all(leaver, 0, 200, "v"));

  v1alpha1::ShardMap map = map_of(2);
  map.set_least_tables(8);
  other.port->pause();  // all that is split is the leaver's
  publish(map);
  ASSERT_TRUE(run_until([this] { return splitting(0) + splitting(1) > 0; }, 10 * base::kSecond));
  finish(leaver);
  EXPECT_GT(splitting(0) + splitting(1), 0u);
  other.port->resume();
  const auto tables = [this](std::size_t i) { return nodes_[i]->facts().memory_node().even_tables(); };
  EXPECT_TRUE(run_until([&] { return tables(0) == 8 && tables(1) == 8; }, 60 * base::kSecond))
      << tables(0) << " and " << tables(1) << " tables";
  EXPECT_GT(other.pool->counters().index.get(&index::Marks::splits_taken_over), 0u);
  run(other, expect_all(other, 0, 200, "v"));
}

// RACE counts a change after it has taken effect, and a count waits for that.
TEST_F(PoolMoveTest, ACountThatIsNotDoneInTimeSaysSo) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 10 * base::kMillisecond);
  ASSERT_TRUE(run_until_ready(client));
  ASSERT_TRUE(put(client, key_on(0)).ok());
  network_.options().lose_reply = 1;
  const Nanos before = network_.now();
  EXPECT_EQ(count(client).code(), Code::timed_out);
  EXPECT_LT(network_.now() - before, 15 * base::kMillisecond);
  network_.options().lose_reply = 0;
}

TEST_F(PoolMoveTest, AMoveWhoseTargetIsOutOfReachSaysSo) {
  publish(drain(1));
  Client& client = connect();
  run(client, put_all(client, 0, 50, "v"));
  responders_[1]->stop();
  ASSERT_EQ(nodes_[0]->publish(drain(2), kSecret).verdict, node::MemoryNode::Verdict::adopted);
  EXPECT_TRUE(run_until([&client] {
    return lines_with(client.log, "move 1 of keys away from memory node mn-0 is not finished: memory node mn-1 at") > 0;
  }));
}

// The next client goes on with it.
TEST_F(PoolMoveTest, AMoverThatClosesStopsInTheMiddle) {
  publish(drain(1));
  Client& client = connect();
  run(client, put_all(client, 0, 600, "v"));
  const std::size_t before = slots_at(1);
  publish(drain(2));
  ASSERT_TRUE(run_until([&] { return slots_at(1) > before + 20; }));
  finish(client);
  EXPECT_GT(keys_at(0).size(), 0u);
  Client& next = connect();
  ASSERT_TRUE(run_until([&next] { return drained(next); }));
  EXPECT_EQ(keys_at(0).size(), 0u);
  run(next, expect_all(next, 0, 600, "v"));
}

class PoolMoveOfAnyTest : public PoolMoveTest, public ::testing::WithParamInterface<layout::Protocol> {
 protected:
  PoolMoveOfAnyTest() : PoolMoveTest(GetParam()) {}
};

TEST_P(PoolMoveOfAnyTest, ANodeIsDrainedWhileClientsWork) {
  publish(drain(1));
  Client& client = connect();
  Client& other = connect();
  run(client, put_all(client, 0, 600, "v"));
  EXPECT_GT(keys_at(0).size(), 200u);
  publish(drain(2));
  // Keys come, change and go while their parts leave, and no increment gets lost.
  client.scope.spawn(put_all(client, 0, 300, "w"));
  client.scope.spawn(put_all(client, 600, 900, "w"));
  client.scope.spawn(increment(client, 200));
  other.scope.spawn(erase_all(other, 300, 600));
  other.scope.spawn(increment(other, 200));
  ASSERT_TRUE(run_until([&] { return client.scope.running() + other.scope.running() == 0; }));
  ASSERT_TRUE(run_until([&] { return drained(client) && drained(other); }));
  EXPECT_TRUE(drained(client.told) && drained(other.told)) << "it is told of";
  run(client, expect_all(client, 0, 300, "w"));
  run(other, expect_all(other, 600, 900, "w"));
  EXPECT_EQ(count(client).value(), 601u);
  EXPECT_EQ(keys_at(0).size(), 0u);
  EXPECT_EQ(keys_at(1).size(), 601u);
  EXPECT_GT(client.pool->counters().index.get(&index::Marks::moved_away) +
                other.pool->counters().index.get(&index::Marks::moved_away),
            100u);
  const auto lines = [&](const char* what) { return lines_with(client.log, what) + lines_with(other.log, what); };
  EXPECT_GT(lines(" keys away from memory node mn-0 in move 1"), 0);
  EXPECT_EQ(lines("moved 0 keys"), 0);
  EXPECT_EQ(lines("is not finished"), 0);

  publish(drain(3));
  ASSERT_TRUE(run_until([&] { return client.pool->state().epoch == 3; }));
  run(client, increment(client, 1));
  run(client, expect_all(client, 0, 300, "w"));
}

// A scan that continues while keys leave for a table that it has already read, or for one that is still to come,
// returns every key that was there when it began.
TEST_P(PoolMoveOfAnyTest, AScanGoesOnThroughAMove) {
  publish(drain(1));
  Client& client = connect();
  run(client, put_all(client, 0, 600, "v"));
  std::vector<Reader> readers;
  for (int steps = 0; steps < 10; ++steps) {
    Reader& reader = readers.emplace_back(Reader{.client = &connect(), .times = {}});
    for (int i = 0; i < steps && (i == 0 || reader.cursor != 0); ++i) {
      run(*reader.client, scan_into(*reader.client, 1, false, reader.cursor, reader.times));
    }
  }
  publish(drain(2, 1));
  // One of them continues beside the move.
  Reader& beside = readers[2];
  beside.client->scope.spawn(scan_into(*beside.client, 1, true, beside.cursor, beside.times));
  for (const Reader& reader : readers) {
    ASSERT_TRUE(run_until([&reader] { return drained(*reader.client) && reader.client->scope.running() == 0; }));
  }
  EXPECT_EQ(keys_at(1).size(), 0u);
  std::size_t half_way = 0;
  for (Reader& reader : readers) {
    const bool over = reader.cursor == 0 && !reader.times.empty();
    half_way += over ? 0 : 1;
    if (!over) run(*reader.client, scan_into(*reader.client, 1, true, reader.cursor, reader.times));
    EXPECT_EQ(reader.times.size(), 600u) << "reader " << &reader - readers.data();
  }
  EXPECT_GT(half_way, 6u) << "the test is too small";
}

// A key that leaves in the middle of a scan must not land where the scan has been.
TEST_F(PoolMoveTest, AScanThatBeginsInTheMiddleOfAMoveMissesNothing) {
  publish(drain(1));
  Client& client = connect();
  run(client, put_all(client, 0, 600, "v"));
  std::vector<Reader> readers;
  for (int i = 0; i < 8; ++i) readers.push_back({.client = &connect(), .times = {}});
  const std::size_t all = slots_at(1);
  ASSERT_GT(all, 200u);
  publish(drain(2, 1));
  for (Reader& reader : readers) {
    const std::size_t left = all - 20 * static_cast<std::size_t>(&reader - readers.data() + 1);
    ASSERT_TRUE(run_until([&] { return slots_at(1) <= left; }));
    reader.client->scope.spawn(scan_into(*reader.client, 1, true, reader.cursor, reader.times));
  }
  EXPECT_GT(slots_at(1), 0u) << "the test is too small";
  for (const Reader& reader : readers) {
    ASSERT_TRUE(run_until([&reader] { return reader.client->scope.running() == 0; }));
    EXPECT_EQ(reader.times.size(), 600u) << "reader " << &reader - readers.data();
  }
}

// A client that follows an older map learns of the move at the target, too.
TEST_F(PoolMoveTest, ItsNumberIsInTheHeadersOfBothEnds) {
  publish(drain(1));
  Client& client = connect();
  run(client, put_all(client, 0, 20, "v"));
  publish(drain(2));
  ASSERT_TRUE(run_until([&] { return drained(client); }));
  for (std::size_t i = 0; i < 2; ++i) {
    std::size_t open = 0, closed = 0;
    each_word(i, [&](bool header, std::uint64_t word) {
      if (header && word != 0) ++(race::HeaderWord::Move::get(word) == 1 ? closed : open);
    });
    EXPECT_EQ(open, 0u) << "node " << i;
    EXPECT_GT(closed, 0u) << "node " << i;
  }
}

// So the client that takes over from it makes both nodes fence it.
TEST_F(PoolMoveTest, AMoverHoldsTheLeasesOfBothEnds) {
  publish(drain(1));
  Client& client = connect();
  run(client, put_all(client, 0, 100, "v"));
  const auto held = [this](std::size_t i) {
    const std::byte* leases = memory_[i].get() + nodes_[i]->geometry().at(layout::kLeases).offset;
    return layout::LeaseWord::held(base::load<std::uint64_t>(leases + 8 * layout::kMoveLease));
  };
  const std::size_t all = slots_at(0);
  publish(drain(2));
  ASSERT_TRUE(run_until([&] { return slots_at(0) < all; }));
  EXPECT_TRUE(held(0));
  EXPECT_TRUE(held(1));
  ASSERT_TRUE(run_until([&] { return drained(client); }));
  EXPECT_FALSE(held(0));
  EXPECT_FALSE(held(1));
}

// Nodes are in the order of their names: in the next map another node may stand in the target's place.
TEST_P(PoolMoveOfAnyTest, AMoverThatWaitsForATargetGoesByTheMapThatComesMeanwhile) {
  publish(drain(1));
  Client& writer = connect();
  run(writer, put_all(writer, 0, 100, "v"));
  finish(writer);
  v1alpha1::ShardMap map = drain(2);
  publish(map);
  responders_[1]->stop();
  Client& mover = connect({"node-0:7400"});
  ASSERT_TRUE(run_until([&mover] {
    const PoolState state = mover.pool->state();
    return state.epoch == 2 && state.nodes[0].open;
  }));
  run_until([] { return false; }, 200 * base::kMillisecond);

  responders_.push_back(&network_.add_node("node-2:7400"));
  nodes_.push_back(nullptr);
  begin_life(2, "mn-0a");
  map.set_epoch(3);
  *map.add_nodes() = map.nodes(1);
  *map.mutable_nodes(1) = nodes_[2]->entry();
  map.mutable_nodes(1)->set_state(v1alpha1::MemoryNodeEntry::STATE_SERVING);
  map.mutable_tables(1)->set_node(2);
  auto* table = map.add_tables();
  table->set_id(2);
  table->set_node(1);
  publish(map);
  ASSERT_TRUE(run_until([&mover] {
    const PoolState state = mover.pool->state();
    return state.epoch == 3 && state.nodes[1].open;
  }));
  responders_[1]->serve(*nodes_[1]);
  ASSERT_TRUE(run_until([&mover] { return drained(mover); }));
  EXPECT_EQ(keys_at(0).size(), 0u);
  EXPECT_EQ(keys_at(1).size(), 100u);
  EXPECT_EQ(keys_at(2).size(), 0u);
  run(mover, expect_all(mover, 0, 100, "v"));
}

// Those whose clients allocate from heaps, and all.
const auto kProtocols = ::testing::Values(layout::Protocol::rcuckoo, layout::Protocol::race);
const auto kAllProtocols =
    ::testing::Values(layout::Protocol::rcuckoo, layout::Protocol::race, layout::Protocol::outback);
std::string name_of_protocol(const ::testing::TestParamInfo<layout::Protocol>& of) {
  return std::string(layout::shape_of(of.param).name);
}
INSTANTIATE_TEST_SUITE_P(Protocols, PoolMoveOfAnyTest, kAllProtocols, name_of_protocol);

// --- Memory nodes whose heaps are full

class PoolFullTest : public PoolTest, public ::testing::WithParamInterface<layout::Protocol> {
 protected:
  static constexpr std::size_t kValue = 2000;
  static layout::GeometryRequest with(layout::Protocol protocol) {
    layout::GeometryRequest request = kGeometry;
    request.protocol = protocol;
    return request;
  }
  PoolFullTest() : PoolTest(0, with(GetParam()), 40 * base::kMillisecond, 16 << 20) {}

  static std::string value(int key, char round) { return std::string(kValue, round) + std::to_string(key % 10); }
  static std::string name(int key) { return "key-" + std::to_string(key); }

  // Puts keys from `keys` on until both memory nodes have refused some.
  static Task<void> fill(Client& client, int& keys) {
    for (int refused = 0, tried = 0; refused < 30; ++tried) {
      const base::Status status = co_await client.pool->put(name(keys), value(keys, 'a'));
      if (status.ok()) {
        ++keys;
        refused = 0;
        continue;
      }
      ++refused;
      EXPECT_EQ(status.code(), Code::out_of_memory) << status.message();
      EXPECT_NE(status.message().find("delete keys or give the pool more memory"), std::string::npos);
      // The next key may belong to the other memory node.
      if (!(co_await client.pool->put("other-" + std::to_string(tried % 100), value(keys, 'a'))).ok()) ++refused;
    }
  }
  static Task<void> put_over(Client& client, int keys, char round) {
    for (int i = 0; i < keys; ++i) {
      const base::Status status = co_await client.pool->put(name(i), value(i, round));
      EXPECT_TRUE(status.ok()) << i << ": " << status.message();
    }
  }
  static Task<void> expect(Client& client, int keys, char round) {
    for (int i = 0; i < keys; ++i) {
      const auto got = co_await client.pool->get(name(i));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (got.ok()) EXPECT_EQ(got->value_or("nothing"), value(i, round));
    }
  }
  static Task<void> add(Client& client, int keys) {
    for (int i = 0; i < keys; ++i) {
      const base::Status status = co_await client.pool->put("new-" + std::to_string(i), value(i, 'n'));
      EXPECT_TRUE(status.ok()) << i << ": " << status.message();
    }
  }
  static Task<void> edit(Client& client, int keys) {
    struct SameLength final : Editor {
      Edit edit(std::optional<std::string_view> value) override {
        return Edit::put(std::string(value.value_or("").size(), 'e'));
      }
    } editor;
    for (int i = 0; i < keys; ++i) {
      const base::Status status = co_await client.pool->modify(name(i), editor);
      EXPECT_TRUE(status.ok()) << i << ": " << status.message();
    }
  }
  // Erases all but every twentieth key.
  static Task<void> erase_most(Client& client, int keys) {
    for (int i = 0; i < keys; ++i) {
      if (i % 20 != 0) EXPECT_TRUE((co_await client.pool->erase(name(i))).ok());
    }
  }
  static Task<void> expect_rest(Client& client, int keys) {
    for (int i = 0; i < keys; i += 20) {
      const auto got = co_await client.pool->get(name(i));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (got.ok()) EXPECT_EQ(got->value_or("nothing"), value(i, 'a'));
    }
  }
  static std::string large(int key, std::size_t bytes) { return std::string(bytes, static_cast<char>('a' + key % 26)); }
  static Task<void> add_large(Client& client, int keys, std::size_t bytes) {
    for (int i = 0; i < keys; ++i) {
      const std::string key = std::to_string(bytes) + "-" + std::to_string(i);
      // A full heap is believed full for a moment longer.
      base::Status status;
      for (int tries = 0; tries < 40; ++tries) {
        status = co_await client.pool->put(key, large(i, bytes));
        if (status.code() != Code::out_of_memory) break;
        co_await client.port->sleep_for(100 * base::kMillisecond);
      }
      EXPECT_TRUE(status.ok()) << bytes << " bytes, " << i << ": " << status.message();
      if (!status.ok()) co_return;
    }
  }
  static Task<void> expect_large(Client& client, int keys, std::size_t bytes) {
    for (int i = 0; i < keys; ++i) {
      const auto got = co_await client.pool->get(std::to_string(bytes) + "-" + std::to_string(i));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (got.ok()) EXPECT_EQ(got->value_or("nothing"), large(i, bytes));
    }
  }
  static Task<void> erase(Client& client, int keys) {
    for (int i = 0; i < keys; ++i) EXPECT_TRUE((co_await client.pool->erase(name(i))).ok());
  }
};

// Which of its keys a full memory node keeps.
enum class Left { every_second, one_in_twenty, one_in_a_hundred };

// One memory node that is full of values of one size, until many of them are deleted.
class PoolRoom : public PoolTest {
 protected:
  static layout::GeometryRequest with(layout::Protocol protocol) {
    layout::GeometryRequest request = kGeometry;
    request.protocol = protocol;
    return request;
  }
  explicit PoolRoom(layout::Protocol protocol) : PoolTest(0, with(protocol), 40 * base::kMillisecond, 16 << 20) {
    publish(map_of(1));
    map_.emplace(*map::Map::from(map_of(1)));
  }

  static constexpr Nanos kTick = 100 * base::kMillisecond;  // a twentieth of the lease
  static constexpr double kMostTicks = 10;                  // that a write may wait for room

  static bool is_left(Left left, int key) {
    switch (left) {
      case Left::every_second:
        return key % 2 == 0;
      case Left::one_in_twenty:
        return key % 20 == 0;
      case Left::one_in_a_hundred:
        return base::mix(static_cast<std::uint64_t>(key)) % 100 == 0;
    }
    return true;
  }
  static std::string value(int key, std::size_t bytes) { return std::string(bytes, static_cast<char>('a' + key % 26)); }
  // Returns the keys of one name that the first memory node serves.
  std::string name(const std::string& stem, int key) {
    std::vector<std::string>& names = names_[stem];
    for (int& next = tried_[stem]; static_cast<int>(names.size()) <= key; ++next) {
      std::string one = stem + "-" + std::to_string(next);
      if (map_->table_of(map::directory_hash(kSecret, base::bytes_of(one))).node() == 0)
        names.push_back(std::move(one));
    }
    return names[static_cast<std::size_t>(key)];
  }

  // Puts values by each of these clients in turn until one is refused.
  Task<void> fill(std::vector<Client*> clients, std::size_t bytes, int& keys) {
    for (keys = 0;; ++keys) {
      const Client& client = *clients[static_cast<std::size_t>(keys) % clients.size()];
      const base::Status status = co_await client.pool->put(name("old", keys), value(keys, bytes));
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), Code::out_of_memory) << status.message();
      break;
    }
  }
  Task<void> erase_but(Client& client, Left left, int keys) {
    for (int i = 0; i < keys; ++i) {
      if (!is_left(left, i)) EXPECT_TRUE((co_await client.pool->erase(name("old", i))).ok());
    }
  }
  Task<void> expect_left(Client& client, Left left, int keys, std::size_t bytes) {
    for (int i = 0; i < keys; ++i) {
      const auto got = co_await client.pool->get(name("old", i));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (got.ok()) EXPECT_TRUE(*got == (is_left(left, i) ? std::optional(value(i, bytes)) : std::nullopt)) << i;
    }
  }
  // Each is accepted the first time.
  Task<void> add(Client& client, int keys, std::size_t bytes) {
    const std::string stem = std::to_string(bytes);
    for (int i = 0; i < keys; ++i) {
      const Nanos begun = client.port->now();
      const base::Status status = co_await client.pool->put(name(stem, i), value(i, bytes));
      const Nanos took = client.port->now() - begun;
      if (took > longest_) longest_ = took;
      EXPECT_TRUE(status.ok()) << i << " of " << keys << " of " << bytes << " bytes: " << status.message();
      if (!status.ok()) co_return;
    }
  }
  Task<void> expect_and_erase(Client& client, int keys, std::size_t bytes) {
    const std::string stem = std::to_string(bytes);
    for (int i = 0; i < keys; ++i) {
      const auto got = co_await client.pool->get(name(stem, i));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (got.ok()) EXPECT_TRUE(*got == value(i, bytes)) << i;  // too long to be printed
      EXPECT_TRUE((co_await client.pool->erase(name(stem, i))).ok());
    }
  }

  std::uint64_t segments_for(std::uint64_t values, std::size_t bytes) const {
    const std::uint64_t extent = layout::extent_bytes(12, bytes), segment = nodes_[0]->geometry().segment_bytes;
    const std::uint64_t id = layout::size_class_for(extent, segment);
    if (id == layout::kRun) return values * layout::run_segments(extent, segment);
    const std::uint64_t blocks = layout::segment_shape(id, segment).blocks;
    return (values + blocks - 1) / blocks;
  }
  // Returns how many values of `bytes` fit beside `values` of `others`: in all segments, without what is kept for
  // replacements and `margin` that clients have in part.
  std::uint64_t fit(std::uint64_t values, std::size_t others, std::size_t bytes, std::uint64_t margin) const {
    const std::uint64_t segments = nodes_[0]->geometry().segments;
    const std::uint64_t taken = segments / 16 + segments_for(values, others) + margin;
    std::uint64_t fits = 0;
    while (taken + segments_for(fits + 1, bytes) <= segments) ++fits;
    return fits;
  }
  std::uint64_t count_left(Left left, int keys) const {
    std::uint64_t count = 0;
    for (int i = 0; i < keys; ++i) count += is_left(left, i) ? 1u : 0u;
    return count;
  }
  // Writes every fourth key, again and again.
  Task<void> write_over(Client& client, int from, int keys, std::size_t bytes, const bool& ended) {
    int i = from;
    while (!ended) {
      const base::Status status = co_await client.pool->put(name("old", i), value(i, bytes));
      EXPECT_TRUE(status.ok()) << i << ": " << status.message();
      co_await client.port->sleep_for(base::kMillisecond);
      i = i + 4 < keys ? i + 4 : from;
    }
  }
  static Task<void> erase_one(Client& client, std::string key) { EXPECT_TRUE((co_await client.pool->erase(key)).ok()); }
  static Task<void> put_sized(Client& client, std::string key, std::size_t bytes, base::Status& status) {
    status = co_await client.pool->put(key, value(1, bytes));
  }
  static Task<void> nothing() { co_return; }
  // Returns how long the longest write has waited since the last call, in ticks. The test's report has the figure, too.
  double longest(const std::string& of) {
    const double ticks = static_cast<double>(std::exchange(longest_, 0)) / static_cast<double>(kTick);
    RecordProperty("longest_wait_in_ticks_" + of, std::to_string(ticks));
    return ticks;
  }

  std::optional<map::Map> map_;
  std::map<std::string, std::vector<std::string>> names_;
  std::map<std::string, int> tried_;
  Nanos longest_ = 0;
};

class PoolRoomTest : public PoolRoom, public ::testing::WithParamInterface<std::tuple<layout::Protocol, Left>> {
 protected:
  PoolRoomTest() : PoolRoom(std::get<0>(GetParam())) {}
};

class PoolRoomOfEitherTest : public PoolRoom, public ::testing::WithParamInterface<layout::Protocol> {
 protected:
  PoolRoomOfEitherTest() : PoolRoom(GetParam()) {}
};

class PoolSparseTest : public PoolTest, public ::testing::WithParamInterface<layout::Protocol> {
 protected:
  static layout::GeometryRequest with(layout::Protocol protocol) {
    layout::GeometryRequest request = kGeometry;
    request.protocol = protocol;
    request.table_percent = 40;
    return request;
  }
  PoolSparseTest() : PoolTest(0, with(GetParam()), 40 * base::kMillisecond, 16 << 20) {}
};

TEST_P(PoolFullTest, ReadsAndWritesWhatThereIsAndTakesNewKeysWhenSomeHaveGone) {
  publish(map_of(1));
  Client &filler = connect(), &other = connect();
  int keys = 0;
  run(filler, fill(filler, keys));
  const int first = keys;
  EXPECT_GT(keys, 5000);
  // Any client puts any value, and any value is freed, any number of times.
  for (const char round : {'b', 'c', 'd'}) {
    run(filler, put_over(filler, keys, round));
    run(other, fill(other, keys));
    run(other, put_over(other, keys, round));
    run(filler, fill(filler, keys));
    run(filler, put_over(filler, keys, round));
  }
  run(other, expect(other, keys, 'd'));
  EXPECT_LT(keys, first + first / 8);
  run(other, edit(other, keys / 4));
  run(other, erase(other, keys / 2));
  run_until([] { return false; }, 3 * base::kSecond);
  run(filler, add(filler, keys / 3));
}

// When few values of one size are left, some of them in every segment, there is room for others of any size.
TEST_P(PoolFullTest, DeletingKeysMakesRoomForValuesOfAnySize) {
  publish(map_of(1));
  Client &filler = connect(), &other = connect();
  int keys = 0;
  run(filler, fill(filler, keys));
  run(other, erase_most(other, keys));
  for (const std::size_t bytes : {5000u, 700u, 300u, 70'000u}) {
    run(other, add_large(other, bytes == 70'000 ? 20 : 1000, bytes));
    run(other, expect_large(other, bytes == 70'000 ? 20 : 1000, bytes));
  }
  run(other, expect_rest(other, keys));
  EXPECT_GT(nodes_[0]->stats().heap_bytes, nodes_[0]->stats().heap_live);
  EXPECT_TRUE(run_until([this] { return nodes_[0]->stats().segments_by_class.size() > 2; }));
}
INSTANTIATE_TEST_SUITE_P(Protocols, PoolFullTest, kProtocols, name_of_protocol);

// What fits by arithmetic is accepted the first time, wherever the remaining values lie, whatever was refused before,
// and up to the largest value.
TEST_P(PoolRoomTest, WhatFitsIsAccepted) {
  constexpr std::size_t kOld = 2000;
  const Left left = std::get<1>(GetParam());
  Client &filler = connect(), &other = connect();
  int keys = 0;
  run(filler, fill({&filler}, kOld, keys));
  EXPECT_GT(keys, 4000);
  run(other, erase_but(other, left, keys));
  const std::uint64_t there = count_left(left, keys);
  for (const std::size_t bytes : {std::size_t{130}, layout::kMaxValueBytes, std::size_t{1000}, std::size_t{300'000},
                                  std::size_t{300}, std::size_t{70'000}, std::size_t{10'000}}) {
    const int fits = static_cast<int>(std::min<std::uint64_t>(fit(there, kOld, bytes, 3), 2500));
    EXPECT_GT(fits, bytes > 500'000 ? 2 : 5);
    run(other, add(other, fits, bytes));
    EXPECT_LE(longest(std::to_string(bytes)), kMostTicks) << bytes;
    run(other, expect_and_erase(other, fits, bytes));
  }
  run(other, expect_left(other, left, keys, kOld));
}
std::string name_of_room(const ::testing::TestParamInfo<PoolRoomTest::ParamType>& of) {
  constexpr std::array kLeft{"EverySecond", "OneInTwenty", "OneInAHundred"};
  return std::string(std::get<0>(of.param) == layout::Protocol::race ? "Race" : "Rcuckoo") +
         kLeft[static_cast<std::size_t>(std::get<1>(of.param))];
}
const auto kLeftOver = ::testing::Values(Left::every_second, Left::one_in_twenty, Left::one_in_a_hundred);
INSTANTIATE_TEST_SUITE_P(Protocols, PoolRoomTest, ::testing::Combine(kProtocols, kLeftOver), name_of_room);

// Values that take whole segments lie in the way of longer ones.
TEST_P(PoolRoomOfEitherTest, LongValuesMakeRoomForLongerOnes) {
  Client &filler = connect(), &other = connect();
  for (const std::size_t old : {70'000u, 300'000u}) {
    int keys = 0;
    run(filler, fill({&filler}, old, keys));
    run(other, erase_but(other, Left::every_second, keys));
    const auto fits = static_cast<int>(fit(count_left(Left::every_second, keys), old, layout::kMaxValueBytes, 4));
    EXPECT_GT(fits, 1);
    run(other, add(other, fits, layout::kMaxValueBytes));
    EXPECT_LE(longest(std::to_string(old)), kMostTicks) << old;
    run(other, expect_and_erase(other, fits, layout::kMaxValueBytes));
    run(other, expect_left(other, Left::every_second, keys, old));
    for (int i = 0; i < keys; ++i) run(other, erase_one(other, name("old", i)));
  }
}

// Other clients use half of each segment, and continue to overwrite it.
TEST_P(PoolRoomOfEitherTest, OthersWhoWriteMakeRoom) {
  constexpr std::size_t kOld = 2000;
  Client &one = connect(), &two = connect(), &other = connect();
  int keys = 0;
  run(one, fill({&one, &two}, kOld, keys));
  run(other, erase_but(other, Left::every_second, keys));
  bool ended = false;
  one.scope.spawn(write_over(one, 0, keys, kOld, ended));
  two.scope.spawn(write_over(two, 2, keys, kOld, ended));
  for (const std::size_t bytes : {std::size_t{10'000}, layout::kMaxValueBytes, std::size_t{300}}) {
    const std::uint64_t fits = fit(count_left(Left::every_second, keys), kOld, bytes, 6);
    run(other, add(other, static_cast<int>(std::min<std::uint64_t>(fits, 2000)), bytes));
    EXPECT_LE(longest(std::to_string(bytes)), kMostTicks) << bytes;
    run(other, expect_and_erase(other, static_cast<int>(std::min<std::uint64_t>(fits, 2000)), bytes));
  }
  ended = true;
  run(one, nothing());
  run(two, nothing());
  run(other, expect_left(other, Left::every_second, keys, kOld));
}

// The client that wrote it all is dead, and others must look through its segments first.
TEST_P(PoolRoomOfEitherTest, WhatTheDeadLeftMakesRoom) {
  constexpr std::size_t kOld = 2000;
  Client &filler = connect(), &other = connect();
  int keys = 0;
  run(filler, fill({&filler}, kOld, keys));
  run(other, erase_but(other, Left::every_second, keys));
  filler.port->crash(fabric::sim::InFlight::cut);
  ASSERT_TRUE(run_until([this] { return nodes_[0]->stats().segments.dead > 0; }));
  const std::uint64_t there = count_left(Left::every_second, keys);
  for (const std::size_t bytes : {layout::kMaxValueBytes, std::size_t{10'000}}) {
    const int fits = static_cast<int>(fit(there, kOld, bytes, 4));
    EXPECT_GT(fits, 2);
    run(other, add(other, fits, bytes));
    EXPECT_LE(longest(std::to_string(bytes)), 2 * kMostTicks) << bytes;
    run(other, expect_and_erase(other, fits, bytes));
  }
  run(other, expect_left(other, Left::every_second, keys, kOld));
  for (std::unique_ptr<Client>& client : clients_) {
    if (client->port->crashed()) fabric::sim::bury(std::shared_ptr<Client>(std::move(client)));
  }
  std::erase(clients_, nullptr);
}

// A refused write says nothing of other writes, which fit. A full heap stops being full when this client or another has
// deleted something.
TEST_P(PoolRoomOfEitherTest, ARefusedWriteRefusesNoOther) {
  constexpr std::size_t kOld = 2000;
  Client &filler = connect(), &other = connect();
  int keys = 0;
  run(filler, fill({&filler}, kOld, keys));
  const auto refused = [&](Client& client, std::size_t bytes) {
    base::Status status;
    run(client, put_sized(client, name("too-long", 0), bytes, status));
    EXPECT_EQ(status.code(), Code::out_of_memory) << bytes << ": " << status.message();
  };
  refused(other, layout::kMaxValueBytes);
  refused(other, 130);
  refused(other, kOld);
  int erased = 0;
  for (int i = 1; i < keys && erased < keys / 16; i += 15, ++erased) run(other, erase_one(other, name("old", i)));
  refused(other, 900'000);
  run(other, add(other, erased / 4, kOld));
  EXPECT_LE(longest("by_the_same"), kMostTicks);
  // A client that has deleted nothing looks again after a tick.
  run_until([] { return false; }, 2 * kTick);
  run(filler, add(filler, erased / 2, kOld));
  EXPECT_LE(longest("by_another"), kMostTicks);
}
INSTANTIATE_TEST_SUITE_P(Protocols, PoolRoomOfEitherTest, kProtocols, name_of_protocol);

// A sparse pool costs what it contains: of its tables, a scan reads only rows that have had entries.
TEST_P(PoolSparseTest, CostsWhatItContains) {
  publish(map_of(1));
  Client& client = connect();
  const auto scanned = [&] {
    const auto& scans = client.pool->counters().operations[static_cast<std::size_t>(Operation::scan)];
    return scans.bytes.get();
  };
  const layout::Geometry& geometry = nodes_[0]->geometry();
  const std::uint64_t table = geometry.rows * geometry.row_bytes();
  ASSERT_GT(table, 4u << 20);
  std::optional<std::string> any;
  run(client, any_into(client, any));
  EXPECT_FALSE(any);
  for (const int keys : {1, 10}) {
    run(client, put_all(client, 0, keys, std::string(static_cast<std::size_t>(keys), 'v')));
    std::uint64_t before = scanned();
    std::map<std::string, int> times;
    std::uint64_t cursor = 0;
    run(client, scan_into(client, 10, true, cursor, times));
    EXPECT_EQ(times.size(), static_cast<std::size_t>(keys));
    EXPECT_LT(scanned() - before, table / 4) << keys;
    std::set<std::string> chosen;
    for (int i = 0; i < 40; ++i) {
      before = scanned();
      run(client, any_into(client, any));
      ASSERT_TRUE(any);
      chosen.insert(*any);
      EXPECT_LT(scanned() - before, table / 4) << keys;
    }
    EXPECT_GE(chosen.size(), keys == 1 ? 1u : 4u);
  }
}
INSTANTIATE_TEST_SUITE_P(Protocols, PoolSparseTest, kProtocols, name_of_protocol);

// The same for a pool that was once well filled. Two table sizes, because the cost must not follow the size.
class PoolSparseOnceFullTest : public PoolTest,
                               public ::testing::WithParamInterface<std::tuple<layout::Protocol, std::uint64_t>> {
 protected:
  static layout::GeometryRequest with(layout::Protocol protocol) {
    layout::GeometryRequest request = kGeometry;
    request.protocol = protocol;
    request.table_percent = 10;
    return request;
  }
  PoolSparseOnceFullTest()
      : PoolTest(0, with(std::get<0>(GetParam())), 40 * base::kMillisecond, std::get<1>(GetParam()) << 20) {}

  // Returns the bytes of tables that a command reads.
  std::uint64_t bytes_of(Client& client, Task<void> command) {
    const auto& scans = client.pool->counters().operations[static_cast<std::size_t>(Operation::scan)];
    const std::uint64_t before = scans.bytes.get();
    run(client, std::move(command));
    return scans.bytes.get() - before;
  }
  static Task<void> keys_into(Client& client, std::map<std::string, int>& times) {
    std::uint64_t cursor = 0;
    times.clear();
    co_await scan_into(client, 4096, true, cursor, times);
  }
  static Task<void> flush(Client& client) {
    std::uint64_t cursor = 0;
    do {
      const auto page = co_await client.pool->scan(cursor, 1024);
      EXPECT_TRUE(page.ok()) << page.status().message();
      if (!page.ok()) co_return;
      for (const std::string& key : page->keys) EXPECT_TRUE((co_await client.pool->erase(key)).ok());
      cursor = page->next;
    } while (cursor != 0);
  }
  static Task<void> erase_from(Client& client, int from, int to) {
    for (int i = from; i < to; ++i) EXPECT_TRUE((co_await client.pool->erase("key-" + std::to_string(i))).ok());
  }
  // Waits until every client of the pool that has read rows and found them empty has cleared their marks.
  void outlast_clearing(Client& client) {
    std::uint64_t cleared = 0;
    do {
      cleared = client.pool->counters().index.get(&index::Marks::cleared_marks);
      run_until([] { return false; }, 8 * base::kSecond);
    } while (client.pool->counters().index.get(&index::Marks::cleared_marks) != cleared);
  }
  std::uint64_t any(Client& client) {
    std::optional<std::string> key;
    const std::uint64_t bytes = bytes_of(client, any_into(client, key));
    EXPECT_EQ(key, "key-0");
    return bytes;
  }
  std::uint64_t all(Client& client, std::size_t keys) {
    std::map<std::string, int> times;
    const std::uint64_t bytes = bytes_of(client, keys_into(client, times));
    EXPECT_EQ(times.size(), keys);
    return bytes;
  }
};

TEST_P(PoolSparseOnceFullTest, CostsWhatAPoolCostsThatWasNeverFull) {
  publish(map_of(1));
  Client &client = connect(), &other = connect();
  run(client, put_all(client, 0, 1, "v"));
  // A RANDOMKEY begins at a random place.
  const auto most_of_any = [&] {
    std::uint64_t most = 0;
    for (int i = 0; i < 10; ++i) most = std::max(most, any(client));
    return most;
  };
  const std::uint64_t all_of_new = all(client, 1), any_of_new = most_of_any();
  const int keys = static_cast<int>(1000 * std::get<1>(GetParam()));
  for (const bool flushes : {false, true}) {
    run(other, put_all(other, 1, keys, "v"));
    const std::uint64_t full = all(client, static_cast<std::size_t>(keys));
    ASSERT_GT(full, 8 * all_of_new) << "the test is too small";
    if (flushes) {
      run(client, flush(client));
      run(client, put_all(client, 0, 1, "v"));
    } else {
      run(client, erase_from(client, 1, keys));
    }
    (void)all(client, 1);  // it finds out, and pays for the others
    outlast_clearing(client);
    EXPECT_LT(all(client, 1), 2 * all_of_new);
    EXPECT_LT(most_of_any(), 2 * any_of_new);
    EXPECT_LT(bytes_of(client, flush(client)), 2 * all_of_new);
    EXPECT_LT(all(client, 0), 2 * all_of_new);
    run(client, put_all(client, 0, 1, "v"));
  }
  run(other, put_all(other, 1, keys, "w"));
  EXPECT_GT(all(client, static_cast<std::size_t>(keys)), 8 * all_of_new);
}
INSTANTIATE_TEST_SUITE_P(Protocols, PoolSparseOnceFullTest,
                         ::testing::Combine(kProtocols, ::testing::Values(std::uint64_t{4}, std::uint64_t{16})),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param) == layout::Protocol::race ? "Race" : "Rcuckoo") +
                                  std::to_string(std::get<1>(of.param)) + "MiB";
                         });

// Returns the number of effects between two deaths that are tried: with RCuckoo each word of each closed row is an
// effect. FARPOOL_EVERY_EFFECT tries all, which takes minutes.
std::uint64_t stride(layout::Protocol protocol) {
  if (std::getenv("FARPOOL_EVERY_EFFECT") != nullptr) return 1;
  return protocol == layout::Protocol::race ? 7 : protocol == layout::Protocol::outback ? 1 : 89;
}

// One world, in which the mover dies after so many effects.
class DeadMover : public PoolMoveTest {
 public:
  explicit DeadMover(layout::Protocol protocol) : PoolMoveTest(protocol) {}
  static constexpr int kKeys = 24;
  void TestBody() override {}
  // Returns false if the mover finished.
  bool dies_after(std::uint64_t effects, fabric::sim::InFlight posted) {
    publish(drain(1));
    Client& doomed = connect();
    run(doomed, put_all(doomed, 0, kKeys, "v"));
    publish(drain(2));
    doomed.port->crash_after(effects, posted);
    EXPECT_TRUE(run_until([&] { return doomed.port->crashed() || drained(doomed); }));
    const bool died = doomed.port->crashed();
    left_at_both_ += both();
    Client& other = connect();
    run(other, put_all(other, 0, kKeys / 3, "w"));
    run(other, erase_all(other, kKeys / 3, kKeys / 2));
    EXPECT_TRUE(run_until([&] { return drained(other); }));
    run(other, expect_all(other, 0, kKeys / 3, "w"));
    run(other, expect_all(other, kKeys / 2, kKeys, "v"));
    EXPECT_EQ(keys_at(0).size(), 0u);
    EXPECT_EQ(keys_at(1).size(), std::size_t{kKeys - kKeys / 2 + kKeys / 3});
    for (auto& client : clients_) {
      if (client->port->crashed()) fabric::sim::bury(std::shared_ptr<Client>(std::move(client)));
    }
    std::erase(clients_, nullptr);
    return died;
  }
  std::uint64_t left_at_both() const { return left_at_both_; }

 private:
  std::uint64_t both() {
    const std::set<std::string> old = keys_at(0), fresh = keys_at(1);
    return static_cast<std::uint64_t>(
        std::count_if(old.begin(), old.end(), [&fresh](const std::string& key) { return fresh.contains(key); }));
  }
  std::uint64_t left_at_both_ = 0;
};

class PoolDeadMoverTest : public ::testing::TestWithParam<layout::Protocol> {};
INSTANTIATE_TEST_SUITE_P(Protocols, PoolDeadMoverTest, kAllProtocols, name_of_protocol);

TEST_P(PoolDeadMoverTest, WhateverItLeavesTheNextGoesOnWith) {
  std::uint64_t worlds = 0, left_at_both = 0;
  for (std::uint64_t effects = 0;; effects += stride(GetParam()), ++worlds) {
    DeadMover world(GetParam());
    const auto posted = worlds % 2 == 0 ? fabric::sim::InFlight::cut : fabric::sim::InFlight::lands;
    const bool died = world.dies_after(effects, posted);
    left_at_both += world.left_at_both();
    if (::testing::Test::HasFailure()) FAIL() << "the mover died after " << effects << " effects";
    if (!died) break;
  }
  RecordProperty("worlds", std::to_string(worlds));
  EXPECT_GT(worlds, 50u);
  EXPECT_GT(left_at_both, 0u) << "no mover died between the copy and the end of the original";
}

// One world, in which the mover stands still after so many effects and is taken for dead.
class StoppedMover : public PoolMoveTest {
 public:
  explicit StoppedMover(layout::Protocol protocol) : PoolMoveTest(protocol) {}
  static constexpr int kKeys = 24;
  void TestBody() override {}
  // Returns false if the mover finished.
  bool stops_after(std::uint64_t effects) {
    publish(drain(1));
    Client& slow = connect();
    run(slow, put_all(slow, 0, kKeys, "v"));
    publish(drain(2));
    slow.port->pause_after(effects);
    EXPECT_TRUE(run_until([&] { return slow.port->paused() || drained(slow); }));
    const bool stopped = slow.port->paused();
    Client& other = connect();
    EXPECT_TRUE(run_until([&] { return drained(other); }));
    run(other, erase_all(other, 0, kKeys));
    slow.port->resume();
    EXPECT_TRUE(run_until([&] { return drained(slow); }));
    EXPECT_EQ(keys_at(0).size() + keys_at(1).size(), 0u);
    return stopped;
  }
};

class PoolStoppedMoverTest : public ::testing::TestWithParam<layout::Protocol> {};
INSTANTIATE_TEST_SUITE_P(Protocols, PoolStoppedMoverTest, kAllProtocols, name_of_protocol);

TEST_P(PoolStoppedMoverTest, WhatItHadUnderWayLandsNowhere) {
  std::uint64_t worlds = 0;
  for (std::uint64_t effects = 0;; effects += stride(GetParam()), ++worlds) {
    StoppedMover world(GetParam());
    const bool stopped = world.stops_after(effects);
    if (::testing::Test::HasFailure()) FAIL() << "the mover stood still after " << effects << " effects";
    if (!stopped) break;
  }
  EXPECT_GT(worlds, 50u);
}

}  // namespace
}  // namespace farpool::client
