// SPDX-License-Identifier: Apache-2.0
// What a client knows of its part of the heap: which segments it owns, and what it may do with their blocks. Pure
// bookkeeping: it posts nothing, waits for nothing and reads no clock, so equal calls have equal results.
//
// A block of an owned segment is
//   free     it may be handed out
//   limbo    it is free, but an operation of an older era may still read it
//   out      it was handed out, and nobody has said yet whether an entry points to it
//   in use   anything else, as far as this client knows
//
// Eras are the session's, from its last tick: a block found free when era() was e is reused once safe_era() is beyond
// e + 1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/queue.h"
#include "base/time.h"
#include "heap/block.h"
#include "layout/calls.h"
#include "layout/segment.h"

namespace farpool::heap {

inline constexpr std::size_t kRanks = 32;    // steps in which segments are told apart by how much of them is in use
inline constexpr std::size_t kEmptied = 16;  // segments that are chosen to be emptied, at most
inline constexpr std::size_t kMostSpentSurplus = 16;  // segments that are given up at a time when none is left

// The era that a block found free now belongs to. The node's era is at most one above what the last tick told: it
// advances only when every live session, this one among them, has published the era before.
constexpr std::uint64_t limbo_era(std::uint64_t era) { return era + 1; }

// What an FAA adds to a word of a bitmap in the heap region.
struct BitmapAdd {
  std::uint64_t offset = 0;
  std::uint64_t bits = 0;
  friend bool operator==(const BitmapAdd&, const BitmapAdd&) = default;
};

// A segment of blocks that this client owns, or a run, which is a segment of one block.
class Segment {
 public:
  // From when this client gets a segment until it gives it up. A task that has waited finds with it the segment that it
  // began with: meanwhile this client may have given the segment up, and got the same one again.
  struct Life {
    std::uint64_t first = 0;
    std::uint64_t number = 0;
  };

  Segment(Life life, std::uint64_t bitmap_words)
      : life_(life), free_(bitmap_words), limbo_(bitmap_words), out_(bitmap_words), doubted_(bitmap_words) {}
  Segment(const Segment&) = delete;

  std::uint64_t first() const { return life_.first; }  // index in the heap region
  Life life() const { return life_; }
  std::uint64_t free_count() const { return free_count_; }
  std::uint64_t limbo_count() const { return limbo_count_; }
  std::uint64_t unused() const { return free_count_ + limbo_count_; }
  // Returns the number of blocks that were handed out and are not yet published or discarded.
  std::uint64_t out_count() const { return out_count_; }
  bool is_unused(std::uint64_t block) const { return bit(free_, block) || bit(limbo_, block); }
  // Says whether a look for lost blocks is under way here and this block may be lost.
  bool is_doubted(std::uint64_t block) const { return bit(doubted_, block); }
  bool is_looked_through() const { return looked_through_; }
  bool is_emptied() const { return emptied_; }
  // Returns one more than the deaths up to which nothing is lost in it; 0: nobody knows.
  std::uint64_t examined() const { return examined_; }

 private:
  friend class SizeClass;
  static bool bit(const std::vector<std::uint64_t>& of, std::uint64_t block) {
    return (of[block / 64] >> (block % 64) & 1) != 0;
  }

  const Life life_;
  // A bit for each block.
  std::vector<std::uint64_t> free_, limbo_, out_;
  std::vector<std::uint64_t> doubted_;  // may be lost, less what has come to be known as free since
  std::uint64_t free_count_ = 0;
  std::uint64_t limbo_count_ = 0;
  std::uint64_t out_count_ = 0;
  std::size_t hint_ = 0;  // no word of `free_` before it has a bit
  // In the list of its rank, if it has free blocks.
  std::size_t rank_ = kRanks;
  Segment* previous_ = nullptr;
  Segment* next_ = nullptr;
  bool looked_through_ = false;  // just now
  bool emptied_ = false;         // just now: what is free in it is not handed out
  std::uint64_t examined_ = 0;
};

// The segments of one size of block.
class SizeClass {
 public:
  SizeClass(std::uint64_t id, std::uint64_t run, std::uint64_t segment_bytes);
  SizeClass(const SizeClass&) = delete;

  const std::uint64_t id;
  const std::uint64_t run;  // segments that one of this class takes
  const layout::SegmentShape shape;

  // The tasks that work on the class share these.
  std::size_t waiting = 0;  // requests that wait for a block
  // Held by the task that scans, grows or shrinks the class: only one task takes a bitmap's marks back, and none does
  // while its segment is being given away.
  bool busy = false;
  base::Nanos quiet_until = 0;  // no refill in the background before
  // When the heap was found full, for either purpose.
  struct Full {
    bool found = false;
    base::Nanos tried_until = 0;     // not tried again before
    base::Nanos believed_until = 0;  // unless it has been found again
    std::int64_t tried_after = 0;    // tried again earlier once this client has freed so much
  };
  Full& full_for(Purpose purpose) { return full_[static_cast<std::size_t>(purpose)]; }

  // --- Segments

  enum class Origin : std::uint8_t {
    fresh,   // all of it is free
    orphan,  // its bitmap says what is free
    dead,    // its bitmap does, and blocks may be lost in it
  };
  Segment& add(std::uint64_t first, Origin origin, std::uint64_t deaths);
  void remove(std::uint64_t first);
  // Returns null if this client does not own it, or no longer does.
  Segment* find(std::uint64_t first);
  // Returns null if that life is over.
  Segment* find(const Segment::Life& life);
  Segment& at(std::uint64_t first) { return segments_.at(first); }
  const std::map<std::uint64_t, Segment>& segments() const { return segments_; }  // by first
  std::vector<std::uint64_t> firsts() const;
  // Returns the next few segments in turn, at most so many.
  std::vector<std::uint64_t> next_few(std::size_t most);
  Block block_at(std::uint64_t first, std::uint64_t block) const;
  // Returns the offset in the heap region of a word of a segment's bitmap.
  std::uint64_t bitmap_at(std::uint64_t first, std::uint64_t word) const;
  bool is_wholly_free(const Segment& segment) const { return segment.free_count_ == shape.blocks; }
  bool has_emptied() const;

  // --- Blocks

  std::uint64_t free_count() const { return free_count_; }  // less those in segments that are being emptied
  std::uint64_t limbo_count() const { return limbo_count_; }
  std::uint64_t unused() const { return free_count_ + limbo_count_; }
  // Grows by each block that comes free, and never falls.
  std::uint64_t ever_free() const { return takes_ + unused(); }
  // Returns how many blocks of the class are kept from this purpose.
  std::uint64_t kept(Purpose purpose, layout::Pressure pressure) const;
  bool has_room(Purpose purpose, layout::Pressure pressure) const { return free_count_ > kept(purpose, pressure); }
  // Hands out a block, from the fullest segment that has one.
  std::optional<Block> take(Purpose purpose, std::uint64_t safe_era, layout::Pressure pressure);
  // A block that was handed out is now in use; `discard` makes it reusable at once.
  void published(Segment& segment, std::uint64_t block);
  void discard(Segment& segment, std::uint64_t block);
  // Frees a block in use. Returns false, and changes nothing, if it was free already.
  bool free(Segment& segment, std::uint64_t block, std::uint64_t era);
  // Takes over the marks of other clients in a segment's bitmap: those blocks go into limbo. Appends to `back` the FAAs
  // that take the marks back. Returns the number of impossible marks.
  std::uint64_t take_marks(std::uint64_t first, base::Bytes bitmap, std::uint64_t era, std::vector<BitmapAdd>& back);
  // Moves what no session can read any more from limbo to the free blocks.
  void settle(std::uint64_t safe_era);
  // Removes a segment. Appends to `marks` the FAAs that mark every block in it that this client knows to be free.
  // Blocks in limbo count as free in the bitmap: the client that adopts the segment waits for an era of its own.
  void give_up(std::uint64_t first, std::vector<BitmapAdd>& marks);

  // --- How much the class needs

  // Learns at most once a tick how many blocks a tick takes.
  void look_at_demand(base::Nanos now, base::Nanos tick);
  bool is_quiet() const { return demand_ == 0 && taken_ == 0 && waiting == 0; }
  // Says whether other clients should be told to let the era pass. It does so before free blocks run out, because they
  // learn of it with their next tick, which may be a whole tick away.
  bool needs_era() const;
  bool runs_low() const { return free_count_ < few(); }
  // Says whether the class waits for an era instead of taking another segment. It waits for at most a tick; `hurried`
  // says that a request waits.
  bool waits_for_era(bool hurried, base::Nanos now, base::Nanos tick);
  // Says whether blocks should be looked for before operations miss them.
  bool wants_refill() const;
  // Says whether a scan of bitmaps may find something.
  bool scan_is_due() const { return takes_ >= scan_at_ && !segments_.empty(); }
  void scan_soon() { scan_at_ = takes_; }
  // Learns from a scan of a few segments; `before` is what ever_free() was.
  void scanned(std::uint64_t before);
  // Returns wholly free segments except what the class may need soon, and only a part of them at a time; with `all`,
  // returns every one.
  std::vector<std::uint64_t> spare(bool all) const;
  // Returns segments of which a good part is free, if this client can do without their free blocks. Keeps a segment
  // with a block that is about to be published: a client that inherits it after a death would take that block for lost.
  // Under pressure, a class that takes nothing keeps nothing; and when no segment is left, the smallest free part is
  // enough.
  std::vector<std::uint64_t> surplus(layout::Pressure pressure) const;
  // Says whether a segment, or a part of it, lies in a stretch that is being cleared and may leave it: a run as long as
  // the stretch, or longer, has nowhere to go.
  bool is_in_the_way(std::uint64_t first, const layout::Stretch& cleared) const {
    return cleared.overlaps(first, run) && (id != layout::kRun || run < cleared.count);
  }
  // Returns segments that are in the way, except those with a block that is about to be published, as above.
  std::vector<std::uint64_t> in_the_way(const layout::Stretch& cleared) const;

  // --- A look for blocks that got lost in a segment

  // Doubts every block that may be in use, except blocks that are out.
  void begin_look(Segment& segment);
  // Stops doubting marked blocks: they are not lost, since the next scan finds them.
  void believe_marks(Segment& segment, base::Bytes bitmap);
  void believe(Segment& segment, std::uint64_t block);
  bool has_doubts(const Segment& segment) const;
  // Frees blocks that are still doubted and not marked. Returns how many.
  std::uint64_t reclaim(Segment& segment, base::Bytes bitmap);
  void end_look(Segment& segment, std::uint64_t deaths);

  // --- A segment that is being emptied: nothing in it is handed out

  void begin_emptying(Segment& segment);
  void end_emptying(Segment& segment);
  // Returns the units of its blocks that may be in use.
  std::vector<std::uint64_t> in_use(const Segment& segment) const;

 private:
  // Blocks that may be reused once the safe era has passed `era`.
  struct Limbo {
    std::uint64_t era = 0;
    std::uint64_t first = 0;
    std::uint32_t word = 0;
    std::uint64_t bits = 0;
  };
  void unlink(Segment& segment);
  void put_in_rank(Segment& segment);
  void add_free(Segment& segment, std::size_t word, std::uint64_t bits);
  void add_limbo(Segment& segment, std::size_t word, std::uint64_t bits, std::uint64_t era);
  static void take_in(Segment& segment, std::size_t word, std::uint64_t bits);
  std::uint64_t reserve() const;
  std::uint64_t few() const;

  const std::uint64_t segment_bytes_;
  std::uint64_t lives_ = 0;  // of segments, ever
  std::map<std::uint64_t, Segment> segments_;
  std::array<Segment*, kRanks> ranks_{};  // segments with free blocks, by how much of them is in use
  std::uint64_t ranked_ = 0;              // bits of the ranks that have segments
  std::uint64_t free_count_ = 0;
  std::uint64_t limbo_count_ = 0;
  base::Queue<Limbo> limbo_;  // oldest era first
  std::uint64_t taken_ = 0;   // blocks, since the last look at the demand
  base::Nanos looked_at_ = 0;
  std::uint64_t demand_ = 0;       // blocks a tick, of late
  base::Nanos waiting_since_ = 0;  // for an era, rather than grow; 0: not
  std::uint64_t takes_ = 0;        // blocks, ever
  std::uint64_t scan_at_ = 0;      // takes; from then on a scan may find something
  std::uint64_t cursor_ = 0;       // where the next scan goes on: a few segments at a time, in turn
  std::array<Full, 2> full_;
};

class Ledger {
 public:
  Ledger(std::uint64_t heap_bytes, std::uint64_t segment_bytes)
      : heap_segments(heap_bytes / segment_bytes), segment_bytes(segment_bytes) {}

  const std::uint64_t heap_segments;
  const std::uint64_t segment_bytes;

  // Says whether the whole heap could hold a block of `bytes`.
  bool fits(std::uint64_t bytes) const { return layout::run_segments(bytes, segment_bytes) <= heap_segments; }
  bool has_segments(std::uint64_t first, std::uint64_t count) const {
    return first < heap_segments && count <= heap_segments - first;
  }
  // Returns what a block of `bytes` is for that replaces a block that was requested with `before` bytes; 0: it replaces
  // none.
  Purpose purpose_of(std::uint64_t bytes, std::uint64_t before) const;

  std::map<std::uint64_t, SizeClass>& classes() { return classes_; }
  const std::map<std::uint64_t, SizeClass>& classes() const { return classes_; }
  SizeClass& class_for(std::uint64_t bytes);
  SizeClass& class_of(std::uint64_t id, std::uint64_t run);

  struct Place {
    std::uint64_t first = 0;
    std::uint64_t block = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  // Returns nothing if no block of the class begins there.
  std::optional<Place> find_place(const SizeClass& size_class, std::uint64_t units) const;

  // Makes a segment this client's.
  void add(SizeClass& size_class, std::uint64_t first, SizeClass::Origin origin, std::uint64_t deaths);

  // The caller reports one of the two for each block that was taken. `discard` returns false if its segment was given
  // up meanwhile.
  void published(Block block);
  bool discard(Block block);
  // Frees a published block. Returns the mark for its owner if that is another client. Counts an impossible place, or a
  // block that is free already, as an anomaly.
  std::optional<BitmapAdd> free(std::uint64_t units, std::uint64_t bytes, std::uint64_t era);

  // Keeps marks that have not been posted, one for each word. `note` returns false if the mark needs no message of its
  // own.
  bool note(BitmapAdd mark);
  bool has_noted() const { return !noted_.empty(); }
  std::vector<BitmapAdd> take_noted();

  // Says whether no segment has lost a block that a dead client unlinked, after so many deaths.
  bool is_examined(std::uint64_t deaths) const { return examined_ > deaths; }
  void all_examined(std::uint64_t deaths) { examined_ = deaths + 1; }

  void settle(std::uint64_t safe_era);
  // Returns a class that has been taking nothing, in turn: otherwise what others free there would be missed.
  std::optional<std::uint64_t> next_quiet_class();

  struct Sparse {
    SizeClass* size_class = nullptr;
    std::uint64_t first = 0;
    std::uint64_t used = 0;  // blocks, at the last look
  };
  // Chooses segments to empty, of classes other than `wanted`: the segments in the way, then the emptiest, as long as
  // the rest of their class has room for their contents.
  std::vector<Sparse> choose_sparse(std::uint64_t wanted, const layout::Stretch& cleared);
  // Returns the bytes of blocks that this client has freed, minus the bytes of blocks that it has published.
  std::int64_t freed() const { return freed_; }

  std::uint64_t anomalies = 0;  // impossible frees

 private:
  std::map<std::uint64_t, SizeClass> classes_;  // by size class; runs of n segments at kRun + n
  std::uint64_t looked_into_ = 0;               // the last of the classes that had fallen quiet
  std::uint64_t examined_ = 0;                  // the smallest `examined` of any owned segment
  std::vector<BitmapAdd> noted_;
  std::int64_t freed_ = 0;
};

}  // namespace farpool::heap
