// SPDX-License-Identifier: Apache-2.0
// Builds a locator of the hashes of a table's keys. Pure, and deterministic: the same hashes in the same order, shape
// and salt give the same locator. A builder works in bounded steps, so that a thread can serve requests in between.
//
// For each partition, in the order of its steps:
//   place    gives each key one of its two buckets of four slots ((2,4)-cuckoo hashing);
//   connect  finds bits of A and B that say so: the keys are edges of a graph, and an edge that closes a cycle may
//            contradict what the others say. Such a key goes to its other bucket if that has room. If not, the
//            partition begins again under another salt, and the last time leaves the key out;
//   seed     finds each bucket's seed.
// Keys that are left out are few or none. They belong into the table's overflow. The locator answers for them as for
// any key that it does not know. Two keys with one hash cannot be told apart by a perfect hash: one of them is left out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "index/outback/locator.h"

namespace farpool::outback {

// What a build met: for metrics, tests and measurements.
struct BuildFigures {
  std::uint64_t keys = 0;          // added
  std::uint64_t moved = 0;         // times that a key made room for another one
  std::uint64_t contradicted = 0;  // keys that went to their other bucket, so that the arrays can say where they are
  std::uint64_t retries = 0;       // times that a partition began again under another salt
  std::uint64_t homeless = 0;      // keys left out: no room in their buckets
  std::uint64_t unsaid = 0;        // keys left out: the arrays cannot say where they are
  std::uint64_t repeated = 0;      // keys left out: the bucket has another key with the same hash
  std::uint64_t without_seed = 0;  // keys left out: no seed suits the bucket
};

class Builder {
 public:
  static constexpr std::uint32_t kMostSalts = 16;    // that a partition tries
  static constexpr std::uint32_t kMostMoves = 2000;  // of other keys, to make room for one

  // Holds at most `most_keys` hashes: 8 bytes for each, and about 1 MiB beside them for each million keys.
  Builder(const LocatorShape& shape, std::uint64_t generation, std::uint64_t salt, std::uint64_t most_keys);
  ~Builder();
  Builder(const Builder&) = delete;
  Builder(Builder&&) noexcept;

  // Adds the hashes of keys (hash_of with the builder's salt). Returns false, and adds none, beyond `most_keys` or once
  // the first step has been done.
  bool add(std::span<const std::uint64_t> hashes);
  // Works on about that many keys. Returns whether there is more to do.
  bool step(std::uint64_t keys);
  // Returns the locator. After the last step, once.
  Locator finish();
  // Returns the hashes of keys that were left out, in the order of partitions.
  const std::vector<std::uint64_t>& left_out() const;
  const BuildFigures& figures() const;

 private:
  struct Partition;
  struct State;
  std::unique_ptr<State> state_;
};

// Builds a locator in one go.
struct Built {
  Locator locator;
  std::vector<std::uint64_t> left_out;
  BuildFigures figures;
};
Built build(const LocatorShape& shape, std::uint64_t generation, std::uint64_t salt,
            std::span<const std::uint64_t> hashes);

}  // namespace farpool::outback
