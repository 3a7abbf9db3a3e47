// SPDX-License-Identifier: Apache-2.0
#include "sim/pools.h"

#include <algorithm>
#include <utility>

#include "client/pool.h"
#include "fabric/sim/network.h"
#include "sim/dialect.h"
#include "sim/expiry.h"
#include "sim/last_words.h"
#include "sim/pool_play.h"
#include "sim/pool_world.h"
#include "task/scope.h"

namespace farpool::sim {
namespace {

using base::kSecond;

task::Task<void> work(PoolWorld& world, PoolClient& client, std::vector<TimedCall> steps) {
  for (TimedCall& step : steps) {
    co_await world.call(client, std::move(step.call));
    if (step.rest > 0) co_await client.port->sleep_for(step.rest);
  }
}

// Looks at all keys, again and again.
task::Task<void> scan(PoolWorld& world, PoolClient& client, const PoolSetting& setting) {
  const std::vector<std::string> keys = keys_of(setting);
  for (std::size_t i = 0; i < setting.scans; ++i) {
    co_await world.scan(client, keys, 1 + 10 * i);
    co_await client.port->sleep_for(setting.horizon / 8);
  }
}

task::Task<void> repair(PoolClient& client, std::vector<std::string>& trouble) {
  trouble.clear();
  for (auto& one : co_await client.body->pool->repair(client.port->now() + 5 * kSecond)) {
    if (!one.trouble.empty()) trouble.push_back(one.node + ": " + one.trouble);
  }
}

task::Task<void> read_all(PoolWorld& world, PoolClient& client, std::vector<std::string> keys, std::uint64_t& there,
                          base::Result<std::uint64_t>& counted) {
  for (const std::string& key : keys) {
    co_await world.call(client, {.kind = Call::Kind::get, .key = key});
    const auto value = co_await client.body->pool->get(key);
    if (value.ok() && value->has_value()) ++there;
  }
  counted = co_await client.body->pool->count();
}

task::Task<void> leave(PoolClient& client) { co_await client.body->pool->close(client.port->now() + 5 * kSecond); }

PoolClient& begin(PoolWorld& world, const PoolTasks& tasks) {
  PoolClient& client = world.connect();
  for (const std::vector<TimedCall>& steps : tasks) client.body->scope.spawn(work(world, client, steps));
  return client;
}

void strike(PoolWorld& world, const PoolFault& fault, PoolVerdict& verdict) {
  fabric::sim::Network& network = world.network();
  const Nanos when = network.now() + fault.when;
  switch (fault.kind) {
    case PoolFault::Kind::death:
      return world.clients()[fault.whom]->port->crash_after(fault.effects, fault.posted);
    case PoolFault::Kind::stop: {
      fabric::sim::SimPort& port = *world.clients()[fault.whom]->port;
      port.pause_after(fault.effects);
      return network.at(when, [&port, &verdict] {
        if (port.paused()) {
          ++verdict.stops;
          verdict.zombies += port.cut_off() ? 1 : 0;
        }
        port.resume();
      });
    }
    case PoolFault::Kind::restart:
    case PoolFault::Kind::loss:
      return network.at(when, [&world, &fault] { world.kill(fault.whom, fault.kind == PoolFault::Kind::restart); });
    case PoolFault::Kind::epoch:
      return network.at(when, [&world] { world.publish(); });
    case PoolFault::Kind::arrival:
      return network.at(when, [&world, &fault] { (void)begin(world, fault.tasks); });
    case PoolFault::Kind::move:
      return network.at(when, [&world, &fault] { world.begin_move(fault.whom, fault.effects); });
    case PoolFault::Kind::wish:
      return network.at(when, [&world, &fault] { world.wish(fault.effects); });
  }
}

// Faults have ended. A client comes, repairs everything and finds everything; then all clients leave.
void look_after(PoolWorld& world, Expiry& expiry, const PoolSetting& setting) {
  const Nanos leases_over = world.network().now() + 2 * kPoolLease;
  world.run_until([&] { return world.network().now() >= leases_over; }, 3 * kPoolLease);
  PoolClient& last = world.connect();
  std::vector<std::string> trouble;
  for (int times = 0; times < 5; ++times) {
    if (!world.run(last, repair(last, trouble))) return world.wrong("repair does not end");
    if (trouble.empty()) break;
  }
  for (const std::string& what : trouble) world.wrong("for ever: " + what);
  if (!world.run_until([&] { return !world.moving(); }, 60 * kSecond)) return world.wrong("a move does not end");
  if (!world.run(last, expiry.remove_all(last))) return world.wrong("removing does not end");
  std::uint64_t there = 0;
  base::Result<std::uint64_t> counted = base::Status(base::Code::internal, "not counted");
  if (world.evicts_expiring()) world.stop_evicting();
  if (!world.run(last, read_all(world, last, keys_of(setting), there, counted), 20 * kPoolPatience)) {
    return world.wrong("reading does not end");
  }
  if (!counted.ok()) {
    world.wrong("counting: " + counted.status().message());
  } else if (*counted != there && world.exact()) {
    world.wrong(std::to_string(*counted) + " keys are counted, and " + std::to_string(there) + " are there");
  }
  if (setting.wishes > 0) world.wish(setting.geometry.tables);
  for (const auto& client : world.clients()) {
    if (client->port->crashed()) continue;
    // Others may have left splits to the last client.
    if (client.get() == &last) {
      bool ahead = false;
      for (int i = 0; i < 6 && !ahead; ++i) ahead = world.run_until([&] { return world.split_ahead(); }, 60 * kSecond);
      if (!ahead) world.wrong("tables are not split ahead");
    }
    if (!world.run(*client, leave(*client))) return world.wrong("a goodbye does not end");
    client->left = true;
  }
  for (std::string& what : world.leftovers()) world.wrong("when all have left: " + std::move(what));
  for (std::string& what : world.strays()) world.wrong("when all have left: " + std::move(what));
}

// Arguments of simulate that choose this driver.
std::string driver_of(layout::Protocol protocol) { return "--pools " + flag_of(protocol); }

}  // namespace

PoolVerdict run_pool(std::uint64_t seed, const Selection& part, bool tells, layout::Protocol protocol) {
  const LastWords words(driver_of(protocol) + "--seed " + std::to_string(seed) + " --only " + describe(part));
  PoolSetting setting = draw_pool(seed, protocol);
  setting.wire.seed += part.salt << 32;
  setting.wire.keep_chains = tells;
  PoolVerdict verdict;
  verdict.setting = describe(setting);
  PoolPlay play = draw_pool_play(setting, seed);
  verdict.elements = leave_out(play, part);
  PoolWorld world(setting, verdict);
  Expiry expiry(world, verdict, setting);
  const Nanos begun = world.network().now();
  PoolClient* first = nullptr;
  for (const PoolTasks& tasks : play.clients) {
    PoolClient& client = begin(world, tasks);
    if (first == nullptr) first = &client;
    if (setting.expiring > 0) client.body->scope.spawn(expiry.work(client, base::mix(seed + world.clients().size())));
  }
  if (setting.scans > 0) first->body->scope.spawn(scan(world, *first, setting));
  for (const PoolFault& fault : play.faults) strike(world, fault, verdict);
  world.network().options().lose_reply = setting.lose_reply;
  const Nanos storm_over = world.network().now() + std::max(setting.horizon, 3 * kPoolLease);
  const auto all_over = [&] {
    return std::all_of(world.clients().begin(), world.clients().end(),
                       [&](const auto& client) { return world.over(*client); });
  };
  world.run_until([&] { return world.network().now() >= storm_over; }, 2 * (storm_over - world.network().now()));
  world.calm();
  if (!world.run_until(all_over, static_cast<Nanos>(setting.calls + 2) * kPoolPatience)) {
    verdict.wrong.push_back("a call of somebody who lives does not end");
  }
  world.close_books();
  if (tells) verdict.story = world.story(begun);
  if (world.up() != setting.nodes) verdict.wrong.push_back("a memory node has not come back");
  if (verdict.wrong.empty()) look_after(world, expiry, setting);
  world.judge_histories();
  for (const auto& client : world.clients()) verdict.deaths += client->port->crashed() ? 1 : 0;
  world.sum_up();
  return verdict;
}

std::string explain_pool(std::uint64_t seed, const ShrinkBudget& budget, layout::Protocol protocol) {
  return explain(driver_of(protocol), seed, budget,
                 [=](const Selection& part, bool tells) -> Told { return run_pool(seed, part, tells, protocol); });
}

namespace {

struct Count {
  std::uint64_t PoolVerdict::*of;
  const char* name;
};
constexpr Count kCounts[] = {
    {&PoolVerdict::done, "calls done"},
    {&PoolVerdict::unknown, "of unknown outcome"},
    {&PoolVerdict::not_done, "not done"},
    {&PoolVerdict::deaths, "deaths"},
    {&PoolVerdict::stops, "stops"},
    {&PoolVerdict::zombies, "zombies"},
    {&PoolVerdict::restarts, "restarts of memory nodes"},
    {&PoolVerdict::losses, "losses of memory"},
    {&PoolVerdict::sources_lost, "of sources of moves under way"},
    {&PoolVerdict::targets_lost, "of targets"},
    {&PoolVerdict::epochs, "epochs"},
    {&PoolVerdict::slots_repaired, "slots repaired"},
    {&PoolVerdict::scans, "scans"},
    {&PoolVerdict::moves, "moves of parts"},
    {&PoolVerdict::moved_away, "keys moved"},
    {&PoolVerdict::expiring_found, "reads of keys that expire"},
    {&PoolVerdict::expired_missed, "of keys that have"},
    {&PoolVerdict::expired_removed, "expired keys removed"},
    {&PoolVerdict::evicted, "keys evicted"},
    {&PoolVerdict::refused, "calls refused for lack of room"},
    {&PoolVerdict::wishes, "wishes for tables"},
    {&PoolVerdict::splits_taken_over, "splits taken over"},
    {&PoolVerdict::move_waits, "waits for one"},
    {&PoolVerdict::reconnections, "tables that went on with another session"},
    {&PoolVerdict::asked_again, "changes asked again"},
};

// Says whether it may happen in such pools.
bool can_be(const Count& count, layout::Protocol protocol) {
  const layout::Shape& shape = layout::shape_of(protocol);
  if (count.of == &PoolVerdict::slots_repaired) return shape.locks;
  // Where the memory node executes operations, tables outlive their sessions.
  const bool of_lasting = count.of == &PoolVerdict::reconnections || count.of == &PoolVerdict::asked_again;
  if (of_lasting) return shape.served != nullptr;
  // They ask again until they know the outcome, but for a memory that is lost in that moment.
  const bool of_doubt = count.of == &PoolVerdict::unknown || count.of == &PoolVerdict::not_done;
  if (of_doubt && shape.served != nullptr) return false;
  if (count.of == &PoolVerdict::wishes || count.of == &PoolVerdict::splits_taken_over) return shape.most_tables > 1;
  return count.of != &PoolVerdict::move_waits;  // too rare to rely on
}

}  // namespace

void add(PoolVerdict& sum, const PoolVerdict& verdict) {
  for (const Count& count : kCounts) sum.*count.of += verdict.*count.of;
}

std::string describe(const PoolVerdict& sum) {
  std::string text;
  for (const Count& count : kCounts) {
    text += (text.empty() ? "" : ", ") + std::to_string(sum.*count.of) + " " + count.name;
  }
  return text;
}

std::vector<std::string> never_reached(const PoolVerdict& sum, layout::Protocol protocol) {
  std::vector<std::string> never;
  for (const Count& count : kCounts) {
    if (sum.*count.of == 0 && can_be(count, protocol)) never.emplace_back(count.name);
  }
  return never;
}

}  // namespace farpool::sim
