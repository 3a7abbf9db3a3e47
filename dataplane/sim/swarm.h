// SPDX-License-Identifier: Apache-2.0
// Random worlds: a seed decides everything about them, and everything that happens in them is judged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "index/table.h"
#include "sim/shrink.h"
#include "sim/world.h"

namespace farpool::sim {

struct Verdict : Told {
  std::uint64_t trace_hash = 0;
  std::uint64_t calls = 0;
  std::uint64_t effects = 0;
  std::map<std::string, std::uint64_t> failures;  // calls that failed without effect, by code
  index::Marks marks;                             // of all tables
  session::RepairMarks repairs;
  std::uint64_t zombies = 0;      // clients that went on after their session had been ended
  std::uint64_t late_writes = 0;  // of theirs, that landed after that
  std::uint64_t restarts = 0, losses = 0, revocations = 0;
  std::uint64_t new_lives = 0;         // of clients whose session had ended
  std::uint64_t budgeted = 0;          // calls whose trips were judged
  std::uint64_t scans = 0, pages = 0;  // that came to an end
  std::uint64_t emptied = 0;           // segments, by compactions
};

// Two to four clients work on a few keys of a few rows, with delays, tearing and pauses. Some die, some are stopped for
// longer than the failure timeout, and some completions never come. Every history must be linearizable, and every task
// of a living client must end. Then faults stop: nothing of dead clients may be left, and the memory must be in order,
// before and after the clients have said goodbye.
//
// Every fault also includes: clocks of different pace; a memory node that is killed and comes back, with its memory or
// without; sessions whose keys are revoked in the middle of a chain; and a new life of a client that has lost its
// session. `as_once` draws worlds as earlier versions did, for seeds that have found something.
enum class Faults : std::uint8_t { every, as_once };

// Says what of a seed is run: which part, with which faults, in which protocol. `tells`: with a story. `scans`: clients
// also scan the keys, some at once, others with rests.
struct Take {
  Selection part;
  Faults faults = Faults::every;
  bool tells = false;
  layout::Protocol protocol{};
  bool scans = false;
  bool compactions = false;  // clients also empty segments of theirs, beside everything else
  bool clearings = false;    // clients also clear marks of rows that have become empty, beside everything else
};
Verdict run_swarm(std::uint64_t seed, const Take& take = {});

// Returns, for a failing seed, what is wrong, the shrunk story, and the command that replays it.
std::string explain(std::uint64_t seed, const ShrinkBudget& budget = {}, const Take& take = {});

// Returns keys whose rows all lie in [first, first + rows), so that a few keys crowd a table of any size. With very
// many tables, returns keys of tables that share the lease of the first.
std::vector<std::string> crowd(const World& world, std::uint64_t first, std::uint64_t rows, std::size_t count,
                               const std::string& prefix);

// Return, for people, the rare events that were never counted: of the protocol, with those of scans if there were any,
// and of repair.
std::vector<std::string> never_reached(const index::Marks& marks, layout::Protocol protocol, bool scans);
std::vector<std::string> never_reached(const session::RepairMarks& marks);

}  // namespace farpool::sim
