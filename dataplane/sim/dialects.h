// SPDX-License-Identifier: Apache-2.0
// The dialects, for the list in dialect.cc.
#pragma once

#include "sim/dialect.h"

namespace farpool::sim {

const Dialect& rcuckoo_dialect();
const Dialect& race_dialect();

}  // namespace farpool::sim
