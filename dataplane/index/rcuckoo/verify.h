// SPDX-License-Identifier: Apache-2.0
// What must hold of a table's bytes when nobody changes it, checked over an image of the memory. For tests, simulation
// and offline checkers; includes no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "layout/geometry.h"

namespace farpool::rcuckoo {

// One key, where it lies. The views are into the image.
struct Sighting {
  std::string_view key;
  std::string_view value;
  std::uint64_t row = 0;
  std::uint64_t slot = 0;
  std::uint64_t block = 0;        // in units, if it has an extent
  std::uint64_t block_bytes = 0;  // 0: in place
};

struct Report {
  std::uint64_t rows = 0;
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of keys and values
  // Each says which place is wrong and how; never key or value bytes.
  std::vector<std::string> defects;
};

// Every row is whole; every entry is well formed, lies in a row of its key, and its extent is whole and of its hash; no
// key occurs twice, and no block. `table` and `heap` are the regions' bytes.
Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap, const base::HashSecret& seed,
              const std::function<void(const Sighting&)>& visit = {});

}  // namespace farpool::rcuckoo
