// SPDX-License-Identifier: Apache-2.0
// A slot of the vault: a pair, or where one lies. Any bytes are read to a verdict. Pure.
//
// OFFSET SIZE  slot
//      0    8  head      struct SlotHead: what the slot has. 0: nothing, whatever lies behind it
//      8    8  checksum  CRC-64 of head, version and body, seeded with the place: a slot is whole nowhere else
//     16    8  version   greater than that of every slot that the table's owners wrote before
//     24    n  body      in place: key, then value, then zeros to a whole word. By pointer: the two words below
//
//    63                            24 23           13 12            2 1     0
//   +--------------------------------+---------------+---------------+-------+
//   | zero                        40 | value      11 | key        11 | state |
//   +--------------------------------+---------------+---------------+-------+
//
//   pointer  63                    46 45                                     0
//   word 0  +------------------------+----------------------------------------+
//           | units               18 | block                               46 |   both in units of 64 bytes
//           +------------------------+----------------------------------------+
//   word 1  | hash of the key                                              64 |
//           +-----------------------------------------------------------------+
//
// A WRITE of a slot may end after any word. The slot is then torn: its checksum does not hold, and it has no pair. A
// remove WRITEs zeros for head and checksum: without the latter, the next pair's head alone could bring the old pair
// back, if both are of the same lengths. What lies behind the body is left of older slots.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/hash.h"
#include "index/cuckooduo/shape.h"
#include "layout/word.h"

namespace farpool::cuckooduo {

inline constexpr std::uint32_t kSlotHeader = 24;
inline constexpr std::uint32_t kClearedBytes = 16;                  // what a remove WRITEs: zeros
inline constexpr std::uint32_t kLeastSlotBytes = kSlotHeader + 16;  // a pointer fits
inline constexpr std::uint32_t kMostSlotBytes = 4096;
inline constexpr std::uint64_t kMostVersion = 1ull << 62;

enum class SlotState : std::uint8_t { empty = 0, in_place = 1, pointer = 2 };

struct SlotHead {
  using State = layout::Field<0, 2>;
  using KeyBytes = layout::Field<2, 11>;
  using ValueBytes = layout::Field<13, 11>;
  using Zero = layout::Field<24, 40>;
  static_assert(layout::tiles_a_word<State, KeyBytes, ValueBytes, Zero>);
};

struct SlotPointer {
  using Block = layout::Field<0, 46>;
  using Units = layout::Field<46, 18>;
  static_assert(layout::tiles_a_word<Block, Units>);
};

// What a slot has, as views into its bytes.
struct Slot {
  enum class Verdict : std::uint8_t {
    empty,
    torn,  // begun and not finished, or damaged
    whole,
  };
  Verdict verdict = Verdict::empty;
  SlotState state = SlotState::empty;  // of a whole slot
  std::uint64_t version = 0;           // of an empty slot as well: that of the last pair, 0 if it cannot be one
  base::Bytes key, value;              // in place
  std::uint64_t block = 0, units = 0;  // by pointer
  std::uint64_t hash = 0;              // by pointer: of the key

  bool whole() const { return verdict == Verdict::whole; }
  // Returns the hash of a whole slot's key, under the secret of the table.
  std::uint64_t hash_under(const base::HashSecret& secret) const {
    return state == SlotState::pointer ? hash : base::keyed_hash(secret, key);
  }
};

// Says whether a pair fits a slot of so many bytes. Otherwise it lies in an extent, and the slot has a pointer.
constexpr bool fits_in_place(std::uint32_t slot_bytes, std::uint64_t key_bytes, std::uint64_t value_bytes) {
  return key_bytes <= SlotHead::KeyBytes::kMax && value_bytes <= SlotHead::ValueBytes::kMax &&
         key_bytes + value_bytes <= slot_bytes - kSlotHeader;
}

// Returns what these bytes, a whole slot at this place, have.
Slot read_slot(base::Bytes bytes, Place place);

// These fill the beginning of `into`, a slot at this place, and return how many bytes of it a WRITE has to carry: whole
// words. The pair has to fit in place.
std::uint64_t put_pair(base::MutableBytes into, Place place, std::uint64_t version, base::Bytes key, base::Bytes value);
std::uint64_t put_pointer(base::MutableBytes into, Place place, std::uint64_t version, std::uint64_t block,
                          std::uint64_t units, std::uint64_t hash);
// Puts what another slot has: `from` is whole.
std::uint64_t put_copy(base::MutableBytes into, Place place, std::uint64_t version, const Slot& from);

}  // namespace farpool::cuckooduo
