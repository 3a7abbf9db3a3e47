// SPDX-License-Identifier: Apache-2.0
// Splits: which tables, by whom, and what becomes of those of the dead. index/contract has tables that are split while
// clients work.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "directory/directory.h"
#include "index/race/layout.h"
#include "index/race/locate.h"
#include "index/race/table.h"
#include "sim/housekeeping.h"
#include "sim/survey.h"
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

Task<void> split_into(Client* client, std::string key, Status* status) {
  Cost cost;
  *status = co_await dynamic_cast<Table&>(client->table()).split(key, client->port().now() + kPatience, cost);
}

struct Splits {
  explicit Splits(const sim::WorldOptions& options) : world(options) {}

  directory::View view() const { return {world.region(layout::kDirectory), world.geometry().tables}; }
  bool splitting() const {
    for (std::uint64_t table = 0; table < view().tables(); ++table) {
      if (view().split(table) != 0) return true;
    }
    return false;
  }
  std::uint64_t leases_of_the_living() const {
    std::uint64_t held = 0;
    for (std::uint64_t i = 0; i < layout::kLeaseWords; ++i) {
      const auto word = base::load<std::uint64_t>(world.region(layout::kLeases).data() + 8 * i);
      for (const auto& client : world.clients()) {
        const bool its = client->session_id() == layout::LeaseWord::Session::get(word);
        held += layout::LeaseWord::held(word) && its && !client->crashed() ? 1 : 0;
      }
    }
    return held;
  }
  std::uint64_t tables() const {
    std::uint64_t count = 0;
    for (std::uint64_t table = 0; table < view().tables(); ++table) count += view().home(table) != 0 ? 1 : 0;
    return count;
  }
  static Task<void> insert_into(Client* client, std::string key, std::string value, Result<bool>* into) {
    Cost cost;
    *into = co_await client->table().insert(key, value, client->port().now() + kPatience, cost);
  }
  static Task<void> look_into(Client* client, std::string key, Result<std::optional<std::string>>* into) {
    Cost cost;
    *into = co_await client->table().lookup(key, client->port().now() + kPatience, cost);
  }
  Result<bool> insert(Client& client, const std::string& key, const std::string& value) {
    Result<bool> inserted = Status(Code::internal, "it did not come to an end");
    world.run(client, insert_into(&client, key, value, &inserted));
    return inserted;
  }
  std::optional<std::string> get(Client& client, const std::string& key) {
    Result<std::optional<std::string>> found = Status(Code::internal, "it did not come to an end");
    world.run(client, look_into(&client, key, &found));
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : std::nullopt;
  }
  Status split(Client& client, const std::string& key) {
    Status status(Code::internal, "it did not come to an end");
    world.run(client, split_into(&client, key, &status));
    return status;
  }
  void settle() {
    // A client that has met a split may look once more whether it continues.
    const Nanos since = world.network().now();
    EXPECT_TRUE(world.run_until(
        [&] { return world.network().now() > since + base::kSecond && !splitting() && leases_of_the_living() == 0; }));
    EXPECT_TRUE(world.quiesce());
    EXPECT_EQ(sim::survey(world).report(), "");
  }

  World world;
};

// Split ahead: no insert waits for a split before keys fill the first tables; then splits continue as usual.
TEST(RaceSplit, TablesThatAreThereFromTheStart) {
  sim::WorldOptions options = options_of(8);
  options.initial_tables = 4;
  Splits it(options);
  Client& client = it.world.connect("a");
  EXPECT_EQ(it.tables(), 4u);
  EXPECT_EQ(sim::survey(it.world).report(), "");
  const std::uint64_t load = it.world.geometry().entries() / 4;
  std::uint64_t keys = 0;
  for (; keys < load; ++keys) ASSERT_TRUE(it.insert(client, "n" + std::to_string(keys), "v").ok());
  EXPECT_EQ(client.table().marks().splits, 0u);
  EXPECT_LE(client.table().marks().stale_routes, 1u);
  while (it.insert(client, "n" + std::to_string(keys), "v").ok()) ++keys;
  it.settle();
  EXPECT_EQ(it.tables(), 8u);
  EXPECT_EQ(client.table().marks().splits, 4u);
  Client& other = it.world.connect("b");
  for (std::uint64_t i = 0; i < keys; ++i) ASSERT_EQ(it.get(other, "n" + std::to_string(i)), "v") << i;
  EXPECT_EQ(sim::survey(it.world).keys.size(), keys);
}

// However far a splitter has come when it dies, nothing is lost, and a client that needs the table finishes its split.
TEST(RaceSplit, ASplitterMayDieBehindAnyEffect) {
  std::uint64_t taken_over = 0;
  bool died = true;
  for (std::uint64_t effects = 1; died; effects += 31) {
    sim::WorldOptions options = options_of(2);
    options.failure_timeout = 2 * base::kMillisecond;
    options.lease = 100 * base::kMillisecond;
    options.wire.seed = effects;
    Splits it(options);
    Client& client = it.world.connect("a");
    Client& victim = it.world.connect("victim");
    std::map<std::string, std::string> model;
    for (int i = 0; i < 60; ++i) {
      const std::string key = "key" + std::to_string(i);
      ASSERT_TRUE(it.insert(client, key, "1").ok());
      model[key] = "1";
    }
    ASSERT_TRUE(it.world.quiesce());
    victim.port().crash_after(effects, effects % 2 == 0 ? fabric::sim::InFlight::cut : fabric::sim::InFlight::lands);
    Status ignored;
    it.world.spawn(victim, split_into(&victim, "key0", &ignored));
    it.world.run_until([&] { return victim.crashed() || victim.table().marks().splits_finished > 0; });
    died = victim.crashed();
    if (!died) break;
    EXPECT_EQ(sim::survey(it.world).report(), "") << "after " << effects;
    for (const auto& [key, value] : model) ASSERT_EQ(it.get(client, key), value) << key << " after " << effects;
    Client& late = it.world.connect("late");  // reads the directory as it is
    for (int i = 0; i < 60; i += 3) {
      const std::string key = "key" + std::to_string(i);
      Client& by = i % 2 == 0 ? client : late;
      it.world.run(by, it.world.call(by, {.kind = sim::Call::Kind::put, .key = key, .value = "2"}, kPatience));
      model[key] = "2";
    }
    EXPECT_TRUE(it.world.failures().empty()) << effects << ": " << it.world.failures().front().second.message();
    const Nanos limit = it.world.network().now() + kPatience;
    while ((it.splitting() || it.tables() < 2) && it.world.network().now() < limit) {
      ASSERT_TRUE(it.split(late, "key0").ok() || it.tables() == 2);  // a client without room asks again and again
      for (int i = 0; i < 60; ++i) (void)it.get(late, "key" + std::to_string(i));  // long enough to see it stand still
      const Nanos then = it.world.network().now() + 5 * options.failure_timeout;
      it.world.run_until([&] { return it.world.network().now() >= then; });
    }
    it.settle();
    EXPECT_EQ(it.tables(), 2u) << effects;
    for (const auto& [key, value] : model) ASSERT_EQ(it.get(client, key), value) << key << " after " << effects;
    taken_over += late.table().marks().splits_taken_over + client.table().marks().splits_taken_over;
  }
  EXPECT_GT(taken_over, 10u);
}

// A splitter dies when it has opened one side of a group and not yet the other. Clients change the shared bucket
// through the open side; a client that comes through the other side does not look at it in its old place.
TEST(RaceSplit, AGroupThatIsHalfOpenIsNotReadWhereItWas) {
  std::uint64_t met = 0;
  for (std::uint64_t effects = 1; effects < 400; ++effects) {
    sim::WorldOptions options = options_of(2);
    options.wire.seed = effects;
    Splits it(options);
    Client& client = it.world.connect("a");
    Client& victim = it.world.connect("victim");
    for (int i = 0; i < 60; ++i) ASSERT_TRUE(it.insert(client, "key" + std::to_string(i), "1").ok());
    ASSERT_TRUE(it.world.quiesce());
    victim.port().crash_after(effects, fabric::sim::InFlight::cut);
    Status ignored;
    it.world.spawn(victim, split_into(&victim, "key0", &ignored));
    ASSERT_TRUE(it.world.run_until([&] { return victim.crashed(); }));
    const std::uint64_t rows = it.world.geometry().rows_per_table();
    const auto open = [&](std::uint64_t row, std::uint64_t bucket) {
      const base::Bytes table = it.world.region(layout::kTable);
      return base::load<std::uint64_t>(table.data() + (rows + row) * kGroupBytes + bucket * kBucketBytes) != 0;
    };
    for (int i = 0; i < 60; ++i) {
      const std::string key = "key" + std::to_string(i);
      if ((directory::hash_of(it.world.pool_secret(), base::bytes_of(key)) & 1) == 0) continue;
      const Places places = locate(base::keyed_hash(it.world.table_seed(), base::bytes_of(key)), rows);
      const bool half = std::any_of(places.begin(), places.end(), [&](const Place& place) {
        return !open(place.group, 2 * place.side) && (open(place.group, 1) || open(place.group, 2 - 2 * place.side));
      });
      if (!half || client.table().marks().splits_taken_over > 0) continue;
      ++met;
      // The client's directory is led astray first.
      ASSERT_EQ(it.get(client, key), "1") << key << " after " << effects;
      EXPECT_EQ(client.table().marks().splits_taken_over, 1u) << key << " after " << effects;
    }
  }
  EXPECT_GT(met, 3u);
}

// Keys of two tables that are being split: keys that lead to each, and among them the keys that the split moves.
struct TwoTables {
  explicit TwoTables(const World& world) {
    for (int i = 0; i < 300; ++i) {
      const std::string key = "key" + std::to_string(i);
      const std::uint64_t hash = directory::hash_of(world.pool_secret(), base::bytes_of(key));
      of[hash & 1].push_back(key);
      if ((hash & 2) != 0) moving[hash & 1].push_back(key);
    }
  }
  std::vector<std::string> of[2], moving[2];
};

Task<void> read_by_turns(Client* client, std::vector<std::string> keys, const bool* enough) {
  while (!*enough) {
    for (const std::string& key : keys) {
      Cost cost;
      (void)co_await client->table().lookup(key, client->port().now() + kPatience, cost);
      co_await client->port().sleep_for(100 * base::kMicrosecond);
    }
  }
}

Task<void> put_each(Client* client, std::vector<std::string> keys, Nanos patience, std::vector<Status>* failed) {
  for (const std::string& key : keys) {
    Cost cost;
    const Result<bool> put = co_await client->table().put(key, "2", client->port().now() + patience, cost);
    if (!put.ok()) failed->push_back(put.status());
  }
}

// A pool that grows splits many tables at once, and one client meets them by turns.
TEST(RaceSplit, SplitsOfTheDeadAreTakenOverByAClientThatMeetsThemByTurns) {
  for (std::uint64_t effects = 200; effects < 260; effects += 12) {
    sim::WorldOptions options = options_of(8);
    options.geometry.table_percent = 4;
    options.initial_tables = 2;
    options.lease = 5 * base::kSecond;  // not what it is about
    options.wire.seed = effects;
    Splits it(options);
    Client& client = it.world.connect("a");
    const TwoTables keys(it.world);
    for (const auto& of : keys.of) {
      for (const std::string& key : of) ASSERT_TRUE(it.insert(client, key, "1").ok());
    }
    ASSERT_TRUE(it.world.quiesce());
    std::array<Status, 2> ignored;
    for (std::size_t table = 0; table < 2; ++table) {
      Client& victim = it.world.connect("victim" + std::to_string(table));
      victim.port().crash_after(effects, fabric::sim::InFlight::lands);
      it.world.spawn(victim, split_into(&victim, keys.of[table][0], &ignored[table]));
      ASSERT_TRUE(it.world.run_until([&] { return victim.crashed(); }));
    }
    ASSERT_NE(it.view().split(0), 0u);
    ASSERT_NE(it.view().split(1), 0u);
    bool enough = false;
    std::vector<Status> failed;
    for (const auto& moving : keys.moving) it.world.spawn(client, read_by_turns(&client, moving, &enough));
    it.world.spawn(client, put_each(&client, keys.moving[0], base::kSecond, &failed));
    const Nanos limit = it.world.network().now() + 4 * base::kSecond;
    it.world.run_until([&] { return it.world.network().now() > limit; });
    enough = true;
    ASSERT_TRUE(it.world.settle(client));
    EXPECT_TRUE(failed.empty()) << effects << ": " << failed.size() << ", " << failed.front().message();
    EXPECT_EQ(client.table().marks().splits_taken_over, 2u) << effects << ": neither waits for the other";
    it.settle();
  }
}

// Both are as deep as the directory, so both want to double it.
TEST(RaceSplit, TwoClientsSplitTwoTablesAtOnce) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    sim::WorldOptions options = options_of(8);
    options.initial_tables = 2;
    options.wire.seed = seed;
    Splits it(options);
    Client& client = it.world.connect("a");
    Client& other = it.world.connect("b");
    const TwoTables keys(it.world);
    for (const auto& of : keys.of) {
      for (std::size_t i = 0; i < 20; ++i) ASSERT_TRUE(it.insert(client, of[i], "1").ok());
    }
    std::array<Status, 2> status;
    it.world.spawn(client, split_into(&client, keys.of[0][0], &status[0]));
    it.world.spawn(other, split_into(&other, keys.of[1][0], &status[1]));
    ASSERT_TRUE(it.world.run_until([&] { return it.tables() == 4; })) << seed;
    it.settle();
    EXPECT_EQ(it.view().depth(), 2u) << seed;
    for (const auto& of : keys.of) {
      for (std::size_t i = 0; i < 20; ++i) ASSERT_EQ(it.get(other, of[i]), "1") << of[i] << " " << seed;
    }
  }
}

// A lease word tells clients apart, but not tasks: tasks of one client have it one after the other.
TEST(RaceSplit, TablesOfOneLeaseAreSplitOneAfterTheOther) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    sim::WorldOptions options = options_of(128);
    options.geometry.table_percent = 12;
    options.initial_tables = 64;
    options.wire.seed = seed;
    Splits it(options);
    ASSERT_EQ(layout::table_lease(0), layout::table_lease(63));
    Client& client = it.world.connect("a");
    std::array<std::string, 2> keys;
    for (std::uint64_t i = 0; keys[0].empty() || keys[1].empty(); ++i) {
      const std::string key = "k" + std::to_string(i);
      const std::uint64_t table = directory::hash_of(it.world.pool_secret(), base::bytes_of(key)) % 64;
      if (table == 0 || table == 63) keys[table / 63] = key;
    }
    for (const std::string& key : keys) ASSERT_TRUE(it.insert(client, key, "1").ok());
    const auto wants = [](Splits* it, Client* client, std::string key, std::uint64_t tables) -> Task<void> {
      for (Status status; it->tables() < tables; co_await client->port().sleep_for(base::kMillisecond)) {
        co_await split_into(client, key, &status);
      }
    };
    for (const std::string& key : keys) it.world.spawn(client, wants(&it, &client, key, 66));
    ASSERT_TRUE(it.world.run_until([&] { return it.tables() >= 66; })) << seed;
    it.settle();
    EXPECT_TRUE(client.session().alive()) << client.session().why().message();
    EXPECT_EQ(client.table().marks().splits, client.table().marks().splits_finished);
    for (const std::string& key : keys) EXPECT_EQ(it.get(client, key), "1");
  }
}

struct LeaseTaken {
  std::vector<session::Lease> leases;
  Result<bool> taken = Status(Code::internal, "it did not come to an end");
};

Task<void> take(Client* client, bool waits, Nanos patience, LeaseTaken* into) {
  Cost cost;
  session::Leases& leases = client->session().leases();
  const Nanos deadline = client->port().now() + patience;
  if (waits) {
    const Status status = co_await leases.take(9, into->leases, deadline, cost);
    into->taken = status.ok() ? Result<bool>(true) : Result<bool>(status);
  } else {
    into->taken = co_await leases.attempt(9, into->leases, deadline, cost);
  }
}

Task<void> give_back(Client* client, LeaseTaken* taken) {
  Cost cost;
  co_await client->session().leases().give_back(taken->leases, client->port().now() + kPatience, cost);
}

TEST(RaceSplit, ALeaseIsOneTasksAtATime) {
  Splits it(options_of(8));
  Client& client = it.world.connect("a");
  LeaseTaken first, tried, late, second;
  it.world.run(client, take(&client, true, kPatience, &first));
  ASSERT_TRUE(first.taken.ok() && *first.taken);
  it.world.run(client, take(&client, false, kPatience, &tried));
  EXPECT_TRUE(tried.taken.ok() && !*tried.taken);
  it.world.run(client, take(&client, true, base::kMillisecond, &late));
  EXPECT_EQ(late.taken.code(), Code::timed_out);
  it.world.spawn(client, take(&client, true, kPatience, &second));
  const Nanos then = it.world.network().now() + base::kMillisecond;
  it.world.run_until([&] { return it.world.network().now() > then; });
  EXPECT_EQ(second.taken.code(), Code::internal) << "it waits";
  it.world.run(client, give_back(&client, &first));
  ASSERT_TRUE(it.world.run_until([&] { return second.taken.ok(); }));
  EXPECT_EQ(it.leases_of_the_living(), 1u);
  it.world.run(client, give_back(&client, &second));
  EXPECT_EQ(it.leases_of_the_living(), 0u);
  EXPECT_TRUE(client.session().alive());
}

// No client waits for a living client's split before it starts one of its own.
TEST(RaceSplit, AClientThatMeetsASplitOfAnotherSplitsTablesMeanwhile) {
  sim::WorldOptions options = options_of(8);
  options.geometry.memory_bytes = 32 << 20;
  options.geometry.table_percent = 40;
  options.initial_tables = 2;
  options.wire.tear = false;  // the splits are long enough
  Splits it(options);
  Client& client = it.world.connect("a");
  Client& other = it.world.connect("b");
  const TwoTables keys(it.world);
  for (const auto& of : keys.of) {
    for (const std::string& key : of) ASSERT_TRUE(it.insert(client, key, "1").ok());
  }
  Status status;
  it.world.spawn(other, split_into(&other, keys.of[0][0], &status));
  ASSERT_TRUE(it.world.run_until([&] { return it.view().split(0) != 0; }));
  bool enough = false;
  it.world.spawn(client, read_by_turns(&client, keys.moving[0], &enough));
  const auto wants = [](Splits* it, Client* client, std::string key) -> Task<void> {
    for (Status status; it->view().split(1) == 0; co_await client->port().sleep_for(100 * base::kMicrosecond)) {
      co_await split_into(client, key, &status);
    }
  };
  // By then it has met the other's split for long enough to have looked at it.
  const Nanos then = it.world.network().now() + options.failure_timeout / 2;
  it.world.run_until([&] { return it.world.network().now() > then; });
  it.world.spawn(client, wants(&it, &client, keys.of[1][0]));
  ASSERT_TRUE(it.world.run_until([&] { return it.view().split(0) == 0 || it.view().split(1) != 0; }));
  EXPECT_NE(it.view().split(0), 0u) << "the other's split was waited for";
  enough = true;
  ASSERT_TRUE(it.world.settle(client));
  it.settle();
  EXPECT_EQ(client.table().marks().splits_taken_over, 0u);
}

// A reader beside a split: the test decides when each of their verbs executes.
class Steered : public ::testing::Test {
 protected:
  Steered() {
    // One key in the groups that are moved first, which no client ever wrote, and one in the groups that are moved
    // later.
    for (std::uint64_t i = 0; first_.empty() || key_.empty(); ++i) {
      std::string key = "k" + std::to_string(i);
      if ((directory::hash_of(it_.world.pool_secret(), base::bytes_of(key)) & 1) == 0) continue;
      const Places places = places_of(key);
      const auto [least, most] = std::minmax(places[0].group, places[1].group);
      if (most < kFirst && first_.empty()) first_ = key;
      if (least >= kFirst && places[0].side == 1 && key_.empty()) key_ = key;  // behind all headers of its group
    }
    EXPECT_EQ(*it_.insert(splitter_, key_, "1"), true);
    EXPECT_TRUE(it_.world.quiesce());
    network().steer();
    it_.world.spawn(splitter_, split_into(&splitter_, key_, &split_));
    network().settle();
  }
  ~Steered() override {
    while (const auto left = network().waiting().size()) {
      const auto& next = network().waiting()[left - 1];
      network().execute(left - 1, next.first, next.last);
    }
    network().let_go();
  }

  fabric::sim::Network& network() { return it_.world.network(); }
  Places places_of(const std::string& key) const {
    return locate(base::keyed_hash(it_.world.table_seed(), base::bytes_of(key)), it_.world.geometry().rows_per_table());
  }
  // The two tables of the split.
  std::uint64_t header(std::uint64_t table, const Place& place) const {
    const std::uint64_t offset = (table * it_.world.geometry().rows_per_table() + place.group) * kGroupBytes;
    return base::load<std::uint64_t>(it_.world.region(layout::kTable).data() + offset + 2 * kBucketBytes * place.side);
  }
  bool opened(const std::string& key) const {
    const Places places = places_of(key);
    return HeaderWord::open(header(1, places[0])) && HeaderWord::open(header(1, places[1]));
  }

  // Executes the client's verbs, one after the other, until `done`.
  template <class Done>
  void run(const Client& client, Done&& done) {
    for (int steps = 0; !done(); ++steps) {
      ASSERT_LT(steps, 100'000);
      const auto& waiting = network().waiting();
      const auto next =
          std::find_if(waiting.begin(), waiting.end(), [&](const auto& one) { return one.client == client.index(); });
      if (next == waiting.end()) {
        ASSERT_TRUE(network().pass());
      } else {
        network().execute(static_cast<std::size_t>(next - waiting.begin()), next->first, next->last);
      }
    }
  }
  bool moving(const std::string& key) const {
    const base::Bytes table = it_.world.region(layout::kTable);
    const CombinedView bucket(table.subspan(places_of(key)[0].offset(), kCombinedBytes), places_of(key)[0].side);
    for (std::uint64_t i = 0; i < kCombinedSlots; ++i) {
      if (bucket.slot(i).moving()) return true;
    }
    return false;
  }
  // Executes everything but the header, for each READ of buckets that the client waits for.
  std::size_t read_slots(const Client& client) {
    std::size_t torn = 0;
    for (std::size_t i = 0; i < network().waiting().size();) {
      const auto one = network().waiting()[i];
      const bool side = one.op.at.offset % kGroupBytes != 0;
      if (one.client != client.index() || one.op.verb != fabric::Verb::read || one.op.at.region != layout::kTable ||
          (one.torn && one.last - one.first == 1)) {
        ++i;
      } else if (side && one.first == 0) {
        network().execute(i, 0, kBucketBytes / 8);
      } else {
        network().execute(i, side ? one.first + 1 : 1, one.last);
        ++torn;
      }
    }
    return torn;
  }
  // Scans one table's part of the key's first group, or with `half` what goes to the new table of the first split.
  Task<void> scan_group(std::string key, bool half, Result<index::Page>* into) {
    Cost cost;
    const std::uint64_t bits = layout::most_depth(it_.world.geometry().tables);
    const std::uint64_t position = places_of(key)[0].group << bits | (half ? 1ull << (bits - 1) : 0);
    *into = co_await reader_.table().scan(position, 1, reader_.port().now() + kPatience, cost);
  }
  // Says whether the marks have been read, and the groups are about to be.
  bool groups_are_read() {
    const auto& waiting = network().waiting();
    return std::any_of(waiting.begin(), waiting.end(), [this](const auto& one) {
      return one.client == reader_.index() && one.op.at.region == layout::kTable &&
             one.op.at.offset < it_.world.geometry().mark_offset(0);
    });
  }
  static constexpr std::uint64_t kFirst = 8;
  Splits it_{options_of(8)};
  Client& splitter_ = it_.world.connect("splitter");
  Client& reader_ = it_.world.connect("reader");
  std::string first_, key_;
  Status split_;
};

TEST_F(Steered, AKeyIsNotMissedBetweenAReadOfTheNewTableBeforeItIsFilledAndOneOfTheOldBeforeItMoves) {
  run(splitter_, [&] { return opened(first_); });
  ASSERT_FALSE(opened(key_));
  // The reader learns of the split.
  Result<std::optional<std::string>> found = Status(Code::internal, "it did not come to an end");
  it_.world.spawn(reader_, Splits::look_into(&reader_, first_, &found));
  network().settle();
  run(reader_, [&] { return found.ok(); });
  ASSERT_FALSE(found->has_value());

  found = Status(Code::internal, "it did not come to an end");
  it_.world.spawn(reader_, Splits::look_into(&reader_, key_, &found));
  network().settle();
  ASSERT_EQ(read_slots(reader_), 4u);
  run(splitter_, [&] { return opened(key_); });
  run(reader_, [&] { return found.ok(); });
  EXPECT_EQ(*found, "1");
}

TEST_F(Steered, AScanDoesNotBelieveAGroupThatWasOpenedWhileItWasRead) {
  run(splitter_, [&] { return opened(first_); });
  Result<std::optional<std::string>> found = Status(Code::internal, "it did not come to an end");
  it_.world.spawn(reader_, Splits::look_into(&reader_, first_, &found));
  network().settle();
  run(reader_, [&] { return found.ok(); });

  Result<index::Page> page = Status(Code::internal, "it did not come to an end");
  it_.world.spawn(reader_, scan_group(key_, true, &page));
  network().settle();
  run(reader_, [this] { return groups_are_read(); });
  // The slots behind all headers come first.
  std::size_t torn = 0;
  for (std::size_t i = 0; i < network().waiting().size();) {
    const auto one = network().waiting()[i];
    if (one.client == reader_.index() && one.op.verb == fabric::Verb::read && !one.torn) {
      ASSERT_EQ(one.last, kGroupBytes / 8);
      network().execute(i, 2 * kBucketBytes / 8 + 1, one.last);
      ++torn;
      i = 0;
    } else {
      ++i;
    }
  }
  ASSERT_EQ(torn, 2u) << "the group in both tables";
  run(splitter_, [&] { return opened(key_); });
  run(reader_, [&] { return page.ok(); });
  EXPECT_EQ(page->keys, std::vector<std::string>{key_});
}

TEST_F(Steered, AScanByAnOldDirectoryThatHasReadTheHeadersBeforeASlotMovesLooksAgain) {
  Result<index::Page> page = Status(Code::internal, "it did not come to an end");
  it_.world.spawn(reader_, scan_group(key_, false, &page));
  network().settle();
  run(reader_, [this] { return groups_are_read(); });
  const auto& waiting = network().waiting();
  const auto read =
      std::find_if(waiting.begin(), waiting.end(), [&](const auto& one) { return one.client == reader_.index(); });
  ASSERT_TRUE(read != waiting.end() && read->op.verb == fabric::Verb::read && read->last == kGroupBytes / 8);
  network().execute(static_cast<std::size_t>(read - waiting.begin()), 0, 2 * kBucketBytes / 8 + 1);
  run(splitter_, [&] { return moving(key_); });
  run(reader_, [&] { return page.ok(); });
  EXPECT_EQ(page->keys, std::vector<std::string>{key_});
}

}  // namespace
}  // namespace farpool::race
