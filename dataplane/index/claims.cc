// SPDX-License-Identifier: Apache-2.0
#include "index/claims.h"

#include <cstring>

#include "layout/operation_slot.h"
#include "layout/regions.h"

namespace farpool::index {

void free_claims(const layout::Geometry& geometry, base::MutableBytes memory) {
  const auto region = [&](layout::RegionId id) {
    return memory.subspan(geometry.at(id).offset, geometry.at(id).bytes);
  };
  for (const layout::RegionId id : {layout::kLocks, layout::kLeases}) {
    std::memset(region(id).data(), 0, region(id).size());
  }
  const base::MutableBytes slots = region(layout::kSlots);
  for (std::uint64_t at = 0; at + sizeof(layout::OperationSlot) <= slots.size(); at += sizeof(layout::OperationSlot)) {
    base::store(slots.data() + at + layout::kSlotHolder.offset, std::uint64_t{0});
  }
}

}  // namespace farpool::index
