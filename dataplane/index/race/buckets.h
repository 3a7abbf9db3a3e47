// SPDX-License-Identifier: Apache-2.0
// A key's two combined buckets as they were read, and which of their slots are the key's. Internal to the room.
//
// Whoever uses this holds an era from the first READ on: a block that a slot pointed to is not reused meanwhile, so
// what was once learned of a slot's word stays true of it.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "index/race/state.h"

namespace farpool::race {

class Buckets {
 public:
  Buckets(Table::State& state, std::string_view key);

  // READs of both, into the same bytes each time.
  void add_reads(Chain& chain);
  // Nothing of before counts: another era has begun.
  void forget() { known_count_ = 0; }
  // Whether the buckets hold this key at all, and their words can be.
  Status check() const;

  struct Sought {
    bool tentative = false;  // copies, too
    bool values = false;
    Slot own;  // not looked at
  };
  // Reads the blocks that slots of the key's print point to, as far as they are not known. False: one is not what its
  // slot says, see `doubtful`.
  Task<Result<bool>> identify(Sought sought, Nanos deadline, Cost& cost);
  Slot doubtful() const { return doubtful_; }

  struct Known {
    Slot slot;
    bool ours = false;
    std::uint64_t extent_bytes = 0;
    std::uint64_t pair_bytes = 0;  // of key and value
    std::string_view value;        // where it was sought
    fabric::Buffer bytes;
  };
  struct Copy {
    std::uint64_t offset = 0;  // in the table region
    Slot slot;
    const Known* known = nullptr;
  };
  // The key's committed copy. There is never more than one, though two may have been seen one after the other.
  std::optional<Copy> committed() const;
  // Calls visit(offset, slot) for every slot that is taken, and has the key if `ours`.
  template <class Visit>
  void each(bool ours, const Visit& visit) const {
    for (std::size_t place = 0; place < 2; ++place) {
      for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
        const Slot slot = view(place).slot(index);
        if (slot.empty()) continue;
        const Known* known = ours ? find(slot) : nullptr;
        if (!ours || (known != nullptr && known->ours)) visit(places_[place].slot_offset(index), slot);
      }
    }
  }
  std::array<CombinedView, 2> views() const { return {view(0), view(1)}; }
  const Places& places() const { return places_; }
  std::uint64_t print() const { return print_; }

 private:
  static constexpr std::size_t kMost = 2 * kCombinedSlots + 8;

  CombinedView view(std::size_t place) const {
    return {buffer_.span().subspan(place * kCombinedBytes, kCombinedBytes), places_[place].side};
  }
  // A copy and its tentative form are one.
  const Known* find(Slot slot) const;
  std::uint64_t wanted_of(Slot slot, bool values) const;
  bool learn(Known& known, bool values) const;
  Task<Status> read_rest(Known& known, Nanos deadline, Cost& cost);

  Table::State& state_;
  const std::string_view key_;
  const std::uint64_t directory_hash_;
  const std::uint64_t hash_;
  const Places places_;
  const std::uint64_t print_;
  mutable fabric::Buffer buffer_;
  std::array<Known, kMost> known_;
  std::size_t known_count_ = 0;
  Slot doubtful_;
};

}  // namespace farpool::race
