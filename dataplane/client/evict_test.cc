// SPDX-License-Identifier: Apache-2.0
// Memory nodes that are full, in pools of every protocol: which keys go, which stay, and which writes are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/pool_world_test.h"

namespace farpool::client {
namespace {

using base::kMillisecond;
using base::kSecond;
using layout::Protocol;

constexpr int kStep = 500;                         // keys that one run puts, as the network bounds its steps
constexpr int kTooMany = 16'000;                   // keys, for the memory of both nodes
constexpr base::Nanos kTick = 100 * kMillisecond;  // of a session here

class PoolEvictionTest : public PoolTest, public ::testing::WithParamInterface<Protocol> {
 protected:
  static layout::GeometryRequest geometry() {
    layout::GeometryRequest geometry = kGeometry;
    geometry.protocol = GetParam();
    geometry.table_percent = 25;
    return geometry;
  }
  PoolEvictionTest() : PoolTest(0, geometry(), 40 * kMillisecond, kMemory) {}

  void publish_with(v1alpha1::Eviction eviction, std::uint64_t epoch = 1) {
    v1alpha1::ShardMap map = map_of(epoch);
    map.set_eviction(eviction);
    publish(map);
  }
  Client& connected(std::shared_ptr<Accesses> accesses = nullptr) {
    Client& client = connect({"node-0:7400", "node-1:7400"}, 5 * kSecond, std::move(accesses));
    EXPECT_TRUE(run_until_ready(client));
    return client;
  }
  static std::string value_of(int key) {
    return "v" + std::to_string(key) + std::string(400 + static_cast<std::size_t>(key) % 100, '.');
  }
  // Puts keys [from, to), and after each reads one of the hot ones. Ends at the first put that is refused for lack of
  // room.
  struct Load {
    int from = 0, to = 0, hot = 0;
    Millis expires = kNoExpiry;  // of keys that are even
    int refused = 0, hot_misses = 0;
  };
  static Task<void> fill(Client& client, Load& load) {
    for (int i = load.from; i < load.to; ++i) {
      const Millis expires = i % 2 == 0 ? load.expires : kNoExpiry;
      const base::Status put = co_await client.pool->put("key-" + std::to_string(i), value_of(i), expires);
      EXPECT_TRUE(put.ok() || put.code() == Code::out_of_memory) << put.message();
      if (put.code() == Code::out_of_memory) {
        ++load.refused;
        load.to = i + 1;
      }
      if (load.hot == 0) continue;
      const auto got = co_await client.pool->get("key-" + std::to_string(i % load.hot));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (got.ok() && !*got) ++load.hot_misses;
    }
  }
  void fill_up_to(Client& client, Load& load, int to) {
    for (const int refused = load.refused; load.to < to && load.refused == refused;) {
      load.from = std::exchange(load.to, std::min(to, load.to + kStep));
      run(client, fill(client, load));
    }
  }
  static Task<void> time_into(Client& client, Millis& into) {
    const auto time = co_await client.pool->time();
    EXPECT_TRUE(time.ok()) << time.status().message();
    if (time.ok()) into = *time;
  }
  Millis time(Client& client) {
    Millis time = 0;
    run(client, time_into(client, time));
    return time;
  }
  // Reads keys [from, to). Each has its value or none.
  static Task<void> read_all(Client& client, int from, int to, std::set<int>& there) {
    for (int i = from; i < to; ++i) {
      const auto got = co_await client.pool->get("key-" + std::to_string(i));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (!got.ok() || !*got) continue;
      EXPECT_EQ(**got, value_of(i));
      there.insert(i);
    }
  }
  std::set<int> keys(Client& client, int to) {
    std::set<int> there;
    for (int from = 0; from < to; from += kStep) run(client, read_all(client, from, std::min(to, from + kStep), there));
    return there;
  }
  std::uint64_t evicted() const { return sum_of(&PoolCounters::evicted_keys); }
};

// Keys that do not get used are lost, and no others; a write waits for room, and none is refused.
TEST_P(PoolEvictionTest, AFullPoolTakesNewKeysInThePlaceOfUnusedOnes) {
  publish_with(v1alpha1::EVICTION_ALLKEYS_LRU);
  Client& client = connected();
  Load load{.hot = 100};
  fill_up_to(client, load, kTooMany);
  const std::set<int> there = keys(client, kTooMany);
  EXPECT_EQ(load.refused, 0);
  EXPECT_EQ(load.hot_misses, 0);
  EXPECT_EQ(evicted(), kTooMany - there.size());
  EXPECT_EQ(client.pool->counters().expired_keys.get(), 0u);
  // Nothing but the oldest keys went: of the last tenth of what fits, none.
  EXPECT_GT(there.size(), 5000u);
  EXPECT_TRUE(there.contains(kTooMany - static_cast<int>(there.size()) / 10));
  EXPECT_EQ(std::distance(there.lower_bound(kTooMany - static_cast<int>(there.size()) / 10), there.end()),
            static_cast<std::ptrdiff_t>(there.size()) / 10);
}

// Where a node has room for a few keys, a sample is all of them, and the one that would go first is the one that the write
// holds: the least used. Another goes.
TEST_P(PoolEvictionTest, AWriteToTheLeastUsedOfAFewLargeKeysFindsRoom) {
  publish_with(v1alpha1::EVICTION_ALLKEYS_LRU);
  Client& client = connected();
  constexpr int kKeys = 12;
  const auto put_each = [](Client& of, std::size_t bytes, std::vector<base::Status>& answers) -> Task<void> {
    const std::string value(bytes, 'v');
    for (int i = 0; i < kKeys; ++i) answers.push_back(co_await of.pool->put("large-" + std::to_string(i), value));
  };
  for (std::size_t round = 0; round < 8; ++round) {
    std::vector<base::Status> answers;
    run(client, put_each(client, 600'000 + 20'000 * (round % 3), answers));
    for (const base::Status& answer : answers)
      EXPECT_TRUE(answer.ok()) << "round " << round << ": " << answer.message();
  }
  EXPECT_GT(evicted(), 0u);
}

// The heap of a client that finds no room waits for others for some ticks. A pool that evicts needs nothing of them.
TEST_P(PoolEvictionTest, AWriteWaitsForNoTickWhenThePoolBecomesFull) {
  publish_with(v1alpha1::EVICTION_ALLKEYS_RANDOM);
  Client& client = connected();
  base::Nanos longest = 0;
  for (Load load; load.to < kTooMany;) {
    const Nanos begun = network_.now();
    fill_up_to(client, load, load.to + 1);
    ASSERT_EQ(load.refused, 0);
    longest = std::max(longest, network_.now() - begun);
  }
  EXPECT_GT(evicted(), 0u);
  EXPECT_LT(longest, kTick);
}

TEST_P(PoolEvictionTest, TwoClientsFillAPoolTogether) {
  publish_with(v1alpha1::EVICTION_ALLKEYS_RANDOM);
  Client& a = connected();
  Client& b = connected();
  Load one, other{.to = kTooMany};
  while (one.to < kTooMany / 2) {
    one.from = std::exchange(one.to, one.to + kStep);
    other.from = std::exchange(other.to, other.to + kStep);
    b.scope.spawn(fill(b, other));
    run(a, fill(a, one));
    ASSERT_TRUE(run_until([&b] { return b.scope.running() == 0; }));
  }
  EXPECT_EQ(one.refused + other.refused, 0);
  EXPECT_GT(a.pool->counters().evicted_keys.get(), 0u);
  EXPECT_GT(b.pool->counters().evicted_keys.get(), 0u);
  const std::set<int> there = keys(a, other.to);
  EXPECT_EQ(evicted(), static_cast<std::size_t>(one.to + other.to - kTooMany) - there.size());
  // What is gone stays so, and nobody's key has got another value.
  for (const int key : keys(b, other.to)) EXPECT_TRUE(there.contains(key)) << key;
}

// One client reads keys, and the other evicts, as workers of a compute shard do.
TEST_P(PoolEvictionTest, WhatOneClientOfAProcessReadsStaysInSpiteOfTheOthers) {
  publish_with(v1alpha1::EVICTION_ALLKEYS_LRU);
  const auto accesses = std::make_shared<Accesses>();
  Client& writer = connected(accesses);
  Client& reader = connected(accesses);
  constexpr int kHot = 100;
  Load load;
  int reads = 0;
  while (load.to < kTooMany) {
    fill_up_to(writer, load, load.to + kStep);
    reads += static_cast<int>(keys(reader, kHot).size());
  }
  EXPECT_EQ(load.refused, 0);
  EXPECT_GT(writer.pool->counters().evicted_keys.get(), 0u);
  EXPECT_EQ(reads, kTooMany / kStep * kHot);
}

TEST_P(PoolEvictionTest, AClientThatComesLaterKeepsWhatItReads) {
  publish_with(v1alpha1::EVICTION_ALLKEYS_LRU);
  Client& first = connected();
  Load load{.hot = 100};
  fill_up_to(first, load, kTooMany);
  Client& later = connected();
  EXPECT_EQ(keys(later, load.hot).size(), 100u);
  fill_up_to(later, load, kTooMany + 2000);
  EXPECT_EQ(load.refused, 0);
  EXPECT_EQ(load.hot_misses, 0);
  EXPECT_GT(later.pool->counters().evicted_keys.get(), 0u);
}

// Redis's volatile policies: a key without an expiry is never evicted, even if there is nothing else.
TEST_P(PoolEvictionTest, AVolatilePolicyTakesKeysThatExpireAlone) {
  for (const auto policy : {v1alpha1::EVICTION_VOLATILE_TTL, v1alpha1::EVICTION_VOLATILE_LRU}) {
    publish_with(policy, policy == v1alpha1::EVICTION_VOLATILE_TTL ? 1 : 2);
    if (clients_.empty()) connected();
    Client& client = *clients_.front();
    ASSERT_TRUE(run_until([&] { return client.pool->eviction_policy() == EvictionPolicy::of(policy).name(); }));
  }
  Client& client = *clients_.front();
  Load load{.expires = time(client) + 1'000'000};
  fill_up_to(client, load, 5000);
  ASSERT_EQ(load.refused, 0);
  load.expires = kNoExpiry;
  while (load.refused == 0 && load.to < kTooMany) fill_up_to(client, load, load.to + kStep);
  EXPECT_GT(load.refused, 0);
  // The few that may be left have too little room together.
  EXPECT_GT(evicted(), 2250u);
  EXPECT_LE(evicted(), 2500u);
  const std::set<int> there = keys(client, load.to);
  for (int key = 1; key < 5000; key += 2) EXPECT_TRUE(there.contains(key)) << key;
  // Refusals do not wait for another look at the whole table.
  const Nanos begun = network_.now();
  for (int i = 0; i < 100; ++i) fill_up_to(client, load, load.to + 1);
  EXPECT_LT(network_.now() - begun, kSecond);
  EXPECT_GT(load.refused, 1);
}

TEST_P(PoolEvictionTest, TheFirstToExpireGoesFirst) {
  publish_with(v1alpha1::EVICTION_VOLATILE_TTL);
  Client& client = connected();
  const Millis now = time(client);
  Load late{.to = 2000, .expires = now + 2'000'000}, soon{.from = 2000, .to = 4000, .expires = now + 1'000'000};
  run(client, fill(client, late));
  run(client, fill(client, soon));
  Load load{.to = 4000};
  while (evicted() < 100 && load.to < kTooMany) fill_up_to(client, load, load.to + 100);
  ASSERT_EQ(load.refused, 0);
  ASSERT_LT(evicted(), 600u);
  const std::set<int> there = keys(client, 4000);
  EXPECT_EQ(there.size(), 4000u - evicted());
  const auto late_ones = std::distance(there.begin(), there.lower_bound(2000));
  EXPECT_LE(2000u - static_cast<std::size_t>(late_ones), evicted() / 20);
}

// With noeviction, room that expired keys take is given to writes before any is refused; nothing else is.
TEST_P(PoolEvictionTest, APoolThatEvictsNothingStillRemovesWhatHasExpired) {
  reclaims_ = false;
  publish(map_of(1));
  Client& client = connected();
  EXPECT_EQ(client.pool->eviction_policy(), "noeviction");
  Load load{.expires = time(client) + 100'000};
  while (load.refused == 0 && load.to < kTooMany) fill_up_to(client, load, load.to + kStep);
  ASSERT_GT(load.refused, 0);
  EXPECT_EQ(client.pool->counters().expired_keys.get(), 0u);
  const std::set<int> before = keys(client, load.to);
  run_until([&] { return time(client) > load.expires; }, 200 * kSecond);
  load.expires = kNoExpiry;
  load.refused = 0;
  const int filled = load.to;
  fill_up_to(client, load, load.to + kStep);
  EXPECT_EQ(load.refused, 0);
  EXPECT_GT(client.pool->counters().expired_keys.get(), 0u);
  EXPECT_EQ(evicted(), 0u);
  const std::set<int> there = keys(client, load.to);
  for (const int key : before) EXPECT_EQ(there.contains(key), key % 2 != 0) << key;
  for (int key = filled; key < load.to; ++key) EXPECT_TRUE(there.contains(key)) << key;
}

TEST_P(PoolEvictionTest, APolicyHoldsFromTheMapThatHasItOn) {
  publish(map_of(1));
  Client& client = connected();
  Load load;
  while (load.refused == 0 && load.to < kTooMany) fill_up_to(client, load, load.to + kStep);
  ASSERT_GT(load.refused, 0);
  publish_with(v1alpha1::EVICTION_ALLKEYS_LFU, 2);
  ASSERT_TRUE(run_until([&] { return client.pool->eviction_policy() == "allkeys-lfu"; }));
  load.refused = 0;
  pass(kSecond);
  fill_up_to(client, load, load.to + kStep);
  EXPECT_EQ(load.refused, 0);
  EXPECT_GT(evicted(), 0u);
  publish_with(v1alpha1::EVICTION_NOEVICTION, 3);
  ASSERT_TRUE(run_until([&] { return client.pool->eviction_policy() == "noeviction"; }));
  pass(kSecond);  // removals that were decided before have ended
  const std::uint64_t gone = evicted();
  while (load.refused == 0 && load.to < 2 * kTooMany) fill_up_to(client, load, load.to + kStep);
  EXPECT_GT(load.refused, 0);
  EXPECT_EQ(evicted(), gone);
}

INSTANTIATE_TEST_SUITE_P(Protocols, PoolEvictionTest,
                         ::testing::Values(Protocol::race, Protocol::rcuckoo, Protocol::outback), [](const auto& info) {
                           return info.param == Protocol::race      ? "race"
                                  : info.param == Protocol::rcuckoo ? "rcuckoo"
                                                                    : "outback";
                         });

}  // namespace
}  // namespace farpool::client
