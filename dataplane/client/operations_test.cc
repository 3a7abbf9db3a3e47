// SPDX-License-Identifier: Apache-2.0
// How operations end where their memory nodes are out of reach, and while maps change.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "client/pool_world_test.h"
#include "index/race/layout.h"

namespace farpool::client {
namespace {

using base::kMillisecond;
using base::kSecond;

// One of each operation, and how it ended.
struct Operations {
  base::Status read, written, appended, any, many;
  base::Result<bool> erased = false;
  base::Result<std::uint64_t> keys = std::uint64_t{0};
  base::Result<Page> page = Page();

  std::vector<base::Status> all() const {
    return {read, written, appended, any, many, erased.status(), keys.status(), page.status()};
  }
};

class OperationsTest : public PoolTest {
 protected:
  static Task<void> many_into(Client& client, std::vector<std::string> keys, base::Status& into) {
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    into = (co_await client.pool->multi_read(views)).status();
  }
  static Task<void> repair_into(Client& client, Nanos time, std::vector<Pool::Repair>& into) {
    into = co_await client.pool->repair(client.port->now() + time);
  }
  // Begins one of each, on keys of their own.
  void begin(Client& client, Operations& into, std::uint32_t node = 0) {
    std::array<std::string, 5> keys;
    for (int i = 0, next = 0; i < 5; ++next) {
      const std::string key = "one-" + std::to_string(next);
      if (node_of(key) == node) keys[static_cast<std::size_t>(i++)] = key;
    }
    client.scope.spawn(read_into(client, keys[0], into.read));
    client.scope.spawn(put_into(client, keys[1], into.written));
    client.scope.spawn(append_into(client, keys[2], into.appended));
    client.scope.spawn(any_status(client, into.any));
    client.scope.spawn(many_into(client, {keys[3]}, into.many));
    client.scope.spawn(erase_into(client, keys[4], into.erased));
    client.scope.spawn(count_into(client, into.keys));
    client.scope.spawn(scan_once(client, 0, into.page));
  }
  static std::uint64_t outcomes(const Client& client, Operation operation, Code code) {
    const auto& counters = client.pool->counters().operations[static_cast<std::size_t>(operation)];
    return counters.outcomes[static_cast<std::size_t>(code)].get();
  }
  // Says that each operation has been counted once.
  static void expect_counted(const Client& client, Code code) {
    for (const Operation operation : {Operation::put, Operation::erase, Operation::modify, Operation::count}) {
      EXPECT_EQ(outcomes(client, operation, code), 1u) << name_of(operation);
    }
    EXPECT_EQ(outcomes(client, Operation::get, code), 2u);
    EXPECT_EQ(outcomes(client, Operation::scan, code), 2u) << "a scan, and a look for any key";
  }
};

TEST_F(OperationsTest, EachSaysWhatItCouldNotReach) {
  Client& client = connect({"node-9:7400"}, kSecond);
  const Nanos before = network_.now();
  Operations operations;
  begin(client, operations);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }));
  for (const base::Status& status : operations.all()) {
    EXPECT_EQ(status.code(), Code::unavailable);
    EXPECT_NE(status.message().find("node-9:7400"), std::string::npos) << status.message();
  }
  EXPECT_LE(network_.now() - before, 2 * kSecond);
  expect_counted(client, Code::unavailable);
}

TEST_F(OperationsTest, EachEndsWhenThePoolCloses) {
  for (const bool known : {false, true}) {
    if (known) {
      publish(map_of(1));
      for (SimResponder* wire : responders_) wire->stop();
    }
    Client& client = connect({"node-0:7400"}, 30 * kSecond);
    Operations operations;
    begin(client, operations);
    pass(known ? 200 * kMillisecond : kSecond);
    EXPECT_EQ(client.scope.running(), 8u);
    const Nanos before = network_.now();
    client.scope.spawn(close(client));
    ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }));
    EXPECT_LT(network_.now() - before, 100 * kMillisecond);
    for (const base::Status& status : operations.all()) {
      EXPECT_EQ(status.code(), Code::unavailable);
      EXPECT_NE(status.message().find("this client of the pool is closing"), std::string::npos) << status.message();
    }
    Operations late;
    begin(client, late);
    ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, kMillisecond));
    for (const base::Status& status : late.all()) EXPECT_EQ(status.code(), Code::unavailable) << status.message();
    client.pool.reset();
  }
}

TEST_F(OperationsTest, EachIsCounted) {
  publish(map_of(1));
  Client& client = connect();
  Operations operations;
  begin(client, operations);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }));
  for (const base::Status& status : operations.all()) EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(*operations.erased, false);
  for (const Operation operation : {Operation::put, Operation::erase, Operation::modify, Operation::get}) {
    EXPECT_EQ(outcomes(client, operation, Code::ok), operation == Operation::get ? 2u : 1u) << name_of(operation);
  }
  EXPECT_EQ(outcomes(client, Operation::scan, Code::ok), 2u);
  EXPECT_GE(outcomes(client, Operation::count, Code::ok), 1u) << "a look for any key may count, too";
}

// A stopped memory node has no session by intent, and is no answer.
TEST_F(OperationsTest, TheFirstMemoryNodeThatShouldServeIsNamed) {
  v1alpha1::ShardMap map = map_of(1);
  map.mutable_nodes(0)->set_state(v1alpha1::MemoryNodeEntry::STATE_STOPPED);
  map.mutable_nodes(1)->set_incarnation(nodes_[1]->incarnation() ^ 1);
  publish(map);
  Client& client = connect({"node-0:7400"}, kSecond);
  const base::Status status = put(client, "a");
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find("epoch 1 could be opened; memory node mn-1 at node-1:7400: "), std::string::npos)
      << status.message();
  EXPECT_FALSE(client.pool->state().ready);
}

TEST_F(OperationsTest, AStoppedMemoryNodeIsNotCountedAsOneThatServes) {
  publish(map_of(1));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  v1alpha1::ShardMap map = map_of(2);
  for (int i = 0; i < 2; ++i) map.mutable_nodes(i)->set_state(v1alpha1::MemoryNodeEntry::STATE_STOPPED);
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * kSecond));
  pass(kSecond);
  EXPECT_FALSE(client.pool->state().ready);
  EXPECT_EQ(client.pool->state().message, "epoch 2 has no memory node that serves");
  Operations operations;
  begin(client, operations);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, kSecond));
  for (const base::Status& status : operations.all()) {
    EXPECT_NE(status.message().find("is stopped by the pool's data policy: a person decides"), std::string::npos)
        << status.message();
  }
}

TEST_F(OperationsTest, NewAddressesAreAskedAtOnceUntilThereIsAMap) {
  publish(map_of(1));
  Client& client = connect({"node-9:7400"});
  pass(20 * kSecond);
  const std::uint64_t asked = client.pool->counters().map_fetches.get();
  for (int i = 0; i < 100; ++i) {
    client.pool->set_bootstrap({"node-9:7400"});
    pass(2 * kMillisecond);
  }
  EXPECT_LE(client.pool->counters().map_fetches.get(), asked + 1) << "they are the same";
  client.pool->set_bootstrap({"node-0:7400"});
  EXPECT_TRUE(run_until([&client] { return client.pool->state().epoch == 1; }, 100 * kMillisecond));
  ASSERT_TRUE(run_until_ready(client));
  const std::uint64_t read = client.pool->counters().map_fetches.get();
  for (int i = 0; i < 100; ++i) {
    client.pool->set_bootstrap({"node-" + std::to_string(i % 2) + ":7400"});
    pass(2 * kMillisecond);
  }
  EXPECT_LE(client.pool->counters().map_fetches.get(), read + 1) << "the map names the memory nodes";
}

// In the next map the memory nodes may stand in another order.
TEST_F(OperationsTest, ACountThatSeesAnotherMapCountsAllAgain) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 100, "v"));
  responders_[1]->stop();
  ASSERT_TRUE(run_until([&client] { return !client.pool->state().ready; }, 10 * kSecond));
  base::Result<std::uint64_t> keys{0ull};
  client.scope.spawn(count_into(client, keys));
  EXPECT_FALSE(run_until([&client] { return client.scope.running() == 0; }, 100 * kMillisecond));
  responders_.push_back(&network_.add_node("node-2:7400"));
  nodes_.push_back(nullptr);
  begin_life(2, "first");
  v1alpha1::ShardMap map = map_of(2);
  map.mutable_directory()->Truncate(2);
  map.mutable_nodes()->SwapElements(1, 2);
  map.mutable_nodes()->SwapElements(0, 1);
  for (int i = 0; i < 3; ++i) map.mutable_tables(i)->set_node(static_cast<std::uint32_t>((i + 1) % 3));
  responders_[1]->serve(*nodes_[1]);
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 10 * kSecond));
  EXPECT_EQ(client.pool->state().epoch, 2u);
  EXPECT_EQ(keys.value(), 100u);
}

// Keys can be long, and a step of a scan is one reply.
TEST_F(OperationsTest, AStepOfAScanEndsWithAMebibyteOfKeys) {
  publish(map_of(1));
  Client& client = connect();
  const std::string tail(60'000, 'k');
  std::array<std::size_t, 2> there{};
  for (int i = 0; there[0] < 20 || there[1] < 20; ++i) {
    const std::string key = std::to_string(i) + tail;
    if (there[node_of(key)]++ >= 20) continue;
    ASSERT_TRUE(put(client, key).ok()) << i;
  }
  base::Result<Page> page = Page();
  std::set<std::string> keys;
  for (int steps = 0; steps < 100 && page.ok() && (steps == 0 || page->next != 0); ++steps) {
    const auto step = [](Client& client, base::Result<Page>& page) -> Task<void> {
      page = co_await client.pool->scan(page->next, 1000);
    };
    run(client, step(client, page));
    ASSERT_TRUE(page.ok()) << page.status().message();
    EXPECT_LT(page->keys.size(), 30u);
    keys.insert(page->keys.begin(), page->keys.end());
  }
  EXPECT_EQ(keys.size(), 40u);
}

TEST_F(OperationsTest, AScanOfATableThatHasGoneEnds) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 300, "v"));
  std::map<std::string, int> times;
  std::uint64_t cursor = 0;
  const auto in_second = [&] {
    return std::ranges::any_of(times, [this](const auto& seen) { return node_of(seen.first) == 1; });
  };
  while (!in_second()) {
    run(client, scan_into(client, 1, false, cursor, times));
    ASSERT_NE(cursor, 0u);
  }
  v1alpha1::ShardMap map = map_of(2);
  map.mutable_tables()->RemoveLast();
  for (std::uint32_t& part : *map.mutable_directory()) part = 0;
  map.set_directory_version(2);
  publish(map);
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * kSecond));
  base::Result<Page> page = Page();
  run(client, scan_once(client, cursor, page));
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_EQ(page->next, 0u);
  EXPECT_TRUE(page->keys.empty());
}

TEST_F(OperationsTest, AScanRefusesATableWithoutAPlaceInACursor) {
  v1alpha1::ShardMap map = map_of(1);
  for (int i = 0; i < 2; ++i) {
    map.mutable_tables(i)->set_id(1024 + static_cast<std::uint32_t>(i));
    map.set_directory(i, 1024 + static_cast<std::uint32_t>(i));
  }
  publish(map);
  Client& client = connect();
  base::Result<Page> page = Page();
  run(client, scan_once(client, 0, page));
  EXPECT_EQ(page.code(), Code::internal) << page.status().message();
  EXPECT_NE(page.status().message().find("table 1024 cannot be scanned"), std::string::npos) << page.status().message();
}

// The count is ahead of a key that another client has just erased, for example.
TEST_F(OperationsTest, ALookForAnyKeyEndsAlsoIfTheCountSaysThatThereIsOne) {
  publish(map_of(1));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  const layout::Span& slots = nodes_[0]->geometry().at(layout::kSlots);
  std::byte* const last = memory_[0].get() + slots.offset + slots.bytes - sizeof(layout::OperationSlot);
  auto slot = base::load<layout::OperationSlot>(last);
  slot.keys = 1;
  base::store(last, slot);
  ASSERT_EQ(count(client).value(), 1u);
  std::optional<std::string> any;
  run(client, any_into(client, any));
  EXPECT_FALSE(any);
}

// --- Repairs that an operator asks for

TEST_F(OperationsTest, ARepairSaysWhatItCouldNotReach) {
  Client& client = connect({"node-9:7400"});
  std::vector<Pool::Repair> repairs;
  run(client, repair_into(client, kSecond, repairs));
  ASSERT_EQ(repairs.size(), 1u);
  EXPECT_EQ(repairs[0].node, "");
  EXPECT_NE(repairs[0].trouble.find("node-9:7400"), std::string::npos) << repairs[0].trouble;
  client.pool->set_bootstrap({"node-0:7400"});
  publish(map_of(1));
  ASSERT_TRUE(run_until_ready(client));
  responders_[1]->stop();
  run(client, repair_into(client, kSecond, repairs));
  ASSERT_EQ(repairs.size(), 2u);
  EXPECT_EQ(repairs[0].node, "mn-0");
  EXPECT_EQ(repairs[0].trouble, "");
  EXPECT_EQ(repairs[1].node, "mn-1");
  EXPECT_EQ(repairs[1].slots_repaired + repairs[1].slots_left, 0u);
  EXPECT_FALSE(repairs[1].trouble.empty());
  // A session that is there, and answers nothing.
  responders_[1]->serve(*nodes_[1]);
  ASSERT_TRUE(run_until_ready(client));
  network_.options().lose_reply = 1;
  run(client, repair_into(client, 10 * kMillisecond, repairs));
  network_.options().lose_reply = 0;
  ASSERT_EQ(repairs.size(), 2u);
  for (const Pool::Repair& one : repairs) {
    EXPECT_EQ(one.slots_repaired + one.slots_left, 0u) << one.node;
    EXPECT_FALSE(one.trouble.empty()) << one.node;
  }
}

TEST_F(OperationsTest, ARepairTellsHowManySlotsItRepaired) {
  publish(map_of(1));
  Client& other = connect();
  Client& doomed = connect();
  ASSERT_TRUE(run_until_ready(other) && run_until_ready(doomed));
  std::set<int> there;
  doomed.scope.spawn(put_known(doomed, 0, 1000, "v", there));
  const auto claimed = [this] { return claimed_slots(0) + claimed_slots(1); };
  ASSERT_TRUE(run_until([&] { return there.size() > 10 && claimed() == 1; }));
  doomed.port->pause();
  ASSERT_TRUE(run_until([&] { return nodes_[0]->stats().sessions + nodes_[1]->stats().sessions == 2; }));
  const std::uint64_t left = claimed();
  EXPECT_GT(left, 0u) << "nobody has repaired them yet";
  std::vector<Pool::Repair> repairs;
  run(other, repair_into(other, kSecond, repairs));
  ASSERT_EQ(repairs.size(), 2u);
  EXPECT_EQ(repairs[0].slots_repaired + repairs[1].slots_repaired, left);
  EXPECT_EQ(repairs[0].slots_left + repairs[1].slots_left, 0u);
  EXPECT_EQ(repairs[0].trouble + repairs[1].trouble, "");
  EXPECT_EQ(claimed(), 0u);
  doomed.port->resume();
  ASSERT_TRUE(run_until([&doomed] { return doomed.scope.running() == 0; }));
  // The counts outlive the sessions.
  const auto repaired = [&other] { return other.pool->counters().repair.get(&session::RepairMarks::repaired); };
  ASSERT_TRUE(run_until([&] { return repaired() >= left; }, 2 * kSecond));
  pass(kSecond);
  const std::uint64_t counted = repaired();  // with a slot that it repaired before the fence of the other session
  other.port->pause();
  ASSERT_TRUE(
      run_until([this] { return nodes_[0]->stats().sessions + nodes_[1]->stats().sessions == 2; }, 20 * kSecond));
  other.port->resume();
  ASSERT_TRUE(run_until([&other] { return other.pool->counters().sessions_opened.get() == 4; }, 20 * kSecond));
  pass(kSecond);
  EXPECT_EQ(repaired(), counted);
}

class RepairOfSplitsTest : public PoolOfManyTablesTest {};

TEST_F(RepairOfSplitsTest, ARepairTellsWhyASplitIsLeft) {
  publish(map_of(1));
  Client& other = connect();
  Client& doomed = connect();
  ASSERT_TRUE(run_until_ready(other) && run_until_ready(doomed));
  std::set<int> there;
  put_until_split(doomed, there);
  doomed.port->pause();
  base::store(last_header(), race::HeaderWord::of(9, 5));
  ASSERT_TRUE(run_until([this] { return nodes_[0]->stats().sessions == 1; }));
  std::vector<Pool::Repair> repairs;
  run(other, repair(other, repairs));
  ASSERT_EQ(repairs.size(), 2u);
  EXPECT_NE(repairs[0].trouble.find("a header of table 0 is not of the keys"), std::string::npos) << repairs[0].trouble;
  EXPECT_EQ(repairs[1].trouble, "");
  doomed.port->resume();
  ASSERT_TRUE(run_until([&doomed] { return doomed.scope.running() == 0; }));
}

// --- Maps that are old

class OldMapTest : public PoolMoveTest {
 protected:
  OldMapTest() : PoolMoveTest(layout::Protocol::rcuckoo) {}
  static Task<void> get_into(Client& client, std::string key, base::Result<std::optional<std::string>>& into) {
    into = co_await client.pool->get(key);
  }
};

// A client that stood still while keys moved asks for the map that the memory nodes follow by now. With RACE, the mover
// would wait for it.
TEST_F(OldMapTest, AnOperationThatMeetsALaterMoveReadsTheMap) {
  publish(drain(1));
  Client& other = connect();
  run(other, put_all(other, 0, 100, "v"));
  Client& slow = connect();
  ASSERT_TRUE(run_until_ready(slow));
  slow.port->pause();
  publish(drain(2));
  ASSERT_TRUE(run_until([&other] { return drained(other); }, kSecond));
  ASSERT_EQ(slow.pool->state().epoch, 1u);
  base::Result<std::optional<std::string>> got{std::optional<std::string>()};
  const Nanos before = network_.now();
  std::string key;
  for (int i = 0; i < 100 && key.empty(); ++i) {
    if (map::Map::from(drain(1))
            ->table_of(map::directory_hash(kSecret, base::bytes_of("key-" + std::to_string(i))))
            .node() == 0) {
      key = "key-" + std::to_string(i);
    }
  }
  slow.scope.spawn(get_into(slow, key, got));
  slow.port->resume();
  ASSERT_TRUE(run_until([&slow] { return slow.scope.running() == 0; }));
  EXPECT_EQ(got.value(), "v" + key.substr(4));
  EXPECT_EQ(slow.pool->counters().sessions_lost.get(), 0u) << "it does not stand still for so long";
  EXPECT_EQ(retries(slow, Operation::get), 1u);
  EXPECT_LT(network_.now() - before, 100 * kMillisecond);
}

}  // namespace
}  // namespace farpool::client
