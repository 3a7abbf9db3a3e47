// SPDX-License-Identifier: Apache-2.0
// Faults that strike the clients and the memory node of a random world.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/swarm_play.h"
#include "sim/world.h"

namespace farpool::sim {

// What came of the faults. Events of the world refer to it: it outlives the world.
struct Storm {
  bool over = false;
  bool taken_up = true;                                    // the memory, by every restart
  std::vector<std::pair<Client*, std::uint64_t>> zombies;  // and what of theirs had landed when they woke
  std::uint64_t restarts = 0, losses = 0, revocations = 0, scans = 0;

  void wake(Client& client) {
    if (client.port().paused() && client.port().cut_off()) zombies.emplace_back(&client, client.port().effects());
    client.port().resume();
  }
};

// The rows that the keys lie in. Events of the world refer to it, too.
struct Haunt {
  std::vector<std::string> keys;
  std::uint64_t first = 0, end = 0;  // positions
};

// Starts a fault now, as its `when` and `effects` say. `client` is the one that the fault strikes.
void strike(World& world, Client& client, const SwarmPlay::Fault& fault, const Haunt& haunt, Storm& storm);

}  // namespace farpool::sim
