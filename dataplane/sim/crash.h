// SPDX-License-Identifier: Apache-2.0
// A client dies after the 0th, 1st, 2nd ... effect of one operation. The test inspects what it left, other clients
// repair it, and nothing of it may remain.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/world.h"

namespace farpool::sim {

// Names one branch of one operation. The calls before it are acknowledged; the survivor runs `rival` at the same time.
struct Scenario {
  std::string name;
  std::uint64_t seed = 0;  // the argument of scenarios()
  WorldOptions options;
  struct Before {
    bool by_survivor = false;
    Call call;
    bool finds_no_room = false;  // it fails, and the client remembers why
    bool splits = false;         // instead, it splits the table that has its key
  };
  std::vector<Before> before;
  Call doomed;
  std::vector<std::string> splits = {};  // instead, it splits the tables that have these keys, all at once
  std::optional<Call> rival;
  std::string rival_splits;  // instead, the table that has this key
  // A scenario of an operation with very many effects has a stride: deaths are tried after every stride-th effect. Each
  // way to die begins at another offset.
  std::uint64_t stride = 1;
};

// Returns every branch of every operation: values in place and in extents, a free slot, keys that are there or not, a
// conflict with another operation on the key; and, from its dialect, the branches that only this protocol has.
std::vector<Scenario> scenarios(std::uint64_t seed, layout::Protocol protocol = {});
// Returns what the worlds of all scenarios have in common: a client that meets a dead client's lock waits, but not for
// long.
WorldOptions crash_options(std::uint64_t seed, layout::Protocol protocol);

// How the victim dies, and which client repairs what it left.
struct Death {
  std::uint64_t after = 0;  // effects of the operation
  enum class How : std::uint8_t {
    cut,     // nothing lands after them
    lands,   // what was posted lands
    zombie,  // it stops, what was posted lands, and it goes on when it has been repaired
    asleep,  // the same, but it goes on when its lease may have run out and the memory node has not noticed yet
  } how = How::cut;
  enum class Repair : std::uint8_t {
    blocked,   // another client, whose operations meet what is left
    sweep,     // a client that learns that another has ended
    repairer,  // the same, but it dies, too: another finishes
    stopped,   // the same, but it stops: another finishes and works on, and then it wakes
    crowd,     // two others at once, whose operations meet what is left
  } repair = Repair::blocked;
  std::uint64_t repairer_after = 0;  // effects of its repair
};
std::string describe(const Death& death);
// Returns a death's name, such as `cut,blocked,12` or `lands,repairer,12,3`: how the client dies, what repairs, after
// which effect, and after which effect of the repair.
std::string name_of(const Death& death);
std::optional<Death> parse_death(const std::string& text);

struct CrashVerdict {
  std::vector<std::string> wrong;
  std::string story;               // line by line, for people, if it was asked for
  bool survived = false;           // the operation had no more effects than it was allowed
  bool repairer_survived = false;  // likewise
  bool locks_left = false;
  std::uint64_t late_effects = 0;  // of the victim, after it was fenced
  Nanos repaired_in = 0;           // from the death until nothing of it is left
  index::Marks marks;              // of the victim, if it survived
  session::RepairMarks repairs;    // of all others
};
CrashVerdict run_crash(const Scenario& scenario, const Death& death, bool tells = false);

// Returns, for a wrong death in a scenario, what happened, what is wrong, and the command that replays it.
std::string explain(const Scenario& scenario, const Death& death);

// The sums over every death of one scenario until the operation survives; with Repair::repairer and Repair::stopped,
// also over every end of the repairer.
struct CrashTally {
  std::uint64_t worlds = 0, locks_left = 0, late_effects = 0;
  index::Marks marks;  // of the run that survived
  session::RepairMarks repairs;
  std::optional<Death> wrong;  // the first that was, of the fewest effects
};
// Says which deaths to try. A scenario with a stride tries every stride-th effect from `offset` on, so runs with other
// offsets try others. `every_effect` sets the victim's stride to 1. Repairers keep theirs, because otherwise there
// would be a world for each pair of effects; they begin one effect later for each further effect of the victim.
struct Reach {
  std::uint64_t step = 1;  // every so many deaths
  bool every_effect = false;
  std::uint64_t offset = 0;
};
CrashTally die_everywhere(const Scenario& scenario, Death::How how, Death::Repair repair, const Reach& reach = {});

}  // namespace farpool::sim
