// SPDX-License-Identifier: Apache-2.0
// The dialects, for the list in dialect.cc; and their small worlds, which are files of their own.
#pragma once

#include <vector>

#include "sim/dialect.h"
#include "sim/explore.h"

namespace farpool::sim {

const Dialect& rcuckoo_dialect();
const Dialect& race_dialect();
const Dialect& outback_dialect();

std::vector<SmallWorld> rcuckoo_worlds();
std::vector<SmallWorld> race_worlds();
std::vector<SmallWorld> outback_worlds();

}  // namespace farpool::sim
