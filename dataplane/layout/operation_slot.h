// SPDX-License-Identifier: Apache-2.0
// What a client says it holds while an operation changes something, so that a lock bit that stands can be traced to a
// holder.
//
// OFFSET SIZE  operation slot, 256 bytes, 64-byte aligned
//      0    8  holder      client incarnation; 0 = the slot is idle
//      8    8  sequence    raised by every WRITE of the slot: a slot whose sequence stands still belongs to the stopped
//      or dead
//     16    8  state       operation 8 | lock words 8 | rows 8 | table 32 | zero 8
//     24    8  keys        net keys that operations of this slot have added, as a two's complement count
//     32    8  bytes       net key and value bytes added, likewise
//     40    8  era         that the operation runs in
//     48   64  lock_word[4], each: offset 8 | mask 8 (bits the operation takes in the lock word at that offset of the
//     lock region)
//    112   64  row[8]      rows of the operation's path, end first; more rows than fit are covered by the lock words
//    alone 176   64  redo[8]     what a repairer needs to finish or undo; the protocol defines it 240    8  reserved,
//    zero 248    8  checksum    CRC-64 of the bytes before
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
  std::uint64_t reserved = 0;
  std::uint64_t checksum = 0;

  // Recomputes the checksum over all that stands before it.
  void seal();
  bool whole() const;
};
static_assert(sizeof(OperationSlot) == 256 && base::wire_safe<OperationSlot>);
static_assert(offsetof(OperationSlot, lock_word) == 48 && offsetof(OperationSlot, row) == 112 &&
              offsetof(OperationSlot, redo) == 176 && offsetof(OperationSlot, checksum) == 248);

}  // namespace farpool::layout
