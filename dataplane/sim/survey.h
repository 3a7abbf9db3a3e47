// SPDX-License-Identifier: Apache-2.0
// Inspects the bytes of a memory node when nothing moves, and says what is wrong with them, without a client's help.
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

  // Returns what dead clients left besides memory: a lock, a barrier, a lease, a slot that says something, a split, a
  // torn row, a key that lies twice.
  std::vector<std::string> unrepaired() const;
  std::string report() const;
};

// Inspects the memory of a world whose live clients are idle. It must satisfy the memory node's own audit
// (node/audit.h); only a crashed client may leave what a death explains. Every block of a segment is reachable, marked
// free, or with the live client that owns the segment: only dead clients leak.
Survey survey(const World& world);

}  // namespace farpool::sim
