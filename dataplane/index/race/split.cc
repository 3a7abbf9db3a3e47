// SPDX-License-Identifier: Apache-2.0
#include "index/race/split.h"

#include <array>
#include <cstring>

#include "layout/extent.h"

namespace farpool::race {

using directory::Split;

namespace {

constexpr std::uint64_t kBuckets = 3;
// Read of a block at first: most keys end before.
constexpr std::uint64_t kHead = 128;

// Slots of a group as they lie: 0 to 20.
constexpr std::uint64_t within(std::uint64_t slot) {
  return slot / kBucketSlots * kBucketBytes + 8 + slot % kBucketSlots * 8;
}

class Moving {
 public:
  Moving(Table::State& state, const Split& split, std::uint64_t row, Nanos deadline, Cost& cost)
      : state_(state),
        split_(split),
        old_at_(state.group_offset(split.from, row)),
        new_at_(state.group_offset(split.to, row)),
        deadline_(deadline),
        cost_(cost),
        old_(state.port().buffer(kGroupBytes)),
        new_(state.port().buffer(kGroupBytes)) {}

  Task<Status> run();

 private:
  struct Known {
    Slot slot;
    bool readable = false;
    bool moves = false;
    fabric::Buffer bytes;
    std::uint64_t key_bytes = 0;
  };

  Slot old_slot(std::uint64_t slot) const { return Slot(base::load<std::uint64_t>(old_.data() + within(slot))); }
  Task<Status> learn();
  Task<Status> post(const Chain& chain) {
    const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
    if (outcome.fate == Fate::done) co_return Status();
    co_return state_.gone(Code::unavailable, "the split of table " + std::to_string(split_.from) + " was cut short");
  }

  Table::State& state_;
  const Split& split_;
  const std::uint64_t old_at_;
  const std::uint64_t new_at_;
  const Nanos deadline_;
  Cost& cost_;
  mutable fabric::Buffer old_, new_;
  std::array<Known, kGroupSlots> known_;
};

Task<Status> Moving::run() {
  const session::EraPin pin = state_.session.pin();
  const std::uint64_t before = HeaderWord::of(split_.depth - 1, split_.suffix);
  const std::uint64_t after = HeaderWord::of(split_.depth, split_.suffix);
  // From here on no key that moves is placed here and committed: an inserter reads the headers behind its CAS.
  std::array<std::uint64_t, kBuckets> header{};
  Chain chain;
  for (std::uint64_t i = 0; i < kBuckets; ++i) {
    chain.add(Op::cas({layout::kTable, old_at_ + i * kBucketBytes}, header[i], before, after));
  }
  chain.add(Op::read({layout::kTable, old_at_}, old_.first(kGroupBytes)));
  chain.add(Op::read({layout::kTable, new_at_}, new_.first(kGroupBytes)));
  if (Status status = co_await post(chain); !status.ok()) co_return status;
  for (const std::uint64_t word : header) {
    if (word == before || word == after) continue;
    co_return Status(Code::corrupt, "a header of table " + std::to_string(split_.from) +
                                        " is not of the keys that the directory says: its split stops");
  }
  chain.clear();
  // The first header is written when all slots are there. What a splitter that died has opened is others' by now.
  if (!HeaderWord::open(base::load<std::uint64_t>(new_.data()))) {
    for (;;) {
      if (Status status = co_await learn(); !status.ok()) co_return status;
      std::array<std::uint64_t, kGroupSlots> found{};
      std::array<Slot, kGroupSlots> expected{};
      chain.clear();
      for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
        const Slot slot = old_slot(i);
        if (slot.empty() || slot.moving()) continue;
        const Remote at{layout::kTable, old_at_ + within(i)};
        if (slot.committed() && known_[i].moves) {
          chain.add(Op::cas(at, found[i], slot.word(), slot.as(Slot::State::moving).word()));
        } else if (slot.tentative() && (known_[i].moves || !known_[i].readable)) {
          chain.add(Op::cas(at, found[i], slot.word(), 0));  // costs its inserter another try
        } else {
          continue;
        }
        expected[i] = slot;
      }
      if (chain.size() == 0) break;
      chain.add(Op::read({layout::kTable, old_at_}, old_.first(kGroupBytes)));
      if (Status status = co_await post(chain); !status.ok()) co_return status;
      for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
        if (expected[i].empty()) continue;
        if (found[i] != expected[i].word()) {
          ++state_.marks.slot_conflicts;
        } else if (expected[i].committed()) {
          ++state_.marks.moved;
        } else {
          ++state_.marks.removed;
        }
      }
    }
    std::memset(new_.data(), 0, kGroupBytes);
    for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
      if (!old_slot(i).moving()) continue;
      base::store(new_.data() + within(i), old_slot(i).as(Slot::State::committed).word());
    }
    chain.clear();
    chain.add(Op::write({layout::kTable, new_at_}, new_.first(kGroupBytes)));
  }
  fabric::Buffer word = state_.port().buffer(8);
  base::store(word.data(), HeaderWord::of(split_.depth, split_.suffix_of_target()));
  for (std::uint64_t i = 0; i < kBuckets; ++i) {
    chain.add(Op::write({layout::kTable, new_at_ + i * kBucketBytes}, word.first(8)));
  }
  co_return co_await post(chain);
}

// Whose the slots are, from the keys in their blocks. While the era is held, a word that has been seen stays what it
// is.
Task<Status> Moving::learn() {
  Chain heads, rests;
  std::array<bool, kGroupSlots> fresh{};
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    const Slot slot = old_slot(i);
    Known& known = known_[i];
    if (slot.empty() || slot.moving() || known.slot == slot.as(Slot::State::committed)) continue;
    if (!slot.well_formed() || !state_.in_heap(slot)) {
      co_return Status(Code::corrupt, "a slot of table " + std::to_string(split_.from) + " cannot be: its split stops");
    }
    known = Known{.slot = slot.as(Slot::State::committed)};
    known.bytes = state_.port().buffer(std::min(kHead, slot.bytes()));
    fresh[i] = true;
    heads.add(Op::read(state_.block_at(slot.block()), known.bytes.span()));
  }
  if (heads.size() == 0) co_return Status();
  if (Status status = co_await post(heads); !status.ok()) co_return status;
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    if (!fresh[i]) continue;
    Known& known = known_[i];
    const auto lengths = base::load<std::uint64_t>(known.bytes.data());
    known.key_bytes = layout::ExtentLengths::key(lengths);
    const std::uint64_t value_bytes = layout::ExtentLengths::value(lengths);
    if (known.key_bytes > layout::kMaxKeyBytes || value_bytes > layout::kMaxValueBytes) continue;
    const std::uint64_t extent = layout::extent_bytes(known.key_bytes, value_bytes);
    known.readable =
        known.slot.fits(extent) && extent <= state_.heap_bytes() - layout::block_offset(known.slot.block());
    const std::uint64_t there = known.bytes.size();
    const std::uint64_t wanted = base::round_up(layout::kExtentHeader + known.key_bytes, 8);
    if (!known.readable || wanted <= there) continue;
    fabric::Buffer longer = state_.port().buffer(wanted);
    std::memcpy(longer.data(), known.bytes.data(), there);
    known.bytes = std::move(longer);
    const Remote block = state_.block_at(known.slot.block());
    rests.add(Op::read({block.region, block.offset + there}, known.bytes.span().subspan(there, wanted - there)));
  }
  if (rests.size() > 0) {
    if (Status status = co_await post(rests); !status.ok()) co_return status;
  }
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    Known& known = known_[i];
    if (!fresh[i] || !known.readable) continue;
    const base::Bytes key = base::Bytes(known.bytes.span()).subspan(layout::kExtentHeader, known.key_bytes);
    known.moves = split_.moves(directory::hash_of(state_.session.grant().pool_secret, key));
  }
  co_return Status();
}

}  // namespace

Task<Status> Groups::move(const Split& split, std::uint64_t row, Nanos deadline, Cost& cost) {
  Moving moving(state_, split, row, deadline, cost);
  co_return co_await moving.run();
}

Task<Status> Groups::clear(const Split& split, std::uint64_t row, Nanos deadline, Cost& cost) {
  const std::uint64_t at = state_.group_offset(split.from, row);
  fabric::Buffer group = state_.port().buffer(kGroupBytes);
  const auto cut_short = [this] { return state_.gone(Code::unavailable, "a split was cut short"); };
  Chain chain;
  chain.add(Op::read({layout::kTable, at}, group.first(kGroupBytes)));
  Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return cut_short();
  std::array<std::uint64_t, kGroupSlots> before{};
  chain.clear();
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    const Slot slot(base::load<std::uint64_t>(group.data() + within(i)));
    if (slot.moving()) chain.add(Op::cas({layout::kTable, at + within(i)}, before[i], slot.word(), 0));
  }
  if (chain.size() == 0) co_return Status();
  outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return cut_short();
  co_return Status();
}

}  // namespace farpool::race
