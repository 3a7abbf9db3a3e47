// SPDX-License-Identifier: Apache-2.0
// Where a CuckooDuo table lies in a memory node, and what its clients hash keys with. Owners and replicas of a table
// have the same site.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "base/result.h"
#include "fabric/fabric.h"
#include "index/cuckooduo/record.h"
#include "index/cuckooduo/shape.h"
#include "layout/regions.h"

namespace farpool::cuckooduo {

inline constexpr std::uint32_t kMostRecords = 4096;

struct Site {
  Shape shape;
  std::uint64_t salt = 0;     // of the displacement of buckets; the table's own
  base::HashSecret secret;    // of the hashes of keys
  std::uint64_t tables = 1;   // of the memory node's directory
  std::uint64_t table = 0;    // this one's number there
  std::uint32_t records = 0;  // behind the vault: requests of other clients that owners may have at once

  // Returns where the slot of a place lies.
  fabric::Remote at(Place place) const { return {layout::kTable, place * shape.slot_bytes}; }
  // Returns where a record lies (record.h).
  fabric::Remote record(std::uint32_t number) const {
    return {layout::kTable, shape.vault_bytes() + number * Record::kBytes};
  }
  // Returns the bytes of the vault and the records.
  std::uint64_t bytes() const { return shape.vault_bytes() + records * Record::kBytes; }
};

// Returns the error for a memory node whose regions cannot have the table, or ok. `table_bytes`: of the table region.
base::Status check_site(const Site& site, std::uint64_t table_bytes);

}  // namespace farpool::cuckooduo
