// SPDX-License-Identifier: Apache-2.0
// The shard maps that a memory node holds: one that it follows, and one that it is prepared for or that an earlier
// process has kept. Decides which map may come next; epochs and moves only go forward. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/signature.h"
#include "farpool/v1alpha1/shard_map.pb.h"

namespace farpool::node {

// What becomes of a map that a memory node is told.
enum class Verdict : std::uint8_t {
  adopted,      // or prepared; or that already, byte for byte
  older_epoch,  // than the one held
  conflicting,  // the epoch, or the pool's secret, is held with different content, or the move is before the one held
  invalid,
};

// Returns the entry of the memory node with that incarnation; nullptr: there is none.
const v1alpha1::MemoryNodeEntry* entry_of(const v1alpha1::ShardMap& map, std::uint64_t incarnation);

class Maps {
 public:
  // `kept` is what an earlier process was given last. It counts only if it is whole, of this pool, and signed where
  // there is a key.
  Maps(std::string pool_uid, std::shared_ptr<const base::SignatureCheck> key, const std::string& kept);

  // What the memory tells, which may know of later epochs and moves than any map that is held.
  struct Memory {
    std::uint64_t epoch = 0;
    base::HashSecret pool_secret;
    std::uint64_t move_finished = 0;
  };
  struct Refusal {
    Verdict verdict = Verdict::invalid;
    std::string why;
  };
  // Says why a map cannot be held, if it cannot. `own` is this memory node's entry.
  std::optional<Refusal> refusal(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret,
                                 const Memory& memory, const v1alpha1::MemoryNodeEntry& own) const;
  void hold(const v1alpha1::ShardMap& map) { held_ = map; }
  void follow(const v1alpha1::ShardMap& map);

  bool knows_kept() const { return held_.epoch() != 0; }
  const v1alpha1::ShardMap& followed() const { return followed_; }
  const v1alpha1::ShardMap& newest() const { return held_.epoch() != 0 ? held_ : followed_; }
  // The epoch and the move before which no map is taken any more.
  std::uint64_t epoch(const Memory& memory) const { return std::max(memory.epoch, newest().epoch()); }
  std::uint64_t move(const Memory& memory) const;
  // The reply to a read of the map that is followed: a word with its length, then the map, padded to a word; the length
  // alone if the rest has no room.
  std::optional<std::size_t> read(base::MutableBytes reply) const;

 private:
  std::string what_is_held(const Memory& memory) const;

  const std::string pool_uid_;
  const std::shared_ptr<const base::SignatureCheck> key_;
  v1alpha1::ShardMap followed_;
  v1alpha1::ShardMap held_;  // prepared, or kept by an earlier process, and not followed; epoch 0: there is none
  std::string bytes_;        // of the one that is followed
};

}  // namespace farpool::node
