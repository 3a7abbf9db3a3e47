// SPDX-License-Identifier: Apache-2.0
// Empties sparsely used segments into others of their class.
//
// A heap may be full of sparsely used segments, each of a block size that nobody wants any more. A client that needs
// room empties some of them into the others of their class: it rewrites the pairs in them, each by an ordinary replace
// of the index, so that other clients see only a client that puts the value that is there already. If it dies in the
// middle, it leaves what any writer leaves. While a segment is being emptied, no block in it is handed out; so its use
// falls until it is wholly free and goes back to the memory node, which can give it to any class. A segment is emptied
// only if its blocks in use have room elsewhere and at least an eighth of it is free.
//
// A run needs adjacent segments. When the memory node refuses a run, it chooses a stretch in which little is in use and
// whose contents fit elsewhere; it keeps the free segments there for the run, and tells all clients with their ticks.
// Each client gives up its segments in the stretch, even full ones and shorter runs; the client that needs the run
// adopts and empties them.
#include <algorithm>
#include <utility>

#include "heap/ledger.h"
#include "heap/state.h"

namespace farpool::heap {
namespace {

using base::Code;
using base::Nanos;
using base::Status;
using task::Task;

constexpr std::size_t kGathered = 16;      // orphans that one round of emptying takes on
constexpr std::ptrdiff_t kRewritten = 64;  // blocks, between two looks at the clock

}  // namespace

bool Heap::State::empty_others(Self self, const SizeClass& wanted) {
  if (references == nullptr || released || !session.alive()) return false;
  // Copies need blocks of the class that is being emptied: it must not wait for itself.
  if (emptying) return !wanted.has_emptied();
  if (session.port().now() < none_sparse_until) return false;
  emptying = true;
  session.background().spawn(empty_in_background(self, wanted.id));
  return true;
}

Task<void> Heap::State::empty_in_background(std::shared_ptr<State> self, std::uint64_t wanted) {
  const std::uint64_t before = self->emptied;
  co_await self->empty_some(wanted, self->sweep_deadline());
  // At first the other clients have not yet given up what they can spare.
  const Nanos tick = self->session.grant().tick;
  if (self->emptied == before) {
    self->none_sparse_until = self->session.port().now() + self->barren_rest;
    self->barren_rest = std::min(2 * self->barren_rest, kBarrenTicks * tick);
  } else {
    self->barren_rest = tick / 2;
  }
  self->emptying = false;
  self->swept.wake_all();
}

Task<void> Heap::State::empty_some(std::uint64_t wanted, Nanos deadline) {
  co_await gather(wanted, deadline);
  co_await pass_eras(deadline);
  if (!goes_on()) co_return;
  std::vector<Ledger::Sparse> chosen = ledger.choose_sparse(wanted, session.cleared());
  for (const Ledger::Sparse& one : chosen) one.size_class->begin_emptying(one.size_class->at(one.first));
  if (!co_await rewrite(chosen, deadline)) co_return;
  co_await return_emptied(chosen, deadline);
  for (const Ledger::Sparse& one : chosen) {
    Segment* const segment = one.size_class->find(one.first);
    if (segment != nullptr && segment->is_emptied()) one.size_class->end_emptying(*segment);
  }
  // Other clients may be short of what this client can spare.
  for (auto& [id, size_class] : ledger.classes()) co_await orphan_surplus(size_class);
}

Task<void> Heap::State::gather(std::uint64_t wanted, Nanos deadline) {
  std::vector<Ledger::Sparse> gathered;
  while (gathered.size() < kGathered && goes_on() && session.port().now() < deadline) {
    bool orphan = false;
    const auto got = co_await inherit(wanted, layout::AdoptSegmentRequest::kSparse, orphan);
    if (!got) break;
    SizeClass& size_class = ledger.class_of(got->size_class, got->run);
    ledger.add(size_class, got->first, orphan ? SizeClass::Origin::orphan : SizeClass::Origin::dead, session.deaths());
    gathered.push_back({&size_class, got->first});
  }
  for (const Ledger::Sparse& one : gathered) {
    co_await hold(*one.size_class);
    if (goes_on() && one.size_class->find(one.first) != nullptr) {
      (void)co_await scan_one(*one.size_class, one.first, sweep_deadline(), background);
    }
    let_go(*one.size_class);
  }
}

Task<void> Heap::State::add_fresh(SizeClass& size_class, Nanos deadline) {
  const auto granted = co_await ask_for_segments(size_class, Purpose::addition, false, deadline, background);
  if (!granted.ok() || granted->status != 0 || add_granted(size_class, *granted)) co_return;
  (void)co_await scan_one(size_class, granted->first, deadline, background);
}

Task<void> Heap::State::pass_eras(Nanos deadline) {
  const std::uint64_t era = limbo_era(session.era());
  while (goes_on() && session.safe_era() <= era && session.port().now() < deadline) {
    session.hurry_eras();
    co_await session.tick_now(std::min(deadline, session.port().now() + session.grant().tick));
  }
  ledger.settle(session.safe_era());
}

Task<bool> Heap::State::rewrite(const std::vector<Ledger::Sparse>& chosen, Nanos deadline) {
  const SizeClass* without_room = nullptr;
  for (const Ledger::Sparse& one : chosen) {
    const Segment* const segment = one.size_class->find(one.first);
    if (segment == nullptr) continue;
    const std::vector<std::uint64_t> units = one.size_class->in_use(*segment);
    for (auto at = units.begin(); at != units.end() && one.size_class != without_room;) {
      if (session.port().now() >= deadline) co_return true;
      const auto end = at + std::min<std::ptrdiff_t>(kRewritten, units.end() - at);
      // What has begun comes to its end.
      const Status rewritten =
          co_await references->rewrite({at, end}, one.size_class->shape.block_bytes, sweep_deadline(), background);
      if (!goes_on()) co_return false;
      if (rewritten.code() == Code::out_of_memory) without_room = one.size_class;  // others have taken it
      at = end;
    }
  }
  co_return true;
}

// Lets a segment serve requests again if no block in it comes free between two looks: other clients may be short of it.
Task<void> Heap::State::return_emptied(std::vector<Ledger::Sparse>& chosen, Nanos deadline) {
  while (goes_on()) {
    bool left = false;
    for (Ledger::Sparse& one : chosen) {
      co_await hold(*one.size_class);
      Segment* segment = one.size_class->find(one.first);
      if (segment != nullptr && segment->is_emptied() && goes_on()) {
        (void)co_await scan_one(*one.size_class, one.first, sweep_deadline(), background);
        settle(*one.size_class);
        segment = one.size_class->find(one.first);
        if (segment != nullptr && one.size_class->is_wholly_free(*segment)) {
          one.size_class->remove(one.first);
          co_await give_back(one.first, one.size_class->run, false, sweep_deadline(), background);
          emptied += one.size_class->run;
        } else if (segment != nullptr) {
          const std::uint64_t used = one.size_class->shape.blocks - segment->unused();
          if (used > 0 && used >= one.used) {
            one.size_class->end_emptying(*segment);
          } else {
            left = true;
          }
          one.used = used;
        }
      }
      let_go(*one.size_class);
    }
    if (!left || session.port().now() >= deadline) co_return;
    co_await pass_eras(deadline);
  }
}

}  // namespace farpool::heap
