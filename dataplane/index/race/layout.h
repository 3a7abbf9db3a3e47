// SPDX-License-Identifier: Apache-2.0
// The bytes of a RACE subtable on its memory node. Pure functions; clients, memory nodes and offline checkers read with
// them. Tables of equal size are adjacent, and the directory says which keys each has (layout/directory.h).
//
// A subtable is an array of groups of three buckets. Keys hash only to the outer two; each is read together with the
// one in the middle, which takes the overflow of both.
//
//   group   | main 0       64 | overflow     64 | main 1       64 |
//           |<-- combined bucket, 128 B ------->|
//                             |<------- combined bucket, 128 B -->|
//   bucket  | header 8 | slot 8 | ... seven slots
//
//            63       56 55       48 47   46 45                                0
//   slot    +-----------+-----------+-------+-----------------------------------+
//           | print   8 | units   8 | state | block                          46 |   block and units of 64 bytes
//           +-----------+-----------+-------+-----------------------------------+
//            63                41  40   39                              8 7      0
//   header  +--------------------+------+---------------------------------+--------+
//           | move            23 | open | suffix                       32 | depth  |
//           +--------------------+------+---------------------------------+--------+
//
// `move` is the number of the last move of keys between memory nodes that has reached the bucket (docs/adr/0012). The
// whole word 0 is an empty slot, or the header of a closed bucket: a split is making its table, and what belongs here
// still lies in the old table. `units` says how much of the block is read at once, 1 to 255: with 255 the extent may be
// longer, as its own lengths say (the paper chains a second block; here a block has any length).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "base/check.h"
#include "layout/directory.h"
#include "layout/geometry.h"
#include "layout/segment.h"
#include "layout/word.h"

namespace farpool::race {

inline constexpr std::uint64_t kBucketBytes = 64;
inline constexpr std::uint64_t kBucketSlots = 7;
inline constexpr std::uint64_t kGroupBytes = 3 * kBucketBytes;
inline constexpr std::uint64_t kGroupSlots = 3 * kBucketSlots;
inline constexpr std::uint64_t kCombinedBytes = 2 * kBucketBytes;
inline constexpr std::uint64_t kCombinedSlots = 2 * kBucketSlots;

struct SlotWord {
  using Block = layout::Field<0, 46>;
  using State = layout::Field<46, 2>;
  using Units = layout::Field<48, 8>;
  using Print = layout::Field<56, 8>;
  static_assert(layout::tiles_a_word<Block, State, Units, Print>);
};

// One word, which only a CAS changes.
class Slot {
 public:
  enum class State : std::uint64_t {
    committed = 0,  // the key is there
    tentative = 1,  // its inserter has yet to see that no other copy of the key is there; others ignore it
    moving = 2,     // a split copies it, or has copied it, to the new table; no client changes it here
    leaving = 3,    // to another memory node: the key is there, and only the mover changes it, here or there
  };

  constexpr Slot() = default;
  constexpr explicit Slot(std::uint64_t word) : word_(word) {}
  static constexpr Slot of(std::uint64_t print, std::uint64_t block, std::uint64_t extent_bytes, State state) {
    const std::uint64_t units = (extent_bytes + layout::kBlockUnit - 1) / layout::kBlockUnit;
    FARPOOL_CHECK(block <= SlotWord::Block::kMax && units > 0);
    return Slot(SlotWord::Print::put(print) | SlotWord::Units::put(std::min(units, SlotWord::Units::kMax)) |
                SlotWord::State::put(static_cast<std::uint64_t>(state)) | SlotWord::Block::put(block));
  }

  constexpr std::uint64_t word() const { return word_; }
  constexpr bool empty() const { return word_ == 0; }
  constexpr bool tentative() const { return state() == static_cast<std::uint64_t>(State::tentative); }
  constexpr bool moving() const { return state() == static_cast<std::uint64_t>(State::moving); }
  constexpr bool leaving() const { return state() == static_cast<std::uint64_t>(State::leaving); }
  constexpr bool committed() const { return !empty() && state() == static_cast<std::uint64_t>(State::committed); }
  // Says whether it is empty or can point to anything.
  constexpr bool well_formed() const { return empty() || SlotWord::Units::get(word_) != 0; }
  constexpr std::uint64_t print() const { return SlotWord::Print::get(word_); }
  constexpr std::uint64_t block() const { return SlotWord::Block::get(word_); }
  // Returns how much of the block is read at once.
  constexpr std::uint64_t bytes() const { return SlotWord::Units::get(word_) * layout::kBlockUnit; }
  // Says whether the extent may be longer than that.
  constexpr bool open_ended() const { return SlotWord::Units::get(word_) == SlotWord::Units::kMax; }
  // Says whether an extent of these bytes has such a slot.
  constexpr bool fits(std::uint64_t extent_bytes) const {
    const std::uint64_t units = (extent_bytes + layout::kBlockUnit - 1) / layout::kBlockUnit;
    return SlotWord::Units::get(word_) == std::min(units, SlotWord::Units::kMax);
  }
  constexpr Slot as(State state) const {
    return Slot((word_ & ~SlotWord::State::kMask) | SlotWord::State::put(static_cast<std::uint64_t>(state)));
  }
  friend constexpr bool operator==(const Slot&, const Slot&) = default;

 private:
  constexpr std::uint64_t state() const { return SlotWord::State::get(word_); }
  std::uint64_t word_ = 0;
};

// Says which keys a bucket holds: keys whose directory hash ends in the suffix.
struct HeaderWord {
  using Depth = layout::Field<0, 8>;
  using Suffix = layout::Field<8, 32>;
  using Open = layout::Field<40, 1>;
  using Move = layout::Field<41, 23>;
  static_assert(layout::tiles_a_word<Depth, Suffix, Open, Move>);
  static_assert(Move::kMax == layout::kMostMoves);
  static constexpr std::uint64_t of(std::uint64_t depth, std::uint64_t suffix, std::uint64_t move = 0) {
    return Depth::put(depth) | Suffix::put(suffix) | Open::put(1) | Move::put(move);
  }
  // Returns the header without its move: the same keys, whatever has moved.
  static constexpr std::uint64_t keys(std::uint64_t header) { return header & ~Move::kMask; }
  static constexpr std::uint64_t reached_by(std::uint64_t header, std::uint64_t move) {
    return keys(header) | Move::put(move);
  }
  static constexpr bool open(std::uint64_t header) { return header != 0; }
  static constexpr bool well_formed(std::uint64_t header) {
    const std::uint64_t depth = Depth::get(header);
    return !open(header) || (Open::get(header) == 1 && depth <= 32 && Suffix::get(header) >> depth == 0);
  }
  // Says whether the header is possible, whatever the reader's directory says: a split that left the key here does not
  // matter.
  static constexpr bool covers(std::uint64_t header, std::uint64_t directory_hash) {
    const std::uint64_t mask = (1ull << Depth::get(header)) - 1;
    return open(header) && (directory_hash & mask) == Suffix::get(header);
  }
};

// A split that has filled a group's buckets opens the one in the middle first. So a client that sees one side closed
// learns there that the other may be open, and that the old table's middle bucket may be out of date.
inline constexpr std::uint64_t kOpenedFirst = 1;

// A combined bucket's bytes as they were read. Slots are numbered from the main bucket: 0 to 6, then 7 to 13 in the
// overflow bucket.
class CombinedView {
 public:
  CombinedView(base::Bytes bytes, std::uint64_t side) : bytes_(bytes), side_(side) {
    FARPOOL_CHECK(bytes.size() == kCombinedBytes && side < 2);
  }
  Slot slot(std::uint64_t index) const { return Slot(base::load<std::uint64_t>(bytes_.data() + offset(side_, index))); }
  std::uint64_t header() const { return base::load<std::uint64_t>(bytes_.data() + (side_ == 0 ? 0 : kBucketBytes)); }
  std::uint64_t overflow_header() const {
    return base::load<std::uint64_t>(bytes_.data() + (side_ == 0 ? kBucketBytes : 0));
  }
  // Returns how many slots are taken, in the main bucket or in the overflow bucket.
  std::uint64_t load(bool overflow) const {
    std::uint64_t taken = 0;
    for (std::uint64_t i = 0; i < kBucketSlots; ++i) taken += slot(i + (overflow ? kBucketSlots : 0)).empty() ? 0 : 1;
    return taken;
  }
  // Returns the offset of a slot in the combined bucket.
  static constexpr std::uint64_t offset(std::uint64_t side, std::uint64_t index) {
    const bool second = (side == 0) == (index >= kBucketSlots);
    return (second ? kBucketBytes : 0) + 8 + index % kBucketSlots * 8;
  }

 private:
  base::Bytes bytes_;
  std::uint64_t side_;
};

}  // namespace farpool::race
