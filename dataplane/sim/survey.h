// SPDX-License-Identifier: Apache-2.0
// What lies in a memory node when nothing moves, and what of it cannot be: an inspection of the bytes, with no client's
// help.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "index/rcuckoo/layout.h"
#include "sim/world.h"

namespace farpool::sim {

struct Located {
  std::uint64_t row = 0;
  std::uint64_t slot = 0;
  std::string value;
};

struct Survey {
  std::vector<std::string> wrong;  // each a sentence; empty: all is as it must be
  std::map<std::string, std::vector<Located>> keys;
  std::set<std::uint64_t> torn_rows;
  std::uint64_t set_lock_bits = 0;
  std::uint64_t barriers = 0;
  std::uint64_t leases = 0;             // held
  std::uint64_t slots_of_the_dead = 0;  // that claim something
  // RACE: slots of inserts that never came to an end. They go when somebody wants their place, or their segment.
  std::uint64_t tentative = 0;
  std::uint64_t blocks_reachable = 0, blocks_free = 0, blocks_unaccounted = 0;

  // Nothing of the dead is left but memory: no lock, barrier or lease, no slot that says anything, no torn row, no key
  // twice.
  std::vector<std::string> unrepaired() const;
  std::string report() const;
};

// Inspects the memory of a world in which no live client has anything to do. Crashed clients are the dead:
//  - a lock bit is set only if an operation slot of the dead covers it, and only the dead have slots that say anything;
//  - a row is torn, or a key there twice, only under such a lock;
//  - every entry lies in one of its key's two rows, every extent is whole, of its key, in a block that was handed out
//  and is not free;
//  - every block of a segment is reachable, marked free, or with the live client that owns the segment; only the dead
//  leak, and only a
//    block for each operation that they were in;
//  - the slots' counters add up to the keys that are there, give or take one for each operation of the dead that is not
//    repaired yet.
Survey survey(const World& world);

// What operation `slot` of a dead client may have left of a table that was `before` when it began: the rows that it
// names, changed in that order, the last of them perhaps in part. Returns what does not fit.
std::vector<std::string> unexplained(const layout::Geometry& geometry, base::Bytes before, base::Bytes after,
                                     const layout::OperationSlot& slot);

}  // namespace farpool::sim
