// SPDX-License-Identifier: Apache-2.0
#include "index/race/change.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "index/race/buckets.h"
#include "layout/extent.h"

namespace farpool::race {
namespace {

// The result of an attempt.
enum class Next : std::uint8_t {
  finished,
  again,  // another client was in the way
  room,   // a block for purpose_ is needed and none is at hand: the operation waits for it without an era
};

class Change {
 public:
  Change(Table::State& state, std::string_view key, const Wish& wish, Nanos deadline, Cost& cost)
      : state_(state),
        key_(key),
        wish_(wish),
        deadline_(deadline),
        cost_(cost),
        buckets_(state, key),
        backoff_(state.session) {}

  Task<Result<bool>> run();

 private:
  using Copy = Buckets::Copy;

  Task<Result<bool>> attempts();
  Task<Result<Next>> attempt();
  Task<Result<Next>> doubt(Slot slot);
  Task<Result<bool>> gone_for_good();
  Task<Result<Next>> elsewhere(Buckets::Sight sight);

  // The new value's block.
  Edit::Kind decide(const std::optional<Copy>& found);
  Task<Status> fetch_block();
  bool compose(std::uint64_t bytes_before);  // of the extent that it replaces
  void write_extent();
  void drop_block();
  void add_write(Chain& chain);

  // Each posts a chain and judges it. Returns nothing if the buckets were read again: the caller looks anew.
  Task<Result<Next>> take_over(const Copy& found, Edit::Kind kind);
  Task<Result<std::optional<Next>>> place();
  Task<Result<std::optional<Next>>> make_room();
  Task<Result<std::optional<Next>>> vie();
  Task<Result<Next>> commit();
  Task<Status> retract();

  Task<Status> post(const Chain& chain, Code otherwise);
  Status nothing_done(Code code, const std::string& what) const {
    return {code, what + " " + std::string(wish_.name) + "; nothing was changed"};
  }

  Table::State& state_;
  const std::string_view key_;
  const Wish wish_;
  const Nanos deadline_;
  Cost& cost_;
  Buckets buckets_;
  Backoff backoff_;
  Stillness doubtful_;
  Stillness rival_;
  Stillness hindrance_;
  bool seen_closed_ = false;  // in this attempt

  bool existed_ = false;
  std::string decided_;     // an editor's value
  std::string_view value_;  // of the put
  bool composed_ = false;   // extent_ is of value_
  heap::Purpose purpose_ = heap::Purpose::addition;
  heap::Block block_;            // units 0 and bytes 0: none
  std::uint64_t block_for_ = 0;  // bytes that block_ was asked for
  fabric::Buffer extent_;
  std::uint64_t extent_bytes_ = 0;
  bool sent_ = false;                    // the extent is in its block
  bool exposed_ = false;                 // others may have read the block's address
  Slot own_;                             // points to the block
  std::optional<std::uint64_t> placed_;  // where own_ lies as a tentative slot, as far as is known
  Places placed_among_;                  // where the key's places were then
};

Task<Result<bool>> Change::run() {
  if (Status status = index::check_sizes(key_, wish_.value.size()); !status.ok()) co_return status;
  const bool may_put = wish_.if_present == Edit::Kind::put || wish_.if_absent == Edit::Kind::put;
  if (wish_.editor == nullptr && may_put) value_ = wish_.value;
  // If the key may have left, room is requested only when it is found: a full memory node must not keep it from its
  // next one.
  if (wish_.editor == nullptr && may_put && !buckets_.leaves()) {
    extent_bytes_ = layout::extent_bytes(key_.size(), value_.size());
    Status status = co_await fetch_block();
    if (status.ok()) write_extent();
    // A full heap may still have room to replace what the key has.
    if (!status.ok() && status.code() != Code::out_of_memory) co_return status;
  }
  Result<bool> existed = co_await attempts();
  if (existed.code() != Code::unknown_outcome) drop_block();
  co_return existed;
}

Task<Result<bool>> Change::attempts() {
  for (;;) {
    if (state_.now() >= deadline_) {
      co_return nothing_done(Code::timed_out, "the deadline passed before others let through");
    }
    Result<Next> step = co_await attempt();
    if (!step.ok()) {
      // A tentative slot does no harm, but it need not stay in another client's way either.
      if (placed_ && state_.session.alive()) (void)co_await retract();
      co_return step.status();
    }
    if (*step == Next::finished) co_return existed_;
    if (*step == Next::again) {
      co_await backoff_.wait(deadline_);
    } else if (Status status = co_await fetch_block(); !status.ok()) {
      co_return status;
    }
  }
}

Task<Result<Next>> Change::attempt() {
  // Held until the end: what was read of a slot's word stays true of it, and a word that went never comes back.
  const session::EraPin pin = state_.session.pin();
  buckets_.forget();
  seen_closed_ = false;
  // Locate and ask.
  Chain chain;
  if (composed_) add_write(chain);
  buckets_.add_reads(chain);
  if (Status status = co_await post(chain, Code::unavailable); !status.ok()) co_return status;
  for (;;) {
    // Judge.
    const Result<Buckets::Sight> sight = buckets_.look();
    if (!sight.ok()) co_return sight.status();
    const bool changeable = *sight != Buckets::Sight::stale && *sight != Buckets::Sight::in_motion;
    const bool in_vain = buckets_.places() != placed_among_ || buckets_.outdated() || buckets_.closed();
    if (!changeable || (placed_ && in_vain)) co_return co_await elsewhere(*sight);
    if (buckets_.outdated()) co_return index::map_is_old(buckets_.known_move());
    Status status;
    if (*sight == Buckets::Sight::again) {
      if (status = co_await buckets_.read(deadline_, cost_); !status.ok()) co_return status;
      continue;
    }
    const bool values = wish_.editor != nullptr && wish_.editor->wants_value();
    Result<bool> sure =
        co_await buckets_.identify({.tentative = placed_.has_value(), .values = values, .own = own_}, deadline_, cost_);
    if (!sure.ok()) co_return sure.status();
    if (!*sure) co_return co_await doubt(buckets_.doubtful());
    if (buckets_.unsure() && !buckets_.committed()) {
      ++state_.marks.looked_again;
      if (status = co_await buckets_.read(deadline_, cost_); !status.ok()) co_return status;
      continue;
    }
    if (placed_) {
      Result<std::optional<Next>> step = co_await vie();
      if (!step.ok()) co_return step.status();
      if (*step) co_return **step;
      continue;
    }
    const std::optional<Copy> found = buckets_.committed();
    if (!found && buckets_.closed()) {
      const Result<bool> gone = co_await gone_for_good();
      if (!gone.ok()) co_return gone.status();
      if (*gone) co_return index::moved_away();
      continue;
    }
    existed_ = found.has_value();
    const Edit::Kind kind = decide(found);
    if (kind == Edit::Kind::keep) co_return Next::finished;
    if (found && found->slot.leaving()) {
      ++state_.marks.move_waits;
      co_return Next::again;
    }
    if (kind == Edit::Kind::put && !composed_) {
      if (status = index::check_sizes(key_, value_.size()); !status.ok()) co_return status;
      if (!compose(found ? found->known->extent_bytes : 0)) co_return Next::room;
    }
    // Settle.
    if (found) co_return co_await take_over(*found, kind);
    Result<std::optional<Next>> step = co_await place();
    if (!step.ok()) co_return step.status();
    if (*step) co_return **step;
  }
}

// The key, or a group of it, is or goes somewhere else: a tentative slot here would never be committed.
Task<Result<Next>> Change::elsewhere(Buckets::Sight sight) {
  if (placed_) {
    if (Status status = co_await retract(); !status.ok()) co_return status;
  }
  if (sight == Buckets::Sight::stale) {
    if (Status status = co_await buckets_.misled(deadline_, cost_); !status.ok()) co_return status;
  } else if (sight == Buckets::Sight::in_motion) {
    ++state_.marks.split_waits;
  }
  co_return Next::again;
}

// Makes sure that the key is not here; its buckets are closed. A client that placed it tentatively before may not have
// committed yet; so this reads the buckets once more, and takes tentative slots away. Returns false if they were read
// again: the caller looks anew.
Task<Result<bool>> Change::gone_for_good() {
  std::array<std::uint64_t, 2 * kCombinedSlots> before{};
  std::array<Slot, 2 * kCombinedSlots> tentative;
  std::size_t count = 0;
  Chain chain;
  buckets_.each(false, [&](std::uint64_t offset, Slot slot) {
    if (!slot.tentative() || slot.print() != buckets_.print()) return;
    chain.add(Op::cas({layout::kTable, offset}, before[count], slot.word(), 0));
    tentative[count++] = slot;
  });
  if (std::exchange(seen_closed_, true) && count == 0) co_return true;
  buckets_.add_reads(chain);
  if (Status status = co_await post(chain, Code::unavailable); !status.ok()) co_return status;
  for (std::size_t i = 0; i < count; ++i) state_.marks.removed += before[i] == tentative[i].word() ? 1 : 0;
  co_return false;
}

// Judges a block that is not what its slot says: it was reused, which an era forbids, or is damaged.
Task<Result<Next>> Change::doubt(Slot slot) {
  if (placed_) {
    if (Status status = co_await retract(); !status.ok()) co_return status;
  }
  if (doubtful_.since(0, slot.word(), state_.now()) >= state_.failure_timeout()) {
    co_return Status(Code::corrupt, "the extent at unit " + std::to_string(slot.block()) +
                                        ", to which a slot of table " + std::to_string(state_.table_id) +
                                        " points, is damaged");
  }
  co_return Next::again;
}

Task<Status> Change::post(const Chain& chain, Code otherwise) {
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate == Fate::done) co_return Status();
  if (otherwise != Code::unknown_outcome) {
    co_return state_.gone(otherwise, "the session ended before " + std::string(wish_.name) + " changed anything");
  }
  co_return state_.gone(otherwise, "the session ended in the middle of " + std::string(wish_.name) +
                                       ": it may or may not have taken effect");
}

// --- The block

Edit::Kind Change::decide(const std::optional<Copy>& found) {
  if (wish_.editor == nullptr) return found ? wish_.if_present : wish_.if_absent;
  Edit edit = wish_.editor->edit(found ? std::optional(found->known->value) : std::nullopt);
  if (edit.kind == Edit::Kind::erase && !found) return Edit::Kind::keep;
  if (edit.kind == Edit::Kind::put) {
    decided_ = std::move(edit.value);
    value_ = decided_;
    composed_ = false;
  }
  return edit.kind;
}

// Allocates a block for extent_bytes_. The caller holds no era.
Task<Status> Change::fetch_block() {
  drop_block();
  Result<heap::Block> block = co_await state_.heap.allocate(extent_bytes_, purpose_, deadline_, cost_);
  if (!block.ok()) co_return block.status();
  block_ = *block;
  block_for_ = extent_bytes_;
  co_return Status();
}

// Returns false if there is no block at hand.
bool Change::compose(std::uint64_t bytes_before) {
  extent_bytes_ = layout::extent_bytes(key_.size(), value_.size());
  purpose_ = state_.heap.purpose_of(extent_bytes_, bytes_before);
  // The client that frees a block knows its class only from its extent, so a block that was allocated for another class
  // will not do.
  const auto same_block = [this](std::uint64_t a, std::uint64_t b) {
    const std::uint64_t segment = state_.geometry.segment_bytes;
    const std::uint64_t size_class = layout::size_class_for(a, segment);
    return size_class == layout::size_class_for(b, segment) &&
           (size_class != layout::kRun || layout::run_segments(a, segment) == layout::run_segments(b, segment));
  };
  // A block that other clients may be reading is not overwritten.
  if (block_.bytes != 0 && (exposed_ || !same_block(block_for_, extent_bytes_))) drop_block();
  if (block_.bytes == 0) {
    const std::optional<heap::Block> block = state_.heap.take(extent_bytes_, purpose_);
    if (!block) return false;
    block_ = *block;
    block_for_ = extent_bytes_;
  }
  write_extent();
  return true;
}

void Change::write_extent() {
  if (extent_.size() < extent_bytes_) extent_ = state_.port().buffer(extent_bytes_);
  layout::write_extent(extent_.first(extent_bytes_), block_.units, base::bytes_of(key_), base::bytes_of(value_));
  own_ = Slot::of(buckets_.print(), block_.units, extent_bytes_, Slot::State::committed);
  sent_ = false;
  composed_ = true;
}

// Discards a block that no committed slot points to, and no tentative slot of this operation any more.
void Change::drop_block() {
  if (block_.bytes == 0) return;
  if (exposed_) {
    state_.heap.free(block_.units, block_for_, cost_);
  } else {
    state_.heap.discard(block_);
  }
  block_ = {};
  own_ = Slot();
  exposed_ = composed_ = false;
}

void Change::add_write(Chain& chain) {
  if (!std::exchange(sent_, true)) chain.add(Op::write(state_.block_at(block_.units), extent_.first(extent_bytes_)));
}

// --- The slot

// The key is there: the CAS of its slot is where the change takes effect.
Task<Result<Next>> Change::take_over(const Copy& found, Edit::Kind kind) {
  const bool puts = kind == Edit::Kind::put;
  std::uint64_t before = 0;
  Chain chain;
  if (puts) add_write(chain);
  chain.add(Op::cas({layout::kTable, found.offset}, before, found.slot.word(), puts ? own_.word() : 0));
  if (Status status = co_await post(chain, Code::unknown_outcome); !status.ok()) co_return status;
  if (before != found.slot.word()) {
    ++state_.marks.slot_conflicts;
    co_return Next::again;
  }
  state_.heap.free(found.slot.block(), found.known->extent_bytes, cost_);
  const auto pair = static_cast<std::int64_t>(puts ? key_.size() + value_.size() : 0);
  state_.tally.add(puts ? 0 : -1, pair - static_cast<std::int64_t>(found.known->pair_bytes), cost_);
  if (puts) state_.heap.published(std::exchange(block_, {}));
  co_return Next::finished;
}

// The key is not there: writes a tentative slot first, and reads both buckets again behind it, in the same chain. If
// two clients do this, at least one sees the other.
Task<Result<std::optional<Next>>> Change::place() {
  const auto choice = choose(buckets_.views());
  if (!choice) co_return co_await make_room();
  if (state_.geometry.tables > 1 && buckets_.crowded()) (void)buckets_.grow();
  const std::uint64_t offset = buckets_.places()[choice->place].slot_offset(choice->index);
  const std::uint64_t group = buckets_.places()[choice->place].group % state_.geometry.rows_per_table();
  std::uint64_t before = 0;
  Chain chain;
  add_write(chain);
  const std::uint64_t forgets = state_.row_marks.forgets();
  // It needs no fence: a scan skips tentative slots in any case, and the slot is committed behind this chain.
  (void)state_.row_marks.add_to(chain, group);
  chain.add(Op::cas({layout::kTable, offset}, before, 0, own_.as(Slot::State::tentative).word()));
  buckets_.add_reads(chain);
  exposed_ = true;
  if (Status status = co_await post(chain, Code::unavailable); !status.ok()) co_return status;
  state_.row_marks.landed(group, forgets);
  if (before == 0) {
    placed_ = offset;
    placed_among_ = buckets_.places();
  } else {
    ++state_.marks.slot_conflicts;
  }
  co_return std::nullopt;
}

// All slots are taken; takes one away whose insert does not end, if there is one.
Task<Result<std::optional<Next>>> Change::make_room() {
  std::optional<Copy> tentative;
  buckets_.each(false, [&tentative](std::uint64_t offset, Slot slot) {
    if (slot.tentative() && !tentative) tentative = Copy{offset, slot};
  });
  if (!tentative) {
    Status full = buckets_.grow();
    if (full.ok()) {
      ++state_.marks.split_waits;
      co_return Next::again;
    }
    const Places places = buckets_.places();
    co_return nothing_done(Code::out_of_memory, "table " + std::to_string(state_.table_id) +
                                                    " has no free slot in groups " + std::to_string(places[0].group) +
                                                    " and " + std::to_string(places[1].group) + ", and " +
                                                    full.message() + ", for");
  }
  if (hindrance_.since(tentative->offset, tentative->slot.word(), state_.now()) < state_.patience()) {
    co_return Next::again;
  }
  std::uint64_t before = 0;
  Chain chain;
  chain.add(Op::cas({layout::kTable, tentative->offset}, before, tentative->slot.word(), 0));
  buckets_.add_reads(chain);
  if (Status status = co_await post(chain, Code::unavailable); !status.ok()) co_return status;
  if (before == tentative->slot.word()) ++state_.marks.removed;
  co_return std::nullopt;
}

// The own tentative slot lies there, and the buckets were read behind it. A committed copy wins; of tentative copies,
// the lowest one wins and the others give way.
Task<Result<std::optional<Next>>> Change::vie() {
  if (buckets_.committed()) {
    ++state_.marks.rivals;
    std::uint64_t before = 0;
    Chain chain;
    chain.add(Op::cas({layout::kTable, *placed_}, before, own_.as(Slot::State::tentative).word(), 0));
    buckets_.add_reads(chain);
    if (Status status = co_await post(chain, Code::unavailable); !status.ok()) co_return status;
    placed_.reset();
    co_return std::nullopt;
  }
  std::array<Copy, 2 * kCombinedSlots> rivals;
  std::size_t count = 0;
  const Copy* lower = nullptr;
  buckets_.each(true, [&](std::uint64_t offset, Slot slot) {
    rivals[count] = Copy{offset, slot};
    if (offset < *placed_ && lower == nullptr) lower = &rivals[count];
    ++count;
  });
  if (count == 0) {
    Result<Next> step = co_await commit();
    if (!step.ok()) co_return step.status();
    co_return *step;
  }
  ++state_.marks.rivals;
  if (lower != nullptr && rival_.since(lower->offset, lower->slot.word(), state_.now()) < state_.patience()) {
    if (Status status = co_await retract(); !status.ok()) co_return status;
    co_return Next::again;
  }
  std::array<std::uint64_t, 2 * kCombinedSlots> before{};
  Chain chain;
  for (std::size_t i = 0; i < count; ++i) {
    chain.add(Op::cas({layout::kTable, rivals[i].offset}, before[i], rivals[i].slot.word(), 0));
  }
  buckets_.add_reads(chain);
  if (Status status = co_await post(chain, Code::unavailable); !status.ok()) co_return status;
  for (std::size_t i = 0; i < count; ++i) state_.marks.removed += before[i] == rivals[i].slot.word() ? 1 : 0;
  co_return std::nullopt;
}

// No other client was there when the buckets were read behind the own slot: later ones see it. If it still lies there,
// the key exists from now on.
Task<Result<Next>> Change::commit() {
  const std::uint64_t tentative = own_.as(Slot::State::tentative).word();
  std::uint64_t before = 0;
  Chain chain;
  chain.add(Op::cas({layout::kTable, *placed_}, before, tentative, own_.word()));
  placed_.reset();
  if (Status status = co_await post(chain, Code::unknown_outcome); !status.ok()) co_return status;
  if (before != tentative) {
    ++state_.marks.slot_conflicts;
    co_return Next::again;
  }
  state_.tally.add(1, static_cast<std::int64_t>(key_.size() + value_.size()), cost_);
  state_.heap.published(std::exchange(block_, {}));
  co_return Next::finished;
}

Task<Status> Change::retract() {
  std::uint64_t before = 0;
  Chain chain;
  chain.add(Op::cas({layout::kTable, *placed_}, before, own_.as(Slot::State::tentative).word(), 0));
  placed_.reset();
  co_return co_await post(chain, Code::unavailable);
}

}  // namespace

Task<Result<bool>> change(Table::State& state, std::string_view key, Wish wish, Nanos deadline, Cost& cost) {
  Change change(state, key, wish, deadline, cost);
  co_return co_await change.run();
}

Task<Result<bool>> add(Table::State& state, std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  Result<bool> existed = co_await change(
      state, key, {.name = "an insert", .if_present = Edit::Kind::keep, .if_absent = Edit::Kind::put, .value = value},
      deadline, cost);
  if (!existed.ok()) co_return existed;
  co_return !*existed;
}

}  // namespace farpool::race
