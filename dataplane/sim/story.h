// SPDX-License-Identifier: Apache-2.0
// What happened in a world, for people.
#pragma once

#include <string>

#include "sim/world.h"

namespace farpool::sim {

// From a moment on, in order of time: what was asked and answered, and every chain that was posted, if the network
// keeps them; the world's upkeep is left out. At most so many lines, of which the middle goes first.
std::string story(World& world, Nanos from, std::size_t most_lines = 160);

// What stood at the time of a call: which build this is of, for whoever wants to see the same.
std::string commit();

}  // namespace farpool::sim
