// SPDX-License-Identifier: Apache-2.0
// What client threads do between operations, and its result for the memory of dead clients.
#pragma once

#include <string>
#include <vector>

#include "sim/world.h"

namespace farpool::sim {

// Runs some ticks of an idle client thread.
task::Task<void> keep_house(Client& client);

// Clears the marks of rows that the client's scans have found empty. Returns when a round has ended, or after some
// ticks without one.
task::Task<void> clear_marks(Client& client);

// Asks for a split of the table that has the key; does nothing if there is only one table.
task::Task<void> split(Client& client, std::string key);
// Waits until the client is splitting nothing.
task::Task<void> split_no_more(Client& client);

// Lets all living clients do their housekeeping until the memory of dead clients has come back: their segments, and
// blocks in segments of living clients that they had unlinked, or not yet published. Returns what has not. The ends of
// the dead clients have been noticed before, and what they left has been repaired.
std::vector<std::string> reclaim(World& world);

}  // namespace farpool::sim
