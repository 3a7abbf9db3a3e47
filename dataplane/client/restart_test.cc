// SPDX-License-Identifier: Apache-2.0
// A memory node whose process is killed at any moment of a load, and another that takes its memory up: everything that
// was acknowledged is there.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "client/pool.h"
#include "fabric/sim/network.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "task/scope.h"

namespace farpool::client {
namespace {

using base::Code;
using base::kMillisecond;
using base::kSecond;
using task::Task;

constexpr char kUid[] = "pool-1";

// One writer has a key of its own, so what it may hold is known at any time.
struct Key {
  std::string name;
  std::optional<std::string> value;                 // acknowledged
  std::vector<std::optional<std::string>> perhaps;  // by calls since whose outcome is not known
};

struct RestartWorld {
  explicit RestartWorld(std::uint64_t seed)
      : network(fabric::sim::Options{.seed = seed}),
        wire(network.add_node("node-0:7400")),
        memory(std::move(*node::Memory::anonymous(4 << 20))) {
    begin_life();
  }
  void begin_life() {
    node::MemoryNode::Options options;
    options.name = "memory-0";
    options.pool_uid = kUid;
    options.endpoint = "node-0:7400";
    options.geometry.max_sessions = 4;
    options.geometry.slots_per_session = 8;
    options.geometry.table_percent = 5;
    options.geometry.entries_per_row = 3;
    options.geometry.rows_per_lock = 2;
    options.lease = 2 * kSecond;
    options.failure_timeout = 200 * kMillisecond;
    options.log = [this](bool, const std::string& line) { log.push_back(line); };
    auto created = node::MemoryNode::create(std::move(options), memory.span(), wire);
    ASSERT_TRUE(created.ok()) << created.status().message();
    node = std::move(*created);
    wire.serve(*node);
    ASSERT_EQ(node->stand_alone().verdict, node::MemoryNode::Verdict::adopted);
  }
  void kill() {
    wire.stop();
    node.reset();
  }

  fabric::sim::Network network;
  fabric::sim::SimResponder& wire;
  node::Memory memory;
  std::unique_ptr<node::MemoryNode> node;
  std::vector<std::string> log;
};

Task<void> write_on(Pool& pool, Key& key, std::uint64_t seed, const bool& stop, std::uint64_t& written) {
  base::Random random(seed);
  std::uint64_t n = 0;
  while (!stop) {
    ++n;
    std::optional<std::string> value;
    if (!random.chance(0.2))
      value = std::string(random.chance(0.5) ? 3 : 200 + random.below(3000), static_cast<char>('a' + n % 26));
    base::Status status;
    if (value) {
      status = co_await pool.put(key.name, *value);
    } else {
      status = (co_await pool.erase(key.name)).status();
    }
    if (status.ok()) {
      key.value = value;
      key.perhaps.clear();
      ++written;
    } else if (status.code() == Code::unknown_outcome) {
      key.perhaps.push_back(value);
    } else {
      EXPECT_NE(status.code(), Code::corrupt) << status.message();
    }
  }
}

Task<void> check(Pool& pool, Key& key, std::uint64_t& keys) {
  const auto value = co_await pool.get(key.name);
  EXPECT_TRUE(value.ok()) << value.status().message();
  if (!value.ok()) co_return;
  bool explained = *value == key.value;
  for (const auto& perhaps : key.perhaps) explained = explained || *value == perhaps;
  EXPECT_TRUE(explained) << key.name << " is not what was acknowledged, nor what may have been written since";
  key.value = *value;
  key.perhaps.clear();
  if (value->has_value()) ++keys;
}

Task<void> counted(Pool& pool, std::uint64_t& keys) {
  const auto count = co_await pool.count();
  EXPECT_TRUE(count.ok()) << count.status().message();
  if (count.ok()) keys = *count;
}

TEST(Restart, EverythingAcknowledgedIsThere) {
  std::uint64_t repaired = 0, lives = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    RestartWorld world(seed);
    base::Random random(seed);
    fabric::sim::SimPort& port =
        world.network.add_client({.pool_uid = kUid, .role = "client", .name = "test", .authenticated = true});
    Pool pool(port, {.pool_uid = kUid,
                     .client_name = "test",
                     .bootstrap = {"node-0:7400"},
                     .operation_deadline = 20 * kSecond,
                     .connect_deadline = kSecond});
    pool.start();
    std::vector<Key> keys(40);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i].name = "key-" + std::to_string(i);
    const auto over = [&](task::Scope& scope) {
      return world.network.run_until([&] { return scope.running() == 0; }, world.network.now() + 120 * kSecond);
    };
    for (int life = 0; life < 6; ++life, ++lives) {
      bool stop = false;
      std::uint64_t written = 0;
      task::Scope writers;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        writers.spawn(write_on(pool, keys[i], seed * 1000 + i + static_cast<std::uint64_t>(life) * 100, stop, written));
      }
      const std::uint64_t until = 50 + random.below(400);
      ASSERT_TRUE(world.network.run_until([&] { return written >= until; }, world.network.now() + 120 * kSecond));
      world.kill();
      stop = true;
      world.begin_life();
      if (testing::Test::HasFatalFailure()) std::abort();  // frames refer to this world
      repaired += world.node->stats().repaired;
      EXPECT_EQ(world.node->stats().defects, 0u) << "seed " << seed << ", life " << life;
      EXPECT_FALSE(world.node->facts().memory_node().memory_fresh());
      ASSERT_TRUE(over(writers)) << "seed " << seed;
      std::uint64_t there = 0, told = 0;
      task::Scope readers;
      for (Key& key : keys) readers.spawn(check(pool, key, there));
      ASSERT_TRUE(over(readers)) << "seed " << seed;
      readers.spawn(counted(pool, told));
      ASSERT_TRUE(over(readers)) << "seed " << seed;
      EXPECT_EQ(told, there) << "seed " << seed << ", life " << life;
    }
    task::Scope closing;
    closing.spawn(pool.close(world.network.now() + 5 * kSecond));
    ASSERT_TRUE(over(closing));
  }
  EXPECT_GT(repaired, lives / 2);  // the node did die in the middle of something
}

}  // namespace
}  // namespace farpool::client
