// SPDX-License-Identifier: Apache-2.0
#include "sim/crash.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/path.h"
#include "sim/survey.h"
#include "sim/swarm.h"

namespace farpool::sim {
namespace {

using Kind = Call::Kind;
constexpr Nanos kPatience = 10 * base::kSecond;

WorldOptions options_of(std::uint64_t seed) {
  WorldOptions options;
  options.wire.seed = seed;
  options.failure_timeout = base::kMillisecond;  // whoever meets a dead client's lock waits for it
  return options;
}

std::string text_of(std::size_t bytes, char letter) { return std::string(bytes, letter); }

// Fills a crowd of rows until an insert displaces `moves` entries, for each number of moves there is: the inserts
// before it, and that one.
std::map<std::uint64_t, Scenario> paths(std::uint64_t seed) {
  std::map<std::uint64_t, Scenario> found;
  for (std::uint64_t attempt = 0; attempt < 60 && found.size() < rcuckoo::kDepth; ++attempt) {
    Scenario scenario{.name = "insert, path", .options = options_of(seed + 1000 * attempt)};
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

// A key whose rows have their locks in two words.
std::string astride(std::uint64_t seed) {
  World scout(options_of(seed));
  scout.connect("victim");
  const std::uint64_t border = 64 * scout.geometry().rows_per_lock;
  for (const std::string& key : crowd(scout, border - 3, 6, 60, "w")) {
    const auto places =
        rcuckoo::locate(base::keyed_hash(scout.table_seed(), base::bytes_of(key)), scout.geometry().rows);
    if ((places.first < border) != (places.second < border)) return key;
  }
  return "k";
}

task::Task<void> flagged(task::Task<void> task, bool& over) {
  co_await std::move(task);
  over = true;
}

// Reads the keys, then writes them: what a dead client holds is refused, everything else goes on.
task::Task<void> go_on(World& world, Client& survivor, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) co_await world.call(survivor, {.kind = Kind::get, .key = key}, kPatience);
  for (const std::string& key : keys) {
    co_await world.call(survivor, {.kind = Kind::put, .key = key, .value = "77"}, kPatience);
    co_await world.call(survivor, {.kind = Kind::get, .key = key}, kPatience);
  }
}

}  // namespace

std::vector<Scenario> scenarios(std::uint64_t seed) {
  const std::string large = text_of(100, 'a'), larger = text_of(300, 'b');
  const auto inserted = [](std::string key, std::string value) {
    return Scenario::Before{.call = {.kind = Kind::insert, .key = std::move(key), .value = std::move(value)}};
  };
  const auto make = [&](std::string name, std::vector<Scenario::Before> before, Call doomed) {
    return Scenario{
        .name = std::move(name), .options = options_of(seed), .before = std::move(before), .doomed = std::move(doomed)};
  };
  std::vector<Scenario> all{
      make("insert, free slot, in place", {}, {.kind = Kind::insert, .key = "k", .value = "1"}),
      make("insert, free slot, extent", {}, {.kind = Kind::insert, .key = "k", .value = large}),
      make("insert, key is there", {inserted("k", "1")}, {.kind = Kind::insert, .key = "k", .value = "2"}),
      make("update, in place", {inserted("k", "1")}, {.kind = Kind::update, .key = "k", .value = "2"}),
      make("update, in place to extent", {inserted("k", "1")}, {.kind = Kind::update, .key = "k", .value = large}),
      make("update, extent to extent", {inserted("k", large)}, {.kind = Kind::update, .key = "k", .value = larger}),
      make("update, extent to in place", {inserted("k", large)}, {.kind = Kind::update, .key = "k", .value = "2"}),
      make("update, key is not there", {}, {.kind = Kind::update, .key = "k", .value = "2"}),
      make("remove, in place", {inserted("k", "1")}, {.kind = Kind::remove, .key = "k"}),
      make("remove, extent", {inserted("k", large)}, {.kind = Kind::remove, .key = "k"}),
      make("remove, key is not there", {}, {.kind = Kind::remove, .key = "k"}),
      make("put, new", {}, {.kind = Kind::put, .key = "k", .value = "1"}),
      make("put, over another", {inserted("k", "1")}, {.kind = Kind::put, .key = "k", .value = large}),
      make("modify, new", {}, {.kind = Kind::add, .key = "k"}),
      make("modify, there", {inserted("k", "41")}, {.kind = Kind::add, .key = "k"}),
  };
  // The freed block is the survivor's: it is told by an atomic.
  all.push_back(make("remove, extent of another client", {}, {.kind = Kind::remove, .key = "k"}));
  all.back().before.push_back({.by_survivor = true, .call = {.kind = Kind::insert, .key = "k", .value = large}});
  all.push_back(make("update, lock conflict", {inserted("k", "1")}, {.kind = Kind::update, .key = "k", .value = "2"}));
  all.back().rival = Call{.kind = Kind::update, .key = "k", .value = "3"};
  all.push_back(make("insert, lock conflict", {}, {.kind = Kind::insert, .key = "k", .value = "2"}));
  all.back().rival = Call{.kind = Kind::insert, .key = "k", .value = "3"};
  all.push_back(make("insert, locks of two words", {}, {.kind = Kind::insert, .key = astride(seed), .value = "2"}));
  for (auto& [moves, path] : paths(seed)) {
    all.push_back(path);
    if (moves == 1) {  // as a put, which finds both rows full
      all.push_back(path);
      all.back().name = "put, both rows full";
      all.back().doomed.kind = Kind::put;
    } else if (moves == 2) {
      all.push_back(path);
      all.back().name += ", extent";
      all.back().doomed.value = large;
      // The survivor fills rows that the victim remembers as empty: its path leads nowhere and the search under the
      // locks is another.
      all.push_back(path);
      all.back().name = "insert, stale memory";
      for (std::size_t i = 1; i < all.back().before.size(); ++i) all.back().before[i].by_survivor = true;
    }
  }
  return all;
}

CrashVerdict run_crash(const Scenario& scenario, std::uint64_t after, fabric::sim::InFlight posted) {
  CrashVerdict verdict;
  World world(scenario.options);
  Client& victim = world.connect("victim");
  Client& survivor = world.connect("survivor");
  const auto wrong = [&](const std::string& what) { verdict.wrong.push_back(what); };
  for (const Scenario::Before& before : scenario.before) {
    Client& client = before.by_survivor ? survivor : victim;
    if (!world.run(client, world.call(client, before.call, kPatience))) wrong("a call before did not come to an end");
  }
  if (!world.quiesce()) wrong("the calls before leave verbs under way");
  if (!world.failures().empty()) wrong("a call before failed: " + world.failures()[0].second.message());

  const base::Bytes table = world.region(layout::kTable);
  const std::vector<std::byte> image(table.begin(), table.end());
  bool rival_over = !scenario.rival.has_value();
  if (scenario.rival) {  // it has the lock when the victim comes
    world.spawn(survivor, flagged(world.call(survivor, *scenario.rival, kPatience), rival_over));
    const auto locked = [&] {
      const base::Bytes locks = world.region(layout::kLocks);
      return std::any_of(locks.begin(), locks.end(), [](std::byte b) { return b != std::byte{0}; });
    };
    if (!world.run_until(locked)) wrong("the rival took no lock");
    survivor.port().pause();
    world.network().at(world.network().now() + 20 * base::kMicrosecond, [&survivor] { survivor.port().resume(); });
  }
  victim.port().crash_after(after, posted);
  // The victim's frames may outlive this one, so they refer to nothing in it.
  auto over = std::make_shared<bool>(false);
  world.spawn(victim, flagged(world.call(victim, scenario.doomed, kPatience), *over));
  const auto ended = [&] { return victim.crashed() || (*over && victim.session().lane().pending() == 0); };
  if (!world.run_until(ended)) wrong("the operation did not come to an end");
  verdict.survived = !victim.crashed();
  if (verdict.survived) {
    victim.port().crash_after(~0ull >> 1, posted);
    verdict.marks = victim.table().marks();
  } else {
    fabric::sim::bury(over);
    if (!world.network().drain(victim.port(), world.network().now() + base::kSecond)) {
      wrong("verbs of the dead client are under way for ever");
    }
  }
  if (!world.settle(survivor) || !rival_over || !world.quiesce()) wrong("the rival did not come to an end");

  // What is left.
  const Survey left = survey(world);
  for (const std::string& what : left.wrong) wrong(what);
  verdict.locks_left = left.set_lock_bits > 0;
  if (verdict.survived && verdict.locks_left) wrong("locks are left by a client that lives");
  if (victim.crashed() && !scenario.rival) {
    for (std::uint64_t i = 0; i < world.geometry().slots_per_session; ++i) {
      layout::OperationSlot slot;
      std::memcpy(&slot, world.region(layout::kSlots).data() + victim.slots_offset() + i * sizeof slot, sizeof slot);
      if (slot.holder == 0 || !verdict.locks_left) continue;
      for (const std::string& what : unexplained(world.geometry(), image, table, slot)) wrong(what);
    }
  }

  // What another client sees of it, and may do.
  std::vector<std::string> keys{scenario.doomed.key};
  if (!scenario.before.empty() && scenario.before[0].call.key != keys[0]) keys.push_back(scenario.before[0].call.key);
  const std::size_t failed_before = world.failures().size();
  bool went_on = false;
  world.spawn(survivor, flagged(go_on(world, survivor, keys), went_on));
  if (!world.settle(survivor, 600 * base::kSecond) || !went_on) wrong("the survivor did not come to an end");
  char name[24];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(victim.incarnation()));
  for (std::size_t i = 0; i < world.failures().size(); ++i) {
    const base::Status& status = world.failures()[i].second;
    if (i < failed_before && !scenario.rival) continue;
    ++verdict.refused;
    if (status.code() != base::Code::locked) {
      wrong("the survivor failed otherwise than on a lock: " + status.message());
    } else if (!verdict.locks_left) {
      wrong("the survivor met a lock where none is left: " + status.message());
    } else if (status.message().find(name) == std::string::npos) {
      wrong("the survivor is not told who holds the lock: " + status.message());
    }
  }
  if (const auto judged = world.history().judge()) wrong(*judged);
  if (!world.quiesce()) wrong("the survivor leaves verbs under way");
  for (const std::string& what : survey(world).wrong) wrong("after the survivor went on: " + what);
  return verdict;
}

}  // namespace farpool::sim
