// SPDX-License-Identifier: Apache-2.0
// Pairs that a client has read or written last, in front of the index: eight ways to a set, of which the one that was
// used longest ago gives way (supplement, section 3.4). An owner keeps it for its own changes and lookups: it learns of
// every change, so that a pair in it is never old.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "index/cuckooduo/slot.h"

namespace farpool::cuckooduo {

// Holds pairs that fit a slot in place. Single-threaded; get() and put() allocate nothing.
class FrontCache {
 public:
  static constexpr std::size_t kWays = 8;

  // Takes at most so many bytes, in whole sets. Fewer than one set: it keeps nothing.
  FrontCache(std::uint64_t bytes, std::uint32_t slot_bytes)
      : pair_bytes_(slot_bytes - kSlotHeader),
        sets_(bytes / (kWays * (sizeof(Way) + pair_bytes_))),
        ways_(sets_ * kWays),
        pairs_(ways_.size() * pair_bytes_) {}

  // Returns the value of the key, in the cache's own bytes: they change with the next put().
  std::optional<base::Bytes> get(std::uint64_t hash, base::Bytes key) {
    if (Way* way = find(hash, key); way != nullptr) {
      way->used = ++clock_;
      return pair_of(*way).subspan(way->key_bytes, way->value_bytes);
    }
    return std::nullopt;
  }
  // Remembers a pair, if it fits. A pair that does not is forgotten.
  void put(std::uint64_t hash, base::Bytes key, base::Bytes value) {
    if (key.size() + value.size() > pair_bytes_) {
      forget(hash, key);
      return;
    }
    if (sets_ == 0) return;
    Way* way = find(hash, key);
    if (way == nullptr) {
      way = &set_of(hash)[0];
      for (Way& other : set_of(hash)) {
        if (other.used < way->used) way = &other;
      }
    }
    *way = {hash, ++clock_, static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size())};
    const base::MutableBytes into = pair_of(*way);
    if (!key.empty()) std::memcpy(into.data(), key.data(), key.size());
    if (!value.empty()) std::memcpy(into.data() + key.size(), value.data(), value.size());
  }
  void forget(std::uint64_t hash, base::Bytes key) {
    if (Way* way = find(hash, key); way != nullptr) *way = {};
  }
  std::size_t pairs() const { return ways_.size(); }

 private:
  struct Way {
    std::uint64_t hash = 0;
    std::uint64_t used = 0;  // by the cache's clock; 0: free
    std::uint32_t key_bytes = 0, value_bytes = 0;
  };

  std::span<Way> set_of(std::uint64_t hash) {
    const auto set = static_cast<std::size_t>(static_cast<unsigned __int128>(base::mix(hash)) * sets_ >> 64);
    return std::span(ways_).subspan(set * kWays, kWays);
  }
  base::MutableBytes pair_of(const Way& way) {
    return std::span(pairs_).subspan(static_cast<std::size_t>(&way - ways_.data()) * pair_bytes_, pair_bytes_);
  }
  Way* find(std::uint64_t hash, base::Bytes key) {
    if (sets_ == 0) return nullptr;
    for (Way& way : set_of(hash)) {
      if (way.used == 0 || way.hash != hash || way.key_bytes != key.size()) continue;
      if (key.empty() || std::memcmp(pair_of(way).data(), key.data(), key.size()) == 0) return &way;
    }
    return nullptr;
  }

  std::uint64_t pair_bytes_;
  std::uint64_t sets_;
  std::vector<Way> ways_;
  std::vector<std::byte> pairs_;
  std::uint64_t clock_ = 0;
};

}  // namespace farpool::cuckooduo
