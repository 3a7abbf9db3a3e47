// SPDX-License-Identifier: Apache-2.0
// Which keys a full memory node loses (docs/adr/0043-eviction.md): the pool's policy, what is known of the use of keys,
// and which of some keys go first. Pure: the time and chance come from the callers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <string_view>

#include "base/time.h"
#include "farpool/v1alpha1/shard_map.pb.h"
#include "index/stored.h"

namespace farpool::client {

// A policy by its Redis name. A policy of a later version counts as noeviction, which loses nothing.
class EvictionPolicy {
 public:
  enum class By : std::uint8_t { none, lru, lfu, random, ttl };

  constexpr EvictionPolicy() = default;
  static constexpr EvictionPolicy of(v1alpha1::Eviction eviction) {
    switch (eviction) {
      case v1alpha1::EVICTION_ALLKEYS_LRU:
        return {"allkeys-lru", By::lru, false};
      case v1alpha1::EVICTION_ALLKEYS_LFU:
        return {"allkeys-lfu", By::lfu, false};
      case v1alpha1::EVICTION_ALLKEYS_RANDOM:
        return {"allkeys-random", By::random, false};
      case v1alpha1::EVICTION_VOLATILE_LRU:
        return {"volatile-lru", By::lru, true};
      case v1alpha1::EVICTION_VOLATILE_LFU:
        return {"volatile-lfu", By::lfu, true};
      case v1alpha1::EVICTION_VOLATILE_RANDOM:
        return {"volatile-random", By::random, true};
      case v1alpha1::EVICTION_VOLATILE_TTL:
        return {"volatile-ttl", By::ttl, true};
      default:
        return {};
    }
  }

  std::string_view name() const { return name_; }
  By by() const { return by_; }
  // Says whether a key may go that has not expired, and whose value expires at that time (kNoExpiry: never).
  bool allows(index::Millis expires) const {
    return by_ != By::none && (!only_expiring_ || expires != index::kNoExpiry);
  }
  // Says whether the policy needs to know how keys are used.
  bool watches() const { return by_ == By::lru || by_ == By::lfu; }

 private:
  constexpr EvictionPolicy(std::string_view name, By by, bool only_expiring)
      : name_(name), by_(by), only_expiring_(only_expiring) {}

  std::string_view name_ = "noeviction";
  By by_ = By::none;
  bool only_expiring_ = false;
};

// What the clients of one process have seen of the use of keys: when each was used last, and about how often (the
// logarithmic counter of Redis, which falls by one for each minute without use). It knows kEntries keys at most; in each
// set of kWays it forgets the key that has not been used for longest. A key that it does not know counts as not used
// since watch() was called first. Memory: 8 bytes an entry; the kernel gives a page when the first key falls into it.
// Any thread may call it, without a lock: of two uses at the same moment one may be lost.
class Accesses {
 public:
  static constexpr std::size_t kWays = 4;
  static constexpr std::size_t kEntries = 1 << 18;
  // Counts of Redis: that of a key used once, and how much rarer each further step is.
  static constexpr std::uint64_t kFirstCount = 5, kRarer = 10, kMostCount = 255;

  struct Use {
    std::uint64_t idle = 0;  // units of 2^20 ns
    std::uint64_t count = 0;
  };

  Accesses() : entries_(static_cast<std::uint64_t*>(std::calloc(kEntries, sizeof(std::uint64_t)))) {
    if (entries_ == nullptr) throw std::bad_alloc();
  }

  // Begins to watch, if nobody has done so yet.
  void watch(base::Nanos now) {
    std::uint64_t not_yet = kNotYet;
    begun_.compare_exchange_strong(not_yet, units(now), std::memory_order_relaxed);
  }

  // Notes a use of the key with this hash.
  void touch(std::uint64_t hash, base::Nanos now, std::uint64_t chance) {
    const std::size_t set = set_of(hash);
    const std::uint64_t at = units(now);
    std::size_t oldest = set;
    std::uint64_t longest = 0;
    for (std::size_t place = set; place < set + kWays; ++place) {
      const std::uint64_t known = load(place);
      if (is_of(known, hash)) {
        const std::uint64_t count = risen(decayed(count_of(known), idle(known, at)), chance);
        const std::uint64_t next = entry(hash, count, at);
        // Threads that use one key again and again do not take its cache line from each other.
        if (next != known) store(place, next);
        return;
      }
      const std::uint64_t since = known == 0 ? kNotYet : idle(known, at) + 1;
      if (since > longest) longest = since, oldest = place;
    }
    store(oldest, entry(hash, kFirstCount, at));
  }
  Use use_of(std::uint64_t hash, base::Nanos now) const {
    const std::size_t set = set_of(hash);
    const std::uint64_t at = units(now);
    for (std::size_t place = set; place < set + kWays; ++place) {
      const std::uint64_t known = load(place);
      if (!is_of(known, hash)) continue;
      const std::uint64_t since = idle(known, at);
      return {since, decayed(count_of(known), since)};
    }
    const std::uint64_t since = at - std::min(at, begun_.load(std::memory_order_relaxed));
    return {since, decayed(kFirstCount, since)};
  }

 private:
  struct Free {
    void operator()(std::uint64_t* entries) const { std::free(entries); }
  };
  // An entry: 24 bits of the hash, of which the lowest is set, so that no entry is 0; 8 of the count; 32 of the time.
  static constexpr std::uint64_t kTime = 0xffffffff;
  static std::uint64_t units(base::Nanos now) { return static_cast<std::uint64_t>(now) >> 20; }
  static constexpr std::uint64_t kMinute = 60ull * base::kSecond >> 20;
  static std::uint64_t tag_of(std::uint64_t hash) { return hash >> 40 | 1; }
  static bool is_of(std::uint64_t entry, std::uint64_t hash) { return entry >> 40 == tag_of(hash); }
  static std::uint64_t count_of(std::uint64_t entry) { return entry >> 32 & 0xff; }
  // A thread may have read the clock, and written the entry, a little later than the caller read it.
  static constexpr std::uint64_t kAhead = 1024;
  static std::uint64_t idle(std::uint64_t entry, std::uint64_t at) {
    const std::uint64_t since = (at - entry + kAhead) & kTime;
    return since - std::min(since, kAhead);
  }
  static std::uint64_t entry(std::uint64_t hash, std::uint64_t count, std::uint64_t at) {
    return tag_of(hash) << 40 | count << 32 | (at & kTime);
  }
  static std::uint64_t decayed(std::uint64_t count, std::uint64_t idle) {
    return count - std::min(count, idle / kMinute);
  }
  static std::uint64_t risen(std::uint64_t count, std::uint64_t chance) {
    if (count >= kMostCount) return count;
    const std::uint64_t above = count - std::min(count, kFirstCount);
    return chance % (above * kRarer + 1) == 0 ? count + 1 : count;
  }
  static std::size_t set_of(std::uint64_t hash) { return hash % (kEntries / kWays) * kWays; }
  std::uint64_t load(std::size_t place) const {
    return std::atomic_ref(entries_.get()[place]).load(std::memory_order_relaxed);
  }
  void store(std::size_t place, std::uint64_t entry) {
    std::atomic_ref(entries_.get()[place]).store(entry, std::memory_order_relaxed);
  }

  static constexpr std::uint64_t kNotYet = ~0ull;
  const std::unique_ptr<std::uint64_t[], Free> entries_;
  std::atomic<std::uint64_t> begun_ = kNotYet;
};

// Returns how soon a key goes, among keys that the policy allows: the highest first. `chance` decides where the policy
// says so.
inline std::uint64_t rank(EvictionPolicy::By by, const Accesses::Use& use, index::Millis expires,
                          std::uint64_t chance) {
  switch (by) {
    case EvictionPolicy::By::lru:
      return use.idle;
    case EvictionPolicy::By::lfu:
      // Among keys of one count, the one that has not been used for longest.
      return (Accesses::kMostCount - use.count) << 48 | std::min<std::uint64_t>(use.idle, (1ull << 48) - 1);
    case EvictionPolicy::By::ttl:
      return std::numeric_limits<std::uint64_t>::max() - expires;
    default:
      return chance;
  }
}

}  // namespace farpool::client
