// SPDX-License-Identifier: Apache-2.0
#include "index/race/buckets.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "layout/extent.h"

namespace farpool::race {

using layout::kExtentHeader;

namespace {

// If at most so many of 28 slots are free, more room should be on its way: a client that finds none has to wait until a
// split has outlived an era.
constexpr std::uint64_t kCrowded = 4;

}  // namespace

Buckets::Buckets(Table::State& state, std::string_view key)
    : state_(state),
      key_(key),
      pool_hash_(base::keyed_hash(state.session.grant().pool_secret, base::bytes_of(key))),
      known_move_(state.move.number),
      leaves_(state.move.leaves(pool_hash_)),
      directory_hash_(directory::hash_of(pool_hash_)),
      hash_(base::keyed_hash(state.session.grant().table_seed, base::bytes_of(key))),
      places_(locate(hash_, state.geometry.rows_per_table())),
      print_(print_of(hash_)),
      route_(state.directory.route_of(directory_hash_)),
      buffer_(state.port().buffer((state.geometry.tables > 1 ? 4 : 2) * kCombinedBytes)) {}

void Buckets::forget() {
  known_count_ = seen_count_ = 0;
  const directory::Route route = state_.directory.route_of(directory_hash_);
  if (route != route_) sides_ = {};
  route_ = route;
}

void Buckets::add_reads(Chain& chain) {
  for (const bool old : {false, true}) {
    if (old && !route_.old) continue;
    for (std::size_t place = 0; place < 2; ++place) {
      chain.add(Op::read({layout::kTable, place_in(old ? *route_.old : route_.table, place).offset()},
                         buffer_.span().subspan((place + (old ? 2 : 0)) * kCombinedBytes, kCombinedBytes)));
    }
  }
}

Task<Status> Buckets::read(Nanos deadline, Cost& cost) {
  Chain chain;
  add_reads(chain);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline, cost);
  if (outcome.fate == Fate::done) co_return Status();
  co_return state_.gone(Code::unavailable, "the buckets could not be read");
}

Result<Buckets::Sight> Buckets::look() {
  const auto name = [&](std::size_t place) {
    return "group " + std::to_string(places_[place].group) + " of table " + std::to_string(route_.table);
  };
  Sight sight = Sight::good;
  unsure_ = half_open_ = outdated_ = closed_ = false;
  for (std::size_t place = 0; place < 2; ++place) {
    Side& side = sides_[place];
    const std::uint64_t header = view_in(false, place).header();
    const std::uint64_t old = route_.old ? view_in(true, place).header() : 0;
    if (!HeaderWord::well_formed(header) || !HeaderWord::well_formed(old)) {
      return Status(Code::corrupt, "the header of a bucket of " + name(place) + " cannot be");
    }
    const bool opened_before = std::exchange(side.opened, HeaderWord::open(header));
    side.in_motion = route_.old && !HeaderWord::open(header) && !HeaderWord::covers(old, directory_hash_);
    half_open_ = half_open_ || (side.in_motion && HeaderWord::open(view_in(false, place).overflow_header()));
    side.old = side.in_motion || (route_.old && HeaderWord::covers(old, directory_hash_));
    if (!side.old && !HeaderWord::covers(header, directory_hash_)) {
      sight = Sight::stale;
      continue;
    }
    if (side.in_motion && sight == Sight::good) sight = Sight::in_motion;
    const std::uint64_t move = HeaderWord::Move::get(view(place).header());
    outdated_ = outdated_ || move > known_move_;
    closed_ = closed_ || (leaves_ && move == known_move_);
    for (std::uint64_t index = 0; index < kCombinedSlots; ++index) {
      const Slot slot = view(place).slot(index);
      if (!slot.empty() && !(slot.well_formed() && state_.in_heap(slot))) {
        return Status(Code::corrupt,
                      "slot " + std::to_string(this->place(place).slot_offset(index) / 8) + " cannot be");
      }
      if (slot.moving() && slot.print() == print_ && !side.in_motion && sight != Sight::stale &&
          !left_over(this->place(place).slot_offset(index), slot)) {
        sight = Sight::again;
      }
      const Slot left = route_.old ? view_in(true, place).slot(index) : Slot();
      unsure_ = unsure_ || (!side.old && !opened_before && !left.empty() && left.print() == print_);
    }
  }
  if (route_.old) state_.splitter.watch(*route_.old);
  if (sight != Sight::stale) misled_since_ = 0;
  if (sight == Sight::again) ++state_.marks.looked_again;
  return sight;
}

// Says whether the word had been seen before: then it is left over, because its header is younger.
bool Buckets::left_over(std::uint64_t offset, Slot slot) {
  for (std::size_t i = 0; i < seen_count_; ++i) {
    if (seen_moving_[i] == std::pair(offset, slot)) return true;
  }
  if (seen_count_ == seen_moving_.size()) seen_count_ = 0;
  seen_moving_[seen_count_++] = {offset, slot};
  return false;
}

Task<Status> Buckets::misled(Nanos deadline, Cost& cost) {
  ++state_.marks.stale_routes;
  const Nanos now = state_.now();
  if (misled_since_ == 0) misled_since_ = now;
  if (now - misled_since_ >= state_.failure_timeout()) {
    co_return Status(Code::corrupt, "the directory leads to table " + std::to_string(route_.table) + ", whose group " +
                                        std::to_string(places_[0].group) + " or " + std::to_string(places_[1].group) +
                                        " does not have the key");
  }
  Status status = co_await state_.directory.refresh(deadline, cost);
  forget();
  co_return status;
}

bool Buckets::crowded() const {
  std::uint64_t taken = 0;
  for (const CombinedView& one : views()) taken += one.load(false) + one.load(true);
  return taken + kCrowded >= 2 * kCombinedSlots;
}

Status Buckets::grow() {
  if (route_.old) return Status();  // it is growing; look() watches that it does
  return state_.splitter.grow(route_.table, HeaderWord::Depth::get(view(0).header()));
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
    if (!slot.tentative()) copy = Copy{offset, slot, find(slot)};
  });
  return copy;
}

// Returns how many bytes of a block to read to tell whether it has the key; 0: its length alone says that it does not.
std::uint64_t Buckets::wanted_of(Slot slot, bool values) const {
  const std::uint64_t least = layout::extent_bytes(key_.size(), 0);
  if (!slot.open_ended() && slot.bytes() < least) return 0;
  if (values) return slot.bytes();
  return std::min(least, state_.heap_bytes() - layout::block_offset(slot.block()));
}

// Learns from the bytes that were read. Returns false if they are no extent of the slot's length. With `values` and a
// block longer than what is read at once, the checksum is checked later.
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
  // It is longer than what was read: the rest is fetched if the key may be this one.
  known.ours = key_bytes == key_.size();
  const std::uint64_t there = std::min<std::uint64_t>(key_bytes, read.size() - kExtentHeader);
  known.ours = known.ours && base::text_of(read.subspan(kExtentHeader, there)) == key_.substr(0, there);
  return true;
}

// Reads the whole of an extent that is longer than its slot says.
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
  if (known_count_ + 2 * kCombinedSlots > kMost) known_count_ = 0;  // the route stays: what was read is by it
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
