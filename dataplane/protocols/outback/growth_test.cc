// SPDX-License-Identifier: Apache-2.0
// Tables of pools that grow: while clients work, while others are idle or stand still, and while the memory node's
// process dies after any word of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/marks.h"
#include "client/pool.h"
#include "index/outback/protocol.h"
#include "node/audit.h"
#include "protocols/outback/world_test.h"
#include "task/scope.h"

namespace farpool::outback {
namespace {

using base::kSecond;
using task::Task;

std::string key_of(std::size_t number) { return "key" + std::to_string(number); }

// A pool of one memory node, and clients of it.
struct Growing {
  explicit Growing(std::uint64_t seed = 7, std::uint64_t memory_bytes = 4 << 20)
      : world({.seed = seed}, memory_bytes) {}
  ~Growing() {
    for (const auto& pool : pools) run(close(*pool));
  }
  void begin() {
    const base::Status begun = world.begin_life();
    FARPOOL_CHECK(begun.ok());
  }
  client::Pool& connect() {
    ports.push_back(&world.network.add_client(kPeer));
    pools.push_back(
        std::make_unique<client::Pool>(*ports.back(), client::Pool::Options{.pool_uid = kUid,
                                                                            .client_name = "test",
                                                                            .bootstrap = {kEndpoint},
                                                                            .operation_deadline = 20 * kSecond,
                                                                            .connect_deadline = kSecond}));
    pools.back()->start();
    return *pools.back();
  }
  Task<void> close(client::Pool& pool) { co_await pool.close(world.network.now() + 5 * kSecond); }
  // Runs the tasks to their end. If the memory node's process dies meanwhile, another one takes the memory up.
  void run(std::vector<Task<void>> tasks) {
    task::Scope scope;
    for (Task<void>& task : tasks) scope.spawn(std::move(task));
    while (scope.running() > 0) {
      FARPOOL_CHECK(world.network.run_until([&] { return scope.running() == 0 || !world.wire.alive(); },
                                            world.network.now() + 600 * kSecond));
      if (world.wire.alive()) continue;
      world.kill();
      begin();
      EXPECT_EQ(world.node->stats().defects, 0u);
      ++deaths;
    }
  }
  void run(Task<void> task) {
    std::vector<Task<void>> tasks;
    tasks.push_back(std::move(task));
    run(std::move(tasks));
  }
  Stage stage() const {
    const base::Bytes heap = world.region(layout::kHeap);
    return *stage_of(*parse(heap), heap);
  }
  node::Audit audit() const {
    auto found = node::audit_memory(world.memory.span());
    FARPOOL_CHECK(found.ok());
    return std::move(found->audit);
  }

  PoolWorld world;
  std::vector<fabric::sim::SimPort*> ports;
  std::vector<std::unique_ptr<client::Pool>> pools;
  int deaths = 0;
};

Task<void> put_keys(client::Pool& pool, std::size_t first, std::size_t end, std::size_t step, std::uint64_t& failed) {
  for (std::size_t i = first; i < end; i += step) {
    const base::Status done = co_await pool.put(key_of(i), "v" + std::to_string(i));
    EXPECT_TRUE(done.ok()) << i << ": " << done.message();
    failed += done.ok() ? 0 : 1;
    const auto found = co_await pool.get(key_of(first + (i - first) / 2 / step * step));
    EXPECT_TRUE(found.ok() && found->has_value()) << i;
  }
}
Task<void> expect_keys(client::Pool& pool, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto found = co_await pool.get(key_of(i));
    EXPECT_TRUE(found.ok() && *found == "v" + std::to_string(i))
        << i << ": " << (found.ok() ? found->value_or("nothing") : found.status().message());
  }
  const auto absent = co_await pool.get("none");
  EXPECT_TRUE(absent.ok() && !absent->has_value());
}

TEST(OutbackGrowth, SixteenfoldRefusesNothingAndMisleadsNoClient) {
  Growing growing;
  growing.begin();
  client::Pool& first = growing.connect();
  client::Pool& second = growing.connect();
  client::Pool& idle = growing.connect();
  client::Pool& stopped = growing.connect();
  std::uint64_t failed = 0;
  growing.run(put_keys(first, 0, 8, 1, failed));
  growing.run(expect_keys(idle, 8));
  growing.run(expect_keys(stopped, 8));
  growing.ports[3]->pause();
  const Cut cut = *parse(growing.world.region(layout::kHeap));
  const std::uint64_t first_slots = cut.shape(0).table_slots();
  const std::size_t keys = 16 * first_slots;
  std::vector<Task<void>> tasks;
  for (std::size_t i = 0; i < 4; ++i) {
    tasks.push_back(put_keys(i % 2 == 0 ? first : second, 8 + i, keys, 4, failed));
  }
  growing.run(std::move(tasks));
  EXPECT_EQ(failed, 0u);
  EXPECT_GE(growing.stage().level, 4u);
  growing.run(expect_keys(second, keys));
  growing.run(expect_keys(idle, keys));
  growing.ports[3]->resume();
  growing.run(expect_keys(stopped, keys));
  const node::Audit found = growing.audit();
  EXPECT_EQ(found.damage(), 0u);
  EXPECT_EQ(found.table.keys, keys);
  EXPECT_NE(found.table.state.find("doublings"), std::string::npos) << found.table.state;
  const auto told = [&] { return growing.world.node->stats().keys == keys; };
  ASSERT_TRUE(growing.world.network.run_until(told, growing.world.network.now() + 5 * kSecond));
  const index::NodeMarks marks = growing.world.node->stats().index;
  EXPECT_EQ(marks.doublings, growing.stage().level);
  EXPECT_EQ(marks.doublings + marks.doublings_left, cut.figures.doublings);
  EXPECT_GE(marks.locators_published, marks.doublings);
  EXPECT_GT(marks.settled, 0u);
  EXPECT_LE(marks.resize_stage, 2u);
  EXPECT_LT(marks.locator_bytes, cut.locator_bytes / 4);
}

// A memory whose table is about to be doubled, with its first `keys` keys.
struct Filled {
  std::vector<std::byte> memory;
  std::size_t keys = 0;
  std::uint64_t epoch = 0;
};
Filled fill(std::uint64_t memory_bytes, const std::function<bool(const Growing&, const Stage&)>& until) {
  Growing growing(7, memory_bytes);
  growing.begin();
  client::Pool& pool = growing.connect();
  Filled filled;
  std::uint64_t failed = 0;
  while (!until(growing, growing.stage())) {
    growing.run(put_keys(pool, filled.keys, filled.keys + 1, 1, failed));
    ++filled.keys;
    FARPOOL_CHECK(filled.keys < 10'000);
  }
  filled.epoch = growing.world.epoch;
  filled.memory.assign(growing.world.memory.span().begin(), growing.world.memory.span().end());
  return filled;
}

// Two tasks go on with a memory whose process dies after so many words. Returns how many words they had it write.
std::uint64_t go_on(const Filled& filled, std::uint64_t death, std::size_t more) {
  Growing growing(1000 + death);  // another client than the one that has filled the memory
  std::ranges::copy(filled.memory, growing.world.memory.span().begin());
  growing.world.epoch = filled.epoch;
  growing.begin();
  client::Pool& pool = growing.connect();
  growing.run(expect_keys(pool, 1));
  const std::uint64_t before = growing.world.wire.service_effects();
  if (death != 0) growing.world.wire.die_after(death);
  std::uint64_t failed = 0;
  std::vector<Task<void>> tasks;
  for (std::size_t i = 0; i < 2; ++i) {
    tasks.push_back(put_keys(pool, filled.keys + i, filled.keys + more, 2, failed));
  }
  growing.run(std::move(tasks));
  EXPECT_LE(growing.deaths, death == 0 ? 0 : 1);
  growing.run(expect_keys(pool, filled.keys + more));
  EXPECT_EQ(growing.audit().damage(), 0u);
  EXPECT_EQ(growing.audit().table.keys, filled.keys + more);
  EXPECT_GE(growing.stage().level, 1u);
  return growing.world.wire.service_effects() - before;
}

TEST(OutbackGrowth, LosesNothingWhenTheMemoryNodeDiesAfterAWordOfIt) {
  const std::uint64_t begun = base::Mark::hits("outback_growth_begun");
  const Filled filled =
      fill(4 << 20, [&](const Growing&, const Stage&) { return base::Mark::hits("outback_growth_begun") > begun; });
  constexpr std::size_t kMore = 24;
  const std::uint64_t words = go_on(filled, 0, kMore);
  EXPECT_GT(words, 500u);
  // A whole run: FARPOOL_EVERY_WORD=1.
  const std::uint64_t step = std::getenv("FARPOOL_EVERY_WORD") != nullptr ? 1 : std::max<std::uint64_t>(words / 60, 1);
  for (std::uint64_t death = 1; death < words && !::testing::Test::HasFailure(); death += step) {
    SCOPED_TRACE("death after " + std::to_string(death) + " words of " + std::to_string(words));
    go_on(filled, death, kMore);
  }
}

// The memory node has lost the locator by which keys were moving: another one takes its place, and no key is lost.
TEST(OutbackGrowth, GoesOnWhenTheLocatorIsDamagedWhileKeysMove) {
  for (const std::uint64_t level : {1u, 2u}) {
    // A memory whose keys do not all move in one step.
    const Filled filled = fill(16 << 20, [&](const Growing& growing, const Stage& stage) {
      return stage.level == level && stage.moving && stage.doubled && growing.audit().damage() == 0;
    });
    Growing growing(8, filled.memory.size());
    std::ranges::copy(filled.memory, growing.world.memory.span().begin());
    growing.world.epoch = filled.epoch;
    const layout::Geometry geometry = *layout::plan_geometry({.memory_bytes = filled.memory.size(),
                                                              .table_percent = 2,
                                                              .max_sessions = 8,
                                                              .protocol = layout::Protocol::outback});
    const base::MutableBytes memory = growing.world.memory.span();
    const base::MutableBytes heap = memory.subspan(geometry.at(layout::kHeap).offset, geometry.at(layout::kHeap).bytes);
    const Cut cut = *parse(heap);
    const Stage stage = *stage_of(cut, heap);
    std::byte* const locator =
        stage.place == 0 ? memory.data() + geometry.at(layout::kTable).offset : heap.data() + cut.locator;
    locator[16] ^= std::byte{4};
    growing.begin();
    EXPECT_TRUE(growing.world.logged("found the locator damaged, and wrote another one, to which keys move"));
    client::Pool& pool = growing.connect();
    growing.run(expect_keys(pool, filled.keys));
    std::uint64_t failed = 0;
    growing.run(put_keys(pool, filled.keys, filled.keys + 40, 1, failed));
    growing.run(expect_keys(pool, filled.keys + 40));
    EXPECT_FALSE(growing.stage().generation == stage.generation);
    EXPECT_EQ(growing.audit().damage(), 0u);
    EXPECT_EQ(growing.audit().table.keys, filled.keys + 40);
  }
}

}  // namespace
}  // namespace farpool::outback
