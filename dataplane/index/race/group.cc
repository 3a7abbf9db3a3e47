// SPDX-License-Identifier: Apache-2.0
#include "index/race/group.h"

#include <algorithm>
#include <cstring>

#include "layout/extent.h"

namespace farpool::race {
namespace {

// How much of a block is read at first: most keys end before.
constexpr std::uint64_t kHead = 128;

}  // namespace

Task<Status> Group::fetch(const Chain& chain, Nanos deadline, Cost& cost) {
  if (chain.size() == 0) co_return Status();
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate == Fate::done) co_return Status();
  co_return state_.gone(Code::unavailable, "the keys of a group could not be read");
}

Task<Status> Group::learn(bool (*wanted)(Slot), Nanos deadline, Cost& cost) {
  Chain heads, rests;
  std::array<bool, kGroupSlots> fresh{};
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    const Slot slot = this->slot(i);
    Known& known = known_[i];
    if (slot.empty() || !wanted(slot) || known.slot == slot.as(Slot::State::committed)) continue;
    if (!slot.well_formed() || !state_.in_heap(slot)) {
      co_return Status(Code::corrupt, "a slot of table " + std::to_string(table_) + " cannot be: its keys stay there");
    }
    known = Known{.slot = slot.as(Slot::State::committed)};
    known.bytes = state_.port().buffer(std::min(kHead, slot.bytes()));
    fresh[i] = true;
    heads.add(Op::read(state_.block_at(slot.block()), known.bytes.span()));
  }
  if (Status status = co_await fetch(heads, deadline, cost); !status.ok()) co_return status;
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    if (!fresh[i]) continue;
    Known& known = known_[i];
    const auto lengths = base::load<std::uint64_t>(known.bytes.data());
    known.key_bytes = layout::ExtentLengths::key(lengths);
    const std::uint64_t value_bytes = layout::ExtentLengths::value(lengths);
    if (known.key_bytes > layout::kMaxKeyBytes || value_bytes > layout::kMaxValueBytes) continue;
    known.pair_bytes = known.key_bytes + value_bytes;
    known.extent_bytes = layout::extent_bytes(known.key_bytes, value_bytes);
    known.readable = known.slot.fits(known.extent_bytes) &&
                     known.extent_bytes <= state_.heap_bytes() - layout::block_offset(known.slot.block());
    const std::uint64_t there = known.bytes.size();
    const std::uint64_t needed = base::round_up(layout::kExtentHeader + known.key_bytes, 8);
    if (!known.readable || needed <= there) continue;
    fabric::Buffer longer = state_.port().buffer(needed);
    std::memcpy(longer.data(), known.bytes.data(), there);
    known.bytes = std::move(longer);
    const Remote block = state_.block_at(known.slot.block());
    rests.add(Op::read({block.region, block.offset + there}, known.bytes.span().subspan(there, needed - there)));
  }
  if (Status status = co_await fetch(rests, deadline, cost); !status.ok()) co_return status;
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    Known& known = known_[i];
    if (!fresh[i] || !known.readable) continue;
    const base::Bytes key = base::Bytes(known.bytes.span()).subspan(layout::kExtentHeader, known.key_bytes);
    known.pool_hash = base::keyed_hash(state_.session.grant().pool_secret, key);
  }
  co_return Status();
}

}  // namespace farpool::race
