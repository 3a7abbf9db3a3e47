// SPDX-License-Identifier: Apache-2.0
// Lock words, and the repair leases above them: the holder of the lease of a range of lock words, and nobody else,
// repairs what the dead left under locks there (RCuckoo section 4.2). Changed by clients' CAS alone.
#pragma once

#include <cstdint>

#include "layout/word.h"

namespace farpool::layout {

//    63    62                              32 31                              0
//   +-----+---------------------------------+---------------------------------+
//   | set | counter                      31 | session id, low bits         32 |
//   +-----+---------------------------------+---------------------------------+
// The counter goes up with every change of the word: it never looks the same twice while anybody waits for it.
struct LeaseWord {
  using Session = Field<0, 32>;
  using Counter = Field<32, 31>;
  using Set = Field<63, 1>;
  static_assert(tiles_a_word<Session, Counter, Set>);
  static constexpr bool held(std::uint64_t word) { return Set::get(word) != 0; }
  static constexpr std::uint64_t held_by(std::uint64_t before, std::uint64_t session_id) {
    return Set::put(1) | Counter::put(Counter::get(before) + 1) | Session::put(session_id);
  }
  static constexpr std::uint64_t released(std::uint64_t before) { return Counter::put(Counter::get(before) + 1); }
};

// A lock word has a bit for each of 63 locks, and one that bars all of them: while it is set no lock of the word can be
// taken, only released. The holder of the word's repair lease sets it to find out what the dead hold.
inline constexpr std::uint64_t kLocksPerWord = 63;
inline constexpr std::uint64_t kBarrier = 1ull << 63;

// Returns the bits of the lock word at `offset` that stand for locks, where there are `lock_bits` in all.
constexpr std::uint64_t bits_of_lock_word(std::uint64_t offset, std::uint64_t lock_bits) {
  const std::uint64_t left = lock_bits - offset / 8 * kLocksPerWord;
  return left >= kLocksPerWord ? kBarrier - 1 : (1ull << left) - 1;
}

// Repair leases. More failures at once than leases wait for each other.
inline constexpr std::uint64_t kRepairLeases = 64;
// Behind them, the lease of the client that moves keys to this memory node or from it (docs/adr/0012).
inline constexpr std::uint64_t kMoveLease = kRepairLeases;
// Words of the lease region.
inline constexpr std::uint64_t kLeaseWords = kMoveLease + 1;

// The lease of the lock word at `offset` of a lock region of `bytes`: neighbours share one.
constexpr std::uint64_t lease_of(std::uint64_t offset, std::uint64_t bytes) {
  return (offset / 8) * kRepairLeases / (bytes / 8);
}

}  // namespace farpool::layout
