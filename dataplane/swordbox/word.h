// SPDX-License-Identifier: Apache-2.0
// A word of a range, and the operations on it.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "roce/format.h"
#include "swordbox/table.h"

namespace farpool::swordbox {

// Operations in flight to a word are any number that leave it as it is, or one that may change it.
struct Word {
  bool known = false;
  std::uint64_t value = 0;  // what memory holds while nothing that may change it is in flight
  bool changing = false;
  std::uint32_t readers = 0;  // operations in flight that change nothing
  // Connections whose first held packet waits for this word, first come first served.
  std::uint32_t first_waiter = kNone, last_waiter = kNone;
  // Until then a packet that the box has given up may still reach the server. 0: there is none.
  base::Nanos blocked_until = 0;
  std::uint32_t next_blocked = kNone;

  bool idle() const { return !changing && readers == 0 && first_waiter == kNone && blocked_until == 0; }
};

// Returns what the word holds after the atomic if it held `prior` before.
inline std::uint64_t outcome(roce::Opcode opcode, const roce::Atomic& atomic, std::uint64_t prior) {
  if (opcode == roce::Opcode::fetch_add) return prior + atomic.swap_or_add;
  if (((prior ^ atomic.compare) & atomic.compare_mask) != 0) return prior;
  return (prior & ~atomic.swap_mask) | (atomic.swap_or_add & atomic.swap_mask);
}

}  // namespace farpool::swordbox
