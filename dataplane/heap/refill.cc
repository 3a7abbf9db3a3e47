// SPDX-License-Identifier: Apache-2.0
// How a size class gets blocks, and gives segments back.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "fabric/fabric.h"
#include "heap/ledger.h"
#include "heap/state.h"
#include "layout/regions.h"

namespace farpool::heap {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using task::Task;

constexpr std::size_t kAtomicsPerChain = 16;  // within what a responder grants

}  // namespace

// Posts as many in a chain as a responder grants.
Task<bool> Heap::State::add_all(std::vector<BitmapAdd> adds, Nanos deadline, Cost& cost) {
  std::array<std::uint64_t, kAtomicsPerChain> before{};
  std::array<Op, kAtomicsPerChain> chain;
  for (std::size_t from = 0; from < adds.size(); from += kAtomicsPerChain) {
    const std::size_t count = std::min(kAtomicsPerChain, adds.size() - from);
    for (std::size_t i = 0; i < count; ++i) {
      chain[i] = Op::fetch_add({layout::kHeap, adds[from + i].offset}, before[i], adds[from + i].bits);
    }
    if ((co_await session.post({chain.data(), count}, deadline, cost)).fate != Fate::done) co_return false;
  }
  co_return true;
}

Task<Status> Heap::State::scan(SizeClass& size_class, std::vector<std::uint64_t> firsts, Nanos deadline, Cost& cost) {
  const std::size_t bytes = size_class.shape.bitmap_words * 8;
  for (std::size_t from = 0; from < firsts.size(); from += kScanSegments) {
    const std::size_t count = std::min(kScanSegments, firsts.size() - from);
    fabric::Buffer buffer = session.port().buffer(count * bytes);
    std::array<Op, kScanSegments> reads;
    for (std::size_t i = 0; i < count; ++i) {
      reads[i] =
          Op::read({layout::kHeap, size_class.bitmap_at(firsts[from + i], 0)}, buffer.span().subspan(i * bytes, bytes));
    }
    if ((co_await session.post({reads.data(), count}, deadline, cost)).fate != Fate::done) co_return gone();

    std::vector<BitmapAdd> taken;
    for (std::size_t i = 0; i < count; ++i) {
      const base::Bytes bitmap = buffer.span().subspan(i * bytes, bytes);
      ledger.anomalies += size_class.take_marks(firsts[from + i], bitmap, session.era(), taken);
    }
    if (!co_await add_all(std::move(taken), deadline, cost)) co_return gone();
  }
  co_return Status();
}

Task<Status> Heap::State::scan_one(SizeClass& size_class, std::uint64_t first, Nanos deadline, Cost& cost) {
  std::vector<std::uint64_t> one(1, first);
  co_return co_await scan(size_class, std::move(one), deadline, cost);
}

Task<Result<std::size_t>> Heap::State::scan_some(SizeClass& size_class, Nanos deadline, Cost& cost) {
  std::vector<std::uint64_t> firsts = size_class.next_few(kScanSegments);
  const std::size_t count = firsts.size();
  const std::uint64_t before = size_class.ever_free();
  Status scanned = co_await scan(size_class, std::move(firsts), deadline, cost);
  if (!scanned.ok()) co_return scanned;
  size_class.scanned(before);
  settle(size_class);
  co_return count;
}

Task<Result<layout::AllocateSegmentsReply>> Heap::State::ask_for_segments(const SizeClass& size_class, Purpose purpose,
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
  if (granted.status == 0 &&
      (!ledger.has_segments(granted.first, size_class.run) || size_class.segments().contains(granted.first))) {
    co_return Status(Code::corrupt, "the memory node granted heap segment " + std::to_string(granted.first) +
                                        ", which it does not have or has granted before");
  }
  co_return granted;
}

bool Heap::State::add_granted(SizeClass& size_class, const layout::AllocateSegmentsReply& granted) {
  using enum SizeClass::Origin;
  const auto origin = granted.adopted == 0 ? fresh : granted.adopted == 1 ? orphan : dead;
  ledger.add(size_class, granted.first, origin, session.deaths());
  return origin == fresh;
}

// Ignores what the node answers: the segment is no longer this client's.
Task<void> Heap::State::give_back(std::uint64_t first, std::uint64_t count, bool orphan, Nanos deadline, Cost& cost) {
  fabric::Buffer request = session.port().buffer(sizeof(layout::ReturnSegmentsRequest));
  fabric::Buffer reply = session.port().buffer(sizeof(layout::ReturnSegmentsReply));
  base::store(request.data(),
              layout::ReturnSegmentsRequest{.first = first, .count = count, .orphan = orphan ? 1u : 0u});
  const std::array chain{Op::call(layout::kReturnSegments, request.span(), reply.span())};
  co_await session.post(chain, deadline, cost);
}

Task<Result<Refill>> Heap::State::refill(SizeClass& size_class, Purpose purpose, bool hurried, bool in_vain,
                                         Nanos deadline, Cost& cost) {
  std::size_t looked_at = 0;
  if (size_class.scan_is_due()) {
    auto scanned = co_await scan_some(size_class, deadline, cost);
    if (!scanned.ok()) co_return scanned.status();
    looked_at = *scanned;
    if (has_room(size_class, purpose) && hurried) co_return Refill::got;
  }
  const Nanos now = session.port().now(), tick = session.grant().tick;
  size_class.look_at_demand(now, tick);
  hurry_in_time(size_class);
  if (size_class.waits_for_era(hurried, now, tick)) co_return Refill::wait;
  auto granted = co_await ask_for_segments(size_class, purpose, in_vain, deadline, cost);
  if (!granted.ok()) co_return granted.status();
  if (granted->status == 0) {
    size_class.scan_soon();
    if (add_granted(size_class, *granted)) co_return Refill::got;
    Status scanned = co_await scan_one(size_class, granted->first, deadline, cost);
    if (!scanned.ok()) co_return scanned;
    co_return Refill::wait;  // its free blocks are in limbo
  }
  // The node has no more: only blocks that others have freed are left, in any segment.
  while (size_class.limbo_count() == 0 && !has_room(size_class, purpose) && looked_at < size_class.segments().size()) {
    auto scanned = co_await scan_some(size_class, deadline, cost);
    if (!scanned.ok()) co_return scanned.status();
    looked_at += *scanned;
  }
  size_class.scan_soon();
  if (has_room(size_class, purpose)) co_return Refill::got;
  // A replacement frees one block for each that it takes, so waiting for limbo is sure to end. An addition frees none,
  // and might wait for ever.
  if (purpose == Purpose::replacement && size_class.limbo_count() > 0) co_return Refill::wait;
  const bool comes = size_class.unused() > size_class.kept(purpose, session.pressure());
  co_return comes || granted->status == 2 ? Refill::rests : Refill::full;
}

Task<bool> Heap::State::trim(SizeClass& size_class, bool all, Nanos deadline, Cost& cost) {
  settle(size_class);
  const std::vector<std::uint64_t> spare = size_class.spare(all);
  for (const std::uint64_t first : spare) size_class.remove(first);
  for (const std::uint64_t first : spare) co_await give_back(first, size_class.run, false, deadline, cost);
  co_return !spare.empty();
}

Task<void> Heap::State::orphan(SizeClass& size_class, std::vector<std::uint64_t> firsts, Nanos deadline, Cost& cost) {
  std::vector<BitmapAdd> marks;
  for (const std::uint64_t first : firsts) size_class.give_up(first, marks);
  if (!co_await add_all(std::move(marks), deadline, cost)) co_return;
  for (const std::uint64_t first : firsts) co_await give_back(first, size_class.run, true, deadline, cost);
}

Task<void> Heap::State::orphan_surplus(SizeClass& size_class) {
  if (size_class.busy || !goes_on()) co_return;
  size_class.busy = true;
  co_await orphan(size_class, size_class.surplus(session.pressure()), sweep_deadline(), background);
  let_go(size_class);
}

Task<bool> Heap::State::return_spares(Nanos deadline, Cost& cost) {
  bool any = false;
  for (auto& [id, size_class] : ledger.classes()) {
    if (size_class.busy) continue;
    size_class.busy = true;
    const bool gave = co_await trim(size_class, true, deadline, cost);
    any = any || gave;
    let_go(size_class);
  }
  co_return any;
}

void Heap::State::refill_ahead(Self self, SizeClass& size_class) {
  if (size_class.busy || !size_class.wants_refill() || session.port().now() < size_class.quiet_until) return;
  size_class.busy = true;
  session.background().spawn(refill_in_background(self, size_class));
}

Task<void> Heap::State::refill_in_background(std::shared_ptr<State> self, SizeClass& size_class) {
  const Nanos deadline = self->session.port().now() + self->session.grant().failure_timeout;
  auto refilled = co_await self->refill(size_class, Purpose::addition, false, false, deadline, self->background);
  if (!refilled.ok() || *refilled != Refill::got) {
    size_class.quiet_until = self->session.port().now() + self->session.grant().tick / 16;
  }
  self->let_go(size_class);
}

}  // namespace farpool::heap
