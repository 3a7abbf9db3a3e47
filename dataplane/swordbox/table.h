// SPDX-License-Identifier: Apache-2.0
// A hash table of fixed capacity, which allocates only when it is made. Entries are numbers from 0 on, under which its
// owner keeps what belongs to them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "roce/format.h"

namespace farpool::swordbox {

inline constexpr std::uint32_t kNone = 0xffffffff;

// Two addresses and a number: a connection by its receiver's queue pair, or a word by its address.
struct Key {
  roce::Address from, to;
  std::uint64_t number = 0;
  friend bool operator==(const Key&, const Key&) = default;
};

class Table {
 public:
  Table(std::uint32_t capacity, std::uint64_t seed) : seed_(seed), keys_(capacity), next_(capacity) {
    std::size_t heads = 1;
    while (heads < capacity) heads *= 2;
    heads_.assign(heads, kNone);
    for (std::uint32_t i = 0; i < capacity; ++i) next_[i] = i + 1 < capacity ? i + 1 : kNone;
    free_ = capacity > 0 ? 0 : kNone;
  }

  std::uint32_t find(const Key& key) const {
    std::uint32_t at = heads_[place(key)];
    while (at != kNone && !(keys_[at] == key)) at = next_[at];
    return at;
  }
  // Returns kNone if the table is full. The key is not in it yet.
  std::uint32_t insert(const Key& key) {
    const std::uint32_t at = free_;
    if (at == kNone) return kNone;
    free_ = next_[at];
    std::uint32_t& head = heads_[place(key)];
    keys_[at] = key;
    next_[at] = head;
    head = at;
    return at;
  }
  void erase(std::uint32_t at) {
    std::uint32_t* link = &heads_[place(keys_[at])];
    while (*link != at) {
      FARPOOL_CHECK(*link != kNone);
      link = &next_[*link];
    }
    *link = next_[at];
    next_[at] = free_;
    free_ = at;
  }
  const Key& key(std::uint32_t at) const { return keys_[at]; }
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(keys_.size()); }

 private:
  std::size_t place(const Key& key) const {
    std::uint64_t hash = base::mix(key.number ^ seed_);
    for (const roce::Address* address : {&key.from, &key.to}) {
      const auto* bytes = reinterpret_cast<const std::byte*>(address->bytes.data());
      hash = base::mix(hash + base::load<std::uint64_t>(bytes) + 31 * base::load<std::uint64_t>(bytes + 8));
    }
    return hash & (heads_.size() - 1);
  }

  std::uint64_t seed_;
  std::vector<Key> keys_;
  std::vector<std::uint32_t> next_, heads_;
  std::uint32_t free_ = kNone;
};

}  // namespace farpool::swordbox
