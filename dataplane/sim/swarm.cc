// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "directory/directory.h"
#include "layout/lease.h"
#include "layout/segment.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"
#include "sim/dialect.h"
#include "sim/housekeeping.h"
#include "sim/last_words.h"
#include "sim/story.h"
#include "sim/survey.h"

namespace farpool::sim {
namespace {

using base::Random;

using Setting = SwarmSetting;

Setting draw(std::uint64_t seed) {
  Random random(seed * 2 + 1);
  Setting s;
  s.clients = 2 + random.below(3);
  s.tasks = 1 + random.below(3);
  s.window = 2 + random.below(6);
  s.large = random.chance(0.5) ? 0 : random.chance(0.5) ? 0.2 : 0.7;
  s.reads = 0.1 + 0.1 * static_cast<double>(random.below(5));
  s.pauses = random.chance(0.3);
  s.world.wire.seed = seed;
  s.world.wire.straggle = random.chance(0.5) ? 0.02 : 0.3;
  s.world.wire.straggle_delay = (random.chance(0.5) ? 10 : 200) * base::kMicrosecond;
  s.world.wire.tear = !random.chance(0.1);
  auto& geometry = s.world.geometry;
  geometry.entries_per_row = 2 + random.below(3);
  geometry.rows_per_lock = 1ull << random.below(3);
  geometry.max_lock_bytes = random.chance(0.3) ? 8 : 0;  // virtual locks: rows far apart share a bit
  if (random.chance(0.2)) geometry.entry_bytes = 24;
  s.border = random.chance(0.5);
  // From half full to overfull.
  const std::uint64_t room = s.window * geometry.entries_per_row;
  s.keys = std::max<std::size_t>(3, room / 2 + random.below(room));
  const std::size_t most = 150 / (s.clients * s.tasks);  // of calls: a history on one key stays short enough to judge
  s.calls = 8 + random.below(most);
  if (random.chance(0.35)) {
    s.crowded = true;
    geometry.entries_per_row = 2;
    geometry.entry_bytes = 16;
    s.window = 6 + random.below(7);
    s.keys = 2 * s.window - random.below(3);
    s.large = 0;
    s.reads = 0.6;
    s.world.wire.straggle = 0.3;
    s.calls = 320 / (s.clients * s.tasks);
  }
  if (random.chance(0.6)) {
    s.deaths = random.below(4);
    s.zombies = random.below(3);
    s.losses = random.chance(0.3) ? 0.003 : 0;
    geometry.max_sessions = 24;
    s.world.failure_timeout = (random.chance(0.5) ? 2 : 40) * base::kMillisecond;
    s.pauses =
        s.pauses && s.world.failure_timeout > 2 * base::kMillisecond;  // or a client that is merely slow is fenced
  }
  return s;
}

// From a stream of its own: what was drawn before stays as it was.
void draw_more(std::uint64_t seed, Setting& s) {
  Random random(base::mix(seed) ^ 0xfa017);
  s.new_lives = true;
  s.drift = random.chance(0.4);
  if (s.drift) {
    s.world.wire.max_offset = 3600 * base::kSecond;
    s.world.wire.max_drift_ppm = 50'000;
  }
  if (random.chance(0.2)) {
    s.restarts = 1 + random.below(2);
    s.loses_memory = random.chance(0.4);
  }
  if (random.chance(0.25)) s.revocations = 1 + random.below(3);
  if (s.restarts + s.revocations > 0) s.world.geometry.max_sessions = 24;
  s.world.device_locks = Random(base::mix(seed) ^ 0xd31ce).chance(0.3);
}

// Few keys, so that rows become empty, and calls that take as long as eras do.
void draw_clearings(Setting& s, std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0xc1ea4);
  s.clearings = 4 + random.below(5);
  // In the others entries are displaced.
  if (random.chance(0.75)) {
    s.crowded = false;
    s.keys = 2 + random.below(3);
  }
  s.calls = 30 + random.below(150 / (s.clients * s.tasks));
  // Messages straggle for as long as an era takes.
  if (random.chance(0.5)) {
    s.world.wire.straggle_delay = base::kMillisecond;
    s.world.failure_timeout = std::max(s.world.failure_timeout, 50 * s.world.wire.straggle_delay);
  }
  s.world.lease = std::max<Nanos>(60 * base::kMillisecond, 4 * s.world.failure_timeout);
  const Nanos tick = s.world.lease / 20;
  s.thought = static_cast<Nanos>((1 + random.below(8)) * s.clients * s.tasks) * tick / 2;
}

// What a seed's world does, one element after the other; any of them may be left out.
struct Play {
  std::vector<Call> filling;            // by the first client, before all else
  std::vector<std::vector<Call>> work;  // of each task
  struct Fault {
    enum class Kind : std::uint8_t {
      pause,
      death,
      stop,
      restart,
      revocation,
      split,
      scan,
      compaction,
      clearing
    } kind = Kind::pause;
    std::size_t client = 0;     // not of a restart
    std::string key = {};       // whose table is split
    Nanos when = 0, until = 0;  // `until` of pauses and stops
    std::uint64_t effects = 0;  // after which a death or a stop strikes
    fabric::sim::InFlight posted = fabric::sim::InFlight::lands;
    bool keeps_memory = true;  // a restart
    std::uint64_t count = 1;   // a scan's
    Nanos rest = 0;
  };
  std::vector<Fault> faults;
  double losses = 0;
};

// Every value is written once, so that a read tells whose it was. Keys of the first quarter hold numbers.
std::vector<Call> draw_calls(const Setting& setting, const std::vector<std::string>& keys, std::uint64_t seed,
                             std::size_t number) {
  Random random(seed);
  std::vector<Call> calls;
  for (std::size_t i = 0; i < setting.calls; ++i) {
    const std::size_t one = random.below(keys.size());
    const std::size_t index = setting.crowded ? one : std::min(one, random.below(keys.size()));
    const bool counts = index % 4 == 1;
    std::string value = std::to_string(number) + (char)('a' + i % 26) + std::to_string(i / 26);
    if (random.chance(setting.large)) value += std::string(20 + random.below(200), 'x');
    if (setting.long_values > 0 && random.chance(0.1)) value += std::string(setting.long_values, 'y');
    Call call{.key = keys[index]};
    const std::uint64_t die = random.below(100);
    if (random.chance(setting.reads)) {
      call.kind = Call::Kind::get;
    } else if (setting.clearings > 0 && random.chance(0.6)) {
      call.kind = Call::Kind::remove;  // or rows would hardly ever be empty
    } else if (counts) {
      call.kind = die < 20 ? Call::Kind::remove : Call::Kind::add;
    } else {
      call.kind = die < 30   ? Call::Kind::put
                  : die < 55 ? Call::Kind::insert
                  : die < 75 ? Call::Kind::update
                             : Call::Kind::remove;
      call.value = value;
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

// What clients do beside the calls, in the time that these take.
void draw_upkeep(const Setting& setting, std::uint64_t seed, Play& play) {
  Random yet_more(base::mix(seed) ^ 0x5ca9);
  const Nanos long_enough = static_cast<Nanos>(setting.calls) * (2 * setting.thought + 30 * base::kMicrosecond);
  for (std::size_t i = 0; i < setting.scans; ++i) {
    Play::Fault fault{.kind = Play::Fault::Kind::scan, .client = yet_more.below(setting.clients)};
    fault.when = static_cast<Nanos>(yet_more.below(static_cast<std::uint64_t>(long_enough)));
    fault.count = 1 + yet_more.below(yet_more.chance(0.9) ? 2 : 40);  // most take several steps
    fault.rest = yet_more.chance(0.5) ? static_cast<Nanos>(yet_more.below(100'000)) : 0;
    play.faults.push_back(fault);
  }
  Random still_more(base::mix(seed) ^ 0xc0de), runs(base::mix(seed) ^ 0x5e95);
  for (std::size_t i = 0; i < setting.compactions; ++i) {
    Play::Fault fault{.kind = Play::Fault::Kind::compaction, .client = still_more.below(setting.clients)};
    fault.when = static_cast<Nanos>(still_more.below(static_cast<std::uint64_t>(long_enough)));
    fault.count = runs.chance(0.5) ? 2 + runs.below(4) : 0;
    play.faults.push_back(fault);
  }
  Random once_more(base::mix(seed) ^ 0xc1ea);
  for (std::size_t i = 0; i < setting.clearings; ++i) {
    Play::Fault fault{.kind = Play::Fault::Kind::clearing, .client = once_more.below(setting.clients), .count = 64};
    fault.when = static_cast<Nanos>(once_more.below(static_cast<std::uint64_t>(long_enough / 4)));
    play.faults.push_back(fault);
  }
}

Play draw_play(const Setting& setting, const std::vector<std::string>& keys, std::uint64_t seed) {
  Random random(seed ^ 0x5eed);
  Play play;
  if (setting.crowded) {
    for (const std::string& key : keys) play.filling.push_back({.kind = Call::Kind::insert, .key = key, .value = "0"});
  }
  for (std::size_t i = 0; i < setting.clients * setting.tasks; ++i) {
    play.work.push_back(draw_calls(setting, keys, random.next(), i));
  }
  using Fault = Play::Fault;
  if (setting.pauses) {  // stopped threads, for less than it takes to be suspected
    for (int i = 0; i < 6; ++i) {
      Fault fault{.kind = Fault::Kind::pause, .client = random.below(setting.clients)};
      fault.when = static_cast<Nanos>(random.below(2'000'000));
      fault.until =
          fault.when + static_cast<Nanos>(random.below(static_cast<std::uint64_t>(setting.world.failure_timeout) / 8));
      play.faults.push_back(fault);
    }
  }
  for (std::size_t i = 0; i < setting.deaths + setting.zombies; ++i) {
    const bool dies = i < setting.deaths;
    Fault fault{.kind = dies ? Fault::Kind::death : Fault::Kind::stop, .client = random.below(setting.clients)};
    fault.effects = random.below(setting.most_effects);
    if (dies) {
      fault.posted = random.chance(0.5) ? fabric::sim::InFlight::lands : fabric::sim::InFlight::cut;
    } else {
      fault.until = static_cast<Nanos>(random.below(static_cast<std::uint64_t>(20 * setting.world.failure_timeout))) +
                    4 * base::kMillisecond;
    }
    play.faults.push_back(fault);
  }
  play.losses = setting.losses;
  Random more(base::mix(seed) ^ 0x4057);
  for (std::size_t i = 0; i < setting.restarts; ++i) {
    Fault fault{.kind = Fault::Kind::restart};
    fault.keeps_memory = !(setting.loses_memory && i + 1 == setting.restarts);
    if (setting.dies_in_service) fault.effects = more.below(40);
    fault.when = static_cast<Nanos>(i) * 30 * base::kMillisecond +
                 static_cast<Nanos>(more.below(i == 0 ? 2'000'000 : 30'000'000));
    play.faults.push_back(fault);
  }
  for (std::size_t i = 0; i < setting.revocations; ++i) {
    Fault fault{.kind = Fault::Kind::revocation, .client = more.below(setting.clients)};
    fault.when = static_cast<Nanos>(more.below(3'000'000));
    play.faults.push_back(fault);
  }
  for (std::size_t i = 0; i < setting.splits; ++i) {
    Fault fault{
        .kind = Fault::Kind::split, .client = more.below(setting.clients), .key = keys[more.below(keys.size())]};
    fault.when = static_cast<Nanos>(more.below(static_cast<std::uint64_t>(setting.thought) * setting.calls / 2 + 1));
    play.faults.push_back(fault);
  }
  draw_upkeep(setting, seed, play);
  return play;
}

// Leaves out what `part` leaves out. Returns how many elements there were.
std::size_t leave_out(Play& play, const Selection& part) {
  std::size_t element = 0;
  const auto out = [&](const auto&) { return !part.has(element++); };
  std::erase_if(play.filling, out);
  for (auto& calls : play.work) std::erase_if(calls, out);
  std::erase_if(play.faults, out);
  if (play.losses > 0 && !part.has(element++)) play.losses = 0;
  return element;
}

// A client's name, in all of its lives.
struct Person {
  Client* now = nullptr;
};

struct Job {
  World& world;
  Person& person;
  Client* client;
  std::vector<Client*>& clients;
  std::vector<Call> calls;
  bool new_lives = false;
  Nanos thought = 0;
  std::size_t done = 0;
};

task::Task<void> enter(World& world, Client& client) {
  for (int tries = 0; tries < 50 && !client.connected(); ++tries) {
    co_await world.open(client);
    if (!client.connected()) co_await client.port().sleep_for(20 * base::kMillisecond);
  }
}

task::Task<void> work(Job job) {
  const Nanos give_up = job.client->port().now() + 10 * base::kSecond;
  while (!job.client->connected() && job.client->port().now() < give_up) {
    co_await job.client->port().sleep_for(100 * base::kMicrosecond);
  }
  if (!job.client->connected()) co_return;
  for (std::size_t& i = job.done; i < job.calls.size(); ++i) {
    if (job.new_lives && !job.client->session().alive()) {
      if (job.person.now == job.client) {
        job.person.now = &job.world.add(job.client->name() + "'");
        job.clients.push_back(job.person.now);
        job.world.spawn(*job.person.now, enter(job.world, *job.person.now));
      }
      job.client = job.person.now;
      World& world = job.world;
      Client& next = *job.client;
      world.spawn(next, work(job));
      co_return;
    }
    if (job.thought > 0) {
      const std::uint64_t most = static_cast<std::uint64_t>(job.thought);
      co_await job.client->port().sleep_for(static_cast<Nanos>(job.client->port().random() % most));
    }
    co_await job.world.call(*job.client, job.calls[i], 20 * base::kSecond);
  }
}

task::Task<void> do_all(World& world, Client& client, std::vector<Call> calls) {
  for (Call& call : calls) co_await world.call(client, std::move(call), 20 * base::kSecond);
}

task::Task<void> read_all(World& world, Client& client, const std::vector<std::string>& keys) {
  for (const std::string& key : keys)
    co_await world.call(client, {.kind = Call::Kind::get, .key = key}, 20 * base::kSecond);
}

std::string describe(const Setting& s) {
  std::ostringstream text;
  if (const std::string title = title_of(s.world.geometry.protocol); !title.empty()) text << title << ": ";
  text << s.clients << " clients of " << s.tasks << " tasks of " << s.calls << " calls on " << s.keys << " keys in "
       << s.window << " rows of " << s.world.geometry.entries_per_row << " entries, " << s.world.geometry.rows_per_lock
       << " rows a lock" << (s.world.geometry.max_lock_bytes != 0 ? ", virtual locks" : "")
       << (s.world.device_locks ? ", locks in the NIC" : "") << ", " << s.large << " extents, " << s.reads << " reads"
       << (s.crowded ? ", crowded" : "") << (s.pauses ? ", pauses" : "")
       << (s.deaths > 0 ? ", " + std::to_string(s.deaths) + " deaths" : "")
       << (s.zombies > 0 ? ", " + std::to_string(s.zombies) + " zombies" : "") << (s.losses > 0 ? ", lost replies" : "")
       << (s.world.wire.tear ? "" : ", no tearing") << (s.drift ? ", clocks drift" : "")
       << (s.restarts > 0 ? ", " + std::to_string(s.restarts) + " restarts" : "")
       << (s.loses_memory ? ", the last without memory" : "")
       << (s.splits > 0
               ? ", " + std::to_string(s.splits) + " splits of " + std::to_string(s.world.geometry.tables) + " tables"
               : "")
       << (s.revocations > 0 ? ", " + std::to_string(s.revocations) + " revocations" : "");
  return text.str();
}

// With a run of so many segments, if any.
task::Task<void> compact(Client& client, std::uint64_t segments, std::uint64_t segment_bytes) {
  const std::uint64_t run = segments == 0 ? 0 : segments * segment_bytes - layout::kRunHeader;
  if (client.heap() == nullptr) co_return;
  co_await client.heap()->compact(client.port().now() + base::kSecond, true, run);
}

// Finds rows that are empty, and clears their marks.
task::Task<void> clear(World& world, Client& client, std::vector<std::string> keys, World::ScanRange part) {
  co_await world.scan(client, std::move(keys), part, 20 * base::kSecond);
  if (client.session().alive()) co_await clear_marks(client);
}

task::Task<void> sweep(Client& client) {
  fabric::Cost cost;
  (void)co_await client.table().sweep(client.port().now() + base::kSecond, cost);
  co_await keep_house(client);
}

// Faults have ended: all that the dead left must go away, with a client there that is told of them, their memory
// included: segments of their own, and blocks in the segments of the living.
void clean_up(World& world, Client& cleaner, Verdict& verdict) {
  bool taken_over = false;  // a round ago: what was taken over has been looked through by now
  for (int times = 0; times < 8; ++times) {
    const Nanos lease_over = world.network().now() + 3 * base::kSecond;
    world.run_until([&] { return world.network().now() >= lease_over; });
    std::vector<Client*> others;
    for (const auto& client : world.clients()) {
      if (client.get() == &cleaner || client->crashed() || !client->connected() || !client->session().alive()) continue;
      world.spawn(*others.emplace_back(client.get()), keep_house(*client));
    }
    bool over = world.run(cleaner, sweep(cleaner));
    for (Client* other : others) over = world.settle(*other) && over;
    if (!over || !world.quiesce()) break;
    const Survey now = survey(world);
    if (taken_over && now.unrepaired().empty() && now.blocks_lost + now.tentative == 0) return;
    taken_over = world.node().stats().segments.dead == 0;
  }
  if (world.node().stats().segments.dead > 0) verdict.wrong.push_back("for ever: segments of the dead");
  const Survey left = survey(world);
  for (const std::string& what : left.unrepaired()) verdict.wrong.push_back("for ever: " + what);
  if (left.tentative > 0) verdict.wrong.push_back("for ever: " + std::to_string(left.tentative) + " tentative slots");
}

// What came of the faults. Events of the world refer to it: it outlives the world.
struct Storm {
  bool over = false;
  bool taken_up = true;                                    // the memory, by every restart
  std::vector<std::pair<Client*, std::uint64_t>> zombies;  // and what of theirs had landed when they woke
  std::uint64_t restarts = 0, losses = 0, revocations = 0, scans = 0;

  void wake(Client& client) {
    if (client.port().paused() && client.port().cut_off()) zombies.emplace_back(&client, client.port().effects());
    client.port().resume();
  }
};

// The rows that the keys lie in. Events of the world refer to it, too.
struct Haunt {
  std::vector<std::string> keys;
  std::uint64_t first = 0, end = 0;  // positions
};

void strike(World& world, Client& client, const Play::Fault& fault, const Haunt& haunt, Storm& storm) {
  fabric::sim::SimPort& port = client.port();
  fabric::sim::Network& network = world.network();
  const Nanos now = network.now();
  switch (fault.kind) {
    case Play::Fault::Kind::pause:
      network.at(now + fault.when, [&port] { port.pause(); });
      network.at(now + fault.until, [&port] { port.resume(); });
      return;
    case Play::Fault::Kind::death:
      return port.crash_after(fault.effects, fault.posted);
    case Play::Fault::Kind::stop:
      port.pause_after(fault.effects);
      network.at(now + fault.until, [&storm, &client] { storm.wake(client); });
      return;
    case Play::Fault::Kind::restart:
      if (fault.effects > 0) {
        network.at(now + std::max<Nanos>(fault.when - 20 * base::kMicrosecond, 0), [&world, &storm, fault] {
          if (!storm.over && storm.taken_up) world.responder().die_after(fault.effects);
        });
      }
      network.at(now + fault.when, [&world, &storm, keeps = fault.keeps_memory] {
        if (storm.over || !storm.taken_up) return;
        storm.taken_up = world.restart(keeps);
        ++(keeps ? storm.restarts : storm.losses);
      });
      return;
    case Play::Fault::Kind::split:
      network.at(now + fault.when, [&world, &storm, &client, key = fault.key] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        world.spawn(client, split(client, key));
      });
      return;
    case Play::Fault::Kind::scan:
      network.at(now + fault.when, [&world, &storm, &client, &haunt, fault] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        const World::ScanRange part{.first = haunt.first, .end = haunt.end, .count = fault.count, .rest = fault.rest};
        world.spawn(client, world.scan(client, haunt.keys, part, 20 * base::kSecond));
        ++storm.scans;
      });
      return;
    case Play::Fault::Kind::compaction:
      network.at(now + fault.when, [&world, &storm, &client, fault] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        world.spawn(client, compact(client, fault.count, world.geometry().segment_bytes));
        if (fault.count == 0) return;
        // The others give up what lies in the way of the run.
        for (const auto& other : world.clients()) {
          if (other.get() == &client || other->crashed() || !other->connected() || !other->session().alive()) continue;
          world.spawn(*other, keep_house(*other));
        }
      });
      return;
    case Play::Fault::Kind::clearing:
      network.at(now + fault.when, [&world, &storm, &client, &haunt, fault] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        world.spawn(client, clear(world, client, haunt.keys, {.first = 0, .count = fault.count}));
      });
      return;
    case Play::Fault::Kind::revocation:
      network.at(now + fault.when, [&world, &storm, &client] {
        if (storm.over) return;
        ++storm.revocations;
        world.revoke(client);
      });
      return;
  }
}

// `to_the_last`: no block may be lost. Not asked of worlds in which the memory node restarts or ends sessions that it
// goes on to count.
void look(const World& world, const char* when, bool to_the_last, Verdict& verdict) {
  const Survey found = survey(world);
  for (const std::string& what : found.wrong) verdict.wrong.push_back(std::string(when) + ": " + what);
  if (to_the_last && found.blocks_lost > 0) {
    verdict.wrong.push_back(std::string(when) + ": " + std::to_string(found.blocks_lost) + " blocks are lost");
  }
}

// Arguments of simulate that choose this driver.
std::string driver_of(const Take& take) {
  return flag_of(take.protocol) + (take.scans ? "--scans " : "") + (take.compactions ? "--compactions " : "") +
         (take.clearings ? "--clearings " : "");
}

// One world, from its draw to its verdict.
class Run {
 public:
  Run(std::uint64_t seed, const Take& take)
      : take_(take), setting_(setting_of(seed, take)), world_(setting_.world), begun_(populate(seed)) {}
  Verdict judge() {
    if (play() && settle()) {
      tell_of_storm();
      read_back();
      judge_calls();
      leave();
    }
    return std::move(verdict_);
  }

 private:
  static Setting setting_of(std::uint64_t seed, const Take& take);
  Nanos populate(std::uint64_t seed);
  bool play();
  bool settle();
  void tell_of_storm();
  void read_back();
  void judge_calls();
  void leave();
  // Where messages straggle for long, a slot may stand still for too long.
  bool slow() const { return setting_.world.wire.straggle_delay >= setting_.world.failure_timeout / 16; }

  const Take& take_;
  const Setting setting_;
  Verdict verdict_;
  Storm storm_;
  Haunt haunt_;
  World world_;
  std::vector<Client*> clients_;
  std::vector<std::string> keys_;
  Play play_;
  std::vector<Person> persons_;
  std::vector<bool> sound_;  // a client without a fault is not fenced
  Client* reader_ = nullptr;
  const Nanos begun_;
};

Setting Run::setting_of(std::uint64_t seed, const Take& take) {
  Setting setting = draw(seed);
  setting.world.geometry.protocol = take.protocol;
  dialect_of(take.protocol).adapt(setting, seed);
  if (take.faults == Faults::every) draw_more(seed, setting);
  if (take.scans) setting.scans = 4 + seed % 5;
  if (take.compactions) setting.compactions = 2 + seed % 5;
  if (take.clearings) draw_clearings(setting, seed);
  setting.world.wire.seed += take.part.salt << 32;
  setting.world.wire.keep_chains = take.tells;
  return setting;
}

// Connects the clients, and draws what they do. Returns when they can begin.
Nanos Run::populate(std::uint64_t seed) {
  verdict_.setting = describe(setting_);
  for (std::size_t i = 0; i < setting_.clients; ++i) clients_.push_back(&world_.connect("client-" + std::to_string(i)));
  const std::uint64_t border = layout::kLocksPerWord * world_.geometry().rows_per_lock;
  const bool at_border = setting_.border && border + setting_.window <= world_.geometry().rows;
  const std::uint64_t first = at_border ? border - setting_.window / 2 : 10;
  keys_ = crowd(world_, first, setting_.window, setting_.keys, "");
  const std::uint64_t in_a_row = clients_[0]->table().positions() / world_.geometry().rows_per_table();
  haunt_ = {.keys = keys_, .first = first * in_a_row, .end = (first + setting_.window) * in_a_row};
  if (!dialect_of(world_.geometry().protocol).scans_by_rows()) haunt_ = {.keys = keys_, .first = 0, .end = ~0ull};
  play_ = draw_play(setting_, keys_, seed);
  verdict_.elements = leave_out(play_, take_.part);
  return world_.network().now();
}

// Has the clients work, and faults strike them. Returns false if they cannot begin.
bool Run::play() {
  if (!play_.filling.empty() && !world_.run(*clients_[0], do_all(world_, *clients_[0], std::move(play_.filling)))) {
    verdict_.wrong.push_back("the rows could not be filled in time");
    return false;
  }
  persons_.resize(clients_.size());
  for (std::size_t i = 0; i < play_.work.size(); ++i) {
    Person& person = persons_[i / setting_.tasks];
    person.now = clients_[i / setting_.tasks];
    world_.spawn(*person.now, work({.world = world_,
                                    .person = person,
                                    .client = person.now,
                                    .clients = clients_,
                                    .calls = std::move(play_.work[i]),
                                    .new_lives = setting_.new_lives,
                                    .thought = setting_.thought}));
  }
  world_.network().options().lose_reply = play_.losses;
  sound_.assign(clients_.size(), !slow() && play_.losses == 0);
  for (const Play::Fault& fault : play_.faults) {
    if (fault.kind == Play::Fault::Kind::restart) sound_.assign(clients_.size(), false);
    const bool harmless = fault.kind == Play::Fault::Kind::pause || fault.kind == Play::Fault::Kind::split ||
                          fault.kind == Play::Fault::Kind::scan || fault.kind == Play::Fault::Kind::compaction ||
                          fault.kind == Play::Fault::Kind::clearing;
    sound_[fault.client] = sound_[fault.client] && harmless;
    strike(world_, *clients_[fault.client], fault, haunt_, storm_);
  }
  return true;
}

// Waits until all have done what they do. Returns false if that does not come about.
bool Run::settle() {
  for (std::size_t i = 0; i < clients_.size(); ++i) {  // lives may begin meanwhile
    Client* client = clients_[i];
    if (setting_.zombies > 0) {
      // One that is stopped later than that goes on when nobody else has anything to do.
      world_.settle(*client, base::kSecond);
      client->port().pause_after(~0ull >> 1);
      storm_.wake(*client);
    }
    if (!world_.settle(*client)) {
      verdict_.wrong.push_back("client " + client->name() +
                               " did not come to an end within a minute of virtual time or " +
                               std::to_string(fabric::sim::kMostSteps) + " steps");
      if (take_.tells) verdict_.story = story(world_, begun_);
      for (Client* one : clients_) one->port().crash(fabric::sim::InFlight::cut);  // or nobody could say goodbye
      return false;
    }
  }
  storm_.over = true;
  if (!storm_.taken_up) {
    verdict_.wrong.push_back("the memory could not be taken up");
    return false;
  }
  return true;
}

void Run::tell_of_storm() {
  for (std::size_t i = 0; i < sound_.size(); ++i) {
    if (sound_[i] && clients_[i]->ended()) {
      verdict_.wrong.push_back("client " + clients_[i]->name() +
                               " was fenced, although nothing befell it: " + clients_[i]->session().why().message());
    }
  }
  verdict_.restarts = storm_.restarts;
  verdict_.losses = storm_.losses;
  verdict_.revocations = storm_.revocations;
  verdict_.new_lives = clients_.size() - setting_.clients;
  verdict_.zombies = storm_.zombies.size();
  for (const auto& [client, before] : storm_.zombies) verdict_.late_writes += client->port().effects() - before;
  if (verdict_.late_writes > 0)
    verdict_.wrong.push_back("what zombies wrote landed after their sessions had been ended");
  verdict_.scans = storm_.scans;
  verdict_.pages = world_.pages();
  for (const std::string& what : world_.strays()) verdict_.wrong.push_back(what);
  verdict_.budgeted = world_.budgeted();
  for (const std::string& what : world_.over_budget()) verdict_.wrong.push_back(what);
}

// Has another client read all keys, with no fault any more.
void Run::read_back() {
  world_.network().options().lose_reply = 0;
  for (Client* client : clients_) client->port().crash_after(~0ull >> 1, fabric::sim::InFlight::cut);
  reader_ = &world_.connect("reader");
  if (!world_.run(*reader_, read_all(world_, *reader_, keys_)))
    verdict_.wrong.push_back("the reader did not come to an end");
  if (take_.tells) verdict_.story = story(world_, begun_);
}

void Run::judge_calls() {
  if (const auto judged = world_.history().judge()) verdict_.wrong.push_back(*judged);
  for (const auto& [client, status] : world_.failures()) {
    ++verdict_.failures[std::string(base::name_of(status.code()))];
    // A few rows may be full, and fenced clients learn it. Nobody else is hindered by the dead.
    const bool fenced = status.code() == base::Code::unavailable || status.code() == base::Code::stale ||
                        status.code() == base::Code::unknown_outcome;
    // A completion that never comes holds up its client until the call's deadline.
    const bool held_up = status.code() == base::Code::timed_out && setting_.losses > 0;
    const bool faults = setting_.deaths + setting_.zombies + setting_.restarts + setting_.revocations > 0 ||
                        setting_.losses > 0 || slow();
    if (status.code() != base::Code::out_of_memory && !(fenced && faults) && !held_up) {
      verdict_.wrong.push_back("a call failed: " + status.message());
    }
  }
}

// Cleans up, and looks at what is left when all clients have gone.
void Run::leave() {
  if (!world_.quiesce()) verdict_.wrong.push_back("verbs are under way for ever");
  clean_up(world_, *reader_, verdict_);
  const bool to_the_last = setting_.restarts + setting_.revocations == 0;
  look(world_, "with all clients there", to_the_last, verdict_);
  for (Client* client : clients_) {
    if (!client->connected()) continue;
    if (client->heap() != nullptr) verdict_.emptied += client->heap()->usage().emptied;
    verdict_.marks += client->table().marks();
    verdict_.repairs += session::marks_of(client->session(), client->table().repairer());
    verdict_.effects += client->port().effects();
    if (!client->crashed()) world_.disconnect(*client);
  }
  verdict_.repairs += session::marks_of(reader_->session(), reader_->table().repairer());
  verdict_.marks += reader_->table().marks();
  world_.disconnect(*reader_);
  look(world_, "when all had gone", to_the_last, verdict_);
  verdict_.calls = world_.history().size();
  verdict_.trace_hash = world_.network().trace().hash();
}

}  // namespace

std::vector<std::string> crowd(const World& world, std::uint64_t first, std::uint64_t rows, std::size_t count,
                               const std::string& prefix) {
  const Dialect& dialect = dialect_of(world.geometry().protocol);
  FARPOOL_CHECK(rows >= 2 && first + rows <= world.geometry().rows_per_table());  // or there are no such keys
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; keys.size() < count; ++i) {
    std::string key = prefix + std::to_string(i);
    if (dialect.within(world, key, first, rows)) keys.push_back(std::move(key));
  }
  return keys;
}

Verdict run_swarm(std::uint64_t seed, const Take& take) {
  const LastWords words(driver_of(take) + "--seed " + std::to_string(seed) + " --only " + describe(take.part));
  return Run(seed, take).judge();
}

std::string explain(std::uint64_t seed, const ShrinkBudget& budget, const Take& take) {
  return explain(driver_of(take), seed, budget, [seed, take](const Selection& part, bool tells) -> Told {
    return run_swarm(seed, {.part = part,
                            .tells = tells,
                            .protocol = take.protocol,
                            .scans = take.scans,
                            .compactions = take.compactions,
                            .clearings = take.clearings});
  });
}

// Stale extents belong to no protocol: eras keep a block as long as a client that read its address may still follow it.
std::vector<std::string> never_reached(const index::Marks& marks, layout::Protocol protocol, bool scans) {
  const std::string_view owner = protocols::of(protocol).name();
  return base::never_counted(index::kMarks, marks, [&](const base::Count<index::Marks>& count) {
    return count.owner == owner && (scans || !count.by_scans) && dialect_of(protocol).comes_to(count.value);
  });
}

// Waits for a lease are rare, and what is quarantined is a fault.
std::vector<std::string> never_reached(const session::RepairMarks& marks) {
  return base::never_counted(session::kRepairMarks, marks, [](const base::Count<session::RepairMarks>& count) {
    return count.value != &session::RepairMarks::lease_waits && count.value != &session::RepairMarks::quarantined;
  });
}

}  // namespace farpool::sim
