// SPDX-License-Identifier: Apache-2.0
// The segments of the heap as a memory node has them: who has which, in its ledger, and what their headers and bitmaps
// in the memory say of it. Serves the CALLs that are about segments. It sees no sessions, and has no clock.
//
// Free bitmaps of segments that somebody owns are only read here; memory that nobody holds is formatted.
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
  // `lease`: for how long clients are told of a shortage.
  Segments(const layout::Geometry& geometry, base::MutableBytes memory, base::Nanos lease);

  struct Caller {
    std::uint64_t session = 0;
    std::uint64_t incarnation = 0;  // of the client
  };
  struct Moment {
    base::Nanos now = 0;
    std::uint64_t era = 0;
    std::uint64_t safe_era = 0;
  };

  // Says whether segments of this class may be asked for in this number.
  bool is_possible(const layout::AllocateSegmentsRequest& request) const;
  layout::AllocateSegmentsReply grant(const Caller& caller, const layout::AllocateSegmentsRequest& request,
                                      const Moment& at);
  layout::AdoptSegmentReply bequeath(const Caller& caller, const layout::AdoptSegmentRequest& request);
  layout::ReturnSegmentsReply take_back(const Caller& caller, const layout::ReturnSegmentsRequest& request,
                                        std::uint64_t era);
  // Orphans that have become empty rest, and what rests since before the safe era is free.
  void settle(const Moment& at);
  layout::Pressure pressure(base::Nanos now) const;
  // Returns the stretch that is being cleared for a run which was refused.
  layout::Stretch cleared(base::Nanos now) const;

  // Takes over what an earlier life of the memory left of a segment. What no entry points to is marked free, where it
  // is known what entries point to.
  void take_up(const FoundSegment& found, bool in_use_is_known);
  // All segments may have been written to: each is zeroed before it is handed out.
  void all_written() { written_.assign(geometry_.segments, true); }

  SegmentLedger& ledger() { return ledger_; }
  const SegmentLedger& ledger() const { return ledger_; }
  std::uint64_t refusals() const { return refusals_; }
  // Returns about how many bytes blocks have that entries point to, as if all keys were alike. What else is handed out
  // lies free in clients' hands.
  std::uint64_t used(std::uint64_t keys, std::uint64_t bytes) const;

 private:
  std::byte* segment(std::uint64_t index) const {
    return memory_.data() + geometry_.at(layout::kHeap).offset + index * geometry_.segment_bytes;
  }
  void write_header(std::uint64_t first, const Caller& owner, std::uint64_t size_class, std::uint64_t run);
  void mark_all_free(std::uint64_t first, std::uint64_t run);
  void clear_headers(std::uint64_t first, std::uint64_t count);
  void zero(std::uint64_t first, std::uint64_t count);
  void look_for_stretch(std::uint64_t count, base::Nanos now);
  std::uint64_t free_blocks(std::uint64_t first, std::uint64_t size_class) const;

  const layout::Geometry geometry_;
  const base::MutableBytes memory_;
  const base::Nanos lease_;
  const std::uint64_t largest_class_;  // of blocks that share a segment
  SegmentLedger ledger_;
  std::vector<bool> written_;  // segments that were handed out before
  base::Nanos clearing_since_ = 0, cleared_until_ = 0;
  base::Nanos scarce_until_ = 0, spent_until_ = 0, dry_until_ = 0;
  std::uint64_t refusals_ = 0;
};

}  // namespace farpool::node
