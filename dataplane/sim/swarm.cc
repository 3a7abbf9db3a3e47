// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "directory/directory.h"
#include "layout/lease.h"
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
      compaction
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
    Call call{.key = keys[index]};
    const std::uint64_t die = random.below(100);
    if (random.chance(setting.reads)) {
      call.kind = Call::Kind::get;
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
    fault.effects = random.below(1500);
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
  // In the time that the calls take.
  Random yet_more(base::mix(seed) ^ 0x5ca9);
  const Nanos long_enough = static_cast<Nanos>(setting.calls) * (2 * setting.thought + 30 * base::kMicrosecond);
  for (std::size_t i = 0; i < setting.scans; ++i) {
    Fault fault{.kind = Fault::Kind::scan, .client = yet_more.below(setting.clients)};
    fault.when = static_cast<Nanos>(yet_more.below(static_cast<std::uint64_t>(long_enough)));
    fault.count = 1 + yet_more.below(yet_more.chance(0.9) ? 2 : 40);  // most take several steps
    fault.rest = yet_more.chance(0.5) ? static_cast<Nanos>(yet_more.below(100'000)) : 0;
    play.faults.push_back(fault);
  }
  Random still_more(base::mix(seed) ^ 0xc0de);
  for (std::size_t i = 0; i < setting.compactions; ++i) {
    Fault fault{.kind = Fault::Kind::compaction, .client = still_more.below(setting.clients)};
    fault.when = static_cast<Nanos>(still_more.below(static_cast<std::uint64_t>(long_enough)));
    play.faults.push_back(fault);
  }
  return play;
}

// Leaves out what `part` leaves out. Returns how many elements there were.
std::size_t leave_out(Play& play, const Part& part) {
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

task::Task<void> compact(Client& client) { co_await client.heap().compact(client.port().now() + base::kSecond, true); }

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
        const World::Part part{.first = haunt.first, .end = haunt.end, .count = fault.count, .rest = fault.rest};
        world.spawn(client, world.scan(client, haunt.keys, part, 20 * base::kSecond));
        ++storm.scans;
      });
      return;
    case Play::Fault::Kind::compaction:
      network.at(now + fault.when, [&world, &storm, &client] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        world.spawn(client, compact(client));
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
  return flag_of(take.protocol) + (take.scans ? "--scans " : "") + (take.compactions ? "--compactions " : "");
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
  Setting setting = draw(seed);
  setting.world.geometry.protocol = take.protocol;
  dialect_of(take.protocol).adapt(setting, seed);
  if (take.faults == Faults::every) draw_more(seed, setting);
  if (take.scans) setting.scans = 4 + seed % 5;
  if (take.compactions) setting.compactions = 2 + seed % 5;
  setting.world.wire.seed += take.part.salt << 32;
  setting.world.wire.keep_chains = take.tells;
  Verdict verdict;
  verdict.setting = describe(setting);
  Storm storm;
  Haunt haunt;
  World world(setting.world);
  std::vector<Client*> clients;
  for (std::size_t i = 0; i < setting.clients; ++i) clients.push_back(&world.connect("client-" + std::to_string(i)));
  const std::uint64_t border = layout::kLocksPerWord * world.geometry().rows_per_lock;
  const bool at_border = setting.border && border + setting.window <= world.geometry().rows;
  const std::uint64_t first = at_border ? border - setting.window / 2 : 10;
  const std::vector<std::string> keys = crowd(world, first, setting.window, setting.keys, "");
  const std::uint64_t in_a_row = clients[0]->table().positions() / world.geometry().rows_per_table();
  haunt = {.keys = keys, .first = first * in_a_row, .end = (first + setting.window) * in_a_row};
  Play play = draw_play(setting, keys, seed);
  verdict.elements = leave_out(play, take.part);
  const Nanos begun = world.network().now();

  if (!play.filling.empty() && !world.run(*clients[0], do_all(world, *clients[0], std::move(play.filling)))) {
    verdict.wrong.push_back("the rows could not be filled in time");
    return verdict;
  }
  std::vector<Person> persons(clients.size());
  for (std::size_t i = 0; i < play.work.size(); ++i) {
    Person& person = persons[i / setting.tasks];
    person.now = clients[i / setting.tasks];
    world.spawn(*person.now, work({.world = world,
                                   .person = person,
                                   .client = person.now,
                                   .clients = clients,
                                   .calls = std::move(play.work[i]),
                                   .new_lives = setting.new_lives,
                                   .thought = setting.thought}));
  }
  world.network().options().lose_reply = play.losses;
  // A client without a fault is not fenced. Where messages straggle for long, a slot may stand still for too long.
  const bool slow = setting.world.wire.straggle_delay >= setting.world.failure_timeout / 16;
  std::vector<bool> sound(clients.size(), !slow && play.losses == 0);
  for (const Play::Fault& fault : play.faults) {
    if (fault.kind == Play::Fault::Kind::restart) sound.assign(clients.size(), false);
    const bool harmless = fault.kind == Play::Fault::Kind::pause || fault.kind == Play::Fault::Kind::split ||
                          fault.kind == Play::Fault::Kind::scan || fault.kind == Play::Fault::Kind::compaction;
    sound[fault.client] = sound[fault.client] && harmless;
    strike(world, *clients[fault.client], fault, haunt, storm);
  }
  for (std::size_t i = 0; i < clients.size(); ++i) {  // lives may begin meanwhile
    Client* client = clients[i];
    if (setting.zombies > 0) {
      // One that is stopped later than that goes on when nobody else has anything to do.
      world.settle(*client, base::kSecond);
      client->port().pause_after(~0ull >> 1);
      storm.wake(*client);
    }
    if (!world.settle(*client)) {
      verdict.wrong.push_back("client " + client->name() +
                              " did not come to an end within a minute of virtual time or " +
                              std::to_string(fabric::sim::kMostSteps) + " steps");
      if (take.tells) verdict.story = story(world, begun);
      for (Client* one : clients) one->port().crash(fabric::sim::InFlight::cut);  // or nobody could say goodbye
      return verdict;
    }
  }
  storm.over = true;
  if (!storm.taken_up) {
    verdict.wrong.push_back("the memory could not be taken up");
    return verdict;
  }
  for (std::size_t i = 0; i < sound.size(); ++i) {
    if (sound[i] && clients[i]->ended()) {
      verdict.wrong.push_back("client " + clients[i]->name() +
                              " was fenced, although nothing befell it: " + clients[i]->session().why().message());
    }
  }
  verdict.restarts = storm.restarts;
  verdict.losses = storm.losses;
  verdict.revocations = storm.revocations;
  verdict.new_lives = clients.size() - setting.clients;
  verdict.zombies = storm.zombies.size();
  for (const auto& [client, before] : storm.zombies) verdict.late_writes += client->port().effects() - before;
  if (verdict.late_writes > 0) verdict.wrong.push_back("what zombies wrote landed after their sessions had been ended");
  verdict.scans = storm.scans;
  verdict.pages = world.pages();
  for (const std::string& what : world.strays()) verdict.wrong.push_back(what);
  verdict.budgeted = world.budgeted();
  for (const std::string& what : world.over_budget()) verdict.wrong.push_back(what);
  world.network().options().lose_reply = 0;
  for (Client* client : clients) client->port().crash_after(~0ull >> 1, fabric::sim::InFlight::cut);
  Client& reader = world.connect("reader");
  if (!world.run(reader, read_all(world, reader, keys))) verdict.wrong.push_back("the reader did not come to an end");
  if (take.tells) verdict.story = story(world, begun);

  if (const auto judged = world.history().judge()) verdict.wrong.push_back(*judged);
  for (const auto& [client, status] : world.failures()) {
    ++verdict.failures[std::string(base::name_of(status.code()))];
    // A few rows may be full, and fenced clients learn it. Nobody else is hindered by the dead.
    const bool fenced = status.code() == base::Code::unavailable || status.code() == base::Code::stale ||
                        status.code() == base::Code::unknown_outcome;
    // A completion that never comes holds up its client until the call's deadline.
    const bool held_up = status.code() == base::Code::timed_out && setting.losses > 0;
    const bool faults =
        setting.deaths + setting.zombies + setting.restarts + setting.revocations > 0 || setting.losses > 0 || slow;
    if (status.code() != base::Code::out_of_memory && !(fenced && faults) && !held_up) {
      verdict.wrong.push_back("a call failed: " + status.message());
    }
  }
  if (!world.quiesce()) verdict.wrong.push_back("verbs are under way for ever");
  clean_up(world, reader, verdict);
  const bool to_the_last = setting.restarts + setting.revocations == 0;
  look(world, "with all clients there", to_the_last, verdict);
  for (Client* client : clients) {
    if (!client->connected()) continue;
    verdict.emptied += client->heap().usage().emptied;
    verdict.marks += client->table().marks();
    verdict.repairs += session::marks_of(client->session(), client->table().repairer());
    verdict.effects += client->port().effects();
    if (!client->crashed()) world.disconnect(*client);
  }
  verdict.repairs += session::marks_of(reader.session(), reader.table().repairer());
  verdict.marks += reader.table().marks();
  world.disconnect(reader);
  look(world, "when all had gone", to_the_last, verdict);
  verdict.calls = world.history().size();
  verdict.trace_hash = world.network().trace().hash();
  return verdict;
}

std::string explain(std::uint64_t seed, const ShrinkBudget& budget, const Take& take) {
  return explain(driver_of(take), seed, budget, [seed, take](const Part& part, bool tells) -> Told {
    return run_swarm(seed, {.part = part,
                            .tells = tells,
                            .protocol = take.protocol,
                            .scans = take.scans,
                            .compactions = take.compactions});
  });
}

// Stale extents belong to no protocol: eras keep a block as long as a client that read its address may still follow it.
std::vector<std::string> never_reached(const index::Marks& marks, layout::Protocol protocol, bool scans) {
  const std::string_view owner = protocols::of(protocol).name();
  return base::never_counted(index::kMarks, marks, [&](const base::Count<index::Marks>& count) {
    return count.owner == owner && (scans || !count.by_scans);
  });
}

// Waits for a lease are rare, and what is quarantined is a fault.
std::vector<std::string> never_reached(const session::RepairMarks& marks) {
  return base::never_counted(session::kRepairMarks, marks, [](const base::Count<session::RepairMarks>& count) {
    return count.value != &session::RepairMarks::lease_waits && count.value != &session::RepairMarks::quarantined;
  });
}

}  // namespace farpool::sim
