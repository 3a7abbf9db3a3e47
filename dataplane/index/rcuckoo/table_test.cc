// SPDX-License-Identifier: Apache-2.0
// The table over the simulated wire: weak, seeded, and told to tear.
#include "index/rcuckoo/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/verify.h"
#include "sim/world.h"

namespace farpool::rcuckoo {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using sim::Call;
using sim::Client;
using sim::World;
using sim::WorldOptions;
using task::Task;

constexpr Nanos kPatience = 5 * base::kSecond;

// About `rows` rows of 8 entries, and a heap of 12 MiB and more.
WorldOptions options_of(std::uint64_t rows, std::uint64_t seed = 1, std::uint64_t entry_bytes = 16) {
  WorldOptions options;
  options.wire.seed = seed;
  options.geometry = {.memory_bytes = 16 << 20,
                      .entry_bytes = entry_bytes,
                      .entries_per_row = 8,
                      .rows_per_lock = 16,
                      .max_sessions = 8,
                      .slots_per_session = 4};
  // The table's share is in percent: round down by making the memory as large as it takes.
  const std::uint64_t table = rows * (entry_bytes * 8 + kRowTrailer);
  options.geometry.table_percent = std::max<std::uint64_t>(1, table * 100 / options.geometry.memory_bytes);
  return options;
}

std::string text(const Status& status) { return std::string(base::name_of(status.code())) + ": " + status.message(); }

// Runs one operation of one client to its end.
template <class T>
Task<void> keep(Task<Result<T>> task, std::optional<Result<T>>* into) {
  into->emplace(co_await std::move(task));
}
template <class T>
Result<T> run(World& world, Client& client, Task<Result<T>> task) {
  std::optional<Result<T>> result;
  EXPECT_TRUE(world.run(client, keep(std::move(task), &result)));
  if (!result) return Status(Code::internal, "the operation did not end");
  return *std::move(result);
}

// The operations of one client, awaited.
struct User {
  World& world;
  Client& client;
  Cost cost{};
  Nanos patience = kPatience;

  Nanos deadline() { return client.port().now() + patience; }
  Result<std::optional<std::string>> lookup(std::string_view key) {
    return run(world, client, client.table().lookup(key, deadline(), cost));
  }
  Result<bool> insert(std::string_view key, std::string_view value) {
    return run(world, client, client.table().insert(key, value, deadline(), cost));
  }
  Result<bool> update(std::string_view key, std::string_view value) {
    return run(world, client, client.table().update(key, value, deadline(), cost));
  }
  Result<bool> remove(std::string_view key) { return run(world, client, client.table().remove(key, deadline(), cost)); }
  Result<bool> put(std::string_view key, std::string_view value) {
    return run(world, client, client.table().put(key, value, deadline(), cost));
  }
  Result<bool> modify(std::string_view key, Editor& editor) {
    return run(world, client, client.table().modify(key, editor, deadline(), cost));
  }
  Result<index::Totals> count() { return run(world, client, client.table().count(deadline(), cost)); }
};

Report image_of(World& world) {
  return verify(world.geometry(), world.region(layout::kTable), world.region(layout::kHeap), world.table_seed());
}
std::uint64_t bits_set(const World& world) {
  std::uint64_t bits = 0;
  const base::Bytes locks = world.region(layout::kLocks);
  for (std::size_t i = 0; i < locks.size(); i += 8) {
    bits += static_cast<std::uint64_t>(std::popcount(base::load<std::uint64_t>(locks.data() + i)));
  }
  return bits;
}
// Everything whole, no lock held, and the counters right.
void expect_sound(World& world, User& user) {
  const Report report = image_of(world);
  for (const Defect& defect : report.defects) ADD_FAILURE() << defect.what;
  EXPECT_EQ(bits_set(world), 0u);
  const auto totals = user.count();
  ASSERT_TRUE(totals.ok()) << text(totals.status());
  EXPECT_EQ(totals->keys, report.keys);
  EXPECT_EQ(totals->bytes, report.bytes);
}

class Appender final : public Editor {
 public:
  explicit Appender(std::string more) : more_(std::move(more)) {}
  Edit edit(std::optional<std::string_view> value) override {
    ++runs;
    return {.kind = Edit::Kind::put, .value = std::string(value.value_or("")) + more_};
  }
  int runs = 0;

 private:
  std::string more_;
};

class Always final : public Editor {
 public:
  Always(Edit edit, bool wants) : edit_(std::move(edit)), wants_(wants) {}
  Edit edit(std::optional<std::string_view> value) override {
    seen = value ? std::optional<std::string>(*value) : std::nullopt;
    return edit_;
  }
  bool wants_value() const override { return wants_; }
  std::optional<std::string> seen;

 private:
  Edit edit_;
  bool wants_;
};

TEST(Table, EveryOperation) {
  World world(options_of(1000));
  User a{world, world.connect("a")};
  EXPECT_EQ(*a.lookup("apple"), std::nullopt);
  EXPECT_FALSE(*a.update("apple", "red"));
  EXPECT_FALSE(*a.remove("apple"));
  EXPECT_TRUE(*a.insert("apple", "red"));
  EXPECT_FALSE(*a.insert("apple", "blue"));
  EXPECT_EQ(**a.lookup("apple"), "red");
  EXPECT_TRUE(*a.update("apple", "green"));
  EXPECT_EQ(**a.lookup("apple"), "green");
  EXPECT_TRUE(*a.put("apple", "brown"));
  EXPECT_FALSE(*a.put("pear", "yellow"));
  EXPECT_EQ(a.count()->keys, 2u);
  EXPECT_EQ(a.count()->bytes, 5u + 5 + 4 + 6);
  Appender append("ish");
  EXPECT_TRUE(*a.modify("pear", append));
  EXPECT_EQ(append.runs, 1);
  EXPECT_EQ(**a.lookup("pear"), "yellowish");
  EXPECT_FALSE(*a.modify("plum", append));
  EXPECT_EQ(**a.lookup("plum"), "ish");
  Always keep({}, true), erase({.kind = Edit::Kind::erase}, false);
  EXPECT_TRUE(*a.modify("pear", keep));
  EXPECT_EQ(keep.seen, "yellowish");
  EXPECT_TRUE(*a.modify("pear", erase));
  EXPECT_EQ(erase.seen, "") << "it did not want to see the value";
  EXPECT_FALSE(*a.modify("pear", erase));
  EXPECT_EQ(*a.lookup("pear"), std::nullopt);
  EXPECT_TRUE(*a.remove("plum"));
  EXPECT_TRUE(*a.remove("apple"));
  EXPECT_EQ(a.count()->keys, 0u);
  expect_sound(world, a);
}

TEST(Table, EverySizeUpToTheLimits) {
  WorldOptions options = options_of(1000);
  options.geometry.memory_bytes = 64 << 20;
  options.geometry.table_percent = 1;
  World world(options);
  User a{world, world.connect("a")};
  std::map<std::string, std::string> model;
  for (const std::size_t key_bytes : {0u, 1u, 6u, 14u, 15u, 16u, 63u, 64u, 300u, 65536u}) {
    for (const std::size_t value_bytes : {0u, 1u, 8u, 14u, 48u, 255u, 4096u, 1048576u}) {
      std::string key(key_bytes, 'k');
      if (key_bytes > 0) key[0] = static_cast<char>('a' + value_bytes % 26);
      const std::string value(value_bytes, static_cast<char>('A' + model.size() % 26));
      ASSERT_TRUE(a.put(key, value).ok()) << key_bytes << " " << value_bytes;
      model[key] = value;
      const auto found = a.lookup(key);
      ASSERT_TRUE(found.ok() && found->has_value()) << key_bytes << " " << value_bytes;
      ASSERT_EQ(**found, value);
    }
  }
  for (const auto& [key, value] : model) ASSERT_EQ(**a.lookup(key), value);
  expect_sound(world, a);
  EXPECT_EQ(a.put(std::string(65537, 'k'), "").code(), Code::too_large);
  EXPECT_EQ(a.lookup(std::string(65537, 'k')).code(), Code::too_large);
  EXPECT_EQ(a.put("k", std::string(1048577, 'v')).code(), Code::too_large);
  Always large({.kind = Edit::Kind::put, .value = std::string(1048577, 'v')}, true);
  EXPECT_EQ(a.modify("k", large).code(), Code::too_large);
  EXPECT_EQ(bits_set(world), 0u);
  for (const auto& [key, value] : model) ASSERT_TRUE(*a.remove(key));
  EXPECT_EQ(a.count()->keys, 0u);
  EXPECT_EQ(a.count()->bytes, 0u);
}

// One client against a map, on several shapes of table.
void compare_with_model(WorldOptions options, std::uint64_t seed, int operations, std::uint64_t keys) {
  options.wire.seed = seed;
  World world(options);
  User a{world, world.connect("a")};
  base::Random random(seed);
  std::map<std::string, std::string> model;
  for (int i = 0; i < operations; ++i) {
    std::string key = "k" + std::to_string(random.below(keys));
    if (random.chance(0.2)) key += std::string(20, 'x');
    const std::string value(random.chance(0.7) ? random.below(9) : random.below(300), static_cast<char>('a' + i % 26));
    const auto known = model.find(key);
    const bool present = known != model.end();
    switch (random.below(6)) {
      case 0: {
        const auto found = a.lookup(key);
        ASSERT_TRUE(found.ok()) << text(found.status());
        ASSERT_EQ(*found, present ? std::optional(known->second) : std::nullopt);
        break;
      }
      case 1: {
        const auto added = a.insert(key, value);
        ASSERT_TRUE(added.ok()) << text(added.status());
        ASSERT_EQ(*added, !present);
        if (!present) model[key] = value;
        break;
      }
      case 2: {
        ASSERT_EQ(*a.update(key, value), present);
        if (present) model[key] = value;
        break;
      }
      case 3: {
        ASSERT_EQ(*a.remove(key), present);
        model.erase(key);
        break;
      }
      case 4: {
        const auto existed = a.put(key, value);
        ASSERT_TRUE(existed.ok()) << text(existed.status());
        ASSERT_EQ(*existed, present);
        model[key] = value;
        break;
      }
      default: {
        Appender append("+");
        ASSERT_EQ(*a.modify(key, append), present);
        model[key] += "+";
        break;
      }
    }
  }
  std::map<std::string, std::string> image;
  const Report report =
      verify(world.geometry(), world.region(layout::kTable), world.region(layout::kHeap), world.table_seed(),
             {.visit = [&image](const Sighting& s) { image[std::string(s.key)] = s.value; }});
  EXPECT_EQ(image, model);
  expect_sound(world, a);
}

TEST(Table, AgreesWithAMap) {
  compare_with_model(options_of(1000), 1, 2000, 300);
  compare_with_model(options_of(1000, 1, 64), 2, 1000, 300);
}

TEST(Table, AgreesWithAMapUnderSharedLocks) {
  WorldOptions options = options_of(1200);
  options.geometry.max_lock_bytes = 8;
  options.geometry.rows_per_lock = 1;
  compare_with_model(options, 3, 1000, 400);
  options.geometry.rows_per_lock = 64;
  options.geometry.max_lock_bytes = 0;
  compare_with_model(options, 4, 1000, 400);
}

TEST(Table, FillsUpMovesEntriesAndSaysSo) {
  WorldOptions options;
  options.geometry.max_sessions = 4;
  options.geometry.entries_per_row = 4;
  World world(options);
  User a{world, world.connect("a")};
  std::vector<std::string> keys;
  Status full;
  base::Random random(7);
  const std::uint64_t capacity = world.geometry().entries();
  while (keys.size() <= capacity) {
    const std::string key = std::to_string(random.next() % 100'000'000);
    const auto added = keys.size() % 2 == 0 ? a.insert(key, "v") : a.put(key, "v");
    if (!added.ok()) {
      full = added.status();
      break;
    }
    if (keys.size() % 2 == 0 ? *added : !*added) keys.push_back(key);
  }
  EXPECT_EQ(full.code(), Code::out_of_memory) << text(full);
  EXPECT_NE(full.message().find("is full"), std::string::npos) << full.message();
  EXPECT_GT(keys.size(), capacity * 80 / 100) << "four entries a row fill less than eight";
  for (const std::string& key : keys) {
    const auto found = a.lookup(key);
    ASSERT_TRUE(found.ok() && found->has_value()) << key;
  }
  const Marks& marks = a.client.table().marks();
  EXPECT_GT(marks.displaced, 20u);
  EXPECT_GT(marks.escalations, 0u);
  EXPECT_GT(marks.explorations, 0u);
  expect_sound(world, a);
  // Room for one again, for a client that comes next and remembers nothing.
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(*a.remove(keys[static_cast<std::size_t>(i)]));
  User b{world, world.connect("b")};
  int added = 0;
  for (int i = 0; i < 100; ++i) added += b.insert("n" + std::to_string(i), "v").ok() ? 1 : 0;
  EXPECT_GT(added, 90);
  expect_sound(world, b);
}

Task<void> work(World& world, Client& client, std::uint64_t seed, int operations, std::uint64_t keys) {
  base::Random random(seed);
  for (int i = 0; i < operations; ++i) {
    Call call;
    call.key = "k" + std::to_string(random.below(keys));
    call.value = std::string(random.chance(0.5) ? 3 : 60, static_cast<char>('a' + random.below(26))) +
                 std::to_string(seed * 1000) + std::to_string(i);
    constexpr Call::Kind kKinds[] = {Call::Kind::get,    Call::Kind::get,    Call::Kind::put,
                                     Call::Kind::insert, Call::Kind::update, Call::Kind::remove};
    call.kind = kKinds[random.below(6)];
    co_await world.call(client, std::move(call), kPatience);
  }
}

bool idle(World& world) {
  for (const auto& client : world.clients()) {
    if (!world.settle(*client)) return false;
  }
  for (const auto& client : world.clients()) {  // also what nobody waits for
    if (!world.network().drain(client->port(), world.network().now() + base::kSecond)) return false;
  }
  return true;
}

TEST(Table, ConcurrentHistoriesAreLinearizable) {
  std::uint64_t conflicts = 0, torn = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    WorldOptions options = options_of(1000, seed);
    World world(options);
    std::vector<Client*> clients = {&world.connect("a"), &world.connect("b"), &world.connect("c")};
    for (std::size_t c = 0; c < clients.size(); ++c) {
      for (std::uint64_t t = 0; t < 2; ++t)
        world.spawn(*clients[c], work(world, *clients[c], seed * 10 + c * 2 + t, 25, 6));
    }
    ASSERT_TRUE(idle(world)) << "seed " << seed;
    const auto wrong = world.history().judge();
    EXPECT_EQ(wrong, std::nullopt) << "seed " << seed << "\n" << wrong.value_or("");
    for (const auto& [client, status] : world.failures()) ADD_FAILURE() << "seed " << seed << ": " << text(status);
    User user{world, *clients[0]};
    expect_sound(world, user);
    for (Client* client : clients) {
      conflicts += client->table().marks().lock_conflicts;
      torn += client->table().marks().torn_rows;
    }
  }
  EXPECT_GT(conflicts, 0u);
  EXPECT_GT(torn, 0u);
}

Task<void> add_ones(World& world, Client& client, int times) {
  for (int i = 0; i < times; ++i)
    co_await world.call(client, {.kind = Call::Kind::add, .key = "sum"}, 30 * base::kSecond);
}

TEST(Table, IncrementsAddUp) {
  World world(options_of(1000, 5));
  std::vector<Client*> clients = {&world.connect("a"), &world.connect("b"), &world.connect("c")};
  for (Client* client : clients) {
    world.spawn(*client, add_ones(world, *client, 60));
    world.spawn(*client, add_ones(world, *client, 40));
  }
  ASSERT_TRUE(idle(world));
  for (const auto& [client, status] : world.failures()) ADD_FAILURE() << text(status);
  User a{world, *clients[0]};
  EXPECT_EQ(**a.lookup("sum"), "300");
  expect_sound(world, a);
}

Task<void> race(Client& client, int keys, std::vector<int>* wins, std::vector<Status>* failed) {
  Cost cost;
  for (int i = 0; i < keys; ++i) {
    const std::string key = "race" + std::to_string(i);
    const auto won = co_await client.table().insert(key, "x", client.port().now() + kPatience, cost);
    if (!won.ok()) failed->push_back(won.status());
    if (won.ok() && *won) ++(*wins)[static_cast<std::size_t>(i)];
  }
}

// In a table so full that keys move while they are raced for.
TEST(Table, InsertRacesHaveOneWinner) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WorldOptions options;
    options.wire.seed = seed;
    options.geometry.entries_per_row = 4;
    World world(options);
    std::vector<Client*> clients = {&world.connect("a"), &world.connect("b"), &world.connect("c")};
    constexpr int kKeys = 200;
    User a{world, *clients[0]};
    const auto fill = world.geometry().entries() * 80 / 100 - kKeys;
    for (std::uint64_t i = 0; i < fill; ++i) ASSERT_TRUE(a.put("fill" + std::to_string(i), "x").ok());
    std::vector<int> wins(kKeys);
    std::vector<Status> failed;
    for (Client* client : clients) world.spawn(*client, race(*client, kKeys, &wins, &failed));
    ASSERT_TRUE(idle(world));
    for (const Status& status : failed) ADD_FAILURE() << text(status);
    for (int i = 0; i < kKeys; ++i) EXPECT_EQ(wins[static_cast<std::size_t>(i)], 1) << i;
    expect_sound(world, a);
  }
}

Task<void> churn(Client& client, int rounds, bool* stop) {
  Cost cost;
  base::Random random(9);
  std::vector<std::string> mine;
  for (int i = 0; i < rounds; ++i) {
    const Nanos deadline = client.port().now() + kPatience;
    const std::string key = "churn" + std::to_string(i);
    if ((co_await client.table().insert(key, "x", deadline, cost)).ok()) mine.push_back(key);
    if (mine.size() > 10) {
      const std::size_t which = random.below(mine.size());
      (void)co_await client.table().remove(mine[which], deadline, cost);
      mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  *stop = true;
}

Task<void> watch(Client& client, const std::vector<std::string>& keys, const bool* stop, int* missing, int* looked) {
  Cost cost;
  base::Random random(10);
  while (!*stop) {
    const std::string& key = keys[random.below(keys.size())];
    const auto found = co_await client.table().lookup(key, client.port().now() + kPatience, cost);
    ++*looked;
    if (!found.ok() || !found->has_value()) ++*missing;
  }
}

TEST(Table, AKeyThatMovesIsNeverMissed) {
  WorldOptions options;
  options.geometry.entries_per_row = 4;
  World world(options);
  Client &mover = world.connect("mover"), &reader = world.connect("reader");
  User a{world, mover};
  std::vector<std::string> keys;
  const std::uint64_t wanted = world.geometry().entries() * 84 / 100;
  while (keys.size() < wanted) {
    const std::string key = "key" + std::to_string(keys.size());
    ASSERT_TRUE(a.put(key, "x").ok());
    keys.push_back(key);
  }
  bool stop = false;
  int missing = 0, looked = 0;
  const std::uint64_t displaced = mover.table().marks().displaced;
  world.spawn(mover, churn(mover, 250, &stop));
  for (int i = 0; i < 4; ++i) world.spawn(reader, watch(reader, keys, &stop, &missing, &looked));
  ASSERT_TRUE(idle(world));
  EXPECT_EQ(missing, 0);
  EXPECT_GT(looked, 300);
  EXPECT_GT(mover.table().marks().displaced, displaced + 50);
  expect_sound(world, a);
}

// Moves the key's entry to its other row, at once.
void teleport(World& world, std::string_view key) {
  const Geometry& g = world.geometry();
  const Places places = locate(base::keyed_hash(world.table_seed(), base::bytes_of(key)), g.rows);
  const auto row = [&](std::uint64_t number) {
    const base::Bytes bytes = world.region(layout::kTable).subspan(number * g.row_bytes(), g.row_bytes());
    return base::MutableBytes(const_cast<std::byte*>(bytes.data()), bytes.size());
  };
  for (const auto& [from, to] : {std::pair(places.first, places.second), std::pair(places.second, places.first)}) {
    for (std::uint64_t slot = 0; slot < g.entries_per_row; ++slot) {
      const Entry entry = RowView(g, row(from)).entry(slot);
      if (entry.empty() || base::text_of(entry.key()) != key) continue;
      edit_row(g, row(to), to, static_cast<std::uint64_t>(RowView(g, row(to)).empty_slot()), entry);
      edit_row(g, row(from), from, slot, Entry());
      return;
    }
  }
  ADD_FAILURE() << "the key is nowhere";
}

// The same, exhaustively: one move after every number of events of a lookup.
TEST(Table, AKeyThatMovesAtAnyMomentOfALookupIsFound) {
  World world(options_of(1000));
  User a{world, world.connect("a")};
  std::string key;
  for (int i = 0;; ++i) {
    key = "k" + std::to_string(i);
    const Places p =
        locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view(key))), world.geometry().rows);
    if (std::max(p.first, p.second) - std::min(p.first, p.second) > 1) break;  // two READs
  }
  ASSERT_TRUE(*a.insert(key, "here"));
  for (int after = 0; after < 160; ++after) {
    world.network().options().tear = after < 100;  // rows that are torn, and rows read whole one after the other
    std::optional<Result<std::optional<std::string>>> found;
    world.spawn(a.client, keep(a.client.table().lookup(key, a.deadline(), a.cost), &found));
    for (int i = 0; i < after % 100 / (after < 100 ? 1 : 4); ++i) world.network().step();
    teleport(world, key);
    ASSERT_TRUE(world.settle(a.client));
    ASSERT_TRUE(found && found->ok() && (*found)->has_value()) << "a move after " << after << " events";
    EXPECT_EQ(***found, "here");
  }
  EXPECT_GT(a.client.table().marks().changed_misses, 0u) << "a single reading would have missed it";
  EXPECT_GT(a.client.table().marks().torn_rows, 0u);
}

Task<void> overwrite(Client& client, int rounds, bool* stop) {
  Cost cost;
  for (int i = 0; i < rounds; ++i) {
    const std::string value(static_cast<std::size_t>(100 + i % 7 * 50), static_cast<char>('a' + i % 26));
    EXPECT_TRUE((co_await client.table().put("big", value, client.port().now() + kPatience, cost)).ok());
  }
  *stop = true;
}

Task<void> read_big(Client& client, const bool* stop, int* reads) {
  Cost cost;
  while (!*stop) {
    const auto found = co_await client.table().lookup("big", client.port().now() + kPatience, cost);
    EXPECT_TRUE(found.ok() && found->has_value()) << text(found.status());
    if (!found.ok() || !found->has_value()) co_return;
    const std::string& value = **found;
    EXPECT_EQ(value,
              std::string(100 + static_cast<std::size_t>(value[0] - 'a') % 7 * 0 + value.size() - 100, value[0]));
    ++*reads;
  }
}

TEST(Table, ExtentsAreReusedUnderReadersEyes) {
  World world(options_of(1000, 3));
  Client &writer = world.connect("writer"), &reader = world.connect("reader");
  User a{world, writer};
  ASSERT_TRUE(a.put("big", std::string(100, 'a')).ok());
  bool stop = false;
  int reads = 0;
  world.spawn(writer, overwrite(writer, 600, &stop));
  for (int i = 0; i < 3; ++i) world.spawn(reader, read_big(reader, &stop, &reads));
  ASSERT_TRUE(idle(world));
  EXPECT_GT(reads, 200);
  expect_sound(world, a);
}

// --- Failures

// A client that dies with its locks held, after `effects` words of a put.
void die_in_put(World& world, Client& victim, const std::string& key, const std::string& value, std::uint64_t effects) {
  Cost cost;
  std::optional<Result<bool>> result;
  victim.port().crash_after(effects, fabric::sim::InFlight::cut);
  world.run(victim, keep(victim.table().put(key, value, victim.port().now() + kPatience, cost), &result));
  EXPECT_TRUE(victim.crashed());
  world.network().drain(victim.port(), world.network().now() + base::kSecond);
}

std::string hex(std::uint64_t word) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
  return digits;
}

constexpr std::uint64_t kClaimWords = layout::kSlotClaim.bytes / 8, kPlanWords = layout::kSlotPlan.bytes / 8;

// Nothing of the dead is left: no lock, no barrier, no lease, no claim.
void expect_repaired(const World& world) {
  EXPECT_EQ(bits_set(world), 0u);
  const base::Bytes slots = world.region(layout::kSlots);
  for (std::size_t at = 0; at < slots.size(); at += sizeof(layout::OperationSlot)) {
    EXPECT_EQ(base::load<layout::OperationSlot>(slots.data() + at).holder, 0u);
  }
  for (std::uint64_t i = 0; i < layout::kLeaseWords; ++i) {
    EXPECT_FALSE(layout::LeaseWord::held(base::load<std::uint64_t>(world.region(layout::kLeases).data() + i * 8)));
  }
}

TEST(Table, AWriteThatMeetsTheLockOfTheDeadRepairsIt) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1);  // the claim, then the lock
  ASSERT_GT(bits_set(world), 0u);

  const Nanos before = world.network().now();
  EXPECT_EQ(**b.lookup("apple"), "red") << "readers are in nobody's way";
  EXPECT_LT(world.network().now() - before, base::kMillisecond);
  const auto put = b.put("apple", "brown");
  EXPECT_TRUE(put.ok()) << text(put.status());
  const Nanos took = world.network().now() - before;
  EXPECT_GE(took, 40 * base::kMillisecond) << "nobody is taken for dead before the failure timeout";
  EXPECT_LT(took, 60 * base::kMillisecond);
  EXPECT_EQ(**b.lookup("apple"), "brown");
  const session::RepairMarks& marks = b.client.table().repairer().marks();
  EXPECT_EQ(marks.repaired, 1u);
  EXPECT_EQ(marks.finished, 0u);
  ASSERT_TRUE(idle(world));
  expect_repaired(world);
  expect_sound(world, b);
}

Task<void> put_and_note(Client& client, Nanos patience, std::vector<Status>* into) {
  Cost cost;
  const auto put = co_await client.table().put("apple", "brown", client.port().now() + patience, cost);
  into->push_back(put.status());
}

TEST(Table, ThoseWhoWaitForALockOfTheDeadRepairItOnce) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  Client& c = world.connect("another");
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1);
  std::vector<Status> statuses;
  for (int i = 0; i < 2; ++i) world.spawn(b.client, put_and_note(b.client, 200 * base::kMillisecond, &statuses));
  for (int i = 0; i < 2; ++i) world.spawn(c, put_and_note(c, 200 * base::kMillisecond, &statuses));
  ASSERT_TRUE(world.settle(b.client) && world.settle(c));
  ASSERT_EQ(statuses.size(), 4u);
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << text(status);
  EXPECT_EQ(b.client.table().repairer().marks().repaired + c.table().repairer().marks().repaired, 1u);
  ASSERT_TRUE(idle(world));
  expect_repaired(world);
}

TEST(Table, AShortDeadlineNamesTheSuspect) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1);
  b.patience = 20 * base::kMillisecond;  // half the failure timeout
  const Nanos before = world.network().now();
  const auto refused = b.put("apple", "brown");
  EXPECT_EQ(refused.code(), Code::timed_out) << text(refused.status());
  EXPECT_NE(refused.status().message().find(hex(victim.incarnation())), std::string::npos)
      << refused.status().message();
  EXPECT_LT(world.network().now() - before, 21 * base::kMillisecond);
  b.patience = 2 * base::kMillisecond;
  EXPECT_EQ(b.put("apple", "brown").code(), Code::timed_out);
}

TEST(Table, ARowLeftHalfWrittenIsFinished) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  // The claim, the lock, the plan, and one word of the row: a client that only reads finishes it as well.
  std::uint64_t row_words = 1;
  die_in_put(world, victim, "apple", "green", kClaimWords + 1 + kPlanWords + row_words);
  const bool torn = !image_of(world).defects.empty();
  const auto found = b.lookup("apple");
  ASSERT_TRUE(found.ok()) << text(found.status());
  EXPECT_EQ(**found, torn ? "green" : "red") << "the word that landed may have been the same before";
  ASSERT_TRUE(b.put("pear", "x").ok());
  ASSERT_TRUE(b.update("apple", "brown").ok());
  EXPECT_EQ(b.client.table().repairer().marks().finished, 1u);
  ASSERT_TRUE(idle(world));
  expect_repaired(world);
  expect_sound(world, b);
}

TEST(Table, WhatNoCrashExplainsIsQuarantined) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1 + kPlanWords);
  // The row changes under the lock of the dead: damage.
  const Places places =
      locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view("apple"))), world.geometry().rows);
  std::uint64_t at = 0;
  for (const std::uint64_t row : {places.first, places.second}) {
    const RowView view(
        world.geometry(),
        world.region(layout::kTable).subspan(row * world.geometry().row_bytes(), world.geometry().row_bytes()));
    if (!view.empty(0)) at = row;
  }
  auto* bytes = const_cast<std::byte*>(world.region(layout::kTable).data()) + at * world.geometry().row_bytes();
  const std::vector<std::byte> damaged = [&] {
    bytes[world.geometry().row_bytes() - 20] ^= std::byte{1};
    return std::vector<std::byte>(bytes, bytes + world.geometry().row_bytes());
  }();
  for (int i = 0; i < 2; ++i) {
    const auto refused = b.put("apple", "brown");
    EXPECT_EQ(refused.code(), Code::locked) << text(refused.status());
    EXPECT_NE(refused.status().message().find("quarantined"), std::string::npos) << refused.status().message();
    EXPECT_NE(refused.status().message().find(hex(victim.incarnation())), std::string::npos);
  }
  EXPECT_TRUE(std::equal(damaged.begin(), damaged.end(), bytes)) << "nothing is guessed";
  EXPECT_GT(bits_set(world), 0u);
  EXPECT_EQ(b.client.table().repairer().marks().quarantined, 1u);
  EXPECT_TRUE(b.client.session().alive());
}

// Fills the heap with whole extents that no entry points to.
Task<void> hoard(Client& client, std::uint64_t value_bytes, std::uint64_t& count) {
  Cost cost;
  const std::string value(value_bytes, 'x');
  for (;; ++count) {
    const std::string key = "hoarded" + std::to_string(count);
    const std::uint64_t bytes = layout::extent_bytes(key.size(), value.size());
    auto block =
        co_await client.heap().allocate(bytes, heap::Purpose::addition, client.port().now() + 60 * base::kSecond, cost);
    if (!block.ok()) co_return;
    fabric::Buffer buffer = client.port().buffer(bytes);
    layout::write_extent(buffer.first(bytes), block->units, base::bytes_of(key), base::bytes_of(value));
    const std::array chain{fabric::Op::write({layout::kHeap, layout::block_offset(block->units)}, buffer.first(bytes))};
    (void)co_await client.session().post(chain, client.port().now() + base::kSecond, cost);
  }
}
Task<void> append_to(Client& client, std::string key, std::string more, Result<bool>& into) {
  Cost cost;
  Appender append(more);
  into = co_await client.table().modify(key, append, client.port().now() + 600 * base::kSecond, cost);
}

// All slots are with operations that wait for memory, and to find some the heap has to ask the index, which takes a
// slot.
TEST(Table, WhoWaitsForMemoryHoldsNoSlotThatFindingItNeeds) {
  World world(options_of(1000));
  Client& hoarder = world.connect("hoarder");
  constexpr std::uint64_t kBytes = 200'000;
  std::uint64_t hoarded = 0;
  ASSERT_TRUE(world.run(hoarder, hoard(hoarder, kBytes, hoarded), 3600 * base::kSecond));
  ASSERT_GT(hoarded, world.geometry().slots_per_session);
  hoarder.port().crash(fabric::sim::InFlight::cut);
  const Nanos lease_over = world.network().now() + 3 * base::kSecond;
  ASSERT_TRUE(world.run_until([&] { return world.network().now() >= lease_over; }));
  Client& heir = world.connect("heir");
  std::vector<Result<bool>> done(world.geometry().slots_per_session, Result<bool>(Status(Code::internal, "never")));
  for (std::size_t i = 0; i < done.size(); ++i) {
    world.spawn(heir, append_to(heir, "key" + std::to_string(i), std::string(kBytes, 'y'), done[i]));
  }
  ASSERT_TRUE(world.settle(heir, 3600 * base::kSecond));
  for (const Result<bool>& one : done) EXPECT_TRUE(one.ok()) << text(one.status());
}

// Damage that no client's death explains.
TEST(Table, ADamagedRowIsNamed) {
  World world(options_of(1000));
  User a{world, world.connect("a")};
  ASSERT_FALSE(*a.put("apple", "red"));
  const Places places =
      locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view("apple"))), world.geometry().rows);
  const auto at = world.region(layout::kTable).subspan(places.first * world.geometry().row_bytes());
  auto* byte = const_cast<std::byte*>(at.data());
  *byte ^= std::byte{4};
  const auto found = a.lookup("apple");
  EXPECT_EQ(found.code(), Code::corrupt) << text(found.status());
  EXPECT_NE(found.status().message().find("row " + std::to_string(places.first)), std::string::npos)
      << found.status().message();
  const auto put = a.put("apple", "green");
  EXPECT_EQ(put.code(), Code::corrupt) << text(put.status());
  EXPECT_EQ(bits_set(world), 0u);
  *byte ^= std::byte{4};
  EXPECT_EQ(**a.lookup("apple"), "red");
}

TEST(Table, ALostReplyIsUnknownOnlyWhereTheWriteMayHaveLanded) {
  int unknown = 0, unavailable = 0, succeeded = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    WorldOptions options = options_of(1000, seed);
    World world(options);
    User a{world, world.connect("a")};
    ASSERT_FALSE(*a.put("apple", "red"));
    world.network().options().lose_reply = 0.3;
    const auto put = a.put("apple", "green");
    world.network().options().lose_reply = 0;
    world.network().drain(a.client.port(), world.network().now() + base::kSecond);
    User b{world, world.connect("b")};
    const auto found = b.lookup("apple");
    ASSERT_TRUE(found.ok()) << text(found.status());
    switch (put.code()) {
      case Code::ok:
        ++succeeded;
        EXPECT_EQ(**found, "green");
        break;
      case Code::unavailable:
        ++unavailable;
        EXPECT_EQ(**found, "red") << "it said that nothing was done";
        break;
      default:
        EXPECT_EQ(put.code(), Code::unknown_outcome) << text(put.status());
        ++unknown;
    }
    if (put.code() != Code::ok) {
      EXPECT_FALSE(a.client.session().alive()) << "locks may be held: this life has ended";
      EXPECT_EQ(a.put("pear", "x").code(), Code::unavailable);
      EXPECT_EQ(a.lookup("pear").code(), Code::unavailable);
    }
  }
  EXPECT_GT(unknown, 0);
  EXPECT_GT(unavailable, 0);
  EXPECT_GT(succeeded, 0);
}

Task<void> hold_lock(Client& client, std::uint64_t offset, std::uint64_t mask, Nanos until) {
  Cost cost;
  std::uint64_t old = 0;
  auto slot = co_await client.session().take_slot(client.port().now() + kPatience);
  slot->words().lock_word[0] = {offset, mask};
  const std::array take = {slot->claim(0), fabric::Op::masked_cas({layout::kLocks, offset}, old, 0, mask, mask, mask)};
  (void)co_await client.session().post(take, client.port().now() + kPatience, cost);
  EXPECT_EQ(old & mask, 0u);
  co_await client.port().sleep_until(until);
  const std::array drop = {fabric::Op::masked_cas({layout::kLocks, offset}, old, mask, mask, 0, mask)};
  (void)co_await client.session().post(drop, client.port().now() + kPatience, cost);
}

// The word that comes later is taken by a client that lives but is slow: the earlier one must not stay taken meanwhile.
TEST(Table, LocksOfSeveralWordsAreTakenInOrderAndGivenBack) {
  WorldOptions options = options_of(4000);
  options.geometry.rows_per_lock = 1;
  World world(options);
  Client& holder = world.connect("holder");
  User a{world, world.connect("a")};
  const Geometry& g = world.geometry();
  std::string key;
  LockBit low, high;
  for (int i = 0;; ++i) {
    key = "spread" + std::to_string(i);
    const Places p = locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view(key))), g.rows);
    low = lock_bit(g, lock_of(g, std::min(p.first, p.second)));
    high = lock_bit(g, lock_of(g, std::max(p.first, p.second)));
    if (low.offset != high.offset) break;
  }
  Cost before = a.cost;
  ASSERT_TRUE(a.put(key, "x").ok());
  EXPECT_EQ(a.cost.trips - before.trips, 3u) << "one more for the second word";
  EXPECT_EQ(a.client.table().marks().multi_word_locks, 1u);
  world.spawn(holder, hold_lock(holder, high.offset, high.mask, world.network().now() + 10 * base::kMillisecond));
  world.run_until([&] { return bits_set(world) == 1; });
  ASSERT_TRUE(a.put(key, "y").ok());
  EXPECT_GT(a.client.table().marks().lock_restarts, 0u);
  EXPECT_GT(a.client.table().marks().lock_conflicts, 8u);
  ASSERT_TRUE(idle(world));
  expect_sound(world, a);
}

TEST(Table, TheSuperblockTellsTheGeometry) {
  World world(options_of(1000));
  Client& client = world.connect("a");
  EXPECT_EQ(client.table().geometry(), world.geometry());
  auto* byte = const_cast<std::byte*>(world.memory().data()) + 100;
  *byte ^= std::byte{1};
  Cost cost;
  const auto refused =
      run(world, client, index::read_superblock(client.session(), client.port().now() + kPatience, cost));
  EXPECT_EQ(refused.code(), Code::corrupt) << text(refused.status());
  EXPECT_EQ(cost.trips, 1u);
}

}  // namespace
}  // namespace farpool::rcuckoo
