// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "index/protocol.h"

namespace farpool::rcuckoo {

const index::Protocol& protocol();

}  // namespace farpool::rcuckoo
