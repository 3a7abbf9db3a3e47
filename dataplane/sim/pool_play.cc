// SPDX-License-Identifier: Apache-2.0
#include "sim/pool_play.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "client/eviction.h"
#include "sim/dialect.h"

namespace farpool::sim {
namespace {

using base::kMillisecond;
using base::kSecond;
using base::Random;

// Where keys move, memory is lost, too: with keys that have not left, or with keys that have arrived.
void lose_memory(PoolSetting& s, std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0x105e5);
  if (s.moves > 0 && random.chance(0.3)) s.losses_of_some = 1 + random.below(2);
}

constexpr std::size_t kBallastBytes = 30'000;
constexpr std::size_t kBallastOfANode = 96;  // keys, more than a node has room for

std::string ballast_named(std::size_t client, std::size_t index) {
  return "ballast-" + std::to_string(client) + "-" + std::to_string(index);
}

// Some pools are filled. What nobody may remove, or what clients hold that have died or stand still, could also be what
// no move finds room for.
void fill(PoolSetting& s, std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0xf011);
  if (!random.chance(0.2) || s.geometry.tables > 16) return;  // so many tables leave no room for ballast
  s.eviction = static_cast<v1alpha1::Eviction>(random.below(v1alpha1::Eviction_ARRAYSIZE));
  s.ballast = kBallastOfANode * s.nodes / s.clients;
  if (!client::EvictionPolicy::of(s.eviction).allows(index::kNoExpiry)) s.moves = 0;
}

PoolSetting draw(std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0x900150);
  PoolSetting s;
  s.nodes = 2 + random.below(3);
  while (1u << s.depth < s.nodes) ++s.depth;
  s.depth += random.below(2) == 0 ? 0 : 2;  // several entries share a table
  s.clients = 2 + random.below(3);
  s.late_comers = random.below(3);
  s.tasks = 1 + random.below(4);
  s.keys = 3 * s.nodes + random.below(12);
  s.calls = 6 + random.below(160 / (s.clients * s.tasks));
  s.large = random.chance(0.3) ? 0.6 : 0.15;
  s.deaths = random.below(4);
  s.stops = random.below(3);
  s.restarts = random.below(3);
  s.losses = random.chance(0.3) ? 1 : 0;
  s.epochs = random.below(3);
  s.lose_reply = random.chance(0.3) ? 0.003 : 0;
  s.horizon = (random.chance(0.5) ? 10 : 200) * kMillisecond;
  s.wire.seed = base::mix(seed);
  s.wire.straggle = random.chance(0.3) ? 0.2 : 0.03;
  s.wire.tear = !random.chance(0.1);
  s.wire.lose_exchange = random.chance(0.2) ? 0.05 : 0;
  if (random.chance(0.4)) {
    s.wire.max_offset = 3600 * kSecond;
    s.wire.max_drift_ppm = 50'000;
  }
  // Draws from a stream of its own, so that earlier draws stay the same.
  Random more(base::mix(seed) ^ 0x5ca9);
  if (more.chance(0.3)) s.scans = 1 + more.below(3);
  Random expiry(base::mix(seed) ^ 0xe4b1);
  if (expiry.chance(0.5)) s.expiring = 1 + expiry.below(4);
  return s;
}

// Every value is written once, so that a read tells which write it saw. Every fourth key holds numbers.
std::vector<TimedCall> draw_steps(const PoolSetting& setting, std::uint64_t seed) {
  Random random(seed);
  std::vector<TimedCall> steps;
  for (std::size_t i = 0; i < setting.calls; ++i) {
    const std::size_t index = std::min(random.below(setting.keys), random.below(setting.keys));
    const bool counts = index % 4 == 1;
    Call call{.key = key_named(index), .value = std::to_string(seed % 100'000'000) + "." + std::to_string(i)};
    if (random.chance(setting.large)) call.value += std::string(20 + random.below(3000), 'x');
    const std::uint64_t die = random.below(100);
    if (random.chance(setting.reads)) {
      call.kind = Call::Kind::get;
    } else if (counts) {
      call.kind = die < 20 ? Call::Kind::remove : Call::Kind::add;
    } else {
      call.kind = die < 40   ? Call::Kind::put
                  : die < 60 ? Call::Kind::insert
                  : die < 80 ? Call::Kind::update
                             : Call::Kind::remove;
    }
    const auto most = static_cast<std::uint64_t>(2 * setting.horizon) / setting.calls;
    const Nanos rest = random.chance(0.5) ? static_cast<Nanos>(random.below(most + 1)) : 0;
    steps.push_back({std::move(call), rest});
  }
  return steps;
}

// Says whether a value expires, which matters to some policies alone.
bool draw_expires(const PoolSetting& setting, Random& random) {
  return setting.eviction != v1alpha1::EVICTION_NOEVICTION && random.chance(0.5);
}

// Ballast expires under every policy that goes by that, or there would be nothing to evict.
std::vector<TimedCall> draw_ballast(const PoolSetting& setting, std::size_t client, Random& random) {
  std::vector<TimedCall> steps;
  for (std::size_t i = 0; i < setting.ballast; ++i) {
    Call put{.kind = Call::Kind::put,
             .key = ballast_named(client, i),
             .value = std::to_string(client) + "." + std::to_string(i)};
    put.value += std::string(kBallastBytes + random.below(2000), 'x');
    put.expires = setting.eviction != v1alpha1::EVICTION_NOEVICTION;
    steps.push_back({.call = std::move(put)});
    if (random.chance(0.2)) {
      const auto kind = random.chance(0.2) ? Call::Kind::remove : Call::Kind::get;
      steps.push_back({.call = {.kind = kind, .key = ballast_named(client, random.below(i + 1))}});
    }
  }
  return steps;
}

PoolTasks draw_tasks(const PoolSetting& setting, Random& random) {
  PoolTasks tasks;
  for (std::size_t i = 0; i < setting.tasks; ++i) tasks.push_back(draw_steps(setting, random.next()));
  return tasks;
}

}  // namespace

PoolSetting draw_pool(std::uint64_t seed, layout::Protocol protocol) {
  PoolSetting setting = draw(seed);
  setting.geometry.protocol = protocol;
  dialect_of(protocol).adapt(setting, seed);
  fill(setting, seed);
  lose_memory(setting, seed);
  return setting;
}

std::string describe(const PoolSetting& s) {
  const auto some = [](std::uint64_t count, const char* what) {
    return count == 0 ? std::string() : ", " + std::to_string(count) + " " + what;
  };
  const std::string title = title_of(s.geometry.protocol);
  return std::to_string(s.nodes) + " memory nodes under a directory of depth " + std::to_string(s.depth) + ", " +
         std::to_string(s.clients) + " clients" + some(s.late_comers, "late comers") + ", each of " +
         std::to_string(s.tasks) + " tasks of " + std::to_string(s.calls) + " calls, on " + std::to_string(s.keys) +
         " keys" + some(s.deaths, "deaths") + some(s.stops, "stops") + some(s.restarts, "restarts") +
         some(s.losses + s.losses_of_some, "losses of memory") + some(s.epochs, "more epochs") +
         some(s.moves, "moves of parts") + some(s.wishes, "wishes for tables") + some(s.scans, "scans") +
         some(s.expiring, "keys of each client that expire") +
         (s.ballast == 0 ? "" : ", filled under " + std::string(client::EvictionPolicy::of(s.eviction).name())) +
         (title.empty()
              ? ""
              : ", " + title + " with room for " + std::to_string(s.geometry.tables) + " tables at each node") +
         (s.lose_reply > 0 ? ", lost replies" : "") + (s.wire.lose_exchange > 0 ? ", lost handshakes" : "") +
         (s.wire.max_drift_ppm > 0 ? ", clocks drift" : "");
}

std::string key_named(std::size_t index) { return "key-" + std::to_string(index); }

std::vector<std::string> keys_of(const PoolSetting& setting) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < setting.keys; ++i) keys.push_back(key_named(i));
  for (std::size_t client = 0; client < setting.clients; ++client) {
    for (std::size_t i = 0; i < setting.ballast; ++i) keys.push_back(ballast_named(client, i));
  }
  return keys;
}

PoolPlay draw_pool_play(const PoolSetting& setting, std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0x57041);
  PoolPlay play;
  for (std::size_t i = 0; i < setting.clients; ++i) play.clients.push_back(draw_tasks(setting, random));
  const auto some = [&](Nanos most) { return static_cast<Nanos>(random.below(static_cast<std::uint64_t>(most))); };
  for (std::size_t i = 0; i < setting.deaths; ++i) {
    PoolFault death{.kind = PoolFault::Kind::death, .whom = random.below(setting.clients)};
    death.effects = random.below(setting.most_effects);
    if (random.chance(0.5)) death.posted = fabric::sim::InFlight::cut;
    play.faults.push_back(std::move(death));
  }
  for (std::size_t i = 0; i < setting.stops; ++i) {
    PoolFault stop{.kind = PoolFault::Kind::stop, .whom = random.below(setting.clients)};
    stop.effects = random.below(setting.most_effects);
    stop.when = some(3 * kPoolLease);
    play.faults.push_back(std::move(stop));
  }
  for (std::size_t i = 0; i < setting.restarts + setting.losses; ++i) {
    PoolFault fault{.kind = i < setting.restarts ? PoolFault::Kind::restart : PoolFault::Kind::loss,
                    .whom = random.below(setting.nodes)};
    fault.when = some(setting.horizon);
    play.faults.push_back(std::move(fault));
  }
  for (std::size_t i = 0; i < setting.epochs; ++i) {
    play.faults.push_back({.kind = PoolFault::Kind::epoch, .when = some(setting.horizon)});
  }
  for (std::size_t i = 0; i < setting.late_comers; ++i) {
    PoolFault arrival{.kind = PoolFault::Kind::arrival, .when = some(setting.horizon)};
    arrival.tasks = draw_tasks(setting, random);
    play.faults.push_back(std::move(arrival));
  }
  for (std::size_t i = 0; i < setting.moves; ++i) {
    PoolFault move{.kind = PoolFault::Kind::move, .whom = random.below(setting.nodes), .when = some(setting.horizon)};
    move.effects = random.next();
    play.faults.push_back(std::move(move));
  }
  for (std::size_t i = 0; i < setting.wishes; ++i) {
    PoolFault wish{.kind = PoolFault::Kind::wish, .when = some(setting.horizon)};
    wish.effects = std::uint64_t{1} << random.below(setting.geometry.tables > 16 ? 8 : 5);
    play.faults.push_back(std::move(wish));
  }
  // Draws from a stream of its own, so that earlier draws stay the same.
  Random more(base::mix(seed) ^ 0x1057);
  for (std::size_t i = 0; i < setting.losses_of_some; ++i) {
    PoolFault loss{.kind = PoolFault::Kind::loss, .whom = more.below(setting.nodes)};
    loss.when = static_cast<Nanos>(more.below(static_cast<std::uint64_t>(setting.horizon)));
    play.faults.push_back(std::move(loss));
  }
  Random full(base::mix(seed) ^ 0xba11a57);
  for (std::size_t i = 0; i < setting.clients && setting.ballast > 0; ++i) {
    for (auto& steps : play.clients[i]) {
      for (TimedCall& step : steps) {
        step.call.expires = step.call.kind == Call::Kind::put && draw_expires(setting, full);
      }
    }
    play.clients[i].push_back(draw_ballast(setting, i, full));
  }
  return play;
}

std::size_t leave_out(PoolPlay& play, const Selection& part) {
  std::size_t element = 0;
  const auto out = [&](const auto&) { return !part.has(element++); };
  const auto thin = [&out](PoolTasks& tasks) {
    for (auto& steps : tasks) std::erase_if(steps, out);
  };
  for (PoolTasks& tasks : play.clients) thin(tasks);
  for (PoolFault& fault : play.faults) thin(fault.tasks);
  std::erase_if(play.faults, out);
  return element;
}

}  // namespace farpool::sim
