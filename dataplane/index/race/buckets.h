// SPDX-License-Identifier: Apache-2.0
// A key's two combined buckets as they were read, and which of their slots are the key's. Internal to the room.
//
// The caller holds an era from the first READ on. So a block that a slot pointed to is not reused meanwhile, and what
// was once learned of a slot's word stays true of it; and slots that a split has moved away are not cleared.
//
// While a split makes the key's table, each of the two places lies in the old table or in the new one, as the headers
// say: in the old one as long as its header covers the key. Between that and the opening of the new one the group is in
// motion: what lies in the old table is still true, and no client changes it. The words of a READ come in any order, so
// a header may be older than the slots beside it, or younger:
//  - A moving slot under a header that covers the key shows that the header is old. It is read again; if the word is
//    still there then, it is left over, and belongs to another key of its print.
//  - A new bucket that was closed until now may have been read before it was filled, beside an old one that was read
//    before its slots became moving. If the key is not in it and any slot of its print lies in the old one, it is read
//    again.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "index/race/state.h"

namespace farpool::race {

class Buckets {
 public:
  Buckets(Table::State& state, std::string_view key);

  // Forgets what was read: another era has begun, and the directory may have changed.
  void forget();
  // Adds READs of both places, in both tables of a split, into the same bytes each time.
  void add_reads(Chain& chain);
  Task<Status> read(Nanos deadline, Cost& cost);  // of these alone

  enum class Sight : std::uint8_t {
    good,
    in_motion,  // may be read, but not changed
    again,      // to be read again
    stale,      // the directory led to the wrong table: see misled()
  };
  // Judges what has been read. Errors: corrupt.
  Result<Sight> look();
  // Says whether a miss counts only when the buckets have been read again.
  bool unsure() const { return unsure_; }
  // Says whether a split is about to open the buckets, or died over it: what was read of the old table may be out of
  // date.
  bool half_open() const { return half_open_; }
  // Says whether a move between memory nodes that this client does not know of has reached the buckets; or whether the
  // key's part leaves, and no copy of it is placed here any more.
  bool outdated() const { return outdated_; }
  bool closed() const { return closed_; }
  // Reads the directory again. corrupt: it leads again and again to a table that does not have the key.
  Task<Status> misled(Nanos deadline, Cost& cost);
  // Says whether hardly any slots are free.
  bool crowded() const;
  // Starts a split of the tables if needed: Splitter::grow().
  Status grow();

  struct Sought {
    bool tentative = false;  // copies, too
    bool values = false;
    Slot own;  // not looked at
  };
  // Reads the blocks that slots of the key's print point to, unless they are known. Returns false if a block is not
  // what its slot says: see `doubtful`.
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
  // Returns the key's copy: committed or leaving, or moving if its group is in motion. There is never more than one,
  // though two may have been seen one after the other.
  std::optional<Copy> committed() const;
  // Calls visit(offset, slot) for every slot that is taken, and has the key if `ours`.
  template <class Visit>
  void each(bool ours, const Visit& visit) const {
    for (std::size_t place = 0; place < 2; ++place) {
      for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
        const Slot slot = view(place).slot(index);
        if (slot.empty() || (slot.moving() && !sides_[place].in_motion)) continue;
        const Known* known = ours ? find(slot) : nullptr;
        if (!ours || (known != nullptr && known->ours)) visit(this->place(place).slot_offset(index), slot);
      }
    }
  }
  std::array<CombinedView, 2> views() const { return {view(0), view(1)}; }
  // Returns where the places lie now, in the table region.
  Place place(std::size_t i) const { return place_in(sides_[i].old ? *route_.old : route_.table, i); }
  Places places() const { return {place(0), place(1)}; }
  Place place_in(std::uint64_t table, std::size_t i) const {
    return {table * state_.geometry.rows_per_table() + places_[i].group, places_[i].side};
  }
  // Says whether the key leaves by the map by which it was looked for here, even if the client has a later one now.
  bool leaves() const { return leaves_; }
  std::uint64_t known_move() const { return known_move_; }
  std::uint64_t directory_hash() const { return directory_hash_; }
  std::uint64_t print() const { return print_; }

 private:
  static constexpr std::size_t kMost = 2 * kCombinedSlots + 8;

  struct Side {
    bool old = false;        // it lies in the old table
    bool in_motion = false;  // it is on its way from there
    bool opened = false;     // in the new table, when it was last read
  };
  CombinedView view_in(bool old, std::size_t place) const {
    return {buffer_.span().subspan((place + (old ? 2 : 0)) * kCombinedBytes, kCombinedBytes), places_[place].side};
  }
  CombinedView view(std::size_t place) const { return view_in(sides_[place].old, place); }
  bool left_over(std::uint64_t offset, Slot slot);
  // Finds what is known of a slot; a copy and its tentative form are one.
  const Known* find(Slot slot) const;
  std::uint64_t wanted_of(Slot slot, bool values) const;
  bool learn(Known& known, bool values) const;
  Task<Status> read_rest(Known& known, Nanos deadline, Cost& cost);

  Table::State& state_;
  const std::string_view key_;
  const std::uint64_t pool_hash_;
  const std::uint64_t known_move_;  // the last of the map by which the key was looked for here
  const bool leaves_;               // the key's part, in that move
  const std::uint64_t directory_hash_;
  const std::uint64_t hash_;
  const Places places_;  // in any table
  std::array<Side, 2> sides_;
  bool unsure_ = false;
  bool half_open_ = false;
  bool outdated_ = false, closed_ = false;
  // Moving slots of the key's print that were seen under a header that covers the key.
  std::array<std::pair<std::uint64_t, Slot>, 2 * kCombinedSlots> seen_moving_;
  std::size_t seen_count_ = 0;
  Nanos misled_since_ = 0;  // 0: not of late
  const std::uint64_t print_;
  directory::Route route_;
  mutable fabric::Buffer buffer_;
  std::array<Known, kMost> known_;
  std::size_t known_count_ = 0;
  Slot doubtful_;
};

}  // namespace farpool::race
