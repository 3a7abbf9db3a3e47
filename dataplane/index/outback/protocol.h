// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "index/outback/layout.h"
#include "index/protocol.h"

namespace farpool::outback {

const index::Protocol& protocol();

// Returns the figures of the table in a memory that is cut so. Salt and first generation follow from the tables' seed: no
// other memory has the seed, so that a client never takes a memory's table for an earlier one's.
Figures figures_of(const layout::Geometry& geometry, const base::HashSecret& seed);

}  // namespace farpool::outback
