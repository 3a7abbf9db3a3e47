// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "layout/lease.h"
#include "node/memory_node.h"
#include "sim/survey.h"
#include "sim/swarm.h"

namespace farpool::sim {
namespace {

task::Task<void> sweep(Client& client) {
  fabric::Cost cost;
  const auto swept = co_await client.table().repairer()->sweep(client.port().now() + 60 * base::kSecond, cost);
  EXPECT_TRUE(swept.ok()) << swept.status().message();
  if (swept.ok()) EXPECT_EQ(swept->left, 0u) << swept->trouble;
}

// More clients die at once than there are repair leases, each with a lock in a word of its own: repairs wait for each
// other, the memory node says how many are left, and in the end none is.
TEST(Backlog, MoreDeadThanRepairLeasesWaitForEachOther) {
  constexpr std::uint64_t kDead = 100, kRepairers = 6;
  static_assert(kDead > layout::kRepairLeases);
  World world({.geometry = {.memory_bytes = 8 << 20,
                            .table_percent = 10,
                            .entry_bytes = 16,
                            .entries_per_row = 2,
                            .rows_per_lock = 1,
                            .max_sessions = 128,
                            .slots_per_session = 2}});
  ASSERT_GE(world.geometry().rows, (kDead + 1) * layout::kLocksPerWord);
  for (std::uint64_t i = 0; i < kDead; ++i) {
    Client& victim = world.connect("victim-" + std::to_string(i));
    const std::string key = crowd(world, i * layout::kLocksPerWord, layout::kLocksPerWord, 1, "k")[0];
    victim.port().crash_after(13, fabric::sim::InFlight::cut);  // the twelve words of the claim, and the lock
    world.spawn(victim, world.call(victim, {.kind = Call::Kind::insert, .key = key, .value = "v"}, base::kSecond));
    ASSERT_TRUE(world.run_until([&victim] { return victim.crashed(); }));
  }
  ASSERT_TRUE(world.run_until([&] { return world.node().stats().sessions_held_by_the_dead == kDead; }));
  EXPECT_GE(survey(world).set_lock_bits, kDead);

  std::vector<Client*> repairers;
  for (std::uint64_t i = 0; i < kRepairers; ++i) repairers.push_back(&world.connect("repairer-" + std::to_string(i)));
  for (Client* client : repairers) world.spawn(*client, sweep(*client));
  for (Client* client : repairers) ASSERT_TRUE(world.settle(*client));
  EXPECT_TRUE(world.run_until([&] { return world.node().stats().sessions_held_by_the_dead == 0; }));
  session::RepairMarks repairs;
  for (Client* client : repairers) repairs += session::marks_of(client->session(), client->table().repairer());
  EXPECT_EQ(repairs.repaired, kDead);
  EXPECT_GT(repairs.lease_waits, 0u);
  for (const std::string& what : survey(world).unrepaired()) ADD_FAILURE() << what;
}

}  // namespace
}  // namespace farpool::sim
