// SPDX-License-Identifier: Apache-2.0
#include "sim/world.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "node/memory_node.h"

namespace farpool::sim {
namespace {

using Kind = Call::Kind;

TEST(World, OneClientReadsWhatItWrote) {
  World world;
  Client& client = world.connect("a");
  const auto ask = [&](Kind kind, std::string key, std::string value = "") {
    ASSERT_TRUE(world.run(
        client, world.call(client, {.kind = kind, .key = std::move(key), .value = std::move(value)}, base::kSecond)));
  };
  ask(Kind::get, "x");
  ask(Kind::insert, "x", "1");
  ask(Kind::insert, "x", "2");
  ask(Kind::get, "x");
  ask(Kind::update, "x", std::string(500, 'v'));
  ask(Kind::get, "x");
  ask(Kind::put, "y", "5");
  ask(Kind::add, "y");
  ask(Kind::remove, "x");
  ask(Kind::get, "x");
  EXPECT_EQ(world.history().judge(), std::nullopt);
  EXPECT_TRUE(world.failures().empty()) << world.failures()[0].second.message();
  EXPECT_EQ(world.history().size(), 10u);
  EXPECT_EQ(world.history().of("y").back().found, "6");
}

// If locks lie in the NIC, they end with their life, whichever clients held them.
TEST(World, LocksInTheNicGoWithTheProcessAndWhatTheyGuardedIsRepaired) {
  int held = 0;
  for (std::uint64_t effect = 1; effect <= 24; ++effect) {
    World world({.device_locks = true});
    Client& client = world.connect("a");
    ASSERT_TRUE(world.run(client, world.call(client, {.kind = Kind::insert, .key = "x", .value = "1"}, base::kSecond)));
    EXPECT_FALSE(world.region(layout::kLocks).empty());
    client.port().crash_after(effect, fabric::sim::InFlight::lands);
    (void)world.run(client, world.call(client, {.kind = Kind::update, .key = "x", .value = "2"}, base::kSecond));
    const auto free = [&world] {
      return std::ranges::all_of(world.region(layout::kLocks), [](std::byte b) { return b == std::byte{0}; });
    };
    held += free() ? 0 : 1;
    ASSERT_TRUE(world.restart(true));
    EXPECT_TRUE(free());
    EXPECT_EQ(world.node().stats().defects, 0u);
    Client& next = world.connect("b");
    for (const Kind kind : {Kind::get, Kind::put, Kind::get}) {
      ASSERT_TRUE(world.run(next, world.call(next, {.kind = kind, .key = "x", .value = "3"}, base::kSecond)));
    }
    EXPECT_EQ(world.history().judge(), std::nullopt) << "effect " << effect;
    EXPECT_TRUE(world.failures().empty()) << "effect " << effect;
  }
  EXPECT_GT(held, 0) << "no death left a lock";
}

// Every machine's clock has its own pace and beginning: no code may compare two clocks.
TEST(World, ClocksMayDrift) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    World world({.wire = {.seed = seed, .max_offset = 3600 * base::kSecond, .max_drift_ppm = 50'000},
                 .lease = 200 * base::kMillisecond});
    Client& a = world.connect("a");
    Client& b = world.connect("b");
    for (int i = 0; i < 20; ++i) {
      for (Client* client : {&a, &b}) {
        world.spawn(*client, world.call(*client, {.kind = Kind::add, .key = "n"}, base::kSecond));
      }
      ASSERT_TRUE(world.settle(a) && world.settle(b));
      bool later = false;  // leases live on ticks meanwhile
      world.network().at(world.network().now() + 50 * base::kMillisecond, [&later] { later = true; });
      ASSERT_TRUE(world.run_until([&later] { return later; }));
    }
    EXPECT_EQ(world.history().judge(), std::nullopt) << "seed " << seed;
    EXPECT_TRUE(world.failures().empty()) << "seed " << seed << ": " << world.failures()[0].second.message();
    EXPECT_EQ(world.history().of("n").size(), 40u);
  }
}

}  // namespace
}  // namespace farpool::sim
