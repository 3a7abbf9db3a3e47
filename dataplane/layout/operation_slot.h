// SPDX-License-Identifier: Apache-2.0
// What a client says it holds while an operation changes something, so that a lock bit that stands can be traced to a
// holder, and what the holder was doing can be finished by another.
//
// OFFSET SIZE  operation slot, 280 bytes
//      0    8  keys         net keys that operations of this slot have added, as a two's complement count
//      8    8  bytes        net key and value bytes added, likewise
//     16    8  done         number of the operation whose rows have all been written; kQuarantined
//   ---- claim: written in the chain that takes locks, before them
//     24    8  holder       client incarnation; 0 = the slot is idle
//     32    8  sequence     struct Sequence: raised by every WRITE of a claim
//     40    8  state        the protocol defines it: operation, table
//     48   64  lock_word[4] each: offset 8 | mask 8 (bits that the operation takes in that word of the lock region)
//    112    8  claim        CRC-64 of holder, state and lock words: they stay as they are while the claim is raised
//   ---- plan: written before the rows, when all locks are held
//    120    8  plan         number of the operation that it is of
//    128   48  row[6]       rows that change, in the order in which they are written; the protocol defines the words
//    176    8  replaced     first word of the entry that the new one takes the place of
//    184    8  rest         CRC-64 of what does not change in the row that takes the new entry
//    192    8  keys_after   what `keys` is once the operation has taken effect
//    200    8  bytes_after  likewise
//    208   64  redo[8]      the new entry
//    272    8  checksum     CRC-64 of the plan
//
// Life of an operation: the claim is WRITTEN and locks are taken (locking); the plan is WRITTEN, then the rows
// (writing: all locks are held, for certain); keys, bytes and done are WRITTEN (done: no row is left to write), then
// the locks are released; holder becomes 0. WRITEs land in that order and before the atomics that follow, so what a
// slot says when its holder dies bounds what the holder can have done.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "layout/word.h"

namespace farpool::layout {

struct HeldLocks {
  std::uint64_t offset = 0;  // of the lock word in the lock region
  std::uint64_t mask = 0;
};

// One word, so that it never tears.
//    63                                                             8 7             0
//   +-----------------------------------------------------------------+---------------+
//   | number                                                       56 | word        8 |
//   +-----------------------------------------------------------------+---------------+
struct Sequence {
  using Word = Field<0, 8>;     // index of the lock word that the attempt behind this WRITE is for: words from it on
                                // are not held when it lands
  using Number = Field<8, 56>;  // raised by every WRITE of a claim
  static_assert(tiles_a_word<Word, Number>);
  static constexpr std::uint64_t of(std::uint64_t number, std::uint64_t word) {
    return Number::put(number) | Word::put(word);
  }
  static constexpr std::uint64_t number(std::uint64_t sequence) { return Number::get(sequence); }
  static constexpr std::uint64_t word(std::uint64_t sequence) { return Word::get(sequence); }
};

struct OperationSlot {
  static constexpr std::size_t kLockWords = 4;
  static constexpr std::size_t kRows = 6;
  // In `done`: what was found under the locks cannot be what any crash left. They stay, for people.
  static constexpr std::uint64_t kQuarantined = ~0ull;

  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;
  std::uint64_t done = 0;

  std::uint64_t holder = 0;
  std::uint64_t sequence = 0;
  std::uint64_t state = 0;
  std::array<HeldLocks, kLockWords> lock_word{};
  std::uint64_t claim = 0;

  std::uint64_t plan = 0;
  std::array<std::uint64_t, kRows> row{};
  std::uint64_t replaced = 0;
  std::uint64_t rest = 0;
  std::uint64_t keys_after = 0;
  std::uint64_t bytes_after = 0;
  std::array<std::uint64_t, 8> redo{};
  std::uint64_t checksum = 0;

  std::uint64_t number() const { return Sequence::number(sequence); }
  void seal_claim();
  void seal_plan();  // of this operation
  // The counters of an operation whose rows are all written.
  void settle() {
    keys = keys_after;
    bytes = bytes_after;
    done = number();
  }

  // Says whether the holder may hold the lock words it names. True also of a slot whose claim is being raised: that
  // WRITE changes neither. A first WRITE that was cut short claims nothing, or what the slot's operation before had
  // held; no lock was taken behind it.
  bool claims() const;
  // Says whether the slot names any bit of `mask` in the lock word at `offset`.
  bool covers(std::uint64_t offset, std::uint64_t mask) const;
  // A whole plan of this operation is there: rows may have been written, in part or all.
  bool planned() const;
  // A planned operation that is not done: it holds all its locks.
  bool writing() const { return planned() && done != number() && !quarantined(); }
  bool quarantined() const { return done == kQuarantined; }
};
static_assert(sizeof(OperationSlot) == 280 && base::wire_safe<OperationSlot>);

// The parts of a slot that are written on their own.
struct SlotPart {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
inline constexpr SlotPart kSlotCounters = {0, offsetof(OperationSlot, holder)};
inline constexpr SlotPart kSlotHolder = {offsetof(OperationSlot, holder), 8};
inline constexpr SlotPart kSlotClaim = {offsetof(OperationSlot, holder),
                                        offsetof(OperationSlot, plan) - offsetof(OperationSlot, holder)};
inline constexpr SlotPart kSlotPlan = {offsetof(OperationSlot, plan),
                                       sizeof(OperationSlot) - offsetof(OperationSlot, plan)};
static_assert(kSlotClaim.offset == 24 && kSlotClaim.bytes == 96 && kSlotPlan.offset == 120 && kSlotPlan.bytes == 160);

}  // namespace farpool::layout
