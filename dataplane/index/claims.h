// SPDX-License-Identifier: Apache-2.0
// What clients that have ended leave in a memory beside rows: for memory nodes that take it up again.
#pragma once

#include "base/bytes.h"
#include "layout/geometry.h"

namespace farpool::index {

// Frees all locks and leases, and clears the holders of all operation slots. No session is left. `memory` is all of it.
void free_claims(const layout::Geometry& geometry, base::MutableBytes memory);

}  // namespace farpool::index
