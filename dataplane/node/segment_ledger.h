// SPDX-License-Identifier: Apache-2.0
// Who has which segments of the heap. Pure bookkeeping: it sees neither memory nor sessions.
//
// A segment, or a run of them, is free; owned by a session; an orphan, given up by its owner while blocks in it live
// on; or resting, given back whole and waiting until no session of an older era can still read it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace farpool::node {

class SegmentLedger {
 public:
  explicit SegmentLedger(std::uint64_t segments);

  // Contiguous free segments. One segment comes from the smallest hole, a run from the far end of the last hole that
  // holds it, so that single segments do not break up what runs need.
  std::optional<std::uint64_t> grant(std::uint64_t count, std::uint64_t size_class, std::uint64_t session);
  // An orphan of a class that, says `has_room`, has free blocks. Looks at a bounded number of orphans, others the next
  // time.
  std::optional<std::uint64_t> adopt(std::uint64_t size_class, std::uint64_t session,
                                     const std::function<bool(std::uint64_t first)>& has_room);

  // False, and nothing happens, unless these are exactly what was granted to the session at `first`.
  bool give_back(std::uint64_t first, std::uint64_t count, std::uint64_t session, std::uint64_t era);
  bool orphan(std::uint64_t first, std::uint64_t count, std::uint64_t session);

  // Puts orphans of which `wholly_free` holds to rest. Looks at a bounded number of them. Returns how many.
  std::size_t rest_empty_orphans(std::uint64_t era,
                                 const std::function<bool(std::uint64_t first, std::uint64_t size_class)>& wholly_free);
  // Frees what rests since before the safe era. Returns how many segments became free.
  std::uint64_t settle(std::uint64_t safe_era);

  struct Counts {
    std::uint64_t free = 0, owned = 0, orphaned = 0, resting = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  const Counts& counts() const { return counts_; }
  std::uint64_t largest_hole() const;
  std::uint64_t size_class_of(std::uint64_t first) const { return segments_[first].size_class; }

 private:
  enum class State : std::uint8_t { free, owned, orphan, resting, rest_of_run };
  struct Segment {
    State state = State::free;
    std::uint8_t size_class = 0;
    std::uint32_t run = 0;
    std::uint64_t session = 0;
  };
  struct Resting {
    std::uint64_t era, first, count;
  };
  void add_hole(std::uint64_t first, std::uint64_t count);
  void take_from_hole(std::map<std::uint64_t, std::uint64_t>::iterator hole, std::uint64_t first, std::uint64_t count);
  bool is_granted(std::uint64_t first, std::uint64_t count, std::uint64_t session) const;
  void rest(std::uint64_t first, std::uint64_t count, std::uint64_t era);

  std::vector<Segment> segments_;
  std::map<std::uint64_t, std::uint64_t> holes_;                // first -> count, never adjacent
  std::map<std::uint64_t, std::deque<std::uint64_t>> orphans_;  // by size class
  std::deque<Resting> resting_;                                 // oldest era first
  Counts counts_;
};

}  // namespace farpool::node
