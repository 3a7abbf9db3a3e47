// SPDX-License-Identifier: Apache-2.0
// Builds a locator of the hashes of a table's keys. Pure, and deterministic: the same hashes in the same order, shape
// and salt give the same locator. A builder works in bounded steps, so that a thread can serve requests in between.
//
// It builds one partition after the other:
//   gather   brings the partition's hashes together;
//   place    gives each key one of its two buckets of four slots: (2,4)-cuckoo hashing;
//   connect  finds bits of A and B that say so. The keys are edges of a graph, and an edge that closes a cycle may
//            contradict the others. Such a key goes to its other bucket if that has room. If not, the partition begins
//            again under another salt; the last time it leaves the key out;
//   write    writes the arrays;
//   seed     finds a seed for each bucket.
// Keys that are left out are few or none, and belong into the table's overflow. The locator answers for them as for any
// key that it does not know. A perfect hash cannot tell two keys with the same hash apart: one of them is left out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "index/outback/locator.h"

namespace farpool::outback {

// What a build met: for metrics, tests and measurements.
struct BuildFigures {
  std::uint64_t keys = 0;          // added
  std::uint64_t moved = 0;         // times that a key made room for another one
  std::uint64_t turned = 0;        // keys that went to their other bucket so that the arrays do not contradict them
  std::uint64_t retries = 0;       // times that a partition began again under another salt
  std::uint64_t homeless = 0;      // keys left out: no room in their buckets
  std::uint64_t contradicted = 0;  // keys left out: the arrays say the other bucket, which is full
  std::uint64_t repeated = 0;      // keys left out: another key has the same hash
  std::uint64_t unseeded = 0;      // keys left out: no seed suits all keys of the bucket
  friend bool operator==(const BuildFigures&, const BuildFigures&) = default;
};

class Builder {
 public:
  static constexpr std::uint32_t kMostSalts = 16;    // that a partition tries
  static constexpr std::size_t kMostVisited = 2048;  // buckets that are searched for room for one key

  // Takes memory for that many hashes at once, 8 bytes for each, and little beside it.
  Builder(const LocatorShape& shape, std::uint64_t generation, std::uint64_t salt, std::uint64_t most_keys);
  ~Builder();
  Builder(const Builder&) = delete;

  // Adds the hashes of keys: those of hash_of under the builder's salt. Returns false, and adds none, if they are too
  // many, or if the first step has been done.
  bool add(std::span<const std::uint64_t> hashes);
  // Works on about that many keys. Returns whether there is more to do.
  bool step(std::uint64_t keys);
  // Returns the locator. Once, after the last step.
  Locator finish();
  // Returns the hashes of keys that were left out, partition by partition.
  const std::vector<std::uint64_t>& left_out() const;
  const BuildFigures& figures() const;

 private:
  class Sorted;
  class Partition;
  struct State;
  std::unique_ptr<State> state_;
};

struct Built {
  Locator locator;
  std::vector<std::uint64_t> left_out;
  BuildFigures figures;
};
// Builds a locator in one go.
Built build(const LocatorShape& shape, std::uint64_t generation, std::uint64_t salt,
            std::span<const std::uint64_t> hashes);

}  // namespace farpool::outback
