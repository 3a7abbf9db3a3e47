// SPDX-License-Identifier: Apache-2.0
// Builds the index of a table from its vault, after the death of its owner at any moment: the next owner's first step.
// Pure. Any bytes may be given.
//
// What counts is the whole slot with the greatest version of each key. Everything else is cleared, because an older copy
// that outlived a remove would bring the key back: torn slots, and older copies, which are of moves and replacements that
// have not ended. A pair that a lookup would not find where it lies goes to the stash; the plans of owners leave none.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "index/cuckooduo/finger_index.h"
#include "index/cuckooduo/planner.h"
#include "index/cuckooduo/slot.h"

namespace farpool::cuckooduo {

struct Rebuilt {
  FingerIndex index;
  std::uint64_t next_version = 1;
  // What the next owner WRITEs, in this order, before it serves; it may die in between. No pair has to be READ: copies
  // are in the bytes that the index was built from.
  std::vector<Effect> repairs;
  std::uint64_t torn = 0, older = 0, misplaced = 0;  // slots
};

// Says whether two whole slots whose keys have the same hash have the same key. It is asked only if one of them has a
// pointer: then somebody has to READ the extent.
using SameKey = std::function<bool(const Slot&, const Slot&)>;

// `corrupt`: more pairs are misplaced than the stash has room for, so that others than owners have written.
base::Result<Rebuilt> rebuild(const Shape& shape, std::uint64_t salt, const base::HashSecret& secret, base::Bytes vault,
                              const SameKey& same_key);

// Fills the beginning of a slot with what an effect WRITEs that copies or clears, and returns how many bytes that are.
// `from`: the whole slot that is copied.
inline std::uint64_t put_effect(base::MutableBytes into, const Effect& effect, const Slot& from) {
  if (effect.kind == Effect::Kind::copy) return put_copy(into, effect.place, effect.version, from);
  std::memset(into.data(), 0, kClearedBytes);
  return kClearedBytes;
}

}  // namespace farpool::cuckooduo
