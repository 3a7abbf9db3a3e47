// SPDX-License-Identifier: Apache-2.0
// The segments of the heap in a memory node: which client has which, by its ledger, and what their headers and bitmaps
// in the memory say. Serves the CALLs that are about segments. It sees no sessions, and has no clock.
//
// Only reads the free bitmaps of segments with an owner; formats memory that nobody holds.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "layout/calls.h"
#include "layout/geometry.h"
#include "node/segment_ledger.h"
#include "node/segment_walk.h"

namespace farpool::node {

class Segments {
 public:
  // `lease`: how long clients hear of a shortage.
  Segments(const layout::Geometry& geometry, base::MutableBytes memory, base::Nanos lease);
  Segments(const Segments&) = delete;

  struct Caller {
    std::uint64_t session = 0;
    std::uint64_t incarnation = 0;  // of the client
  };
  struct Moment {
    base::Nanos now = 0;
    std::uint64_t era = 0;
    std::uint64_t safe_era = 0;
  };

  // Says whether a client may ask for so many segments of this class.
  bool is_possible(const layout::AllocateSegmentsRequest& request) const;
  layout::AllocateSegmentsReply grant(const Caller& caller, const layout::AllocateSegmentsRequest& request,
                                      const Moment& at);
  layout::AdoptSegmentReply bequeath(const Caller& caller, const layout::AdoptSegmentRequest& request);
  layout::ReturnSegmentsReply take_back(const Caller& caller, const layout::ReturnSegmentsRequest& request,
                                        std::uint64_t era);
  // Puts orphans that have become empty to rest, and frees what has rested since before the safe era.
  void settle(const Moment& at);
  layout::Pressure pressure(base::Nanos now) const;
  // Returns the stretch that is being cleared for a run which was refused.
  layout::Stretch cleared(base::Nanos now) const;

  // Takes over what an earlier life of the memory left of a segment. If it is known what entries point to, marks
  // everything else free.
  void take_up(const FoundSegment& found, bool in_use_is_known);
  // Notes that all segments may have been written to: each is zeroed before it is handed out.
  void all_written() { written_.assign(geometry_.segments, true); }

  SegmentLedger& ledger() { return ledger_; }
  const SegmentLedger& ledger() const { return ledger_; }
  std::uint64_t refusals() const { return refusals_; }
  // Returns about how many bytes are in blocks that entries point to, as if all keys were alike. The rest of the
  // handed-out memory lies free in clients' hands.
  std::uint64_t used(std::uint64_t keys, std::uint64_t bytes) const;

 private:
  std::byte* segment(std::uint64_t index) const {
    return memory_.data() + geometry_.at(layout::kHeap).offset + index * geometry_.segment_bytes;
  }
  void write_header(std::uint64_t first, const Caller& owner, std::uint64_t size_class, std::uint64_t run);
  void mark_all_free(std::uint64_t first, std::uint64_t run);
  void clear_headers(std::uint64_t first, std::uint64_t count);
  void zero(std::uint64_t first, std::uint64_t count);
  // `kept`: segments that the request may not take.
  void look_for_stretch(std::uint64_t count, std::uint64_t kept, base::Nanos now);
  std::uint64_t free_blocks(std::uint64_t first, std::uint64_t size_class) const;

  const layout::Geometry geometry_;
  const base::MutableBytes memory_;
  const base::Nanos lease_;
  const std::uint64_t largest_class_;  // of blocks that share a segment
  SegmentLedger ledger_;
  std::vector<bool> written_;  // segments that were handed out before
  const SegmentLedger::FreeBlocks free_blocks_;
  base::Nanos clearing_since_ = 0, cleared_until_ = 0;
  base::Nanos scarce_until_ = 0, spent_until_ = 0, dry_until_ = 0;
  std::uint64_t refusals_ = 0;
};

}  // namespace farpool::node
