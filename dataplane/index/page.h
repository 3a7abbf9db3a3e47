// SPDX-License-Identifier: Apache-2.0
// Some of the keys of a table or of a pool: the result of one step of a scan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "index/stored.h"

namespace farpool::index {

// Bounds the positions of every protocol's table: a pool's cursor has so many bits for a position (client/cursor.h).
inline constexpr std::uint64_t kPositionBits = 35;

// A scan begins at 0 and continues from `next` until that is 0. No state is kept between steps: a scan may continue
// from any number, at any time. A key that exists from the beginning of the first step to the end of the last is on a
// page; a key that exists at no time in between is on none; any key may come twice.
struct Page {
  std::vector<std::string> keys;  // in no order, perhaps none
  std::uint64_t next = 0;         // 0: that was all
  // The keys whose values expire, by their numbers in `keys`, in order, and when (index/stored.h). A pool's page has
  // none.
  struct Expiry {
    std::size_t key = 0;
    Millis at = kNoExpiry;
  };
  std::vector<Expiry> expiries;

  void add(std::string key, Millis expires) {
    if (expires != kNoExpiry) expiries.push_back({keys.size(), expires});
    keys.push_back(std::move(key));
  }
};

}  // namespace farpool::index
