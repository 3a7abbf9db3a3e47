// SPDX-License-Identifier: Apache-2.0
// What a client says it holds while an operation changes something, so that a lock bit that stands can be traced to
// a holder.
//
// OFFSET SIZE  operation slot, 256 bytes, 64-byte aligned
//      0    8  holder      client incarnation; 0 = the slot is idle
//      8    8  sequence    raised by every WRITE of the slot: one that stands still is of the stopped or dead
//     16    8  state       the protocol defines it: operation, phase, how many of the words below are used
//     24    8  keys        net keys that operations of this slot have added, as a two's complement count
//     32    8  bytes       net key and value bytes added, likewise
//     40    8  era         that the operation runs in
//     48   64  lock_word[4], each: offset 8 | mask 8 (bits that the operation takes in that word of the lock region)
//    112   64  row[8]      rows that the operation may change; in the phase of writing, those it changes, in order
//    176   64  redo[8]     what a repairer needs to finish or undo; the protocol defines it
//    240    8  claim       CRC-64 of holder and lock words: they stay as they are while the slot is written again
//    248    8  checksum    CRC-64 of all before it
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace farpool::layout {

struct HeldLocks {
  std::uint64_t offset = 0;  // of the lock word in the lock region
  std::uint64_t mask = 0;
};

struct OperationSlot {
  static constexpr std::size_t kLockWords = 4;
  static constexpr std::size_t kRows = 8;

  std::uint64_t holder = 0;
  std::uint64_t sequence = 0;
  std::uint64_t state = 0;
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;
  std::uint64_t era = 0;
  std::array<HeldLocks, kLockWords> lock_word{};
  std::array<std::uint64_t, kRows> row{};
  std::array<std::uint64_t, 8> redo{};
  std::uint64_t claim = 0;
  std::uint64_t checksum = 0;

  // Recomputes claim and checksum.
  void seal();
  bool whole() const;
  // Whether the holder may hold the lock words it names. True also of a slot whose next WRITE was cut short, which is
  // not whole: that WRITE changes neither. A first WRITE that was cut short makes no claim, and no lock was taken
  // behind it.
  bool claims() const;
  // Whether the slot names any bit of `mask` in the lock word at `offset`.
  bool covers(std::uint64_t offset, std::uint64_t mask) const;
};
static_assert(sizeof(OperationSlot) == 256 && base::wire_safe<OperationSlot>);
static_assert(offsetof(OperationSlot, lock_word) == 48 && offsetof(OperationSlot, row) == 112 &&
              offsetof(OperationSlot, redo) == 176 && offsetof(OperationSlot, checksum) == 248);

}  // namespace farpool::layout
