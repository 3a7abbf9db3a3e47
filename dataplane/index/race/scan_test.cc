// SPDX-License-Identifier: Apache-2.0
// Scans of tables that nobody changes, and of tables that are split between two steps. All other ways: sim.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "directory/directory.h"
#include "index/race/layout.h"
#include "index/race/table.h"
#include "sim/housekeeping.h"
#include "sim/world.h"

namespace farpool::race {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using sim::Client;
using sim::World;
using task::Task;

constexpr Nanos kPatience = 20 * base::kSecond;

sim::WorldOptions options_of(std::uint64_t tables) {
  sim::WorldOptions options;
  options.geometry = {.memory_bytes = 4 << 20,
                      .table_percent = 1,
                      .max_sessions = 8,
                      .slots_per_session = 2,
                      .protocol = layout::Protocol::race,
                      .tables = tables};
  return options;
}

Task<void> insert(Client* client, std::string key) {
  Cost cost;
  const auto inserted = co_await client->table().insert(key, "v", client->port().now() + kPatience, cost);
  EXPECT_TRUE(inserted.ok() && *inserted) << inserted.status().message();
}
Task<void> split_and_wait(Client* client, std::string key) {
  Cost cost;
  auto& table = dynamic_cast<Table&>(client->table());
  const Status status = co_await table.split(key, client->port().now() + kPatience, cost);
  EXPECT_TRUE(status.ok() || status.code() == Code::out_of_memory) << status.message();
  (void)co_await table.idle(client->port().now() + kPatience);
}
Task<void> scan_into(Client* client, std::uint64_t position, std::uint64_t count, Result<index::Page>* into,
                     Cost* cost) {
  *into = co_await client->table().scan(position, count, client->port().now() + kPatience, *cost);
}
Result<index::Page> scan(World& world, Client& client, std::uint64_t position, std::uint64_t count,
                         Cost* cost = nullptr) {
  Result<index::Page> page = Status(Code::internal, "it did not come to an end");
  Cost nobodys;
  world.run(client, scan_into(&client, position, count, &page, cost == nullptr ? &nobodys : cost));
  EXPECT_TRUE(page.ok()) << page.status().message();
  return page;
}

// Before, between and after splits, by a client that knows of them and by one that does not.
TEST(RaceScan, TellsOfEveryKey) {
  World world(options_of(8));
  Client& client = world.connect("a");
  Client& other = world.connect("b");
  std::vector<std::string> keys{"", std::string(113, 'l'), std::string(5000, 'm'), std::string(20'000, 'n'),
                                std::string(layout::kMaxKeyBytes, 'o')};
  for (int i = 0; i < 300; ++i) keys.push_back("key" + std::to_string(i));
  for (const std::string& key : keys) ASSERT_TRUE(world.run(client, insert(&client, key)));
  base::Random random(5);
  for (int splits = 0; splits < 4; ++splits) {
    for (const std::uint64_t count : {0ull, 1ull, 30ull, 1ull << 63}) {
      Client& reader = count == 30 ? other : client;
      std::map<std::string, int> times;
      bool split = false;
      std::uint64_t position = 0, steps = 0;
      do {
        const auto page = scan(world, reader, position, count);
        ASSERT_TRUE(page.ok());
        for (const std::string& key : page->keys) ++times[key];
        EXPECT_TRUE(page->next == 0 || page->next > position);
        position = page->next;
        if (!split && count <= 30 && ++steps == 7) {
          split = true;
          ASSERT_TRUE(world.run(client, split_and_wait(&client, keys[random.below(keys.size())])));
        }
      } while (position != 0);
      EXPECT_EQ(times.size(), keys.size()) << count;
      for (const std::string& key : keys) {
        EXPECT_TRUE(times.contains(key)) << count << " " << key.substr(0, 20);
        if (!split) EXPECT_EQ(times[key], 1) << count << " " << key.substr(0, 20);
      }
    }
  }
  const directory::View view(world.region(layout::kDirectory), 8);
  EXPECT_GT(view.depth(), 1u);
}

TEST(RaceScan, AnyPositionIsSafe) {
  World world(options_of(8));
  Client& client = world.connect("a");
  ASSERT_TRUE(world.run(client, insert(&client, "key")));
  ASSERT_TRUE(world.run(client, split_and_wait(&client, "key")));
  base::Random random(1);
  const std::uint64_t most = client.table().positions();
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t position = i % 4 == 0 ? most - 1 - random.below(3) : random.next() >> random.below(64);
    const auto page = scan(world, client, position, random.next() >> random.below(64));
    ASSERT_TRUE(page.ok());
    EXPECT_TRUE(page->next == 0 || (page->next > position && page->next < most));
    if (position >= most) EXPECT_TRUE(page->keys.empty() && page->next == 0);
  }
}

// One READ of groups for so many keys, and one of the blocks.
TEST(RaceScan, TakesFewTrips) {
  World world(options_of(1));
  Client& client = world.connect("a");
  Cost empty;
  ASSERT_TRUE(scan(world, client, 0, 10, &empty).ok());
  EXPECT_EQ(empty.trips, 1u) << "marks of groups alone";
  for (int i = 0; i < 600; ++i) ASSERT_TRUE(world.run(client, insert(&client, "key" + std::to_string(i))));
  Cost some;
  const auto page = scan(world, client, 0, 40, &some);
  ASSERT_TRUE(page.ok());
  EXPECT_GT(page->keys.size(), 20u);
  EXPECT_LE(some.trips, 6u);
}

}  // namespace
}  // namespace farpool::race
