// SPDX-License-Identifier: Apache-2.0
// Who becomes the owner of a table, in the simulator's worlds.
#include "index/cuckooduo/table.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "fabric/cost.h"
#include "sim/world.h"

namespace farpool::cuckooduo {
namespace {

task::Task<void> put(sim::Client& client) {
  fabric::Cost cost;
  const auto put = co_await client.table().put(client.name(), "v", client.port().now() + base::kSecond, cost);
  EXPECT_TRUE(put.ok()) << put.status().message();
}

// All of them try to own the table, as nobody does; one gets it.
TEST(CuckooDuoTable, AClientThatTriesToOwnItCanLeave) {
  sim::WorldOptions options;
  options.geometry = {.memory_bytes = 16 << 20,
                      .table_percent = 1,
                      .entry_bytes = 64,
                      .entries_per_row = 8,
                      .rows_per_lock = 1,
                      .max_sessions = 8,
                      .slots_per_session = 2};
  sim::World world(options);
  const std::array clients{&world.connect("a"), &world.connect("b"), &world.connect("c")};
  for (sim::Client* client : clients) world.spawn(*client, put(*client));
  for (sim::Client* client : clients) ASSERT_TRUE(world.settle(*client));
  for (sim::Client* client : clients) {
    const base::Nanos before = world.network().now();
    world.disconnect(*client);
    EXPECT_LT(world.network().now() - before, options.failure_timeout / 4) << client->name();
  }
}

}  // namespace
}  // namespace farpool::cuckooduo
