// SPDX-License-Identifier: Apache-2.0
// Where Outback's keys lie, for its worlds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/world.h"

namespace farpool::sim {

// Gives a world's table so many buckets that a few keys of one of them begin no other locator.
void roomy(WorldOptions& options);

// Returns the first bucket of a key in a table that has grown as far as it can. Keys that share it do so in all tables
// that it was before.
std::uint64_t outback_bucket(const World& world, std::string_view key);

// Returns so many keys of one bucket in a world of these options. A world of other options has them elsewhere.
std::vector<std::string> outback_neighbours(const WorldOptions& options, std::size_t count);

}  // namespace farpool::sim
