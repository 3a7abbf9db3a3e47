// SPDX-License-Identifier: Apache-2.0
// Looks for blocks that got lost when clients died.
//
// A client that died leaves these blocks in its segments: blocks that entries point to; blocks that others have freed
// and marked in the bitmap; blocks that were free as far as it alone knew, or that it had filled and not published; and
// blocks that a client unlinked and died before marking them. The last kind also lies in the segments of living
// clients. Only unmarked blocks are in question, and their bytes decide. A block is garbage if it does not hold a whole
// extent, because an extent is whole from before an entry points to it until no entry does. It is also garbage if the
// index says that no entry points to it.
//
// A block found so is not free yet, because another client may still have its address or be about to mark it free.
// Suppose that client B unlinked X before the index answered, when this session's era was e. The node's era was at most
// e + 1 then, so B's operation had pinned an era of at most e + 1. As long as it runs, the node's era does not pass
// e + 2. Before it ends, it tells B's heap of the block; that heap pins what B knows as the era then, at most e + 2,
// until the mark is in the bitmap. So once the safe era is beyond e + 2, every mark that a live client makes for X is
// there, the dead clients are fenced and make none, and readers that saw the entry are gone. The bitmap is read again:
// a marked block is left to the ordinary scan, which takes the mark back; an unmarked block will never be marked. It is
// counted here, and only here.
//
// This client uses the segment meanwhile. It never doubts a block that is about to be published, and stops doubting a
// block that is freed in between, even if it hands that block out again.
//
// Nothing is written before that. If this client dies in the middle, the segment is a dead client's again, unchanged.
#include <algorithm>
#include <array>
#include <string>

#include "base/bytes.h"
#include "fabric/fabric.h"
#include "heap/ledger.h"
#include "heap/state.h"
#include "layout/extent.h"
#include "layout/regions.h"

namespace farpool::heap {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using layout::kRun;
using task::Task;

constexpr std::size_t kSweeps = 4;                // segments of the dead that one client looks through at a time
constexpr std::uint64_t kSweepBytes = 64 * 1024;  // that one READ of a segment reads
constexpr Nanos kSweepRest = 3;  // rests so many times as long as a piece of its own segments has taken
constexpr int kJudgements = 4;   // questions to the index about one block before it counts as in use

}  // namespace

Task<void> Heap::State::sweep(std::shared_ptr<State> self, std::uint64_t size_class, std::uint64_t run) {
  bool orphan = false;
  const auto segment = co_await self->inherit(size_class, run, orphan);
  if (segment) {
    SizeClass& of = self->ledger.class_of(segment->size_class, segment->run);
    self->ledger.add(of, segment->first, SizeClass::Origin::dead, self->session.deaths());
    co_await self->look_through(of, segment->first, true);
    // Clients that have come in place of the dead would otherwise take new segments for what this client can spare.
    co_await self->orphan_surplus(of);
  }
  --self->sweeping;
  self->swept.wake_all();
}

bool Heap::State::take_over(Self self, const SizeClass* wanted) {
  if (references == nullptr || released) return false;
  while (sweeping < std::min<std::uint64_t>(kSweeps, session.dead_segments()) && session.alive() &&
         session.port().now() >= none_dead_until) {
    ++sweeping;
    session.background().spawn(sweep(self, wanted == nullptr ? 0 : wanted->id, wanted == nullptr ? 1 : wanted->run));
  }
  return sweeping > 0;
}

Task<std::optional<layout::AdoptSegmentReply>> Heap::State::inherit(std::uint64_t size_class, std::uint64_t run,
                                                                    bool& orphan) {
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
      given.run > 0 && ledger.has_segments(given.first, given.run) &&
      (given.size_class == kRun || (given.run == 1 && given.size_class <= layout::largest_class(ledger.segment_bytes)));
  if (!fits || ledger.class_of(given.size_class, given.run).segments().contains(given.first)) {
    session.end({Code::corrupt, "the memory node handed over heap segment " + std::to_string(given.first) +
                                    ", which it does not have or has handed out before"});
    co_return std::nullopt;
  }
  if (!orphan) ++taken_over;
  co_return given;
}

Task<void> Heap::State::look_through_own(std::shared_ptr<State> self) {
  for (bool any = true; any && self->goes_on();) {
    any = false;
    const std::uint64_t deaths = self->session.deaths();
    for (auto& [id, size_class] : self->ledger.classes()) {
      for (const std::uint64_t first : size_class.firsts()) {
        const Segment* segment = size_class.find(first);
        if (segment == nullptr || segment->is_looked_through() || segment->examined() > deaths) continue;
        any = true;
        co_await self->look_through(size_class, first, false);
        if (!self->goes_on()) break;
      }
    }
    if (!any) self->ledger.all_examined(deaths);
  }
  self->looking_through_own = false;
  self->swept.wake_all();
}

void Heap::State::look_after_own(Self self) {
  if (references == nullptr || released || looking_through_own || ledger.is_examined(session.deaths())) return;
  looking_through_own = true;
  session.background().spawn(look_through_own(self));
}

// While it waits, the segment may be given up. This client may even get the same one again, and look through it anew:
// what this look has learned is not true there.
Task<void> Heap::State::look_through(SizeClass& size_class, std::uint64_t first, bool hurried) {
  const std::uint64_t deaths = session.deaths();
  fabric::Buffer buffer = session.port().buffer(size_class.shape.bitmap_words * 8);
  const base::MutableBytes bitmap = buffer.first(size_class.shape.bitmap_words * 8);
  const std::uint64_t bitmap_at = size_class.bitmap_at(first, 0);
  const Segment::Life life = size_class.at(first).life();
  size_class.begin_look(size_class.at(first));
  if (!co_await read(bitmap_at, bitmap)) co_return;
  Segment* segment = size_class.find(life);
  if (segment == nullptr) co_return;
  size_class.believe_marks(*segment, bitmap);
  if (!co_await ask_index(size_class, life, hurried)) co_return;
  if (segment = size_class.find(life); segment == nullptr) co_return;
  if (size_class.has_doubts(*segment)) {
    co_await outlast_marks();
    if (!goes_on()) co_return;
    const bool again = co_await read(bitmap_at, bitmap);
    if (segment = size_class.find(life); !again || segment == nullptr || !goes_on()) co_return;
    reclaimed += size_class.reclaim(*segment, bitmap);
  }
  size_class.end_look(*segment, deaths);
}

Task<bool> Heap::State::ask_index(SizeClass& size_class, Segment::Life life, bool hurried) {
  const layout::SegmentShape& shape = size_class.shape;
  const std::uint64_t at_once = std::max<std::uint64_t>(1, kSweepBytes / shape.block_bytes);
  fabric::Buffer bytes = session.port().buffer(std::min(at_once, shape.blocks) * shape.block_bytes);
  for (std::uint64_t from = 0; from < shape.blocks; from += at_once) {
    const std::uint64_t count = std::min(at_once, shape.blocks - from);
    const Segment* const segment = size_class.find(life);
    if (segment == nullptr) co_return false;
    bool any = false;
    for (std::uint64_t i = 0; i < count; ++i) any = any || segment->is_doubted(from + i);
    if (!any) continue;
    const Nanos begun = session.port().now();
    if (!co_await ask_about(size_class, life, from, count, bytes.first(count * shape.block_bytes))) co_return false;
    if (!hurried && hungry == 0) {
      const Nanos took = session.port().now() - begun;
      co_await session.port().sleep_for(kSweepRest * took);
      if (!goes_on()) co_return false;
    }
  }
  co_return true;
}

Task<bool> Heap::State::ask_about(SizeClass& size_class, Segment::Life life, std::uint64_t from, std::uint64_t count,
                                  base::MutableBytes piece) {
  const std::uint64_t block_bytes = size_class.shape.block_bytes;
  // A run can be longer than one READ.
  const std::uint64_t offset = layout::block_offset(size_class.block_at(life.first, from).units);
  for (std::uint64_t at = 0; at < piece.size(); at += kSweepBytes) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kSweepBytes, piece.size() - at);
    if (!co_await read(offset + at, piece.subspan(at, bytes))) co_return false;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    Segment* segment = size_class.find(life);
    if (segment == nullptr || !goes_on()) co_return false;
    if (!segment->is_doubted(from + i)) continue;
    const std::uint64_t units = size_class.block_at(life.first, from + i).units;
    const bool in_use = co_await used(units, piece.subspan(i * block_bytes, block_bytes));
    if (segment = size_class.find(life); segment == nullptr || !goes_on()) co_return false;
    if (in_use) size_class.believe(*segment, from + i);
  }
  co_return true;
}

Task<void> Heap::State::outlast_marks() {
  const std::uint64_t era = session.era();
  while (goes_on() && session.safe_era() <= era + 2) {
    const Nanos next = session.port().now() + session.grant().tick;
    if (hungry > 0) {
      co_await session.tick_now(next);
    } else {
      co_await session.port().sleep_until(next);
    }
  }
}

// Says whether a block may be in use.
Task<bool> Heap::State::used(std::uint64_t units, base::Bytes block) {
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

Task<bool> Heap::State::read(std::uint64_t offset, base::MutableBytes into) {
  const std::array chain{Op::read({layout::kHeap, offset}, into)};
  co_return (co_await session.post(chain, sweep_deadline(), background)).fate == Fate::done;
}

}  // namespace farpool::heap
