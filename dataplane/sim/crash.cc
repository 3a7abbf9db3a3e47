// SPDX-License-Identifier: Apache-2.0
#include "sim/crash.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>

#include "directory/directory.h"
#include "node/memory_node.h"
#include "sim/dialect.h"
#include "sim/housekeeping.h"
#include "sim/last_words.h"
#include "sim/story.h"
#include "sim/survey.h"
#include "sim/swarm.h"

namespace farpool::sim {
namespace {

using fabric::sim::InFlight;
using Kind = Call::Kind;
constexpr Nanos kPatience = 10 * base::kSecond;
constexpr std::uint64_t kMost = 6000;  // more effects than any operation or repair has

std::string text_of(std::size_t bytes, char letter) { return std::string(bytes, letter); }

task::Task<void> split_to_the_end(Client& client, std::vector<std::string> keys) {
  for (std::string& key : keys) co_await split(client, std::move(key));  // which only begins it
  co_await split_no_more(client);
}

task::Task<void> flagged(task::Task<void> task, bool& over) {
  co_await std::move(task);
  over = true;
}

// Reads the keys, then writes them. The task owns the keys: if something is wrong, it outlives its caller.
task::Task<void> go_on(World& world, Client& survivor, std::vector<std::string> keys) {
  for (const std::string& key : keys) co_await world.call(survivor, {.kind = Kind::get, .key = key}, kPatience);
  for (const std::string& key : keys) {
    co_await world.call(survivor, {.kind = Kind::put, .key = key, .value = "77"}, kPatience);
    co_await world.call(survivor, {.kind = Kind::get, .key = key}, kPatience);
  }
}

}  // namespace

WorldOptions crash_options(std::uint64_t seed, layout::Protocol protocol) {
  WorldOptions options;
  options.geometry.protocol = protocol;
  options.wire.seed = seed;
  options.failure_timeout = base::kMillisecond;  // a client that meets a dead client's lock waits for it
  return options;
}

namespace {

std::vector<Scenario> branches(std::uint64_t seed, layout::Protocol protocol) {
  const std::string large = text_of(100, 'a'), larger = text_of(300, 'b');
  const auto inserted = [](std::string key, std::string value) {
    return Scenario::Before{.call = {.kind = Kind::insert, .key = std::move(key), .value = std::move(value)}};
  };
  const auto make = [&](std::string name, std::vector<Scenario::Before> before, Call doomed) {
    return Scenario{.name = std::move(name),
                    .options = crash_options(seed, protocol),
                    .before = std::move(before),
                    .doomed = std::move(doomed)};
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
  // The freed block is the survivor's: an atomic marks it.
  all.push_back(make("remove, extent of another client", {}, {.kind = Kind::remove, .key = "k"}));
  all.back().before.push_back({.by_survivor = true, .call = {.kind = Kind::insert, .key = "k", .value = large}});
  all.push_back(make("update, lock conflict", {inserted("k", "1")}, {.kind = Kind::update, .key = "k", .value = "2"}));
  all.back().rival = Call{.kind = Kind::update, .key = "k", .value = "3"};
  all.push_back(make("insert, lock conflict", {}, {.kind = Kind::insert, .key = "k", .value = "2"}));
  all.back().rival = Call{.kind = Kind::insert, .key = "k", .value = "3"};
  for (Scenario& other : dialect_of(protocol).scenarios(seed)) all.push_back(std::move(other));
  return all;
}

}  // namespace

std::vector<Scenario> scenarios(std::uint64_t seed, layout::Protocol protocol) {
  std::vector<Scenario> all = branches(seed, protocol);
  for (Scenario& one : all) one.seed = seed;
  return all;
}

namespace {

class Crash {
 public:
  Crash(const Scenario& scenario, const Death& death, bool tells)
      : scenario_(scenario), death_(death), tells_(tells), world_(options_of(scenario, tells)) {}
  // There are many worlds: a crashed client ends with everything that it held, instead of being kept.
  ~Crash() {
    for (const auto& client : world_.clients()) {
      if (!client->crashed()) continue;
      client->port().revive();
      client->session().end({base::Code::unavailable, "the world ends"});
      world_.settle(*client, kPatience);
    }
  }

  CrashVerdict run() {
    begin();
    const Nanos begun = world_.network().now();
    die();
    if (!verdict_.survived) inspect();
    if (!verdict_.survived) repair();
    go_on();
    if (std::max(death_.after, death_.repairer_after) > kMost) wrong("it never survives");
    if (tells_) verdict_.story = story(world_, begun);
    return std::move(verdict_);
  }

 private:
  static WorldOptions options_of(const Scenario& scenario, bool tells) {
    WorldOptions options = scenario.options;
    options.wire.keep_chains = tells;
    return options;
  }

  void wrong(const std::string& what) { verdict_.wrong.push_back(what); }

  void begin() {
    victim_ = &world_.connect("victim");
    survivor_ = &world_.connect("survivor");
    if (death_.repair == Death::Repair::crowd) other_ = &world_.connect("other");
    std::size_t expected = 0;
    for (const Scenario::Before& before : scenario_.before) {
      Client& client = before.by_survivor ? *survivor_ : *victim_;
      expected += before.finds_no_room ? 1 : 0;
      auto task =
          before.splits ? split_to_the_end(client, {before.call.key}) : world_.call(client, before.call, kPatience);
      if (!world_.run(client, std::move(task))) wrong("a call before did not come to an end");
    }
    if (!world_.quiesce()) wrong("the calls before leave verbs under way");
    for (const auto& [client, status] : world_.failures()) {
      if (status.code() != base::Code::out_of_memory) wrong("a call before failed: " + status.message());
    }
    if (world_.failures().size() != expected) wrong("calls before failed that should not, or did not that should");
    const base::Bytes table = world_.region(layout::kTable);
    image_.assign(table.begin(), table.end());
  }

  void die() {
    bool rival_over = !scenario_.rival.has_value() && scenario_.rival_splits.empty();
    if (!scenario_.rival_splits.empty()) {
      world_.spawn(*survivor_, flagged(split_to_the_end(*survivor_, {scenario_.rival_splits}), rival_over));
    }
    if (scenario_.rival) {  // it is in the way when the victim comes
      world_.spawn(*survivor_, flagged(world_.call(*survivor_, *scenario_.rival, kPatience), rival_over));
      const auto in_the_way = [&] {
        // Without locks it may be in the way only for a moment.
        const bool came_too_late = rival_over && !world_.geometry().shape().locks;
        return came_too_late || dialect_of(world_.geometry().protocol).hinders(world_);
      };
      if (!world_.run_until(in_the_way)) wrong("the rival is in nobody's way");
      survivor_->port().pause();
      world_.network().at(world_.network().now() + 20 * base::kMicrosecond, [this] { survivor_->port().resume(); });
    }
    fabric::sim::SimPort& port = victim_->port();
    if (only_stops()) {
      port.pause_after(death_.after);
    } else {
      port.crash_after(death_.after, death_.how == Death::How::cut ? InFlight::cut : InFlight::lands);
    }
    // The victim's frames may outlive this one, so they refer to nothing in it.
    over_ = std::make_shared<bool>(false);
    world_.spawn(*victim_, flagged(scenario_.splits.empty() ? world_.call(*victim_, scenario_.doomed, kPatience)
                                                            : split_to_the_end(*victim_, scenario_.splits),
                                   *over_));
    const auto ended = [&] {
      return victim_->crashed() || port.paused() || (*over_ && victim_->session().lane().pending() == 0);
    };
    if (!world_.run_until(ended)) wrong("the operation did not come to an end");
    verdict_.survived = !victim_->crashed() && !port.paused();
    if (verdict_.survived) {
      port.crash_after(~0ull >> 1, InFlight::cut);
      port.pause_after(~0ull >> 1);
      verdict_.marks = victim_->table().marks();
    } else {
      died_at_ = world_.network().now();
      fabric::sim::bury(over_);
      if (!world_.network().drain(port, world_.network().now() + base::kSecond)) {
        wrong("verbs of the dead client are under way for ever");
      }
      if (death_.how == Death::How::asleep) oversleep();
    }
    if (!world_.settle(*survivor_) || !rival_over) wrong("the rival did not come to an end");
    if (victim_->crashed() && !world_.quiesce()) wrong("the rival leaves verbs under way");
  }

  bool only_stops() const { return death_.how == Death::How::zombie || death_.how == Death::How::asleep; }

  // The client counts its lease from its request, with a margin, so it knows before the memory node does, and posts
  // nothing any more.
  void oversleep() {
    const Nanos wake_at = died_at_ + scenario_.options.lease / 100 * 92;
    world_.run_until([&] { return world_.network().now() >= wake_at; });
    const std::uint64_t before = victim_->port().effects();
    victim_->port().resume();
    if (!world_.settle(*victim_, kPatience) || !*over_) wrong("who overslept did not come to an end");
    verdict_.late_effects = victim_->port().effects() - before;
    if (verdict_.late_effects > 0) wrong("verbs of a client executed although its lease may have run out");
  }

  // Inspects what is left before any client has repaired it.
  void inspect() {
    verdict_.locks_left = std::any_of(world_.region(layout::kLocks).begin(), world_.region(layout::kLocks).end(),
                                      [](std::byte b) { return b != std::byte{0}; });
    if (!victim_->crashed()) return;  // it may still say goodbye to its slots
    for (const std::string& what : survey(world_).wrong) wrong(what);
    if (scenario_.rival || !scenario_.rival_splits.empty()) return;
    const layout::Geometry& geometry = world_.geometry();
    const Dialect& dialect = dialect_of(geometry.protocol);
    const base::Bytes table = world_.region(layout::kTable);
    for (const std::string& what : dialect.impossible_rows(geometry, image_, table)) wrong(what);
    for (std::uint64_t i = 0; i < geometry.slots_per_session; ++i) {
      layout::OperationSlot slot;
      std::memcpy(&slot, world_.region(layout::kSlots).data() + victim_->slots_offset() + i * sizeof slot, sizeof slot);
      if (slot.holder == 0 || !verdict_.locks_left) continue;
      for (const std::string& what : dialect.unexplained(geometry, image_, table, slot)) wrong(what);
    }
  }

  static task::Task<void> sweep(Client& client, std::shared_ptr<bool> over) {
    fabric::Cost cost;
    (void)co_await client.table().sweep(client.port().now() + kPatience, cost);
    *over = true;
  }

  void sweep_to_the_end(Client& client) {
    end_splits();
    auto over = std::make_shared<bool>(false);
    if (!world_.run(client, sweep(client, over)) || !*over) wrong("the repair did not come to an end");
  }

  void repair() {
    if (death_.repair == Death::Repair::blocked || death_.repair == Death::Repair::crowd) return;  // go_on() repairs
    // The memory node notices by itself, because the lease runs out.
    const auto noticed = [this] { return world_.node().stats().sessions_fenced > 0; };
    if (!world_.run_until(noticed)) wrong("the memory node did not notice that a client had ended");
    Client* repairer = survivor_;
    if (death_.repair == Death::Repair::stopped) {
      stop_in_the_middle();
    } else if (death_.repair == Death::Repair::repairer) {
      Client& mortal = world_.connect("repairer");
      mortal.port().crash_after(death_.repairer_after, InFlight::lands);
      auto over = std::make_shared<bool>(false);
      world_.spawn(mortal, sweep(mortal, over));
      if (!world_.run_until([&] { return mortal.crashed() || *over; })) wrong("the repairer did not come to an end");
      repairer_died_ = mortal.crashed();
      verdict_.repairer_survived = !repairer_died_;
      mortal.port().crash_after(~0ull >> 1, InFlight::cut);
      if (mortal.crashed()) {
        fabric::sim::bury(over);
        if (!world_.network().drain(mortal.port(), world_.network().now() + base::kSecond)) {
          wrong("verbs of the dead repairer are under way for ever");
        }
      } else {
        verdict_.repairs += session::marks_of(mortal.session(), mortal.table().repairer());
      }
    }
    sweep_to_the_end(*repairer);
    if (repairer_died_) {
      // The repairer may have left only its lease, which blocks no client until one needs it.
      if (!world_.run_until([this] { return world_.node().stats().sessions_fenced > 1; })) {
        wrong("the memory node did not notice that a repairer had ended");
      }
      sweep_to_the_end(*repairer);
    }
    check_repaired("after the repair");
  }

  // A client that met a split whose client stood still has taken the split over behind its operation.
  void end_splits() {
    if (scenario_.splits.empty()) return;
    for (const auto& client : world_.clients()) {
      if (client->crashed() || client->port().paused() || !client->connected()) continue;
      if (!world_.run(*client, split_no_more(*client))) wrong("client " + client->name() + " splits for ever");
    }
  }

  // One repairer stops; another repairs, and works on; then the first continues.
  void stop_in_the_middle() {
    Client& slow = world_.connect("repairer");
    slow.port().pause_after(death_.repairer_after);
    auto over = std::make_shared<bool>(false);
    world_.spawn(slow, sweep(slow, over));
    if (!world_.run_until([&] { return slow.port().paused() || *over; })) wrong("the repairer did not come to an end");
    verdict_.repairer_survived = !slow.port().paused();
    slow.port().pause_after(~0ull >> 1);
    if (verdict_.repairer_survived) return;
    if (!world_.network().drain(slow.port(), world_.network().now() + base::kSecond)) {
      wrong("verbs of the stopped repairer are under way for ever");
    }
    sweep_to_the_end(*survivor_);
    work_on();
    const bool fenced = world_.node().stats().sessions_fenced > 1;
    const std::uint64_t before = slow.port().effects();
    slow.port().resume();
    if (!world_.settle(slow, kPatience) || !*over) wrong("the repairer that had stopped did not come to an end");
    if (fenced && slow.port().effects() > before) wrong("verbs of a repairer executed after it was fenced");
    if (!world_.quiesce()) wrong("verbs of a repairer are under way for ever");
    verdict_.repairs += session::marks_of(slow.session(), slow.table().repairer());
    if (!fenced && slow.session().alive()) return;
    // What it held is given back when its end is noticed.
    if (!world_.run_until([this] { return world_.node().stats().sessions_fenced > 1; })) {
      wrong("the memory node did not notice that a repairer had ended");
    }
  }

  void check_repaired(const std::string& when) {
    end_splits();
    if (!world_.quiesce()) wrong(when + ": verbs are under way for ever");
    verdict_.repaired_in = world_.network().now() - died_at_;
    // A client that gets a segment of the dead looks for lost blocks in it during its housekeeping.
    constexpr std::uint64_t kOfASegment = 1000;
    if (survey(world_).blocks_lost > kOfASegment) {
      for (const std::string& what : reclaim(world_)) wrong(when + ": " + what);
    }
    const Survey now = survey(world_);
    for (const std::string& what : now.wrong) wrong(when + ": " + what);
    for (const std::string& what : now.unrepaired()) wrong(when + ": " + what);
  }

  // The living clients read and write as if nothing had happened.
  void work_on() {
    std::vector<std::string> keys{scenario_.doomed.key};
    if (!scenario_.before.empty() && scenario_.before[0].call.key != keys[0]) {
      keys.push_back(scenario_.before[0].call.key);
    }
    for (Client* client : {survivor_, other_}) {
      if (client == nullptr) continue;
      world_.spawn(*client, sim::go_on(world_, *client, keys));
    }
    for (Client* client : {survivor_, other_}) {
      if (client == nullptr) continue;
      if (!world_.settle(*client, 600 * base::kSecond)) wrong("client " + client->name() + " did not come to an end");
      if (!client->session().alive()) wrong("client " + client->name() + " was fenced, although it lives");
    }
  }

  // The zombie wakes and changes nothing.
  void go_on() {
    const std::size_t expected = world_.failures().size();
    work_on();
    const auto of_before =
        static_cast<std::size_t>(std::count_if(scenario_.before.begin(), scenario_.before.end(),
                                               [](const Scenario::Before& one) { return one.finds_no_room; }));
    for (std::size_t i = 0; i < world_.failures().size(); ++i) {
      const auto& [client, status] = world_.failures()[i];
      if (client == victim_->index() && (i < of_before || !verdict_.survived)) continue;
      if (client != victim_->index() && scenario_.rival && i < expected) continue;
      wrong("client " + world_.clients()[client]->name() + " failed: " + status.message());
    }
    verdict_.repairs += session::marks_of(survivor_->session(), survivor_->table().repairer());
    if (!verdict_.survived && death_.how == Death::How::zombie) wake();
    // If the victim held nothing, it blocked no client, and no client had to repair.
    const bool ended = victim_->crashed() || !victim_->session().alive();
    const bool by_going_on = death_.repair == Death::Repair::blocked || death_.repair == Death::Repair::crowd;
    if (ended && !verdict_.locks_left && by_going_on) {
      const auto noticed = [this] { return world_.node().stats().sessions_fenced > 0; };
      if (!world_.run_until(noticed)) wrong("the memory node did not notice that a client had ended");
      sweep_to_the_end(*survivor_);
    }
    check_repaired("after the survivor went on");
    if (ended) {
      for (const std::string& what : reclaim(world_)) wrong(what);
    }
    if (const auto judged = world_.history().judge()) wrong(*judged);
  }

  void wake() {
    const std::uint64_t before = victim_->port().effects();
    const bool fenced = world_.node().stats().sessions_fenced > 0;
    victim_->port().resume();
    if (!world_.settle(*victim_, 600 * base::kSecond) || !*over_) wrong("the zombie did not come to an end");
    if (fenced) {
      verdict_.late_effects = victim_->port().effects() - before;
      if (verdict_.late_effects > 0) wrong("verbs of the zombie executed after it was fenced");
      if (victim_->session().alive()) wrong("the zombie does not know that it was fenced");
    }
  }

  const Scenario& scenario_;
  const Death& death_;
  const bool tells_;
  World world_;
  CrashVerdict verdict_;
  Client* victim_ = nullptr;
  Client* survivor_ = nullptr;
  Client* other_ = nullptr;
  std::vector<std::byte> image_;
  std::shared_ptr<bool> over_;
  bool repairer_died_ = false;
  Nanos died_at_ = 0;
};

}  // namespace

namespace {

constexpr const char* kHow[] = {"cut", "lands", "zombie", "asleep"};                     // by Death::How
constexpr const char* kRepair[] = {"blocked", "sweep", "repairer", "stopped", "crowd"};  // by Death::Repair

bool ends_repairer(Death::Repair repair) {
  return repair == Death::Repair::repairer || repair == Death::Repair::stopped;
}

}  // namespace

std::string name_of(const Death& death) {
  std::string text = std::string(kHow[static_cast<std::size_t>(death.how)]) + "," +
                     kRepair[static_cast<std::size_t>(death.repair)] + "," + std::to_string(death.after);
  return ends_repairer(death.repair) ? text + "," + std::to_string(death.repairer_after) : text;
}

std::optional<Death> parse_death(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char letter : text) {
    if (letter == ',') {
      words.emplace_back();
    } else {
      words.back() += letter;
    }
  }
  if (words.size() < 3) return std::nullopt;
  Death death;
  const auto how = std::find(std::begin(kHow), std::end(kHow), words[0]);
  const auto repair = std::find(std::begin(kRepair), std::end(kRepair), words[1]);
  if (how == std::end(kHow) || repair == std::end(kRepair)) return std::nullopt;
  death.how = static_cast<Death::How>(how - std::begin(kHow));
  death.repair = static_cast<Death::Repair>(repair - std::begin(kRepair));
  const auto number = [](const std::string& word, std::uint64_t& into) {
    const auto read = std::from_chars(word.data(), word.data() + word.size(), into);
    return read.ec == std::errc() && read.ptr == word.data() + word.size();
  };
  if (words.size() != (ends_repairer(death.repair) ? 4U : 3U) || !number(words[2], death.after)) return std::nullopt;
  if (words.size() == 4 && !number(words[3], death.repairer_after)) return std::nullopt;
  return death;
}

std::string describe(const Death& death) {
  std::string text = death.how == Death::How::zombie   ? "stopped"
                     : death.how == Death::How::asleep ? "asleep until its lease may have run out"
                                                       : "dead";
  text += " after effect " + std::to_string(death.after);
  text += death.how == Death::How::cut ? ", nothing landed after it" : ", what was posted landed";
  switch (death.repair) {
    case Death::Repair::blocked:
      return text + ", repaired by whom it blocked";
    case Death::Repair::sweep:
      return text + ", repaired by a sweep";
    case Death::Repair::crowd:
      return text + ", repaired by one of two whom it blocked";
    case Death::Repair::stopped:
      return text + ", repaired after a repairer had stopped after effect " + std::to_string(death.repairer_after);
    default:
      return text + ", repaired after a repairer had died after effect " + std::to_string(death.repairer_after);
  }
}

namespace {

std::string replay_of(const Scenario& scenario, const Death& death) {
  return flag_of(scenario.options.geometry.protocol) + "--crashes --seed " + std::to_string(scenario.seed) +
         " --branch '" + scenario.name + "' --death " + name_of(death);
}

}  // namespace

CrashVerdict run_crash(const Scenario& scenario, const Death& death, bool tells) {
  const LastWords words(replay_of(scenario, death));
  return Crash(scenario, death, tells).run();
}

std::string explain(const Scenario& scenario, const Death& death) {
  const CrashVerdict verdict = run_crash(scenario, death, true);
  std::string text = "seed " + std::to_string(scenario.seed) + ", commit " + commit() + ": " + scenario.name + "; " +
                     describe(death) + "\n" + verdict.story;
  for (const std::string& what : verdict.wrong) text += "  wrong: " + what + "\n";
  return text + "replay: simulate " + replay_of(scenario, death) + "\n";
}

CrashTally die_everywhere(const Scenario& scenario, Death::How how, Death::Repair repair, const Reach& reach) {
  CrashTally tally;
  const std::uint64_t stride = scenario.stride;
  // If the repairer ends, too, there are as many worlds as its effects times the victim's.
  const std::uint64_t of_repairer = stride > 1 && ends_repairer(repair) ? 8 * stride : stride;
  const std::uint64_t of_victim = reach.every_effect ? 1 : of_repairer;
  Death death{.how = how, .repair = repair};
  death.after = (static_cast<std::uint64_t>(how) + static_cast<std::uint64_t>(repair) + reach.offset) % of_victim;
  for (;; death.after += reach.step * of_victim) {
    const std::uint64_t first = reach.every_effect ? death.after : death.after % stride + reach.offset / of_victim;
    for (death.repairer_after = (first + reach.offset) % of_repairer;; death.repairer_after += of_repairer) {
      const CrashVerdict verdict = run_crash(scenario, death);
      ++tally.worlds;
      tally.locks_left += verdict.locks_left ? 1 : 0;
      tally.late_effects += verdict.late_effects;
      tally.repairs += verdict.repairs;
      if (!verdict.wrong.empty()) {
        tally.wrong = death;
        return tally;
      }
      if (verdict.survived) {
        tally.marks = verdict.marks;
        return tally;
      }
      if (!ends_repairer(repair) || verdict.repairer_survived) break;
    }
  }
}

}  // namespace farpool::sim
