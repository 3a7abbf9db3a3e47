// SPDX-License-Identifier: Apache-2.0
// A table that is filled with random keys, of which the vault keeps the hashes alone, and what that took: for tests and
// measurements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "index/cuckooduo/finger_index.h"
#include "index/cuckooduo/planner.h"
#include "index/cuckooduo/theorems.h"

namespace farpool::cuckooduo {

class Filled {
 public:
  // What inserts have cost so far.
  struct Cost {
    std::uint64_t inserts = 0, trips = 0, reads = 0, writes = 0;
    std::uint64_t moved = 0;         // pairs WRITTEN, the inserts' own among them
    std::uint64_t of_one_write = 0;  // inserts

    template <class Add>
    Cost with(const Cost& other, Add&& add) const {
      return {add(inserts, other.inserts), add(trips, other.trips), add(reads, other.reads),
              add(writes, other.writes),   add(moved, other.moved), add(of_one_write, other.of_one_write)};
    }
    Cost operator-(const Cost& other) const { return with(other, std::minus<>()); }
    Cost operator+(const Cost& other) const { return with(other, std::plus<>()); }
  };

  // Keys that find no place are dropped. `stash`: some find one in the stash; otherwise it has spares alone.
  Filled(const Shape& shape, std::uint64_t seed, bool stash = false)
      : shape_(stash ? shape : without_stash(shape)),
        index_(shape_, seed),
        planner_(index_, 1),
        random_(seed),
        vault_(shape_.end()) {}

  // Inserts one random key. False: it has found no place.
  bool insert() {
    const std::uint64_t hash = random_.next();
    const bool collides = index_.match(index_.spots(hash)) != kNowhere;
    FARPOOL_CHECK(planner_.begin(change_, hash));
    Cost cost{.inserts = 1};
    Advice step = Advice::read;
    // A new key is known to be new: what its prints meet is read with the rest.
    while ((step = planner_.put(change_)) == Advice::read) {
      ++cost.trips;
      cost.reads += reads_for(change_.wanted());
      while (!change_.wanted().empty()) {
        const Place place = change_.wanted().back();
        FARPOOL_CHECK(planner_.learn(change_, place, vault_[place], false).ok());
      }
    }
    collided_ += collides ? 1 : 0;
    if (step != Advice::write) {
      FARPOOL_CHECK(step == Advice::full);
      planner_.abort(change_);
      ++(collides ? unresolved_ : without_a_path_);
      return false;
    }
    ++cost.trips;
    for (const Effect& effect : change_.effects()) {
      ++cost.writes;
      cost.moved += effect.kind == Effect::Kind::clear ? 0 : 1;
      if (effect.kind == Effect::Kind::pair) vault_[effect.place] = hash;
      if (effect.kind == Effect::Kind::copy) vault_[effect.place] = vault_[effect.from];
    }
    planner_.commit(change_);
    cost.of_one_write = cost.reads + cost.writes == 1 ? 1 : 0;
    cost_ = cost_ + cost;
    return true;
  }

  // Inserts until that part of the slots is taken. Returns how many keys theorem IV.3 expects to find no path meanwhile,
  // from the full buckets that there are at a hundred points.
  double fill_to(double load) {
    double expected = 0;
    constexpr int kPoints = 100;
    const double slots = static_cast<double>(shape_.stash_begin());
    const double from = this->load();
    for (int point = 1; point <= kPoints; ++point) {
      const double until = from + (load - from) * point / kPoints;
      while (this->load() < until) insert();
      expected += without_a_path_rate() * slots * (load - from) / kPoints;
    }
    return expected;
  }
  // Inserts until a key finds no place. Returns the load.
  double fill() {
    while (insert()) {
    }
    return load();
  }

  // Returns the part of the arrays' slots that is taken.
  double load() const {
    return static_cast<double>(index_.keys() - index_.stashed()) / static_cast<double>(shape_.stash_begin());
  }
  const FingerIndex& index() const { return index_; }
  const Cost& cost() const { return cost_; }
  std::uint64_t collided() const { return collided_; }
  std::uint64_t unresolved() const { return unresolved_; }
  std::uint64_t without_a_path() const { return without_a_path_; }

 private:
  static Shape without_stash(Shape shape) {
    shape.stash = shape.spares;
    return shape;
  }
  // One READ takes slots of a bucket whatever lies between them.
  std::uint64_t reads_for(std::span<const Place> places) {
    rows_.clear();
    for (const Place place : places) rows_.push_back(shape_.row_of(place));
    std::sort(rows_.begin(), rows_.end());
    return static_cast<std::uint64_t>(std::unique(rows_.begin(), rows_.end()) - rows_.begin());
  }
  double without_a_path_rate() const {
    std::uint64_t full = 0;
    for (std::uint64_t row = 0; row < shape_.rows(); ++row) {
      const FingerIndex::Range all = index_.all_of(row);
      full += index_.find_print(all.begin, all.end, 0) == kNowhere ? 1 : 0;
    }
    return cuckooduo::without_a_path(shape_, static_cast<double>(full) / static_cast<double>(shape_.rows()));
  }

  Shape shape_;
  FingerIndex index_;
  Planner planner_;
  base::Random random_;
  std::vector<std::uint64_t> vault_;
  Planned change_;
  std::vector<std::uint64_t> rows_;  // scratch
  Cost cost_;
  std::uint64_t collided_ = 0, unresolved_ = 0, without_a_path_ = 0;
};

}  // namespace farpool::cuckooduo
