// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "index/protocol.h"

namespace farpool::race {

const index::Protocol& protocol();

}  // namespace farpool::race
