// SPDX-License-Identifier: Apache-2.0
#include "heap/heap.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "fabric/fabric.h"
#include "heap/ledger.h"
#include "heap/state.h"
#include "layout/regions.h"
#include "session/trips.h"

namespace farpool::heap {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Op;
using layout::kRun;
using task::Task;

// A full heap is believed after other clients had this many ticks to give back what they can spare. From then on
// requests fail at once, with two exceptions: one request in a tick, which does not wait for others; and one when this
// client has freed as much as it asks for.
constexpr int kPatienceTicks = 4, kPatienceTicksToReplace = 16;
constexpr int kStepsInATick = 4;
constexpr int kPatienceEras = 16, kImpatientEras = 4;
constexpr int kBelievedTicks = 16;

Status full(std::uint64_t bytes) {
  return {Code::out_of_memory, "the pool's heap has no room for a block of " + std::to_string(bytes) +
                                   " bytes; delete keys or give the pool more memory"};
}

// While one lives, the class keeps what it has gained until a block of it is free.
class Wait {
 public:
  explicit Wait(SizeClass& size_class) : size_class_(size_class) { ++size_class_.waiting; }
  Wait(const Wait&) = delete;
  ~Wait() { --size_class_.waiting; }

 private:
  SizeClass& size_class_;
};

}  // namespace

Status Heap::State::gone() const { return session::gone(session, Code::unavailable, "no block could be allocated"); }

Nanos Heap::State::sweep_deadline() const { return session.port().now() + 4 * session.grant().failure_timeout; }

void Heap::State::let_go(SizeClass& size_class) {
  size_class.busy = false;
  ready.wake_all();
}

Task<void> Heap::State::hold(SizeClass& size_class) {
  while (size_class.busy) (void)co_await ready.wait(session.port().now() + session.grant().tick);
  size_class.busy = true;
}

Task<Result<Block>> Heap::State::acquire(Self self, SizeClass& size_class, std::uint64_t bytes, Purpose purpose,
                                         bool patient, Nanos deadline, Cost& cost) {
  fabric::Port& port = session.port();
  const Nanos tick = session.grant().tick;
  const int ticks = purpose == Purpose::replacement ? kPatienceTicksToReplace : kPatienceTicks;
  const int most_steps = patient ? kStepsInATick * ticks : 0;
  int steps = most_steps, eras = patient ? kPatienceEras : kImpatientEras;
  bool made_up = false;  // somebody makes room for it
  const Wait wait(size_class);
  std::optional<Block> block;
  while (!(block = size_class.take(purpose, session.safe_era(), session.pressure()))) {
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
    const bool in_vain = purpose == Purpose::replacement && !made_up &&
                         (!patient || most_steps - steps >= kStepsInATick * kPatienceTicks);
    auto refilled = co_await refill(size_class, purpose, true, in_vain, deadline, cost);
    if (refilled.ok() && *refilled == Refill::got) (void)co_await trim(size_class, false, deadline, cost);
    let_go(size_class);
    if (!refilled.ok()) co_return refilled.status();
    if (*refilled == Refill::got) continue;
    if (*refilled == Refill::wait) {
      co_await next_era(size_class, purpose, deadline);
      continue;
    }
    made_up = make_room && make_room(bytes);
    if (made_up && std::exchange(purpose, Purpose::replacement) == Purpose::addition) continue;
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
      // Spare segments of other classes are free when the era is over.
      co_await next_era(size_class, purpose, deadline);
    } else if (steps > 0) {
      // The node tells the other clients that it is short of segments.
      const bool freed_some = co_await take_a_step(made_up, std::min(deadline, port.now() + tick / kStepsInATick));
      if (!freed_some) --steps;
    } else {
      size_class.full_for(purpose) = {
          .found = true,
          .tried_until = port.now() + tick,
          .believed_until = port.now() + kBelievedTicks * tick,
          .tried_after = ledger.freed() + static_cast<std::int64_t>(size_class.shape.block_bytes)};
      co_return full(bytes);
    }
  }
  refill_ahead(self, size_class);
  co_return *block;
}

// Waits for the era that is missing.
Task<void> Heap::State::next_era(const SizeClass& size_class, Purpose purpose, Nanos deadline) {
  const std::uint64_t safe = session.safe_era();
  while (session.alive() && session.safe_era() == safe && !has_room(size_class, purpose) &&
         session.port().now() < deadline) {
    co_await session.tick_now(deadline);
  }
}

Task<bool> Heap::State::take_a_step(bool made_up, Nanos until) {
  if (made_up) co_return co_await freed.wait(until);
  co_await session.port().sleep_until(until);
  co_return false;
}

void Heap::State::discard(Self self, Block block) {
  if (ledger.discard(block)) return;
  Cost nobodys;
  free(self, block.units, block.bytes, nobodys);
}

void Heap::State::free(Self self, std::uint64_t units, std::uint64_t bytes, Cost& cost) {
  const std::optional<BitmapAdd> mark = ledger.free(units, bytes, session.era());
  if (!mark) freed.wake_all();
  if (!mark || !session.alive()) return;  // if nobody can be told, it stays until it is repaired
  if (!ledger.note(*mark)) return;
  if (!noted_pin) noted_pin.emplace(session.pin());
  std::uint64_t before = 0;
  cost.charge_background(std::array{Op::fetch_add({layout::kHeap, mark->offset}, before, mark->bits)});
  if (!flushing) {
    flushing = true;
    session.background().spawn(flush(self));
  }
}

Task<void> Heap::State::flush(std::shared_ptr<State> self) {
  co_await self->session.port().sleep_until(self->session.port().now());  // the end of the turn
  while (self->ledger.has_noted()) {
    std::vector<BitmapAdd> marks = self->ledger.take_noted();
    const std::optional<session::EraPin> pin = std::move(self->noted_pin);
    self->noted_pin.reset();
    Cost charged_already;
    const Nanos deadline = self->session.port().now() + self->session.grant().failure_timeout;
    if (!co_await self->add_all(std::move(marks), deadline, charged_already)) break;
  }
  (void)self->ledger.take_noted();
  self->noted_pin.reset();
  self->flushing = false;
}

Heap::Heap(session::Session& session, std::uint64_t heap_bytes, std::uint64_t segment_bytes)
    : state_(std::make_shared<State>(session, heap_bytes, segment_bytes)) {}
Heap::~Heap() = default;

Task<Result<Block>> Heap::allocate(std::uint64_t bytes, Purpose purpose, Nanos deadline, Cost& cost) {
  if (std::optional<Block> block = take(bytes, purpose)) co_return *block;
  State& state = *state_;
  if (!state.session.alive() || state.released) co_return state.gone();
  if (!state.ledger.fits(bytes)) co_return full(bytes);
  SizeClass& size_class = state.ledger.class_for(bytes);
  if (state.session.pressure() != layout::Pressure::none && state.make_room && state.make_room(0)) {
    purpose = Purpose::replacement;
  }
  SizeClass::Full& found_full = size_class.full_for(purpose);
  const Nanos now = state.session.port().now();
  // A result from long ago, before a pause, no longer counts: much may have been deleted since.
  if (!found_full.found || now >= found_full.believed_until || state.session.pressure() == layout::Pressure::none) {
    found_full.found = false;
    co_return co_await state.acquire(state_, size_class, bytes, purpose, true, deadline, cost);
  }
  const bool freed = state.ledger.freed() >= found_full.tried_after;
  if (now < found_full.tried_until && !freed) co_return full(bytes);
  // Other requests fail meanwhile.
  found_full.tried_until = now + state.session.grant().tick;
  found_full.tried_after = std::numeric_limits<std::int64_t>::max();
  co_return co_await state.acquire(state_, size_class, bytes, purpose, freed, deadline, cost);
}

void Heap::published(Block block) { state_->ledger.published(block); }

std::optional<Block> Heap::take(std::uint64_t bytes, Purpose purpose) {
  State& state = *state_;
  if (state.released || !state.ledger.fits(bytes)) return std::nullopt;
  SizeClass& size_class = state.ledger.class_for(bytes);
  const std::optional<Block> block = size_class.take(purpose, state.session.safe_era(), state.session.pressure());
  if (block) state.refill_ahead(state_, size_class);
  return block;
}

Purpose Heap::purpose_of(std::uint64_t bytes, std::uint64_t before) const {
  return state_->ledger.purpose_of(bytes, before);
}

void Heap::discard(Block block) { state_->discard(state_, block); }

void Heap::free(std::uint64_t units, std::uint64_t bytes, Cost& cost) { state_->free(state_, units, bytes, cost); }

void Heap::set_references(References& references) { state_->references = &references; }

void Heap::set_make_room(MakeRoom make_room) { state_->make_room = std::move(make_room); }

Task<void> Heap::maintain(Nanos deadline) {
  const std::shared_ptr<State> state = state_;
  (void)state->take_over(state, nullptr);
  state->look_after_own(state);
  const layout::Pressure pressure = state->session.pressure();
  const bool scarce = pressure != layout::Pressure::none;
  const std::optional<std::uint64_t> quiet = state->ledger.next_quiet_class();
  for (auto& [id, size_class] : state->ledger.classes()) {
    if (size_class.busy || !state->session.alive() || state->released) continue;
    size_class.busy = true;
    size_class.look_at_demand(state->session.port().now(), state->session.grant().tick);
    state->hurry_in_time(size_class);
    if ((scarce || id == quiet) && !size_class.segments().empty()) {
      const Status scanned = co_await state->scan(
          size_class, scarce ? size_class.firsts() : size_class.next_few(kScanSegments), deadline, state->background);
      // While segments are being emptied, others of the class take their contents.
      if (scanned.ok() && !state->emptying) {
        co_await state->orphan(size_class, size_class.in_the_way(state->session.cleared()), deadline,
                               state->background);
        co_await state->orphan(size_class, size_class.surplus(pressure), deadline, state->background);
      }
    }
    // A class that takes nothing keeps nothing when other clients are short.
    (void)co_await state->trim(size_class, scarce && size_class.is_quiet(), deadline, state->background);
    state->let_go(size_class);
  }
}

Task<void> Heap::compact(Nanos deadline, bool room, std::uint64_t run) {
  const std::shared_ptr<State> state = state_;
  if (state->references == nullptr || state->emptying || !state->goes_on()) co_return;
  state->emptying = true;
  for (auto& [id, size_class] : state->ledger.classes()) {
    if (!room || size_class.id == kRun || size_class.busy || !state->goes_on()) continue;
    size_class.busy = true;
    co_await state->add_fresh(size_class, deadline);
    state->let_go(size_class);
  }
  co_await state->empty_some(kRun, deadline);
  state->emptying = false;
  state->swept.wake_all();
  if (run == 0 || !state->goes_on() || !state->ledger.fits(run)) co_return;
  SizeClass& size_class = state->ledger.class_for(run);
  const auto block =
      co_await state->acquire(state, size_class, run, Purpose::addition, true, deadline, state->background);
  if (!block.ok()) co_return;
  state->discard(state, *block);
  co_await state->hold(size_class);
  if (state->goes_on()) (void)co_await state->trim(size_class, true, deadline, state->background);
  state->let_go(size_class);
}

Task<void> Heap::release(Nanos deadline) {
  const std::shared_ptr<State> state = state_;
  state->released = true;
  Cost cost;
  for (auto& [id, size_class] : state->ledger.classes()) {
    while (size_class.busy && state->session.port().now() < deadline) (void)co_await state->ready.wait(deadline);
    if (size_class.busy) continue;
    size_class.busy = true;
    (void)co_await state->trim(size_class, true, deadline, cost);
    // A segment that is being looked through goes to the dead when the session has ended.
    std::vector<std::uint64_t> known = size_class.firsts();
    std::erase_if(known, [&size_class](std::uint64_t first) { return size_class.at(first).is_looked_through(); });
    if (state->session.alive()) co_await state->orphan(size_class, std::move(known), deadline, cost);
    state->let_go(size_class);
  }
}

Heap::Usage Heap::usage() const {
  Usage usage;
  usage.anomalies = state_->ledger.anomalies;
  usage.taken_over = state_->taken_over;
  usage.emptied = state_->emptied;
  usage.reclaimed = state_->reclaimed;
  usage.background = state_->background;
  for (const auto& [id, size_class] : state_->ledger.classes()) {
    usage.segments += size_class.segments().size() * size_class.run;
    usage.blocks_free += size_class.free_count();
    usage.blocks_limbo += size_class.limbo_count();
  }
  return usage;
}

}  // namespace farpool::heap
