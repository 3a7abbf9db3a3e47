// SPDX-License-Identifier: Apache-2.0
// How a client follows its pool, and what it does for the pool besides its operations.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "client/pool_world_test.h"
#include "index/race/layout.h"
#include "layout/geometry.h"
#include "layout/lease.h"
#include "map/shard_map.h"
#include "session/session.h"
#include "session/tenure.h"

namespace farpool::client {
namespace {

using base::kMillisecond;
using base::kSecond;

class FollowTest : public PoolTest {};

// --- The map

// A map that no memory node can show is asked for again and again, and so is each epoch below it.
TEST_F(FollowTest, ALieAboutTheEpochIsAskedAboutSoon) {
  map_key_ = std::make_shared<Seal>();
  publish(Seal::sealed(map_of(1)));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  pass(150 * kSecond);
  v1alpha1::ShardMap forged = Seal::sealed(map_of(2));
  forged.set_epoch(9'999'999'999);
  ASSERT_EQ(nodes_[1]->publish(forged, kSecret).verdict, node::MemoryNode::Verdict::adopted);
  const PoolCounters& counters = client.pool->counters();
  ASSERT_TRUE(run_until([&] { return counters.failed_map_fetches.get() > 0; }, 10 * kSecond));
  pass(kSecond);
  EXPECT_GE(counters.failed_map_fetches.get(), 3u) << "however seldom it read the map before";
  pass(20 * kSecond);
  EXPECT_GE(counters.map_fetches.get(), 2 * counters.failed_map_fetches.get());
}

TEST_F(FollowTest, ItIsToldOnceEachTimeThatNoMapCanBeRead) {
  publish(map_of(1));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  std::ptrdiff_t told = 0;
  for (const std::uint64_t epoch : {1u, 1u, 2u, 3u}) {
    for (SimResponder* wire : responders_) wire->stop();
    const auto lines = [&client] { return lines_with(client.log, "the shard map could not be read"); };
    pass(20 * kSecond);
    EXPECT_EQ(lines(), ++told) << "before epoch " << epoch << ": " << client.log.back();
    for (std::size_t i = 0; i < nodes_.size(); ++i) responders_[i]->serve(*nodes_[i]);
    publish(map_of(epoch));
    ASSERT_TRUE(run_until([&] { return client.pool->state().epoch == epoch && client.pool->state().ready; }));
    pass(5 * kSecond);  // it reads the map, too
  }
}

// Names of memory nodes may change as often as a resolver's answers.
TEST_F(FollowTest, TheMapIsNotReadWheneverATaskAsksForIt) {
  Client& client = connect({"node-9:7400"});
  for (int i = 0; i < 1000; ++i) {
    client.pool->set_bootstrap({"node-" + std::to_string(8 + i % 2) + ":7400"});
    pass(kMillisecond);
  }
  EXPECT_GE(client.pool->counters().map_fetches.get(), 10u);
  EXPECT_LE(client.pool->counters().map_fetches.get(), 60u);
}

// Addresses may change at any moment, also while the map is being read.
TEST_F(FollowTest, AWishForTheMapIsHeardAtAnyMoment) {
  publish(map_of(1));
  for (Nanos after = 0; after < 600 * kMillisecond; after += 5 * kMillisecond) {
    Client& client = connect({"node-9:7400"});
    pass(after + 1);
    client.pool->set_bootstrap({"node-0:7400"});
    EXPECT_TRUE(run_until([&client] { return client.pool->state().epoch == 1; }, 60 * kMillisecond)) << after;
    finish(client);
  }
}

// --- Sessions

// A memory node that still believes in the session before would keep for it what the next one needs.
TEST_F(FollowTest, ASessionThatIsLostIsNamedToTheMemoryNode) {
  publish(map_of(1));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  run(client, put_all(client, 0, 20, "v"));
  network_.options().lose_reply = 1;
  base::Status status;
  client.scope.spawn(put_into(client, key_on(0), status));
  ASSERT_TRUE(run_until([&client] { return client.pool->counters().sessions.get() < 2; }, 30 * kSecond));
  network_.options().lose_reply = 0;
  EXPECT_FALSE(client.told.ready);
  EXPECT_GT(lines_with(client.log, "lost the session with memory node mn-"), 0);
  for (const NodeState& node : client.told.nodes) EXPECT_TRUE(node.open || !node.trouble.empty()) << node.name;
  ASSERT_TRUE(run_until([&client] { return client.pool->counters().sessions_opened.get() > 2; }, 2 * kSecond));
  ASSERT_TRUE(run_until_ready(client));
  EXPECT_TRUE(client.told.ready);
  EXPECT_EQ(nodes_[0]->stats().sessions, 1u);
  EXPECT_EQ(nodes_[1]->stats().sessions, 1u);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }));
}

TEST_F(FollowTest, ASessionIsTriedSoonAgainHoweverLongTheTroubleBeforeWas) {
  publish(map_of(1));
  Client& client = connect();
  ASSERT_TRUE(run_until_ready(client));
  for (const Nanos out : {20 * kSecond, 200 * kMillisecond}) {
    responders_[1]->stop();
    ASSERT_TRUE(run_until([&client] { return !client.pool->state().ready; }));
    pass(out);
    EXPECT_NE(client.told.nodes[1].trouble, "");
    EXPECT_EQ(client.told.nodes[1].trouble, client.pool->state().nodes[1].trouble);
    responders_[1]->serve(*nodes_[1]);
    const Nanos before = network_.now();
    ASSERT_TRUE(run_until_ready(client));
    if (out < kSecond) EXPECT_LT(network_.now() - before, 600 * kMillisecond);
    pass(kSecond);
  }
}

// --- Splits

class SplitTest : public PoolOfManyTablesTest {};

// Only damage stops a split, here in a bucket that no key of this test needs.
TEST_F(SplitTest, ASplitThatDoesNotGoOnIsToldOfOnce) {
  publish(map_of(1));
  Client& client = connect();
  std::set<int> there;
  put_until_split(client, there);
  const auto header = base::load<std::uint64_t>(last_header());
  base::store(last_header(), race::HeaderWord::of(9, 5));
  const auto told = [&client] {
    return lines_with(client.log, "a split of a table of memory node mn-0 does not go on here: ");
  };
  ASSERT_TRUE(run_until([&] { return told() > 0; }));
  EXPECT_EQ(lines_with(client.log, "does not go on here: a header of table 0 is not of the keys"), 1);
  pass(2 * kSecond);
  EXPECT_EQ(told(), 1);
  base::store(last_header(), header);
  v1alpha1::ShardMap map = map_of(2);
  map.set_least_tables(8);
  publish(map);
  EXPECT_TRUE(run_until([&] { return nodes_[0]->facts().memory_node().even_tables() == 8; }));
  pass(2 * kSecond);
  EXPECT_EQ(told(), 1) << client.log.back();
}

TEST_F(SplitTest, ASplitThatTheDeadLeftIsTriedAgainUntilItIsFinished) {
  publish(map_of(1));
  Client& other = connect();
  Client& doomed = connect();
  ASSERT_TRUE(run_until_ready(other) && run_until_ready(doomed));
  std::set<int> there;
  put_until_split(doomed, there);
  doomed.port->pause();
  const auto header = base::load<std::uint64_t>(last_header());
  base::store(last_header(), race::HeaderWord::of(9, 5));
  const char* const left = "splits of tables are left on memory node mn-0: a header of table 0 is not of the keys";
  ASSERT_TRUE(run_until([&] { return lines_with(other.log, left) == 2; }));
  EXPECT_EQ(lines_with(other.log, "operation slots of ended clients are left"), 0);
  base::store(last_header(), header);
  EXPECT_TRUE(run_until([this] { return splitting(0) == 0; }));
  doomed.port->resume();
  ASSERT_TRUE(run_until([&doomed] { return doomed.scope.running() == 0; }));
  for (const int key : there) run(other, expect_all(other, key, key + 1, "v"));
}
// A counter that falls would be taken for that of another process.
TEST_F(SplitTest, CountsGoOnWhenASessionEnds) {
  publish(map_of(1));
  Client& client = connect();
  run(client, put_all(client, 0, 1500, "v"));
  ASSERT_TRUE(run_until([this] { return splitting(0) + splitting(1) == 0; }, 10 * kSecond));
  pass(kSecond);
  const auto finished = [&client] { return client.pool->counters().index.get(&index::Marks::splits_finished); };
  const std::uint64_t before = finished();
  ASSERT_GT(before, 1u);
  bool fell = false;
  const auto watch = [&](const std::function<bool()>& done) {
    return run_until([&] {
      fell |= finished() < before;
      return done();
    });
  };
  // A memory node leaves the map while an answer of it is still to come: its session parts late.
  network_.options().lose_reply = 1;
  base::Status status(Code::internal, "never done");
  client.scope.spawn(put_into(client, key_on(1), status));
  pass(kMillisecond);
  network_.options().lose_reply = 0;
  v1alpha1::ShardMap map = map_of(2);
  map.mutable_tables()->RemoveLast();
  for (std::uint32_t& part : *map.mutable_directory()) part = 0;
  map.set_directory_version(2);
  publish(map);
  ASSERT_TRUE(watch([&] { return client.pool->counters().sessions.get() == 1; }));
  const Nanos then = network_.now() + kSecond;
  ASSERT_TRUE(watch([&] { return network_.now() > then && client.scope.running() == 0; }));
  EXPECT_FALSE(fell);
  // The other session is lost.
  client.port->pause();
  ASSERT_TRUE(run_until([this] { return nodes_[0]->stats().sessions == 0; }, 20 * kSecond));
  client.port->resume();
  ASSERT_TRUE(watch([&] { return client.pool->counters().sessions_opened.get() == 3; }));
  const Nanos later = network_.now() + kSecond;
  ASSERT_TRUE(watch([&] { return network_.now() > later; }));
  EXPECT_FALSE(fell);
}

class FewTablesTest : public PoolTest {
 protected:
  static constexpr layout::GeometryRequest kFewTables{
      .table_percent = 2, .max_sessions = 8, .slots_per_session = 4, .protocol = layout::Protocol::race, .tables = 4};
  FewTablesTest() : PoolTest(0, kFewTables) {}
  // Puts keys of one half of the first memory node's hash space until there is no room for them.
  static Task<void> fill_half(Client& client, const std::function<std::string()>& next) {
    base::Status status;
    for (int i = 0; i < 20'000 && status.ok(); ++i) status = co_await client.pool->put(next(), "v");
    EXPECT_EQ(status.code(), Code::out_of_memory) << status.message();
    EXPECT_NE(status.message().find("all 4 tables are in use"), std::string::npos) << status.message();
  }
};

// The keys have taken all tables, unevenly.
TEST_F(FewTablesTest, TablesThatCannotBeSplitAheadAreToldOfOnce) {
  publish(map_of(1));
  Client& client = connect();
  const auto next = [this, i = 0]() mutable {
    for (;; ++i) {
      std::string key = "half-" + std::to_string(i);
      if (node_of(key) != 0 || (map::directory_hash(kSecret, base::bytes_of(key)) >> 32 & 1) != 0) continue;
      ++i;
      return key;
    }
  };
  run(client, fill_half(client, next));
  v1alpha1::ShardMap map = map_of(2);
  map.set_least_tables(4);
  publish(map);
  const auto told = [&client] {
    return lines_with(client.log, "the tables of memory node mn-0 are not all split ahead into 4: all 4 tables are");
  };
  ASSERT_TRUE(run_until([&] { return told() > 0; }));
  pass(5 * kSecond);
  EXPECT_EQ(told(), 1);
  EXPECT_EQ(lines_with(client.log, "of memory node mn-1 are not all split ahead"), 0);
}

// --- Moves

class MoveTest : public PoolMoveTest {
 protected:
  static Task<void> open(SimPort& port, session::Session::Options options, std::unique_ptr<session::Session>& into) {
    auto opened = co_await session::Session::open(port, std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (opened.ok()) into = std::move(*opened);
  }
  static Task<void> take(session::Tenure& tenure, Nanos deadline) {
    const base::Status taken = co_await tenure.take(layout::kMoveLease, deadline);
    EXPECT_TRUE(taken.ok()) << taken.message();
  }
  // Puts values until a memory node refuses one. `keys` is how many there are.
  static Task<void> fill(Client& client, int& keys) {
    for (base::Status status; status.ok(); keys += status.ok() ? 1 : 0) {
      status = co_await client.pool->put("key-" + std::to_string(keys), std::string(1000, 'v'));
      EXPECT_TRUE(status.ok() || status.code() == Code::out_of_memory) << status.message();
    }
  }
  static Task<void> erase_most(Client& client, int keys) {
    for (int i = 0; i < keys; ++i) {
      if (i % 10 != 0) EXPECT_TRUE((co_await client.pool->erase("key-" + std::to_string(i))).ok()) << i;
    }
  }
  std::ptrdiff_t unfinished() const {
    std::ptrdiff_t lines = 0;
    for (const auto& client : clients_) lines += lines_with(client->log, "is not finished");
    return lines;
  }
};

// Each mover of a target waits for the one before it, which is no trouble.
TEST_F(MoveTest, AMoveWaitsForAnotherMoverOfItsTarget) {
  publish(drain(1));
  Client& client = connect();
  run(client, put_all(client, 0, 100, "v"));
  SimPort& port = network_.add_client({.pool_uid = kUid, .role = "client", .name = "m", .authenticated = true});
  std::unique_ptr<session::Session> other;
  run(client, open(port,
                   {.endpoint = "node-1:7400",
                    .pool_uid = kUid,
                    .client_name = "m",
                    .epoch = 1,
                    .node_incarnation = nodes_[1]->incarnation(),
                    .deadline = port.now() + kSecond},
                   other));
  ASSERT_NE(other, nullptr);
  session::Tenure tenure(*other);
  run(client, take(tenure, port.now() + kSecond));
  publish(drain(2));
  EXPECT_FALSE(run_until([&client] { return drained(client); }, 3 * kSecond));
  EXPECT_EQ(unfinished(), 0) << client.log.back();
  run(client, tenure.give_back(port.now() + kSecond));
  EXPECT_TRUE(run_until([&client] { return drained(client); }, 3 * kSecond));
  EXPECT_EQ(unfinished(), 0) << client.log.back();
  run(client, other->close(port.now() + kSecond));
  run(client, expect_all(client, 0, 100, "v"));
}

TEST_F(MoveTest, AMoveToAFullMemoryNodeGoesOnWhenItHasRoom) {
  publish(drain(1));
  Client& client = connect();
  int keys = 0;
  run(client, fill(client, keys));
  ASSERT_GT(keys, 500);
  publish(drain(2));
  ASSERT_TRUE(run_until([this] { return unfinished() > 0; }));
  EXPECT_EQ(lines_with(client.log, "move 1 of keys away from memory node mn-0 is not finished"), 1);
  EXPECT_FALSE(drained(client));
  run(client, erase_most(client, keys));
  EXPECT_TRUE(run_until([&client] { return drained(client); }));
  EXPECT_EQ(count(client).value(), static_cast<std::uint64_t>((keys + 9) / 10));
}

// Two memory nodes are drained at once, each into one of two others.
TEST_F(MoveTest, AMoveNeedsNoTargetOfAnotherOne) {
  for (std::size_t i = 2; i < 4; ++i) {
    responders_.push_back(&network_.add_node("node-" + std::to_string(i) + ":7400"));
    nodes_.push_back(nullptr);
    begin_life(i);
  }
  const auto map = [this](std::uint64_t epoch) {
    v1alpha1::ShardMap map = map_of(epoch);
    map.set_directory_depth(2);
    map.set_move(epoch - 1);
    for (std::uint32_t part = 0; part < 4; ++part) {
      map.set_directory(static_cast<int>(part), part % 2 + (epoch == 1 ? 0 : 2));
      if (epoch == 1) continue;
      auto* departure = map.add_departures();
      departure->set_part(part);
      departure->set_from(part % 2);
    }
    return map;
  };
  publish(map(1));
  Client& client = connect();
  run(client, put_all(client, 0, 200, "v"));
  const std::size_t moved = keys_at(0).size();
  responders_[3]->stop();
  for (const std::size_t i : {0u, 1u, 2u}) {
    ASSERT_EQ(nodes_[i]->publish(map(2), kSecret).verdict, node::MemoryNode::Verdict::adopted);
  }
  EXPECT_TRUE(run_until(
      [&client] {
        const PoolState state = client.pool->state();
        return state.epoch == 2 && !state.nodes[0].leaving;
      },
      30 * kSecond));
  EXPECT_EQ(keys_at(0).size(), 0u);
  EXPECT_EQ(keys_at(2).size(), moved);
  EXPECT_EQ(keys_at(1).size(), 200 - moved);
}

// --- Tables that outlive sessions

// Operations of Outback go on in the next session, where they ask again what became of them.
class LastingTest : public PoolTest {
 protected:
  static constexpr layout::GeometryRequest kOutback{
      .table_percent = 2, .max_sessions = 8, .protocol = layout::Protocol::outback};
  LastingTest() : PoolTest(0, kOutback, 200 * kMillisecond, 8 << 20) {}
  static std::uint64_t lines(const Client& client) {
    return client.pool->counters().index.get(&index::Marks::lines_taken);
  }
  // Begins a change whose answer is lost with its session. The memory node is out of reach then.
  void lose_answer(Client& client, base::Status& status) {
    network_.options().lose_reply = network_.options().lose_call = 1;
    client.scope.spawn(put_into(client, key_on(1), status));
    pass(50 * base::kMicrosecond);
    network_.options().lose_reply = network_.options().lose_call = 0;
    responders_[1]->stop();
    EXPECT_FALSE(run_until([&client] { return client.scope.running() == 0; }, 300 * kMillisecond));
  }
  v1alpha1::ShardMap without_second(std::uint64_t epoch) {
    v1alpha1::ShardMap map = map_of(epoch);
    map.mutable_tables()->RemoveLast();
    for (std::uint32_t& part : *map.mutable_directory()) part = 0;
    map.set_directory_version(2);
    return map;
  }
};

TEST_F(LastingTest, AChangeWaitsForTheNextSession) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 30 * kSecond);
  ASSERT_TRUE(run_until_ready(client));
  ASSERT_TRUE(put(client, key_on(1)).ok());
  publish(map_of(2));
  ASSERT_TRUE(run_until([&client] { return client.pool->state().epoch == 2; }, 10 * kSecond));
  base::Status status(Code::internal, "never done");
  lose_answer(client, status);
  responders_[1]->serve(*nodes_[1]);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 10 * kSecond));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(LastingTest, AnOperationEndsByItsDeadlineOrWhenThePoolCloses) {
  publish(map_of(1));
  for (const bool closes : {false, true}) {
    Client& client = connect({"node-0:7400", "node-1:7400"}, 3 * kSecond);
    ASSERT_TRUE(run_until_ready(client));
    ASSERT_TRUE(put(client, key_on(1)).ok());
    base::Status status(Code::internal, "never done");
    const Nanos before = network_.now();
    lose_answer(client, status);
    if (closes) client.scope.spawn(close(client));
    ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 10 * kSecond));
    EXPECT_EQ(status.code(), Code::unknown_outcome) << status.message();
    EXPECT_LT(network_.now() - before, closes ? kSecond : 4 * kSecond);
    responders_[1]->serve(*nodes_[1]);
    if (closes) client.pool.reset();
  }
}

TEST_F(LastingTest, ATableThatLeavesTheMapKeepsNoOperation) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 30 * kSecond);
  for (const std::uint32_t node : {0u, 1u}) ASSERT_TRUE(put(client, key_on(node)).ok());
  ASSERT_TRUE(run_until([&client] { return lines(client) == 2; }, 2 * kSecond));
  base::Status status(Code::internal, "never done");
  lose_answer(client, status);
  ASSERT_EQ(nodes_[0]->publish(without_second(2), kSecret).verdict, node::MemoryNode::Verdict::adopted);
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 10 * kSecond));
  EXPECT_EQ(client.pool->state().epoch, 2u);
  EXPECT_EQ(status.code(), Code::unknown_outcome) << status.message();
  pass(kSecond);
  EXPECT_EQ(lines(client), 2u) << "what was counted there still counts";
  EXPECT_TRUE(put(client, key_on(1)).ok());
}

TEST_F(LastingTest, ATableWhoseMemoryIsLostKeepsNoOperation) {
  publish(map_of(1));
  Client& client = connect({"node-0:7400", "node-1:7400"}, 30 * kSecond);
  for (const std::uint32_t node : {0u, 1u}) ASSERT_TRUE(put(client, key_on(node)).ok());
  base::Status status(Code::internal, "never done");
  lose_answer(client, status);
  begin_life(1);
  publish(map_of(2));
  ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; }, 10 * kSecond));
  EXPECT_EQ(status.code(), Code::unknown_outcome) << status.message();
  EXPECT_TRUE(put(client, key_on(1)).ok());
  EXPECT_EQ(count(client).value(), 2u);
}

}  // namespace
}  // namespace farpool::client
