// SPDX-License-Identifier: Apache-2.0
#include "client/eviction.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace farpool::client {
namespace {

using base::kSecond;
using base::Nanos;
using By = EvictionPolicy::By;

constexpr Nanos kStart = 1000 * kSecond;
constexpr Nanos kUnit = 1 << 20;  // of idle time
constexpr Nanos kMinute = 60 * kSecond;

TEST(EvictionPolicy, HasTheNameAndTheMeaningThatRedisGivesIt) {
  struct Case {
    v1alpha1::Eviction eviction;
    std::string_view name;
    By by;
    bool takes_lasting, takes_expiring, watches;
  };
  for (const Case& c : std::vector<Case>{
           {v1alpha1::EVICTION_NOEVICTION, "noeviction", By::none, false, false, false},
           {v1alpha1::EVICTION_ALLKEYS_LRU, "allkeys-lru", By::lru, true, true, true},
           {v1alpha1::EVICTION_ALLKEYS_LFU, "allkeys-lfu", By::lfu, true, true, true},
           {v1alpha1::EVICTION_ALLKEYS_RANDOM, "allkeys-random", By::random, true, true, false},
           {v1alpha1::EVICTION_VOLATILE_LRU, "volatile-lru", By::lru, false, true, true},
           {v1alpha1::EVICTION_VOLATILE_LFU, "volatile-lfu", By::lfu, false, true, true},
           {v1alpha1::EVICTION_VOLATILE_RANDOM, "volatile-random", By::random, false, true, false},
           {v1alpha1::EVICTION_VOLATILE_TTL, "volatile-ttl", By::ttl, false, true, false},
           {static_cast<v1alpha1::Eviction>(99), "noeviction", By::none, false, false, false},
       }) {
    const EvictionPolicy policy = EvictionPolicy::of(c.eviction);
    EXPECT_EQ(policy.name(), c.name);
    EXPECT_EQ(policy.by(), c.by) << c.name;
    EXPECT_EQ(policy.allows(index::kNoExpiry), c.takes_lasting) << c.name;
    EXPECT_EQ(policy.allows(5), c.takes_expiring) << c.name;
    EXPECT_EQ(policy.watches(), c.watches) << c.name;
  }
  EXPECT_EQ(EvictionPolicy().name(), "noeviction");
}

TEST(Accesses, KnowWhenAKeyWasUsedLast) {
  Accesses accesses;
  accesses.watch(kStart);
  const std::uint64_t key = base::mix(1), other = base::mix(2);
  accesses.touch(key, kStart + 10 * kUnit, 1);
  EXPECT_EQ(accesses.use_of(key, kStart + 30 * kUnit).idle, 20u);
  accesses.watch(kStart + 25 * kUnit);  // it watches already
  EXPECT_EQ(accesses.use_of(other, kStart + 30 * kUnit).idle, 30u) << "not used since it began to watch";
  accesses.touch(key, kStart + 30 * kUnit, 1);
  EXPECT_EQ(accesses.use_of(key, kStart + 30 * kUnit).idle, 0u);
}

// Threads read the clock at different times, and write in another order.
TEST(Accesses, TakeAUseAheadOfTheClockForOneOfNow) {
  Accesses accesses;
  accesses.watch(kStart);
  const std::uint64_t key = base::mix(1), other = base::mix(2);
  accesses.touch(key, kStart + 10 * kUnit, 1);
  EXPECT_EQ(accesses.use_of(key, kStart + 9 * kUnit).idle, 0u);
  EXPECT_EQ(accesses.use_of(other, kStart - kUnit).idle, 0u);
}

TEST(Accesses, AreSharedByThreads) {
  Accesses accesses;
  accesses.watch(kStart);
  constexpr std::uint64_t kKeys = 1000;
  const auto use_all = [&accesses](Nanos at) {
    for (std::uint64_t i = 0; i < kKeys; ++i) accesses.touch(base::mix(i), at, i);
  };
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i) threads.emplace_back(use_all, kStart + i * kUnit);
  for (std::thread& each : threads) each.join();
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    EXPECT_LE(accesses.use_of(base::mix(i), kStart + 4 * kUnit).idle, 3u);
  }
}

// Redis's logarithmic counter: 5 at first, one more by a chance that gets less, one less for each minute without use.
TEST(Accesses, CountUsesAsRedisDoes) {
  Accesses accesses;
  accesses.watch(kStart);
  const std::uint64_t key = base::mix(1);
  const auto count = [&](Nanos at) { return accesses.use_of(key, at).count; };
  EXPECT_EQ(count(kStart), 5u);
  EXPECT_EQ(count(kStart + 2 * kMinute), 3u);
  EXPECT_EQ(count(kStart + 9 * kMinute), 0u);
  accesses.touch(key, kStart, 7);
  EXPECT_EQ(count(kStart), 5u);
  accesses.touch(key, kStart, 7);
  EXPECT_EQ(count(kStart), 6u) << "the first step is certain";
  accesses.touch(key, kStart, 7);
  EXPECT_EQ(count(kStart), 6u);
  accesses.touch(key, kStart, 22);
  EXPECT_EQ(count(kStart), 7u) << "the next one in eleven";
  accesses.touch(key, kStart, 22);
  EXPECT_EQ(count(kStart), 7u);
  EXPECT_EQ(count(kStart + kMinute + kUnit), 6u);
  accesses.touch(key, kStart + 3 * kMinute + kUnit, 1);
  EXPECT_EQ(count(kStart + 3 * kMinute + kUnit), 5u) << "it has fallen meanwhile, and rises from there";
  for (int i = 0; i < 1000; ++i) accesses.touch(key, kStart + 3 * kMinute, 0);
  EXPECT_EQ(count(kStart + 3 * kMinute), 255u);
}

TEST(Accesses, ForgetTheKeyOfASetThatHasNotBeenUsedForLongest) {
  Accesses accesses;
  accesses.watch(kStart);
  // Keys of one set: alike in the low bits, and not in the high ones.
  const auto key = [](std::uint64_t i) { return (i * 2 + 1) << 40 | 3; };
  for (std::uint64_t i = 0; i < 4; ++i) accesses.touch(key(i), kStart + static_cast<Nanos>(10 * i + 10) * kUnit, 1);
  const Nanos now = kStart + 100 * kUnit;
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(accesses.use_of(key(i), now).idle, 90 - 10 * i);
  accesses.touch(key(0), kStart + 60 * kUnit, 1);
  accesses.touch(key(4), kStart + 70 * kUnit, 1);
  EXPECT_EQ(accesses.use_of(key(1), now).idle, 100u) << "it has been forgotten";
  EXPECT_EQ(accesses.use_of(key(0), now).idle, 40u);
  EXPECT_EQ(accesses.use_of(key(2), now).idle, 70u);
  EXPECT_EQ(accesses.use_of(key(3), now).idle, 60u);
  EXPECT_EQ(accesses.use_of(key(4), now).idle, 30u);
  EXPECT_EQ(accesses.use_of(key(4) + 1, now).idle, 100u) << "a key of another set";
}

TEST(Accesses, GoOnWhenTheTimeOfAnEntryWraps) {
  Accesses accesses;
  const Nanos late = (Nanos{1} << 52) - kUnit;  // the last unit that an entry can tell
  accesses.watch(late);
  const std::uint64_t key = base::mix(1);
  accesses.touch(key, late, 1);
  EXPECT_EQ(accesses.use_of(key, late + 5 * kUnit).idle, 5u);
  accesses.touch(key, late + 5 * kUnit, 1);
  EXPECT_EQ(accesses.use_of(key, late + 6 * kUnit).idle, 1u);
}

TEST(Rank, IsHighestForTheKeyThatGoesFirst) {
  const Accesses::Use old{.idle = 100, .count = 9}, recent{.idle = 1, .count = 9}, seldom{.idle = 1, .count = 2};
  EXPECT_GT(rank(By::lru, old, 0, 5), rank(By::lru, recent, 0, 9));
  EXPECT_EQ(rank(By::lru, seldom, 0, 5), rank(By::lru, recent, 0, 9));
  EXPECT_GT(rank(By::lfu, seldom, 0, 5), rank(By::lfu, old, 0, 9));
  EXPECT_GT(rank(By::lfu, old, 0, 5), rank(By::lfu, recent, 0, 9)) << "of one count, by their last use";
  EXPECT_GT(rank(By::lfu, {.idle = 1, .count = 8}, 0, 0), rank(By::lfu, {.idle = ~0ull, .count = 9}, 0, 0));
  EXPECT_GT(rank(By::ttl, recent, 1000, 5), rank(By::ttl, old, 1001, 9));
  EXPECT_EQ(rank(By::random, old, 1000, 5), 5u);
}

}  // namespace
}  // namespace farpool::client
