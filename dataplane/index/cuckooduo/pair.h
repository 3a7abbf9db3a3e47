// SPDX-License-Identifier: Apache-2.0
// The pair of a slot, wherever its bytes lie: what owners and replicas of a table share.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "fabric/fabric.h"
#include "index/cuckooduo/slot.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::cuckooduo {

// Says how many bytes of the heap a pair takes whose slot has a pointer: whole units, as slots count them.
std::uint64_t block_bytes_for(std::uint64_t key_bytes, std::uint64_t value_bytes);

// An extent, as it was read. Key and value are views into the bytes.
struct Extent {
  fabric::Buffer bytes;
  bool whole = false;  // false: the block has another extent by now, or is damaged
  base::Bytes key, value;
};

// Reads the extent of a whole slot that has a pointer. The caller has locked the slot, or holds an era since before it
// read the slot. corrupt: the slot points beyond the heap. Other errors are the session's: nothing was read.
task::Task<base::Result<Extent>> read_extent_of(session::Session& session, const Slot& slot, base::Nanos deadline,
                                                fabric::Cost& cost);

}  // namespace farpool::cuckooduo
