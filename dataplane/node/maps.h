// SPDX-License-Identifier: Apache-2.0
// The shard maps that a memory node holds: one that it follows, and one that it is prepared for or that an earlier
// process has kept. Decides which map may come next: epochs and moves only increase. Pure.
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

// What a memory node answers to a map.
enum class Verdict : std::uint8_t {
  adopted,      // or prepared; or held already, byte for byte
  older_epoch,  // than the one held
  conflicting,  // the epoch, or the pool's secret, is held with different content, or the move is before the one held
  invalid,
};

// Returns the entry of the memory node with that incarnation; nullptr: there is none.
const v1alpha1::MemoryNodeEntry* entry_of(const v1alpha1::ShardMap& map, std::uint64_t incarnation);

class Maps {
 public:
  // `kept` is the last map that an earlier process got. It counts only if it is whole, of this pool, and signed where
  // there is a key.
  Maps(std::string pool_uid, std::shared_ptr<const base::SignatureCheck> key, const std::string& kept);

  // What the memory says; it may know of later epochs and moves than any map that is held.
  struct Memory {
    std::uint64_t epoch = 0;
    base::HashSecret pool_secret;
    std::uint64_t move_finished = 0;
  };
  struct Refusal {
    Verdict verdict = Verdict::invalid;
    std::string why;
  };
  // Returns why a map cannot be held; nothing if it can. `own` is this memory node's entry.
  std::optional<Refusal> refusal(const v1alpha1::ShardMap& map, const base::HashSecret& pool_secret,
                                 const Memory& memory, const v1alpha1::MemoryNodeEntry& own) const;
  void hold(const v1alpha1::ShardMap& map) { held_ = map; }
  void follow(const v1alpha1::ShardMap& map);

  bool knows_kept() const { return held_.epoch() != 0; }
  const v1alpha1::ShardMap& followed() const { return followed_; }
  const v1alpha1::ShardMap& newest() const { return held_.epoch() != 0 ? held_ : followed_; }
  // Returns the epoch below which no map is accepted any more; `move` returns the move.
  std::uint64_t epoch(const Memory& memory) const { return std::max(memory.epoch, newest().epoch()); }
  std::uint64_t move(const Memory& memory) const;
  // Writes the reply to a read of the map that the node follows: a word with its length, then the map, padded to a
  // word. Writes the length alone if the rest has no room.
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
