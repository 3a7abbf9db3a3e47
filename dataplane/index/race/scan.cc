// SPDX-License-Identifier: Apache-2.0
// A scan goes through the groups in order, and for each group through the hash space as the directory cuts it. A slot
// never leaves the group and place that it was put in: a split moves it to the same ones of another table. So a group
// has a keys' whole life to be looked at, and what a split does is to cut a part of the hash space in two.
//
// Positions are a group, and behind it the low bits of the directory's hash, the lowest first. In that order the keys
// of a table are neighbours whatever its depth, and so are the two halves of a split: a scan that was in the middle of
// a table goes on in whichever table has the rest.
//
// Where a part's group lies is told as in buckets.h, by headers and with an era held, so that nothing of what a split
// leaves behind is cleared meanwhile:
//  - A slot that is moving under headers that cover the part shows that they are old, unless it was there before: then
//    it is left over, and of another part.
//  - A group of a new table that was closed until now may have been read before it was filled.
//  - While it is closed, all that belongs there lies in the old group, committed or moving.
//
// Groups that were never used in any table (layout/geometry.h) are passed over. That needs no second look: a key that
// is there all the while has its slot in one group, whose mark was set before it.
//
// Keys that leave for another memory node are told of until they have left; the caller looks there afterwards.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "index/heads.h"
#include "index/page.h"
#include "index/race/state.h"

namespace farpool::race {
namespace {

constexpr std::uint64_t kBuckets = 3;
constexpr std::uint64_t kMostAtOnce = 16;   // parts
constexpr std::uint64_t kMostParts = 64;    // of a page
constexpr std::uint64_t kExpected = 12;     // keys of a part
constexpr std::uint64_t kMostMarks = 8192;  // that a page goes by: 64 KiB of them

// A group's bytes.
class GroupView {
 public:
  explicit GroupView(base::Bytes bytes) : bytes_(bytes) {}
  std::uint64_t header(std::uint64_t bucket) const {
    return base::load<std::uint64_t>(bytes_.data() + bucket * kBucketBytes);
  }
  Slot slot(std::uint64_t i) const {
    return Slot(base::load<std::uint64_t>(bytes_.data() + i / kBucketSlots * kBucketBytes + 8 + i % kBucketSlots * 8));
  }
  bool any_open() const { return header(0) != 0 || header(1) != 0 || header(2) != 0; }

 private:
  base::Bytes bytes_;
};

// Tentative slots count as entries: their mark cannot be cleared.
bool is_empty_group(base::Bytes bytes) {
  const GroupView group(bytes);
  for (std::uint64_t slot = 0; slot < kGroupSlots; ++slot) {
    if (!group.slot(slot).empty()) return false;
  }
  return true;
}

class Scan {
 public:
  Scan(Table::State& state, std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost)
      : state_(state),
        known_move_(state.move.number),
        bits_(layout::most_depth(state.geometry.tables)),
        end_(state.geometry.rows_per_table() << bits_),
        at_(position),
        count_(std::clamp<std::uint64_t>(count, 1, kMostParts * kGroupSlots)),
        at_once_(std::min(kMostAtOnce, (count_ + kExpected - 1) / kExpected)),
        deadline_(deadline),
        cost_(cost) {}

  Task<Result<index::Page>> run();

 private:
  // Where a part's group lies, as far as the client's directory says, and what was read there.
  struct Part {
    std::uint64_t position = 0;
    std::uint64_t group = 0;
    std::uint64_t hash = 0;   // as every key's of the part ends
    std::uint64_t depth = 0;  // in so many bits
    directory::Route route;
    bool opened = false;  // in the new table of a split, when it was read before: the old one is not asked any more
    std::array<std::byte, kGroupBytes> bytes{}, old{};
    bool is_empty() const { return is_empty_group(bytes) && is_empty_group(old); }
  };
  enum class Sight : std::uint8_t { good, again, stale };
  struct Found {
    Slot slot;
    std::uint64_t group = 0;
    std::uint64_t hash = 0, depth = 0;  // of keys that count
  };

  std::uint64_t reversed(std::uint64_t bits) const {
    std::uint64_t result = 0;
    for (std::uint64_t i = 0; i < bits_; ++i) result |= (bits >> i & 1) << (bits_ - 1 - i);
    return result;
  }
  Part part_at(std::uint64_t position) const;
  Task<Status> read_marks();
  // The position, or if its group was never used the beginning of the next one that may have been.
  std::uint64_t used_from(std::uint64_t position) const;
  // As it was read before, if it was.
  const Part* before(const Part& part) const;
  // Behind a part that is cut off by so many bits.
  std::uint64_t behind(std::uint64_t position, std::uint64_t depth) const {
    const std::uint64_t size = 1ull << (bits_ - std::min(depth, bits_));
    return position / size * size + size;
  }
  Task<Status> read();
  Result<Sight> look(Part& part);
  Status take(const Part& part, const GroupView& group, bool moving);
  Task<Status> misled();
  Task<Result<bool>> read_keys(index::Page& page);

  Table::State& state_;
  const std::uint64_t known_move_;
  const std::uint64_t bits_;
  const std::uint64_t end_;
  std::uint64_t limit_ = 0;  // of the page
  std::uint64_t marks_first_ = 0;
  std::vector<bool> marks_;
  std::uint64_t at_;
  const std::uint64_t count_;
  std::uint64_t at_once_;  // parts that the next READs are of: more and more, where they turn out to be empty
  bool outrun_ = false;    // a header is deeper than the directory
  const Nanos deadline_;
  Cost& cost_;
  std::vector<Part> parts_, before_;  // as they were read last, and the time before
  std::vector<Found> found_;
  Nanos misled_since_ = 0;  // 0: not of late
};

Scan::Part Scan::part_at(std::uint64_t position) const {
  Part part;
  part.position = position;
  part.group = position >> bits_;
  part.hash = reversed(position & ((1ull << bits_) - 1));
  part.route = state_.directory.route_of(part.hash);
  const directory::View view = state_.directory.view();
  part.depth = std::min(bits_, layout::EntryWord::Depth::get(view.entry(directory::low_bits(part.hash, view.depth()))));
  return part;
}

const Scan::Part* Scan::before(const Part& part) const {
  for (const Part& one : before_) {
    if (one.position == part.position && one.route == part.route) return &one;
  }
  return nullptr;
}

Task<Status> Scan::read_marks() {
  const layout::Geometry& g = state_.geometry;
  marks_first_ = g.mark_of(at_ >> bits_);
  const std::uint64_t count = std::min(kMostMarks, g.marks() - marks_first_);
  Result<std::vector<bool>> marks =
      co_await index::read_marks(state_.session, g, marks_first_, count, 0, deadline_, cost_);
  if (!marks.ok()) co_return marks.status();
  marks_ = std::move(*marks);
  limit_ = std::min(end_, ((marks_first_ + count) * g.rows_per_mark()) << bits_);
  co_return Status();
}

std::uint64_t Scan::used_from(std::uint64_t position) const {
  const layout::Geometry& g = state_.geometry;
  while (position < limit_ && !marks_[g.mark_of(position >> bits_) - marks_first_]) {
    position = ((g.mark_of(position >> bits_) + 1) * g.rows_per_mark()) << bits_;
  }
  return std::min(position, limit_);
}

Task<Result<index::Page>> Scan::run() {
  if (Status status = co_await read_marks(); !status.ok()) co_return status;
  Backoff backoff(state_.session);
  const Nanos begun = state_.now();
  const std::uint64_t from = at_;
  for (;; co_await backoff.wait(deadline_)) {
    const session::EraPin pin = state_.session.pin();
    at_ = used_from(from);
    parts_.clear();
    found_.clear();
    std::uint64_t parts = 0;
    while (at_ < limit_ && found_.size() < count_ && parts < kMostParts) {
      if (std::exchange(outrun_, false)) {
        if (Status status = co_await state_.directory.refresh(deadline_, cost_); !status.ok()) co_return status;
      }
      if (Status status = co_await read(); !status.ok()) co_return status;
      Sight sight = Sight::good;
      for (Part& part : parts_) {
        if (part.position < at_) continue;  // an earlier one was larger than the directory says
        if (part.position > at_) break;     // or smaller
        const std::size_t before = found_.size();
        const Result<Sight> seen = look(part);
        if (!seen.ok()) co_return seen.status();
        sight = *seen;
        if (sight != Sight::good) break;
        misled_since_ = 0;
        ++parts;
        state_.clearing.seen(part.position, at_, found_.size() == before && part.is_empty());
        at_ = used_from(at_);
      }
      if (sight == Sight::good && !outrun_) {
        at_once_ = std::min(2 * at_once_, kMostAtOnce);
      } else if (sight == Sight::again) {
        misled_since_ = 0;
        ++state_.marks.looked_again;
      } else if (sight == Sight::stale) {
        if (Status status = co_await misled(); !status.ok()) co_return status;
      }
    }
    index::Page page;
    const Result<bool> whole = co_await read_keys(page);
    if (!whole.ok()) co_return whole.status();
    if (*whole) {
      page.next = at_ < end_ ? at_ : 0;
      co_return page;
    }
    ++state_.marks.stale_extents;
    if (state_.now() - begun >= state_.failure_timeout()) {
      co_return Status(Code::corrupt, "an extent to which group " + std::to_string(from >> bits_) + " of table " +
                                          std::to_string(state_.table_id) + " or one behind it points is damaged");
    }
  }
}

// The parts from `at_` on, as the client's directory cuts the hash space.
Task<Status> Scan::read() {
  if (state_.now() >= deadline_) {
    co_return Status(Code::timed_out,
                     "the deadline passed before group " + std::to_string(at_ >> bits_) + " of a table could be read");
  }
  std::swap(parts_, before_);
  parts_.clear();
  std::uint64_t position = at_;
  for (std::uint64_t i = at_once_; i > 0 && position < limit_; --i) {
    Part& part = parts_.emplace_back(part_at(position));
    const Part* const before = this->before(part);
    part.opened = part.route.old && before != nullptr && GroupView(before->bytes).any_open();
    position = used_from(behind(position, part.depth));
  }
  fabric::Buffer buffer = state_.port().buffer(parts_.size() * 2 * kGroupBytes);
  const auto bytes_of = [&](std::size_t i, bool old) {
    return buffer.span().subspan((2 * i + (old ? 1 : 0)) * kGroupBytes, kGroupBytes);
  };
  // What a split leaves in the old table is the part before.
  const auto beside = [&](std::size_t i) {
    return i > 0 && parts_[i - 1].group == parts_[i].group && parts_[i - 1].route.table == parts_[i].route.old;
  };
  Chain chain;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    chain.add(Op::read({layout::kTable, state_.group_offset(part.route.table, part.group)}, bytes_of(i, false)));
    if (!part.route.old || part.opened || beside(i)) continue;
    chain.add(Op::read({layout::kTable, state_.group_offset(*part.route.old, part.group)}, bytes_of(i, true)));
  }
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) co_return state_.gone(Code::unavailable, "groups of slots could not be read");
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    std::memcpy(part.bytes.data(), bytes_of(i, false).data(), kGroupBytes);
    if (!part.route.old || part.opened) continue;
    const base::Bytes old = beside(i) ? bytes_of(i - 1, false) : bytes_of(i, true);
    std::memcpy(part.old.data(), old.data(), kGroupBytes);
  }
  co_return Status();
}

// Takes what the part has, and goes on behind it, if it was seen well.
Result<Scan::Sight> Scan::look(Part& part) {
  const GroupView group(part.bytes), old(part.old);
  const bool splits = part.route.old.has_value();
  if (splits) state_.splitter.watch(*part.route.old);
  for (std::uint64_t i = 0; i < kBuckets; ++i) {
    if (!HeaderWord::well_formed(group.header(i)) || (splits && !HeaderWord::well_formed(old.header(i)))) {
      return Status(Code::corrupt, "the header of a bucket of group " + std::to_string(part.group) + " of table " +
                                       std::to_string(part.route.table) + " cannot be");
    }
    // Keys may have left, for a table that the caller does not think of.
    for (const std::uint64_t header : {group.header(i), splits ? old.header(i) : 0}) {
      if (HeaderWord::Move::get(header) > known_move_) return index::map_is_old(known_move_);
    }
  }
  const Part* const before = this->before(part);
  if (splits && !group.any_open()) {
    if (part.depth == 0) return Sight::stale;
    // The key that differs from the part's in the bit by which the table is split.
    const std::uint64_t twin = part.hash ^ 1ull << (part.depth - 1);
    for (std::uint64_t i = 0; i < kBuckets; ++i) {
      const std::uint64_t header = old.header(i);
      if (!HeaderWord::covers(header, part.hash) &&
          !(HeaderWord::covers(header, twin) && HeaderWord::Depth::get(header) == part.depth)) {
        return Sight::stale;
      }
    }
    if (Status status = take(part, old, true); !status.ok()) return status;
    at_ = behind(part.position, part.depth);
    return Sight::good;
  }
  // What has been opened since it was read is read again: its slots may be older than its headers.
  if (splits && !part.opened) return Sight::again;
  std::uint64_t depth = 0;
  for (std::uint64_t i = 0; i < kBuckets; ++i) {
    const std::uint64_t header = group.header(i);
    if (splits && header == 0) continue;  // its slots are there: the others are opened behind them
    if (!HeaderWord::covers(header, part.hash)) return Sight::stale;
    depth = std::max(depth, HeaderWord::Depth::get(header));
  }
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    const Slot slot = group.slot(i);
    if (slot.moving() && (before == nullptr || GroupView(before->bytes).slot(i) != slot)) return Sight::again;
  }
  outrun_ = depth > part.depth;
  part.depth = depth;
  if (Status status = take(part, group, false); !status.ok()) return status;
  at_ = behind(part.position, depth);
  return Sight::good;
}

Status Scan::take(const Part& part, const GroupView& group, bool moving) {
  for (std::uint64_t i = 0; i < kGroupSlots; ++i) {
    const Slot slot = group.slot(i);
    if (!slot.committed() && !slot.leaving() && !(moving && slot.moving())) continue;
    if (!slot.well_formed() || !state_.in_heap(slot)) {
      return {Code::corrupt, "slot " + std::to_string(i) + " of group " + std::to_string(part.group) + " of table " +
                                 std::to_string(part.route.table) + " cannot be"};
    }
    found_.push_back({.slot = slot, .group = part.group, .hash = part.hash, .depth = part.depth});
  }
  return {};
}

Task<Status> Scan::misled() {
  ++state_.marks.stale_routes;
  if (misled_since_ == 0) misled_since_ = state_.now();
  if (state_.now() - misled_since_ >= state_.failure_timeout()) {
    co_return Status(Code::corrupt, "the directory leads to a table whose group " + std::to_string(at_ >> bits_) +
                                        " does not have the keys that it should");
  }
  co_return co_await state_.directory.refresh(deadline_, cost_);
}

// The keys that belong to the parts in which their slots were found. False: a slot points to something else than an
// extent of a key of its place.
Task<Result<bool>> Scan::read_keys(index::Page& page) {
  std::vector<index::Head> heads;
  heads.reserve(found_.size());
  for (const Found& found : found_) {
    const std::uint64_t block = found.slot.block();
    const std::uint64_t most =
        found.slot.open_ended() ? state_.heap_bytes() - layout::block_offset(block) : found.slot.bytes();
    heads.push_back({.block = block, .most = most});
  }
  if (Status status = co_await index::read_heads_and_expiries(state_.session, heads, deadline_, cost_); !status.ok()) {
    co_return status;
  }
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const Found& found = found_[i];
    const base::Bytes key = base::bytes_of(heads[i].key);
    const std::uint64_t hash = base::keyed_hash(state_.session.grant().table_seed, key);
    const Places places = locate(hash, state_.geometry.rows_per_table());
    if (heads[i].extent_bytes == 0 || !found.slot.fits(heads[i].extent_bytes) || print_of(hash) != found.slot.print() ||
        (places[0].group != found.group && places[1].group != found.group)) {
      co_return false;
    }
    const std::uint64_t whose = directory::hash_of(state_.session.grant().pool_secret, key);
    if (directory::low_bits(whose, found.depth) != directory::low_bits(found.hash, found.depth)) continue;
    page.add(std::move(heads[i].key), heads[i].expires);
  }
  co_return true;
}

}  // namespace

// What a split copies lies in the old table until every operation has ended that held an era when the new one had no
// copy yet: so under one era a slot is seen in the one or in the other. The directory names the new table before.
Task<Result<std::vector<bool>>> Table::State::empty(std::span<const std::uint64_t> of_marks, Nanos deadline,
                                                    Cost& cost) {
  const session::EraPin pin = session.pin();
  if (Status status = co_await directory.refresh(deadline, cost); !status.ok()) co_return status;
  std::set<std::uint64_t> tables;
  const directory::View view = directory.view();
  for (std::uint64_t i = 0; i < 1ull << view.depth(); ++i) {
    tables.insert(layout::EntryWord::Table::get(view.entry(i)));
  }
  if (*tables.rbegin() >= geometry.tables)
    co_return Status(Code::corrupt, "the directory names a table that cannot be");
  std::vector<index::RowsOfMark> rows;
  for (std::size_t i = 0; i < of_marks.size(); ++i) {
    const std::uint64_t first = of_marks[i] * geometry.rows_per_mark();
    const std::uint64_t count = std::min(geometry.rows_per_mark(), geometry.rows_per_table() - first);
    for (const std::uint64_t table : tables) rows.push_back({i, group_offset(table, first), count});
  }
  co_return co_await index::are_empty(session, of_marks.size(), std::move(rows), kGroupBytes, is_empty_group, deadline,
                                      cost);
}

// A memory node has fewer than 2^32 groups in all its tables together (layout/geometry.cc).
static_assert(index::kPositionBits >= 32);
std::uint64_t Table::positions() const {
  return state_->geometry.rows_per_table() << layout::most_depth(state_->geometry.tables);
}

Task<Result<index::Page>> Table::scan(std::uint64_t position, std::uint64_t count, Nanos deadline, Cost& cost) {
  if (position >= positions()) co_return index::Page();
  Scan scan(*state_, position, count, deadline, cost);
  co_return co_await scan.run();
}

}  // namespace farpool::race
