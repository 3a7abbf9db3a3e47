// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm_play.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "sim/dialect.h"

namespace farpool::sim {
namespace {

using base::Random;

SwarmSetting draw(std::uint64_t seed) {
  Random random(seed * 2 + 1);
  SwarmSetting s;
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
void draw_more(std::uint64_t seed, SwarmSetting& s) {
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
void draw_clearings(SwarmSetting& s, std::uint64_t seed) {
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

// Every value is written once, so that a read tells whose it was. Keys of the first quarter hold numbers.
std::vector<Call> draw_calls(const SwarmSetting& setting, const std::vector<std::string>& keys, std::uint64_t seed,
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
void draw_upkeep(const SwarmSetting& setting, std::uint64_t seed, SwarmPlay& play) {
  Random yet_more(base::mix(seed) ^ 0x5ca9);
  const Nanos long_enough = static_cast<Nanos>(setting.calls) * (2 * setting.thought + 30 * base::kMicrosecond);
  for (std::size_t i = 0; i < setting.scans; ++i) {
    SwarmPlay::Fault fault{.kind = SwarmPlay::Fault::Kind::scan, .client = yet_more.below(setting.clients)};
    fault.when = static_cast<Nanos>(yet_more.below(static_cast<std::uint64_t>(long_enough)));
    fault.count = 1 + yet_more.below(yet_more.chance(0.9) ? 2 : 40);  // most take several steps
    fault.rest = yet_more.chance(0.5) ? static_cast<Nanos>(yet_more.below(100'000)) : 0;
    play.faults.push_back(fault);
  }
  Random still_more(base::mix(seed) ^ 0xc0de), runs(base::mix(seed) ^ 0x5e95);
  for (std::size_t i = 0; i < setting.compactions; ++i) {
    SwarmPlay::Fault fault{.kind = SwarmPlay::Fault::Kind::compaction, .client = still_more.below(setting.clients)};
    fault.when = static_cast<Nanos>(still_more.below(static_cast<std::uint64_t>(long_enough)));
    fault.count = runs.chance(0.5) ? 2 + runs.below(4) : 0;
    play.faults.push_back(fault);
  }
  Random once_more(base::mix(seed) ^ 0xc1ea);
  for (std::size_t i = 0; i < setting.clearings; ++i) {
    SwarmPlay::Fault fault{
        .kind = SwarmPlay::Fault::Kind::clearing, .client = once_more.below(setting.clients), .count = 64};
    fault.when = static_cast<Nanos>(once_more.below(static_cast<std::uint64_t>(long_enough / 4)));
    play.faults.push_back(fault);
  }
}

}  // namespace

SwarmSetting draw_swarm_setting(std::uint64_t seed, const Take& take) {
  SwarmSetting setting = draw(seed);
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

std::string describe(const SwarmSetting& s) {
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

SwarmPlay draw_swarm_play(const SwarmSetting& setting, const std::vector<std::string>& keys, std::uint64_t seed) {
  Random random(seed ^ 0x5eed);
  SwarmPlay play;
  if (setting.crowded) {
    for (const std::string& key : keys) play.filling.push_back({.kind = Call::Kind::insert, .key = key, .value = "0"});
  }
  for (std::size_t i = 0; i < setting.clients * setting.tasks; ++i) {
    play.work.push_back(draw_calls(setting, keys, random.next(), i));
  }
  using Fault = SwarmPlay::Fault;
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

std::size_t leave_out(SwarmPlay& play, const Selection& part) {
  std::size_t element = 0;
  const auto out = [&](const auto&) { return !part.has(element++); };
  std::erase_if(play.filling, out);
  for (auto& calls : play.work) std::erase_if(calls, out);
  std::erase_if(play.faults, out);
  if (play.losses > 0 && !part.has(element++)) play.losses = 0;
  return element;
}

}  // namespace farpool::sim
