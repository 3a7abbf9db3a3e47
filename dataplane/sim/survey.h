// SPDX-License-Identifier: Apache-2.0
// What lies in a memory node when nothing moves, and what of it is wrong: an inspection of the bytes, with no client's
// help.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/world.h"

namespace farpool::sim {

struct Located {
  std::uint64_t row = 0;
  std::uint64_t slot = 0;
  std::string value;
};

struct Survey {
  std::vector<std::string> wrong;                    // each a sentence; empty: all is as it must be
  std::map<std::string, std::vector<Located>> keys;  // as they are when what is half done is finished
  std::set<std::uint64_t> torn_rows;
  std::uint64_t set_lock_bits = 0;
  std::uint64_t barriers = 0;
  std::uint64_t leases = 0;             // held
  std::uint64_t slots_of_the_dead = 0;  // that say something
  std::uint64_t splits = 0;             // of tables, that are under way
  std::uint64_t tentative = 0;          // of inserts that never came to an end: they hinder nobody for long
  std::uint64_t blocks_lost = 0;        // neither in use, nor marked free, nor known to the client that owns them

  // Nothing of the dead is left but memory: no lock, barrier or lease, no slot that says anything, no split, no torn
  // row, no key twice.
  std::vector<std::string> unrepaired() const;
  std::string report() const;
};

// Inspects the memory of a world in which no live client has anything to do. It is what the memory node's own audit
// demands (node/audit.h), with nothing in it that only a death explains unless it is of a crashed client; and every
// block of a segment is reachable, marked free, or with the live client that owns the segment. Only the dead leak.
Survey survey(const World& world);

}  // namespace farpool::sim
