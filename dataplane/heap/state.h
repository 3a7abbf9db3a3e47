// SPDX-License-Identifier: Apache-2.0
// What the heap does with its ledger at a memory node: the ledger decides; the coroutines here post, wait, and tell it
// the result. For the room's own sources.
//
//   heap.cc     blocks for operations, frees, housekeeping
//   refill.cc   how a size class grows and shrinks
//   reclaim.cc  blocks that got lost when clients died
//   compact.cc  empties sparsely used segments into others
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "heap/heap.h"
#include "heap/ledger.h"
#include "layout/calls.h"
#include "session/wait.h"

namespace farpool::heap {

inline constexpr std::size_t kScanSegments = 16;  // bitmaps read in one chain
inline constexpr int kBarrenTicks = 8;            // before an attempt that gained nothing is repeated

enum class Refill {
  got,
  wait,   // blocks of the class are in limbo
  rests,  // segments are, at the memory node
  full,
};

// Tasks that outlive the call that began them hold the state: they are static, and take it as `self`.
struct Heap::State {
  State(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes)
      : session(session),
        ledger(heap_bytes, segment_bytes),
        ready(session.port()),
        swept(session.port()),
        freed(session.port()),
        barren_rest(session.grant().tick / 2) {}

  using Self = const std::shared_ptr<State>&;

  session::Session& session;
  Ledger ledger;
  session::WaitQueue ready;  // for a class that is not busy any more
  session::WaitQueue swept;  // for blocks of the dead
  session::WaitQueue freed;  // for blocks that this client frees itself
  bool released = false;
  fabric::Cost background;

  std::optional<session::EraPin> noted_pin;  // from the first mark that the ledger noted, until all are in the bitmaps
  bool flushing = false;

  References* references = nullptr;
  MakeRoom make_room;
  std::size_t sweeping = 0;
  std::size_t hungry = 0;  // allocations that wait for what the dead have left
  bool looking_through_own = false;
  base::Nanos none_dead_until = 0;  // the memory node has said that no segment waits
  bool emptying = false;
  base::Nanos none_sparse_until = 0;  // emptying segments has gained nothing
  base::Nanos barren_rest;            // how long that is believed the next time
  std::uint64_t emptied = 0;
  std::uint64_t taken_over = 0;
  std::uint64_t reclaimed = 0;

  bool goes_on() const { return session.alive() && !released; }
  base::Status gone() const;
  base::Nanos sweep_deadline() const;
  bool has_room(const SizeClass& size_class, Purpose purpose) const {
    return size_class.has_room(purpose, session.pressure());
  }
  void settle(SizeClass& size_class) { size_class.settle(session.safe_era()); }
  void hurry_in_time(const SizeClass& size_class) {
    if (size_class.needs_era()) session.hurry_eras();
  }

  // --- A class is busy for one task at a time
  void let_go(SizeClass& size_class);
  task::Task<void> hold(SizeClass& size_class);

  // --- Blocks for operations (heap.cc)
  // `patient`: waits until other clients have given up what they can spare.
  task::Task<base::Result<Block>> acquire(Self self, SizeClass& size_class, std::uint64_t bytes, Purpose purpose,
                                          bool patient, base::Nanos deadline, fabric::Cost& cost);
  // Waits until then, or, where room is being made, until this client frees a block: then it returns true.
  task::Task<bool> take_a_step(bool made_up, base::Nanos until);
  task::Task<void> next_era(const SizeClass& size_class, Purpose purpose, base::Nanos deadline);
  void discard(Self self, Block block);
  void free(Self self, std::uint64_t units, std::uint64_t bytes, fabric::Cost& cost);
  static task::Task<void> flush(std::shared_ptr<State> self);

  // --- How a class grows and shrinks, while the caller holds it (refill.cc)
  // Posts FAAs. Returns false if the session has ended.
  task::Task<bool> add_all(std::vector<BitmapAdd> adds, base::Nanos deadline, fabric::Cost& cost);
  // Reads the bitmaps of segments and takes back the marks that others have set: those blocks go into limbo. The bits
  // are gone before a block is handed out again, or its next free would carry into the neighbour's bit.
  task::Task<base::Status> scan(SizeClass& size_class, std::vector<std::uint64_t> firsts, base::Nanos deadline,
                                fabric::Cost& cost);
  task::Task<base::Status> scan_one(SizeClass& size_class, std::uint64_t first, base::Nanos deadline,
                                    fabric::Cost& cost);
  // Scans the next few segments in turn. Returns how many.
  task::Task<base::Result<std::size_t>> scan_some(SizeClass& size_class, base::Nanos deadline, fabric::Cost& cost);
  task::Task<base::Result<layout::AllocateSegmentsReply>> ask_for_segments(const SizeClass& size_class, Purpose purpose,
                                                                           bool in_vain, base::Nanos deadline,
                                                                           fabric::Cost& cost);
  // Adds what the memory node granted. Says whether all of it is free at once.
  bool add_granted(SizeClass& size_class, const layout::AllocateSegmentsReply& granted);
  task::Task<void> give_back(std::uint64_t first, std::uint64_t count, bool orphan, base::Nanos deadline,
                             fabric::Cost& cost);
  // Brings blocks that others have freed, or else a segment from the node. An unhurried refill leaves the class at its
  // size if enough is in limbo. `in_vain`: the caller has been short of blocks for some ticks.
  task::Task<base::Result<Refill>> refill(SizeClass& size_class, Purpose purpose, bool hurried, bool in_vain,
                                          base::Nanos deadline, fabric::Cost& cost);
  // Returns segments that the class can spare to the node; with `all`, every wholly free one. Says whether there were
  // any.
  task::Task<bool> trim(SizeClass& size_class, bool all, base::Nanos deadline, fabric::Cost& cost);
  // Gives segments up with all that this client knows to be free in them.
  task::Task<void> orphan(SizeClass& size_class, std::vector<std::uint64_t> firsts, base::Nanos deadline,
                          fabric::Cost& cost);
  // Gives up, in the background, what this client can do without.
  task::Task<void> orphan_surplus(SizeClass& size_class);
  // Returns wholly free segments of all classes, so that the node can make something else of them.
  task::Task<bool> return_spares(base::Nanos deadline, fabric::Cost& cost);
  // Refills a class that runs low before it is empty, so that operations do not wait. It looks for blocks that others
  // have freed before that, because those take an era to become free.
  void refill_ahead(Self self, SizeClass& size_class);
  static task::Task<void> refill_in_background(std::shared_ptr<State> self, SizeClass& size_class);

  // --- Blocks that got lost (reclaim.cc)
  // Starts to take over segments of the dead if the node may have any. Says whether this client is doing so.
  bool take_over(Self self, const SizeClass* wanted);
  void look_after_own(Self self);
  static task::Task<void> sweep(std::shared_ptr<State> self, std::uint64_t size_class, std::uint64_t run);
  // Asks the node for a segment of the dead, or an orphan.
  task::Task<std::optional<layout::AdoptSegmentReply>> inherit(std::uint64_t size_class, std::uint64_t run,
                                                               bool& orphan);
  // Looks through its own segments after each death, one after the other and slowly, because nobody waits for it.
  static task::Task<void> look_through_own(std::shared_ptr<State> self);
  task::Task<void> look_through(SizeClass& size_class, std::uint64_t first, bool hurried);
  // Asks the index about each doubted block of the segment. Returns false if the segment has been given up meanwhile,
  // or the heap stops.
  task::Task<bool> ask_index(SizeClass& size_class, Segment::Life life, bool hurried);
  task::Task<bool> ask_about(SizeClass& size_class, Segment::Life life, std::uint64_t from, std::uint64_t count,
                             base::MutableBytes piece);
  // Waits until the bitmaps hold every mark that live clients make for blocks unlinked by now.
  task::Task<void> outlast_marks();
  task::Task<bool> used(std::uint64_t units, base::Bytes block);
  task::Task<bool> read(std::uint64_t offset, base::MutableBytes into);

  // --- Segments of other classes are emptied (compact.cc)
  // Says whether this client is emptying segments, for this class or another.
  bool empty_others(Self self, const SizeClass& wanted);
  static task::Task<void> empty_in_background(std::shared_ptr<State> self, std::uint64_t wanted);
  task::Task<void> empty_some(std::uint64_t wanted, base::Nanos deadline);
  // Adopts sparse orphans of other classes, which may be useless to every client in their present class.
  task::Task<void> gather(std::uint64_t wanted, base::Nanos deadline);
  task::Task<void> add_fresh(SizeClass& size_class, base::Nanos deadline);
  // Waits until what is in limbo now is free.
  task::Task<void> pass_eras(base::Nanos deadline);
  // Rewrites the pairs in these segments, as far as the deadline lets it. Returns false if the heap stops.
  task::Task<bool> rewrite(const std::vector<Ledger::Sparse>& chosen, base::Nanos deadline);
  // Returns the segments that become wholly free; their bitmaps tell what others have freed there.
  task::Task<void> return_emptied(std::vector<Ledger::Sparse>& chosen, base::Nanos deadline);
};

}  // namespace farpool::heap
