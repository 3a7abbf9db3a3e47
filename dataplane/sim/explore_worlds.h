// SPDX-License-Identifier: Apache-2.0
// The small worlds of the pool that are explored: two or three clients, one or two keys, one or two operations each, on
// a memory node, all of them the code that runs on real wires.
#pragma once

#include <string>
#include <vector>

#include "sim/explore.h"

namespace farpool::sim {

// Every one, each with its bounds.
const std::vector<SmallWorld>& small_worlds();
const SmallWorld* find_small_world(const std::string& name);

}  // namespace farpool::sim
