// SPDX-License-Identifier: Apache-2.0
// Which places the owner's operations under way have locked. One thread uses it, so that a lock of many places is taken
// whole or not at all (supplement, section 1.3). It allocates only when more places are locked than ever before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "index/cuckooduo/shape.h"

namespace farpool::cuckooduo {

class PlaceLocks {
 public:
  PlaceLocks() : table_(64) {}

  bool locked(Place place) const { return find(place) != nullptr; }
  // Says whether an operation other than `holder` has locked the place.
  bool locked_for(Place place, std::uint32_t holder) const {
    const Lock* lock = find(place);
    return lock != nullptr && lock->holder != holder;
  }
  // Says whether an operation other than `holder` will give the place another pair.
  bool gains_for(Place place, std::uint32_t holder) const {
    const Lock* lock = find(place);
    return lock != nullptr && lock->holder != holder && lock->gains;
  }
  // Locks a place, or returns false: another operation has locked it. A holder may lock a place again.
  bool lock(Place place, std::uint32_t holder) {
    if (const Lock* held = find(place); held != nullptr) return held->holder == holder;
    if ((used_ + 1) * 2 > table_.size()) grow();
    insert({place, holder, false});
    ++used_;
    return true;
  }
  // Says that the place, which its holder has locked, gets another pair.
  void gain(Place place) {
    Lock* lock = const_cast<Lock*>(std::as_const(*this).find(place));
    FARPOOL_CHECK(lock != nullptr);
    lock->gains = true;
  }
  void unlock(Place place) {
    std::size_t hole = index_of(place);
    while (table_[hole].place != place) {
      FARPOOL_CHECK(table_[hole].place != kNowhere);
      hole = next(hole);
    }
    // What was pushed beyond the hole moves into it.
    for (std::size_t at = next(hole); table_[at].place != kNowhere; at = next(at)) {
      const std::size_t wanted = index_of(table_[at].place);
      if (((at - wanted) & mask()) >= ((at - hole) & mask())) {
        table_[hole] = table_[at];
        hole = at;
      }
    }
    table_[hole] = {};
    --used_;
  }
  std::size_t size() const { return used_; }

 private:
  struct Lock {
    Place place = kNowhere;
    std::uint32_t holder = 0;
    bool gains = false;
  };
  std::size_t mask() const { return table_.size() - 1; }
  std::size_t index_of(Place place) const { return base::mix(place) & mask(); }
  std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
  const Lock* find(Place place) const {
    for (std::size_t at = index_of(place); table_[at].place != kNowhere; at = next(at)) {
      if (table_[at].place == place) return &table_[at];
    }
    return nullptr;
  }
  void insert(const Lock& lock) {
    std::size_t at = index_of(lock.place);
    while (table_[at].place != kNowhere) at = next(at);
    table_[at] = lock;
  }
  void grow() {
    std::vector<Lock> old(table_.size() * 2);
    old.swap(table_);
    for (const Lock& lock : old) {
      if (lock.place != kNowhere) insert(lock);
    }
  }

  std::vector<Lock> table_;  // open addressing, at most half full
  std::size_t used_ = 0;
};

}  // namespace farpool::cuckooduo
