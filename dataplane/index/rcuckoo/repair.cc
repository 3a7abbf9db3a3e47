// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/repair.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "index/rcuckoo/change.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/state.h"
#include "index/rewrite.h"
#include "layout/extent.h"
#include "layout/lease.h"
#include "layout/regions.h"

namespace farpool::rcuckoo {
namespace {

using layout::OperationSlot;

bool same(const Geometry& geometry, const Entry& a, const Entry& b) {
  const auto end = a.words().begin() + static_cast<std::ptrdiff_t>(geometry.entry_bytes / 8);
  return std::equal(a.words().begin(), end, b.words().begin());
}

// Says whether a torn row is in the middle of a WRITE that changes `slot` from `before` to `after` and that brings no
// move: then its checksum is that of one of the two, with the matching version.
bool torn_between(const Geometry& geometry, base::Bytes row, std::uint64_t number, std::uint64_t slot,
                  const Entry& before, const Entry& after) {
  std::vector<std::byte> guess(row.begin(), row.end());
  std::byte* trailer = guess.data() + guess.size() - kRowTrailer;
  const auto version = base::load<std::uint64_t>(trailer), checksum = base::load<std::uint64_t>(trailer + 8);
  const auto fits = [&](const Entry& entry, std::uint64_t of_version) {
    std::memcpy(guess.data() + slot * geometry.entry_bytes, entry.raw().data(), geometry.entry_bytes);
    base::store(trailer, of_version);
    return base::crc64(base::Bytes(guess).first(guess.size() - 8), number) == checksum;
  };
  return fits(before, version) || fits(before, VersionWord::lowered(version)) || fits(after, version) ||
         fits(after, VersionWord::raised(version));
}

// Finishes rows that a move was to reach and in which nothing else was to change.
Finish finish_closing(const Geometry& geometry, const OperationSlot& slot, std::span<const base::MutableBytes> rows) {
  const std::uint64_t move = SlotState::Move::get(slot.state);
  const auto number = [&](std::size_t i) { return SlotRow::row(slot.row[i]); };
  const auto closed = [&](std::size_t i) {
    const RowView row(geometry, rows[i]);
    return row.whole(number(i)) && row.move() >= move;
  };
  std::size_t first = 0;
  while (first < rows.size() && closed(first)) ++first;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (entries_of(rows[i]) == slot.redo[i]) continue;
    return {.unexplained = "entries of row " + std::to_string(number(i)) + " have changed while it was closed"};
  }
  for (std::size_t i = first; i < rows.size(); ++i) seal_row(rows[i], number(i), move);
  return {.first = first};
}

}  // namespace

std::uint64_t entries_of(base::Bytes row) { return base::crc64(row.first(row.size() - kRowTrailer)); }

std::uint64_t rest_of(const Geometry& geometry, base::Bytes row, std::uint64_t slot) {
  const std::uint64_t from = slot * geometry.entry_bytes, to = from + geometry.entry_bytes;
  return base::crc64(row.first(row.size() - kRowTrailer).subspan(to), base::crc64(row.first(from), slot));
}

std::optional<std::vector<std::uint64_t>> rows_of(const Geometry& geometry, const OperationSlot& slot) {
  std::vector<std::uint64_t> rows;
  for (const std::uint64_t word : slot.row) {
    if (word == 0) break;
    const std::uint64_t row = SlotRow::row(word);
    if (row >= geometry.rows || SlotRow::slot(word) >= geometry.entries_per_row) return std::nullopt;
    const LockBit bit = lock_bit(geometry, lock_of(geometry, row));
    if (!slot.covers(bit.offset, bit.mask) || std::find(rows.begin(), rows.end(), row) != rows.end()) {
      return std::nullopt;
    }
    rows.push_back(row);
  }
  if (rows.empty()) return std::nullopt;
  return rows;
}

Finish finish_rows(const Geometry& geometry, const OperationSlot& slot, std::span<const base::MutableBytes> rows) {
  const std::size_t count = rows.size();
  FARPOOL_CHECK(count > 0 && count <= OperationSlot::kRows);
  const auto number = [&](std::size_t i) { return SlotRow::row(slot.row[i]); };
  const auto place = [&](std::size_t i) { return SlotRow::slot(slot.row[i]); };
  const auto view = [&](std::size_t i) { return RowView(geometry, rows[i]); };
  const auto unexplained = [](std::string what) { return Finish{.unexplained = std::move(what)}; };

  for (std::size_t i = 0, torn = 0; i < count; ++i) {
    torn += view(i).whole(number(i)) ? 0 : 1;
    if (torn > 1)
      return unexplained("more than one row of its path is torn, row " + std::to_string(number(i)) + " too");
  }
  if (SlotState::closes(slot.state)) return finish_closing(geometry, slot, rows);
  // Goes from the last row to be written back to the first unchanged row, and works out what each becomes.
  std::array<Entry, OperationSlot::kRows> becomes;
  becomes[count - 1] = Entry(std::as_bytes(std::span(slot.redo)).first(geometry.entry_bytes));
  std::size_t first = count;
  for (std::size_t i = count; i-- > 0;) {
    const Entry entry = view(i).entry(place(i));
    if (!view(i).whole(number(i))) {
      // Its old state: in a path, the entry that the row before it has got; at the path's end, nothing.
      bool explained = false;
      if (i + 1 == count) {
        explained = rest_of(geometry, rows[i], place(i)) == slot.rest;
      } else {
        const Entry was = i > 0 ? view(i - 1).entry(place(i - 1)) : Entry();
        explained = torn_between(geometry, rows[i], number(i), place(i), was, becomes[i]);
      }
      if (!explained) return unexplained("row " + std::to_string(number(i)) + " is torn otherwise than by its plan");
      first = i;
      break;
    }
    if (same(geometry, entry, becomes[i])) break;
    first = i;
    if (i > 0) {
      becomes[i - 1] = entry;
      continue;
    }
    const std::uint64_t was = count > 1 ? 0 : slot.replaced;
    if (entry.words()[0] != was) {
      return unexplained("entry " + std::to_string(place(i)) + " of row " + std::to_string(number(i)) +
                         " is neither what it was nor what it becomes");
    }
  }
  for (std::size_t i = first; i < count; ++i) {
    const std::uint64_t move = i + 1 == count ? SlotState::Move::get(slot.state) : 0;
    edit_row(geometry, rows[i], number(i), place(i), becomes[i], move);
  }
  return {.first = first};
}

HalfDone half_done(const Geometry& geometry, base::Bytes memory) {
  using State = HalfDone::State;
  HalfDone found;
  const layout::Span slots = geometry.at(layout::kSlots), table = geometry.at(layout::kTable);
  for (std::uint64_t i = 0; i < slots.bytes / sizeof(OperationSlot); ++i) {
    HalfDone::Slot one{.index = i,
                       .says = base::load<OperationSlot>(memory.data() + slots.offset + i * sizeof(OperationSlot))};
    const OperationSlot& says = one.says;
    if (says.holder == 0) continue;
    const auto rows = rows_of(geometry, says);
    if (says.quarantined()) {
      one.why = "found so";
    } else if (!says.writing()) {
      one.state = says.planned() ? State::written : says.claims() ? State::locking : State::begun;
    } else if (!rows) {
      one.why = "its plan is none of this table";
    } else {
      one.state = State::writing;
      std::vector<std::vector<std::byte>> bytes;
      for (const std::uint64_t row : *rows) {
        const auto at = found.rows.find(row);
        const base::Bytes now = at != found.rows.end()
                                    ? base::Bytes(at->second)
                                    : memory.subspan(table.offset + row * geometry.row_bytes(), geometry.row_bytes());
        bytes.emplace_back(now.begin(), now.end());
      }
      const std::vector<base::MutableBytes> views(bytes.begin(), bytes.end());
      const Finish finished = finish_rows(geometry, says, views);
      one.why = finished.unexplained;
      for (std::size_t at = finished.first; one.why.empty() && at < bytes.size(); ++at) {
        one.rows.push_back((*rows)[at]);
        found.rows[(*rows)[at]] = std::move(bytes[at]);
      }
    }
    if (!one.why.empty()) {
      one.state = State::quarantined;
      one.rows = rows.value_or(std::vector<std::uint64_t>());
    }
    found.slots.push_back(std::move(one));
  }
  return found;
}

ImageRepair repair_image(const Geometry& geometry, base::MutableBytes memory) {
  using State = HalfDone::State;
  ImageRepair done;
  const auto region = [&](layout::RegionId id) {
    return memory.subspan(geometry.at(id).offset, geometry.at(id).bytes);
  };
  const base::MutableBytes slots = region(layout::kSlots), locks = region(layout::kLocks),
                           table = region(layout::kTable);
  const HalfDone found = half_done(geometry, memory);
  // The first store must be visible before the second: a kill may come between any two.
  const auto then = [] { std::atomic_signal_fence(std::memory_order_seq_cst); };

  std::vector<std::uint64_t> kept(locks.size() / 8, 0);
  for (const HalfDone::Slot& one : found.slots) {
    std::byte* at = slots.data() + one.index * sizeof(OperationSlot);
    OperationSlot slot = one.says;
    if (one.state == State::quarantined) {
      done.quarantined.push_back("operation slot " + std::to_string(one.index) + ": " + one.why);
      slot.done = OperationSlot::kQuarantined;
      // Locks in a NIC's memory were lost with the process: what a whole claim names is locked again.
      for (const layout::HeldLocks& held : slot.lock_word) {
        if (held.mask == 0 || held.offset % 8 != 0 || held.offset >= locks.size()) continue;
        const auto stands = slot.claims() ? ~0ull : base::load<std::uint64_t>(locks.data() + held.offset);
        kept[held.offset / 8] |= held.mask & stands & layout::bits_of_lock_word(held.offset, geometry.lock_bits);
      }
    } else {
      ++done.slots;
      done.finished += one.state == State::writing ? 1 : 0;
      for (const std::uint64_t row : one.rows) {
        const std::vector<std::byte>& becomes = found.rows.at(row);
        std::memcpy(table.data() + row * geometry.row_bytes(), becomes.data(), becomes.size());
        then();
      }
      if (slot.planned()) slot.settle();
    }
    base::store(at, slot);
    then();
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto word = base::load<std::uint64_t>(locks.data() + i * 8);
    done.bits += static_cast<std::uint64_t>(std::popcount(word & ~layout::kBarrier));
    base::store(locks.data() + i * 8, kept[i]);
  }
  const base::MutableBytes leases = region(layout::kLeases);
  std::memset(leases.data(), 0, leases.size());
  then();
  for (const HalfDone::Slot& one : found.slots) {
    if (one.state == State::quarantined) continue;
    base::store(slots.data() + one.index * sizeof(OperationSlot) + layout::kSlotHolder.offset, std::uint64_t{0});
  }
  return done;
}

Task<Result<std::optional<std::string>>> Table::State::finish(const OperationSlot& slot, Nanos deadline, Cost& cost) {
  const auto rows = rows_of(geometry, slot);
  if (!rows || SlotState::Table::get(slot.state) != table_id) {
    co_return std::optional<std::string>("its plan is none of table " + std::to_string(table_id));
  }
  // A client that clears marks of rows waits for this as for an operation.
  const session::EraPin pin = session.pin();
  const std::uint64_t bytes = geometry.row_bytes();
  fabric::Buffer buffer = port().buffer(rows->size() * bytes);
  std::vector<base::MutableBytes> images;
  Chain chain;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    images.push_back(buffer.span().subspan(i * bytes, bytes));
    chain.add(Op::read(row_at((*rows)[i]), images.back()));
  }
  Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return gone(Code::unavailable, "the session ended in the middle of a repair");
  const Finish finished = finish_rows(geometry, slot, images);
  if (!finished.unexplained.empty()) co_return std::optional<std::string>(finished.unexplained);
  if (finished.first < images.size()) {
    chain.clear();
    // The dead client may have relied on marks that have been cleared since.
    const bool puts = !SlotState::closes(slot.state);
    for (std::size_t i = finished.first; puts && i < images.size(); ++i) row_marks.add_anew_to(chain, (*rows)[i]);
    for (std::size_t i = finished.first; i < images.size(); ++i) {
      const Op write = Op::write(row_at((*rows)[i]), images[i]);
      chain.add(i == finished.first ? write.fenced() : write);
    }
    outcome = co_await session.post(chain.ops(), deadline, cost);
    if (outcome.fate != Fate::done) co_return gone(Code::unavailable, "the session ended in the middle of a repair");
    for (std::size_t i = finished.first; i < images.size(); ++i) cache.learn((*rows)[i], images[i]);
  }
  co_return std::optional<std::string>();
}

Task<Result<bool>> Table::State::refers(std::uint64_t units, base::Bytes extent, Nanos deadline, Cost& cost) {
  const auto whole = layout::read_extent(extent, units);
  if (!whole || whole->key.size() > layout::kMaxKeyBytes) co_return false;
  // Most blocks are in use, and rows that no client holds show that without their locks. The locks are read before the
  // rows: so a block that was unlinked by a client that was dead by then is seen, because a lock stands until the dead
  // client's rows are written.
  const Places places = locate(hash(base::text_of(whole->key)), geometry.rows);
  const std::array rows{places.first, places.second};
  const std::uint64_t bytes = geometry.row_bytes();
  fabric::Buffer buffer = port().buffer(rows.size() * (bytes + 8));
  const auto word_at = [&](std::size_t i) { return buffer.span().subspan(i * 8, 8); };
  const auto row_bytes = [&](std::size_t i) { return buffer.span().subspan(rows.size() * 8 + i * bytes, bytes); };
  Chain chain;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    chain.add(Op::read({layout::kLocks, lock_bit(geometry, lock_of(geometry, rows[i])).offset}, word_at(i)));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) chain.add(Op::read(row_at(rows[i]), row_bytes(i)).fenced());
  const Outcome outcome = co_await session.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) co_return gone(Code::unavailable, "the session ended in the middle of a look");
  bool free = true, points = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto word = base::load<std::uint64_t>(word_at(i).data());
    free = free && (word & lock_bit(geometry, lock_of(geometry, rows[i])).mask) == 0;
    const RowView view(geometry, row_bytes(i));
    for (std::uint64_t slot = 0; view.whole(rows[i]) && slot < geometry.entries_per_row; ++slot) {
      const Entry entry = view.entry(slot);
      points = points || (entry.type() == EntryType::extent && entry.block() == units);
    }
  }
  if (free && points) co_return true;
  co_return co_await change(*this, base::text_of(whole->key), {.block = units}, deadline, cost);
}

Task<Status> Table::State::rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes, Nanos deadline,
                                   Cost& cost) {
  const index::Modify modify = [&](std::string_view key, Editor& editor) {
    return change(*this, key, {.kind = Operation::modify, .editor = &editor}, deadline, cost);
  };
  co_return co_await index::rewrite(session, units, block_bytes, modify, deadline, cost);
}

}  // namespace farpool::rcuckoo
