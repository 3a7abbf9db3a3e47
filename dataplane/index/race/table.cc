// SPDX-License-Identifier: Apache-2.0
#include "index/race/table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "index/race/buckets.h"
#include "index/race/change.h"
#include "index/race/relocate.h"
#include "index/race/split.h"
#include "index/race/state.h"
#include "index/rewrite.h"
#include "layout/extent.h"

namespace farpool::race {

Table::Table(session::Session& session, const layout::Geometry& geometry, std::uint32_t table_id)
    : state_(std::make_unique<State>(session, nullptr, geometry, table_id)) {}
Table::Table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry, std::uint32_t table_id)
    : state_(std::make_unique<State>(session, &heap, geometry, table_id)) {}
Table::~Table() = default;

Table::State::State(session::Session& session, heap::Heap* other_heap, const layout::Geometry& geometry,
                    std::uint32_t table_id)
    : session(session),
      own_heap(other_heap != nullptr
                   ? nullptr
                   : std::make_unique<heap::Heap>(session, geometry.at(layout::kHeap).bytes, geometry.segment_bytes)),
      heap(other_heap != nullptr ? *other_heap : *own_heap),
      geometry(geometry),
      table_id(table_id),
      row_marks(session, this->geometry),
      clearing(session, this->geometry, layout::most_depth(geometry.tables), *this, marks),
      tally(session),
      repairer(session, *this),
      directory(session, geometry.tables),
      groups(std::make_unique<Groups>(*this)),
      splitter(session, directory, this->geometry, *groups,
               {.begun = marks.splits, .finished = marks.splits_finished, .taken_over = marks.splits_taken_over}),
      relocation(std::make_unique<Relocation>(*this)) {
  heap.set_references(*this);
}
Table::State::~State() = default;

const layout::Geometry& Table::geometry() const { return state_->geometry; }
const Marks& Table::marks() const { return state_->marks; }
Task<void> Table::maintain(Nanos deadline) {
  state_->clearing.maintain();
  return state_->heap.maintain(deadline);
}
Task<void> Table::release(Nanos deadline) { return state_->heap.release(deadline); }
void Table::set_make_room(std::function<bool(std::uint64_t)> make_room) {
  state_->heap.set_make_room(std::move(make_room));
}
heap::Heap* Table::heap() { return &state_->heap; }
session::Repairer* Table::repairer() { return &state_->repairer; }
index::Movable* Table::movable() { return state_->relocation.get(); }

Task<Result<bool>> Table::insert(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return add(*state_, key, value, deadline, cost);
}

Task<Result<bool>> Table::update(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return change(*state_, key,
                {.name = "an update", .if_present = Edit::Kind::put, .if_absent = Edit::Kind::keep, .value = value},
                deadline, cost);
}

Task<Result<bool>> Table::remove(std::string_view key, Nanos deadline, Cost& cost) {
  return change(*state_, key, {.name = "a remove", .if_present = Edit::Kind::erase, .if_absent = Edit::Kind::keep},
                deadline, cost);
}

Task<Result<bool>> Table::put(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return change(*state_, key,
                {.name = "a put", .if_present = Edit::Kind::put, .if_absent = Edit::Kind::put, .value = value},
                deadline, cost);
}

// Is exact: the CAS succeeds only on the slot whose block the editor has seen, or if no other copy has been committed.
Task<Result<bool>> Table::modify(std::string_view key, Editor& editor, Nanos deadline, Cost& cost) {
  return change(*state_, key, {.name = "a modify", .editor = &editor}, deadline, cost);
}

Task<Status> Table::split(std::string_view key, Nanos deadline, Cost& cost) {
  Buckets buckets(*state_, key);
  for (;;) {
    if (state_->now() >= deadline) co_return Status(Code::timed_out, "the table of a key was not found in time");
    if (Status status = co_await buckets.read(deadline, cost); !status.ok()) co_return status;
    const Result<Buckets::Sight> sight = buckets.look();
    if (!sight.ok()) co_return sight.status();
    if (*sight != Buckets::Sight::stale) co_return buckets.grow();
    if (Status status = co_await buckets.misled(deadline, cost); !status.ok()) co_return status;
  }
}

Task<Result<bool>> Table::split_ahead(std::uint64_t depth, std::uint64_t chance, Nanos deadline, Cost& cost) {
  depth = std::min(depth, static_cast<std::uint64_t>(std::bit_width(state_->geometry.tables)) - 1);
  if (depth == 0) co_return false;
  if (Status status = co_await state_->directory.refresh(deadline, cost); !status.ok()) co_return status;
  const directory::View view = state_->directory.view();
  if (directory::least_depth(view) >= depth) co_return false;
  if (const auto next = directory::shallow_table(view, depth, chance)) {
    if (Status status = state_->splitter.grow(next->table, next->depth); !status.ok()) co_return status;
  } else {
    // A client that said goodbye has left its split to others, and perhaps no client works on a key of it.
    (void)co_await state_->splitter.sweep(deadline);
  }
  co_return true;
}

Status Table::split_trouble() const { return state_->splitter.trouble(); }

Task<Status> Table::idle(Nanos deadline) { return state_->splitter.idle(deadline); }

// First gives back the leases of dead clients: that shows which splits nobody holds.
Task<Result<index::Swept>> Table::sweep(Nanos deadline, Cost& cost) {
  Result<index::Swept> swept = co_await index::Table::sweep(deadline, cost);
  if (!swept.ok()) co_return swept;
  const directory::Splitter::Swept splits = co_await state_->splitter.sweep(deadline);
  swept->splits = splits.finished;
  swept->splitting = splits.under_way;
  if (!splits.trouble.ok()) swept->trouble = splits.trouble.message();
  co_return swept;
}

Task<Result<index::Totals>> Table::count(Nanos deadline, Cost& cost) {
  if (Status status = co_await state_->tally.settle(deadline); !status.ok()) co_return status;
  co_return co_await index::count_slots(state_->session, deadline, cost);
}

// Operations of this protocol claim and plan nothing.
Task<Result<std::optional<std::string>>> Table::State::finish(const layout::OperationSlot&, Nanos, Cost&) {
  co_return std::optional<std::string>("a plan, and operations of RACE make none");
}

// Looks for slots that point to the block. Its client has ended, or it has been published, so no client will still
// commit a slot that points to it. Unfinished inserts may have left a tentative slot in any table that has had the key.
Task<Result<bool>> Table::State::refers(std::uint64_t units, base::Bytes extent, Nanos deadline, Cost& cost) {
  const auto whole = layout::read_extent(extent, units);
  if (!whole || whole->key.size() > layout::kMaxKeyBytes) co_return false;
  const session::EraPin pin = session.pin();
  Buckets buckets(*this, base::text_of(whole->key));
  for (;;) {
    if (now() >= deadline) co_return Status(Code::timed_out, "the slots of a block's key could not be read in time");
    if (Status status = co_await buckets.read(deadline, cost); !status.ok()) co_return status;
    const Result<Buckets::Sight> sight = buckets.look();
    if (!sight.ok()) co_return sight.status();
    if (*sight == Buckets::Sight::stale) {
      if (Status status = co_await buckets.misled(deadline, cost); !status.ok()) co_return status;
      continue;
    }
    if (*sight == Buckets::Sight::again) continue;
    bool there = false;
    std::optional<std::pair<std::uint64_t, Slot>> tentative;
    buckets.each(false, [&](std::uint64_t offset, Slot slot) {
      if (slot.block() != units) return;
      if (slot.tentative()) {
        tentative.emplace(offset, slot);
      } else {
        there = true;
      }
    });
    if (there) co_return true;
    if (tentative) {
      if (Status status = co_await take_away(tentative->first, tentative->second, deadline, cost); !status.ok()) {
        co_return status;
      }
      continue;
    }
    if (buckets.unsure()) continue;
    break;
  }
  for (const std::uint64_t table : directory::tables_of_all_times(directory.view(), buckets.directory_hash())) {
    fabric::Buffer bytes = port().buffer(2 * kCombinedBytes);
    Chain chain;
    for (std::size_t i = 0; i < 2; ++i) {
      const Place place = buckets.place_in(table, i);
      chain.add(Op::read({layout::kTable, place.offset()}, bytes.span().subspan(i * kCombinedBytes, kCombinedBytes)));
    }
    const Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
    if (outcome.fate != Fate::done) co_return gone(Code::unavailable, "the slots of a block's key could not be read");
    for (std::size_t i = 0; i < 2; ++i) {
      const Place place = buckets.place_in(table, i);
      const CombinedView view(bytes.span().subspan(i * kCombinedBytes, kCombinedBytes), place.side);
      for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
        const Slot slot = view.slot(index);
        if (slot.empty() || !slot.tentative() || slot.block() != units) continue;
        Status status = co_await take_away(place.slot_offset(index), slot, deadline, cost);
        if (!status.ok()) co_return status;
      }
    }
  }
  co_return false;
}

Task<Status> Table::State::take_away(std::uint64_t offset, Slot tentative, Nanos deadline, Cost& cost) {
  std::uint64_t before = 0;
  Chain chain;
  chain.add(Op::cas({layout::kTable, offset}, before, tentative.word(), 0));
  const Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return gone(Code::unavailable, "a tentative slot could not be taken away");
  if (before == tentative.word()) ++marks.removed;
  co_return Status();
}

Task<Status> Table::State::rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes, Nanos deadline,
                                   Cost& cost) {
  const index::Modify modify = [&](std::string_view key, Editor& editor) {
    return change(*this, key, {.name = "a rewrite", .editor = &editor}, deadline, cost);
  };
  co_return co_await index::rewrite(session, units, block_bytes, modify, deadline, cost);
}

}  // namespace farpool::race
