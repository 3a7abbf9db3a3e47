// SPDX-License-Identifier: Apache-2.0
// Which client has which segments of the heap. Pure bookkeeping: it sees neither memory nor sessions.
//
// A segment, or a run of them, is in one of these states:
//
//   free       nobody has it
//   owned      by a session
//   orphan     its owner gave it up while blocks in it live on, and has marked everything else in it free
//   dead       the same, but the marks may be incomplete: its owner died, or a client that had unlinked blocks in it
//   resting    it was given back whole, and waits until no session of an older era can still read it
//   set aside  it is damaged
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "layout/calls.h"

namespace farpool::node {

class SegmentLedger {
 public:
  explicit SegmentLedger(std::uint64_t segments);

  // Grants contiguous free segments. A single segment comes from the smallest hole, so that it does not break up room
  // for runs. A run comes from the far end of the last hole that holds it, or as near to that end as leaves room beside
  // it for the most further runs of its length. The free segments in the stretch that is being cleared go to runs of
  // its length, unless `anywhere`.
  std::optional<std::uint64_t> grant(std::uint64_t count, std::uint64_t size_class, std::uint64_t session,
                                     bool anywhere = false);
  // Hands over a segment of a class in which `has_room` finds blocks marked free: an orphan, otherwise a dead client's,
  // where marks are certain. Looks at a bounded number of each, and at others the next time.
  struct Adopted {
    std::uint64_t first = 0;
    bool doubted = false;  // a dead client's: what else in it is free is still unknown
    friend bool operator==(const Adopted&, const Adopted&) = default;
  };
  std::optional<Adopted> adopt(std::uint64_t size_class, std::uint64_t session,
                               const std::function<bool(std::uint64_t first)>& has_room);

  using FreeBlocks = std::function<std::uint64_t(std::uint64_t first, std::uint64_t size_class)>;
  // Hands over an orphan of another class than this one. One in the stretch that is being cleared goes first;
  // otherwise, among some, the one with the smallest part in use by `free_blocks`, if that is at most seven eighths.
  // Looks at a bounded number, and at others the next time.
  std::optional<std::uint64_t> adopt_sparse(std::uint64_t except, std::uint64_t session, std::uint64_t segment_bytes,
                                            const FreeBlocks& free_blocks);

  // --- A stretch of segments that is being cleared for a run

  // Chooses the stretch of so many segments with the least in use, among a bounded number of stretches, and among
  // others the next time. Returns nothing if the contents would not fit elsewhere, by `free_blocks`, with `kept`
  // segments left free. Passes over segments that are stuck; if there is no other stretch, considers them the next
  // time.
  std::optional<layout::Stretch> choose_stretch(std::uint64_t count, std::uint64_t kept, std::uint64_t segment_bytes,
                                                const FreeBlocks& free_blocks);
  // One stretch is cleared at a time. It ends when a run is granted in it.
  void clear(const layout::Stretch& stretch, std::uint64_t segment_bytes, const FreeBlocks& free_blocks);
  // Ends it without a run. If nothing in it has come free meanwhile, what is in use there is stuck.
  void end_clearing(std::uint64_t segment_bytes, const FreeBlocks& free_blocks);
  const layout::Stretch& cleared() const { return cleared_; }

  // Makes the segments of a session that has ended the dead's. Returns how many.
  std::uint64_t bury(std::uint64_t session);
  // Records that a session has ended without a goodbye: a block that it unlinked may not be marked free, wherever it
  // lies. From now on, orphans are the dead's, and so is any segment that was granted before now and is given up.
  void doubt();
  // Hands over a segment, or run, of the dead: one of that size if there is one, otherwise any.
  struct Inherited {
    std::uint64_t first = 0, run = 0, size_class = 0;
  };
  std::optional<Inherited> inherit(std::uint64_t size_class, std::uint64_t count, std::uint64_t session);

  // Returns how many segments a session that has ended left which no client has taken over.
  std::uint64_t left_by(std::uint64_t session) const;
  // Returns how many sessions have ended without a goodbye.
  std::uint64_t deaths() const { return deaths_; }

  // Returns false, and does nothing, unless exactly these were granted to the session at `first`.
  bool give_back(std::uint64_t first, std::uint64_t count, std::uint64_t session, std::uint64_t era);
  bool orphan(std::uint64_t first, std::uint64_t count, std::uint64_t session);

  // Puts orphans for which `wholly_free` holds to rest. Looks at a bounded number of them. Returns how many rest.
  std::size_t rest_empty_orphans(std::uint64_t era,
                                 const std::function<bool(std::uint64_t first, std::uint64_t size_class)>& wholly_free);
  // Takes over what an earlier life of the node left, from segments that are still free in this ledger: an orphan, or a
  // segment that is set aside.
  void restore_orphan(std::uint64_t first, std::uint64_t count, std::uint64_t size_class);
  void set_aside(std::uint64_t first, std::uint64_t count);
  // Frees what has rested since before the safe era, and reports each run before it is free. Returns how many segments
  // became free.
  std::uint64_t settle(std::uint64_t safe_era,
                       const std::function<void(std::uint64_t first, std::uint64_t count)>& freed = {});

  struct Counts {
    std::uint64_t free = 0, owned = 0, orphaned = 0, dead = 0, resting = 0, damaged = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  const Counts& counts() const { return counts_; }
  // Returns the segments that are or were handed out, by size class.
  std::map<std::uint64_t, Counts> counts_by_class() const;
  std::uint64_t largest_hole() const;
  std::uint64_t size_class_of(std::uint64_t first) const { return segments_[first].size_class; }
  std::uint64_t run_of(std::uint64_t first) const { return segments_[first].run; }

 private:
  enum class State : std::uint8_t { free, owned, orphan, dead, resting, damaged, rest_of_run };
  struct Segment {
    State state = State::free;
    std::uint8_t size_class = 0;
    std::uint32_t run = 0;
    std::uint64_t session = 0;  // its owner, or the session that left it
    std::uint64_t deaths = 0;   // before the session got it; none: it was doubted before
    bool stuck = false;         // nothing came free while a stretch with it was being cleared
  };
  struct Resting {
    std::uint64_t era, first, count;
  };
  void add_hole(std::uint64_t first, std::uint64_t count);
  void take_from_hole(std::map<std::uint64_t, std::uint64_t>::iterator hole, std::uint64_t first, std::uint64_t count);
  bool is_granted(std::uint64_t first, std::uint64_t count, std::uint64_t session) const;
  void rest(std::uint64_t first, std::uint64_t count, std::uint64_t era);
  void own(std::uint64_t first, std::uint64_t session);
  void to_the_dead(std::uint64_t first, std::uint64_t left_by);
  void from_the_dead(std::uint64_t first);
  // A segment or a run, as the search for a stretch sees it.
  struct Part {
    std::uint64_t first = 0, length = 1, size_class = 0;
    bool stays = false;  // no client can empty it, or it has nowhere to go
    bool stuck = false;  // clients have not emptied it
    bool free = false;
    std::uint64_t used = 0, room = 0, blocks = 1;
  };
  // Says whether it stays in place when a stretch of so many segments is cleared.
  static bool stays(const Segment& segment, std::uint64_t count);
  std::vector<Part> parts_of(std::uint64_t begin, std::uint64_t end, std::uint64_t count, std::uint64_t segment_bytes,
                             const FreeBlocks& free_blocks) const;
  // Returns the first part, and the one behind the last; {0, 0} if there is none.
  // `packed`: considers only stretches beside which the most further ones have room: runs of the same length cannot
  // make room for each other later.
  static std::pair<std::size_t, std::size_t> least_used(const std::vector<Part>& parts, std::uint64_t count,
                                                        bool packed);
  bool fit_elsewhere(const std::vector<Part>& parts, std::pair<std::size_t, std::size_t> inside,
                     const layout::Stretch& stretch, std::uint64_t kept, std::uint64_t segment_bytes) const;
  // Returns how much of the stretch that is being cleared is in use, in segments.
  double used_in_stretch(std::uint64_t segment_bytes, const FreeBlocks& free_blocks) const;
  std::optional<std::uint64_t> adopt_in_stretch(std::uint64_t except, std::uint64_t session);
  std::optional<std::uint64_t> find_free(std::uint64_t count, bool anywhere) const;
  // Returns the place of a run in a hole beside which the most further runs of its length have room, once the contents
  // of the adjacent segments have moved.
  std::optional<std::uint64_t> find_packed(std::uint64_t count) const;
  std::uint64_t begin_of(std::uint64_t index) const;
  std::map<std::uint64_t, std::uint64_t>::iterator hole_of(std::uint64_t first, std::uint64_t count);

  std::vector<Segment> segments_;
  std::map<std::uint64_t, std::uint64_t> holes_;                                       // first -> count, never adjacent
  std::map<std::uint64_t, std::deque<std::uint64_t>> orphans_;                         // by size class
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::deque<std::uint64_t>> dead_;  // by size class and run
  std::map<std::uint64_t, std::uint64_t> left_by_;                                     // session -> segments of dead_
  std::deque<Resting> resting_;                                                        // oldest era first
  std::uint64_t deaths_ = 0;
  layout::Stretch cleared_;
  double used_before_ = 0;                // in it, when it was chosen
  std::uint64_t looked_for_stretch_ = 0;  // where the next look for a stretch begins
  Counts counts_;
};

}  // namespace farpool::node
