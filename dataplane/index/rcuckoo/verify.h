// SPDX-License-Identifier: Apache-2.0
// What must hold of a table's bytes when nobody changes it, checked over an image of the memory. For memory nodes that
// take their memory up again, tests, simulation and offline checkers; includes no I/O. Any bytes may be given.
#pragma once

#include "base/bytes.h"
#include "base/hash.h"
#include "index/image.h"
#include "layout/geometry.h"

namespace farpool::rcuckoo {

using index::Defect;
using index::Reached;
using index::Report;
using index::Sighting;
using index::Verification;

// Every row is whole; every entry is well formed, lies in a row of its key, and its extent is whole and of its hash; no
// key occurs twice, and no block. `table` and `heap` are the regions' bytes. Beside the image it needs a bit for each
// unit of the heap.
Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const Verification& how = {});

}  // namespace farpool::rcuckoo
