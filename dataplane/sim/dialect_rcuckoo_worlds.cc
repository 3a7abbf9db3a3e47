// SPDX-License-Identifier: Apache-2.0
// The small worlds of RCuckoo: operations on one key, extents, and paths of displaced entries.
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "sim/dialects.h"
#include "sim/explore_worlds.h"
#include "sim/swarm.h"

namespace farpool::sim {
namespace {

using Kind = Call::Kind;
using Step = Plot::Step;

// A few full rows, and keys whose inserts must move an entry each.
struct Crowded {
  std::vector<Plot::Before> before;
  std::string moving[2];  // inserts of these move others
  std::string moved[2];   // the entry that the insert moves
};
Crowded crowded(const WorldOptions& options) {
  constexpr std::uint64_t kWindow = 8;
  std::vector<std::string> keys;
  {
    World world(options);
    world.connect("client-0");
    keys = crowd(world, 20, kWindow, 2 * kWindow + 40, "");
  }
  Crowded found;
  for (const std::string& key : keys) {
    std::vector<Plot::Before> with = found.before;
    with.push_back(there(0, key, "0"));
    const Outlook then = look_ahead(options, with);
    if (then.failed) continue;
    if (then.displaced == 0) {
      if (found.moving[0].empty()) found.before = std::move(with);  // from then on the rows stay as they are
      continue;
    }
    if (then.displaced != 1) continue;
    const Outlook now = look_ahead(options, found.before);
    for (const auto& [other, row] : now.rows) {
      if (then.rows.at(other) == row) continue;
      const std::size_t which = found.moving[0].empty() ? 0 : 1;
      found.moving[which] = key;
      found.moved[which] = other;
    }
    if (!found.moving[1].empty()) return found;
  }
  FARPOOL_CHECK(!found.moving[0].empty() && !found.moving[1].empty());
  return found;
}

// Rows that the first client remembers as full. The other client has made room for one entry, which a key gets only by
// a move.
Crowded last_room(const WorldOptions& options) {
  constexpr std::uint64_t kWindow = 3;
  const std::uint64_t room = kWindow * options.geometry.entries_per_row;
  std::vector<std::string> keys;
  {
    World world(options);
    world.connect("client-0");
    keys = crowd(world, 20, kWindow, 10 * room, "");
  }
  Crowded found;
  for (const std::string& key : keys) {
    std::vector<Plot::Before> with = found.before;
    with.push_back(there(0, key, "0"));
    if (with.size() <= room) {
      if (!look_ahead(options, with).failed) found.before = std::move(with);
      continue;
    }
    for (const Plot::Before& one : found.before) {
      const Plot::Before makes_room{1, {.kind = Kind::remove, .key = one.call.key}};
      with.back() = makes_room;
      with.push_back(there(1, key, "0"));
      const Outlook then = look_ahead(options, with);
      with.pop_back();
      if (then.failed || then.displaced != look_ahead(options, found.before).displaced + 1) continue;
      found.before.push_back(makes_room);
      found.moving[0] = key;
      return found;
    }
  }
  FARPOOL_CHECK(false);
  return found;
}

// Two keys that share no lock.
std::pair<std::string, std::string> neighbours(const WorldOptions& options) {
  World world(options);
  world.connect("client-0");
  return {crowd(world, 20, 4, 1, "")[0], crowd(world, 40, 4, 1, "")[0]};
}

class Worlds {
 public:
  std::vector<SmallWorld> all() {
    of_two_clients();
    extents();
    moves();
    clearings();
    of_three_clients();
    with_deaths();
    with_stalls();
    with_losses();
    return all_.take();
  }

 private:
  // Two clients and one key, then two keys.
  void of_two_clients() {
    all_.add("insert-insert", 4, {}, {{call(Kind::insert, k_, one_)}, {call(Kind::insert, k_, two_)}});
    all_.add("insert-remove", 4, {}, {{call(Kind::insert, k_, one_)}, {call(Kind::remove, k_)}});
    all_.add("update-lookup", 4, {there(0, k_, one_)},
             {{call(Kind::update, k_, two_)}, {call(Kind::get, k_), call(Kind::get, k_)}});
    all_.add("put-lookup", 4, {}, {{call(Kind::put, k_, one_)}, {call(Kind::get, k_), call(Kind::get, k_)}});
    all_.add("modify-modify", 4, {there(0, k_, "1")}, {{call(Kind::add, k_)}, {call(Kind::add, k_)}});
    all_.add("remove-insert-lookup", 3, {there(0, k_, "1")},
             {{call(Kind::remove, k_), call(Kind::insert, k_, "2")}, {call(Kind::get, k_), call(Kind::get, k_)}});
    // Locks side by side in one word.
    const auto [left, right] = neighbours(tiny_);
    all_.add("modify-beside-modify", 3, {}, {{call(Kind::add, left)}, {call(Kind::add, right), call(Kind::add, left)}});
  }

  // Extents that are replaced while they are read, that another client than their owner frees, or whose blocks are used
  // again as soon as eras allow.
  void extents() {
    all_.add("extent-update-lookup", 4, {there(0, k_, large_)},
             {{call(Kind::update, k_, larger_)}, {call(Kind::get, k_), call(Kind::get, k_)}});
    all_.add("extent-remove-update", 4, {there(0, k_, large_)},
             {{call(Kind::update, k_, larger_)}, {call(Kind::remove, k_)}});
    all_.add("extent-twice-lookup", 3, {there(0, k_, large_)},
             {{call(Kind::put, k_, other_), call(Kind::put, k_, std::string(95, 'd'))}, {call(Kind::get, k_)}});
    WorldOptions patient = tiny_;  // verbs may wait while eras move
    patient.failure_timeout = 10 * base::kSecond;
    const Step wait{.wait = 2 * base::kSecond, .call = {}};
    all_.add("extent-reuse-lookup", 3, {there(0, k_, large_)},
             {{wait, call(Kind::update, k_, larger_), wait, call(Kind::put, k_, other_)}, {call(Kind::get, k_)}},
             patient);
    // Eras advance unevenly: the reader knows of one that the writer has not learned of.
    all_.add("extent-reuse-ahead", 2, {there(0, k_, large_)},
             {{wait, call(Kind::update, k_, larger_), wait, call(Kind::put, k_, other_)}, {wait, call(Kind::get, k_)}},
             patient);
    // Three of these fill a segment: when a fourth is requested, the client looks for what another has freed in it.
    const std::string huge(60'000, 'h');
    all_.add("extent-far-free", 2, {there(0, "k1", huge), there(0, "k2", huge), there(0, "k3", huge)},
             {{call(Kind::put, k_, huge)}, {call(Kind::remove, "k2")}});
  }

  // Cuckoo moves.
  void moves() {
    all_.add("move-lookup", 4, rows_.before, {{move_}, {call(Kind::get, rows_.moved[0])}});
    all_.add("move-update", 3, rows_.before, {{move_}, {call(Kind::update, rows_.moved[0], "2")}});
    all_.add("move-remove", 3, rows_.before, {{move_}, {call(Kind::remove, rows_.moved[0])}});
    all_.add("move-move", 3, rows_.before, {{move_}, {call(Kind::insert, rows_.moving[1], "2")}});
    // Scans of the rows, at once and in two steps.
    const Step steps{.call = {}, .scans = World::ScanRange{.first = 20, .end = 28, .count = 8}};
    all_.add("move-scan", 2, rows_.before, {{move_}, {scan_}});
    all_.add("move-scan-in-steps", 2, rows_.before, {{move_}, {steps}});
    // The second client finds no room any more, and needs none.
    WorldOptions apart = tiny_;  // the room is under none of the locks of the key's own rows
    apart.geometry.rows_per_lock = 1;
    const Crowded last = last_room(apart);
    all_.add("put-put-last-room", 2, last.before,
             {{call(Kind::put, last.moving[0], "1")}, {call(Kind::put, last.moving[0], "2")}}, apart);
  }

  // The mark of rows that have become empty is cleared while an entry comes, by a client that knows the mark.
  void clearings() {
    WorldOptions patient = tiny_;
    patient.failure_timeout = 10 * base::kSecond;
    const std::vector<Plot::Before> emptied{there(0, k_, "1"), {0, {.kind = Kind::remove, .key = k_}}};
    const Step scan{.call = {.key = k_}, .scans = World::ScanRange{.count = 16}};
    const Step clear{.call = {}, .clears = true};
    all_.add("clear-insert", 3, emptied, {{call(Kind::insert, k_, "2")}, {scan, clear}}, patient);
    all_.add("clear-insert-scan", 2, emptied, {{call(Kind::insert, k_, "2")}, {scan, clear, scan}}, patient);
    const Bounds dies{.preemptions = 1, .crashes = 1, .mortal = {0}};
    all_.add("clear-insert-dies", dies, emptied, {{call(Kind::insert, k_, "2")}, {scan, clear, scan}}, patient);
    all_.add("clear-dies-insert", dies, emptied, {{scan, clear}, {call(Kind::insert, k_, "2"), scan}}, patient);
  }

  // Three clients.
  void of_three_clients() {
    all_.add("modify-modify-lookup", 3, {there(0, k_, "1")},
             {{call(Kind::add, k_)}, {call(Kind::add, k_)}, {call(Kind::get, k_)}});
    all_.add("put-remove-lookup", 3, {there(0, k_, "1")},
             {{call(Kind::put, k_, "2")}, {call(Kind::remove, k_)}, {call(Kind::get, k_)}});
    all_.add("move-move-lookup", 2, rows_.before,
             {{move_}, {call(Kind::insert, rows_.moving[1], "2")}, {call(Kind::get, rows_.moved[0])}});
  }

  // A client dies after any effect.
  void with_deaths() {
    const Bounds dies{.preemptions = 2, .crashes = 1, .mortal = {0}};
    all_.add("update-dies-update", dies, {there(0, k_, "1")},
             {{call(Kind::update, k_, "2")}, {call(Kind::update, k_, "3")}});
    all_.add("extent-dies-lookup", dies, {there(1, k_, large_)},
             {{call(Kind::update, k_, larger_)}, {call(Kind::get, k_)}});
    all_.add("move-dies-lookup", dies, rows_.before, {{move_}, {call(Kind::get, rows_.moved[0])}});
  }

  // A client stops with everything that it has under way, is suspected, and is fenced in the middle of it.
  void with_stalls() {
    const Bounds stalls{.preemptions = 1, .stalls = 1, .mortal = {0}};
    all_.add("update-stalls-remove", stalls, {there(0, k_, "1")},
             {{call(Kind::update, k_, "2")}, {call(Kind::remove, k_)}});
    all_.add("extent-stalls-update", stalls, {there(1, k_, large_)},
             {{call(Kind::update, k_, larger_)}, {call(Kind::update, k_, other_), call(Kind::get, k_)}});
    all_.add("move-dies-scan", Bounds{.preemptions = 1, .crashes = 1, .mortal = {0}}, rows_.before, {{move_}, {scan_}});
    all_.add("move-stalls-update", stalls, rows_.before, {{move_}, {call(Kind::update, rows_.moved[0], "2")}});
  }

  // The answer of a chain never comes.
  void with_losses() {
    const Bounds loses{.preemptions = 1, .losses = 1, .mortal = {0}};
    all_.add("modify-loses-modify", loses, {there(0, k_, "1")}, {{call(Kind::add, k_)}, {call(Kind::add, k_)}});
    all_.add("extent-loses-update", loses, {there(1, k_, large_)},
             {{call(Kind::update, k_, larger_)}, {call(Kind::get, k_)}});
  }

  // A key whose rows have room, values that are longer than a word and lie in place, and values that need an extent.
  const WorldOptions tiny_ = tiny(layout::Protocol::rcuckoo);
  const std::string k_ = "k", one_ = std::string(12, 'x'), two_ = std::string(12, 'y');
  const std::string large_ = std::string(100, 'a'), larger_ = std::string(110, 'b'), other_ = std::string(90, 'c');
  // Full rows, an insert that moves an entry, and a scan of all of them.
  const Crowded rows_ = crowded(tiny_);
  const Step move_ = call(Kind::insert, rows_.moving[0], "1");
  const Step scan_{.call = {}, .scans = World::ScanRange{.first = 20, .end = 28, .count = 16}};
  Catalogue all_{tiny_};
};

}  // namespace

std::vector<SmallWorld> rcuckoo_worlds() { return Worlds().all(); }

}  // namespace farpool::sim
