// SPDX-License-Identifier: Apache-2.0
// The index protocols that there are. No other room above `index` names one: who wants something of a protocol asks
// index/protocol.h for it.
#pragma once

#include <span>

#include "index/protocol.h"
#include "layout/protocol.h"

namespace farpool::protocols {

// By number.
std::span<const index::Protocol* const> all();

// The number must be known to layout; whoever has parsed a superblock or planned a geometry has checked it.
const index::Protocol& of(layout::Protocol number);

}  // namespace farpool::protocols
