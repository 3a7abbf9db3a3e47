// SPDX-License-Identifier: Apache-2.0
// A group of buckets as a mover of slots sees it: all its words, and the keys of its slots. Internal to the room.
#pragma once

#include <array>

#include "index/race/state.h"

namespace farpool::race {

class Group {
 public:
  static constexpr std::uint64_t kBuckets = 3;

  Group(Table::State& state, std::uint64_t table, std::uint64_t row)
      : state_(state), table_(table), at_(state.group_offset(table, row)), bytes_(state.port().buffer(kGroupBytes)) {}

  Remote remote() const { return {layout::kTable, at_}; }
  base::MutableBytes bytes() { return bytes_.first(kGroupBytes); }
  Op read() { return Op::read(remote(), bytes()); }

  Remote header_at(std::uint64_t bucket) const { return {layout::kTable, at_ + bucket * kBucketBytes}; }
  std::uint64_t header(std::uint64_t bucket) const { return word(bucket * kBucketBytes); }
  // Returns the place of a slot, 0 to 20 in the order of memory.
  Remote slot_at(std::uint64_t slot) const { return {layout::kTable, at_ + within(slot)}; }
  Slot slot(std::uint64_t slot) const { return Slot(word(within(slot))); }
  void set(std::uint64_t slot, Slot word) { base::store(bytes_.data() + within(slot), word.word()); }

  // Finds the keys of slots, from their blocks. While an era is held, a word that has been seen keeps its meaning, and
  // is not read again. Errors: corrupt, and the session's.
  struct Known {
    Slot slot;  // as if committed
    bool readable = false;
    std::uint64_t pool_hash = 0;
    std::uint64_t extent_bytes = 0;
    std::uint64_t pair_bytes = 0;  // of key and value
    fabric::Buffer bytes;
    std::uint64_t key_bytes = 0;
  };
  Task<Status> learn(bool (*wanted)(Slot), Nanos deadline, Cost& cost);
  const Known& known(std::uint64_t slot) const { return known_[slot]; }

 private:
  static constexpr std::uint64_t within(std::uint64_t slot) {
    return slot / kBucketSlots * kBucketBytes + 8 + slot % kBucketSlots * 8;
  }
  std::uint64_t word(std::uint64_t offset) const { return base::load<std::uint64_t>(bytes_.data() + offset); }
  Task<Status> fetch(const Chain& chain, Nanos deadline, Cost& cost);

  Table::State& state_;
  const std::uint64_t table_;
  const std::uint64_t at_;
  mutable fabric::Buffer bytes_;
  std::array<Known, kGroupSlots> known_;
};

}  // namespace farpool::race
