// SPDX-License-Identifier: Apache-2.0
#include "sim/expiry.h"

#include <optional>
#include <utility>

#include "session/clock.h"
#include "sim/pool_play.h"

namespace farpool::sim {

using base::kMillisecond;
using client::Millis;
using client::NamedEdit;
using task::Task;

namespace {

// No trip of a tick takes longer here.
constexpr double kTickTrip = 50;
// Ticks of a session that lives are no further apart.
constexpr double kTicksApart = static_cast<double>(kPoolLease) / kMillisecond;
constexpr std::size_t kReads = 6;  // for each key that a client sets
// Clocks that no client has brought together yet are apart by what hosts' clocks are.
constexpr Nanos kSettled = 2 * kPoolLease;

double drift_of(const PoolSetting& setting) { return static_cast<double>(setting.wire.max_drift_ppm) / 1'000'000; }

// What clients gain between ticks, nodes may take over.
ExpiryJudge judge_of(const PoolSetting& setting) {
  const double drift = drift_of(setting), slack = static_cast<double>(session::kClockSlack) / kMillisecond;
  return {drift, 3 * drift, slack + 2 * kTickTrip + 4 * drift * kTicksApart};
}

}  // namespace

Expiry::Expiry(PoolWorld& world, PoolVerdict& verdict, const PoolSetting& setting)
    : world_(world), verdict_(verdict), setting_(setting), clocks_(judge_of(setting)) {}

Task<bool> Expiry::look_at_clock(PoolClient& client, Millis& shown) {
  const Nanos began = world_.network().now();
  const auto time = co_await client.body->pool->time();
  if (!time.ok()) co_return false;
  clocks_.note(began, world_.network().now(), *time);
  shown = *time;
  co_return true;
}

std::string Expiry::any_key(base::Random& random) const {
  auto at = keys_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random.below(keys_.size())));
  return at->first;
}

Task<void> Expiry::work(PoolClient& client, std::uint64_t seed) {
  base::Random random(seed);
  for (std::size_t i = 0; i < setting_.expiring; ++i) {
    // Not a name by a seed: those of two clients may be alike.
    co_await set(client, kExpiringKey + std::to_string(ever_.size()), random);
    for (std::size_t reads = 0; reads < kReads; ++reads) {
      co_await client.port->sleep_for(static_cast<Nanos>(random.below(500)) * kMillisecond);
      if (keys_.empty()) continue;
      std::string key = any_key(random);
      if (random.chance(0.1)) {
        co_await edit(client, std::move(key));
      } else {
        co_await read(client, std::move(key));
      }
    }
  }
}

Task<void> Expiry::set(PoolClient& client, const std::string& key, base::Random& random) {
  ever_.push_back(key);
  Key made{.expires = 0, .losses = verdict_.losses, .gone = {}};
  Millis now = 0;
  const bool known = co_await look_at_clock(client, now);
  if (!known) co_return;
  made.expires = now + 5 + random.below(3000);
  // A number, and sometimes one that no entry has room for beside its key.
  std::string value = "1000";
  if (random.chance(setting_.large)) value.insert(0, 100, '0');
  const base::Status status = co_await client.body->pool->put(key, value, made.expires);
  if (status.ok()) keys_.emplace(key, std::move(made));
}

Task<void> Expiry::read(PoolClient& client, std::string key) {
  const Nanos began = world_.network().now();
  const auto value = co_await client.body->pool->get(key);
  const auto found = keys_.find(key);
  if (value.ok() && found != keys_.end()) {
    judge(client, key, found->second, began, value->has_value());
    if (!value->has_value()) found->second.gone.insert(&client);
  }
  Millis now = 0;
  (void)co_await look_at_clock(client, now);
}

// Adds to the number. Nobody else may judge the key any more.
Task<void> Expiry::edit(PoolClient& client, std::string key) {
  const Key as = keys_.extract(key).mapped();
  const Nanos began = world_.network().now();
  NamedEdit add(NamedEdit::Name::append, "0");
  const base::Status status = co_await client.body->pool->modify(key, add);
  if (!status.ok()) co_return;
  const std::int64_t length = add.outcome().number;
  if (length != 1 && length != 5 && length != 105) {
    world_.wrong(key + " has " + std::to_string(length) + " bytes, which nobody has written");
  }
  judge(client, key, as, began, length != 1);
}

void Expiry::judge(const PoolClient& client, const std::string& key, const Key& as, Nanos began, bool there) {
  const Nanos now = world_.network().now();
  const bool settled =
      drift_of(setting_) == 0 || (now - client.since > kSettled && now - world_.last_life_began() > kSettled);
  ++(there ? verdict_.expiring_found : verdict_.expired_missed);
  const std::string of = key + ", which expires at " + std::to_string(as.expires) + ", ";
  if (there && as.gone.contains(&client)) {
    world_.wrong(of + "was gone, and is there again for the same client");
  } else if (there && settled && clocks_.is_past(as.expires, began)) {
    world_.wrong(of + "is returned by a read that began later than the bound");
  } else if (!there && as.losses == verdict_.losses && !world_.evicts_expiring() && clocks_.is_ahead(as.expires, now)) {
    world_.wrong(of + "is not returned by a read that ended earlier than the bound");
  }
}

Task<void> Expiry::remove_all(PoolClient& client) {
  for (const std::string& key : ever_) {
    const auto erased = co_await client.body->pool->erase(key);
    if (!erased.ok()) world_.wrong("removing " + key + ": " + erased.status().message());
  }
}

}  // namespace farpool::sim
