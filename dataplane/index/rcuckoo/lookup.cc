// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "index/rcuckoo/state.h"
#include "layout/extent.h"

namespace farpool::rcuckoo {
namespace {

class Lookup {
 public:
  Lookup(Table::State& state, std::string_view key, Nanos deadline, Cost& cost, std::string room)
      : state_(state),
        key_(key),
        deadline_(deadline),
        cost_(cost),
        hash_(state.hash(key)),
        sought_(base::bytes_of(key), hash_),
        places_(locate(hash_, state.geometry.rows)),
        known_move_(state.move.number),
        leaves_(state.leaves(key)),
        value_(std::move(room)),
        torn_(state) {}

  Task<Result<std::optional<std::string>>> run();

 private:
  // The state of a row when it was read: a row with the same stamp twice did not change in between.
  struct Stamp {
    std::uint64_t version = 0;
    std::uint64_t checksum = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  using Stamps = std::array<Stamp, 2>;
  enum class Sighted : std::uint8_t { hit, absent, unsure };

  Task<Status> read_rows();
  Task<Result<Sighted>> search();
  Task<Result<Sighted>> read_extent_of(const Entry& entry);

  RowView view(std::size_t place) const {
    return {state_.geometry, buffer_.span().subspan(at_[place], state_.geometry.row_bytes())};
  }

  Table::State& state_;
  const std::string_view key_;
  const Nanos deadline_;
  Cost& cost_;
  const std::uint64_t hash_;
  const Sought sought_;
  const Places places_;
  const std::uint64_t known_move_;  // of the map by which the key is looked for here
  const bool leaves_;               // the key's part, in that move
  std::string value_;
  TornRow torn_;
  fabric::Buffer buffer_;
  std::array<std::uint64_t, 2> at_{};  // of each row in the buffer
  std::uint64_t unsure_row_ = 0;
};

Task<Result<std::optional<std::string>>> Lookup::run() {
  if (Status status = check_sizes(key_, 0); !status.ok()) co_return status;
  const session::EraPin pin = state_.session.pin();
  std::optional<Stamps> before;
  for (;;) {
    if (state_.now() >= deadline_) {
      co_return Status(Code::timed_out, "the deadline passed before " + state_.name_row(places_.first) +
                                            " and its other row could be read");
    }
    // Ask.
    if (Status status = co_await read_rows(); !status.ok()) co_return status;
    // Judge.
    Result<Sighted> sighted = co_await search();
    if (!sighted.ok()) co_return sighted.status();
    if (*sighted == Sighted::hit) {
      if (before) ++state_.marks.changed_misses;
      co_return std::optional(std::move(value_));
    }
    if (*sighted == Sighted::unsure) {
      before.reset();
      const std::uint64_t checksum = view(unsure_row_ == places_.first ? 0 : 1).checksum();
      if (Status status = co_await torn_.wait(unsure_row_, checksum, deadline_, cost_); !status.ok()) co_return status;
      continue;
    }
    // The rows were read one after the other, and an entry may have moved between them in the other direction. Only if
    // neither has changed while both were read again was there a moment at which the key was in neither.
    torn_.came_good();
    const Stamps now = {Stamp{view(0).version(), view(0).checksum()}, Stamp{view(1).version(), view(1).checksum()}};
    if (before == now) {
      const std::uint64_t reached = std::max(view(0).move(), view(1).move());
      if (reached > known_move_) co_return index::map_is_old(known_move_);
      if (leaves_ && reached == known_move_) co_return index::moved_away();
      co_return std::optional<std::string>();
    }
    if (before) ++state_.marks.changed_misses;
    before = now;
  }
}

// Posts one READ that covers both rows if they are adjacent, otherwise two.
Task<Status> Lookup::read_rows() {
  const std::uint64_t bytes = state_.geometry.row_bytes();
  const std::uint64_t low = std::min(places_.first, places_.second), high = std::max(places_.first, places_.second);
  if (buffer_.size() == 0) buffer_ = state_.port().buffer(2 * bytes);
  Chain chain;
  if (high - low <= 1) {
    chain.add(Op::read(state_.row_at(low), buffer_.first((high - low + 1) * bytes)));
    at_ = {(places_.first - low) * bytes, (places_.second - low) * bytes};
  } else {
    chain.add(Op::read(state_.row_at(places_.first), buffer_.first(bytes)));
    chain.add(Op::read(state_.row_at(places_.second), buffer_.span().subspan(bytes, bytes)));
    at_ = {0, bytes};
  }
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "the rows could not be read");
  co_return Status();
}

Task<Result<Lookup::Sighted>> Lookup::search() {
  bool unsure = false;
  for (const std::size_t place : {0u, 1u}) {
    const std::uint64_t number = place == 0 ? places_.first : places_.second;
    const RowView row = view(place);
    if (!row.whole(number)) {
      ++state_.marks.torn_rows;
      unsure = true;
      unsure_row_ = number;
      continue;
    }
    state_.cache.learn(number, buffer_.span().subspan(at_[place], state_.geometry.row_bytes()));
    if (const auto slot = state_.impossible(row)) {
      co_return Status(Code::corrupt,
                       "entry " + std::to_string(*slot) + " of " + state_.name_row(number) + " cannot be");
    }
    for (std::uint64_t slot = 0; slot < state_.geometry.entries_per_row; ++slot) {
      if (!row.may_be(slot, sought_)) continue;
      const Entry entry = row.entry(slot);
      if (entry.type() == EntryType::in_place) {
        if (base::text_of(entry.key()) != key_) continue;
        value_ = base::text_of(entry.value());
        co_return Sighted::hit;
      }
      Result<Sighted> extent = co_await read_extent_of(entry);
      if (!extent.ok() || *extent == Sighted::hit) co_return extent;
      if (*extent == Sighted::unsure) {
        unsure = true;
        unsure_row_ = number;
      }
    }
  }
  co_return unsure ? Sighted::unsure : Sighted::absent;
}

Task<Result<Lookup::Sighted>> Lookup::read_extent_of(const Entry& entry) {
  const std::uint64_t block = entry.block(), bytes = entry.bytes();
  fabric::Buffer extent = state_.port().buffer(bytes);
  Chain chain;
  chain.add(Op::read(state_.block_at(block), extent.first(bytes)));
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "the extent could not be read");
  const auto whole = layout::read_extent(extent.first(bytes), block);
  if (!whole) {
    // The block was reused since the row was read, unless it stays so.
    ++state_.marks.stale_extents;
    co_return Sighted::unsure;
  }
  if (base::text_of(whole->key) != key_) co_return Sighted::absent;  // another key of the same hash
  value_ = base::text_of(whole->value);
  co_return Sighted::hit;
}

}  // namespace

Task<Result<std::optional<std::string>>> Table::lookup(std::string_view key, Nanos deadline, Cost& cost,
                                                       std::string room) {
  Lookup lookup(*state_, key, deadline, cost, std::move(room));
  co_return co_await lookup.run();
}

}  // namespace farpool::rcuckoo
