// SPDX-License-Identifier: Apache-2.0
// What the operations of one table share. Internal to the room.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "directory/cache.h"
#include "directory/splitter.h"
#include "index/clearing.h"
#include "index/marks.h"
#include "index/operation.h"
#include "index/race/layout.h"
#include "index/race/locate.h"
#include "index/race/table.h"
#include "index/tally.h"
#include "layout/regions.h"
#include "session/wait.h"

namespace farpool::race {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using fabric::Remote;
using index::Backoff;
using index::Chain;
using task::Task;

class Groups;
class Relocation;

struct Table::State final : session::Repairable, heap::References, index::Stretches {
  // Uses a heap of its own if there is no other.
  State(session::Session& session, heap::Heap* other_heap, const layout::Geometry& geometry, std::uint32_t table_id);
  ~State() override;

  session::Session& session;
  const std::unique_ptr<heap::Heap> own_heap;
  heap::Heap& heap;
  const layout::Geometry geometry;
  const std::uint32_t table_id;  // of the map
  Marks marks;
  index::RowMarks row_marks;
  index::Clearing clearing;
  index::Tally tally;
  session::Repairer repairer;
  directory::Cache directory;
  std::unique_ptr<Groups> groups;
  directory::Splitter splitter;
  index::Move move;  // the pool's latest, as far as this client knows
  std::unique_ptr<Relocation> relocation;

  Task<Result<std::optional<std::string>>> finish(const layout::OperationSlot& slot, Nanos deadline,
                                                  Cost& cost) override;
  Task<Result<std::vector<bool>>> empty(std::span<const std::uint64_t> marks, Nanos deadline, Cost& cost) override;
  Task<Result<bool>> refers(std::uint64_t units, base::Bytes extent, Nanos deadline, Cost& cost) override;
  Task<Status> rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes, Nanos deadline,
                       Cost& cost) override;

  Task<Status> take_away(std::uint64_t offset, Slot tentative, Nanos deadline, Cost& cost);

  fabric::Port& port() { return session.port(); }
  Nanos now() { return session.port().now(); }
  Nanos failure_timeout() { return session.grant().failure_timeout; }
  // Returns how long a client waits before it clears another client's tentative slot that is in its way.
  Nanos patience() { return failure_timeout() / 16; }

  // Returns the offset of a group of a table, in the table region.
  std::uint64_t group_offset(std::uint64_t table, std::uint64_t group) const {
    return (table * geometry.rows_per_table() + group) * kGroupBytes;
  }
  Remote block_at(std::uint64_t units) const { return {layout::kHeap, layout::block_offset(units)}; }
  std::uint64_t heap_bytes() const { return geometry.at(layout::kHeap).bytes; }
  // Says whether a slot points into the heap; a READ beyond it would end the session.
  bool in_heap(Slot slot) const {
    return slot.block() <= heap_bytes() / layout::kBlockUnit &&
           slot.bytes() <= heap_bytes() - layout::block_offset(slot.block());
  }
  Status gone(Code otherwise, const std::string& what) { return index::gone(session, otherwise, what); }
};

// Measures how long a word has stood in its place, as far as one operation has seen.
class Stillness {
 public:
  Nanos since(std::uint64_t offset, std::uint64_t word, Nanos now) {
    if (offset != offset_ || word != word_ || word == 0) {
      offset_ = offset;
      word_ = word;
      since_ = now;
    }
    return now - since_;
  }

 private:
  std::uint64_t offset_ = 0;
  std::uint64_t word_ = 0;
  Nanos since_ = 0;
};

}  // namespace farpool::race
