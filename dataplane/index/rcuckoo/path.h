// SPDX-License-Identifier: Apache-2.0
// Cuckoo paths of RCuckoo: the search that every cuckoo protocol uses (index/path.h), and how far it goes here.
#pragma once

#include "index/path.h"

namespace farpool::rcuckoo {

using index::Displacement;
using index::Path;
using index::PathSearch;
using index::Sight;

inline constexpr unsigned kDepth = 5;  // entries that an insert may displace

}  // namespace farpool::rcuckoo
