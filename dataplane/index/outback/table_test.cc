// SPDX-License-Identifier: Apache-2.0
#include "index/outback/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "index/outback/bed_test.h"

namespace farpool::outback {
namespace {

using base::Code;
using fabric::Cost;
using index::Edit;
using ::testing::HasSubstr;

std::string key_of(std::uint64_t number) { return "key" + std::to_string(number); }

class Increment final : public index::Editor {
 public:
  Edit edit(std::optional<std::string_view> value) override {
    return Edit::put(std::to_string((value ? std::stoull(std::string(*value)) : 0) + 1));
  }
};
class Erase final : public index::Editor {
 public:
  Edit edit(std::optional<std::string_view>) override { return Edit::erase(); }
};

template <class T>
T unwrap(base::Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << result.status().message();
    return T{};
  }
  return std::move(*result);
}

// --- what operations come to

task::Task<void> compare_with_a_map(Bed& bed, Bed::Client& client, std::uint64_t seed, std::uint64_t keys) {
  base::Random random(seed);
  std::map<std::string, std::string> model;
  Table& table = client.table();
  for (int i = 0; i < 1500; ++i) {
    const std::string key = key_of(random.below(keys)) + (random.chance(0.02) ? std::string(5000, 'k') : "");
    const std::size_t bytes = random.chance(0.05) ? 3000 + random.below(100'000) : random.below(100);
    const std::string value(bytes, static_cast<char>('a' + random.below(26)));
    const auto found = model.find(key);
    const bool there = found != model.end();
    Cost cost;
    switch (random.below(8)) {
      case 0:
      case 1: {
        const auto got = unwrap(co_await table.lookup(key, bed.soon(), cost));
        EXPECT_EQ(got, there ? std::optional(found->second) : std::nullopt);
        break;
      }
      case 2:
      case 3:
        EXPECT_EQ(unwrap(co_await table.put(key, value, bed.soon(), cost)), there);
        model[key] = value;
        break;
      case 4:
        EXPECT_EQ(unwrap(co_await table.insert(key, value, bed.soon(), cost)), !there);
        model.emplace(key, value);
        break;
      case 5:
        EXPECT_EQ(unwrap(co_await table.update(key, value, bed.soon(), cost)), there);
        if (there) model[key] = value;
        break;
      case 6:
        EXPECT_EQ(unwrap(co_await table.remove(key, bed.soon(), cost)), there);
        model.erase(key);
        break;
      default: {
        const auto swapped = unwrap(co_await table.change(Op::swap, key, value, 0, bed.soon(), cost));
        EXPECT_EQ(swapped.text, there ? std::optional(found->second) : std::nullopt);
        model[key] = value;
      }
    }
  }
  Cost cost;
  std::uint64_t bytes = 0;
  for (const auto& [key, value] : model) {
    bytes += key.size() + value.size();
    EXPECT_EQ(unwrap(co_await table.lookup(key, bed.soon(), cost)), std::optional(value)) << key.size();
  }
  const index::Totals totals = unwrap(co_await table.count(bed.soon(), cost));
  EXPECT_EQ(totals.keys, model.size());
  EXPECT_EQ(totals.bytes, bytes);
  std::set<std::string> scanned;
  std::uint64_t position = 0;
  do {
    index::Page page = unwrap(co_await table.scan(position, 10, bed.soon(), cost));
    scanned.insert(page.keys.begin(), page.keys.end());
    position = page.next;
  } while (position != 0);
  EXPECT_EQ(scanned.size(), model.size());
  for (const auto& [key, value] : model) EXPECT_TRUE(scanned.contains(key));
}

TEST(TableTest, DoesWhatAMapDoes) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Bed bed({.keys = 100, .load = 0.9, .memory_bytes = 64 << 20, .wire = {.seed = seed}});
    Bed::Client& client = bed.connect();
    bed.run(compare_with_a_map(bed, client, seed, 150));
    EXPECT_GT(client.table().marks().make_ups, 0u);
    EXPECT_GT(client.table().marks().seeds_learned, 0u);
    EXPECT_GT(client.table().marks().long_blocks, 0u);
    EXPECT_GT(bed.host().table().totals().marks.overflow_keys, 0u) << "no key overflowed";
  }
}

task::Task<void> count_up(Bed& bed, Table& table, bool by_editor, std::uint64_t times) {
  for (std::uint64_t i = 0; i < times; ++i) {
    Cost cost;
    const std::string key = key_of(i % 3);
    if (by_editor) {
      Increment editor;
      unwrap(co_await table.modify(key, editor, bed.soon(), cost));
    } else {
      unwrap(co_await table.change(Op::add, key, {}, 1, bed.soon(), cost));
    }
  }
}
task::Task<void> expect_sum(Bed& bed, Table& table, std::uint64_t sum) {
  Cost cost;
  std::uint64_t found = 0;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const auto value = unwrap(co_await table.lookup(key_of(i), bed.soon(), cost));
    found += value ? std::stoull(*value) : 0;
  }
  EXPECT_EQ(found, sum);
}

TEST(TableTest, ReadModifyWritesOfManyClientsAllCount) {
  Bed bed({.wire = {.seed = 5}});
  std::vector<task::Task<void>> tasks;
  for (int i = 0; i < 6; ++i) tasks.push_back(count_up(bed, bed.connect().table(), i % 2 == 0, 60));
  bed.run(std::move(tasks));
  bed.run(expect_sum(bed, bed.connect().table(), 6 * 60));
}

TEST(TableTest, ManyOperationsOfOneClientShareItsLines) {
  Bed bed({.wire = {.seed = 6}});
  Table& table = bed.connect().table();
  std::vector<task::Task<void>> tasks;
  for (int i = 0; i < 20; ++i) tasks.push_back(count_up(bed, table, i % 2 == 0, 10));
  bed.run(std::move(tasks));
  bed.run(expect_sum(bed, table, 200));
}

// --- what they cost

task::Task<void> count_trips(Bed& bed, Bed::Client& one, Bed::Client& other) {
  Table& table = one.table();
  Cost open;
  EXPECT_TRUE((co_await table.open(bed.soon(), open)).ok());
  EXPECT_TRUE((co_await other.table().open(bed.soon(), open)).ok());
  const auto expect = [](const Cost& cost, std::uint32_t trips, const char* what) {
    EXPECT_EQ(cost.trips, trips) << what;
    EXPECT_EQ(cost.messages, trips) << what;
  };
  Cost cost;
  EXPECT_TRUE(unwrap(co_await table.insert("key", "value", bed.soon(), cost)));
  expect(cost, 1, "an insert");
  EXPECT_FALSE(unwrap(co_await table.insert("key", "value", bed.soon(), cost = {})));
  expect(cost, 1, "an insert of a key that is there");
  EXPECT_TRUE(unwrap(co_await table.lookup("key", bed.soon(), cost = {})).has_value());
  expect(cost, 1, "a lookup");
  EXPECT_FALSE(unwrap(co_await table.lookup("absent", bed.soon(), cost = {})).has_value());
  expect(cost, 1, "a lookup of an absent key");
  EXPECT_TRUE(unwrap(co_await table.update("key", "other", bed.soon(), cost = {})));
  expect(cost, 1, "an update");
  EXPECT_TRUE(unwrap(co_await table.put("key", "value of another length", bed.soon(), cost = {})));
  expect(cost, 1, "a put");
  Increment editor;
  unwrap(co_await table.modify("number", editor, bed.soon(), cost = {}));
  expect(cost, 2, "a modify");
  unwrap(co_await table.change(Op::add, "number", {}, 5, bed.soon(), cost = {}));
  expect(cost, 1, "an addition");
  EXPECT_TRUE(unwrap(co_await table.remove("key", bed.soon(), cost = {})));
  expect(cost, 1, "a remove");
  EXPECT_FALSE(unwrap(co_await table.remove("key", bed.soon(), cost = {})));
  expect(cost, 1, "a remove of an absent key");
  unwrap(co_await table.count(bed.soon(), cost = {}));
  expect(cost, 1, "a count");
  unwrap(co_await table.scan(0, 3, bed.soon(), cost = {}));
  expect(cost, 1, "a scan");
  co_await table.release(bed.soon());
}

TEST(TableTest, AnOperationIsOneTrip) {
  Bed bed({.wire = {.seed = 7}});
  Bed::Client &one = bed.connect(), &other = bed.connect();
  bed.run(count_trips(bed, one, other));
}

// One client fills buckets and so gives them other seeds; another client that has not heard looks the keys up.
task::Task<void> look_with_old_seeds(Bed& bed, Bed::Client& writer, Bed::Client& reader) {
  Cost cost;
  EXPECT_TRUE((co_await reader.table().open(bed.soon(), cost)).ok());
  for (std::uint64_t i = 0; i < 60; ++i) unwrap(co_await writer.table().put(key_of(i), "value", bed.soon(), cost));
  EXPECT_GT(bed.host().table().totals().marks.reseeds, 0u);
  EXPECT_EQ(bed.host().table().totals().marks.overflow_keys, 0u);
  std::uint32_t twice = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(unwrap(co_await reader.table().lookup(key_of(i), bed.soon(), cost = {})),
              std::optional<std::string>("value"));
    EXPECT_LE(cost.trips, 2u);
    twice += cost.trips == 2 ? 1 : 0;
  }
  EXPECT_GT(twice, 0u) << "no seed was old";
  EXPECT_EQ(reader.table().marks().make_ups, twice);
  // Each bucket has told its seed: no lookup needs a second trip from now on, of an absent key either.
  for (std::uint64_t i = 0; i < 60; ++i) {
    EXPECT_TRUE(unwrap(co_await reader.table().lookup(key_of(i), bed.soon(), cost = {})).has_value());
    EXPECT_EQ(cost.trips, 1u);
  }
}

TEST(TableTest, AMakeUpGetTeachesTheSeed) {
  Bed bed({.keys = 400, .wire = {.seed = 8}});
  Bed::Client &writer = bed.connect(), &reader = bed.connect();
  bed.run(look_with_old_seeds(bed, writer, reader));
}

// --- what goes wrong

task::Task<void> count_up_in_bad_weather(Bed& bed, Table& table, std::uint64_t times, std::uint64_t& done) {
  for (std::uint64_t i = 0; i < times; ++i) {
    Cost cost;
    const auto changed = co_await table.change(Op::add, key_of(i % 3), {}, 1, bed.soon(), cost);
    EXPECT_TRUE(changed.ok()) << changed.status().message();
    done += changed.ok() ? 1 : 0;
  }
}

TEST(TableTest, AChangeWhoseAnswerIsLostTakesEffectOnce) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Bed bed({.wire = {.seed = seed, .lose_reply = 0.05, .lose_call = 0.05}});
    std::vector<task::Task<void>> tasks;
    std::uint64_t done = 0, asked_again = 0;
    std::vector<Bed::Client*> clients = {&bed.connect(), &bed.connect()};
    for (std::size_t i = 0; i < 4; ++i)
      tasks.push_back(count_up_in_bad_weather(bed, clients[i % 2]->table(), 50, done));
    bed.run(std::move(tasks));
    for (const Bed::Client* client : clients) {
      asked_again += const_cast<Bed::Client*>(client)->table().marks().asked_again;
    }
    EXPECT_GT(asked_again, 0u);
    bed.network().options().lose_reply = bed.network().options().lose_call = 0;
    bed.run(expect_sum(bed, bed.connect().table(), done));
    EXPECT_EQ(done, 200u);
  }
}

// The memory node's process dies after each word that it writes for a change; the next one takes its memory over.
task::Task<void> change_over_a_death(Bed& bed, Table& table, std::uint64_t effects, bool& over) {
  Cost cost;
  EXPECT_TRUE((co_await table.open(bed.soon(), cost)).ok());
  unwrap(co_await table.put("other", "value", bed.soon(), cost));
  bed.node().die_after(effects);
  const auto changed = co_await table.change(Op::append, "key", "a value that is no number", 0, bed.soon(), cost);
  EXPECT_TRUE(changed.ok()) << changed.status().message();
  EXPECT_EQ(unwrap(co_await table.lookup("key", bed.soon(), cost)),
            std::optional<std::string>("a value that is no number"));
  over = true;
}

TEST(TableTest, AChangeTakesEffectOnceOverDeathsOfTheMemoryNode) {
  std::uint64_t deaths = 0;
  for (std::uint64_t effects = 0; effects < 100; ++effects) {
    Bed bed({.wire = {.seed = 3}});
    bool over = false, died = false;
    task::Scope scope;
    scope.spawn(change_over_a_death(bed, bed.connect().table(), effects, over));
    ASSERT_TRUE(bed.network().run_until(
        [&] {
          if (!over && !bed.node().alive()) {
            died = true;
            bed.host().start();
            bed.node().serve(bed.host());
          }
          return over;
        },
        60 * base::kSecond));
    if (!died) break;
    ++deaths;
  }
  EXPECT_GT(deaths, 10u);
  EXPECT_LT(deaths, 100u) << "the change writes more words than were tried";
}

task::Task<void> change_when_the_memory_is_gone(Bed& bed, Bed::Client& client) {
  Cost cost;
  unwrap(co_await client.table().put("key", "value", bed.soon(), cost));
  bed.network().options().lose_reply = 1;
  client.lose_memory();
  const auto changed = co_await client.table().put("key", "other", bed.soon(), cost);
  EXPECT_EQ(changed.code(), Code::unknown_outcome);
  EXPECT_THAT(changed.status().message(), HasSubstr("the memory is gone"));
  const auto next = co_await client.table().put("key", "other", bed.soon(), cost);
  EXPECT_EQ(next.code(), Code::corrupt) << "nothing was sent";
}

TEST(TableTest, AnOutcomeIsUnknownWhenTheMemoryIsGone) {
  Bed bed({.wire = {.seed = 4}});
  bed.run(change_when_the_memory_is_gone(bed, bed.connect()));
}

task::Task<void> follow_another_locator(Bed& bed, Bed::Client& client) {
  Cost cost;
  unwrap(co_await client.table().put("key", "value", bed.soon(), cost));
  EXPECT_EQ(client.table().locator()->header().generation, 1u);
  bed.host().lose(bed.figures(2), bed.locator_of(2));
  client.sever();
  const auto value = unwrap(co_await client.table().lookup("key", bed.soon(), cost));
  EXPECT_FALSE(value.has_value()) << "another table";
  EXPECT_EQ(client.table().locator()->header().generation, 2u);
  EXPECT_EQ(client.table().marks().locators_read, 2u);
  EXPECT_FALSE(unwrap(co_await client.table().put("key", "value", bed.soon(), cost)));
  EXPECT_TRUE(unwrap(co_await client.table().lookup("key", bed.soon(), cost)).has_value());
}

TEST(TableTest, AClientWithAnOldLocatorReadsTheNewOne) {
  Bed bed({.wire = {.seed = 9}});
  bed.run(follow_another_locator(bed, bed.connect()));
}

// --- growth

struct Growing {
  std::uint64_t keys = 0, wrong = 0;
};
// Inserts keys of its own, and sees that the earlier ones are there.
task::Task<void> fill(Bed& bed, Table& table, std::string name, std::uint64_t keys, Growing& growing) {
  for (std::uint64_t i = 0; i < keys; ++i) {
    Cost cost;
    const std::string key = name + std::to_string(i);
    const auto inserted = co_await table.insert(key, key, bed.soon(), cost);
    EXPECT_TRUE(inserted.ok() && *inserted) << inserted.status().message();
    growing.keys += 1;
    const std::string earlier = name + std::to_string(i * 7919 % (i + 1));
    const auto found = co_await table.lookup(earlier, bed.soon(), cost);
    const bool gone = i * 7919 % (i + 1) % 9 == 4 && i * 7919 % (i + 1) + 20 < i;
    growing.wrong += found.ok() && (*found == earlier || (gone && !*found)) ? 0 : 1;
    if (i < 20 || (i - 20) % 9 != 4) continue;
    const auto removed = co_await table.remove(name + std::to_string(i - 20), bed.soon(), cost);
    EXPECT_TRUE(removed.ok() && *removed) << removed.status().message();
    growing.keys -= 1;
  }
}

task::Task<void> look_again(Bed& bed, Table& table, std::uint64_t clients, std::uint64_t keys) {
  for (std::uint64_t client = 0; client < clients; ++client) {
    for (std::uint64_t i = 0; i < keys; ++i) {
      Cost cost;
      const std::string key = "c" + std::to_string(client) + "/" + std::to_string(i);
      const bool there = i % 9 != 4 || i + 20 >= keys;
      EXPECT_EQ(unwrap(co_await table.lookup(key, bed.soon(), cost)).has_value(), there) << key;
    }
  }
}

void grow_in_a_bed(fabric::sim::Options wire, bool restarts) {
  Bed bed({.keys = 60,
           .overflow = 320,
           .doublings = 4,
           .growth = GrowthSettings{.step = 4, .most_step = 16},
           .wire = wire});
  Bed::Client& idle = bed.connect();
  const auto before = [](Bed& in, Table& table) -> task::Task<void> {
    Cost cost;
    unwrap(co_await table.put("idle", "value", in.soon(), cost));
  };
  bed.run(before(bed, idle.table()));
  constexpr std::uint64_t kClients = 3, kKeys = 150;
  Growing growing;
  std::vector<task::Task<void>> tasks;
  for (std::uint64_t i = 0; i < kClients; ++i) {
    tasks.push_back(fill(bed, bed.connect().table(), "c" + std::to_string(i) + "/", kKeys, growing));
  }
  bed.run(std::move(tasks));
  EXPECT_GE(bed.host().table().growth().figures().published, 3u);
  EXPECT_GE(bed.host().table().stage().level, 2u);
  EXPECT_EQ(growing.wrong, 0u);
  EXPECT_EQ(bed.host().table().totals().keys, growing.keys + 1);
  if (restarts) {
    bed.host().start();
    idle.sever();
  }
  bed.network().options().lose_reply = bed.network().options().lose_call = 0;
  const std::uint64_t fetched = idle.table().marks().locators_read;
  bed.run(look_again(bed, idle.table(), kClients, kKeys));
  EXPECT_GT(idle.table().marks().locators_read, fetched) << "a client that was idle is told";
}

TEST(TableTest, ATableGrowsUnderItsClients) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) grow_in_a_bed({.seed = seed}, seed % 2 == 0);
}

TEST(TableTest, ATableGrowsWhileAnswersAreLostAndEachChangeTakesEffectOnce) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    grow_in_a_bed({.seed = seed, .lose_reply = 0.02, .lose_call = 0.02}, false);
  }
}

task::Task<void> share_a_locator(Bed& bed, Bed::Client& one, Bed::Client& other) {
  Cost cost;
  unwrap(co_await one.table().put("key", "value", bed.soon(), cost));
  EXPECT_TRUE(unwrap(co_await other.table().lookup("key", bed.soon(), cost)).has_value());
  EXPECT_EQ(one.table().locator(), other.table().locator());
  EXPECT_EQ(one.table().marks().locators_read + other.table().marks().locators_read, 1u);
  bed.host().lose(bed.figures(2), bed.locator_of(2));
  one.sever();
  other.sever();
  EXPECT_FALSE(unwrap(co_await one.table().lookup("key", bed.soon(), cost)).has_value());
  EXPECT_FALSE(unwrap(co_await other.table().lookup("key", bed.soon(), cost)).has_value());
  EXPECT_EQ(one.table().marks().locators_read + other.table().marks().locators_read, 2u);
  EXPECT_EQ(other.table().locator()->header().generation, 2u);
}

TEST(TableTest, ClientsOfAProcessShareTheLocator) {
  Bed bed({.wire = {.seed = 12}});
  const auto shelf = std::make_shared<Shelf>();
  Bed::Client &one = bed.connect(shelf), &other = bed.connect(shelf);
  bed.run(share_a_locator(bed, one, other));
}

task::Task<void> meet_a_damaged_locator(Bed& bed, Bed::Client& client, std::string says) {
  Cost cost;
  const auto value = co_await client.table().lookup("key", bed.soon(), cost);
  EXPECT_EQ(value.code(), Code::corrupt);
  EXPECT_THAT(value.status().message(), HasSubstr(says));
}

TEST(TableTest, RefusesADamagedLocator) {
  for (const std::size_t word : {3u, 12u}) {
    Bed bed({.wire = {.seed = 9}});
    bed.host().locator()[word] ^= 1;
    bed.run(meet_a_damaged_locator(bed, bed.connect(), "checksum"));
  }
}

task::Task<void> ask_for_what_cannot_be(Bed& bed, Bed::Client& client) {
  Cost cost;
  Table& table = client.table();
  EXPECT_EQ((co_await table.put(std::string(layout::kMaxKeyBytes + 1, 'k'), "", bed.soon(), cost)).code(),
            Code::too_large);
  EXPECT_EQ((co_await table.put("key", std::string(layout::kMaxValueBytes + 1, 'v'), bed.soon(), cost)).code(),
            Code::too_large);
  EXPECT_EQ((co_await table.lookup(std::string(layout::kMaxKeyBytes + 1, 'k'), bed.soon(), cost)).code(),
            Code::too_large);
  unwrap(co_await table.put("key", "text", bed.soon(), cost));
  EXPECT_EQ(unwrap(co_await table.change(Op::add, "key", {}, 1, bed.soon(), cost)).status, Status::not_integer);
  EXPECT_EQ(unwrap(co_await table.scan(table.positions(), 1, bed.soon(), cost)).next, 0u);
  Erase erase;
  EXPECT_TRUE(unwrap(co_await table.modify("key", erase, bed.soon(), cost)));
  EXPECT_FALSE(unwrap(co_await table.modify("key", erase, bed.soon(), cost)));
  const auto late = co_await table.put("key", "text", bed.network().now(), cost);
  EXPECT_EQ(late.code(), Code::timed_out);
}

TEST(TableTest, RefusesWhatCannotBe) {
  Bed bed({.wire = {.seed = 10}});
  bed.run(ask_for_what_cannot_be(bed, bed.connect()));
}

task::Task<void> fill_up(Bed& bed, Bed::Client& client) {
  const std::string value(60'000, 'v');
  for (std::uint64_t i = 0;; ++i) {
    Cost cost;
    const auto put = co_await client.table().put(key_of(i), value, bed.soon(), cost);
    if (put.ok()) continue;
    EXPECT_EQ(put.code(), Code::out_of_memory) << put.status().message();
    EXPECT_GT(i, 10u);
    EXPECT_TRUE(unwrap(co_await client.table().lookup(key_of(0), bed.soon(), cost)).has_value());
    EXPECT_FALSE(unwrap(co_await client.table().lookup(key_of(i), bed.soon(), cost)).has_value());
    co_return;
  }
}

TEST(TableTest, SaysThatTheMemoryIsFull) {
  Bed bed({.memory_bytes = 5 << 20, .wire = {.seed = 11}});
  bed.run(fill_up(bed, bed.connect()));
}

}  // namespace
}  // namespace farpool::outback
