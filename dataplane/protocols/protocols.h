// SPDX-License-Identifier: Apache-2.0
// The list of the index protocols. No other room above `index` names one, beside the dialects of the simulator: ask
// index/protocol.h for what a protocol does.
#pragma once

#include <span>

#include "index/protocol.h"
#include "layout/protocol.h"

namespace farpool::protocols {

// By number.
std::span<const index::Protocol* const> all();

// The number must be known to layout; parsing a superblock and planning a geometry check it.
const index::Protocol& of(layout::Protocol number);

}  // namespace farpool::protocols
