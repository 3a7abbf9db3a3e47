// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm_storm.h"

#include <algorithm>
#include <utility>

#include "layout/segment.h"
#include "sim/dialect.h"
#include "sim/housekeeping.h"

namespace farpool::sim {
namespace {

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

}  // namespace

void strike(World& world, Client& client, const SwarmPlay::Fault& fault, const Haunt& haunt, Storm& storm) {
  fabric::sim::SimPort& port = client.port();
  fabric::sim::Network& network = world.network();
  const Nanos now = network.now();
  switch (fault.kind) {
    case SwarmPlay::Fault::Kind::pause:
      network.at(now + fault.when, [&port] { port.pause(); });
      network.at(now + fault.until, [&port] { port.resume(); });
      return;
    case SwarmPlay::Fault::Kind::death:
      return port.crash_after(fault.effects, fault.posted);
    case SwarmPlay::Fault::Kind::stop:
      port.pause_after(fault.effects);
      network.at(now + fault.until, [&storm, &client] { storm.wake(client); });
      return;
    case SwarmPlay::Fault::Kind::restart:
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
    case SwarmPlay::Fault::Kind::split:
      network.at(now + fault.when, [&world, &storm, &client, key = fault.key] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        world.spawn(client, split(client, key));
      });
      return;
    case SwarmPlay::Fault::Kind::scan:
      network.at(now + fault.when, [&world, &storm, &client, &haunt, fault] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        const World::ScanRange part{.first = haunt.first, .end = haunt.end, .count = fault.count, .rest = fault.rest};
        world.spawn(client, world.scan(client, haunt.keys, part, 20 * base::kSecond));
        ++storm.scans;
      });
      return;
    case SwarmPlay::Fault::Kind::compaction:
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
    case SwarmPlay::Fault::Kind::clearing:
      network.at(now + fault.when, [&world, &storm, &client, &haunt, fault] {
        if (storm.over || client.crashed() || !client.connected() || !client.session().alive()) return;
        world.spawn(client, clear(world, client, haunt.keys, {.first = 0, .count = fault.count}));
      });
      return;
    case SwarmPlay::Fault::Kind::revocation:
      network.at(now + fault.when, [&world, &storm, &client] {
        if (storm.over) return;
        ++storm.revocations;
        world.revoke(client);
      });
      return;
  }
}

}  // namespace farpool::sim
