// SPDX-License-Identifier: Apache-2.0
// What random worlds are like, and what happens in them: drawn from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fabric/sim/network.h"
#include "sim/history.h"
#include "sim/setting.h"
#include "sim/swarm.h"

namespace farpool::sim {

// Draws a world. `take` says which dialect, upkeep and faults it has.
SwarmSetting draw_swarm_setting(std::uint64_t seed, const Take& take);
// Describes it for people.
std::string describe(const SwarmSetting& s);

// What a seed's world does, one element after the other; any of them may be left out.
struct SwarmPlay {
  std::vector<Call> filling;            // by the first client, before all else
  std::vector<std::vector<Call>> work;  // of each task
  struct Fault {
    enum class Kind : std::uint8_t {
      pause,
      death,
      stop,
      restart,
      revocation,
      split,
      scan,
      compaction,
      clearing
    } kind = Kind::pause;
    std::size_t client = 0;     // not of a restart
    std::string key = {};       // whose table is split
    Nanos when = 0, until = 0;  // `until` of pauses and stops
    std::uint64_t effects = 0;  // after which a death or a stop strikes
    fabric::sim::InFlight posted = fabric::sim::InFlight::lands;
    bool keeps_memory = true;  // a restart
    std::uint64_t count = 1;   // a scan's
    Nanos rest = 0;
  };
  std::vector<Fault> faults;
  double losses = 0;
};

// Draws what the clients do with the keys, and which faults strike them.
SwarmPlay draw_swarm_play(const SwarmSetting& setting, const std::vector<std::string>& keys, std::uint64_t seed);
// Leaves out what `part` leaves out. Returns how many elements there were.
std::size_t leave_out(SwarmPlay& play, const Selection& part);

}  // namespace farpool::sim
