// SPDX-License-Identifier: Apache-2.0
// Some of the keys of a table or of a pool: what one step of a scan finds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace farpool::index {

// Bounds the positions of every protocol's table: a cursor of a pool has this many bits for one (client/cursor.h).
inline constexpr std::uint64_t kPositionBits = 35;

// A scan begins at 0 and goes on from `next` until that is 0. Nobody remembers it meanwhile: a scan may go on from any
// number, at any time. A key that exists from the first step's beginning to the last one's end is on a page; a key that
// does not exist at any time in between is on none; any key may be there twice.
struct Page {
  std::vector<std::string> keys;  // in no order, perhaps none
  std::uint64_t next = 0;         // 0: that was all
};

}  // namespace farpool::index
