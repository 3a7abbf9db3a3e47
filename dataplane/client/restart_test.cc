// SPDX-License-Identifier: Apache-2.0
// A memory node's process is killed at any moment of a load, and another one takes its memory up: everything that was
// acknowledged is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "client/pool.h"
#include "fabric/sim/network.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "layout/operation_slot.h"
#include "layout/private_page.h"
#include "node/audit.h"
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

// One writer has this key to itself, so its possible values are known at any time.
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

struct Work {
  bool stop = false;
  std::uint64_t written = 0;
};

Task<void> write_on(Pool& pool, Key& key, std::uint64_t seed, Work& work) {
  base::Random random(seed);
  std::uint64_t n = 0;
  while (!work.stop) {
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
      ++work.written;
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
      Work work;
      task::Scope writers;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        writers.spawn(write_on(pool, keys[i], seed * 1000 + i + static_cast<std::uint64_t>(life) * 100, work));
      }
      const std::uint64_t until = 50 + random.below(400);
      ASSERT_TRUE(world.network.run_until([&] { return work.written >= until; }, world.network.now() + 120 * kSecond));
      world.kill();
      work.stop = true;
      world.begin_life();
      if (testing::Test::HasFatalFailure()) std::abort();  // frames refer to this world
      repaired += world.node->stats().repaired;
      EXPECT_EQ(world.node->stats().defects, 0u) << "seed " << seed << ", life " << life;
      EXPECT_FALSE(world.node->facts().memory_node().memory_fresh());
      // The audit explains every byte from the first moment on: the operator plans from it.
      const auto audited = node::audit_memory(world.memory.span());
      ASSERT_TRUE(audited.ok()) << audited.status().message();
      EXPECT_GT(audited->audit.table.keys, 0u);
      EXPECT_EQ(world.node->stats().keys, audited->audit.table.keys) << "seed " << seed << ", life " << life;
      EXPECT_EQ(world.node->facts().memory_node().keys(), audited->audit.table.keys);
      EXPECT_GT(world.node->facts().memory_node().heap_bytes_used(), 0u);
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

Task<void> put_one(Pool& pool, std::string key, std::string value, base::Status& status) {
  status = co_await pool.put(key, value);
}
Task<void> repair_all(Pool& pool, Nanos deadline, std::vector<Pool::Repair>& repairs) {
  repairs = co_await pool.repair(deadline);
}
Task<void> get_one(Pool& pool, std::string key, base::Result<std::optional<std::string>>& value) {
  value = co_await pool.get(key);
}

// Two rows of one path are torn, which no order of WRITEs causes. Nobody follows the plan: the rows stay unchanged and
// locked, and clients that need them get an error that says so. Everything else continues.
TEST(Restart, RowsThatNoCrashExplainsAreQuarantined) {
  RestartWorld world(5);
  fabric::sim::SimPort& port =
      world.network.add_client({.pool_uid = kUid, .role = "client", .name = "test", .authenticated = true});
  Pool pool(port, {.pool_uid = kUid,
                   .client_name = "test",
                   .bootstrap = {"node-0:7400"},
                   .operation_deadline = 3 * kSecond,
                   .connect_deadline = kSecond});
  pool.start();
  const auto run = [&](Task<void> task) {
    task::Scope scope;
    scope.spawn(std::move(task));
    FARPOOL_CHECK(world.network.run_until([&] { return scope.running() == 0; }, world.network.now() + 120 * kSecond));
  };
  const auto put = [&](const std::string& key) {
    base::Status status;
    run(put_one(pool, key, "value", status));
    return status;
  };
  const auto get = [&](const std::string& key) {
    base::Result<std::optional<std::string>> value(base::Status(Code::internal, "never asked"));
    run(get_one(pool, key, value));
    return value;
  };
  std::vector<std::string> keys;
  for (int i = 0; i < 60; ++i) {
    keys.push_back("key-" + std::to_string(i));
    ASSERT_TRUE(put(keys.back()).ok());
  }

  const layout::Geometry geometry = world.node->geometry();
  const base::MutableBytes memory = world.memory.span();
  world.kill();
  const base::HashSecret seed = layout::read_private_page(memory.last(layout::kPage)).record.value().table_seed;
  const auto rows_of = [&](const std::string& key) {
    const auto places = rcuckoo::locate(base::keyed_hash(seed, base::bytes_of(key)), geometry.rows);
    return std::array{places.first, places.second};
  };
  const std::array bad = rows_of(keys[0]);
  const auto row = [&](std::uint64_t number) {
    return memory.subspan(geometry.at(layout::kTable).offset + number * geometry.row_bytes(), geometry.row_bytes());
  };
  std::byte* at = memory.data() + geometry.at(layout::kSlots).offset;
  auto slot = base::load<layout::OperationSlot>(at);
  slot.holder = 0xdead;
  slot.sequence = layout::Sequence::of(slot.number() + 1, 0);
  slot.lock_word = {};
  for (std::size_t i = 0; i < bad.size(); ++i) {
    const rcuckoo::LockBit bit = rcuckoo::lock_bit(geometry, rcuckoo::lock_of(geometry, bad[i]));
    std::byte* word = memory.data() + geometry.at(layout::kLocks).offset + bit.offset;
    base::store(word, base::load<std::uint64_t>(word) | bit.mask);
    slot.lock_word[i] = {bit.offset, bit.mask};
    slot.row[i] = rcuckoo::SlotRow::of(bad[i], 0);
    row(bad[i])[0] ^= std::byte{1};
  }
  slot.seal_claim();
  slot.seal_plan();
  base::store(at, slot);
  const auto locked = [&](const std::string& key) {
    for (const std::uint64_t number : rows_of(key)) {
      for (const std::uint64_t of : bad) {
        const auto one = rcuckoo::lock_bit(geometry, rcuckoo::lock_of(geometry, number)),
                   other = rcuckoo::lock_bit(geometry, rcuckoo::lock_of(geometry, of));
        if (one.offset == other.offset && (one.mask & other.mask) != 0) return true;
      }
    }
    return false;
  };

  for (int life = 0; life < 2; ++life) {
    const std::vector<std::byte> torn(row(bad[0]).begin(), row(bad[0]).end());
    world.begin_life();
    EXPECT_EQ(world.node->stats().quarantined_rows, 2u);
    const v1alpha1::MemoryNodeFacts facts = world.node->facts().memory_node();
    EXPECT_EQ(facts.quarantined_rows(), 2u);
    EXPECT_EQ(facts.dead_clients(), 1u);
    EXPECT_GT(world.node->stats().defects, 0u);
    EXPECT_TRUE(std::any_of(world.log.begin(), world.log.end(), [](const std::string& line) {
      return line.find("left as it is, with its locks: operation slot 0") != std::string::npos;
    }));
    EXPECT_TRUE(std::equal(torn.begin(), torn.end(), row(bad[0]).begin())) << "a row was guessed";
    const base::Status refused = put(keys[0]);
    EXPECT_EQ(refused.code(), Code::locked) << refused.message();
    EXPECT_NE(refused.message().find("quarantined"), std::string::npos) << refused.message();
    EXPECT_FALSE(get(keys[0]).ok());
    std::size_t served = 0;
    for (const std::string& key : keys) {
      if (locked(key)) continue;
      ++served;
      const auto value = get(key);
      ASSERT_TRUE(value.ok()) << value.status().message();
      EXPECT_EQ(*value, "value");
      EXPECT_TRUE(put(key).ok());
    }
    EXPECT_GT(served, keys.size() / 2);
    EXPECT_EQ(world.node->facts().memory_node().quarantined_rows(), 2u);
    std::vector<Pool::Repair> repairs;
    run(repair_all(pool, world.network.now() + 2 * kSecond, repairs));
    ASSERT_EQ(repairs.size(), 1u);
    EXPECT_EQ(repairs[0].slots_repaired, 0u);
    EXPECT_EQ(repairs[0].slots_left, 1u);
    EXPECT_NE(repairs[0].trouble.find("quarantined"), std::string::npos) << repairs[0].trouble;
    if (life == 0) world.kill();
  }
  task::Scope closing;
  closing.spawn(pool.close(world.network.now() + 5 * kSecond));
  ASSERT_TRUE(world.network.run_until([&] { return closing.running() == 0; }, world.network.now() + 120 * kSecond));
}

}  // namespace
}  // namespace farpool::client
