// SPDX-License-Identifier: Apache-2.0
// An operation of the owner that may change something: it reads what the planner wants, decides, and carries the plan
// out in one chain.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "heap/block.h"
#include "index/cuckooduo/bench.h"
#include "index/cuckooduo/owner.h"
#include "index/cuckooduo/pair.h"
#include "index/cuckooduo/rebuild.h"
#include "index/operation.h"
#include "layout/extent.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "session/trips.h"

namespace farpool::cuckooduo {

using base::Code;
using base::MutableBytes;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using index::Chain;
using index::Edit;
using task::Task;

Wish wish_of(layout::KvOp op, std::string_view value) {
  using layout::KvOp;
  Wish wish{.name = "a change", .value = value};
  if (op == KvOp::put || op == KvOp::update) wish.if_present = Edit::Kind::put;
  if (op == KvOp::remove) wish.if_present = Edit::Kind::erase;
  if (op == KvOp::put || op == KvOp::insert) wish.if_absent = Edit::Kind::put;
  return wish;
}

// The result of an attempt.
enum class Next : std::uint8_t {
  finished,
  again,  // other operations were in the way
  room,   // a block is needed and none is at hand: the operation waits for it without locks
};

class Owner::Work {
 public:
  Work(Owner& owner, std::string_view key, const Wish& wish, Nanos deadline, Cost& cost)
      : owner_(owner),
        key_(key),
        wish_(wish),
        deadline_(deadline),
        cost_(cost),
        hash_(base::keyed_hash(owner.site_.secret, base::bytes_of(key))),
        value_(wish.value),
        trips_(cost.trips),
        bench_(owner.take_bench()) {}

  Task<Result<bool>> run();

 private:
  Task<Result<Next>> attempt();
  Task<Result<Next>> steps();
  Task<Status> read();
  Task<Result<bool>> learn(Place place, base::Bytes bytes);
  Edit::Kind decide();
  Result<bool> compose();
  Task<Status> fetch_block();
  Task<Result<Next>> write();
  Op record_ahead(MutableBytes into);
  Op record_behind(MutableBytes into);
  void fill(Chain& chain, const fabric::Buffer& slots);
  void settle();
  void count();
  void drop_block();

  Planned& change() { return bench_->change; }
  bool exists() { return bench_->change.found() != kNowhere; }
  Status nothing_done(Code code, const std::string& what) const {
    return {code, what + " for " + std::string(wish_.name) + "; nothing was changed"};
  }

  Owner& owner_;
  const std::string_view key_;
  const Wish wish_;
  const Nanos deadline_;
  Cost& cost_;
  const std::uint64_t hash_;
  std::string decided_;     // an editor's value
  std::string_view value_;  // of the put
  const std::uint32_t trips_;
  std::unique_ptr<Bench> bench_;
  bool in_hand_ = false;  // the change has locks
  bool unknown_ = false;  // its effects may or may not have landed

  bool existed_ = false;
  std::optional<base::Bytes> value_before_;
  Slot before_;  // of a key that is there
  heap::Purpose purpose_ = heap::Purpose::addition;
  heap::Block block_;              // bytes 0: none
  std::uint64_t block_for_ = 0;    // bytes that it was asked for
  std::uint64_t block_bytes_ = 0;  // that the value needs; 0: it fits the slot
};

std::unique_ptr<Owner::Bench> Owner::take_bench() {
  if (benches_.empty()) return std::make_unique<Bench>();
  std::unique_ptr<Bench> bench = std::move(benches_.back());
  benches_.pop_back();
  return bench;
}

Task<Result<bool>> Owner::change(std::string_view key, const Wish& wish, Nanos deadline, Cost& cost) {
  if (Status status = index::check_sizes(key, wish.value.size()); !status.ok()) co_return status;
  FARPOOL_CHECK(wish.ticket == 0 || wish.record < site_.records);
  const UnderWay counted(*this);
  if (!owns()) co_return not_owner();
  co_return co_await work(key, wish, deadline, cost);
}

Task<Result<bool>> Owner::work(std::string_view key, const Wish& wish, Nanos deadline, Cost& cost) {
  Work work(*this, key, wish, deadline, cost);
  co_return co_await work.run();
}

Task<Result<bool>> Owner::Work::run() {
  Result<bool> answer = false;
  for (;;) {
    Result<Next> next = Next::again;
    if (!owner_.serves()) {
      next = owner_.not_owner();
    } else if (owner_.now() >= deadline_) {
      next = nothing_done(Code::timed_out, "the deadline passed while other operations changed the key's buckets,");
    } else {
      next = co_await attempt();
    }
    if (next.ok() && *next == Next::again) {
      ++owner_.counts_.waits;
      const Nanos look = owner_.now() + owner_.session_.grant().failure_timeout;
      (void)co_await owner_.ended_.wait(std::min(deadline_, look));
      continue;
    }
    if (next.ok() && *next == Next::room) {
      const Status status = co_await fetch_block();
      if (status.ok()) continue;
      next = status;
    }
    answer = next.ok() ? Result<bool>(existed_) : next.status();
    break;
  }
  if (unknown_) co_return answer;  // the owner is none any more: its locks stay, and the block is for the next one
  drop_block();
  bench_->clear();
  owner_.benches_.push_back(std::move(bench_));
  co_return answer;
}

Task<Result<Next>> Owner::Work::attempt() {
  bench_->clear();
  value_before_.reset();
  before_ = {};
  existed_ = false;
  if (!owner_.planner_->begin(change(), hash_)) co_return Next::again;
  in_hand_ = true;
  const Result<Next> next = co_await steps();
  if (in_hand_ && !unknown_) {
    owner_.planner_->abort(change());
    // One that gives way wakes nobody: the last one under way is in nobody's way, and wakes all when it ends. Operations
    // that woke each other so could give way in turns for ever.
    const bool gives_way = next.ok() && *next == Next::again;
    if (gives_way && !owner_.planner_->idle()) co_return next;
    owner_.ended_.wake_all();
    if (gives_way) co_return nothing_done(Code::out_of_memory, "the stash has no spare slot");
  }
  co_return next;
}

Task<Result<Next>> Owner::Work::steps() {
  if (Status status = co_await read(); !status.ok()) co_return status;
  existed_ = exists();
  if (existed_ && wish_.if_version != 0 && before_.version != wish_.if_version) {
    co_return nothing_done(Code::stale, "the key's pair has another version,");
  }
  const Edit::Kind kind = decide();
  if (kind == Edit::Kind::keep) {
    if (cost_.trips != trips_) co_return Next::finished;
    const Status status = co_await owner_.confirm(deadline_, cost_);
    if (!status.ok()) co_return status;
    co_return Next::finished;
  }
  if (kind == Edit::Kind::put) {
    const Result<bool> composed = compose();
    if (!composed.ok()) co_return composed.status();
    if (!*composed) co_return Next::room;
  }
  for (;;) {
    switch (kind == Edit::Kind::put ? owner_.planner_->put(change()) : owner_.planner_->remove(change())) {
      case Advice::read:
        if (Status status = co_await read(); !status.ok()) co_return status;
        break;
      case Advice::write:
        co_return co_await write();
      case Advice::busy:
        co_return Next::again;
      case Advice::absent:
        base::check_failed("an erase of a key that is there", __FILE__, __LINE__);
      case Advice::full:
        co_return nothing_done(Code::out_of_memory, "table " + std::to_string(owner_.site_.table) + " with " +
                                                        std::to_string(owner_.index_->keys()) + " keys has no place");
    }
  }
}

// --- What is there

// Reads all slots that the change wants, and learns what they have.
Task<Status> Owner::Work::read() {
  const std::uint64_t slot_bytes = owner_.site_.shape.slot_bytes;
  bench_->places.assign(change().wanted().begin(), change().wanted().end());
  if (bench_->places.empty()) co_return Status();
  bench_->buffers.push_back(owner_.session_.port().buffer(bench_->places.size() * slot_bytes));
  const MutableBytes bytes = bench_->buffers.back().span();
  for (std::size_t done = 0; done < bench_->places.size();) {
    Chain chain;
    for (; done < bench_->places.size() && chain.size() < fabric::kMaxChain; ++done) {
      chain.add(Op::read(owner_.site_.at(bench_->places[done]), bytes.subspan(done * slot_bytes, slot_bytes)));
    }
    const fabric::Outcome outcome = co_await owner_.session_.post(chain.ops(), deadline_, cost_);
    if (outcome.fate != Fate::done) {
      co_return session::gone(owner_.session_, Code::unavailable,
                              "the session ended before " + std::string(wish_.name) + " changed anything");
    }
  }
  for (std::size_t i = 0; i < bench_->places.size(); ++i) {
    const base::Bytes slot = bytes.subspan(i * slot_bytes, slot_bytes);
    const Result<bool> own = co_await learn(bench_->places[i], slot);
    if (!own.ok()) co_return own.status();
    bench_->held.push_back({bench_->places[i], slot});
  }
  co_return Status();
}

// Returns whether a slot has the key.
Task<Result<bool>> Owner::Work::learn(Place place, base::Bytes bytes) {
  const Slot slot = read_slot(bytes, place);
  if (!slot.whole()) {
    co_return Status(Code::corrupt, "the vault has no pair at place " + std::to_string(place) +
                                        ", and its owner has written one there: look for a second writer");
  }
  const std::uint64_t hash = slot.hash_under(owner_.site_.secret);
  bool own = false;
  if (slot.state == SlotState::in_place) {
    own = base::text_of(slot.key) == key_;
    if (own) value_before_ = slot.value;
  } else if (hash == hash_) {
    Result<Extent> extent = co_await read_extent_of(owner_.session_, slot, deadline_, cost_);
    if (!extent.ok()) co_return extent.status();
    if (!extent->whole) {
      co_return Status(Code::corrupt, "the extent at unit " + std::to_string(slot.block) + ", to which place " +
                                          std::to_string(place) + " of the vault points, is damaged");
    }
    own = base::text_of(extent->key) == key_;
    if (own) value_before_ = extent->value;
    bench_->buffers.push_back(std::move(extent->bytes));
  }
  if (own) before_ = slot;
  const Status learnt = owner_.planner_->learn(change(), place, hash, own);
  if (!learnt.ok()) co_return learnt;
  co_return own;
}

Edit::Kind Owner::Work::decide() {
  if (wish_.block != nullptr) {
    *wish_.block = before_.state == SlotState::pointer ? std::optional(before_.block) : std::nullopt;
  }
  if (wish_.editor == nullptr) return existed_ ? wish_.if_present : wish_.if_absent;
  std::optional<std::string_view> value;
  if (value_before_) value = wish_.editor->wants_value() ? base::text_of(*value_before_) : std::string_view();
  Edit edit = wish_.editor->edit(value);
  if (edit.kind == Edit::Kind::erase && !existed_) return Edit::Kind::keep;
  if (edit.kind == Edit::Kind::put) {
    decided_ = std::move(edit.value);
    value_ = decided_;
  }
  return edit.kind;
}

// --- The block of a pair that does not fit a slot

// Returns false if the pair needs a block and none is at hand.
Result<bool> Owner::Work::compose() {
  if (Status status = index::check_sizes(key_, value_.size()); !status.ok()) return status;
  const bool fits = fits_in_place(owner_.site_.shape.slot_bytes, key_.size(), value_.size());
  block_bytes_ = fits ? 0 : block_bytes_for(key_.size(), value_.size());
  if (fits || block_for_ != block_bytes_) drop_block();
  if (fits || block_.bytes != 0) return true;
  const std::uint64_t before = before_.state == SlotState::pointer ? before_.units * layout::kBlockUnit : 0;
  purpose_ = owner_.heap_.purpose_of(block_bytes_, before);
  const std::optional<heap::Block> block = owner_.heap_.take(block_bytes_, purpose_);
  if (!block) return false;
  block_ = *block;
  block_for_ = block_bytes_;
  return true;
}

Task<Status> Owner::Work::fetch_block() {
  const Result<heap::Block> block = co_await owner_.heap_.allocate(block_bytes_, purpose_, deadline_, cost_);
  if (!block.ok()) co_return block.status();
  block_ = *block;
  block_for_ = block_bytes_;
  co_return Status();
}

// Discards a block that no slot points to.
void Owner::Work::drop_block() {
  if (block_.bytes != 0) owner_.heap_.discard(std::exchange(block_, {}));
  block_for_ = 0;
}

// --- The plan

// Carries the plan out. The extent comes first, so that no slot points to bytes that may never land.
Task<Result<Next>> Owner::Work::write() {
  const std::uint64_t slot_bytes = owner_.site_.shape.slot_bytes;
  Chain chain;
  fabric::Buffer extent;
  if (block_.bytes != 0) {
    const std::uint64_t bytes = layout::extent_bytes(key_.size(), value_.size());
    extent = owner_.session_.port().buffer(bytes);
    layout::write_extent(extent.first(bytes), block_.units, base::bytes_of(key_), base::bytes_of(value_));
    chain.add(Op::write({layout::kHeap, layout::block_offset(block_.units)}, extent.first(bytes)));
  }
  const fabric::Buffer slots = owner_.session_.port().buffer(change().effects().size() * slot_bytes + Record::kBytes);
  const MutableBytes record = slots.span().subspan(change().effects().size() * slot_bytes, Record::kBytes);
  if (wish_.ticket != 0) chain.add(record_ahead(record));
  fill(chain, slots);
  if (wish_.ticket != 0) chain.add(record_behind(record));
  ++owner_.written_;
  const fabric::Outcome outcome = co_await owner_.session_.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) {
    unknown_ = true;
    co_return session::gone(
        owner_.session_, Code::unknown_outcome,
        "the session ended in the middle of " + std::string(wish_.name) + ": it may or may not have taken effect");
  }
  settle();
  co_return Next::finished;
}

// Returns the WRITE of the request's record that goes ahead of the change.
Op Owner::Work::record_ahead(MutableBytes into) {
  Record record{.ticket = wish_.ticket, .version = before_.version, .existed = existed_};
  for (const Effect& effect : change().effects()) {
    if (effect.kind == Effect::Kind::pair && record.pairs++ == 0) record.version = effect.version;
  }
  put_record(into, wish_.record, record);
  return Op::write(owner_.site_.record(wish_.record), into.first(Record::kDoneAt));
}

// Returns the one that goes behind it.
Op Owner::Work::record_behind(MutableBytes into) {
  base::store(into.data() + Record::kDoneAt, wish_.ticket);
  fabric::Remote at = owner_.site_.record(wish_.record);
  at.offset += Record::kDoneAt;
  return Op::write(at, into.subspan(Record::kDoneAt));
}

void Owner::Work::fill(Chain& chain, const fabric::Buffer& slots) {
  const std::uint64_t slot_bytes = owner_.site_.shape.slot_bytes;
  std::size_t count = 0;
  for (const Effect& effect : change().effects()) {
    const MutableBytes into = slots.span().subspan(count++ * slot_bytes, slot_bytes);
    std::uint64_t bytes = 0;
    if (effect.kind != Effect::Kind::pair) {
      bytes = put_effect(into, effect, bench_->slot(effect.from));
    } else if (block_.bytes != 0) {
      bytes = put_pointer(into, effect.place, effect.version, block_.units, block_bytes_ / layout::kBlockUnit, hash_);
    } else {
      bytes = put_pair(into, effect.place, effect.version, base::bytes_of(key_), base::bytes_of(value_));
    }
    chain.add(Op::write(owner_.site_.at(effect.place), into.first(bytes)));
  }
}

// All of it has landed.
void Owner::Work::settle() {
  owner_.counts_.moved += change().moves();
  owner_.planner_->commit(change());
  in_hand_ = false;
  count();
  if (block_.bytes != 0) owner_.heap_.published(std::exchange(block_, {}));
  if (before_.state == SlotState::pointer) {
    owner_.heap_.free(before_.block, before_.units * layout::kBlockUnit, cost_);
  }
  owner_.ended_.wake_all();
}

// Counts what the change adds to the table, net.
void Owner::Work::count() {
  if (owner_.tally_ == nullptr) return;
  const auto bytes = [this](std::size_t value_bytes) { return static_cast<std::int64_t>(key_.size() + value_bytes); };
  const bool there = !change().removes();
  const std::int64_t before = existed_ ? bytes(value_before_->size()) : 0, after = there ? bytes(value_.size()) : 0;
  owner_.tally_->add((there ? 1 : 0) - (existed_ ? 1 : 0), after - before, cost_);
}

}  // namespace farpool::cuckooduo
