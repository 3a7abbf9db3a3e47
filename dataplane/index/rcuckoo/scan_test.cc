// SPDX-License-Identifier: Apache-2.0
// Scans of a table whose entries are displaced, and of a damaged one. index/contract and sim have everything else.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/table.h"
#include "sim/world.h"

namespace farpool::rcuckoo {
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

sim::WorldOptions options() {
  sim::WorldOptions options;
  options.wire.seed = 3;
  options.geometry = {.memory_bytes = 4 << 20,
                      .table_percent = 1,
                      .entry_bytes = 16,
                      .entries_per_row = 4,
                      .rows_per_lock = 4,
                      .max_sessions = 8,
                      .slots_per_session = 4};
  return options;
}

Task<void> insert(Client* client, std::string key, std::string value) {
  Cost cost;
  const auto inserted = co_await client->table().insert(key, value, client->port().now() + kPatience, cost);
  EXPECT_TRUE(inserted.ok() && *inserted) << inserted.status().message();
}
Task<void> scan_into(Client* client, std::uint64_t position, std::uint64_t count, Result<index::Page>* into) {
  Cost cost;
  *into = co_await client->table().scan(position, count, client->port().now() + kPatience, cost);
}
Result<index::Page> scan(World& world, Client& client, std::uint64_t position, std::uint64_t count) {
  Result<index::Page> page = Status(Code::internal, "it did not come to an end");
  world.run(client, scan_into(&client, position, count, &page));
  return page;
}

// Returns the row of each key that is held in place.
std::map<std::string, std::uint64_t> rows_of(const World& world) {
  const layout::Geometry& geometry = world.geometry();
  const base::Bytes table = world.memory().subspan(geometry.at(layout::kTable).offset);
  std::map<std::string, std::uint64_t> rows;
  for (std::uint64_t row = 0; row < geometry.rows; ++row) {
    const RowView view(geometry, table.subspan(row * geometry.row_bytes(), geometry.row_bytes()));
    for (std::uint64_t slot = 0; slot < geometry.entries_per_row; ++slot) {
      const Entry entry = view.entry(slot);
      if (entry.type() == EntryType::in_place) rows[std::string(base::text_of(entry.key()))] = row;
    }
  }
  return rows;
}

// A table fills up during a scan, and entries are displaced from rows that it has yet to read and from rows that it has
// read, near and far.
TEST(RCuckooScan, GoesOnThroughDisplacements) {
  std::size_t far = 0, moved = 0;
  for (int world_number = 0; world_number < 4; ++world_number) {
    World world(options());
    const layout::Geometry& geometry = world.geometry();
    ASSERT_GT(geometry.rows, kReach);
    Client& client = world.connect("a");
    const std::uint64_t places = geometry.rows * geometry.entries_per_row;
    std::uint64_t keys = 0;
    const auto fill_to = [&](double share) {
      while (static_cast<double>(keys) < share * static_cast<double>(places)) {
        const std::string key = std::to_string(world_number) + "k" + std::to_string(keys++);
        ASSERT_TRUE(world.run(client, insert(&client, key, "v")));
      }
    };
    fill_to(0.78);
    const auto before = rows_of(world);
    ASSERT_EQ(before.size(), keys);
    std::set<std::string> told;
    double share = 0.78;
    for (std::uint64_t position = 0;; fill_to(share = std::min(0.89, share + 0.012))) {
      const auto page = scan(world, client, position, 256);
      ASSERT_TRUE(page.ok()) << page.status().message();
      for (const std::string& key : page->keys) told.insert(key);
      position = page->next;
      if (position == 0) break;
    }
    const auto after = rows_of(world);
    for (const auto& [key, row] : before) {
      EXPECT_TRUE(told.contains(key)) << key << " was in row " << row << ", and is in row " << after.at(key);
      const auto its = locate(base::keyed_hash(world.table_seed(), base::bytes_of(key)), geometry.rows);
      moved += after.at(key) != row ? 1 : 0;
      if (near(its, geometry.rows) || after.at(key) == row) continue;
      ++far;
      EXPECT_GT(after.at(key), row) << key;
    }
  }
  EXPECT_GT(moved, 100u) << "the test is too small";
  EXPECT_GT(far, 2u) << "the test is too small";
}

TEST(RCuckooScan, DamageIsSaid) {
  World world(options());
  Client& client = world.connect("a");
  ASSERT_TRUE(world.run(client, insert(&client, "key", std::string(100, 'v'))));
  ASSERT_TRUE(world.quiesce());
  // Another key in the extent.
  const auto heap = world.geometry().at(layout::kHeap);
  auto* memory = const_cast<std::byte*>(world.memory().data());
  const std::string_view all(reinterpret_cast<const char*>(memory + heap.offset), heap.bytes);
  const std::size_t at = all.find("key" + std::string(100, 'v'));
  ASSERT_NE(at, std::string_view::npos);
  memory[heap.offset + at] = std::byte{'x'};
  Result<index::Page> last = index::Page();
  for (std::uint64_t position = 0;;) {
    last = scan(world, client, position, 1000);
    if (!last.ok() || last->next == 0) break;
    position = last->next;
  }
  ASSERT_FALSE(last.ok());
  EXPECT_EQ(last.code(), Code::corrupt) << last.status().message();
}

}  // namespace
}  // namespace farpool::rcuckoo
