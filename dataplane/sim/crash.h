// SPDX-License-Identifier: Apache-2.0
// A client dies after the 0th, 1st, 2nd ... effect of one operation. What it left is inspected, and another client goes
// on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/world.h"

namespace farpool::sim {

// Which branch of which operation. Calls before it are acknowledged; `rival` runs at the same time, by the survivor.
struct Scenario {
  std::string name;
  WorldOptions options;
  struct Before {
    bool by_survivor = false;
    Call call;
  };
  std::vector<Before> before;
  Call doomed;
  std::optional<Call> rival;
};

// Every branch of every operation: values in place and in extents, a free slot, cuckoo paths of 1 to 5 moves, keys that
// are there or not, a lock conflict, a search that fails because the client's memory of the table is stale.
std::vector<Scenario> scenarios(std::uint64_t seed);

struct CrashVerdict {
  std::vector<std::string> wrong;
  bool survived = false;  // the operation had no more effects than it was allowed
  bool locks_left = false;
  std::uint64_t refused = 0;  // calls of the survivor that met the dead client's lock
  rcuckoo::Marks marks;       // of the victim, if it survived
};
CrashVerdict run_crash(const Scenario& scenario, std::uint64_t after, fabric::sim::InFlight posted);

}  // namespace farpool::sim
