// SPDX-License-Identifier: Apache-2.0
#include "heap/heap.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "layout/calls.h"
#include "layout/regions.h"
#include "layout/segment.h"
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
using fabric::Remote;
using layout::kRun;
using layout::SegmentShape;
using task::Task;

constexpr std::size_t kScanSegments = 16;     // bitmaps read in one chain
constexpr std::size_t kAtomicsPerChain = 16;  // within what a responder grants
// A full heap is believed after others had this long to give back what they can spare; after that, requests fail at
// once for a while.
constexpr int kPatienceTicks = 4;
constexpr int kBarrenTicks = 8;
constexpr std::uint64_t kBitmapOffset = sizeof(layout::SegmentHeader);

// A segment of blocks that this client owns.
struct Segment {
  std::uint64_t index = 0;
  std::vector<std::uint32_t> free;  // blocks that may be handed out
  std::uint64_t limbo = 0;          // blocks that are free but may still be read
};

// Blocks that may be reused once the safe era has passed `era`.
struct Limbo {
  std::uint64_t era = 0;
  std::uint64_t segment = 0;  // index; for a run: its first segment
  std::uint32_t block = 0;
};

struct SizeClass {
  std::uint64_t id = 0;
  SegmentShape shape;
  std::map<std::uint64_t, Segment> segments;  // by index
  Segment* current = nullptr;
  std::deque<Limbo> limbo;  // oldest era first
  std::uint64_t allocated_since_scan = 0;
  Nanos barren_until = 0;  // a scan has just found nothing and the node had nothing: do not ask again before
};

}  // namespace

struct Heap::State {
  State(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes)
      : session(session), heap_bytes(heap_bytes), segment_bytes(segment_bytes), ready(session.port()) {}

  session::Session& session;
  const std::uint64_t heap_bytes;
  const std::uint64_t segment_bytes;
  std::map<std::uint64_t, SizeClass> classes;
  std::map<std::uint64_t, std::uint64_t> runs;  // first segment -> segments, of runs this client owns
  std::deque<Limbo> run_limbo;
  // One refill (scan, CALL) at a time: those that find nothing wait for it instead of asking as well.
  bool refilling = false;
  session::WaitQueue ready;

  SizeClass& class_of(std::uint64_t id) {
    auto [entry, added] = classes.try_emplace(id);
    if (added) {
      entry->second.id = id;
      entry->second.shape = layout::segment_shape(id, segment_bytes);
    }
    return entry->second;
  }

  Block block_at(const SizeClass& size_class, std::uint64_t segment, std::uint32_t block) const {
    const std::uint64_t offset =
        segment * segment_bytes + size_class.shape.first_block + block * size_class.shape.block_bytes;
    return {.units = offset / layout::kBlockUnit, .bytes = size_class.shape.block_bytes};
  }
  struct Place {
    std::uint64_t segment;
    std::uint32_t block;
  };
  Place place_of(const SegmentShape& shape, std::uint64_t units) const {
    const std::uint64_t offset = layout::block_offset(units);
    const std::uint64_t within = offset % segment_bytes;
    FARPOOL_CHECK(offset < heap_bytes && within >= shape.first_block &&
                  (within - shape.first_block) % shape.block_bytes == 0);
    return {offset / segment_bytes, static_cast<std::uint32_t>((within - shape.first_block) / shape.block_bytes)};
  }
  Remote bitmap_word(std::uint64_t segment, std::uint32_t block) const {
    return {layout::kHeap, segment * segment_bytes + kBitmapOffset + block / 64 * 8};
  }

  // The era that a block found free now belongs to. The node's era is at most one above what the last tick told: it
  // advances only when every live session, this one among them, has published the era before.
  std::uint64_t limbo_era() const { return session.era() + 1; }

  // Moves what no session can read any more from limbo to the free lists.
  void settle(SizeClass& size_class) {
    auto& limbo = size_class.limbo;
    while (!limbo.empty() && limbo.front().era < session.safe_era()) {
      Segment& segment = size_class.segments.at(limbo.front().segment);
      segment.free.push_back(limbo.front().block);
      --segment.limbo;
      limbo.pop_front();
    }
  }

  bool take(SizeClass& size_class, Block& block) {
    if (size_class.current == nullptr || size_class.current->free.empty()) {
      settle(size_class);
      // The fullest segment with room: so that others become empty and can go back to the node.
      size_class.current = nullptr;
      for (auto& [index, segment] : size_class.segments) {
        if (!segment.free.empty() &&
            (size_class.current == nullptr || segment.free.size() < size_class.current->free.size())) {
          size_class.current = &segment;
        }
      }
      if (size_class.current == nullptr) return false;
    }
    Segment& segment = *size_class.current;
    block = block_at(size_class, segment.index, segment.free.back());
    segment.free.pop_back();
    ++size_class.allocated_since_scan;
    return true;
  }

  Status gone() const {
    const Status why = session.why();
    return {why.ok() ? Code::unavailable : why.code(), "no block could be allocated: " + why.message()};
  }

  void put_in_limbo(SizeClass& size_class, Segment& segment, std::uint32_t block) {
    size_class.limbo.push_back({limbo_era(), segment.index, block});
    ++segment.limbo;
  }

  // Reads the bitmaps of segments and takes back the bits that others have set. Returns how many blocks went into
  // limbo, or nothing if the session ended.
  Task<Result<std::uint64_t>> scan(SizeClass& size_class, std::vector<std::uint64_t> indices, Nanos deadline,
                                   Cost& cost) {
    const std::size_t words = size_class.shape.bitmap_words;
    std::uint64_t found = 0;
    for (std::size_t from = 0; from < indices.size(); from += kScanSegments) {
      const std::size_t count = std::min(kScanSegments, indices.size() - from);
      fabric::Buffer buffer = session.port().buffer(count * words * 8);
      std::array<Op, kScanSegments> reads;
      for (std::size_t i = 0; i < count; ++i) {
        reads[i] = Op::read({layout::kHeap, indices[from + i] * segment_bytes + kBitmapOffset},
                            buffer.span().subspan(i * words * 8, words * 8));
      }
      if ((co_await session.post({reads.data(), count}, deadline, cost)).fate != Fate::done) co_return gone();

      // The bits must be gone before a block is handed out again, or the next free of it would carry into its
      // neighbour.
      std::array<Op, kAtomicsPerChain> takes;
      std::array<std::uint64_t, kAtomicsPerChain> before{};
      std::size_t pending = 0;
      for (std::size_t word = 0; word < count * words; ++word) {
        const auto bits = base::load<std::uint64_t>(buffer.data() + word * 8);
        if (bits != 0) {
          const auto first = static_cast<std::uint32_t>(word % words * 64);
          takes[pending] = Op::fetch_add(bitmap_word(indices[from + word / words], first), before[pending], ~bits + 1);
          ++pending;
        }
        const bool last = word + 1 == count * words;
        if (pending == kAtomicsPerChain || (last && pending > 0)) {
          if ((co_await session.post({takes.data(), pending}, deadline, cost)).fate != Fate::done) co_return gone();
          pending = 0;
        }
      }
      for (std::size_t word = 0; word < count * words; ++word) {
        auto bits = base::load<std::uint64_t>(buffer.data() + word * 8);
        Segment& segment = size_class.segments.at(indices[from + word / words]);
        for (; bits != 0; bits &= bits - 1) {
          const auto block =
              static_cast<std::uint32_t>(word % words * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
          if (block >= size_class.shape.blocks) {
            co_return Status(Code::corrupt, "the free bitmap of heap segment " + std::to_string(segment.index) +
                                                " marks a block beyond its last; run fsck on the memory node");
          }
          put_in_limbo(size_class, segment, block);
          ++found;
        }
      }
    }
    size_class.allocated_since_scan = 0;
    co_return found;
  }

  static std::vector<std::uint64_t> indices_of(const SizeClass& size_class) {
    std::vector<std::uint64_t> indices;
    indices.reserve(size_class.segments.size());
    for (const auto& [index, segment] : size_class.segments) indices.push_back(index);
    return indices;
  }

  Task<Result<layout::AllocateSegmentsReply>> ask_for_segments(std::uint64_t count, std::uint64_t size_class,
                                                               Nanos deadline, Cost& cost) {
    fabric::Buffer request = session.port().buffer(sizeof(layout::AllocateSegmentsRequest));
    fabric::Buffer reply = session.port().buffer(sizeof(layout::AllocateSegmentsReply));
    base::store(request.data(), layout::AllocateSegmentsRequest{.count = count, .size_class = size_class});
    const std::array chain{Op::call(layout::kAllocateSegments, request.span(), reply.span())};
    const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
    if (outcome.fate != Fate::done || outcome.reply_bytes != sizeof(layout::AllocateSegmentsReply)) co_return gone();
    const auto granted = base::load<layout::AllocateSegmentsReply>(reply.data());
    if (granted.status == 0 &&
        (granted.first >= heap_bytes / segment_bytes || count > heap_bytes / segment_bytes - granted.first)) {
      co_return Status(Code::corrupt, "the memory node granted heap segment " + std::to_string(granted.first) +
                                          ", which it does not have");
    }
    co_return granted;
  }

  // Brings blocks of a class: by a scan when enough was allocated since the last one to make it worth while, else from
  // the node, else by a scan after all. True if it is worth trying again; false if the heap is full.
  Task<Result<bool>> refill(SizeClass& size_class, Nanos deadline, Cost& cost) {
    const std::uint64_t blocks = size_class.segments.size() * size_class.shape.blocks;
    const bool worth_a_scan = blocks > 0 && size_class.allocated_since_scan * 4 >= blocks;
    if (worth_a_scan) {
      auto found = co_await scan(size_class, indices_of(size_class), deadline, cost);
      if (!found.ok()) co_return found.status();
      // Enough is on its way: wait for the era rather than take more memory.
      if (*found * 4 >= blocks) {
        co_await session.tick_now(deadline);
        co_return true;
      }
    }
    auto granted = co_await ask_for_segments(1, size_class.id, deadline, cost);
    if (!granted.ok()) co_return granted.status();
    if (granted->status == 0) {
      adopt(size_class, granted->first, granted->adopted != 0);
      if (granted->adopted != 0) {
        std::vector<std::uint64_t> one(1, granted->first);
        auto found = co_await scan(size_class, std::move(one), deadline, cost);
        if (!found.ok()) co_return found.status();
      }
      co_return true;
    }
    if (!worth_a_scan && blocks > 0) {
      auto found = co_await scan(size_class, indices_of(size_class), deadline, cost);
      if (!found.ok()) co_return found.status();
    }
    if (size_class.limbo.empty()) {
      co_return false;
    }
    co_await session.tick_now(deadline);  // blocks are in limbo: what is missing is an era
    co_return true;
  }

  void adopt(SizeClass& size_class, std::uint64_t index, bool orphan) {
    Segment& segment = size_class.segments[index];
    segment.index = index;
    if (orphan) return;  // its bitmap says what is free
    segment.free.reserve(size_class.shape.blocks);
    for (std::uint64_t block = size_class.shape.blocks; block-- > 0;)
      segment.free.push_back(static_cast<std::uint32_t>(block));
    size_class.current = &segment;
  }

  static Status full(std::uint64_t bytes) {
    return {Code::out_of_memory, "the pool's heap has no room for a block of " + std::to_string(bytes) +
                                     " bytes; delete keys or give the pool more memory"};
  }

  Task<Result<Block>> allocate_run(std::uint64_t bytes, Nanos deadline, Cost& cost) {
    const std::uint64_t segments = layout::run_segments(bytes, segment_bytes);
    for (;;) {
      co_await return_settled_runs(deadline, cost);
      auto granted = co_await ask_for_segments(segments, kRun, deadline, cost);
      if (!granted.ok()) co_return granted.status();
      if (granted->status == 0) {
        runs[granted->first] = segments;
        co_return Block{.units = (granted->first * segment_bytes + layout::kRunHeader) / layout::kBlockUnit,
                        .bytes = segments * segment_bytes - layout::kRunHeader};
      }
      auto found = co_await scan_runs(deadline, cost);
      if (!found.ok()) co_return found.status();
      if (run_limbo.empty()) {
        if (!co_await return_spares(deadline, cost)) co_return full(bytes);
        continue;
      }
      if (session.port().now() >= deadline) co_return full(bytes);
      co_await session.tick_now(deadline);
    }
  }

  // Looks which runs of this client others have freed.
  Task<Result<std::uint64_t>> scan_runs(Nanos deadline, Cost& cost) {
    std::uint64_t found = 0;
    std::vector<std::uint64_t> firsts;
    for (const auto& [first, count] : runs) firsts.push_back(first);
    for (std::size_t from = 0; from < firsts.size(); from += kScanSegments) {
      const std::size_t count = std::min(kScanSegments, firsts.size() - from);
      fabric::Buffer buffer = session.port().buffer(count * 8);
      std::array<Op, kScanSegments> reads;
      for (std::size_t i = 0; i < count; ++i) {
        reads[i] = Op::read(bitmap_word(firsts[from + i], 0), buffer.span().subspan(i * 8, 8));
      }
      if ((co_await session.post({reads.data(), count}, deadline, cost)).fate != Fate::done) co_return gone();
      for (std::size_t i = 0; i < count; ++i) {
        if (base::load<std::uint64_t>(buffer.data() + i * 8) == 0) continue;
        const bool known = std::any_of(run_limbo.begin(), run_limbo.end(),
                                       [&](const Limbo& l) { return l.segment == firsts[from + i]; });
        if (known || !runs.contains(firsts[from + i])) continue;
        run_limbo.push_back({limbo_era(), firsts[from + i], 0});
        ++found;
      }
    }
    co_return found;
  }

  Task<bool> give_back(std::uint64_t first, std::uint64_t count, bool orphan, Nanos deadline, Cost& cost) {
    fabric::Buffer request = session.port().buffer(sizeof(layout::ReturnSegmentsRequest));
    fabric::Buffer reply = session.port().buffer(sizeof(layout::ReturnSegmentsReply));
    base::store(request.data(),
                layout::ReturnSegmentsRequest{.first = first, .count = count, .orphan = orphan ? 1u : 0u});
    const std::array chain{Op::call(layout::kReturnSegments, request.span(), reply.span())};
    const fabric::Outcome outcome = co_await session.post(chain, deadline, cost);
    co_return outcome.fate == Fate::done&& outcome.reply_bytes == sizeof(layout::ReturnSegmentsReply) &&
        base::load<layout::ReturnSegmentsReply>(reply.data()).status == 0;
  }

  Task<void> return_settled_runs(Nanos deadline, Cost& cost) {
    while (!run_limbo.empty() && run_limbo.front().era < session.safe_era()) {
      const std::uint64_t first = run_limbo.front().segment;
      run_limbo.pop_front();
      const std::uint64_t count = runs.at(first);
      runs.erase(first);
      co_await give_back(first, count, false, deadline, cost);
    }
  }

  // Returns every wholly free segment but the current one of each class (with `all`, that one too). True if any went.
  Task<bool> return_spares(Nanos deadline, Cost& cost) {
    bool any = false;
    for (auto& [id, size_class] : classes) {
      settle(size_class);
      for (auto entry = size_class.segments.begin(); entry != size_class.segments.end();) {
        if (entry->second.free.size() != size_class.shape.blocks) {
          ++entry;
          continue;
        }
        const std::uint64_t index = entry->first;
        if (size_class.current == &entry->second) size_class.current = nullptr;
        entry = size_class.segments.erase(entry);
        any |= co_await give_back(index, 1, false, deadline, cost);
        entry = size_class.segments.lower_bound(index);  // others may have changed the map meanwhile
      }
    }
    co_return any;
  }

  // After blocks came free: a class keeps one wholly free segment and returns the others.
  Task<void> trim(SizeClass& size_class, Nanos deadline, Cost& cost) {
    std::vector<std::uint64_t> spare;
    for (const auto& [index, segment] : size_class.segments) {
      if (segment.free.size() == size_class.shape.blocks && &segment != size_class.current) spare.push_back(index);
    }
    for (std::size_t i = 1; i < spare.size(); ++i) {
      const auto entry = size_class.segments.find(spare[i]);
      if (entry == size_class.segments.end() || entry->second.free.size() != size_class.shape.blocks ||
          size_class.current == &entry->second) {
        continue;
      }
      size_class.segments.erase(entry);
      co_await give_back(spare[i], 1, false, deadline, cost);
    }
  }

  // Gives a segment up with all that this client knows to be free in it. Blocks in limbo are free as far as the bitmap
  // goes: whoever adopts the segment waits for an era of its own.
  Task<void> orphan(SizeClass& size_class, std::uint64_t index, Nanos deadline, Cost& cost) {
    const auto entry = size_class.segments.find(index);
    if (entry == size_class.segments.end()) co_return;
    Segment segment = std::move(entry->second);
    if (size_class.current == &entry->second) size_class.current = nullptr;
    size_class.segments.erase(entry);
    const bool empty = segment.free.size() == size_class.shape.blocks;
    if (!empty) {
      std::map<std::uint32_t, std::uint64_t> words;
      for (const std::uint32_t block : segment.free) words[block / 64] |= std::uint64_t{1} << block % 64;
      std::erase_if(size_class.limbo, [&](const Limbo& limbo) {
        if (limbo.segment != index) return false;
        words[limbo.block / 64] |= std::uint64_t{1} << limbo.block % 64;
        return true;
      });
      for (const auto& [word, bits] : words) co_await post_free(bitmap_word(index, word * 64), bits);
    }
    co_await give_back(index, 1, !empty, deadline, cost);
  }

  // Segments of which a good part is free: worth an adoption by who is short.
  static std::vector<std::uint64_t> partly_free(const SizeClass& size_class) {
    std::vector<std::uint64_t> indices;
    for (const auto& [index, segment] : size_class.segments) {
      if (&segment != size_class.current && (segment.free.size() + segment.limbo) * 4 >= size_class.shape.blocks)
        indices.push_back(index);
    }
    return indices;
  }

  Task<void> post_free(Remote word, std::uint64_t bit) {
    std::uint64_t before = 0;
    const std::array chain{Op::fetch_add(word, before, bit)};
    Cost charged_already;
    co_await session.post(chain, session.port().now() + session.grant().lease, charged_already);
  }
};

Heap::Heap(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes)
    : state_(std::make_unique<State>(session, heap_bytes, segment_bytes)) {}
Heap::~Heap() = default;

Task<Result<Block>> Heap::allocate(std::uint64_t bytes, Nanos deadline, Cost& cost) {
  State& state = *state_;
  const std::uint64_t id = layout::size_class_for(bytes, state.segment_bytes);
  if (id == kRun) co_return co_await state.allocate_run(bytes, deadline, cost);
  SizeClass& size_class = state.class_of(id);
  const Nanos tick = state.session.grant().tick;
  int patience = kPatienceTicks;
  Block block;
  while (!state.take(size_class, block)) {
    if (!state.session.alive()) co_return state.gone();
    const Nanos now = state.session.port().now();
    if (now >= deadline) {
      co_return Status(Code::timed_out, "no block of " + std::to_string(bytes) +
                                            " bytes came free before the deadline; nothing was done");
    }
    if (state.refilling) {
      co_await state.ready.wait(deadline);
      continue;
    }
    if (now < size_class.barren_until) co_return State::full(bytes);
    state.refilling = true;
    auto refilled = co_await state.refill(size_class, deadline, cost);
    bool room = refilled.ok() && *refilled;
    if (refilled.ok() && !room)
      room = co_await state.return_spares(deadline, cost);  // spares of other classes make a segment
    if (refilled.ok() && room) {
      state.settle(size_class);
      co_await state.trim(size_class, deadline, cost);
    }
    state.refilling = false;
    state.ready.wake_all();
    if (!refilled.ok()) co_return refilled.status();
    if (room) {
      size_class.barren_until = 0;
    } else if (patience-- > 0 && state.session.port().now() + tick < deadline) {
      co_await state.session.port().sleep_for(tick);  // the node tells the others that it is short of segments
    } else {
      size_class.barren_until = state.session.port().now() + kBarrenTicks * tick;
      co_return State::full(bytes);
    }
  }
  co_return block;
}

void Heap::discard(Block block) {
  State& state = *state_;
  const std::uint64_t within = layout::block_offset(block.units) % state.segment_bytes;
  if (const auto run = state.runs.find(layout::block_offset(block.units) / state.segment_bytes);
      run != state.runs.end() && within == layout::kRunHeader) {
    state.run_limbo.push_front({0, run->first, 0});  // nobody has seen it: the next allocation of a run gives it back
    return;
  }
  SizeClass& size_class = state.class_of(layout::size_class_for(block.bytes, state.segment_bytes));
  const auto [segment, index] = state.place_of(size_class.shape, block.units);
  size_class.segments.at(segment).free.push_back(index);
}

void Heap::free(std::uint64_t units, std::uint64_t bytes, Cost& cost) {
  State& state = *state_;
  const std::uint64_t id = layout::size_class_for(bytes, state.segment_bytes);
  const std::uint64_t segment = layout::block_offset(units) / state.segment_bytes;
  std::uint32_t block = 0;
  if (id == kRun) {
    if (state.runs.contains(segment)) {
      state.run_limbo.push_back({state.limbo_era(), segment, 0});
      return;
    }
  } else {
    SizeClass& size_class = state.class_of(id);
    block = state.place_of(size_class.shape, units).block;
    if (const auto own = size_class.segments.find(segment); own != size_class.segments.end()) {
      state.put_in_limbo(size_class, own->second, block);  // its owner needs no message
      return;
    }
  }
  std::uint64_t before = 0;
  const std::array chain{Op::fetch_add(state.bitmap_word(segment, block), before, std::uint64_t{1} << block % 64)};
  cost.charge_background(chain);
  state.session.background().spawn(state.post_free(chain[0].at, chain[0].swap));
}

Task<void> Heap::release(Nanos deadline) {
  State& state = *state_;
  Cost cost;
  co_await state.return_settled_runs(deadline, cost);
  // A run that lives on, or that an older era may still read, becomes an orphan; the bit says whether it is free.
  for (const Limbo& limbo : state.run_limbo) co_await state.post_free(state.bitmap_word(limbo.segment, 0), 1);
  state.run_limbo.clear();
  while (!state.runs.empty()) {
    const auto [first, count] = *state.runs.begin();
    state.runs.erase(state.runs.begin());
    co_await state.give_back(first, count, true, deadline, cost);
  }
  for (auto& [id, size_class] : state.classes) {
    state.settle(size_class);
    while (!size_class.segments.empty() && state.session.alive()) {
      co_await state.orphan(size_class, size_class.segments.begin()->first, deadline, cost);
    }
  }
}

Task<void> Heap::maintain(Nanos deadline) {
  State& state = *state_;
  if (state.refilling || !state.session.alive()) co_return;
  state.refilling = true;
  Cost cost;
  const bool pressure = state.session.pressure();
  if (pressure && !state.runs.empty()) {
    auto found = co_await state.scan_runs(deadline, cost);
    if (!found.ok() && found.code() == Code::corrupt) state.session.end(found.status());
  }
  co_await state.return_settled_runs(deadline, cost);
  for (auto& [id, size_class] : state.classes) {
    if (!state.session.alive()) break;
    if (pressure && !size_class.segments.empty()) {
      auto found = co_await state.scan(size_class, State::indices_of(size_class), deadline, cost);
      if (!found.ok()) break;
      for (const std::uint64_t index : State::partly_free(size_class)) {
        co_await state.orphan(size_class, index, deadline, cost);
      }
    }
    state.settle(size_class);
    co_await state.trim(size_class, deadline, cost);
  }
  state.refilling = false;
  state.ready.wake_all();
}

Heap::Usage Heap::usage() const {
  Usage usage;
  for (const auto& [first, count] : state_->runs) usage.segments += count;
  usage.blocks_limbo = state_->run_limbo.size();
  for (const auto& [id, size_class] : state_->classes) {
    usage.segments += size_class.segments.size();
    usage.blocks_limbo += size_class.limbo.size();
    for (const auto& [index, segment] : size_class.segments) usage.blocks_free += segment.free.size();
  }
  return usage;
}

}  // namespace farpool::heap
