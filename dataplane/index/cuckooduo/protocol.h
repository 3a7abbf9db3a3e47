// SPDX-License-Identifier: Apache-2.0
// CuckooDuo as an index protocol (index/protocol.h), and how a memory is cut for it.
#pragma once

#include <memory>

#include "base/hash.h"
#include "index/cuckooduo/site.h"
#include "index/protocol.h"
#include "layout/geometry.h"
#include "layout/protocol.h"

namespace farpool::cuckooduo {

// Returns where the table of such a memory lies. Rows of the geometry are buckets: those of both arrays, then a few for
// the stash, and a few for records. `seed` is the table's own.
Site site_of(const layout::Geometry& geometry, const base::HashSecret& seed);

// No pool can ask for it yet, so superblocks have no number for it: the caller gives one.
std::unique_ptr<index::Protocol> make_protocol(layout::Protocol number);

}  // namespace farpool::cuckooduo
