// SPDX-License-Identifier: Apache-2.0
// Marks of rows that have become empty are cleared, and no scan misses what is there: the rules one by one, and deaths
// after every effect. In every order: the small worlds clear-* and race-clear-*; at random: simulate --clearings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "index/protocol.h"
#include "index/table.h"
#include "protocols/protocols.h"
#include "sim/dialect.h"
#include "sim/housekeeping.h"
#include "sim/survey.h"
#include "sim/world.h"

namespace farpool::index {
namespace {

using base::Nanos;
using fabric::Cost;
using fabric::sim::InFlight;
using layout::MarkWord;
using sim::Call;
using sim::Client;
using sim::World;
using task::Task;

constexpr Nanos kPatience = 20 * base::kSecond;

class ClearingTest : public ::testing::TestWithParam<layout::Protocol> {
 protected:
  static sim::WorldOptions options() {
    sim::WorldOptions options;
    options.wire.seed = 7;
    options.geometry.protocol = GetParam();
    options.lease = 60 * base::kMillisecond;
    options.failure_timeout = 10 * base::kMillisecond;
    return options;
  }

  static void call(World& world, Client& client, Call::Kind kind, const std::string& key) {
    ASSERT_TRUE(world.run(client, world.call(client, {.kind = kind, .key = key, .value = "v"}, kPatience)));
  }
  static void put(World& world, Client& client, const std::string& key) {
    call(world, client, Call::Kind::insert, key);
  }
  static void remove(World& world, Client& client, const std::string& key) {
    call(world, client, Call::Kind::remove, key);
  }
  // Judges what the scan tells of these keys.
  static void scan(World& world, Client& client, const std::vector<std::string>& keys) {
    ASSERT_TRUE(world.run(client, world.scan(client, keys, {.count = 64}, kPatience)));
  }
  static void clear(World& world, Client& client) { ASSERT_TRUE(world.run(client, sim::clear_marks(client))); }
  static void pass(World& world, Nanos time) {
    const Nanos then = world.network().now() + time;
    world.run_until([&] { return world.network().now() >= then; });
  }
  static std::uint64_t set_marks(const World& world) {
    const layout::Geometry& g = world.geometry();
    std::uint64_t count = 0;
    for (std::uint64_t mark = 0; mark < g.marks(); ++mark) {
      const auto word = base::load<std::uint64_t>(world.region(layout::kTable).data() + g.mark_offset(mark));
      count += MarkWord::is_set(word) ? 1 : 0;
    }
    return count;
  }
  // Says whether the client has posted a READ of rows behind so many chains of all clients.
  static bool has_read_rows(World& world, const Client& client, std::size_t behind) {
    const auto& chains = world.network().trace().chains();
    return std::any_of(chains.begin() + static_cast<std::ptrdiff_t>(behind), chains.end(), [&](const auto& chain) {
      const auto& first = chain.verbs[0];
      return chain.client == client.index() && first.verb == fabric::Verb::read && first.at.region == layout::kTable &&
             first.at.offset < world.geometry().mark_offset(0);
    });
  }
  // Rows with entries are marked, whatever else the dead have left.
  static void expect_marked(World& world) {
    ASSERT_TRUE(world.quiesce());
    const std::string report = sim::survey(world).report();
    EXPECT_EQ(report.find("its mark says"), std::string::npos) << report;
  }
  // Memory of the dead comes back when the living keep house.
  static void expect_right(World& world) {
    ASSERT_TRUE(world.quiesce());
    constexpr std::uint64_t kOfASegment = 1000;
    if (sim::survey(world).blocks_lost > kOfASegment) {
      for (const std::string& what : sim::reclaim(world)) ADD_FAILURE() << what;
    }
    EXPECT_EQ(sim::survey(world).report(), "");
    const auto judged = world.history().judge();
    EXPECT_FALSE(judged) << *judged;
    EXPECT_TRUE(world.strays().empty());
  }
  static Task<void> insert(Client& client, std::string key, Cost& cost) {
    const auto added = co_await client.table().insert(key, "v", client.port().now() + kPatience, cost);
    EXPECT_TRUE(added.ok() && *added) << added.status().message();
  }
  static Task<void> scan_then_clear(World& world, Client& client, std::vector<std::string> keys) {
    co_await world.scan(client, std::move(keys), {.count = 64}, kPatience);
    co_await sim::clear_marks(client);
  }
  // Frames of a client that has died outlive the test.
  static Task<void> flagged(Task<void> task, std::shared_ptr<bool> over) {
    co_await std::move(task);
    *over = true;
  }
  static Task<void> sweep(Client& client) {
    Cost cost;
    (void)co_await client.table().sweep(client.port().now() + kPatience, cost);
  }
};

TEST_P(ClearingTest, OfRowsThatHaveBecomeEmpty) {
  World world(options());
  Client &a = world.connect("a"), &b = world.connect("b");
  std::vector<std::string> keys;
  for (int i = 0; i < 60; ++i) put(world, a, keys.emplace_back("k" + std::to_string(i)));
  const std::uint64_t before = set_marks(world);
  EXPECT_GT(before, 10u);
  for (std::size_t i = 1; i < keys.size(); ++i) remove(world, a, keys[i]);
  scan(world, b, keys);
  clear(world, b);
  ASSERT_TRUE(world.run_until([&] { return b.table().marks().cleared_marks == before - 1; }));
  EXPECT_EQ(set_marks(world), 1u);
  scan(world, a, keys);
  for (std::size_t i = 1; i < keys.size(); i += 2) put(world, i % 4 == 1 ? a : b, keys[i]);
  scan(world, a, keys);
  scan(world, b, keys);
  expect_right(world);
}

TEST_P(ClearingTest, ByScansThatTakeTurns) {
  World world(options());
  Client &a = world.connect("a"), &b = world.connect("b");
  for (int i = 0; i < 60; ++i) put(world, a, "k" + std::to_string(i));
  for (int i = 0; i < 60; ++i) remove(world, a, "k" + std::to_string(i));
  const std::uint64_t before = set_marks(world);
  const auto one = std::make_shared<bool>(false), other = std::make_shared<bool>(false);
  for (const auto& over : {one, other}) world.spawn(b, flagged(world.scan(b, {}, {.count = 1}, kPatience), over));
  ASSERT_TRUE(world.run_until([&] { return *one && *other; }));
  clear(world, b);
  EXPECT_EQ(b.table().marks().cleared_marks, before);
  expect_right(world);
}

TEST_P(ClearingTest, CostsAnInsertOneMessageAndNoTrip) {
  World world(options());
  Client &a = world.connect("a"), &b = world.connect("b");
  const auto costs = [&](const std::string& key) {
    pass(world, base::kMicrosecond);  // in the turn of another operation it would save that one's clear
    Cost cost;
    EXPECT_TRUE(world.run(a, insert(a, key, cost)));
    return cost;
  };
  put(world, a, "one");  // the heap is at hand
  // A key for a stretch that no other key lies in.
  std::string key;
  Cost first, known;
  for (int i = 0; i < 20 && (i == 0 || known.messages == first.messages); ++i) {
    key = "k" + std::to_string(i);
    first = costs(key);
    remove(world, a, key);
    known = costs(key);
    remove(world, a, key);
  }
  EXPECT_EQ(known.trips, first.trips);
  EXPECT_EQ(known.messages, first.messages - 1);
  for (const bool cleared : {false, true, true}) {
    pass(world, 100 * base::kMillisecond);  // eras alone cost nothing
    if (cleared) {
      scan(world, b, {});
      clear(world, b);
    }
    const Cost again = costs(key);
    EXPECT_EQ(again.trips, known.trips);
    EXPECT_EQ(again.messages, known.messages + (cleared ? 1 : 0)) << cleared;
    remove(world, a, key);
  }
}

TEST_P(ClearingTest, HasEveryClientForgetWhatItKnew) {
  World world(options());
  Client &a = world.connect("a"), &b = world.connect("b");
  put(world, a, "k");
  remove(world, a, "k");
  scan(world, b, {"k"});
  clear(world, b);
  ASSERT_EQ(b.table().marks().cleared_marks, 1u);
  put(world, a, "k");
  expect_right(world);
  scan(world, b, {"k"});
  expect_right(world);
}

TEST_P(ClearingTest, ReadsTheRowsAgain) {
  World world(options());
  Client &a = world.connect("a"), &b = world.connect("b");
  put(world, a, "k");
  remove(world, a, "k");
  scan(world, b, {"k"});
  put(world, a, "k");
  clear(world, b);
  EXPECT_EQ(b.table().marks().cleared_marks, 0u);
  EXPECT_EQ(b.table().marks().kept_marks, 1u);
  EXPECT_EQ(set_marks(world), 1u);
  scan(world, b, {"k"});
  expect_right(world);
}

// Two clients clear a mark at once. One of them has found the rows empty; the other clears the mark, and a key comes:
// the mark has been set once again, as it had been when the first one read it.
TEST_P(ClearingTest, OfTwoAtOnceKeepsAMarkSetAnew) {
  sim::WorldOptions with = options();
  with.wire.keep_chains = true;
  World world(with);
  Client &a = world.connect("a"), &b = world.connect("b"), &c = world.connect("c");
  put(world, a, "k");
  remove(world, a, "k");
  scan(world, b, {"k"});
  scan(world, c, {"k"});
  const std::size_t behind = world.network().trace().chains().size();
  world.spawn(b, sim::clear_marks(b));
  world.spawn(c, sim::clear_marks(c));
  ASSERT_TRUE(world.run_until([&] { return has_read_rows(world, b, behind) || has_read_rows(world, c, behind); }));
  const bool b_is_first = has_read_rows(world, b, behind);
  Client &first = b_is_first ? b : c, &second = b_is_first ? c : b;
  first.port().pause();
  ASSERT_TRUE(world.run_until([&] { return second.table().marks().cleared_marks == 1; }));
  put(world, a, "k");
  EXPECT_EQ(set_marks(world), 1u);
  first.port().resume();
  ASSERT_TRUE(
      world.run_until([&] { return first.table().marks().kept_marks + first.table().marks().cleared_marks > 0; }));
  EXPECT_TRUE(first.session().alive());
  EXPECT_EQ(set_marks(world), 1u);
  scan(world, c, {"k"});
  expect_right(world);
}

// A client puts a key while a mark is being cleared, and the client that clears it dies after any effect.
TEST_P(ClearingTest, DiesAfterAnyEffect) {
  std::set<bool> seen_cleared;
  for (const InFlight posted : {InFlight::cut, InFlight::lands}) {
    bool survived = false;
    for (std::uint64_t after = 0; !survived; ++after) {
      ASSERT_LT(after, 1000u);
      World world(options());
      Client &a = world.connect("a"), &b = world.connect("b");
      const std::vector<std::string> keys{"k", "stays", "l"};
      put(world, a, "stays");
      put(world, a, "k");
      remove(world, a, "k");
      b.port().crash_after(after, posted);
      world.spawn(b, scan_then_clear(world, b, keys));
      ASSERT_TRUE(world.run_until([&] { return b.crashed() || b.table().marks().cleared_marks > 0; }));
      survived = !b.crashed();
      b.port().crash_after(~0ull >> 1, InFlight::cut);
      put(world, a, "k");
      expect_marked(world);
      seen_cleared.insert(survived);
      scan(world, a, keys);
      remove(world, a, "k");
      pass(world, base::kSecond);
      Client& c = world.connect("c");
      scan(world, c, keys);
      clear(world, c);
      EXPECT_EQ(c.table().marks().cleared_marks, 1u) << after;
      put(world, a, "l");
      put(world, a, "k");
      scan(world, c, keys);
      expect_right(world);
      if (HasFailure()) FAIL() << "after " << after << (posted == InFlight::cut ? " effects, cut" : " effects, landed");
    }
  }
  EXPECT_EQ(seen_cleared.size(), 2u);
}

// A client that knows the mark dies after any effect of an insert; the mark is cleared, and others finish what it left.
TEST_P(ClearingTest, GoesOnWhenAnInsertDiesAfterAnyEffect) {
  std::uint64_t cleared = 0;
  for (const InFlight posted : {InFlight::cut, InFlight::lands}) {
    bool survived = false;
    for (std::uint64_t after = 0; !survived; ++after) {
      ASSERT_LT(after, 1000u);
      World world(options());
      Client &a = world.connect("a"), &b = world.connect("b");
      put(world, a, "k");
      remove(world, a, "k");
      a.port().crash_after(after, posted);
      auto over = std::make_shared<bool>(false);
      world.spawn(a, flagged(world.call(a, {.kind = Call::Kind::insert, .key = "k", .value = "v"}, kPatience), over));
      ASSERT_TRUE(world.run_until([&] { return a.crashed() || (*over && a.session().lane().pending() == 0); }));
      survived = !a.crashed();
      a.port().crash_after(~0ull >> 1, InFlight::cut);
      scan(world, b, {});
      clear(world, b);
      cleared += b.table().marks().cleared_marks;
      expect_marked(world);
      pass(world, base::kSecond);  // its end has been noticed
      ASSERT_TRUE(world.run(b, sweep(b)));
      expect_right(world);
      scan(world, b, {"k"});
      call(world, b, Call::Kind::get, "k");
      expect_right(world);
      if (HasFailure()) FAIL() << "after " << after << (posted == InFlight::cut ? " effects, cut" : " effects, landed");
    }
  }
  EXPECT_GT(cleared, 5u);
}

std::string name_of(const ::testing::TestParamInfo<layout::Protocol>& info) {
  return std::string(protocols::of(info.param).name());
}
std::vector<layout::Protocol> protocols_with_marks() {
  std::vector<layout::Protocol> some;
  for (const Protocol* one : protocols::all()) {
    if (sim::dialect_of(one->number()).clears()) some.push_back(one->number());
  }
  return some;
}
INSTANTIATE_TEST_SUITE_P(Protocols, ClearingTest, ::testing::ValuesIn(protocols_with_marks()), name_of);

}  // namespace
}  // namespace farpool::index
