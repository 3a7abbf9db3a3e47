// SPDX-License-Identifier: Apache-2.0
// Random worlds: everything about them is drawn from a seed, everything that happens in them is judged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "index/table.h"
#include "sim/world.h"

namespace farpool::sim {

struct Verdict {
  std::vector<std::string> wrong;  // empty: the run was right
  std::string setting;             // what the seed drew, for people
  std::uint64_t trace_hash = 0;
  std::uint64_t calls = 0;
  std::uint64_t effects = 0;
  std::map<std::string, std::uint64_t> failures;  // calls that failed without effect, by code
  index::Marks marks;                             // of all tables
  session::RepairMarks repairs;
};

// Two to four clients work on a few keys of a few rows, with delays, tearing and pauses; some die, some are stopped for
// longer than the failure timeout, some completions never come. Every history must be linearizable, and every task of
// those who live must end. Then faults stop: nothing of the dead may be left, and the memory must be in order, before
// and after the clients have said goodbye.
Verdict run_swarm(std::uint64_t seed, layout::Protocol protocol = layout::Protocol::rcuckoo);

// Keys whose rows all lie in [first, first + rows): so that a few keys crowd a table of any size.
std::vector<std::string> crowd(const World& world, std::uint64_t first, std::uint64_t rows, std::size_t count,
                               const std::string& prefix);

void add(index::Marks& sum, const index::Marks& marks);
std::string describe(const index::Marks& marks);
std::string describe(const session::RepairMarks& marks);

}  // namespace farpool::sim
