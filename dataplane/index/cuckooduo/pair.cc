// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/pair.h"

#include <array>
#include <string>
#include <utility>

#include "layout/extent.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "session/trips.h"

namespace farpool::cuckooduo {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using task::Task;

std::uint64_t block_bytes_for(std::uint64_t key_bytes, std::uint64_t value_bytes) {
  return base::round_up(layout::extent_bytes(key_bytes, value_bytes), layout::kBlockUnit);
}

Task<Result<Extent>> read_extent_of(session::Session& session, const Slot& slot, Nanos deadline, Cost& cost) {
  const std::uint64_t offset = layout::block_offset(slot.block), bytes = slot.units * layout::kBlockUnit;
  const std::uint64_t heap = session.region_bytes(layout::kHeap);
  if (offset > heap || bytes > heap - offset) {
    co_return Status(Code::corrupt, "a slot of the vault points to unit " + std::to_string(slot.block) +
                                        ", which is not in the heap: restore the table");
  }
  Extent extent;
  extent.bytes = session.port().buffer(bytes);
  const std::array chain{Op::read({layout::kHeap, offset}, extent.bytes.first(bytes))};
  const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
  if (outcome.fate != Fate::done) {
    co_return session::gone(session, Code::unavailable, "the extent of a pair could not be read");
  }
  if (const auto whole = layout::read_extent(extent.bytes.first(bytes), slot.block)) {
    extent.whole = true;
    extent.key = whole->key;
    extent.value = whole->value;
  }
  co_return extent;
}

}  // namespace farpool::cuckooduo
