// SPDX-License-Identifier: Apache-2.0
#include "sim/housekeeping.h"

#include <utility>

#include "node/memory_node.h"
#include "sim/survey.h"

namespace farpool::sim {

task::Task<void> keep_house(Client& client) {
  for (int ticks = 0; ticks < 8; ++ticks) {
    co_await client.table().maintain(client.port().now() + base::kSecond);
    co_await client.port().sleep_for(client.session().grant().tick);
  }
}

task::Task<void> clear_marks(Client& client) {
  const auto done = [&client] { return client.table().marks().cleared_marks + client.table().marks().kept_marks; };
  const std::uint64_t before = done();
  for (int ticks = 0; ticks < 40 && done() == before && client.session().alive(); ++ticks) {
    co_await client.table().maintain(client.port().now() + base::kSecond);
    co_await client.port().sleep_for(client.session().grant().tick);
  }
}

task::Task<void> split(Client& client, std::string key) {
  fabric::Cost cost;
  (void)co_await client.table().split(key, client.port().now() + base::kSecond, cost);
}

task::Task<void> split_no_more(Client& client) {
  (void)co_await client.table().idle(client.port().now() + 60 * base::kSecond);
}

std::vector<std::string> reclaim(World& world) {
  constexpr int kRounds = 8;
  std::vector<std::string> wrong;
  for (int round = 0;; ++round) {
    const std::uint64_t dead = world.node().stats().segments.dead, lost = survey(world).blocks_lost;
    if (dead + lost == 0) return wrong;
    if (round == kRounds) {
      if (dead > 0) wrong.push_back("for ever: " + std::to_string(dead) + " segments of the dead");
      if (lost > 0) wrong.push_back("for ever: " + std::to_string(lost) + " blocks are lost");
      return wrong;
    }
    std::vector<Client*> living;
    for (const auto& client : world.clients()) {
      if (client->crashed() || !client->connected() || !client->session().alive()) continue;
      world.spawn(*living.emplace_back(client.get()), keep_house(*client));
    }
    for (Client* client : living) {
      if (!world.settle(*client, 600 * base::kSecond)) wrong.push_back(client->name() + " keeps house for ever");
    }
    if (!world.quiesce()) wrong.emplace_back("verbs are under way for ever");
    if (!wrong.empty()) return wrong;
  }
}

}  // namespace farpool::sim
