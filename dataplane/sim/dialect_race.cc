// SPDX-License-Identifier: Apache-2.0
// Worlds of RACE: a few groups, tables that are split, inserts that meet another one of their key.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "directory/directory.h"
#include "index/race/layout.h"
#include "index/race/locate.h"
#include "layout/directory.h"
#include "layout/lease.h"
#include "sim/dialects.h"
#include "sim/survey.h"

namespace farpool::sim {
namespace {

using base::Random;
using Kind = Call::Kind;

// Small tables, with keys that the split of the first one moves and keys that stay, and more than one row of them in a
// turn of the splitter. The first key stays; the key of the doomed operation moves.
struct Splitting {
  Scenario scenario;
  // One key in each of eight parts of the hash space. The part's lowest bits say which of so many tables has the key.
  std::string of_part[8];
};
Splitting splitting(std::uint64_t seed, std::string name, std::uint64_t tables, std::uint64_t stride) {
  Splitting made{.scenario = {.name = std::move(name), .options = crash_options(seed, layout::Protocol::race)}};
  Scenario& scenario = made.scenario;
  scenario.options.geometry.tables = 8;
  scenario.options.initial_tables = tables;
  scenario.stride = stride;
  World scout(scenario.options);
  scout.connect("victim");
  const auto all_there = [&] {
    return std::none_of(std::begin(made.of_part), std::end(made.of_part), [](const auto& key) { return key.empty(); });
  };
  for (std::uint64_t i = 0; i < 12 || !all_there(); ++i) {
    const std::string key = "k" + std::to_string(i);
    std::string& first = made.of_part[directory::hash_of(scout.pool_secret(), base::bytes_of(key)) % 8];
    if (i >= 12 && !first.empty()) continue;
    if (first.empty()) first = key;
    scenario.before.push_back({.by_survivor = i % 3 == 2, .call = {.kind = Kind::insert, .key = key, .value = "1"}});
  }
  const auto it = std::find_if(scenario.before.begin(), scenario.before.end(),
                               [&](const Scenario::Before& before) { return before.call.key == made.of_part[0]; });
  std::iter_swap(scenario.before.begin(), it);
  scenario.doomed = {.kind = Kind::get, .key = made.of_part[tables]};
  scenario.splits = {scenario.doomed.key};
  return made;
}

std::vector<Scenario> splits(std::uint64_t seed) {
  std::vector<Scenario> all;
  all.push_back(splitting(seed, "split of a table", 1, 11).scenario);  // the directory is doubled
  // Another has been split twice meanwhile.
  Splitting entries = splitting(seed, "split of a table with four entries", 2, 23);
  for (const std::string& key : {entries.of_part[1], entries.of_part[3]}) {
    entries.scenario.before.push_back({.by_survivor = true, .call = {.key = key}, .splits = true});
  }
  all.push_back(std::move(entries.scenario));
  Splitting two = splitting(seed, "split of two tables at once", 2, 37);
  two.scenario.splits.push_back(two.of_part[1]);
  all.push_back(std::move(two.scenario));
  Splitting beside = splitting(seed, "split of a table beside a split of another", 2, 23);
  beside.scenario.rival_splits = beside.of_part[1];
  all.push_back(std::move(beside.scenario));
  return all;
}

class Race final : public Dialect {
 public:
  std::string title() const override { return "RACE"; }

  // Crowds the keys into a few groups, in some worlds without room for all of them. Splits tables in most worlds.
  void adapt(SwarmSetting& s, std::uint64_t seed) const override {
    Random random(seed ^ 0xace);
    s.window = 2 + random.below(3);
    s.border = false;
    if (s.crowded) {
      s.window = 2;
      s.keys = 38 + random.below(6);
      s.calls = 600 / (s.clients * s.tasks);
    }
    // Eras end soon, and calls take as long as splits do.
    Random more(base::mix(seed) ^ 0x5b117);
    if (!more.chance(0.6)) return;
    s.world.geometry.tables = 2ull << more.below(3);
    s.splits = 1 + more.below(4);
    if (Random(base::mix(seed) ^ 0x1ea5e).chance(0.2)) {
      s.world.geometry.tables = 128;
      s.world.geometry.table_percent = 12;
      s.world.geometry.memory_bytes = 4 << 20;
      s.world.initial_tables = layout::kRepairLeases;  // the last has the lease of the first
      s.splits += 2;
    }
    // A splitter makes several trips before it renews its lease.
    s.world.failure_timeout = std::max(s.world.failure_timeout, 50 * s.world.wire.straggle_delay);
    s.world.lease = std::max<Nanos>(40 * base::kMillisecond, 4 * s.world.failure_timeout);
    s.thought = static_cast<Nanos>(more.below(2) == 0 ? 50 : 1000) * base::kMicrosecond;
  }

  void adapt(PoolSetting& s, std::uint64_t seed) const override {
    Random random(base::mix(seed) ^ 0x30e5);
    s.geometry = {.table_percent = 1,
                  .max_sessions = 24,
                  .slots_per_session = 2,
                  .protocol = layout::Protocol::race,
                  .tables = std::uint64_t{1} << (2 * random.below(3))};
    s.losses = 0;
    s.moves = 1 + random.below(3);
    s.depth += 1;
    s.keys += random.below(60);
    s.wishes = random.below(3);
    // Nodes that no keys move to have less memory, so that some are full.
    if (random.chance(0.25)) s.moves = 0;
    // With so many tables, some share a lease. These worlds take long.
    if (random.chance(0.03)) {
      s.geometry.tables = 128;
      s.geometry.table_percent = 20;
      s.moves = std::max<std::size_t>(s.moves, 1);
      s.wishes = 2;
    }
  }

  bool within(const World& world, std::string_view key, std::uint64_t first, std::uint64_t rows) const override {
    const std::uint64_t many = layout::kRepairLeases;
    const std::uint64_t hash = base::keyed_hash(world.table_seed(), base::bytes_of(key));
    const race::Places places = race::locate(hash, world.geometry().rows_per_table());
    const std::uint64_t of_many = directory::hash_of(world.pool_secret(), base::bytes_of(key)) % many;
    const auto inside = [&](std::uint64_t row) { return row >= first && row < first + rows; };
    return inside(places[0].group) && inside(places[1].group) &&
           (world.initial_tables() < many || layout::table_lease(of_many) == layout::table_lease(0));
  }

  // Counts the READs of the buckets and of the block, and the CAS that empties the slot. A put may have to allocate a
  // block first.
  std::optional<std::uint32_t> trips(const layout::Geometry&, const Call& call,
                                     const std::optional<std::string>&) const override {
    if (call.kind == Kind::get) return 2;
    if (call.kind == Kind::remove) return 3;
    return std::nullopt;
  }

  // Allows for keys that a client had not yet counted when it ended: those of operations under way or, if a completion
  // never came, of everything that it did until it gave up.
  bool explains_counters(std::int64_t keys_off, std::uint64_t ended) const override {
    constexpr std::uint64_t kUncounted = 16;  // by one client
    return static_cast<std::uint64_t>(std::abs(keys_off)) <= kUncounted * ended;
  }

  bool hinders(const World& world) const override { return survey(world).tentative > 0; }

  std::vector<SmallWorld> small_worlds() const override { return race_worlds(); }

  std::vector<Scenario> scenarios(std::uint64_t seed) const override { return splits(seed); }

  // Writes "slot 3.14" for slot 14 of group 3; with many tables "slot 1/3.14", of table 1.
  std::string name_row(const layout::Geometry& geometry, std::uint64_t offset, std::uint64_t bytes) const override {
    const std::uint64_t within = offset % race::kGroupBytes, row = offset / race::kGroupBytes;
    const std::string group = geometry.tables == 1 ? std::to_string(row)
                                                   : std::to_string(row / geometry.rows_per_table()) + "/" +
                                                         std::to_string(row % geometry.rows_per_table());
    if (bytes == race::kGroupBytes) return "group " + group;
    if (bytes <= 8 && within % 64 == 0) return "header " + group + "." + std::to_string(within / 64);
    if (bytes == 128) return "bucket " + group + (within == 0 ? " left" : " right");
    return "slot " + group + "." + std::to_string(within / 64 * 7 + within % 64 / 8 - 1);
  }
};

}  // namespace

const Dialect& race_dialect() {
  static const Race race;
  return race;
}

}  // namespace farpool::sim
