// SPDX-License-Identifier: Apache-2.0
// Pools of Outback: memory nodes that are formatted, started, killed and started again, and clients of them.
#include "client/pool.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "index/outback/layout.h"
#include "protocols/outback/world_test.h"
#include "task/scope.h"

namespace farpool::outback {
namespace {

using base::Code;
using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;
using base::Nanos;
using task::Task;

class Pools : public ::testing::Test {
 protected:
  explicit Pools(fabric::sim::Options options = {.seed = 7}) : world(options) {
    const base::Status begun = world.begin_life();
    FARPOOL_CHECK(begun.ok());
    pool = std::make_unique<client::Pool>(world.network.add_client(kPeer),
                                          client::Pool::Options{.pool_uid = kUid,
                                                                .client_name = "test",
                                                                .bootstrap = {kEndpoint},
                                                                .operation_deadline = 20 * kSecond,
                                                                .connect_deadline = kSecond});
    pool->start();
  }
  ~Pools() override {
    world.network.options().lose_reply = world.network.options().lose_call = 0;
    run(close());
  }
  Task<void> close() { co_await pool->close(world.network.now() + 5 * kSecond); }
  void run(std::vector<Task<void>> tasks) {
    task::Scope scope;
    for (Task<void>& task : tasks) scope.spawn(std::move(task));
    FARPOOL_CHECK(
        world.network.run_until([&scope] { return scope.running() == 0; }, world.network.now() + 600 * kSecond));
  }
  void run(Task<void> task) {
    std::vector<Task<void>> tasks;
    tasks.push_back(std::move(task));
    run(std::move(tasks));
  }
  // Kills the memory node's process when so much time has passed, and starts another one some time later.
  void restart_after(Nanos time, bool keeps_memory = true) {
    world.network.at(world.network.now() + time, [this, keeps_memory] {
      world.kill();
      if (!keeps_memory) world.lose_memory();
    });
    world.network.at(world.network.now() + time + 300 * kMillisecond, [this] {
      const base::Status begun = world.begin_life();
      EXPECT_TRUE(begun.ok()) << begun.message();
    });
  }

  PoolWorld world;
  std::unique_ptr<client::Pool> pool;
};

class AddOne final : public client::Editor {
 public:
  client::Edit edit(std::optional<std::string_view> value) override {
    return client::Edit::put(std::to_string(std::stoull(std::string(value.value_or("0"))) + 1));
  }
};

Task<void> expect_value(client::Pool& pool, std::string key, std::optional<std::string> value) {
  const auto found = co_await pool.get(key);
  EXPECT_TRUE(found.ok()) << found.status().message();
  if (found.ok()) EXPECT_TRUE(*found == value) << key << " has " << found->value_or("nothing").substr(0, 40);
}
Task<void> put(client::Pool& pool, std::string key, std::string value) {
  const base::Status done = co_await pool.put(key, value);
  EXPECT_TRUE(done.ok()) << done.message();
}
Task<void> count_up(client::Pool& pool, std::string key, std::uint64_t times, std::uint64_t& done) {
  for (std::uint64_t i = 0; i < times; ++i) {
    AddOne add;
    const base::Status changed = co_await pool.modify(key, add);
    EXPECT_TRUE(changed.ok()) << changed.message();
    done += changed.ok() ? 1 : 0;
  }
}

Task<void> use(client::Pool& pool) {
  co_await put(pool, "short", "1");
  co_await put(pool, "long", std::string(300'000, 'v'));
  std::uint64_t done = 0;
  co_await count_up(pool, "short", 41, done);
  co_await expect_value(pool, "short", "42");
  co_await expect_value(pool, "long", std::string(300'000, 'v'));
  co_await put(pool, "gone", "x");
  const auto erased = co_await pool.erase("gone");
  EXPECT_TRUE(erased.ok() && *erased);
  const auto count = co_await pool.count();
  EXPECT_TRUE(count.ok() && *count == 2) << count.status().message();
  const auto page = co_await pool.scan(0, 10'000);
  EXPECT_TRUE(page.ok() && page->keys.size() == 2) << page.status().message();
}

TEST_F(Pools, ServeKeysOverTheLivesOfTheMemoryNode) {
  run(use(*pool));
  EXPECT_EQ(world.node->geometry().shape().name, "outback");
  for (int life = 2; life <= 3; ++life) {
    world.kill();
    const base::Status begun = world.begin_life();
    ASSERT_TRUE(begun.ok()) << begun.message();
    EXPECT_EQ(world.node->stats().lives, static_cast<std::uint64_t>(life));
    EXPECT_EQ(world.node->stats().keys, 2u);
    EXPECT_EQ(world.node->stats().defects, 0u);
    run(expect_value(*pool, "short", "42"));
    run(expect_value(*pool, "long", std::string(300'000, 'v')));
  }
}

TEST_F(Pools, AMemoryNodeTellsWhatItHas) {
  run(put(*pool, "key", std::string(1000, 'v')));
  const auto told = [this] { return world.node->stats().keys == 1; };
  ASSERT_TRUE(world.network.run_until(told, world.network.now() + 5 * kSecond));
  const node::MemoryNode::Stats stats = world.node->stats();
  EXPECT_EQ(stats.bytes, 1003u);
  EXPECT_GT(stats.heap_live, 1003u);
  EXPECT_LT(stats.heap_live, stats.heap_bytes / 100) << "buckets and request lines are none of it";
  EXPECT_EQ(world.node->facts().memory_node().heap_bytes(), stats.heap_bytes);
  EXPECT_EQ(stats.segments.free, 0u) << "no client takes segments";
  EXPECT_EQ(world.node->entry().outback().buckets(), world.node->geometry().rows);
  EXPECT_EQ(world.node->facts().memory_node().outback().buckets(), world.node->geometry().rows);
}

// Every change whose answer was lost is asked again, in another session of the same table.
TEST_F(Pools, AChangeTakesEffectOnceOverLostAnswers) {
  world.network.options().lose_reply = world.network.options().lose_call = 0.02;
  std::uint64_t done = 0;
  std::vector<Task<void>> tasks;
  for (const char* key : {"a", "b", "c"}) tasks.push_back(count_up(*pool, key, 60, done));
  run(std::move(tasks));
  world.network.options().lose_reply = world.network.options().lose_call = 0;
  EXPECT_GT(pool->counters().sessions_lost.get(), 3u) << "the test is too easy";
  EXPECT_EQ(done, 180u);
  for (const char* key : {"a", "b", "c"}) run(expect_value(*pool, key, "60"));
}

TEST_F(Pools, AChangeTakesEffectOnceOverLivesOfTheMemoryNode) {
  std::uint64_t done = 0;
  run(count_up(*pool, "count", 1, done));
  for (int death = 1; death <= 6; ++death) {
    const std::uint64_t epoch = world.epoch;
    restart_after(death * 20 * kMicrosecond);
    run(count_up(*pool, "count", 100, done));
    EXPECT_EQ(world.epoch, epoch + 1) << "the process did not die meanwhile";
  }
  EXPECT_EQ(done, 601u);
  run(expect_value(*pool, "count", "601"));
}

Task<void> put_until_told(client::Pool& pool, std::size_t keys, std::vector<base::Status>& told) {
  for (std::size_t i = 0; i < keys; ++i) {
    const std::string key = "key" + std::to_string(i);
    told.push_back(co_await pool.put(key, "v"));
  }
}

// What was lost with the memory is not found in the next one, whatever a client remembers of the first.
TEST_F(Pools, NothingOfAMemoryThatIsLostIsTakenForTheNextOne) {
  std::vector<base::Status> told;
  for (int loss = 1; loss <= 3; ++loss) {
    run(put(*pool, "before", "x"));
    restart_after(loss * 30 * kMicrosecond, false);
    run(put_until_told(*pool, 100, told));
    EXPECT_TRUE(told.back().ok()) << told.back().message();
    run(expect_value(*pool, "before", std::nullopt));
  }
  for (const base::Status& status : told) {
    EXPECT_TRUE(status.ok() || status.code() == Code::unknown_outcome) << status.message();
  }
}

TEST_F(Pools, AGoodbyeGivesTheLinesBack) {
  run(put(*pool, "key", "v"));
  const Cut made = *parse(world.region(layout::kHeap));
  const auto attached = [&] {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < made.figures.clients; ++i) {
      count += base::load<std::uint64_t>(world.region(layout::kHeap).data() + made.client_at(i)) != 0 ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(attached(), 1u);
  run(close());
  EXPECT_EQ(attached(), 0u);
  EXPECT_EQ(world.node->stats().sessions_fenced, 0u);
}

}  // namespace
}  // namespace farpool::outback
