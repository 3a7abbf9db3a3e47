// SPDX-License-Identifier: Apache-2.0
// CuckooIndex: for each place of the vault a print of the key that lies there, and for each place of the stash the key's
// hash. It is all that the owner of a table, or a replica of it, keeps of the table's keys.
//
// A lookup looks for the key's prints in this order: the first print in the bucket of the second array, the second print
// among the last slots of the bucket of the first array, the first print among its other slots. The first match is where
// the key is, if the table has it: the planner (planner.h) keeps that so for every key, which is Dual-FP
// (section 2.2). A match proves nothing; the key in the slot does.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "index/cuckooduo/locate.h"
#include "index/cuckooduo/shape.h"

namespace farpool::cuckooduo {

// Not safe for use by several threads, unless all of them only read.
class FingerIndex {
 public:
  // Makes an index of an empty table. The shape has passed its check.
  FingerIndex(const Shape& shape, std::uint64_t salt);

  const Shape& shape() const { return shape_; }
  std::uint64_t salt() const { return salt_; }
  Spots spots(std::uint64_t hash) const { return Spots::of(hash, shape_, salt_); }

  // Returns the print at a place of the arrays; 0: the place is empty.
  Print print(Place place) const;
  // Puts the key of this hash at a place, of the arrays or of the stash.
  // The stash may get no more keys of one hash than kMostTwins.
  void put(Place place, std::uint64_t hash);
  void clear(Place place);
  // Says whether a place has a key.
  bool taken(Place place) const;
  // Says whether what the index has at the place can be the key of this hash.
  bool may_be(Place place, std::uint64_t hash) const;

  // The places of a key in the order of a lookup: those of the stash with its hash, and then the first match. The stash
  // has at most kMostTwins keys of one hash: only a holder of the secret can find two.
  static constexpr std::size_t kMostTwins = 3;
  struct Candidates {
    std::array<Place, kMostTwins + 1> places{};
    std::size_t count = 0;

    std::span<const Place> all() const& { return {places.data(), count}; }
    std::span<const Place> all() const&& = delete;
  };
  Candidates find(std::uint64_t hash) const;
  // Returns the first match in the arrays, or kNowhere.
  Place match(const Spots& spots) const;
  // Returns the first place of [begin, end) with that print, or kNowhere.
  Place find_print(Place begin, Place end, Print print) const;

  // The places of a row's slots: all, those with first prints, those with second prints.
  struct Range {
    Place begin = 0, end = 0;
  };
  Range all_of(std::uint64_t row) const { return {shape_.place(row, 0), shape_.place(row, 0) + shape_.slots}; }
  Range firsts_of(std::uint64_t row) const {
    const Range all = all_of(row);
    return {all.begin, row < shape_.buckets ? all.end - shape_.second : all.end};
  }
  Range seconds_of(std::uint64_t row) const { return {firsts_of(row).end, all_of(row).end}; }

  // Returns how many keys of this hash the stash has.
  std::size_t twins(std::uint64_t hash) const;
  std::uint64_t keys() const { return keys_ + stashed_; }
  std::uint64_t stashed() const { return stashed_; }
  // Returns the hash of the key at a taken place of the stash.
  std::uint64_t stashed_hash(Place place) const { return stash_[place - shape_.stash_begin()].hash; }
  // Returns the bytes that prints and stash take.
  std::uint64_t bytes() const { return prints_.size() + stash_.size() * sizeof(Stashed); }

 private:
  struct Stashed {
    std::uint64_t hash = 0;
    bool taken = false;
  };
  void put_print(Place place, Print print);

  Shape shape_;
  std::uint64_t salt_;
  std::vector<std::byte> prints_;  // print_bits for each place of the arrays, and some bytes more: reads take four
  std::vector<Stashed> stash_;
  std::uint64_t keys_ = 0;  // in the arrays
  std::uint64_t stashed_ = 0;
};

}  // namespace farpool::cuckooduo
