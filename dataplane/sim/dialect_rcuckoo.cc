// SPDX-License-Identifier: Apache-2.0
// Worlds of RCuckoo: paths of displaced entries, locks side by side in words, rows that a death tears.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/path.h"
#include "index/rcuckoo/repair.h"
#include "layout/lease.h"
#include "layout/regions.h"
#include "sim/dialects.h"
#include "sim/swarm.h"

namespace farpool::sim {
namespace {

using base::Random;
using layout::Geometry;
using layout::OperationSlot;
using rcuckoo::Entry;
using rcuckoo::RowView;
using rcuckoo::SlotRow;
using Kind = Call::Kind;

constexpr Nanos kPatience = 10 * base::kSecond;

// Fills a few rows until an insert displaces `moves` entries, for each number of moves that a path can have. Returns
// that insert and the inserts before it, by number of moves.
std::map<std::uint64_t, Scenario> paths(std::uint64_t seed) {
  std::map<std::uint64_t, Scenario> found;
  for (std::uint64_t attempt = 0; attempt < 60 && found.size() < rcuckoo::kDepth; ++attempt) {
    Scenario scenario{.name = "insert, path",
                      .options = crash_options(seed + 1000 * attempt, layout::Protocol::rcuckoo)};
    World scout(scenario.options);
    Client& client = scout.connect("victim");
    const std::uint64_t window = 6 + attempt * 3 % 20;
    for (const std::string& key : crowd(scout, 20, window, 2 * window + 4, "p")) {
      const std::uint64_t displaced = client.table().marks().displaced;
      Call call{.kind = Kind::insert, .key = key, .value = "v"};
      if (!scout.run(client, scout.call(client, call, kPatience))) return found;
      const std::uint64_t moves = client.table().marks().displaced - displaced;
      if (moves > 0 && !found.contains(moves)) {
        Scenario path = scenario;
        path.name += " of " + std::to_string(moves) + " moves";
        path.doomed = call;
        found.emplace(moves, std::move(path));
      }
      if (scout.failures().empty()) scenario.before.push_back({.call = std::move(call)});
      if (!scout.failures().empty()) break;  // the rows are full
    }
  }
  return found;
}

// Returns an insert into rows that its client has found full, and in which another client has made room since.
std::optional<Scenario> full(std::uint64_t seed) {
  constexpr std::uint64_t kWindow = 6;
  Scenario scenario{.name = "insert, rows remembered as full",
                    .options = crash_options(seed, layout::Protocol::rcuckoo)};
  const auto outcome = [&scenario](const std::vector<Scenario::Before>& calls) {
    World scout(scenario.options);
    Client& victim = scout.connect("victim");
    Client& survivor = scout.connect("survivor");
    std::size_t right = 0;
    for (; right < calls.size(); ++right) {
      Client& client = calls[right].by_survivor ? survivor : victim;
      const std::size_t failed = scout.failures().size();
      if (!scout.run(client, scout.call(client, calls[right].call, kPatience))) break;
      if (scout.failures().size() > failed) break;
    }
    return right;
  };
  std::vector<std::string> keys;
  {
    World scout(scenario.options);
    scout.connect("victim");
    keys = crowd(scout, 20, kWindow, 2 * kWindow + 8, "f");
  }
  for (const std::string& key : keys) {
    scenario.before.push_back({.call = {.kind = Kind::insert, .key = key, .value = "v"}});
    if (outcome(scenario.before) == scenario.before.size()) continue;
    scenario.doomed = scenario.before.back().call;
    scenario.before.back().finds_no_room = true;
    for (const Scenario::Before& there : std::vector(scenario.before)) {
      const Scenario::Before makes_room{.by_survivor = true, .call = {.kind = Kind::remove, .key = there.call.key}};
      std::vector<Scenario::Before> calls(scenario.before.begin(), scenario.before.end() - 1);
      calls.push_back(makes_room);
      calls.push_back({.by_survivor = true, .call = scenario.doomed});  // which remembers nothing of the rows
      const bool kept = there.call.key == scenario.before[0].call.key;  // survivors write it again
      if (kept || there.finds_no_room || outcome(calls) < calls.size()) continue;
      scenario.before.push_back(makes_room);
      return scenario;
    }
    break;
  }
  return std::nullopt;
}

// Returns a key whose rows have their locks in two words.
std::string astride(std::uint64_t seed) {
  World scout(crash_options(seed, layout::Protocol::rcuckoo));
  scout.connect("victim");
  const std::uint64_t border = layout::kLocksPerWord * scout.geometry().rows_per_lock;
  for (const std::string& key : crowd(scout, border - 3, 6, 60, "w")) {
    const auto places =
        rcuckoo::locate(base::keyed_hash(scout.table_seed(), base::bytes_of(key)), scout.geometry().rows);
    if ((places.first < border) != (places.second < border)) return key;
  }
  return "k";
}

class RCuckoo final : public Dialect {
 public:
  std::string title() const override { return "RCuckoo"; }

  using Dialect::adapt;  // of random worlds, which need no change
  // Moves keys in half of the pools.
  void adapt(PoolSetting& s, std::uint64_t seed) const override {
    Random random(base::mix(seed) ^ 0x4c0e);
    if (random.chance(0.5)) return;
    s.losses = 0;
    s.moves = 1 + random.below(3);
    s.depth += 1;
    s.keys += random.below(60);
  }

  bool within(const World& world, std::string_view key, std::uint64_t first, std::uint64_t rows) const override {
    const std::uint64_t hash = base::keyed_hash(world.table_seed(), base::bytes_of(key));
    const rcuckoo::Places places = rcuckoo::locate(hash, world.geometry().rows);
    const auto inside = [&](std::uint64_t row) { return row >= first && row < first + rows; };
    return inside(places.first) && inside(places.second);
  }

  std::optional<std::uint32_t> trips(const Geometry& geometry, const Call& call,
                                     const std::optional<std::string>& found) const override {
    const auto in_place = [&](std::string_view value) {
      return Entry::fits(geometry.entry_bytes, call.key.size(), value.size());
    };
    // An extent is a second READ; a miss is confirmed.
    if (call.kind == Kind::get) return found && in_place(*found) ? 1 : 2;
    // Locks and reads, perhaps compares with an extent that is there, writes and releases.
    if (in_place(call.value)) return 3;
    // It may have to allocate a block first.
    return std::nullopt;
  }

  std::set<std::uint64_t> torn_rows(const World& world) const override {
    const Geometry& geometry = world.geometry();
    const std::uint64_t bytes = geometry.row_bytes();
    const base::Bytes table = world.region(layout::kTable);
    std::set<std::uint64_t> torn;
    for (std::uint64_t row = 0; row < geometry.rows; ++row) {
      if (!RowView(geometry, table.subspan(row * bytes, bytes)).whole(row)) torn.insert(row);
    }
    return torn;
  }

  bool hinders(const World& world) const override {
    const base::Bytes locks = world.region(layout::kLocks);
    return std::any_of(locks.begin(), locks.end(), [](std::byte b) { return b != std::byte{0}; });
  }

  // Requires a higher version of a changed row: it tells readers that the row changed, even if it changed back.
  std::vector<std::string> impossible_rows(const Geometry& geometry, base::Bytes image,
                                           base::Bytes table) const override {
    std::vector<std::string> wrong;
    const std::uint64_t bytes = geometry.row_bytes();
    for (std::uint64_t row = 0; row < geometry.rows; ++row) {
      const base::Bytes before = image.subspan(row * bytes, bytes), after = table.subspan(row * bytes, bytes);
      if (std::equal(before.begin(), before.end(), after.begin())) continue;
      const rcuckoo::RowView is(geometry, after), was(geometry, before);
      if (is.whole(row) && is.version() <= was.version()) {
        wrong.push_back("row " + std::to_string(row) + " has changed, and its version has not risen");
      }
    }
    return wrong;
  }

  // Expects that the rows which the slot names changed in its order, the last of them perhaps in part.
  std::vector<std::string> unexplained(const Geometry& geometry, base::Bytes before, base::Bytes after,
                                       const OperationSlot& slot) const override {
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
    // A path, end first: each row takes the entry of the row that is written after it; the last one takes the new
    // entry.
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

  std::vector<SmallWorld> small_worlds() const override { return rcuckoo_worlds(); }

  std::vector<Scenario> scenarios(std::uint64_t seed) const override {
    std::vector<Scenario> all{{.name = "insert, locks of two words",
                               .options = crash_options(seed, layout::Protocol::rcuckoo),
                               .doomed = {.kind = Kind::insert, .key = astride(seed), .value = "2"}}};
    if (auto remembered = full(seed)) all.push_back(std::move(*remembered));
    for (auto& [moves, path] : paths(seed)) {
      all.push_back(path);
      if (moves == 1) {  // as a put, which finds both rows full
        all.push_back(path);
        all.back().name = "put, both rows full";
        all.back().doomed.kind = Kind::put;
      } else if (moves == 2) {
        all.push_back(path);
        all.back().name += ", extent";
        all.back().doomed.value = std::string(100, 'a');
        // The survivor fills rows that the victim remembers as empty: its path leads nowhere, and the search under the
        // locks finds another.
        all.push_back(path);
        all.back().name = "insert, stale memory";
        for (std::size_t i = 1; i < all.back().before.size(); ++i) all.back().before[i].by_survivor = true;
      }
    }
    return all;
  }

  std::string name_row(const Geometry& geometry, std::uint64_t offset, std::uint64_t bytes) const override {
    const std::uint64_t first = offset / geometry.row_bytes(), count = bytes / geometry.row_bytes();
    if (count <= 1) return "row " + std::to_string(first);
    return "rows " + std::to_string(first) + ".." + std::to_string(first + count - 1);
  }
};

}  // namespace

const Dialect& rcuckoo_dialect() {
  static const RCuckoo rcuckoo;
  return rcuckoo;
}

}  // namespace farpool::sim
