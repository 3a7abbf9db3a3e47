// SPDX-License-Identifier: Apache-2.0
// Lookups by clients that do not own the table, while its owner changes it, and after its death.
#include "index/cuckooduo/replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/random.h"
#include "protocols/cuckooduo/world_test.h"

namespace farpool::cuckooduo {
namespace {

TEST(CuckooDuoReplica, NeedsTheTripsThatItShould) {
  World world(kRoomy);
  Shard &owner = world.own(), &other = world.join();
  Pairs pairs;
  for (std::uint64_t i = 0; i < 200; ++i) world.put(owner, pairs, key_of(i), "1");
  const auto trips = [&](const std::string& key, bool there) {
    const std::uint32_t before = other.body->cost.trips;
    const Found found = world.glance(other, key);
    EXPECT_TRUE(found.ok() && found->has_value() == there) << key;
    return other.body->cost.trips - before;
  };
  EXPECT_EQ(trips(key_of(1), true), 1u) << "the replica is empty, and the trip reads both buckets";
  EXPECT_EQ(trips(key_of(1), true), 1u);
  EXPECT_EQ(other.body->replica->counts().at_once, 1u);
  EXPECT_EQ(trips("absent", false), 2u);
  // What the replica says has changed.
  world.put(owner, pairs, key_of(1), "2");
  EXPECT_EQ(trips(key_of(1), true), 1u);
  EXPECT_EQ(*world.glance(other, key_of(1)), "2");
  EXPECT_TRUE(world.act(owner, {Doing::Kind::remove, key_of(1), ""}).ok());
  EXPECT_EQ(trips(key_of(1), false), 3u);
  EXPECT_EQ(other.body->replica->counts().misled, 1u);
  EXPECT_EQ(trips(key_of(1), false), 2u);
}

TEST(CuckooDuoReplica, FindsPairsWhereverTheyLie) {
  World world(kSmall);
  Shard &owner = world.own(), &other = world.join();
  Pairs pairs;
  for (std::uint64_t i = 0; i < 34; ++i) world.put(owner, pairs, key_of(i), value_of(i));
  EXPECT_GT(owner.owner().index().stashed(), 0u);
  for (int times = 0; times < 2; ++times) {
    for (const auto& [key, value] : pairs) EXPECT_EQ(world.glance(other, key).value(), value) << key;
  }
  EXPECT_EQ(world.glance(other, "absent").value(), std::nullopt);
}

// A torn slot of a dead owner's is no answer; the next owner's repair is.
TEST(CuckooDuoReplica, WaitsForTheNextOwnerWhereASlotIsTorn) {
  World world(kRoomy);
  Shard& other = world.join();
  Shard& victim = world.own();
  Pairs pairs;
  world.put(victim, pairs, "k", "v");
  for (Place place = 0; place < kRoomy.end(); ++place) {
    if (world.slot(place).whole()) world.slot_bytes(place)[kSlotHeader] ^= std::byte{1};
  }
  victim.port->crash(InFlight::cut);
  const Found torn = world.glance(other, "k", 100 * base::kMillisecond);
  EXPECT_EQ(torn.code(), Code::timed_out) << torn.status().message();
  (void)world.own();
  const Found repaired = world.glance(other, "k");
  EXPECT_TRUE(repaired.ok()) << repaired.status().message();
}

// --- Lookups beside changes. Each change of a key has a number, which is its value; every fourth removes the key.

struct Key {
  std::uint64_t begun = 0;  // the last change
  std::uint64_t floor = 0;  // a change that every lookup that begins now has to know
  static bool removes(std::uint64_t number) { return number % 4 == 0; }  // before the first change it is absent, too
};

struct Play {
  std::array<Key, 14> keys;
  bool over = false;
  std::uint64_t lookups = 0, misses = 0;
};

std::string text_of(std::uint64_t number) {
  return std::string(number % 5 == 0 ? 60 : 0, '0') + std::to_string(number);
}

Task<void> change_keys(Shard::Body* body, fabric::Port* port, Play* play, std::size_t first, std::uint64_t seed,
                       int times) {
  base::Random random(seed);
  Cost cost;
  for (int i = 0; i < times; ++i) {
    const std::size_t at = first + 2 * random.below(play->keys.size() / 2);
    Key& key = play->keys[at];
    const std::uint64_t number = ++key.begun;
    const Doing what{Key::removes(number) ? Doing::Kind::remove : Doing::Kind::put, key_of(at), text_of(number)};
    const Result<bool> done = co_await body->owner->change(what.key, what.wish(), port->now() + kPatience, cost);
    EXPECT_TRUE(done.ok()) << done.status().message();
    key.floor = std::max(key.floor, number);
  }
}

// Returns the least change that a lookup may have seen, or nothing: what it found was never there in its time.
std::optional<std::uint64_t> least_seen(const std::optional<std::string>& found, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t number = from; number <= to; ++number) {
    if (found ? !Key::removes(number) && *found == text_of(number) : Key::removes(number)) return number;
  }
  return std::nullopt;
}

Task<void> look_up(Shard::Body* body, fabric::Port* port, Play* play, std::uint64_t seed) {
  base::Random random(seed);
  Cost cost;
  while (!play->over) {
    const std::size_t at = random.below(play->keys.size());
    Key& key = play->keys[at];
    const std::uint64_t from = key.floor;
    const Found found = co_await body->replica->lookup(key_of(at), port->now() + kPatience, cost);
    EXPECT_TRUE(found.ok()) << found.status().message();
    if (!found.ok()) co_return;
    ++play->lookups;
    if (!*found) ++play->misses;
    const auto seen = least_seen(*found, from, key.begun);
    EXPECT_TRUE(seen.has_value()) << key_of(at) << " was " << found->value_or("absent") << ", between changes " << from
                                  << " and " << key.begun;
    if (!seen) co_return;
    key.floor = std::max(key.floor, *seen);
  }
}

// Other keys, so that buckets are full and pairs are moved.
void fill(World& world, Shard& owner, std::uint64_t keys) {
  Pairs pairs;
  for (std::uint64_t i = 100; i < 100 + keys; ++i) world.put(owner, pairs, key_of(i), value_of(i));
}

TEST(CuckooDuoReplica, NeverGivesAWrongAnswerBesideChanges) {
  Replica::Counts sum;
  std::uint64_t moved = 0, misses = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world(kSmall, seed);
    Shard& owner = world.own();
    fill(world, owner, 14);
    Play play;
    task::Scope readers, writers;
    for (std::uint64_t i = 0; i < 3; ++i) {
      Shard& other = world.join();
      readers.spawn(look_up(other.body.get(), other.port, &play, 10 * seed + i));
      readers.spawn(look_up(other.body.get(), other.port, &play, 10 * seed + i + 5));
    }
    for (std::uint64_t i = 0; i < 2; ++i) {
      writers.spawn(change_keys(owner.body.get(), owner.port, &play, i, 7 * seed + i, 120));
    }
    ASSERT_TRUE(world.wait_until([&] { return writers.running() == 0; }));
    play.over = true;
    ASSERT_TRUE(world.wait_until([&] { return readers.running() == 0; }));
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    for (const auto& shard : world.shards) {
      sum.at_once += shard->body->replica->counts().at_once;
      sum.misled += shard->body->replica->counts().misled;
      sum.changed += shard->body->replica->counts().changed;
      sum.torn += shard->body->replica->counts().torn;
    }
    moved += owner.owner().counts().moved;
    misses += play.misses;
  }
  EXPECT_GT(sum.at_once, 1000u);
  EXPECT_GT(sum.misled, 100u);
  EXPECT_GT(sum.changed, 100u);
  EXPECT_GT(sum.torn, 10u);
  EXPECT_GT(moved, 20u);
  EXPECT_GT(misses, 100u);
}

TEST(CuckooDuoReplica, NeverGivesAWrongAnswerWhenOwnersDie) {
  std::uint64_t repaired = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    World world(kSmall, seed);
    Shard& victim = world.own();
    fill(world, victim, 14);
    Play play;
    task::Scope readers, writers;
    Shard& other = world.join();
    for (std::uint64_t i = 0; i < 2; ++i) readers.spawn(look_up(other.body.get(), other.port, &play, 10 * seed + i));
    base::Random random(seed);
    victim.port->crash_after(100 + random.below(400), seed % 2 == 0 ? InFlight::cut : InFlight::lands);
    for (std::uint64_t i = 0; i < 2; ++i) {
      victim.body->scope.spawn(change_keys(victim.body.get(), victim.port, &play, i, 7 * seed + i, 1000));
    }
    ASSERT_TRUE(world.wait_until([&] { return victim.port->crashed(); }));
    Shard& next = world.own();
    repaired += next.owner().counts().repaired;
    for (std::uint64_t i = 0; i < 2; ++i) {
      writers.spawn(change_keys(next.body.get(), next.port, &play, i, 9 * seed + i, 30));
    }
    ASSERT_TRUE(world.wait_until([&] { return writers.running() == 0; }));
    play.over = true;
    ASSERT_TRUE(world.wait_until([&] { return readers.running() == 0; }));
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(repaired, 5u);
}

}  // namespace
}  // namespace farpool::cuckooduo
