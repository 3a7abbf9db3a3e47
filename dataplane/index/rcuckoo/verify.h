// SPDX-License-Identifier: Apache-2.0
// Checks over an image of the memory what must hold of a table's bytes when nobody changes them: for memory nodes that
// take their memory up again, tests, simulation and offline checkers; without I/O. Takes any bytes.
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

// Checks that every row is whole; that every entry is well formed and in a row of its key, with a whole extent of its
// hash; and that no key and no block occurs twice. `table` and `heap` are the regions' bytes. Besides the image it
// needs a bit for each unit of the heap.
Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const Verification& how = {});

}  // namespace farpool::rcuckoo
