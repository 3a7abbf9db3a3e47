// SPDX-License-Identifier: Apache-2.0
// The vault of a memory that no client changes: what it has, and what the next owner would mend, which the memory node
// mends as well when it takes the memory up. Pure. Any bytes may be given.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "index/cuckooduo/site.h"
#include "index/image.h"

namespace farpool::cuckooduo {

// Checks every slot. `table` and `heap` are the regions' bytes.
index::Report verify(const Site& site, base::Bytes table, base::Bytes heap, const index::Verification& how);

// Does what the next owner of the table would do before it serves, and forgets all requests: no client waits for one.
// Returns how many slots it has changed. corrupt: the vault has what no owner leaves, and stays as it is. Another call
// goes on if it was cut short after any word.
base::Result<std::uint64_t> mend(const Site& site, base::MutableBytes table, base::Bytes heap);

}  // namespace farpool::cuckooduo
