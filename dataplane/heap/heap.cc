// SPDX-License-Identifier: Apache-2.0
#include "heap/heap.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "layout/calls.h"
#include "layout/extent.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "session/trips.h"
#include "session/wait.h"

namespace farpool::heap {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using fabric::Remote;
using layout::kRun;
using layout::SegmentShape;
using task::Task;

constexpr std::size_t kScanSegments = 16;     // bitmaps read in one chain
constexpr std::size_t kAtomicsPerChain = 16;  // within what a responder grants
// A full heap is believed after others had this many ticks to give back what they can spare; after that, requests fail
// at once, and one in a while is tried in the background.
constexpr int kPatienceTicks = 4, kPatienceTicksToReplace = 16;
constexpr int kPatienceEras = 16;
constexpr std::uint64_t kDemandTicks = 4;  // of demand: about what is in limbo while nobody hurries
constexpr std::uint64_t kReserve = 16;     // of the blocks in use, one such part may be kept free for that
// One such part of the blocks is left for replacements: with them alone a class goes on, if slowly, when no segment is
// to be had.
constexpr std::uint64_t kKept = 16;
constexpr std::size_t kRanks = 32;  // steps in which segments are told apart by how much of them is in use
constexpr int kBarrenTicks = 8;
constexpr std::size_t kSweeps = 4;                // segments of the dead that one client looks through at a time
constexpr std::uint64_t kSweepBytes = 64 * 1024;  // of a segment, in one READ
constexpr Nanos kSweepRest = 3;        // times as long as a piece of the own segments has taken, before the next
constexpr int kJudgements = 4;         // times that the index is asked about one block before it is taken to be in use
constexpr std::size_t kGathered = 16;  // orphans that one round of emptying takes on
constexpr std::size_t kEmptied = 16;   // segments that it empties, at most
constexpr std::uint64_t kSparse = 4;   // of a segment that is emptied, one such part is free at least
constexpr int kEmptyingEras = 8;       // that the last frees in them may take
constexpr std::uint64_t kBitmapOffset = sizeof(layout::SegmentHeader);

// A segment of blocks that this client owns, or a run, which is a segment of one block.
struct Segment {
  std::uint64_t first = 0;           // index in the heap region
  std::vector<std::uint64_t> free;   // bits of blocks that may be handed out
  std::vector<std::uint64_t> limbo;  // bits of blocks that are free but may still be read
  std::vector<std::uint64_t> out;    // bits of blocks that were handed out, and are not yet published or discarded
  std::uint64_t free_count = 0;
  std::uint64_t limbo_count = 0;
  std::uint64_t out_count = 0;
  std::size_t hint = 0;  // no word of `free` before it has a bit
  // In the list of its rank, if it has free blocks.
  std::size_t rank = kRanks;
  Segment* previous = nullptr;
  Segment* next = nullptr;
  // The state of a look for blocks that got lost: bits of blocks that may be, less what has come to be known as free
  // since.
  std::vector<std::uint64_t> doubted;
  bool looked_through = false;  // just now
  bool emptied = false;         // just now: what is free in it is not handed out
  std::uint64_t examined = 0;   // one more than the deaths up to which nothing is lost in it; 0: nobody knows
};

// Blocks that may be reused once the safe era has passed `era`.
struct Limbo {
  std::uint64_t era = 0;
  std::uint64_t first = 0;
  std::uint32_t word = 0;
  std::uint64_t bits = 0;
};

struct SizeClass {
  std::uint64_t id = 0;
  std::uint64_t run = 1;  // segments that one of this class takes
  SegmentShape shape;
  std::map<std::uint64_t, Segment> segments;  // by first
  std::array<Segment*, kRanks> ranks{};       // segments with free blocks, by how much of them is in use
  std::uint64_t ranked = 0;                   // bits of the ranks that have segments
  std::uint64_t free_count = 0;
  std::uint64_t limbo_count = 0;
  std::deque<Limbo> limbo;   // oldest era first
  std::uint64_t taken = 0;   // blocks, since the last look
  Nanos looked_at = 0;       // at how many were taken
  std::uint64_t demand = 0;  // blocks a tick, of late
  Nanos waiting_since = 0;   // for an era, rather than grow; 0: not
  std::size_t waiting = 0;   // requests
  // Held by the task that scans, grows or shrinks the class: a bitmap is taken back by one, and not while its segment
  // is given away.
  bool busy = false;
  std::uint64_t takes = 0;    // blocks, ever
  std::uint64_t scan_at = 0;  // takes; from then on a scan may find something
  std::uint64_t cursor = 0;   // where the next scan goes on: a few segments at a time, in turn
  Nanos quiet_until = 0;      // no refill in the background before
  // The heap was found full, for either purpose.
  struct Full {
    bool found = false;
    Nanos tried_until = 0;     // not tried again before
    Nanos believed_until = 0;  // unless it has been found again
  };
  std::array<Full, 2> full;
  Full& full_for(Purpose purpose) { return full[static_cast<std::size_t>(purpose)]; }
};

enum class Refill {
  got,
  wait,   // blocks of the class are in limbo
  rests,  // segments are, at the memory node
  full,
};

}  // namespace

struct Heap::State {
  State(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes)
      : session(session),
        heap_segments(heap_bytes / segment_bytes),
        segment_bytes(segment_bytes),
        ready(session.port()),
        swept(session.port()) {}

  session::Session& session;
  const std::uint64_t heap_segments;
  const std::uint64_t segment_bytes;
  std::map<std::uint64_t, SizeClass> classes;  // by size class; runs of n segments at kRun + n
  session::WaitQueue ready;                    // for a class that is not busy any more
  session::WaitQueue swept;                    // for blocks of the dead
  std::uint64_t looked_into = 0;               // the last of the classes that had fallen quiet
  bool released = false;
  std::uint64_t anomalies = 0;
  Cost background;

  // Frees of others' blocks that wait for the end of the turn.
  struct Freed {
    std::uint64_t offset = 0;  // of the bitmap word in the heap region
    std::uint64_t bits = 0;
  };
  std::vector<Freed> freed;
  std::optional<session::EraPin> freed_pin;  // from the first of them, until all are in the bitmaps
  bool flushing = false;

  References* references = nullptr;
  std::size_t sweeping = 0;
  std::size_t hungry = 0;  // allocations that wait for what the dead have left
  bool looking_through_own = false;
  std::uint64_t examined = 0;  // as of a segment: of the one owned that says least
  Nanos none_dead_until = 0;   // the memory node has said that no segment waits
  bool emptying = false;
  Nanos none_sparse_until = 0;  // nothing came of emptying segments
  std::uint64_t emptied = 0;
  std::uint64_t taken_over = 0;
  std::uint64_t reclaimed = 0;

  // --- Places

  SizeClass& class_for(std::uint64_t bytes) {
    const std::uint64_t id = layout::size_class_for(bytes, segment_bytes);
    return class_of(id, id == kRun ? layout::run_segments(bytes, segment_bytes) : 1);
  }
  SizeClass& class_of(std::uint64_t id, std::uint64_t run) {
    auto [entry, added] = classes.try_emplace(id == kRun ? kRun + run : id);
    if (added) {
      entry->second.id = id;
      entry->second.run = run;
      entry->second.shape = layout::segment_shape(id, segment_bytes * run);
    }
    return entry->second;
  }

  Block block_at(const SizeClass& size_class, std::uint64_t first, std::uint64_t block) const {
    const std::uint64_t offset =
        first * segment_bytes + size_class.shape.first_block + block * size_class.shape.block_bytes;
    return {.units = offset / layout::kBlockUnit, .bytes = size_class.shape.block_bytes};
  }

  // False: no block of the class begins there.
  bool find_place(const SizeClass& size_class, std::uint64_t units, std::uint64_t& first, std::uint64_t& block) const {
    const SegmentShape& shape = size_class.shape;
    if (units >= heap_segments * (segment_bytes / layout::kBlockUnit)) return false;
    const std::uint64_t within = layout::block_offset(units) % segment_bytes;
    first = layout::block_offset(units) / segment_bytes;
    if (within < shape.first_block || (within - shape.first_block) % shape.block_bytes != 0) return false;
    block = (within - shape.first_block) / shape.block_bytes;
    return block < shape.blocks && first + size_class.run <= heap_segments;
  }

  Remote bitmap_word(std::uint64_t first, std::uint64_t word) const {
    return {layout::kHeap, first * segment_bytes + kBitmapOffset + word * 8};
  }

  // --- What is free

  // The era that a block found free now belongs to. The node's era is at most one above what the last tick told: it
  // advances only when every live session, this one among them, has published the era before.
  std::uint64_t limbo_era() const { return session.era() + 1; }

  static void unlink(SizeClass& size_class, Segment& segment) {
    if (segment.rank == kRanks) return;
    if (segment.next != nullptr) segment.next->previous = segment.previous;
    if (segment.previous != nullptr) {
      segment.previous->next = segment.next;
    } else {
      size_class.ranks[segment.rank] = segment.next;
      if (segment.next == nullptr) size_class.ranked &= ~(1ull << segment.rank);
    }
    segment.rank = kRanks;
  }

  // To be called when the number of free blocks in the segment has changed, or of those in limbo.
  static void put_in_rank(SizeClass& size_class, Segment& segment) {
    const std::uint64_t used = size_class.shape.blocks - segment.free_count - segment.limbo_count;
    const bool none = segment.free_count == 0 || segment.emptied;
    const std::size_t rank = none ? kRanks : used * kRanks / size_class.shape.blocks;
    if (rank == segment.rank) return;
    unlink(size_class, segment);
    if (rank == kRanks) return;
    segment.rank = rank;
    segment.previous = nullptr;
    segment.next = std::exchange(size_class.ranks[rank], &segment);
    if (segment.next != nullptr) segment.next->previous = &segment;
    size_class.ranked |= 1ull << rank;
  }

  static void add_free(SizeClass& size_class, Segment& segment, std::size_t word, std::uint64_t bits) {
    const auto count = static_cast<std::uint64_t>(std::popcount(bits));
    segment.free[word] |= bits;
    segment.doubted[word] &= ~bits;
    segment.hint = std::min(segment.hint, word);
    segment.free_count += count;
    if (!segment.emptied) size_class.free_count += count;
    put_in_rank(size_class, segment);
  }

  // They are not out, whatever became of them.
  static void take_in(Segment& segment, std::size_t word, std::uint64_t bits) {
    segment.out_count -= static_cast<std::uint64_t>(std::popcount(segment.out[word] & bits));
    segment.out[word] &= ~bits;
  }

  void add_limbo(SizeClass& size_class, Segment& segment, std::size_t word, std::uint64_t bits) {
    segment.limbo[word] |= bits;
    segment.doubted[word] &= ~bits;
    take_in(segment, word, bits);
    const auto count = static_cast<std::uint64_t>(std::popcount(bits));
    segment.limbo_count += count;
    size_class.limbo_count += count;
    put_in_rank(size_class, segment);
    if (!size_class.limbo.empty()) {
      Limbo& last = size_class.limbo.back();
      if (last.era == limbo_era() && last.first == segment.first && last.word == word) {
        last.bits |= bits;
        return;
      }
    }
    size_class.limbo.push_back({limbo_era(), segment.first, static_cast<std::uint32_t>(word), bits});
  }

  // Moves what no session can read any more from limbo to the free blocks.
  void settle(SizeClass& size_class) {
    auto& limbo = size_class.limbo;
    while (!limbo.empty() && limbo.front().era < session.safe_era()) {
      const Limbo& over = limbo.front();
      Segment& segment = size_class.segments.at(over.first);
      segment.limbo[over.word] &= ~over.bits;
      const auto count = static_cast<std::uint64_t>(std::popcount(over.bits));
      segment.limbo_count -= count;
      size_class.limbo_count -= count;
      add_free(size_class, segment, over.word, over.bits);
      limbo.pop_front();
    }
  }

  // Blocks of the class that are not for this purpose.
  std::uint64_t kept(const SizeClass& size_class, Purpose purpose) const {
    if (purpose == Purpose::replacement) return 0;
    // What comes free is for those who have run out of replacements.
    if (session.pressure() == layout::Pressure::dry) return std::numeric_limits<std::uint64_t>::max();
    // A share of one segment's blocks; of all segments' blocks where no further segment comes.
    const std::uint64_t segments = session.pressure() == layout::Pressure::spent ? size_class.segments.size() : 1;
    return segments * size_class.shape.blocks / kKept;
  }
  bool has_room(const SizeClass& size_class, Purpose purpose) const {
    return size_class.free_count > kept(size_class, purpose);
  }

  bool take(SizeClass& size_class, Purpose purpose, Block& block) {
    settle(size_class);
    if (!has_room(size_class, purpose)) return false;
    size_class.full_for(purpose).found = false;
    size_class.waiting_since = 0;
    // From the fullest segments: so that others become empty and can go back to the node.
    Segment& segment = *size_class.ranks[static_cast<std::size_t>(std::bit_width(size_class.ranked)) - 1];
    while (segment.free[segment.hint] == 0) ++segment.hint;
    std::uint64_t& bits = segment.free[segment.hint];
    segment.out[segment.hint] |= bits & -bits;
    ++segment.out_count;
    block = block_at(size_class, segment.first, segment.hint * 64 + static_cast<std::uint64_t>(std::countr_zero(bits)));
    bits &= bits - 1;
    --segment.free_count;
    --size_class.free_count;
    put_in_rank(size_class, segment);
    ++size_class.taken;
    ++size_class.takes;
    return true;
  }

  enum class Origin : std::uint8_t { fresh, orphan, dead };
  void add_segment(SizeClass& size_class, std::uint64_t first, Origin origin) {
    Segment& segment = size_class.segments[first];
    segment.first = first;
    segment.free.assign(size_class.shape.bitmap_words, 0);
    segment.limbo.assign(size_class.shape.bitmap_words, 0);
    segment.out.assign(size_class.shape.bitmap_words, 0);
    segment.doubted.assign(size_class.shape.bitmap_words, 0);
    segment.examined = origin == Origin::dead ? 0 : session.deaths() + 1;
    examined = std::min(examined, segment.examined);
    if (origin != Origin::fresh) return;  // its bitmap says what is free
    for (std::size_t word = 0; word < segment.free.size(); ++word)
      add_free(size_class, segment, word, layout::blocks_of_word(size_class.shape, word));
  }

  void remove_segment(SizeClass& size_class, std::uint64_t first) {
    const auto entry = size_class.segments.find(first);
    unlink(size_class, entry->second);
    if (!entry->second.emptied) size_class.free_count -= entry->second.free_count;
    size_class.limbo_count -= entry->second.limbo_count;
    if (entry->second.limbo_count > 0)
      std::erase_if(size_class.limbo, [&](const Limbo& l) { return l.first == first; });
    size_class.segments.erase(entry);
  }

  static bool wholly_free(const SizeClass& size_class, const Segment& segment) {
    return segment.free_count == size_class.shape.blocks;
  }

  // --- How much a class needs

  // Blocks that may be free or in limbo before the class takes another segment. Those of a tick that nobody hurries are
  // in limbo for three ticks; where that would be much beside what is in use, eras are hurried, and those of a quarter
  // of a tick are enough.
  static std::uint64_t reserve(const SizeClass& size_class) {
    const std::uint64_t demand = std::max(size_class.demand, size_class.taken);
    const std::uint64_t used = size_class.segments.size() * size_class.shape.blocks - unused(size_class);
    return std::max(
        {std::min(kDemandTicks * demand, used / kReserve), demand / 4, size_class.shape.blocks / 8, std::uint64_t{1}});
  }
  static std::uint64_t unused(const SizeClass& size_class) { return size_class.free_count + size_class.limbo_count; }

  // Blocks that may be gone before others have come through an era that is hurried.
  static std::uint64_t few(const SizeClass& size_class) {
    return std::max({size_class.shape.blocks / 8, size_class.demand / 8, std::uint64_t{1}});
  }

  void look_at_demand(SizeClass& size_class) {
    const Nanos now = session.port().now(), tick = session.grant().tick;
    if (size_class.looked_at == 0) size_class.looked_at = now;
    const Nanos elapsed = now - size_class.looked_at;
    if (elapsed <= 0 || elapsed < tick) return;
    const std::uint64_t in_a_tick =
        size_class.taken * static_cast<std::uint64_t>(tick) / static_cast<std::uint64_t>(elapsed);
    size_class.demand = std::max(in_a_tick, size_class.demand * 3 / 4);
    size_class.taken = 0;
    size_class.looked_at = now;
  }

  static bool is_quiet(const SizeClass& size_class) {
    return size_class.demand == 0 && size_class.taken == 0 && size_class.waiting == 0;
  }

  // One that has been taking nothing, in turn: what others free there would be missed.
  std::optional<std::uint64_t> next_quiet_class() {
    const auto quiet = [](const auto& of) { return is_quiet(of.second); };
    auto found = std::find_if(classes.upper_bound(looked_into), classes.end(), quiet);
    if (found == classes.end()) found = std::find_if(classes.begin(), classes.end(), quiet);
    if (found == classes.end()) return std::nullopt;
    return looked_into = found->first;
  }

  // Not only when free blocks run out: others learn of it with their next tick, which may be a whole one away.
  void hurry_in_time(const SizeClass& size_class) {
    const bool soon = kDemandTicks * size_class.demand > unused(size_class);
    if (size_class.limbo_count > 0 && (soon || size_class.free_count < few(size_class))) session.hurry_eras();
  }

  // --- Verbs

  Status gone() const { return session::gone(session, Code::unavailable, "no block could be allocated"); }

  // Posts FAAs, as many to a chain as a responder grants. False: the session has ended.
  Task<bool> add_all(std::vector<Freed> words, Nanos deadline, Cost& cost) {
    std::array<std::uint64_t, kAtomicsPerChain> before{};
    std::array<Op, kAtomicsPerChain> chain;
    for (std::size_t from = 0; from < words.size(); from += kAtomicsPerChain) {
      const std::size_t count = std::min(kAtomicsPerChain, words.size() - from);
      for (std::size_t i = 0; i < count; ++i) {
        chain[i] = Op::fetch_add({layout::kHeap, words[from + i].offset}, before[i], words[from + i].bits);
      }
      if ((co_await session.post({chain.data(), count}, deadline, cost)).fate != Fate::done) co_return false;
    }
    co_return true;
  }

  // Reads the bitmaps of segments and takes back the bits that others have set: those blocks go into limbo. The bits
  // are gone before a block is handed out again, or its next free would carry into the neighbour's bit.
  Task<Status> scan(SizeClass& size_class, std::vector<std::uint64_t> firsts, Nanos deadline, Cost& cost) {
    const std::size_t words = size_class.shape.bitmap_words;
    for (std::size_t from = 0; from < firsts.size(); from += kScanSegments) {
      const std::size_t count = std::min(kScanSegments, firsts.size() - from);
      fabric::Buffer buffer = session.port().buffer(count * words * 8);
      std::array<Op, kScanSegments> reads;
      for (std::size_t i = 0; i < count; ++i) {
        reads[i] = Op::read(bitmap_word(firsts[from + i], 0), buffer.span().subspan(i * words * 8, words * 8));
      }
      if ((co_await session.post({reads.data(), count}, deadline, cost)).fate != Fate::done) co_return gone();

      std::vector<Freed> taken;
      for (std::size_t i = 0; i < count; ++i) {
        Segment& segment = size_class.segments.at(firsts[from + i]);
        for (std::size_t word = 0; word < words; ++word) {
          const auto bits = base::load<std::uint64_t>(buffer.data() + (i * words + word) * 8);
          if (bits == 0) continue;
          taken.push_back({bitmap_word(segment.first, word).offset, ~bits + 1});
          // Bits of what is free already, or of no block, are somebody's error: taken back, and believed no further.
          const std::uint64_t good =
              bits & layout::blocks_of_word(size_class.shape, word) & ~segment.free[word] & ~segment.limbo[word];
          anomalies += static_cast<std::uint64_t>(std::popcount(bits ^ good));
          if (good != 0) add_limbo(size_class, segment, word, good);
        }
      }
      if (!co_await add_all(std::move(taken), deadline, cost)) co_return gone();
    }
    co_return Status();
  }

  // The next few segments in turn.
  static std::vector<std::uint64_t> next_few(SizeClass& size_class) {
    std::vector<std::uint64_t> firsts;
    auto at = size_class.segments.lower_bound(size_class.cursor);
    for (std::size_t i = std::min(kScanSegments, size_class.segments.size()); i > 0; --i) {
      if (at == size_class.segments.end()) at = size_class.segments.begin();
      firsts.push_back(at->first);
      ++at;
    }
    if (!firsts.empty()) size_class.cursor = firsts.back() + 1;
    return firsts;
  }

  // Scans them. Returns how many.
  Task<Result<std::size_t>> scan_some(SizeClass& size_class, Nanos deadline, Cost& cost) {
    std::vector<std::uint64_t> firsts = next_few(size_class);
    const std::size_t count = firsts.size();
    const std::uint64_t before = size_class.takes + unused(size_class);
    Status scanned = co_await scan(size_class, std::move(firsts), deadline, cost);
    if (!scanned.ok()) co_return scanned;
    const bool found = size_class.takes + unused(size_class) > before;
    const std::uint64_t blocks = size_class.shape.blocks;
    size_class.scan_at = size_class.takes + (found ? std::max<std::uint64_t>(1, blocks / 4) : blocks);
    settle(size_class);
    co_return count;
  }

  static std::vector<std::uint64_t> firsts_of(const SizeClass& size_class) {
    std::vector<std::uint64_t> firsts;
    firsts.reserve(size_class.segments.size());
    for (const auto& [first, segment] : size_class.segments) firsts.push_back(first);
    return firsts;
  }

  Task<Result<layout::AllocateSegmentsReply>> ask_for_segments(const SizeClass& size_class, Purpose purpose,
                                                               bool in_vain, Nanos deadline, Cost& cost) {
    fabric::Buffer request = session.port().buffer(sizeof(layout::AllocateSegmentsRequest));
    fabric::Buffer reply = session.port().buffer(sizeof(layout::AllocateSegmentsReply));
    base::store(request.data(), layout::AllocateSegmentsRequest{.count = size_class.run,
                                                                .size_class = size_class.id,
                                                                .replaces = purpose == Purpose::replacement ? 1u : 0u,
                                                                .in_vain = in_vain ? 1u : 0u});
    const std::array chain{Op::call(layout::kAllocateSegments, request.span(), reply.span())};
    const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
    if (outcome.fate != Fate::done || outcome.reply_bytes != sizeof(layout::AllocateSegmentsReply)) co_return gone();
    const auto granted = base::load<layout::AllocateSegmentsReply>(reply.data());
    if (granted.status == 0 && (granted.first >= heap_segments || size_class.run > heap_segments - granted.first ||
                                size_class.segments.contains(granted.first))) {
      co_return Status(Code::corrupt, "the memory node granted heap segment " + std::to_string(granted.first) +
                                          ", which it does not have or has granted before");
    }
    co_return granted;
  }

  // What the node answers does not matter: the segment is not this client's any more.
  Task<void> give_back(std::uint64_t first, std::uint64_t count, bool orphan, Nanos deadline, Cost& cost) {
    fabric::Buffer request = session.port().buffer(sizeof(layout::ReturnSegmentsRequest));
    fabric::Buffer reply = session.port().buffer(sizeof(layout::ReturnSegmentsReply));
    base::store(request.data(),
                layout::ReturnSegmentsRequest{.first = first, .count = count, .orphan = orphan ? 1u : 0u});
    const std::array chain{Op::call(layout::kReturnSegments, request.span(), reply.span())};
    co_await session.post(chain, deadline, cost);
  }

  // --- Growing and shrinking a class; the caller holds it busy

  // Brings blocks: what others have freed, else a segment from the node. An unhurried refill leaves the class as large
  // as it is if enough is in limbo. `in_vain`: the caller has been short of them for some ticks.
  Task<Result<Refill>> refill(SizeClass& size_class, Purpose purpose, bool hurried, bool in_vain, Nanos deadline,
                              Cost& cost) {
    std::size_t looked_at = 0;
    if (size_class.takes >= size_class.scan_at && !size_class.segments.empty()) {
      auto scanned = co_await scan_some(size_class, deadline, cost);
      if (!scanned.ok()) co_return scanned.status();
      looked_at = *scanned;
      if (has_room(size_class, purpose) && hurried) co_return Refill::got;
    }
    look_at_demand(size_class);
    hurry_in_time(size_class);
    const bool enough = unused(size_class) >= reserve(size_class);
    if (!hurried && (enough || size_class.free_count >= few(size_class))) co_return Refill::wait;
    // A class that has its reserve does not grow, nor one of which most is in limbo, or fast writers would spread over
    // the whole heap: it waits for an era, though not for long.
    if (size_class.limbo_count > 0 &&
        (enough || size_class.limbo_count * 2 >= size_class.segments.size() * size_class.shape.blocks)) {
      const Nanos now = session.port().now();
      if (size_class.waiting_since == 0) size_class.waiting_since = now;
      if (now - size_class.waiting_since < session.grant().tick) co_return Refill::wait;
    }
    auto granted = co_await ask_for_segments(size_class, purpose, in_vain, deadline, cost);
    if (!granted.ok()) co_return granted.status();
    if (granted->status == 0) {
      size_class.scan_at = size_class.takes;
      add_segment(size_class, granted->first,
                  granted->adopted == 0   ? Origin::fresh
                  : granted->adopted == 1 ? Origin::orphan
                                          : Origin::dead);
      if (granted->adopted == 0) co_return Refill::got;
      std::vector<std::uint64_t> one(1, granted->first);
      Status scanned = co_await scan(size_class, std::move(one), deadline, cost);
      if (!scanned.ok()) co_return scanned;
      co_return Refill::wait;  // its free blocks are in limbo
    }
    // Nothing more to be had: only what others have freed, wherever it is.
    while (size_class.limbo.empty() && !has_room(size_class, purpose) && looked_at < size_class.segments.size()) {
      auto scanned = co_await scan_some(size_class, deadline, cost);
      if (!scanned.ok()) co_return scanned.status();
      looked_at += *scanned;
    }
    size_class.scan_at = size_class.takes;
    if (has_room(size_class, purpose)) co_return Refill::got;
    // Replacements bring a block into limbo for each that they take; additions might wait for those of others for ever.
    if (purpose == Purpose::replacement && !size_class.limbo.empty()) co_return Refill::wait;
    const bool comes = unused(size_class) > kept(size_class, purpose);
    co_return comes || granted->status == 2 ? Refill::rests : Refill::full;
  }

  // Returns wholly free segments but for what the class may need soon, and not all that is left at once; with `all`,
  // every one.
  Task<bool> trim(SizeClass& size_class, bool all, Nanos deadline, Cost& cost) {
    std::vector<std::uint64_t> spare;
    settle(size_class);
    const std::uint64_t blocks = size_class.shape.blocks;
    const std::uint64_t keep = reserve(size_class) + blocks / 2;
    std::uint64_t left = unused(size_class);
    for (const auto& [first, segment] : size_class.segments) {
      if (!wholly_free(size_class, segment) || segment.emptied) continue;
      if (!all && left < keep + blocks) break;
      left -= blocks;
      spare.push_back(first);
    }
    if (!all) spare.resize((spare.size() + 3) / 4);
    for (const std::uint64_t first : spare) remove_segment(size_class, first);
    for (const std::uint64_t first : spare) co_await give_back(first, size_class.run, false, deadline, cost);
    co_return !spare.empty();
  }

  // Segments of which a good part is free, as far as this client can do without what is free in them. One with a block
  // that is about to be published is kept: its owner after a death would take that block for lost. Under
  // pressure, a class that takes nothing keeps nothing; and where no segment is left, the least part is a good one.
  static std::vector<std::uint64_t> surplus(const SizeClass& size_class, layout::Pressure pressure) {
    const std::uint64_t blocks = size_class.shape.blocks;
    const bool spent = pressure >= layout::Pressure::spent;
    std::uint64_t keep = reserve(size_class) + (spent ? 0 : blocks / 4);
    if (pressure != layout::Pressure::none && is_quiet(size_class)) keep = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> with_room;  // blocks, first
    for (const auto& [first, segment] : size_class.segments) {
      const std::uint64_t here = segment.free_count + segment.limbo_count;
      if (wholly_free(size_class, segment) || here < (spent ? 1 : blocks / 4) || segment.out_count > 0 ||
          segment.looked_through || segment.emptied) {
        continue;
      }
      with_room.emplace_back(here, first);
    }
    if (spent) std::sort(with_room.begin(), with_room.end(), std::greater<>());
    std::vector<std::uint64_t> firsts;
    std::uint64_t left = unused(size_class);
    for (const auto& [here, first] : with_room) {
      if (left < keep + here) continue;
      if (spent && firsts.size() == kScanSegments) break;
      left -= here;
      firsts.push_back(first);
    }
    return firsts;
  }

  // Gives segments up with all that this client knows to be free in them. Blocks in limbo are free as far as the bitmap
  // goes: the client that adopts the segment waits for an era of its own.
  Task<void> orphan(SizeClass& size_class, std::vector<std::uint64_t> firsts, Nanos deadline, Cost& cost) {
    std::vector<Freed> words;
    for (const std::uint64_t first : firsts) {
      const Segment& segment = size_class.segments.at(first);
      for (std::size_t word = 0; word < segment.free.size(); ++word) {
        const std::uint64_t bits = segment.free[word] | segment.limbo[word];
        if (bits != 0) words.push_back({bitmap_word(first, word).offset, bits});
      }
      remove_segment(size_class, first);
    }
    if (!co_await add_all(std::move(words), deadline, cost)) co_return;
    for (const std::uint64_t first : firsts) co_await give_back(first, size_class.run, true, deadline, cost);
  }

  void let_go(SizeClass& size_class) {
    size_class.busy = false;
    ready.wake_all();
  }

  // Wholly free segments of all classes, so that the node can make something else of them.
  Task<bool> return_spares(Nanos deadline, Cost& cost) {
    bool any = false;
    for (auto& [id, size_class] : classes) {
      if (size_class.busy) continue;
      size_class.busy = true;
      const bool gave = co_await trim(size_class, true, deadline, cost);
      any = any || gave;
      let_go(size_class);
    }
    co_return any;
  }

  // What is missing is an era.
  Task<void> next_era(const SizeClass& size_class, Purpose purpose, Nanos deadline) {
    const std::uint64_t safe = session.safe_era();
    while (session.alive() && session.safe_era() == safe && !has_room(size_class, purpose) &&
           session.port().now() < deadline) {
      co_await session.tick_now(deadline);
    }
  }

  // --- Background

  // A class that runs low is refilled before it is empty, so that operations do not wait. What others have freed is
  // looked for before that: it takes an era to become free.
  void refill_ahead(const std::shared_ptr<State>& self, SizeClass& size_class) {
    if (size_class.shape.blocks < 64 || size_class.busy) return;
    if (size_class.free_count >= few(size_class) && size_class.takes < size_class.scan_at) return;
    const Nanos now = session.port().now();
    if (now < size_class.quiet_until || size_class.full_for(Purpose::addition).found) return;
    size_class.busy = true;
    session.background().spawn(refill_in_background(self, size_class));
  }

  static Task<void> refill_in_background(std::shared_ptr<State> self, SizeClass& size_class) {
    const Nanos deadline = self->session.port().now() + self->session.grant().failure_timeout;
    auto refilled = co_await self->refill(size_class, Purpose::addition, false, false, deadline, self->background);
    if (!refilled.ok() || *refilled != Refill::got) {
      size_class.quiet_until = self->session.port().now() + self->session.grant().tick / 16;
    }
    self->let_go(size_class);
  }

  static Task<void> flush(std::shared_ptr<State> self) {
    co_await self->session.port().sleep_until(self->session.port().now());  // the end of the turn
    while (!self->freed.empty()) {
      std::vector<Freed> words = std::exchange(self->freed, {});
      const std::optional<session::EraPin> pin = std::move(self->freed_pin);
      self->freed_pin.reset();
      Cost charged_already;
      const Nanos deadline = self->session.port().now() + self->session.grant().failure_timeout;
      if (!co_await self->add_all(std::move(words), deadline, charged_already)) break;
    }
    self->freed.clear();
    self->freed_pin.reset();
    self->flushing = false;
  }

  // --- Blocks that got lost

  // What a client that died leaves in its segments: blocks that entries point to; blocks that others have freed, marked
  // so in the bitmap; and blocks that were free as far as it alone knew, or that it had filled and not published, or
  // that somebody unlinked and died before marking them. The last kind it leaves in the segments of the living, too.
  // Only what nobody has marked is in question, and the bytes tell: a block is garbage if it does not hold a whole
  // extent, since an extent is whole before an entry points to it and as long as one does; or if the index says that no
  // entry points to it.
  //
  // A block found so is not free yet, because somebody may still have its address or be about to mark it free: X was
  // unlinked, by client B, before the index answered, when this session's era was e. The node's era was at most e + 1
  // then, so B's operation had pinned an era of at most e + 1. As long as it runs, the node's era goes no further than
  // e + 2; before it ends it tells B's heap of the block, which pins what B knows as the era then, at most e + 2, until
  // the mark is in the bitmap. So once the safe era is beyond e + 2, every mark that a live client makes for X is
  // there, the others are fenced and make none, and readers that saw the entry are gone. The bitmap is read again: a
  // marked block is left to the ordinary scan, which takes the mark back, and one that is not marked never will be. It
  // is counted here, and only here.
  //
  // Meanwhile this client goes on to use the segment. What is about to be published is not doubted to begin with; and a
  // block that is freed, and perhaps handed out anew, has come to be known as free in between, and is doubted no more.
  //
  // Nothing is written before that. A client that dies in the middle leaves a segment of the dead, as it found it.
  static Task<void> sweep(std::shared_ptr<State> self, std::uint64_t size_class, std::uint64_t run) {
    bool orphan = false;
    const auto segment = co_await self->inherit(size_class, run, orphan);
    if (segment) {
      SizeClass& of = self->class_of(segment->size_class, segment->run);
      self->add_segment(of, segment->first, Origin::dead);
      co_await self->look_through(of, segment->first, true);
      // What this client can do without, those who have come in place of the dead would take anew.
      if (!of.busy && self->goes_on()) {
        of.busy = true;
        co_await self->orphan(of, surplus(of, self->session.pressure()), self->sweep_deadline(), self->background);
        self->let_go(of);
      }
    }
    --self->sweeping;
    self->swept.wake_all();
  }

  // Begins to take over what the node has, as far as it is known to have any. True: this client is at it.
  bool take_over(const std::shared_ptr<State>& self, const SizeClass* wanted) {
    if (references == nullptr || released) return false;
    while (sweeping < std::min<std::uint64_t>(kSweeps, session.dead_segments()) && session.alive() &&
           session.port().now() >= none_dead_until) {
      ++sweeping;
      session.background().spawn(sweep(self, wanted == nullptr ? 0 : wanted->id, wanted == nullptr ? 1 : wanted->run));
    }
    return sweeping > 0;
  }

  Task<std::optional<layout::AdoptSegmentReply>> inherit(std::uint64_t size_class, std::uint64_t run, bool& orphan) {
    fabric::Buffer request = session.port().buffer(sizeof(layout::AdoptSegmentRequest));
    fabric::Buffer reply = session.port().buffer(sizeof(layout::AdoptSegmentReply));
    base::store(request.data(), layout::AdoptSegmentRequest{.size_class = size_class, .run = run});
    const std::array chain{Op::call(layout::kAdoptSegment, request.span(), reply.span())};
    const Outcome outcome = co_await session.post(chain, sweep_deadline(), background);
    if (outcome.fate != Fate::done || outcome.reply_bytes != sizeof(layout::AdoptSegmentReply)) co_return std::nullopt;
    auto given = base::load<layout::AdoptSegmentReply>(reply.data());
    if (given.status != 0) {
      if (run != layout::AdoptSegmentRequest::kSparse) {
        none_dead_until = session.port().now() + session.grant().tick;
      }
      co_return std::nullopt;
    }
    orphan = (given.run & layout::AdoptSegmentReply::kOrphan) != 0;
    given.run &= ~layout::AdoptSegmentReply::kOrphan;
    const bool fits =
        given.run > 0 && given.first < heap_segments && given.run <= heap_segments - given.first &&
        (given.size_class == kRun || (given.run == 1 && given.size_class <= layout::largest_class(segment_bytes)));
    if (!fits || class_of(given.size_class, given.run).segments.contains(given.first)) {
      session.end({Code::corrupt, "the memory node handed over heap segment " + std::to_string(given.first) +
                                      ", which it does not have or has handed out before"});
      co_return std::nullopt;
    }
    if (!orphan) ++taken_over;
    co_return given;
  }

  bool goes_on() const { return session.alive() && !released; }
  Nanos sweep_deadline() { return session.port().now() + 4 * session.grant().failure_timeout; }

  Task<bool> read(std::uint64_t offset, base::MutableBytes into) {
    const std::array chain{Op::read({layout::kHeap, offset}, into)};
    co_return (co_await session.post(chain, sweep_deadline(), background)).fate == Fate::done;
  }

  // After each death, one segment after the other, and slowly: nobody waits for it.
  static Task<void> look_through_own(std::shared_ptr<State> self) {
    for (bool any = true; any && self->goes_on();) {
      any = false;
      const std::uint64_t deaths = self->session.deaths();
      for (auto& [id, size_class] : self->classes) {
        for (const std::uint64_t first : firsts_of(size_class)) {
          const Segment* segment = find(size_class, first);
          if (segment == nullptr || segment->looked_through || segment->examined > deaths) continue;
          any = true;
          co_await self->look_through(size_class, first, false);
          if (!self->goes_on()) break;
        }
      }
      if (!any) self->examined = deaths + 1;
    }
    self->looking_through_own = false;
    self->swept.wake_all();
  }

  void look_after_own(const std::shared_ptr<State>& self) {
    if (references == nullptr || released || looking_through_own || examined > session.deaths()) return;
    looking_through_own = true;
    session.background().spawn(look_through_own(self));
  }

  // Between any two awaits the segment may be given up, and even come back: then nothing of it is doubted.
  static Segment* find(SizeClass& size_class, std::uint64_t first) {
    const auto found = size_class.segments.find(first);
    return found == size_class.segments.end() ? nullptr : &found->second;
  }

  Task<void> look_through(SizeClass& size_class, std::uint64_t first, bool hurried) {
    const std::uint64_t deaths = session.deaths();
    const SegmentShape& shape = size_class.shape;
    fabric::Buffer bitmap = session.port().buffer(shape.bitmap_words * 8);
    const auto marked = [&bitmap](std::uint64_t word) { return base::load<std::uint64_t>(bitmap.data() + word * 8); };
    const std::uint64_t bitmap_at = bitmap_word(first, 0).offset;
    Segment* segment = find(size_class, first);
    segment->looked_through = true;
    for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
      segment->doubted[word] =
          layout::blocks_of_word(shape, word) & ~segment->free[word] & ~segment->limbo[word] & ~segment->out[word];
    }
    if (!co_await read(bitmap_at, bitmap.first(shape.bitmap_words * 8))) co_return;
    if (segment = find(size_class, first); segment == nullptr) co_return;
    for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) segment->doubted[word] &= ~marked(word);

    const std::uint64_t at_once = std::max<std::uint64_t>(1, kSweepBytes / shape.block_bytes);
    fabric::Buffer bytes = session.port().buffer(std::min(at_once, shape.blocks) * shape.block_bytes);
    for (std::uint64_t from = 0; from < shape.blocks; from += at_once) {
      const std::uint64_t count = std::min(at_once, shape.blocks - from);
      const auto doubted = [](const Segment& of, std::uint64_t block) {
        return (of.doubted[block / 64] >> (block % 64) & 1) != 0;
      };
      bool any = false;
      for (std::uint64_t i = 0; i < count; ++i) any = any || doubted(*segment, from + i);
      if (!any) continue;
      const Nanos begun = session.port().now();
      const base::MutableBytes piece = bytes.first(count * shape.block_bytes);
      if (!co_await read_piece(layout::block_offset(block_at(size_class, first, from).units), piece)) co_return;
      for (std::uint64_t i = 0; i < count; ++i) {
        if (segment = find(size_class, first); segment == nullptr || !goes_on()) co_return;
        if (!doubted(*segment, from + i)) continue;
        const std::uint64_t units = block_at(size_class, first, from + i).units;
        const bool in_use = co_await used(units, piece.subspan(i * shape.block_bytes, shape.block_bytes));
        if (segment = find(size_class, first); segment == nullptr || !goes_on()) co_return;
        if (in_use) segment->doubted[(from + i) / 64] &= ~(1ull << (from + i) % 64);
      }
      if (!hurried && hungry == 0) {
        const Nanos took = session.port().now() - begun;
        co_await session.port().sleep_for(kSweepRest * took);
        if (segment = find(size_class, first); segment == nullptr || !goes_on()) co_return;
      }
    }

    const auto lost = [](std::uint64_t word) { return word != 0; };
    if (std::any_of(segment->doubted.begin(), segment->doubted.end(), lost)) {
      const std::uint64_t era = session.era();
      while (goes_on() && session.safe_era() <= era + 2) {
        const Nanos next = session.port().now() + session.grant().tick;
        if (hungry > 0) {
          co_await session.tick_now(next);
        } else {
          co_await session.port().sleep_until(next);
        }
      }
      if (!goes_on()) co_return;
      const bool again = co_await read(bitmap_at, bitmap.first(shape.bitmap_words * 8));
      if (segment = find(size_class, first); !again || segment == nullptr || !goes_on()) co_return;
      for (std::uint64_t word = 0; word < shape.bitmap_words; ++word) {
        const std::uint64_t free = segment->doubted[word] & ~marked(word);
        segment->doubted[word] = 0;
        add_free(size_class, *segment, word, free);
        reclaimed += static_cast<std::uint64_t>(std::popcount(free));
      }
    }
    segment->looked_through = false;
    segment->examined = std::max(segment->examined, deaths + 1);
    size_class.scan_at = size_class.takes;
    for (SizeClass::Full& full : size_class.full) full.found = false;
  }

  // Runs can be longer than what one READ may carry.
  Task<bool> read_piece(std::uint64_t offset, base::MutableBytes into) {
    for (std::uint64_t at = 0; at < into.size(); at += kSweepBytes) {
      const bool came =
          co_await read(offset + at, into.subspan(at, std::min<std::uint64_t>(kSweepBytes, into.size() - at)));
      if (!came) co_return false;
    }
    co_return true;
  }

  // Whether a block may be in use.
  Task<bool> used(std::uint64_t units, base::Bytes block) {
    const auto extent = layout::read_extent(block, units);
    if (!extent) co_return false;
    const base::Bytes whole = block.first(layout::extent_bytes(extent->key.size(), extent->value.size()));
    for (int i = 0; i < kJudgements && goes_on(); ++i) {
      const Result<bool> refers = co_await references->refers(units, whole, sweep_deadline(), background);
      if (refers.ok()) co_return *refers;
      if (goes_on()) co_await session.port().sleep_for(session.grant().tick);
    }
    co_return true;
  }

  // --- Segments of other classes

  // A heap may be full of segments of which hardly anything is in use, each of a size of block that nobody wants any
  // more. Some of these are emptied into the others of their class: a client that needs room writes the pairs in them
  // anew, each by an ordinary replace of the index, so that nobody can tell it from a client that puts the value that
  // is there. If it dies in the middle, it leaves what any writer leaves. While a segment is being emptied nothing in
  // it is handed out; so what is in use becomes less, until all of it is free and it goes back to the memory node,
  // where it becomes a segment of any class. Only segments are emptied whose blocks in use have room elsewhere, and of
  // each at least a quarter is free.

  // True: this client is at it, for this class or another.
  bool empty_others(const std::shared_ptr<State>& self, const SizeClass& wanted) {
    if (references == nullptr || released || !session.alive()) return false;
    if (emptying) {
      // What is copied needs blocks of the class that is being emptied: it must not wait for itself.
      const auto emptied_now = [](const auto& one) { return one.second.emptied; };
      return std::none_of(wanted.segments.begin(), wanted.segments.end(), emptied_now);
    }
    if (session.port().now() < none_sparse_until) return false;
    emptying = true;
    session.background().spawn(empty_in_background(self, wanted.id));
    return true;
  }

  static Task<void> empty_in_background(std::shared_ptr<State> self, std::uint64_t wanted) {
    const std::uint64_t before = self->emptied;
    co_await self->empty_some(wanted, self->sweep_deadline());
    if (self->emptied == before) {
      self->none_sparse_until = self->session.port().now() + kBarrenTicks * self->session.grant().tick;
    }
    self->emptying = false;
    self->swept.wake_all();
  }

  struct Sparse {
    SizeClass* size_class = nullptr;
    std::uint64_t first = 0;
  };

  Task<void> hold(SizeClass& size_class) {
    while (size_class.busy) (void)co_await ready.wait(session.port().now() + session.grant().tick);
    size_class.busy = true;
  }

  // Takes on sparse orphans of other classes, which may be of no use to anybody as they are.
  Task<void> gather(std::uint64_t wanted) {
    std::vector<Sparse> gathered;
    while (gathered.size() < kGathered && goes_on()) {
      bool orphan = false;
      const auto got = co_await inherit(wanted, layout::AdoptSegmentRequest::kSparse, orphan);
      if (!got) break;
      SizeClass& size_class = class_of(got->size_class, got->run);
      add_segment(size_class, got->first, orphan ? Origin::orphan : Origin::dead);
      gathered.push_back({&size_class, got->first});
    }
    for (const Sparse& one : gathered) {
      co_await hold(*one.size_class);
      if (goes_on() && find(*one.size_class, one.first) != nullptr) {
        std::vector<std::uint64_t> firsts(1, one.first);
        (void)co_await scan(*one.size_class, std::move(firsts), sweep_deadline(), background);
      }
      let_go(*one.size_class);
    }
  }

  Task<void> add_fresh(SizeClass& size_class, Nanos deadline) {
    const auto granted = co_await ask_for_segments(size_class, Purpose::addition, false, deadline, background);
    if (!granted.ok() || granted->status != 0) co_return;
    add_segment(size_class, granted->first,
                granted->adopted == 0   ? Origin::fresh
                : granted->adopted == 1 ? Origin::orphan
                                        : Origin::dead);
    if (granted->adopted == 0) co_return;
    std::vector<std::uint64_t> one(1, granted->first);
    (void)co_await scan(size_class, std::move(one), deadline, background);
  }

  // What is in limbo now is free afterwards.
  Task<void> pass_eras(Nanos deadline) {
    const std::uint64_t era = limbo_era();
    while (goes_on() && session.safe_era() <= era && session.port().now() < deadline) {
      session.hurry_eras();
      co_await session.tick_now(std::min(deadline, session.port().now() + session.grant().tick));
    }
    for (auto& [id, size_class] : classes) settle(size_class);
  }

  // The emptiest first, as long as the others of the class have room for what is in them.
  std::vector<Sparse> choose_sparse(std::uint64_t wanted) {
    std::vector<Sparse> chosen;
    for (auto& [id, size_class] : classes) {
      if (size_class.id == wanted || size_class.id == kRun) continue;
      const std::uint64_t blocks = size_class.shape.blocks;
      std::vector<std::pair<std::uint64_t, std::uint64_t>> by_use;  // blocks in use, first
      for (const auto& [first, segment] : size_class.segments) {
        if (segment.out_count > 0 || segment.looked_through || segment.emptied) continue;
        const std::uint64_t used = blocks - segment.free_count - segment.limbo_count;
        if (used > 0 && used <= blocks - blocks / kSparse) by_use.emplace_back(used, first);
      }
      std::sort(by_use.begin(), by_use.end());
      std::uint64_t needed = 0, room = size_class.free_count;
      for (const auto& [used, first] : by_use) {
        if (chosen.size() == kEmptied) return chosen;
        const std::uint64_t free = size_class.segments.at(first).free_count;
        needed += used;
        room -= free;
        if (needed > room) break;
        chosen.push_back({&size_class, first});
      }
    }
    return chosen;
  }

  Task<void> empty_some(std::uint64_t wanted, Nanos deadline) {
    co_await gather(wanted);
    co_await pass_eras(deadline);
    if (!goes_on()) co_return;
    std::vector<Sparse> chosen = choose_sparse(wanted);
    for (const Sparse& one : chosen) {
      Segment& segment = one.size_class->segments.at(one.first);
      segment.emptied = true;
      one.size_class->free_count -= segment.free_count;
      put_in_rank(*one.size_class, segment);
    }
    for (const Sparse& one : chosen) {
      const Segment* const segment = find(*one.size_class, one.first);
      if (segment == nullptr) continue;
      std::vector<std::uint64_t> units;
      for (std::uint64_t block = 0; block < one.size_class->shape.blocks; ++block) {
        const std::uint64_t bit = 1ull << block % 64;
        if (((segment->free[block / 64] | segment->limbo[block / 64]) & bit) != 0) continue;
        units.push_back(block_at(*one.size_class, one.first, block).units);
      }
      const Status rewritten = co_await references->rewrite(std::move(units), one.size_class->shape.block_bytes,
                                                            sweep_deadline(), background);
      if (!goes_on()) co_return;
      if (rewritten.code() == Code::out_of_memory) break;  // others have taken the room
    }
    co_await return_emptied(chosen, deadline);
    for (const Sparse& one : chosen) {
      Segment* const segment = find(*one.size_class, one.first);
      if (segment == nullptr || !segment->emptied) continue;
      segment->emptied = false;
      one.size_class->free_count += segment->free_count;
      put_in_rank(*one.size_class, *segment);
    }
    // What this client can do without, others may be short of.
    for (auto& [id, size_class] : classes) {
      if (size_class.busy || !goes_on()) continue;
      size_class.busy = true;
      co_await orphan(size_class, surplus(size_class, session.pressure()), sweep_deadline(), background);
      let_go(size_class);
    }
  }

  // Those of which everything comes to be free; what others have freed there, their bitmaps say.
  Task<void> return_emptied(const std::vector<Sparse>& chosen, Nanos deadline) {
    for (int eras = kEmptyingEras; eras > 0 && goes_on(); --eras) {
      bool left = false;
      for (const Sparse& one : chosen) {
        co_await hold(*one.size_class);
        Segment* segment = find(*one.size_class, one.first);
        if (segment != nullptr && segment->emptied && goes_on()) {
          std::vector<std::uint64_t> firsts(1, one.first);
          (void)co_await scan(*one.size_class, std::move(firsts), sweep_deadline(), background);
          settle(*one.size_class);
          segment = find(*one.size_class, one.first);
          if (segment != nullptr && wholly_free(*one.size_class, *segment)) {
            remove_segment(*one.size_class, one.first);
            co_await give_back(one.first, 1, false, sweep_deadline(), background);
            ++emptied;
          } else {
            left = left || segment != nullptr;
          }
        }
        let_go(*one.size_class);
      }
      if (!left || session.port().now() >= deadline) co_return;
      co_await pass_eras(deadline);
    }
  }

  // --- Blocks for operations

  // While it lives, what the class has come by is not given up before a block of it is free.
  class Wait {
   public:
    explicit Wait(SizeClass& size_class) : size_class_(size_class) { ++size_class_.waiting; }
    Wait(const Wait&) = delete;
    ~Wait() { --size_class_.waiting; }

   private:
    SizeClass& size_class_;
  };

  Task<Result<Block>> acquire(const std::shared_ptr<State>& self, SizeClass& size_class, std::uint64_t bytes,
                              Purpose purpose, Nanos deadline, Cost& cost) {
    fabric::Port& port = session.port();
    const Nanos tick = session.grant().tick;
    const int most_patience = purpose == Purpose::replacement ? kPatienceTicksToReplace : kPatienceTicks;
    int patience = most_patience, eras = kPatienceEras;
    const Wait wait(size_class);
    Block block;
    while (!take(size_class, purpose, block)) {
      if (!session.alive() || released) co_return gone();
      if (port.now() >= deadline) {
        co_return Status(Code::timed_out, "no block of " + std::to_string(bytes) +
                                              " bytes came free before the deadline; nothing was done");
      }
      if (size_class.busy) {
        (void)co_await ready.wait(deadline);
        continue;
      }
      size_class.busy = true;
      const bool in_vain = most_patience - patience >= kPatienceTicks;
      auto refilled = co_await refill(size_class, purpose, true, in_vain, deadline, cost);
      if (refilled.ok() && *refilled == Refill::got) (void)co_await trim(size_class, false, deadline, cost);
      let_go(size_class);
      if (!refilled.ok()) co_return refilled.status();
      if (*refilled == Refill::got) continue;
      if (*refilled == Refill::wait) {
        co_await next_era(size_class, purpose, deadline);
        continue;
      }
      if (*refilled == Refill::rests && eras-- > 0) {
        co_await next_era(size_class, purpose, deadline);  // what comes free then may also go to others
        continue;
      }
      look_after_own(self);
      if (take_over(self, &size_class) || looking_through_own) {
        ++hungry;
        (void)co_await swept.wait(std::min(deadline, port.now() + tick));
        --hungry;
        continue;
      }
      if (empty_others(self, size_class)) {
        (void)co_await swept.wait(std::min(deadline, port.now() + tick));
        continue;
      }
      if (co_await return_spares(deadline, cost)) {
        // Spares of other classes are free when the era is over.
        co_await next_era(size_class, purpose, deadline);
      } else if (patience-- > 0) {
        // The node tells the others that it is short of segments.
        co_await port.sleep_until(std::min(deadline, port.now() + tick));
      } else {
        size_class.full_for(purpose) = {.found = true,
                                        .tried_until = port.now() + kBarrenTicks * tick,
                                        .believed_until = port.now() + 2 * kBarrenTicks * tick};
        co_return full(bytes);
      }
    }
    refill_ahead(self, size_class);
    co_return block;
  }

  // Set while the heap was found full, so that no operation waits for what is not there.
  static Task<void> try_again(std::shared_ptr<State> self, SizeClass& size_class, std::uint64_t bytes,
                              Purpose purpose) {
    const Nanos deadline = self->session.port().now() + 4 * self->session.grant().failure_timeout;
    auto block = co_await self->acquire(self, size_class, bytes, purpose, deadline, self->background);
    if (block.ok()) {
      self->discard(self, *block);
    } else {
      SizeClass::Full& still = size_class.full_for(purpose);
      still.tried_until = self->session.port().now() + kBarrenTicks * self->session.grant().tick;
      still.believed_until = still.tried_until + kBarrenTicks * self->session.grant().tick;
    }
  }

  void discard(const std::shared_ptr<State>& self, Block block) {
    SizeClass& size_class = class_for(block.bytes);
    std::uint64_t first = 0, index = 0;
    FARPOOL_CHECK(find_place(size_class, block.units, first, index));
    const auto own = size_class.segments.find(first);
    if (own == size_class.segments.end()) {  // its segment was given up meanwhile
      Cost nobodys;
      return free(self, block.units, block.bytes, nobodys);
    }
    const std::uint64_t bit = 1ull << index % 64;
    take_in(own->second, index / 64, bit);
    FARPOOL_CHECK(((own->second.free[index / 64] | own->second.limbo[index / 64]) & bit) == 0);
    add_free(size_class, own->second, index / 64, bit);
  }

  void free(const std::shared_ptr<State>& self, std::uint64_t units, std::uint64_t bytes, Cost& cost) {
    std::uint64_t first = 0, index = 0;
    if (bytes == 0 || layout::run_segments(bytes, segment_bytes) > heap_segments) {
      ++anomalies;
      return;
    }
    SizeClass& size_class = class_for(bytes);
    if (!find_place(size_class, units, first, index)) {
      ++anomalies;
      return;
    }
    const std::uint64_t bit = 1ull << index % 64;
    if (const auto own = size_class.segments.find(first); own != size_class.segments.end()) {
      Segment& segment = own->second;
      if (((segment.free[index / 64] | segment.limbo[index / 64]) & bit) != 0) {
        ++anomalies;
      } else {
        add_limbo(size_class, segment, index / 64, bit);  // its owner needs no message
      }
      return;
    }
    if (!session.alive()) return;  // nobody can be told; it stays until it is repaired
    const std::uint64_t offset = bitmap_word(first, index / 64).offset;
    for (Freed& one : freed) {
      if (one.offset != offset) continue;
      if ((one.bits & bit) != 0) {
        ++anomalies;
      } else {
        one.bits |= bit;
      }
      return;
    }
    if (freed.empty()) freed_pin.emplace(session.pin());
    freed.push_back({offset, bit});
    std::uint64_t before = 0;
    cost.charge_background(std::array{Op::fetch_add({layout::kHeap, offset}, before, bit)});
    if (!flushing) {
      flushing = true;
      session.background().spawn(flush(self));
    }
  }

  static Status full(std::uint64_t bytes) {
    return {Code::out_of_memory, "the pool's heap has no room for a block of " + std::to_string(bytes) +
                                     " bytes; delete keys or give the pool more memory"};
  }
};

Heap::Heap(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes)
    : state_(std::make_shared<State>(session, heap_bytes, segment_bytes)) {}
Heap::~Heap() = default;

Task<Result<Block>> Heap::allocate(std::uint64_t bytes, Purpose purpose, Nanos deadline, Cost& cost) {
  if (std::optional<Block> block = take(bytes, purpose)) co_return *block;
  State& state = *state_;
  if (!state.session.alive() || state.released) co_return state.gone();
  if (layout::run_segments(bytes, state.segment_bytes) > state.heap_segments) co_return State::full(bytes);
  SizeClass& size_class = state.class_for(bytes);
  SizeClass::Full& full = size_class.full_for(purpose);
  const Nanos now = state.session.port().now();
  // What was found long ago, before a pause, says nothing any more: much may have been deleted since.
  if (!full.found || now >= full.believed_until || state.session.pressure() == layout::Pressure::none) {
    full.found = false;
    co_return co_await state.acquire(state_, size_class, bytes, purpose, deadline, cost);
  }
  if (now >= full.tried_until) {
    full.tried_until = std::numeric_limits<Nanos>::max();  // until it has been
    state.session.background().spawn(State::try_again(state_, size_class, bytes, purpose));
  }
  co_return State::full(bytes);
}

void Heap::published(Block block) {
  State& state = *state_;
  SizeClass& size_class = state.class_for(block.bytes);
  std::uint64_t first = 0, index = 0;
  FARPOOL_CHECK(state.find_place(size_class, block.units, first, index));
  // The segment is not there if the heap has been released.
  if (Segment* own = State::find(size_class, first); own != nullptr)
    State::take_in(*own, index / 64, 1ull << index % 64);
}

std::optional<Block> Heap::take(std::uint64_t bytes, Purpose purpose) {
  State& state = *state_;
  if (state.released || layout::run_segments(bytes, state.segment_bytes) > state.heap_segments) return std::nullopt;
  SizeClass& size_class = state.class_for(bytes);
  Block block;
  if (!state.take(size_class, purpose, block)) return std::nullopt;
  state.refill_ahead(state_, size_class);
  return block;
}

Purpose Heap::purpose_of(std::uint64_t bytes, std::uint64_t before) const {
  const auto room = [this](std::uint64_t asked) {
    const std::uint64_t segment = state_->segment_bytes, size_class = layout::size_class_for(asked, segment);
    return size_class == layout::kRun ? layout::run_segments(asked, segment) * segment
                                      : layout::block_bytes(size_class);
  };
  return before != 0 && room(bytes) <= room(before) ? Purpose::replacement : Purpose::addition;
}

void Heap::discard(Block block) { state_->discard(state_, block); }

void Heap::free(std::uint64_t units, std::uint64_t bytes, Cost& cost) { state_->free(state_, units, bytes, cost); }

void Heap::set_references(References& references) { state_->references = &references; }

Task<void> Heap::maintain(Nanos deadline) {
  const std::shared_ptr<State> state = state_;
  (void)state->take_over(state, nullptr);
  state->look_after_own(state);
  const layout::Pressure pressure = state->session.pressure();
  const bool scarce = pressure != layout::Pressure::none;
  const std::optional<std::uint64_t> quiet = state->next_quiet_class();
  for (auto& [id, size_class] : state->classes) {
    if (size_class.busy || !state->session.alive() || state->released) continue;
    size_class.busy = true;
    state->look_at_demand(size_class);
    state->hurry_in_time(size_class);
    if ((scarce || id == quiet) && !size_class.segments.empty()) {
      const Status scanned = co_await state->scan(
          size_class, scarce ? State::firsts_of(size_class) : State::next_few(size_class), deadline, state->background);
      if (scanned.ok()) {
        co_await state->orphan(size_class, State::surplus(size_class, pressure), deadline, state->background);
      }
    }
    (void)co_await state->trim(size_class, false, deadline, state->background);
    state->let_go(size_class);
  }
}

Task<void> Heap::compact(Nanos deadline, bool room) {
  const std::shared_ptr<State> state = state_;
  if (state->references == nullptr || state->emptying || !state->goes_on()) co_return;
  state->emptying = true;
  for (auto& [id, size_class] : state->classes) {
    if (!room || size_class.id == kRun || size_class.busy || !state->goes_on()) continue;
    size_class.busy = true;
    co_await state->add_fresh(size_class, deadline);
    state->let_go(size_class);
  }
  co_await state->empty_some(kRun, deadline);
  state->emptying = false;
  state->swept.wake_all();
}

Task<void> Heap::release(Nanos deadline) {
  const std::shared_ptr<State> state = state_;
  state->released = true;
  Cost cost;
  for (auto& [id, size_class] : state->classes) {
    while (size_class.busy && state->session.port().now() < deadline) (void)co_await state->ready.wait(deadline);
    if (size_class.busy) continue;
    size_class.busy = true;
    (void)co_await state->trim(size_class, true, deadline, cost);
    // One that is being looked through goes to the dead when the session has ended.
    std::vector<std::uint64_t> known = State::firsts_of(size_class);
    std::erase_if(known, [&size_class](std::uint64_t first) { return size_class.segments.at(first).looked_through; });
    if (state->session.alive()) co_await state->orphan(size_class, std::move(known), deadline, cost);
    state->let_go(size_class);
  }
}

Heap::Usage Heap::usage() const {
  Usage usage;
  usage.anomalies = state_->anomalies;
  usage.taken_over = state_->taken_over;
  usage.emptied = state_->emptied;
  usage.reclaimed = state_->reclaimed;
  usage.background = state_->background;
  for (const auto& [id, size_class] : state_->classes) {
    usage.segments += size_class.segments.size() * size_class.run;
    usage.blocks_free += size_class.free_count;
    usage.blocks_limbo += size_class.limbo_count;
  }
  return usage;
}

}  // namespace farpool::heap
