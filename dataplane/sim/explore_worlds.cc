// SPDX-License-Identifier: Apache-2.0
#include "sim/explore_worlds.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "directory/directory.h"
#include "layout/directory.h"
#include "sim/housekeeping.h"
#include "sim/survey.h"
#include "sim/swarm.h"
#include "sim/world.h"

namespace farpool::sim {
namespace {

using Kind = Call::Kind;
constexpr Nanos kPatience = 100 * base::kSecond;
constexpr Nanos kHaste = 2 * base::kSecond;  // where answers get lost, their clients wait so long
constexpr int kSweeps = 6;

struct Step {
  Nanos wait = 0;  // time passes, instead of a call: sessions tick, and eras move
  Call call;
  bool splits = false;                    // instead of a call, the table that has its key is split
  std::optional<World::Part> scans = {};  // instead of a call, this part, in which all keys lie
};

struct Before {
  std::size_t client = 0;
  Call call;
};

// What happens in a pool: calls one after the other, then each client's steps in every order.
struct Plot {
  WorldOptions options;
  std::vector<Before> before;
  std::vector<std::vector<Step>> steps;
  Bounds bounds;
  bool faults() const { return bounds.crashes + bounds.stalls + bounds.losses > 0; }
  std::vector<std::string> keys() const {
    std::set<std::string> all;
    for (const Before& one : before) all.insert(one.call.key);
    for (const auto& of_client : steps) {
      for (const Step& step : of_client) all.insert(step.call.key);
    }
    all.erase("");
    return {all.begin(), all.end()};
  }
};

class PoolScene final : public Scene {
 public:
  explicit PoolScene(const Plot& plot) : plot_(plot), parts_(plot.steps.size()), world_(plot.options) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].client = &world_.connect("client-" + std::to_string(i));
      FARPOOL_CHECK(parts_[i].client->index() == i);
    }
    for (const Before& before : plot_.before) {
      Client& client = *parts_[before.client].client;
      FARPOOL_CHECK(world_.run(client, world_.call(client, before.call, kPatience)));
    }
    FARPOOL_CHECK(world_.failures().empty() && world_.quiesce());
  }
  // What is under way is cut off, and the clients say no goodbye.
  ~PoolScene() override {
    for (const Part& part : parts_) {
      part.client->port().resume();
      part.client->port().revive();
      part.client->session().end({base::Code::unavailable, "the world ends"});
    }
  }

  fabric::sim::Network& network() override { return world_.network(); }
  std::size_t clients() const override { return parts_.size(); }
  bool may_begin(std::size_t client) const override {
    const Part& part = parts_[client];
    const auto& steps = plot_.steps[client];
    return part.begun < steps.size() && part.running == 0;
  }
  void begin(std::size_t client) override {
    Part& part = parts_[client];
    const Step& step = plot_.steps[client][part.begun++];
    ++part.running;
    order_ = base::mix(order_ ^ base::mix(client + 1) ^ ended_);
    world_.spawn(*part.client, play(*this, part, step, client));
  }
  bool busy(std::size_t client) const override { return parts_[client].running > 0; }
  void crash(std::size_t client) override { parts_[client].client->port().crash(fabric::sim::InFlight::cut); }
  void stop(std::size_t client) override { parts_[client].client->port().pause(); }
  void resume(std::size_t client) override { parts_[client].client->port().resume(); }

  std::uint64_t fingerprint() const override {
    std::uint64_t hash = order_;
    for (const Part& part : parts_) hash = base::mix(hash ^ part.begun) + part.running;
    return hash;
  }

  bool at_once(const fabric::sim::Waiting& one) const override {
    return one.op.verb == fabric::Verb::call && one.op.opcode == layout::kTick;
  }
  // Blocks that are free are written, and a block that somebody may still read is not free.
  std::string objection(const fabric::sim::Waiting& one, const fabric::sim::Waiting& other) const override {
    if (one.op.verb != fabric::Verb::write || other.op.verb != fabric::Verb::read) return {};
    if (one.op.at.region != layout::kHeap || other.torn) return {};
    return "a block of the heap is written while client " + std::to_string(other.client) + " is about to read it";
  }

  std::vector<std::string> judge() override {
    std::vector<std::string> wrong;
    for (const auto& [client, status] : world_.failures()) {
      const bool unlucky = plot_.bounds.losses + plot_.bounds.stalls > 0 && mortal(client);
      const bool learned = status.code() == base::Code::unavailable || status.code() == base::Code::stale ||
                           status.code() == base::Code::unknown_outcome || status.code() == base::Code::timed_out;
      if (!unlucky || !learned) {
        wrong.push_back("a call of client " + std::to_string(client) + " failed: " + status.message());
      }
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!mortal(i) && !parts_[i].client->session().alive()) {
        wrong.push_back("client " + std::to_string(i) +
                        " was fenced, although nothing befell it: " + parts_[i].client->session().why().message());
      }
    }
    if (plot_.faults() && wrong.empty()) clean_up(wrong);
    if (const auto judged = world_.history().judge()) wrong.push_back(*judged);
    for (const std::string& what : world_.strays()) wrong.push_back(what);
    for (const std::string& what : survey(world_).wrong) wrong.push_back(what);
    return wrong;
  }

  std::string next_name(std::size_t client) const override {
    const Step& step = plot_.steps[client][parts_[client].begun];
    if (step.wait > 0) return "to wait";
    if (step.splits) return "split of the table of " + step.call.key;
    if (step.scans) return "scan";
    const std::string value = step.call.value.substr(0, 12) + (step.call.value.size() > 12 ? "..." : "");
    return std::string(name_of(step.call.kind)) + " " + step.call.key + (value.empty() ? "" : " " + value);
  }
  std::string place(fabric::Remote at, std::uint64_t bytes) const override {
    return name_place(world_.geometry(), at, bytes);
  }

 private:
  struct Part {
    Client* client = nullptr;
    std::size_t begun = 0, running = 0;  // steps
  };
  bool mortal(std::size_t client) const {
    const auto& all = plot_.bounds.mortal;
    return std::find(all.begin(), all.end(), client) != all.end();
  }
  static task::Task<void> sweep(Client& client) {
    fabric::Cost cost;
    (void)co_await client.table().sweep(client.port().now() + kHaste, cost);
  }
  static task::Task<void> read(PoolScene& scene, Client& client) {
    for (const std::string& key : scene.world_.history().keys()) {
      co_await scene.world_.call(client, {.kind = Kind::get, .key = key}, kHaste);
    }
  }
  // Faults have ended: nothing of the dead may stay, and everything is read once more.
  void clean_up(std::vector<std::string>& wrong) {
    world_.network().let_go();
    Client& cleaner = world_.connect("cleaner");
    for (int times = 0; times < kSweeps; ++times) {
      if (!world_.run(cleaner, sweep(cleaner)) || !world_.quiesce()) break;
      const Survey now = survey(world_);
      if (now.wrong.empty() && now.unrepaired().empty()) break;
      // A client that ended unnoticed is noticed when its lease has run out.
      const Nanos then = world_.network().now() + plot_.options.lease / 2;
      world_.run_until([&] { return world_.network().now() >= then; }, plot_.options.lease);
    }
    for (const std::string& what : survey(world_).unrepaired()) wrong.push_back("for ever: " + what);
    if (survey(world_).blocks_lost > 0) {  // likewise
      const Nanos then = world_.network().now() + plot_.options.lease;
      world_.run_until([&] { return world_.network().now() >= then; }, 2 * plot_.options.lease);
    }
    for (const std::string& what : reclaim(world_)) wrong.push_back(what);
    const std::size_t failed = world_.failures().size();
    if (!world_.run(cleaner, read(*this, cleaner)) || world_.failures().size() > failed) {
      wrong.push_back("not all could be read in the end");
    }
  }
  static task::Task<void> play(PoolScene& scene, Part& part, Step step, std::size_t client) {
    if (step.wait > 0) {
      co_await part.client->port().sleep_for(step.wait);
    } else if (step.splits) {
      co_await split(*part.client, std::move(step.call.key));
    } else if (step.scans) {
      co_await scene.world_.scan(*part.client, scene.plot_.keys(), *step.scans, kPatience);
    } else {
      const Nanos patience = scene.plot_.bounds.losses > 0 ? kHaste : kPatience;
      co_await scene.world_.call(*part.client, std::move(step.call), patience);
    }
    co_await split_no_more(*part.client);  // its own, or one that it has met and that stood still
    --part.running;
    // Only which steps had ended when another began matters, not in which order they ended.
    scene.ended_ += base::mix(client + 1) * (part.begun - part.running);
  }

  const Plot& plot_;
  std::vector<Part> parts_;
  std::uint64_t ended_ = 0;
  std::uint64_t order_ = 0;
  World world_;  // its end lets steps come to theirs
};

// --- Plots

WorldOptions tiny() {
  return {.wire = {.seed = 1, .straggle = 0, .tear = false},
          .geometry = {.memory_bytes = (2048 + 96) << 10,
                       .table_percent = 1,
                       .entry_bytes = 16,
                       .entries_per_row = 2,
                       .rows_per_lock = 2,
                       .max_sessions = 4,
                       .slots_per_session = 2},
          .lease = 1000 * base::kSecond,
          .failure_timeout = base::kMillisecond};
}

Step call(Kind kind, std::string key, std::string value = "") {
  return {.call = {.kind = kind, .key = std::move(key), .value = std::move(value)}};
}
Before there(std::size_t client, std::string key, std::string value) {
  return {client, {.kind = Kind::insert, .key = std::move(key), .value = std::move(value)}};
}

// Where each key lies after the calls, and how many entries they displaced.
struct Outlook {
  std::map<std::string, std::uint64_t> rows;
  std::uint64_t displaced = 0;
  bool failed = false;
};
Outlook look_ahead(const WorldOptions& options, const std::vector<Before>& before) {
  World world(options);
  Client& client = world.connect("client-0");
  Outlook outlook;
  for (const Before& one : before) {
    if (!world.run(client, world.call(client, one.call, kPatience))) outlook.failed = true;
  }
  outlook.failed = outlook.failed || !world.failures().empty() || !world.quiesce();
  outlook.displaced = client.table().marks().displaced;
  for (const auto& [key, places] : survey(world).keys) outlook.rows[key] = places[0].row;
  return outlook;
}

// A few full rows, and keys whose inserts must move an entry each.
struct Crowded {
  std::vector<Before> before;
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
    std::vector<Before> with = found.before;
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

// Rows that the first client remembers as full. The other has made room for one entry, which a key gets only by a move.
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
    std::vector<Before> with = found.before;
    with.push_back(there(0, key, "0"));
    if (with.size() <= room) {
      if (!look_ahead(options, with).failed) found.before = std::move(with);
      continue;
    }
    for (const Before& one : found.before) {
      const Before makes_room{1, {.kind = Kind::remove, .key = one.call.key}};
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

// Tables of a few groups.
WorldOptions tiny_race() {
  WorldOptions options = tiny();
  options.geometry.protocol = layout::Protocol::race;
  options.geometry.tables = 8;
  return options;
}

// A key that a split of its table moves, or one that stays.
std::string on_side(const WorldOptions& options, bool moves) {
  World world(options);
  world.connect("client-0");
  for (std::uint64_t i = 0;; ++i) {
    std::string key = "k" + std::to_string(i);
    if (((directory::hash_of(world.pool_secret(), base::bytes_of(key)) & 1) != 0) == moves) return key;
  }
}

// Two keys that share no lock.
std::pair<std::string, std::string> neighbours(const WorldOptions& options) {
  World world(options);
  world.connect("client-0");
  return {crowd(world, 20, 4, 1, "")[0], crowd(world, 40, 4, 1, "")[0]};
}

class Catalogue {
 public:
  Catalogue() {
    const std::string large(100, 'a'), larger(110, 'b'), other(90, 'c');
    const std::string k = "k", one(12, 'x'), two(12, 'y');  // in place, and longer than a word
    // Two clients, one key.
    add("insert-insert", 4, {}, {{call(Kind::insert, k, one)}, {call(Kind::insert, k, two)}});
    add("insert-remove", 4, {}, {{call(Kind::insert, k, one)}, {call(Kind::remove, k)}});
    add("update-lookup", 4, {there(0, k, one)},
        {{call(Kind::update, k, two)}, {call(Kind::get, k), call(Kind::get, k)}});
    add("put-lookup", 4, {}, {{call(Kind::put, k, one)}, {call(Kind::get, k), call(Kind::get, k)}});
    add("modify-modify", 4, {there(0, k, "1")}, {{call(Kind::add, k)}, {call(Kind::add, k)}});
    add("remove-insert-lookup", 3, {there(0, k, "1")},
        {{call(Kind::remove, k), call(Kind::insert, k, "2")}, {call(Kind::get, k), call(Kind::get, k)}});
    // Locks side by side in one word.
    const auto [left, right] = neighbours(tiny());
    add("modify-beside-modify", 3, {}, {{call(Kind::add, left)}, {call(Kind::add, right), call(Kind::add, left)}});
    // Extents: one that is replaced while it is read, one that is freed by another client than its owner, one whose
    // block is used again as soon as eras allow.
    add("extent-update-lookup", 4, {there(0, k, large)},
        {{call(Kind::update, k, larger)}, {call(Kind::get, k), call(Kind::get, k)}});
    add("extent-remove-update", 4, {there(0, k, large)}, {{call(Kind::update, k, larger)}, {call(Kind::remove, k)}});
    const std::string another(95, 'd');
    add("extent-twice-lookup", 3, {there(0, k, large)},
        {{call(Kind::put, k, other), call(Kind::put, k, another)}, {call(Kind::get, k)}});
    WorldOptions patient = tiny();  // verbs may wait while eras move
    patient.failure_timeout = 10 * base::kSecond;
    const Step wait{.wait = 2 * base::kSecond, .call = {}};
    add("extent-reuse-lookup", 3, {there(0, k, large)},
        {{wait, call(Kind::update, k, larger), wait, call(Kind::put, k, other)}, {call(Kind::get, k)}}, patient);
    // Eras move unevenly: the reader knows of one that the writer has not been told of.
    add("extent-reuse-ahead", 2, {there(0, k, large)},
        {{wait, call(Kind::update, k, larger), wait, call(Kind::put, k, other)}, {wait, call(Kind::get, k)}}, patient);
    // Three of these fill a segment: what another client has freed in it is looked for when a fourth is asked for.
    const std::string huge(60'000, 'h');
    add("extent-far-free", 2, {there(0, "k1", huge), there(0, "k2", huge), there(0, "k3", huge)},
        {{call(Kind::put, k, huge)}, {call(Kind::remove, "k2")}});
    // Cuckoo moves.
    const Crowded rows = crowded(tiny());
    const Step move = call(Kind::insert, rows.moving[0], "1");
    add("move-lookup", 4, rows.before, {{move}, {call(Kind::get, rows.moved[0])}});
    add("move-update", 3, rows.before, {{move}, {call(Kind::update, rows.moved[0], "2")}});
    add("move-remove", 3, rows.before, {{move}, {call(Kind::remove, rows.moved[0])}});
    add("move-move", 3, rows.before, {{move}, {call(Kind::insert, rows.moving[1], "2")}});
    // Scans of the rows, at once and in two steps.
    const Step scan{.call = {}, .scans = World::Part{.first = 20, .end = 28, .count = 16}};
    const Step steps{.call = {}, .scans = World::Part{.first = 20, .end = 28, .count = 8}};
    add("move-scan", 2, rows.before, {{move}, {scan}});
    add("move-scan-in-steps", 2, rows.before, {{move}, {steps}});
    // The second client finds no room any more, and needs none.
    const Crowded last = last_room(tiny());
    add("put-put-last-room", 2, last.before,
        {{call(Kind::put, last.moving[0], "1")}, {call(Kind::put, last.moving[0], "2")}});
    // Three clients.
    add("modify-modify-lookup", 3, {there(0, k, "1")},
        {{call(Kind::add, k)}, {call(Kind::add, k)}, {call(Kind::get, k)}});
    add("put-remove-lookup", 3, {there(0, k, "1")},
        {{call(Kind::put, k, "2")}, {call(Kind::remove, k)}, {call(Kind::get, k)}});
    add("move-move-lookup", 2, rows.before,
        {{move}, {call(Kind::insert, rows.moving[1], "2")}, {call(Kind::get, rows.moved[0])}});
    add_race();
    // A client dies after any effect.
    const Bounds dies{.preemptions = 2, .crashes = 1, .mortal = {0}};
    add("update-dies-update", dies, {there(0, k, "1")}, {{call(Kind::update, k, "2")}, {call(Kind::update, k, "3")}});
    add("extent-dies-lookup", dies, {there(1, k, large)}, {{call(Kind::update, k, larger)}, {call(Kind::get, k)}});
    add("move-dies-lookup", dies, rows.before, {{move}, {call(Kind::get, rows.moved[0])}});
    // A client stops with all that it has under way, is suspected, and is fenced in the middle of it.
    const Bounds stalls{.preemptions = 1, .stalls = 1, .mortal = {0}};
    add("update-stalls-remove", stalls, {there(0, k, "1")}, {{call(Kind::update, k, "2")}, {call(Kind::remove, k)}});
    add("extent-stalls-update", stalls, {there(1, k, large)},
        {{call(Kind::update, k, larger)}, {call(Kind::update, k, other), call(Kind::get, k)}});
    add("move-dies-scan", Bounds{.preemptions = 1, .crashes = 1, .mortal = {0}}, rows.before, {{move}, {scan}});
    add("move-stalls-update", stalls, rows.before, {{move}, {call(Kind::update, rows.moved[0], "2")}});
    // The answer of a chain never comes.
    const Bounds loses{.preemptions = 1, .losses = 1, .mortal = {0}};
    add("modify-loses-modify", loses, {there(0, k, "1")}, {{call(Kind::add, k)}, {call(Kind::add, k)}});
    add("extent-loses-update", loses, {there(1, k, large)}, {{call(Kind::update, k, larger)}, {call(Kind::get, k)}});
  }
  const std::vector<SmallWorld>& worlds() const { return worlds_; }

 private:
  void add_race() {
    const WorldOptions options = tiny_race();
    const std::string k = on_side(options, true), stays = on_side(options, false);
    const Step split{.call = {.key = k}, .splits = true};
    add("race-insert-insert", 3, {}, {{call(Kind::insert, k, "1")}, {call(Kind::insert, k, "2")}}, options);
    add("race-put-remove", 3, {there(0, k, "1")}, {{call(Kind::put, k, "2")}, {call(Kind::remove, k)}}, options);
    add("race-modify-modify", 3, {there(0, k, "1")}, {{call(Kind::add, k)}, {call(Kind::add, k)}}, options);
    add("race-remove-insert-lookup", 3, {there(0, k, "1")},
        {{call(Kind::remove, k), call(Kind::insert, k, "2")}, {call(Kind::get, k), call(Kind::get, k)}}, options);
    WorldOptions patient = options;
    patient.failure_timeout = 10 * base::kSecond;
    const Step wait{.wait = 2 * base::kSecond, .call = {}};
    add("race-reuse-lookup", 3, {there(0, k, "1")},
        {{wait, call(Kind::update, k, "2"), wait, call(Kind::put, k, "3")}, {call(Kind::get, k)}}, patient);
    // A split beside each operation on a key that it moves.
    add("split-lookup", 2, {there(0, k, "1"), there(0, stays, "1")}, {{split}, {call(Kind::get, k)}}, options);
    add("split-update", 1, {there(0, k, "1")}, {{split}, {call(Kind::update, k, "2")}}, options);
    add("split-insert", 1, {there(0, stays, "1")}, {{split}, {call(Kind::insert, k, "1")}}, options);
    add("split-remove", 1, {there(0, k, "1")}, {{split}, {call(Kind::remove, k)}}, options);
    const std::vector<Before> both{there(0, k, "1"), there(1, stays, "1")};
    add("split-modify", 2, both, {{split}, {call(Kind::add, k)}}, patient);
    add("split-split", Bounds{.preemptions = 2, .few = 1}, both, {{split}, {split}}, patient);
    // Twice, while another client's directory is as it was before.
    add("split-split-lookup", 2, both, {{split, split}, {call(Kind::get, k), call(Kind::get, k)}}, patient);
    // The group that the key lies in is split, at once and in steps.
    const std::vector<Before> one{there(0, k, "1")};
    const std::uint64_t group = look_ahead(options, one).rows.at(k);
    const std::uint64_t bits = layout::most_depth(options.geometry.tables);
    const auto scan = [&](std::uint64_t count) {
      const World::Part part{.first = group << bits, .end = (group + 1) << bits, .count = count};
      return Step{.call = {}, .scans = part};
    };
    const Bounds few{.preemptions = 1, .few = 8};  // a splitter has eight groups under way at once
    add("split-scan", few, one, {{split}, {scan(16)}}, patient);
    add("split-scan-in-steps", few, one, {{split}, {scan(1)}}, patient);
    add("split-insert-insert", 1, {there(0, stays, "1")},
        {{split}, {call(Kind::insert, k, "1")}, {call(Kind::insert, k, "2")}}, patient);
    add("split-put-remove", 1, both, {{split}, {call(Kind::put, k, "2")}, {call(Kind::remove, k)}}, patient);
    // The splitter dies, and who meets its split goes on with it.
    WorldOptions mortal = options;
    mortal.failure_timeout = 200 * base::kMillisecond;
    const Bounds dies{.preemptions = 1, .crashes = 1, .mortal = {0}, .few = 1};
    add("split-dies-lookup", dies, both, {{split}, {call(Kind::get, k), call(Kind::get, k)}}, mortal);
    add("split-dies-update", dies, both, {{split}, {call(Kind::update, k, "2")}}, mortal);
    add("split-dies-insert", dies, {there(0, stays, "1")}, {{split}, {call(Kind::insert, k, "1")}}, mortal);
    // It stops, is fenced, and goes on.
    const Bounds stalls{.preemptions = 1, .stalls = 1, .mortal = {0}, .few = 1};
    add("split-stalls-update", stalls, both, {{split}, {call(Kind::update, k, "2")}}, mortal);
    const Bounds loses{.preemptions = 1, .losses = 1, .mortal = {0}};
    add("race-update-loses-update", loses, {there(0, k, "1")},
        {{call(Kind::update, k, "2")}, {call(Kind::update, k, "3")}}, options);
    add("race-modify-loses-modify", loses, {there(0, k, "1")}, {{call(Kind::add, k)}, {call(Kind::add, k)}}, options);
  }
  void add(std::string name, unsigned preemptions, std::vector<Before> before, std::vector<std::vector<Step>> steps,
           const WorldOptions& options = tiny()) {
    add(std::move(name), Bounds{.preemptions = preemptions}, std::move(before), std::move(steps), options);
  }
  void add(std::string name, const Bounds& bounds, std::vector<Before> before, std::vector<std::vector<Step>> steps,
           WorldOptions options = tiny()) {
    Plot plot{.options = options, .before = std::move(before), .steps = std::move(steps), .bounds = bounds};
    if (plot.faults()) plot.options.lease = 20 * base::kSecond;
    const auto shared = std::make_shared<const Plot>(std::move(plot));
    worlds_.push_back({std::move(name), bounds, [shared] { return std::make_unique<PoolScene>(*shared); }});
  }
  std::vector<SmallWorld> worlds_;
};

}  // namespace

const std::vector<SmallWorld>& small_worlds() {
  static const Catalogue catalogue;
  return catalogue.worlds();
}

const SmallWorld* find_small_world(const std::string& name) {
  const auto& all = small_worlds();
  const auto found = std::find_if(all.begin(), all.end(), [&](const SmallWorld& world) { return world.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace farpool::sim
