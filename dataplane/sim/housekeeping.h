// SPDX-License-Identifier: Apache-2.0
// What client threads do between operations, and what comes of it: the memory of the dead.
#pragma once

#include <string>
#include <vector>

#include "sim/world.h"

namespace farpool::sim {

// Some ticks of a client thread that has nothing else to do.
task::Task<void> keep_house(Client& client);

// Clears the marks of rows that the client's scans have found empty. Returns when a round has ended, or there was none
// for some ticks.
task::Task<void> clear_marks(Client& client);

// Asks for a split of the table that has the key; nothing comes of it where there is one table only.
task::Task<void> split(Client& client, std::string key);
// Waits until the client splits nothing.
task::Task<void> split_no_more(Client& client);

// All who live keep house until the memory of the dead has come back: their segments, and blocks that they had
// unlinked, or not published yet, in segments of the living. Returns what has not. Their ends have been noticed, and
// what they left has been repaired.
std::vector<std::string> reclaim(World& world);

}  // namespace farpool::sim
