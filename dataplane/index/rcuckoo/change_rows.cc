// SPDX-License-Identifier: Apache-2.0
// What a change finds in the rows that it has locked, and what it writes there.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "index/rcuckoo/changing.h"
#include "layout/extent.h"

namespace farpool::rcuckoo {

// --- Rows under locks

base::MutableBytes Change::row(std::uint64_t number) {
  for (std::size_t i = 0; i < stretch_count_; ++i) {
    const Stretch& stretch = stretches_[i];
    if (number < stretch.first || number >= stretch.first + stretch.count) continue;
    const std::uint64_t bytes = state_.geometry.row_bytes();
    return buffer_.span().subspan(stretch.at + (number - stretch.first) * bytes, bytes);
  }
  return {};
}

// Checks the key's rows. A row under its lock is whole: a WRITE and the release that follows it land in that order.
Status Change::check_key_rows() {
  for (std::size_t i = 0; i < stretch_count_; ++i) {
    for (std::uint64_t n = 0; n < stretches_[i].count; ++n) {
      const std::uint64_t number = stretches_[i].first + n;
      const bool ours = number == places_.first || number == places_.second || wish_.close.count > 0;
      if (view(number).whole(number)) {
        state_.cache.learn(number, row(number));
        if (!ours) continue;
        if (const auto slot = state_.impossible(view(number))) {
          return {Code::corrupt, "entry " + std::to_string(*slot) + " of " + state_.name_row(number) + " cannot be"};
        }
      } else if (ours) {
        return {Code::corrupt,
                state_.name_row(number) +
                    " is not whole although its lock was free: its last writer died, or the memory is damaged"};
      }
    }
  }
  return {};
}

bool Change::points_to(std::uint64_t block) {
  for (const std::uint64_t number : {places_.first, places_.second}) {
    for (std::uint64_t slot = 0; slot < state_.geometry.entries_per_row; ++slot) {
      const Entry entry = view(number).entry(slot);
      if (entry.type() == EntryType::extent && entry.block() == block) return true;
    }
  }
  return false;
}

Task<Status> Change::find() {
  found_ = Found{};
  for (const std::uint64_t number : {places_.first, places_.second}) {
    const RowView held = view(number);
    for (std::uint64_t slot = 0; slot < state_.geometry.entries_per_row; ++slot) {
      if (!held.may_be(slot, sought_)) continue;
      const Entry entry = held.entry(slot);
      Found candidate{.row = number, .slot = slot, .entry = entry};
      if (entry.type() == EntryType::in_place) {
        if (base::text_of(entry.key()) != key_) continue;
        candidate.present = true;
        candidate.bytes = entry.key().size() + entry.value().size();
      } else {
        if (Status status = co_await read_extent_of(candidate); !status.ok()) co_return status;
        if (!candidate.present) continue;  // another key of the same hash
      }
      found_ = std::move(candidate);
      // Views found_ itself, or the buffer that it owns.
      if (found_.entry.type() == EntryType::in_place) found_.value = base::text_of(found_.entry.value());
      co_return Status();
    }
  }
  co_return Status();
}

// Reads the candidate's extent. Under its lock it is live, so an extent that does not fit is damage. The value is read
// only if it is wanted; then the checksum is checked, too.
Task<Status> Change::read_extent_of(Found& candidate) {
  const Entry& entry = candidate.entry;
  const bool all = wish_.leave == Wish::Leave::begin || (wish_.editor != nullptr && wish_.editor->wants_value());
  const std::uint64_t bytes =
      all ? entry.bytes() : std::min(entry.bytes(), base::round_up(layout::kExtentHeader + key_.size(), 8));
  candidate.extent = state_.port().buffer(bytes);
  Chain chain;
  chain.add(Op::read(state_.block_at(entry.block()), candidate.extent.first(bytes)));
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) {
    co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
  }
  const base::Bytes read = candidate.extent.first(bytes);
  const auto lengths = base::load<std::uint64_t>(read.data());
  const std::uint64_t key_bytes = layout::ExtentLengths::key(lengths),
                      value_bytes = layout::ExtentLengths::value(lengths);
  const auto whole = all ? layout::read_extent(read, entry.block()) : std::nullopt;
  if (base::round_up(layout::extent_bytes(key_bytes, value_bytes), layout::kBlockUnit) != entry.bytes() ||
      (all && !whole)) {
    co_return Status(Code::corrupt, "the extent of entry " + std::to_string(candidate.slot) + " of " +
                                        state_.name_row(candidate.row) + " is damaged");
  }
  if (key_bytes != key_.size() || base::text_of(read.subspan(layout::kExtentHeader, key_bytes)) != key_)
    co_return Status();
  candidate.present = true;
  candidate.bytes = key_bytes + value_bytes;
  if (all) candidate.value = base::text_of(whole->value);
  co_return Status();
}

// --- What to write

Edit::Kind Change::decide() {
  if (wish_.leave != Wish::Leave::none) return found_.present ? decide_to_leave() : Edit::Kind::keep;
  if (wish_.editor == nullptr) return found_.present ? wish_.if_present : wish_.if_absent;
  const std::optional<std::string_view> value =
      !found_.present ? std::nullopt : std::optional(wish_.editor->wants_value() ? found_.value : std::string_view());
  Edit edit = wish_.editor->edit(value);
  if (edit.kind == Edit::Kind::erase && !found_.present) return Edit::Kind::keep;
  if (edit.kind == Edit::Kind::put) {
    decided_ = std::move(edit.value);
    value_ = decided_;
    composed_ = false;
  }
  return edit.kind;
}

Edit::Kind Change::decide_to_leave() {
  if (wish_.leave == Wish::Leave::end) return Edit::Kind::erase;
  const bool begins = wish_.leave == Wish::Leave::begin;
  if (begins) *wish_.leaving_value = found_.value;
  if (found_.entry.leaving() == begins) return Edit::Kind::keep;
  entry_ = found_.entry.as_leaving(begins);
  composed_ = true;
  return Edit::Kind::put;
}

// Makes the entry for value_, and the extent in a block if it does not fit the entry. Returns false if no block is at
// hand.
bool Change::compose() {
  const base::Bytes key = base::bytes_of(key_), value = base::bytes_of(value_);
  extent_used_ = false;
  if (Entry::fits(state_.geometry.entry_bytes, key.size(), value.size())) {
    entry_ = Entry::in_place(key, value);
    return composed_ = true;
  }
  const std::uint64_t bytes = layout::extent_bytes(key.size(), value.size());
  // The client that frees the block knows its class only from the entry's size, so a block that was allocated for
  // another class will not do.
  const auto same_block = [this](std::uint64_t a, std::uint64_t b) {
    const std::uint64_t segment = state_.geometry.segment_bytes;
    const std::uint64_t size_class = layout::size_class_for(a, segment);
    return size_class == layout::size_class_for(b, segment) &&
           (size_class != layout::kRun || layout::run_segments(a, segment) == layout::run_segments(b, segment));
  };
  if (block_.bytes != 0 && !same_block(block_for_, bytes)) state_.heap.discard(std::exchange(block_, {}));
  if (block_.bytes == 0) {
    const std::optional<heap::Block> block = state_.heap.take(bytes, purpose_of(bytes));
    if (!block) return false;
    block_ = *block;
    block_for_ = bytes;
  }
  if (extent_.size() < bytes) extent_ = state_.port().buffer(bytes);
  extent_size_ = bytes;
  layout::write_extent(extent_.first(bytes), block_.units, key, value);
  entry_ = Entry::extent(block_.units, bytes, hash_);
  extent_used_ = true;
  extent_sent_ = false;
  return composed_ = true;
}

heap::Purpose Change::purpose_of(std::uint64_t bytes) const {
  const bool replaces = found_.present && found_.entry.type() == EntryType::extent;
  return state_.heap.purpose_of(bytes, replaces ? found_.entry.bytes() : 0);
}

// Allocates a block for value_ if none was at hand. The caller holds neither locks nor an era.
Task<Status> Change::fetch_block() {
  const std::uint64_t bytes = layout::extent_bytes(key_.size(), value_.size());
  Result<heap::Block> block = co_await state_.heap.allocate(bytes, purpose_of(bytes), deadline_, cost_);
  if (!block.ok()) co_return block.status();
  block_ = *block;
  block_for_ = bytes;
  co_return Status();
}

// Finds the place of the new entry: the head of path_. Returns false if the held rows have no room.
Task<Result<bool>> Change::place() {
  if (!sweeps_) {
    if (place_in_key_rows()) co_return true;
    if (state_.geometry.rows_per_lock == 1) co_return false;  // all held rows have been read
    if (Status status = co_await read_all_held_rows(); !status.ok()) co_return status;
  }
  co_return place_in_held_rows();
}

bool Change::place_in_key_rows() {
  for (const std::uint64_t number : {places_.first, places_.second}) {
    const int slot = view(number).empty_slot();
    if (slot < 0) continue;
    path_.length = 1;
    path_.step[0] = {number, static_cast<std::uint32_t>(slot)};
    return true;
  }
  return false;
}

bool Change::place_in_held_rows() {
  struct Held {
    Change& change;
    base::Bytes operator()(std::uint64_t number) const {
      const base::Bytes bytes = change.row(number);
      return !bytes.empty() && RowView(change.state_.geometry, bytes).whole(number) ? bytes : base::Bytes();
    }
  };
  const Held held{*this};
  return planner_.search_held(held, path_);
}

// The key's rows are full: reads what else their locks cover, which is near and may take an entry of theirs. That is one
// trip under the locks, where another attempt is two.
Task<Status> Change::read_all_held_rows() {
  plan_reads(true);
  Chain chain;
  add_reads(chain);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) {
    co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
  }
  co_return check_key_rows();
}

// Posts one chain: the extent if it has not been sent, the slot, the rows from the end of the path on, and the release.
// The WRITEs land in that order and before the atomics, so a moved entry is always in one of its rows, and no reader
// under a lock sees a row half done.
Task<Result<Change::Next>> Change::commit(session::Slot& slot, Edit::Kind kind) {
  const Geometry& g = state_.geometry;
  const Entry entry = kind == Edit::Kind::put ? entry_ : Entry();
  if (found_.present) {
    path_.length = 1;
    path_.step[0] = {found_.row, static_cast<std::uint32_t>(found_.slot)};
  }
  Chain chain;
  const bool publishes = kind == Edit::Kind::put && extent_used_;
  if (publishes && !extent_sent_) chain.add(Op::write(state_.block_at(block_.units), extent_.first(extent_size_)));
  // Any part of these WRITEs may be the last that lands; the slot says beforehand what they do.
  layout::OperationSlot& said = slot.words();
  said.row = {};
  for (std::size_t i = 0; i < path_.length; ++i) {
    const Displacement& step = path_.step[path_.length - 1 - i];
    said.row[i] = SlotRow::of(step.row, step.slot);
  }
  const Displacement& head = path_.step[0];
  said.replaced = found_.present ? found_.entry.words()[0] : view(head.row).entry(head.slot).words()[0];
  said.rest = rest_of(g, row(head.row), head.slot);
  said.redo = entry.words();
  said.keys_after = said.keys;
  said.bytes_after = said.bytes;
  if (kind == Edit::Kind::put && !only_marks()) {
    said.bytes_after += key_.size() + value_.size();
    if (!found_.present) ++said.keys_after;
  }
  if (found_.present && !only_marks()) {
    said.bytes_after -= found_.bytes;
    if (kind == Edit::Kind::erase) --said.keys_after;
  }
  // Where the key was there are marks already. The fence on the plan holds back the rows, too.
  const bool comes = !found_.present;
  const std::uint64_t forgets = state_.row_marks.forgets();
  bool marks = false;
  for (std::size_t i = 0; comes && i < path_.length; ++i) {
    marks = state_.row_marks.add_to(chain, path_.step[i].row) || marks;
  }
  chain.add(marks ? slot.plan().fenced() : slot.plan());
  for (std::size_t i = path_.length; i-- > 0;) {
    const Displacement& step = path_.step[i];
    const Entry moved = i == 0 ? entry : view(path_.step[i - 1].row).entry(path_.step[i - 1].slot);
    edit_row(g, row(step.row), step.row, step.slot, moved, i == 0 ? reaches() : 0);
    chain.add(Op::write(state_.row_at(step.row), row(step.row)));
  }
  chain.add(slot.settle());
  if (Status status = co_await carry_out(chain); !status.ok()) co_return status;
  for (std::size_t i = 0; comes && i < path_.length; ++i) state_.row_marks.landed(path_.step[i].row, forgets);
  for (std::size_t i = 0; i < path_.length; ++i) state_.cache.learn(path_.step[i].row, row(path_.step[i].row));
  state_.marks.displaced += path_.length - 1;

  if (found_.present && found_.entry.type() == EntryType::extent && !only_marks()) {
    state_.heap.free(found_.entry.block(), found_.entry.bytes(), cost_);
  }
  if (publishes) state_.heap.published(std::exchange(block_, {}));
  co_return Next::finished;
}

// Does the same as commit(), but changes in each row only the last move that has reached it.
Task<Result<Change::Next>> Change::close(session::Slot& slot) {
  layout::OperationSlot& said = slot.words();
  said.row = {};
  said.redo = {};
  said.replaced = said.rest = 0;
  said.keys_after = said.keys;
  said.bytes_after = said.bytes;
  for (std::size_t i = 0; i < row_count_; ++i) {
    said.row[i] = SlotRow::of(rows_[i], 0);
    said.redo[i] = entries_of(row(rows_[i]));
  }
  Chain chain;
  chain.add(slot.plan());
  for (std::size_t i = 0; i < row_count_; ++i) {
    seal_row(row(rows_[i]), rows_[i], reaches());
    chain.add(Op::write(state_.row_at(rows_[i]), row(rows_[i])));
  }
  chain.add(slot.settle());
  if (Status status = co_await carry_out(chain); !status.ok()) co_return status;
  for (std::size_t i = 0; i < row_count_; ++i) state_.cache.learn(rows_[i], row(rows_[i]));
  co_return Next::finished;
}

// Posts the chain that writes the rows, with the release behind it.
Task<Status> Change::carry_out(Chain& chain) {
  add_releases(chain, word_count_);
  if (!state_.session.alive()) {
    taken_ = 0;
    co_return state_.gone(Code::unavailable, "the session ended before " + std::string(name()) + " changed anything");
  }
  const std::size_t words = std::exchange(taken_, 0);
  const Outcome outcome = co_await state_.session.post(chain.ops(), deadline_, cost_);
  if (outcome.fate != Fate::done) {
    co_return state_.gone(Code::unknown_outcome, "the session ended in the middle of " + std::string(name()) +
                                                     ": it may or may not have taken effect");
  }
  if (released(words)) co_return Status();
  state_.session.end(
      {Code::corrupt, "locks of table " + std::to_string(state_.table_id) + " that were held had been taken away"});
  co_return state_.gone(Code::unknown_outcome, std::string(name()) + " may or may not have lasted");
}

}  // namespace farpool::rcuckoo
