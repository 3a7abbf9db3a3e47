// SPDX-License-Identifier: Apache-2.0
#include "index/race/buckets.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "layout/extent.h"

namespace farpool::race {

using layout::kExtentHeader;

Buckets::Buckets(Table::State& state, std::string_view key)
    : state_(state),
      key_(key),
      directory_hash_(base::keyed_hash(state.session.grant().pool_secret, base::bytes_of(key))),
      hash_(base::keyed_hash(state.session.grant().table_seed, base::bytes_of(key))),
      places_(locate(hash_, state.geometry.rows)),
      print_(print_of(hash_)),
      buffer_(state.port().buffer(2 * kCombinedBytes)) {}

void Buckets::add_reads(Chain& chain) {
  for (std::size_t place = 0; place < 2; ++place) {
    chain.add(Op::read({layout::kTable, places_[place].offset()},
                       buffer_.span().subspan(place * kCombinedBytes, kCombinedBytes)));
  }
}

Status Buckets::check() const {
  for (std::size_t place = 0; place < 2; ++place) {
    const std::uint64_t header = view(place).header();
    const auto name = [&] {
      return "group " + std::to_string(places_[place].group) + " of table " + std::to_string(state_.table_id);
    };
    if (!HeaderWord::well_formed(header)) return {Code::corrupt, "the header of a bucket of " + name() + " cannot be"};
    if (!HeaderWord::covers(header, directory_hash_)) {
      return {Code::stale, name() + " does not hold this key any more: read the directory again"};
    }
    for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
      const Slot slot = view(place).slot(index);
      if (slot.empty() || (slot.well_formed() && state_.in_heap(slot))) continue;
      return {Code::corrupt, "slot " + std::to_string(places_[place].slot_offset(index) / 8) + " of table " +
                                 std::to_string(state_.table_id) + " cannot be"};
    }
  }
  return {};
}

const Buckets::Known* Buckets::find(Slot slot) const {
  const Slot word = slot.as(Slot::State::committed);
  for (std::size_t i = 0; i < known_count_; ++i) {
    if (known_[i].slot == word) return &known_[i];
  }
  return nullptr;
}

std::optional<Buckets::Copy> Buckets::committed() const {
  std::optional<Copy> copy;
  each(true, [&](std::uint64_t offset, Slot slot) {
    if (slot.committed()) copy = Copy{offset, slot, find(slot)};
  });
  return copy;
}

// Bytes to read of a block to tell whether it has the key; 0: its length alone says that it does not.
std::uint64_t Buckets::wanted_of(Slot slot, bool values) const {
  const std::uint64_t least = layout::extent_bytes(key_.size(), 0);
  if (!slot.open_ended() && slot.bytes() < least) return 0;
  if (values) return slot.bytes();
  return std::min(least, state_.heap_bytes() - layout::block_offset(slot.block()));
}

// From the bytes that were read. False: they are no extent of the slot's length. With `values` and a block longer than
// what is read at once, the checksum comes later.
bool Buckets::learn(Known& known, bool values) const {
  const base::Bytes read = known.bytes.span();
  const auto lengths = base::load<std::uint64_t>(read.data());
  const std::uint64_t key_bytes = layout::ExtentLengths::key(lengths),
                      value_bytes = layout::ExtentLengths::value(lengths);
  if (key_bytes > layout::kMaxKeyBytes || value_bytes > layout::kMaxValueBytes) return false;
  known.pair_bytes = key_bytes + value_bytes;
  known.extent_bytes = layout::extent_bytes(key_bytes, value_bytes);
  if (!known.slot.fits(known.extent_bytes) ||
      known.extent_bytes > state_.heap_bytes() - layout::block_offset(known.slot.block())) {
    return false;
  }
  if (values && known.extent_bytes <= read.size()) {
    const auto whole = layout::read_extent(read, known.slot.block());
    if (!whole) return false;
    known.ours = base::text_of(whole->key) == key_;
    known.value = base::text_of(whole->value);
    return true;
  }
  // Longer than what was read: the rest is fetched if the key may be this one.
  known.ours = key_bytes == key_.size();
  const std::uint64_t there = std::min<std::uint64_t>(key_bytes, read.size() - kExtentHeader);
  known.ours = known.ours && base::text_of(read.subspan(kExtentHeader, there)) == key_.substr(0, there);
  return true;
}

// The whole of an extent that is longer than what its slot says.
Task<Status> Buckets::read_rest(Known& known, Nanos deadline, Cost& cost) {
  fabric::Buffer whole = state_.port().buffer(known.extent_bytes);
  const std::uint64_t there = known.bytes.size();
  std::memcpy(whole.data(), known.bytes.data(), there);
  Chain chain;
  chain.add(Op::read({layout::kHeap, layout::block_offset(known.slot.block()) + there},
                     whole.span().subspan(there, known.extent_bytes - there)));
  known.bytes = std::move(whole);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "an extent could not be read");
  if (!learn(known, true)) doubtful_ = known.slot;
  co_return Status();
}

Task<Result<bool>> Buckets::identify(Sought sought, Nanos deadline, Cost& cost) {
  doubtful_ = Slot();
  if (known_count_ + 2 * kCombinedSlots > kMost) forget();
  const std::size_t before = known_count_;
  Chain chain;
  each(false, [&](std::uint64_t, Slot slot) {
    const Slot word = slot.as(Slot::State::committed);
    if (slot.print() != print_ || (slot.tentative() && !sought.tentative) || find(slot) != nullptr) return;
    if (!sought.own.empty() && word == sought.own.as(Slot::State::committed)) return;
    Known& known = known_[known_count_++];
    known = Known{.slot = word};
    const std::uint64_t wanted = wanted_of(slot, sought.values);
    if (wanted == 0) return;
    known.bytes = state_.port().buffer(wanted);
    chain.add(Op::read(state_.block_at(slot.block()), known.bytes.first(wanted)));
  });
  if (chain.size() == 0) co_return true;
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) {
    known_count_ = before;
    co_return state_.gone(Code::unavailable, "the blocks of a key's slots could not be read");
  }
  for (std::size_t i = before; i < known_count_ && doubtful_.empty(); ++i) {
    Known& known = known_[i];
    if (known.bytes.size() == 0) continue;
    if (!learn(known, sought.values)) {
      doubtful_ = known.slot;
    } else if (known.ours && sought.values && known.extent_bytes > known.bytes.size()) {
      if (Status status = co_await read_rest(known, deadline, cost); !status.ok()) co_return status;
    }
  }
  if (doubtful_.empty()) co_return true;
  known_count_ = before;
  ++state_.marks.stale_extents;
  co_return false;
}

}  // namespace farpool::race
