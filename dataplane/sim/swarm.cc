// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "index/race/locate.h"
#include "index/rcuckoo/locate.h"
#include "node/memory_node.h"
#include "sim/survey.h"

namespace farpool::sim {
namespace {

using base::Random;

struct Setting {
  std::size_t clients = 2;
  std::size_t tasks = 1;   // of each client, at once
  std::size_t calls = 20;  // of each task
  std::size_t keys = 8;
  std::uint64_t window = 4;  // rows
  bool border = false;       // they lie where one lock word ends and the next begins
  double large = 0;          // share of values that need an extent
  double reads = 0.3;
  bool pauses = false;
  std::size_t deaths = 0;   // clients that die in the middle of their work
  std::size_t zombies = 0;  // clients that are stopped for longer than the failure timeout, and go on
  double losses = 0;        // chance that a chain's completion never comes
  bool crowded = false;     // rows almost full, all keys alike: most inserts move others, and readers look on
  WorldOptions world;
};

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
    s.pauses = s.pauses && s.world.failure_timeout > 2 * base::kMillisecond;  // or whoever is merely slow is fenced
  }
  return s;
}

// The same world in RACE's terms: a few groups, in some worlds without room for all keys.
void speak_race(Setting& s, std::uint64_t seed) {
  Random random(seed ^ 0xace);
  s.world.geometry.protocol = layout::Protocol::race;
  s.window = 2 + random.below(3);
  s.border = false;
  if (s.crowded) {
    s.window = 2;
    s.keys = 38 + random.below(6);
    s.calls = 600 / (s.clients * s.tasks);
  }
}

struct Job {
  const Setting& setting;
  World& world;
  Client& client;
  const std::vector<std::string>& keys;
  std::uint64_t seed;
  std::size_t number;
};

// Every value is written once, so that a read tells whose it was. Keys of the first quarter hold numbers.
task::Task<void> work(Job job) {
  Random random(job.seed);
  for (std::size_t i = 0; i < job.setting.calls; ++i) {
    const std::size_t one = random.below(job.keys.size());
    const std::size_t index = job.setting.crowded ? one : std::min(one, random.below(job.keys.size()));
    const bool number = index % 4 == 1;
    std::string value = std::to_string(job.number) + (char)('a' + i % 26) + std::to_string(i / 26);
    if (random.chance(job.setting.large)) value += std::string(20 + random.below(200), 'x');
    Call call{.key = job.keys[index]};
    const std::uint64_t die = random.below(100);
    if (random.chance(job.setting.reads)) {
      call.kind = Call::Kind::get;
    } else if (number) {
      call.kind = die < 20 ? Call::Kind::remove : Call::Kind::add;
    } else {
      call.kind = die < 30   ? Call::Kind::put
                  : die < 55 ? Call::Kind::insert
                  : die < 75 ? Call::Kind::update
                             : Call::Kind::remove;
      call.value = value;
    }
    co_await job.world.call(job.client, std::move(call), 20 * base::kSecond);
  }
}

task::Task<void> fill(World& world, Client& client, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    co_await world.call(client, {.kind = Call::Kind::insert, .key = key, .value = "0"}, 20 * base::kSecond);
  }
}

task::Task<void> read_all(World& world, Client& client, const std::vector<std::string>& keys) {
  for (const std::string& key : keys)
    co_await world.call(client, {.kind = Call::Kind::get, .key = key}, 20 * base::kSecond);
}

std::string describe(const Setting& s) {
  std::ostringstream text;
  if (s.world.geometry.protocol == layout::Protocol::race) text << "RACE: ";
  text << s.clients << " clients of " << s.tasks << " tasks of " << s.calls << " calls on " << s.keys << " keys in "
       << s.window << " rows of " << s.world.geometry.entries_per_row << " entries, " << s.world.geometry.rows_per_lock
       << " rows a lock" << (s.world.geometry.max_lock_bytes != 0 ? ", virtual locks" : "") << ", " << s.large
       << " extents, " << s.reads << " reads" << (s.crowded ? ", crowded" : "") << (s.pauses ? ", pauses" : "")
       << (s.deaths > 0 ? ", " + std::to_string(s.deaths) + " deaths" : "")
       << (s.zombies > 0 ? ", " + std::to_string(s.zombies) + " zombies" : "") << (s.losses > 0 ? ", lost replies" : "")
       << (s.world.wire.tear ? "" : ", no tearing");
  return text.str();
}

task::Task<void> sweep(Client& client) {
  fabric::Cost cost;
  (void)co_await client.table().repairer().sweep(client.port().now() + base::kSecond, cost);
  // Their memory is taken over, too.
  for (int ticks = 0; ticks < 8; ++ticks) {
    co_await client.heap().maintain(client.port().now() + base::kSecond);
    co_await client.port().sleep_for(client.session().grant().tick);
  }
}

// Faults have ended: all that the dead left must go away, with a client there that is told of them.
void clean_up(World& world, Client& cleaner, Verdict& verdict) {
  bool taken_over = false;  // a round ago: what was taken over has been looked through by now
  for (int times = 0; times < 8; ++times) {
    const Nanos lease_over = world.network().now() + 3 * base::kSecond;
    world.run_until([&] { return world.network().now() >= lease_over; });
    if (!world.run(cleaner, sweep(cleaner)) || !world.quiesce()) break;
    if (taken_over && survey(world).unrepaired().empty()) break;
    taken_over = world.node().stats().segments.dead == 0;
  }
  if (const std::uint64_t left = survey(world).tentative; left > 0) {
    verdict.wrong.push_back("for ever: " + std::to_string(left) + " tentative slots");
  }
  if (world.node().stats().segments.dead > 0) verdict.wrong.push_back("for ever: segments of the dead");
  for (const std::string& what : survey(world).unrepaired()) verdict.wrong.push_back("for ever: " + what);
}

void look(const World& world, const char* when, Verdict& verdict) {
  for (const std::string& what : survey(world).wrong) verdict.wrong.push_back(std::string(when) + ": " + what);
}

}  // namespace

std::vector<std::string> crowd(const World& world, std::uint64_t first, std::uint64_t rows, std::size_t count,
                               const std::string& prefix) {
  FARPOOL_CHECK(rows >= 2 && first + rows <= world.geometry().rows);  // or there are no such keys
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; keys.size() < count; ++i) {
    std::string key = prefix + std::to_string(i);
    const std::uint64_t hash = base::keyed_hash(world.table_seed(), base::bytes_of(key));
    const auto within = [&](std::uint64_t row) { return row >= first && row < first + rows; };
    bool fits = false;
    if (world.geometry().protocol == layout::Protocol::race) {
      const race::Places places = race::locate(hash, world.geometry().rows);
      fits = within(places[0].group) && within(places[1].group);
    } else {
      const auto places = rcuckoo::locate(hash, world.geometry().rows);
      fits = within(places.first) && within(places.second);
    }
    if (fits) keys.push_back(std::move(key));
  }
  return keys;
}

Verdict run_swarm(std::uint64_t seed, layout::Protocol protocol) {
  Setting setting = draw(seed);
  if (protocol == layout::Protocol::race) speak_race(setting, seed);
  Random random(seed ^ 0x5eed);
  Verdict verdict;
  verdict.setting = describe(setting);
  World world(setting.world);
  std::vector<Client*> clients;
  for (std::size_t i = 0; i < setting.clients; ++i) clients.push_back(&world.connect("client-" + std::to_string(i)));
  const std::uint64_t border = layout::kLocksPerWord * world.geometry().rows_per_lock;
  const bool at_border = setting.border && border + setting.window <= world.geometry().rows;
  const std::vector<std::string> keys =
      crowd(world, at_border ? border - setting.window / 2 : 10, setting.window, setting.keys, "");

  if (setting.crowded && !world.run(*clients[0], fill(world, *clients[0], keys))) {
    verdict.wrong.push_back("the rows could not be filled in time");
    return verdict;
  }
  std::size_t number = 0;
  for (Client* client : clients) {
    for (std::size_t i = 0; i < setting.tasks; ++i) {
      world.spawn(*client, work({setting, world, *client, keys, random.next(), number++}));
    }
  }
  if (setting.pauses) {  // stopped threads, for less than it takes to be suspected
    for (int i = 0; i < 6; ++i) {
      Client* client = clients[random.below(clients.size())];
      const Nanos when = world.network().now() + static_cast<Nanos>(random.below(2'000'000));
      const Nanos until =
          when + static_cast<Nanos>(random.below(static_cast<std::uint64_t>(setting.world.failure_timeout) / 8));
      world.network().at(when, [client] { client->port().pause(); });
      world.network().at(until, [client] { client->port().resume(); });
    }
  }
  world.network().options().lose_reply = setting.losses;
  for (std::size_t i = 0; i < setting.deaths + setting.zombies; ++i) {
    const bool dies = i < setting.deaths;
    Client* client = clients[random.below(clients.size())];
    const std::uint64_t effects = random.below(1500);
    if (dies) {
      client->port().crash_after(effects,
                                 random.chance(0.5) ? fabric::sim::InFlight::lands : fabric::sim::InFlight::cut);
    } else {
      client->port().pause_after(effects);
      const Nanos until =
          world.network().now() +
          static_cast<Nanos>(random.below(static_cast<std::uint64_t>(20 * setting.world.failure_timeout))) +
          4 * base::kMillisecond;
      world.network().at(until, [client] { client->port().resume(); });
    }
  }
  for (Client* client : clients) {
    if (setting.zombies > 0) {
      // One that is stopped later than that goes on when nobody else has anything to do.
      world.settle(*client, base::kSecond);
      client->port().pause_after(~0ull >> 1);
      client->port().resume();
    }
    if (!world.settle(*client)) {
      verdict.wrong.push_back("client " + client->name() + " did not come to an end within a minute of virtual time");
      return verdict;  // its frames are still suspended: the world's end will say so
    }
  }
  world.network().options().lose_reply = 0;
  for (Client* client : clients) client->port().crash_after(~0ull >> 1, fabric::sim::InFlight::cut);
  Client& reader = world.connect("reader");
  if (!world.run(reader, read_all(world, reader, keys))) verdict.wrong.push_back("the reader did not come to an end");

  if (const auto judged = world.history().judge()) verdict.wrong.push_back(*judged);
  for (const auto& [client, status] : world.failures()) {
    ++verdict.failures[std::string(base::name_of(status.code()))];
    // A few rows may be full, and whoever was fenced learns it. Nobody else is hindered by the dead.
    const bool fenced = status.code() == base::Code::unavailable || status.code() == base::Code::stale ||
                        status.code() == base::Code::unknown_outcome;
    // A completion that never comes holds up its client until the call's deadline.
    const bool held_up = status.code() == base::Code::timed_out && setting.losses > 0;
    const bool faults = setting.deaths + setting.zombies > 0 || setting.losses > 0;
    if (status.code() != base::Code::out_of_memory && !(fenced && faults) && !held_up) {
      verdict.wrong.push_back("a call failed: " + status.message());
    }
  }
  if (!world.quiesce()) verdict.wrong.push_back("verbs are under way for ever");
  clean_up(world, reader, verdict);
  look(world, "with all clients there", verdict);
  for (Client* client : clients) {
    add(verdict.marks, client->table().marks());
    verdict.repairs += client->table().repairer().marks();
    verdict.effects += client->port().effects();
    if (!client->crashed()) world.disconnect(*client);
  }
  verdict.repairs += reader.table().repairer().marks();
  world.disconnect(reader);
  look(world, "when all had gone", verdict);
  verdict.calls = world.history().size();
  verdict.trace_hash = world.network().trace().hash();
  return verdict;
}

void add(index::Marks& sum, const index::Marks& marks) {
  sum.slot_conflicts += marks.slot_conflicts;
  sum.rivals += marks.rivals;
  sum.removed += marks.removed;
  sum.lock_conflicts += marks.lock_conflicts;
  sum.lock_restarts += marks.lock_restarts;
  sum.torn_rows += marks.torn_rows;
  sum.stale_extents += marks.stale_extents;
  sum.changed_misses += marks.changed_misses;
  sum.escalations += marks.escalations;
  sum.failed_searches += marks.failed_searches;
  sum.explorations += marks.explorations;
  sum.displaced += marks.displaced;
  sum.multi_word_locks += marks.multi_word_locks;
}

std::string describe(const index::Marks& marks) {
  std::ostringstream text;
  text << "lock conflicts " << marks.lock_conflicts << ", restarts " << marks.lock_restarts << ", torn rows "
       << marks.torn_rows << ", stale extents " << marks.stale_extents << ", changed misses " << marks.changed_misses
       << ", escalations " << marks.escalations << ", failed searches " << marks.failed_searches << ", explorations "
       << marks.explorations << ", displaced " << marks.displaced << ", multi-word locks " << marks.multi_word_locks
       << ", slot conflicts " << marks.slot_conflicts << ", rivals " << marks.rivals << ", tentative slots removed "
       << marks.removed;
  return text.str();
}

std::string describe(const session::RepairMarks& marks) {
  std::ostringstream text;
  text << "repaired " << marks.repaired << " slots, " << marks.finished << " of them in the middle of writing, "
       << marks.unmade << " with a torn claim; complaints " << marks.complaints << ", bits released "
       << marks.bits_released << ", spared " << marks.bits_spared << ", leases stolen " << marks.leases_stolen
       << ", barriers found " << marks.barriers_found << ", living waited for " << marks.waited_for << ", quarantined "
       << marks.quarantined;
  return text.str();
}

}  // namespace farpool::sim
