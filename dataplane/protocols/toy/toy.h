// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "index/protocol.h"

namespace farpool::toy {

inline constexpr layout::Protocol kNumber{2};

const index::Protocol& protocol();
// What it asks of a wire: so much as a test wants.
index::Needs& needs();

}  // namespace farpool::toy
