// SPDX-License-Identifier: Apache-2.0
#include "sim/survey.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "index/race/verify.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/repair.h"
#include "layout/extent.h"
#include "layout/lease.h"
#include "layout/segment.h"

namespace farpool::sim {
namespace {

using layout::Geometry;
using layout::OperationSlot;
using rcuckoo::Entry;
using rcuckoo::EntryType;
using rcuckoo::RowView;
using rcuckoo::SlotRow;

// Operations of one client that were under way when it ended, at most.
constexpr std::int64_t kUncounted = 4;

class Surveyor {
 public:
  explicit Surveyor(const World& world) : world_(world), g_(world.geometry()) {
    for (const auto& client : world.clients()) {
      if (client->crashed()) dead_.insert(client->incarnation());
    }
  }
  Survey run() {
    look_at_slots();
    look_at_locks();
    look_at_leases();
    if (g_.protocol == layout::Protocol::race) {
      look_at_groups();
    } else {
      look_at_rows();
    }
    look_at_heap();
    look_at_counts();
    return std::move(found_);
  }

 private:
  void wrong(std::string what) { found_.wrong.push_back(std::move(what)); }

  OperationSlot slot(std::uint64_t index) const {
    OperationSlot slot;
    std::memcpy(&slot, world_.region(layout::kSlots).data() + index * sizeof slot, sizeof slot);
    return slot;
  }
  std::uint64_t slots() const { return g_.max_sessions * g_.slots_per_session; }
  bool of_the_dead(std::uint64_t index) const {
    for (const auto& client : world_.clients()) {
      const std::uint64_t first = client->slots_offset() / sizeof(OperationSlot);
      if (client->crashed() && index >= first && index < first + g_.slots_per_session) return true;
    }
    return false;
  }

  void look_at_slots() {
    for (std::uint64_t i = 0; i < slots(); ++i) {
      const OperationSlot said = slot(i);
      const std::string name = "operation slot " + std::to_string(i);
      if (said.holder == 0) continue;
      if (!of_the_dead(i) || !dead_.contains(said.holder)) {
        wrong(name + " says something, and its holder is not dead");
        continue;
      }
      ++found_.slots_of_the_dead;
      if (said.quarantined()) wrong(name + " is quarantined");
      if (!said.claims()) continue;
      std::uint64_t words = 0;
      for (const layout::HeldLocks& held : said.lock_word) {
        words += held.mask != 0 ? 1 : 0;
        if (held.mask != 0 && (held.offset % 8 != 0 || held.offset + 8 > g_.at(layout::kLocks).bytes)) {
          wrong(name + " claims a lock word that cannot be");
        }
      }
      if (words == 0) wrong(name + " claims nothing");
      if (said.writing() && !rcuckoo::rows_of(g_, said)) wrong(name + " has a plan that cannot be");
    }
  }

  bool covered_by_the_dead(std::uint64_t offset, std::uint64_t mask) const {
    for (std::uint64_t i = 0; i < slots(); ++i) {
      if (of_the_dead(i) && dead_.contains(slot(i).holder) && slot(i).claims() && slot(i).covers(offset, mask))
        return true;
    }
    return false;
  }

  void look_at_locks() {
    for (std::uint64_t offset = 0; offset < g_.at(layout::kLocks).bytes; offset += 8) {
      auto word = base::load<std::uint64_t>(world_.region(layout::kLocks).data() + offset);
      if ((word & layout::kBarrier) != 0) {
        ++found_.barriers;
        word &= ~layout::kBarrier;
        if (!covered_by_the_dead(offset, ~0ull))
          wrong("lock word " + std::to_string(offset / 8) + " is barred by nobody");
      }
      for (; word != 0; word &= word - 1) {
        const std::uint64_t mask = word & ~(word - 1);
        ++found_.set_lock_bits;
        locked_.insert({offset, mask});
        if (!covered_by_the_dead(offset, mask)) {
          wrong("bit " + std::to_string(std::countr_zero(mask)) + " of lock word " + std::to_string(offset / 8) +
                " is set, and no slot of a dead client covers it");
        }
      }
    }
  }
  bool locked(std::uint64_t row) const {
    const rcuckoo::LockBit bit = rcuckoo::lock_bit(g_, rcuckoo::lock_of(g_, row));
    return locked_.contains({bit.offset, bit.mask});
  }

  void look_at_leases() {
    for (std::uint64_t i = 0; i < layout::kLeaseWords; ++i) {
      const auto word = base::load<std::uint64_t>(world_.region(layout::kLeases).data() + i * 8);
      if (!layout::LeaseWord::held(word)) continue;
      ++found_.leases;
      const bool of_the_dead =
          std::any_of(world_.clients().begin(), world_.clients().end(), [word](const auto& client) {
            return client->crashed() && client->session_id() == layout::LeaseWord::Session::get(word);
          });
      if (!of_the_dead) wrong("repair lease " + std::to_string(i) + " is held, and its holder is not dead");
    }
  }

  void look_at_rows() {
    const base::Bytes table = world_.region(layout::kTable);
    for (std::uint64_t row = 0; row < g_.rows; ++row) {
      const RowView view(g_, table.subspan(row * g_.row_bytes(), g_.row_bytes()));
      if (!view.whole(row)) {
        found_.torn_rows.insert(row);
        if (!locked(row)) wrong("row " + std::to_string(row) + " is torn and its lock is free");
        continue;
      }
      for (std::uint64_t slot = 0; slot < g_.entries_per_row; ++slot) look_at_entry(row, slot, view.entry(slot));
    }
    for (const auto& [key, places] : found_.keys) {
      if (places.size() < 2) continue;
      const bool moving =
          std::all_of(places.begin(), places.end(), [this](const Located& at) { return locked(at.row); });
      if (!moving || places.size() > 2)
        wrong("a key lies in " + std::to_string(places.size()) + " places, and no dead client moves it");
    }
  }

  void look_at_groups() {
    const index::Report report = race::verify(
        g_, world_.region(layout::kTable), world_.region(layout::kHeap), world_.table_seed(),
        {.visit = [this](const index::Sighting& sighting) {
          ++reached_[sighting.block];
          size_of_[sighting.block] = sighting.block_bytes;
          found_.keys[std::string(sighting.key)].push_back({sighting.row, sighting.slot, std::string(sighting.value)});
        }});
    for (const std::string& what : report.defects) wrong(what);
    found_.tentative = report.unfinished;
    const bool all_live = std::none_of(world_.clients().begin(), world_.clients().end(),
                                       [](const auto& client) { return client->crashed() || client->ended(); });
    if (found_.tentative > 0 && all_live) {
      wrong(std::to_string(found_.tentative) + " slots are tentative, and no client has ended");
    }
  }

  void look_at_entry(std::uint64_t row, std::uint64_t slot, const Entry& entry) {
    const std::string name = "entry " + std::to_string(slot) + " of row " + std::to_string(row);
    if (!entry.well_formed(g_.entry_bytes)) return wrong(name + " cannot be");
    if (entry.type() == EntryType::empty) return;
    std::string key, value;
    if (entry.type() == EntryType::in_place) {
      key = base::text_of(entry.key());
      value = base::text_of(entry.value());
    } else {
      const std::uint64_t offset = layout::block_offset(entry.block());
      const base::Bytes heap = world_.region(layout::kHeap);
      if (offset > heap.size() || entry.bytes() > heap.size() - offset) return wrong(name + " points beyond the heap");
      const auto extent = layout::read_extent(heap.subspan(offset, entry.bytes()), entry.block());
      if (!extent) return wrong(name + " points to an extent that is not whole");
      key = base::text_of(extent->key);
      value = base::text_of(extent->value);
      if (base::keyed_hash(world_.table_seed(), extent->key) != entry.hash()) wrong(name + " has another key's hash");
      ++reached_[entry.block()];
      size_of_[entry.block()] = entry.bytes();
    }
    const auto places = rcuckoo::locate(base::keyed_hash(world_.table_seed(), base::bytes_of(key)), g_.rows);
    if (row != places.first && row != places.second) wrong(name + " lies where nobody looks for it");
    found_.keys[key].push_back({row, slot, value});
  }

  void look_at_heap() {
    const base::Bytes heap = world_.region(layout::kHeap);
    std::map<std::uint64_t, std::uint64_t> with_owner;
    for (std::uint64_t index = 0; index < g_.segments;) {
      const base::Bytes segment = heap.subspan(index * g_.segment_bytes);
      const auto header = base::load<layout::SegmentHeader>(segment.data());
      if (header.run == 0) {
        ++index;
        continue;
      }
      const bool run = header.size_class == layout::kRun;
      const layout::SegmentShape shape =
          layout::segment_shape(header.size_class, run ? header.run * g_.segment_bytes : g_.segment_bytes);
      for (std::uint64_t block = 0; block < shape.bitmap_words * 64; ++block) {
        const auto word = base::load<std::uint64_t>(segment.data() + sizeof header + block / 64 * 8);
        const bool free = ((word >> (block % 64)) & 1) != 0;
        const std::string name = "block " + std::to_string(block) + " of segment " + std::to_string(index);
        if (block >= shape.blocks) {
          if (free) wrong(name + " is marked free, and there is no such block");
          continue;
        }
        const std::uint64_t units =
            (index * g_.segment_bytes + shape.first_block + block * shape.block_bytes) / layout::kBlockUnit;
        const auto reached = reached_.find(units);
        if (reached != reached_.end()) {
          ++found_.blocks_reachable;
          if (free) wrong(name + " is in use and marked free");
          if (layout::size_class_for(size_of_[units], g_.segment_bytes) != header.size_class)
            wrong(name + " is of another size class than its entry");
          reached_.erase(reached);
        } else if (free) {
          ++found_.blocks_free;
        } else {
          ++with_owner[header.owner];
        }
      }
      index += std::max<std::uint64_t>(1, header.run);
    }
    for (const auto& [units, times] : reached_) {
      wrong("an entry points to unit " + std::to_string(units) + ", which is no block that was handed out");
    }
    std::uint64_t leaked = 0;
    for (const auto& [owner, blocks] : with_owner) {
      const Client* client = owner_of(owner);
      if (client != nullptr && (client->crashed() || client->ended())) continue;  // with the dead
      std::uint64_t kept = 0;
      if (client != nullptr && client->connected()) {
        const heap::Heap::Usage usage = const_cast<Client*>(client)->heap().usage();
        kept = usage.blocks_free + usage.blocks_limbo;
      }
      if (blocks < kept) wrong("a client holds more free blocks than its segments have");
      leaked += blocks > kept ? blocks - kept : 0;
    }
    found_.blocks_unaccounted = leaked;
    // A few for each life that ended between the clearing of its slots and the frees of what its operations had
    // replaced.
    constexpr std::uint64_t kFreesOnTheirWay = 16;
    const auto ended = static_cast<std::uint64_t>(
        std::count_if(world_.clients().begin(), world_.clients().end(),
                      [](const auto& client) { return client->crashed() || client->ended(); }));
    if (leaked > found_.slots_of_the_dead + kFreesOnTheirWay * ended) {
      wrong(std::to_string(leaked) + " blocks are neither reachable, nor free, nor with an owner");
    }
  }
  const Client* owner_of(std::uint64_t session_id) const {
    for (const auto& client : world_.clients()) {
      if (session_id != 0 && client->session_id() == session_id) return client.get();
    }
    return nullptr;
  }

  void look_at_counts() {
    std::int64_t keys = 0;
    for (std::uint64_t i = 0; i < slots(); ++i) keys += static_cast<std::int64_t>(slot(i).keys);
    const std::int64_t off = keys - static_cast<std::int64_t>(found_.keys.size());
    auto may = static_cast<std::int64_t>(found_.slots_of_the_dead + found_.torn_rows.size() * g_.entries_per_row);
    if (g_.protocol == layout::Protocol::race) {  // a count that its client did not live to write
      for (const auto& client : world_.clients()) may += client->crashed() || client->ended() ? kUncounted : 0;
    }
    if (off > may || -off > may) {
      wrong("the slots count " + std::to_string(keys) + " keys, and " + std::to_string(found_.keys.size()) +
            " are there");
    }
  }

  const World& world_;
  const Geometry& g_;
  std::set<std::uint64_t> dead_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> locked_;  // lock word, bit
  std::map<std::uint64_t, std::uint64_t> reached_;            // block -> entries that point to it
  std::map<std::uint64_t, std::uint64_t> size_of_;
  Survey found_;
};

}  // namespace

std::vector<std::string> Survey::unrepaired() const {
  std::vector<std::string> left;
  const auto none = [&left](std::uint64_t count, const char* what) {
    if (count > 0) left.push_back(std::to_string(count) + " " + what + " left by the dead");
  };
  none(set_lock_bits, "locks");
  none(barriers, "barriers");
  none(leases, "repair leases");
  none(slots_of_the_dead, "operation slots");
  none(torn_rows.size(), "torn rows");
  for (const auto& [key, places] : keys) {
    if (places.size() > 1) left.push_back("a key lies in " + std::to_string(places.size()) + " places");
  }
  return left;
}

std::string Survey::report() const {
  std::string text;
  for (const std::string& what : wrong) text += what + "\n";
  return text;
}

Survey survey(const World& world) { return Surveyor(world).run(); }

std::vector<std::string> unexplained(const Geometry& geometry, base::Bytes before, base::Bytes after,
                                     const OperationSlot& slot) {
  std::vector<std::string> wrong;
  const std::uint64_t bytes = geometry.row_bytes();
  const auto row_of = [&](base::Bytes table, std::uint64_t row) { return table.subspan(row * bytes, bytes); };
  const auto changed = [&](std::uint64_t row) {
    return !std::equal(row_of(before, row).begin(), row_of(before, row).end(), row_of(after, row).begin());
  };
  std::set<std::uint64_t> touched;
  for (std::uint64_t row = 0; row < geometry.rows; ++row) {
    if (changed(row)) touched.insert(row);
  }
  for (const std::uint64_t row : touched) {
    const rcuckoo::LockBit bit = rcuckoo::lock_bit(geometry, rcuckoo::lock_of(geometry, row));
    if (!(slot.claims() && slot.covers(bit.offset, bit.mask)))
      wrong.push_back("row " + std::to_string(row) + " changed outside the slot's locks");
  }
  if (touched.empty()) return wrong;
  const auto rows = rcuckoo::rows_of(geometry, slot);
  if (slot.plan != slot.number() || !rows) {
    wrong.push_back("rows changed while the slot says that it takes its locks");
    return wrong;
  }
  const std::uint64_t named = rows->size();
  // A path, end first: each row takes the entry of the row that is written after it, the last one takes the new entry.
  bool unfinished = false;
  for (std::uint64_t i = 0; i < named; ++i) {
    const std::uint64_t row = SlotRow::row(slot.row[i]);
    touched.erase(row);
    const bool whole = RowView(geometry, row_of(after, row)).whole(row);
    if (!changed(row)) {
      unfinished = true;
      continue;
    }
    if (unfinished) wrong.push_back("row " + std::to_string(row) + " was written before an earlier row of its path");
    if (!whole) {
      unfinished = true;
      continue;
    }
    const Entry entry =
        i + 1 < named
            ? RowView(geometry, row_of(before, SlotRow::row(slot.row[i + 1]))).entry(SlotRow::slot(slot.row[i + 1]))
            : Entry(std::as_bytes(std::span(slot.redo)).first(geometry.entry_bytes));
    std::vector<std::byte> expected(row_of(before, row).begin(), row_of(before, row).end());
    rcuckoo::edit_row(geometry, expected, row, SlotRow::slot(slot.row[i]), entry);
    if (!std::equal(expected.begin(), expected.end(), row_of(after, row).begin())) {
      wrong.push_back("row " + std::to_string(row) + " is not what the slot says that it becomes");
    }
  }
  for (const std::uint64_t row : touched)
    wrong.push_back("row " + std::to_string(row) + " changed, and the slot's path does not name it");
  return wrong;
}

}  // namespace farpool::sim
