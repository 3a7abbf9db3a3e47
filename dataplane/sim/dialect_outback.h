// SPDX-License-Identifier: Apache-2.0
// Where Outback's keys lie, for its worlds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/world.h"

namespace farpool::sim {

// Returns the bucket of a key in a memory that has the locator of an empty table: a key's first one.
std::uint64_t outback_bucket(const World& world, std::string_view key);

// Returns so many keys of one bucket in a world of these options. A world of other options has them elsewhere.
std::vector<std::string> outback_neighbours(const WorldOptions& options, std::size_t count);

}  // namespace farpool::sim
