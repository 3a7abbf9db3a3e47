// SPDX-License-Identifier: Apache-2.0
// Who has which segments of the heap. Pure bookkeeping: it sees neither memory nor sessions.
//
// A segment, or a run of them, is free; owned by a session; an orphan, given up by its owner while blocks in it live on
// and with all that is free in it marked so; of the dead, where that is not certain; resting, given back whole and
// waiting until no session of an older era can still read it; or set aside, because it is damaged.
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

  // Contiguous free segments. One segment comes from the smallest hole, so that single segments do not break up what
  // runs need; a run from the far end of the last hole that holds it, or as near to that end as leaves room beside it
  // for as many more of its length as may be. What is free in the stretch that is being cleared goes to runs of its
  // length, unless `anywhere`.
  std::optional<std::uint64_t> grant(std::uint64_t count, std::uint64_t size_class, std::uint64_t session,
                                     bool anywhere = false);
  // A segment of a class that, says `has_room`, has blocks marked free: an orphan, or else one of the dead, of which
  // what is marked is certain. Looks at a bounded number of each, others the next time.
  struct Adopted {
    std::uint64_t first = 0;
    bool doubted = false;  // of the dead. What else in it is free nobody has found out yet
    friend bool operator==(const Adopted&, const Adopted&) = default;
  };
  std::optional<Adopted> adopt(std::uint64_t size_class, std::uint64_t session,
                               const std::function<bool(std::uint64_t first)>& has_room);

  using FreeBlocks = std::function<std::uint64_t(std::uint64_t first, std::uint64_t size_class)>;
  // An orphan of another class than this one: one that lies in the stretch that is being cleared; else, of some, the
  // one with the least part in use, of at most seven eighths, as `free_blocks` says. Looks at a bounded number, at
  // others the next time.
  std::optional<std::uint64_t> adopt_sparse(std::uint64_t except, std::uint64_t session, std::uint64_t segment_bytes,
                                            const FreeBlocks& free_blocks);

  // --- A stretch of segments that is cleared for a run

  // Chooses the stretch of so many segments in which the least is in use, of a bounded number of stretches, others the
  // next time. Returns nothing if what is in use there would not fit elsewhere, as far as `free_blocks` says.
  std::optional<layout::Stretch> choose_stretch(std::uint64_t count, std::uint64_t segment_bytes,
                                                const FreeBlocks& free_blocks);
  // There is one at a time. It ends when a run is granted in it.
  void clear(const layout::Stretch& stretch) { cleared_ = stretch; }
  void end_clearing() { cleared_ = {}; }
  const layout::Stretch& cleared() const { return cleared_; }

  // What a session that has ended has not given back is of the dead. Returns how many segments.
  std::uint64_t bury(std::uint64_t session);
  // A session has ended without a goodbye: a block that it unlinked may not be marked free, wherever it lies. Orphans,
  // and whatever is given up that was granted before now, are of the dead from here on.
  void doubt();
  // A segment, or run, of the dead: one of that size if there is one, else any.
  struct Inherited {
    std::uint64_t first = 0, run = 0, size_class = 0;
  };
  std::optional<Inherited> inherit(std::uint64_t size_class, std::uint64_t count, std::uint64_t session);

  // Segments that a session which has ended left, and nobody has taken over.
  std::uint64_t left_by(std::uint64_t session) const;
  // Sessions that have ended without a goodbye.
  std::uint64_t deaths() const { return deaths_; }

  // False, and nothing happens, unless these are exactly what was granted to the session at `first`.
  bool give_back(std::uint64_t first, std::uint64_t count, std::uint64_t session, std::uint64_t era);
  bool orphan(std::uint64_t first, std::uint64_t count, std::uint64_t session);

  // Puts orphans of which `wholly_free` holds to rest. Looks at a bounded number of them. Returns how many.
  std::size_t rest_empty_orphans(std::uint64_t era,
                                 const std::function<bool(std::uint64_t first, std::uint64_t size_class)>& wholly_free);
  // What an earlier life of the node left, of segments that are still free in this ledger: an orphan, or what is never
  // handed out.
  void restore_orphan(std::uint64_t first, std::uint64_t count, std::uint64_t size_class);
  void set_aside(std::uint64_t first, std::uint64_t count);
  // Frees what rests since before the safe era, each run told of before it is free. Returns how many segments became
  // free.
  std::uint64_t settle(std::uint64_t safe_era,
                       const std::function<void(std::uint64_t first, std::uint64_t count)>& freed = {});

  struct Counts {
    std::uint64_t free = 0, owned = 0, orphaned = 0, dead = 0, resting = 0, damaged = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  const Counts& counts() const { return counts_; }
  // Segments by size class: the ones that are handed out or were.
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
    std::uint64_t session = 0;  // that owns it, or left it
    std::uint64_t deaths = 0;   // that there had been when the session got it; none: it is doubted as it was
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
  // A segment or a run, as a look for a stretch sees it.
  struct Part {
    std::uint64_t first = 0, length = 1, size_class = 0;
    bool stays = false;  // nobody can empty it, or it has nowhere to go
    bool free = false;
    std::uint64_t used = 0, room = 0, blocks = 1;
  };
  // Says whether it stays where it is when a stretch of so many segments is cleared.
  static bool stays(const Segment& segment, std::uint64_t count);
  std::vector<Part> parts_of(std::uint64_t begin, std::uint64_t end, std::uint64_t count, std::uint64_t segment_bytes,
                             const FreeBlocks& free_blocks) const;
  // Returns the first part and the one behind the last; none at all if that is the first of all. `packed`: of those
  // beside which as many more have room as may be: runs of the same length cannot make room for each other later.
  static std::pair<std::size_t, std::size_t> least_used(const std::vector<Part>& parts, std::uint64_t count,
                                                        bool packed);
  bool fit_elsewhere(const std::vector<Part>& parts, std::pair<std::size_t, std::size_t> inside,
                     const layout::Stretch& stretch, std::uint64_t segment_bytes) const;
  std::optional<std::uint64_t> adopt_in_stretch(std::uint64_t except, std::uint64_t session);
  std::optional<std::uint64_t> find_free(std::uint64_t count, bool anywhere) const;
  // Returns the place of a run in a hole beside which as many more of its length have room as may be, once what is in
  // the row has been moved.
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
  std::uint64_t looked_for_stretch_ = 0;  // where the next look for a stretch begins
  Counts counts_;
};

}  // namespace farpool::node
