// SPDX-License-Identifier: Apache-2.0
// Owners of a table: what they do, what the next one finds after their death at any word, and that there is one at most.
#include "index/cuckooduo/owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "protocols/cuckooduo/world_test.h"

namespace farpool::cuckooduo {
namespace {

using ::testing::HasSubstr;

TEST(CuckooDuoOwner, ChangesAndFindsPairs) {
  World world(kRoomy);
  Shard& shard = world.own();
  EXPECT_EQ(world.owner_word(), shard.body->session->grant().client_incarnation);
  Pairs pairs;
  for (std::uint64_t i = 0; i < 300; ++i) world.put(shard, pairs, key_of(i), value_of(i));
  for (std::uint64_t i = 0; i < 300; i += 2) world.put(shard, pairs, key_of(i), value_of(i + 1));
  for (std::uint64_t i = 0; i < 300; i += 5) {
    const Doing what{Doing::Kind::remove, key_of(i), ""};
    const Result<bool> existed = world.act(shard, what);
    EXPECT_TRUE(existed.ok() && *existed);
    what.apply(pairs);
  }
  EXPECT_EQ(*world.act(shard, {Doing::Kind::insert, key_of(1), "not this"}), true);
  EXPECT_EQ(*world.act(shard, {Doing::Kind::update, key_of(5), "nor this"}), false);
  EXPECT_EQ(*world.act(shard, {Doing::Kind::remove, key_of(5), ""}), false);
  world.expect(shard, pairs);
  EXPECT_EQ(world.get(shard, key_of(5)).value(), std::nullopt);

  world.give_back(shard);
  EXPECT_EQ(world.owner_word(), 0u);
  EXPECT_EQ(world.get(shard, key_of(1)).code(), Code::unavailable);
  Shard& next = world.own();
  world.expect(next, pairs);
  EXPECT_EQ(next.owner().counts().repaired, 0u);
}

TEST(CuckooDuoOwner, NeedsTheTripsThatItShould) {
  World world(kRoomy);
  Shard& shard = world.own();
  Pairs pairs;
  for (std::uint64_t i = 0; i < 50; ++i) world.put(shard, pairs, key_of(i), "1");
  const auto trips = [&](auto&& what) {
    const std::uint32_t before = shard.body->cost.trips;
    what();
    return shard.body->cost.trips - before;
  };
  EXPECT_EQ(trips([&] { world.put(shard, pairs, "new", "1"); }), 1u);
  EXPECT_EQ(trips([&] { world.put(shard, pairs, "new", "2"); }), 2u);
  EXPECT_EQ(trips([&] { (void)world.get(shard, "new"); }), 1u);
  EXPECT_EQ(trips([&] { (void)world.get(shard, "absent"); }), 1u);
  EXPECT_EQ(trips([&] { (void)world.act(shard, {Doing::Kind::remove, "absent", ""}); }), 1u);
  EXPECT_EQ(trips([&] { (void)world.act(shard, {Doing::Kind::remove, "new", ""}); }), 2u);
}

// --- Deaths

struct Doomed {
  const char* name;
  std::uint64_t keys = 0;  // before
  Doing what;              // a key without a name lies in the stash; "moves" and "stash" stand for keys as in new_key()
  std::uint64_t seed = 1;
};

const std::string kLong(100, 'a'), kLonger(300, 'b');

std::vector<Doomed> doomed() {
  using Kind = Doing::Kind;
  return {
      {"insert into an empty table", 0, {Kind::insert, "new", "1"}},
      {"insert of an extent", 6, {Kind::insert, "new", kLong}},
      {"update in place", 6, {Kind::update, key_of(1), "another"}},
      {"update from place to extent", 6, {Kind::update, key_of(1), kLong}},
      {"update from extent to extent", 6, {Kind::update, key_of(0), kLonger}},
      {"update from extent to place", 6, {Kind::update, key_of(0), "2"}},
      {"remove in place", 6, {Kind::remove, key_of(1), ""}},
      {"remove of an extent", 6, {Kind::remove, key_of(0), ""}},
      {"put of a new key", 6, {Kind::put, "new", "1"}},
      {"insert that moves pairs", 20, {Kind::insert, "moves", "1"}},
      {"insert of an extent that moves pairs", 20, {Kind::insert, "moves", kLong}},
      {"insert into the stash", 31, {Kind::insert, "stash", "1"}},
      {"update in the stash", 34, {Kind::update, "", "another"}},
      {"remove from the stash", 34, {Kind::remove, "", ""}},
  };
}

// Returns the first new key whose insert moves pairs, or goes to the stash.
std::string new_key(const Doomed& doomed) {
  for (std::uint64_t i = 0; i < 300; ++i) {
    World world(kSmall, doomed.seed);
    Shard& shard = world.own();
    Pairs pairs;
    for (std::uint64_t k = 0; k < doomed.keys; ++k) world.put(shard, pairs, key_of(k), value_of(k));
    const std::uint64_t stashed = shard.owner().index().stashed(), moved = shard.owner().counts().moved;
    Doing what = doomed.what;
    what.key = "new-" + std::to_string(i);
    if (!world.act(shard, what).ok()) continue;
    const bool goes_to_stash = shard.owner().index().stashed() > stashed;
    const bool moves = shard.owner().counts().moved > moved;
    if (doomed.what.key == "moves" ? moves : goes_to_stash) return what.key;
  }
  ADD_FAILURE() << "no key is as " << doomed.name << " asks";
  return "";
}

// A key that lies in the stash.
std::string stashed(World& world, const Pairs& pairs) {
  for (const auto& [key, value] : pairs) {
    const std::uint64_t hash = base::keyed_hash(world.secret, base::bytes_of(key));
    for (Place place = world.shape.stash_begin(); place < world.shape.end(); ++place) {
      const Slot slot = world.slot(place);
      if (slot.whole() && slot.hash_under(world.secret) == hash) return key;
    }
  }
  ADD_FAILURE() << "no key lies in the stash";
  return "";
}

struct Deaths {
  std::uint64_t worlds = 0, before = 0, after = 0, repaired = 0;
  std::uint64_t moved = 0;  // by the operation that survived
};

// Lets the owner die after `effects` of the operation, and judges what the next one finds. Returns whether it survived.
bool die(const Doomed& doomed, std::uint64_t effects, InFlight posted, Deaths& deaths) {
  World world(kSmall, doomed.seed);
  Shard& victim = world.own();
  Pairs before;
  for (std::uint64_t i = 0; i < doomed.keys; ++i) world.put(victim, before, key_of(i), value_of(i));
  Doing what = doomed.what;
  if (what.key.empty()) what.key = stashed(world, before);
  Pairs after = before;
  what.apply(after);
  const std::uint64_t moved = victim.owner().counts().moved;
  victim.port->crash_after(effects, posted);
  victim.body->changed = Status(Code::internal, "not yet");
  const Result<bool> answer = world.act(victim, what);
  if (!victim.port->crashed()) {
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    deaths.moved += victim.owner().counts().moved - moved;
    victim.port->crash(posted);
  }
  Shard& next = world.own();
  Pairs all = before;
  all.insert(after.begin(), after.end());
  const Pairs found = world.found(next, all);
  EXPECT_TRUE(found == after || (!answer.ok() && found == before))
      << doomed.name << " after " << effects << " effects: " << found.size() << " keys of " << after.size();
  world.expect(next, found);
  ++deaths.worlds;
  deaths.repaired += next.owner().counts().repaired;
  ++(found == after ? deaths.after : deaths.before);
  // What the next owner works with is good for changes, too.
  Pairs going = found;
  for (const auto& [key, value] : found) {
    const Doing removes{Doing::Kind::remove, key, ""};
    const Result<bool> existed = world.act(next, removes);
    EXPECT_TRUE(existed.ok() && *existed) << doomed.name << " after " << effects << " effects";
    removes.apply(going);
  }
  world.expect(next, going);
  return answer.ok();
}

class CuckooDuoDeath : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CuckooDuoDeath, AfterEachEffectTheNextOwnerFindsEveryPair) {
  for (const auto& [seed, posted] : {std::pair(1, InFlight::cut), std::pair(2, InFlight::cut),
                                     std::pair(3, InFlight::cut), std::pair(4, InFlight::lands)}) {
    Doomed scenario = doomed()[GetParam()];
    scenario.seed = static_cast<std::uint64_t>(seed);
    if (scenario.what.key == "moves" || scenario.what.key == "stash") scenario.what.key = new_key(scenario);
    ASSERT_FALSE(HasFailure());
    Deaths deaths;
    std::uint64_t effects = 0;
    while (!die(scenario, effects, posted, deaths)) {
      ASSERT_LT(++effects, 500u);
      ASSERT_FALSE(HasFailure());
    }
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(deaths.worlds, 2u) << scenario.name;
    if (posted == InFlight::cut) EXPECT_GT(deaths.before, 0u) << scenario.name;
    EXPECT_GT(deaths.after, 0u);
    if (std::string(scenario.name).ends_with("moves pairs")) EXPECT_GT(deaths.moved, 0u);
  }
}
INSTANTIATE_TEST_SUITE_P(All, CuckooDuoDeath, ::testing::Range<std::size_t>(0, doomed().size()));

// The next owner may die while it repairs: the one after it finds the same.
TEST(CuckooDuoOwner, DiesInItsRepairs) {
  const Doing what{Doing::Kind::update, key_of(1), "another"};
  for (std::uint64_t effects = 0;; ++effects) {
    World world(kSmall, 1);
    Pairs pairs;
    Shard& victim = world.own();
    for (std::uint64_t i = 0; i < 6; ++i) world.put(victim, pairs, key_of(i), value_of(i));
    victim.port->crash_after(7, InFlight::cut);  // the spare slot has the new pair, and the old one is torn
    (void)world.act(victim, what);
    ASSERT_TRUE(victim.port->crashed());
    what.apply(pairs);
    Shard& second = world.join();
    second.port->crash_after(effects, InFlight::cut);
    second.body->scope.spawn(World::taking(second.body.get(), second.soon()));
    ASSERT_TRUE(world.wait_until([&] { return second.port->crashed() || second.body->scope.running() == 0; }));
    const bool survived = !second.port->crashed();
    if (survived) {
      EXPECT_GT(second.owner().counts().repaired, 0u);
      second.port->crash(InFlight::cut);
    }
    world.expect(world.own(), pairs);
    ASSERT_FALSE(HasFailure()) << effects;
    if (survived) {
      EXPECT_GT(effects, 3u);
      break;
    }
    ASSERT_LT(effects, 100u);
  }
}

// --- One owner at a time

TEST(CuckooDuoOwner, AnOwnerThatWasStoppedAnswersNothingThatItDoesNotKnow) {
  World world(kRoomy);
  Shard& stopped = world.own();
  Pairs pairs;
  world.put(stopped, pairs, "there", "1");
  stopped.port->pause();
  Shard& next = world.own();
  world.put(next, pairs, "new", "1");
  world.put(next, pairs, "there", "2");
  // It goes on where it was stopped, and has not heard of its end.
  EXPECT_TRUE(stopped.owner().owns());
  Found absent = std::optional<std::string>(), old = absent;
  Shard::Body* body = stopped.body.get();
  body->scope.spawn(World::getting(body->owner.get(), "new", stopped.soon(), &absent, &body->cost));
  body->scope.spawn(World::getting(body->owner.get(), "there", stopped.soon(), &old, &body->cost));
  body->scope.spawn(World::acting(body, {Doing::Kind::remove, "new", ""}, stopped.soon()));
  stopped.port->resume();
  ASSERT_TRUE(world.wait_until([&] { return body->scope.running() == 0; }));
  EXPECT_FALSE(absent.ok()) << "a key that is there";
  EXPECT_FALSE(old.ok());
  EXPECT_FALSE(body->changed.ok());
  EXPECT_FALSE(stopped.owner().owns());
  world.expect(next, pairs);
}

TEST(CuckooDuoOwner, WaitsForAnotherOnlyUntilItsDeadline) {
  World world(kRoomy);
  Shard& first = world.own();
  Shard& second = world.join();
  world.take(second);
  EXPECT_EQ(second.body->taken.code(), Code::timed_out) << second.body->taken.message();
  EXPECT_EQ(world.act(second, {Doing::Kind::put, "k", "v"}).code(), Code::unavailable);
  EXPECT_TRUE(world.act(first, {Doing::Kind::put, "k", "v"}).ok());
}

TEST(CuckooDuoOwner, GivesBackWhenItsOperationsHaveEnded) {
  World world(kRoomy);
  Shard& shard = world.own();
  for (std::uint64_t i = 0; i < 20; ++i) {
    shard.body->scope.spawn(World::acting(shard.body.get(), {Doing::Kind::put, key_of(i), value_of(i)}, shard.soon()));
  }
  world.give_back(shard);
  EXPECT_EQ(shard.body->scope.running(), 0u);
  Shard& next = world.own();
  Pairs pairs;
  for (std::uint64_t i = 0; i < 20; ++i) pairs[key_of(i)] = value_of(i);
  world.expect(next, pairs);
  EXPECT_EQ(next.owner().counts().repaired, 0u);
}

// --- Operations beside each other

class Count final : public index::Editor {
 public:
  index::Edit edit(std::optional<std::string_view> value) override {
    const int next = value ? std::stoi(std::string(*value)) + 1 : 1;
    // Now and then the pair does not fit its slot.
    std::string text = std::to_string(next);
    if (next % 4 == 0) text.insert(0, 60, '0');
    return index::Edit::put(std::move(text));
  }
};

Task<void> count(Shard* shard, std::uint64_t seed, int keys, int times) {
  base::Random random(seed);
  Count one_more;
  Cost cost;
  for (int i = 0; i < times; ++i) {
    const std::string key = key_of(random.below(static_cast<std::uint64_t>(keys)));
    const Result<bool> done =
        co_await shard->owner().change(key, {.name = "a count", .editor = &one_more}, shard->soon(), cost);
    EXPECT_TRUE(done.ok()) << done.status().message();
  }
}

// Adds keys and takes them away again, so that others are moved.
Task<void> crowd(Shard* shard, std::uint64_t seed, int times) {
  Cost cost;
  for (int i = 0; i < times; ++i) {
    const std::string key = "crowd-" + std::to_string(seed) + "-" + std::to_string(i % 7);
    const Doing puts{Doing::Kind::put, key, "x"}, removes{Doing::Kind::remove, key, ""};
    const Result<bool> put = co_await shard->owner().change(key, puts.wish(), shard->soon(), cost);
    EXPECT_TRUE(put.ok() || put.code() == Code::out_of_memory) << put.status().message();
    const Found found = co_await shard->owner().lookup(key, shard->soon(), cost);
    EXPECT_TRUE(found.ok() && found->has_value() == put.ok());
    const Result<bool> removed = co_await shard->owner().change(key, removes.wish(), shard->soon(), cost);
    EXPECT_TRUE(removed.ok() && *removed == put.ok());
  }
}

// The count of a key never goes back.
Task<void> watch(Shard* shard, int keys, const bool* over) {
  std::vector<int> seen(static_cast<std::size_t>(keys));
  Cost cost;
  while (!*over) {
    for (int i = 0; i < keys; ++i) {
      const Found found = co_await shard->owner().lookup(key_of(static_cast<std::uint64_t>(i)), shard->soon(), cost);
      EXPECT_TRUE(found.ok()) << found.status().message();
      if (!found.ok()) co_return;
      int& last = seen[static_cast<std::size_t>(i)];
      const int now = *found ? std::stoi(**found) : 0;
      EXPECT_GE(now, last);
      last = now;
    }
  }
}

TEST(CuckooDuoOwner, OperationsOnTheSameBucketsDoNotLoseEachOther) {
  std::uint64_t moved = 0, waits = 0, looked = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world(kSmall, seed);
    Shard& shard = world.own();
    constexpr int kKeys = 18, kTimes = 40;
    bool over = false;
    task::Scope watchers, workers;
    watchers.spawn(watch(&shard, kKeys, &over));
    for (std::uint64_t i = 0; i < 6; ++i) workers.spawn(count(&shard, 100 * seed + i, kKeys, kTimes));
    for (std::uint64_t i = 0; i < 3; ++i) workers.spawn(crowd(&shard, i, kTimes));
    ASSERT_TRUE(world.wait_until([&] { return workers.running() == 0; }));
    over = true;
    ASSERT_TRUE(world.wait_until([&] { return watchers.running() == 0; }));
    int sum = 0;
    Pairs pairs;
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const Found found = world.get(shard, key_of(i));
      ASSERT_TRUE(found.ok());
      if (!*found) continue;
      pairs[key_of(i)] = **found;
      sum += std::stoi(**found);
    }
    EXPECT_EQ(sum, 6 * kTimes);
    world.expect(shard, pairs);
    moved += shard.owner().counts().moved;
    waits += shard.owner().counts().waits;
    looked += shard.owner().counts().looked;
    world.give_back(shard);
    Shard& next = world.own();
    world.expect(next, pairs);
    EXPECT_EQ(next.owner().counts().repaired, 0u);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(moved, 20u);
  EXPECT_GT(waits, 100u);
  EXPECT_GT(looked, 10u);
}

// --- What cannot be

TEST(CuckooDuoOwner, RefusesATableThatDoesNotFit) {
  Shape large = kRoomy;
  large.buckets = 1 << 20;
  World world(large);
  Shard& shard = world.join();
  world.take(shard);
  EXPECT_EQ(shard.body->taken.code(), Code::invalid_argument);
  EXPECT_THAT(shard.body->taken.message(), HasSubstr("does not fit the table region"));
}

TEST(CuckooDuoOwner, SaysThatTheTableIsFullAndGoesOn) {
  World world(kSmall);
  Shard& shard = world.own();
  Pairs pairs;
  Result<bool> last = true;
  for (std::uint64_t i = 0; last.ok(); ++i) {
    const Doing what{Doing::Kind::put, key_of(i), value_of(i)};
    last = world.act(shard, what);
    if (last.ok()) what.apply(pairs);
  }
  EXPECT_EQ(last.code(), Code::out_of_memory) << last.status().message();
  EXPECT_GT(pairs.size(), 30u);
  world.put(shard, pairs, key_of(0), "smaller");
  world.expect(shard, pairs);
}

TEST(CuckooDuoOwner, TellsOfASecondWriter) {
  World world(kRoomy);
  Shard& shard = world.own();
  Pairs pairs;
  world.put(shard, pairs, "k", "v");
  for (Place place = 0; place < kRoomy.end(); ++place) {
    if (world.slot(place).whole()) world.slot_bytes(place)[kSlotHeader] ^= std::byte{1};
  }
  EXPECT_EQ(world.get(shard, "k").code(), Code::corrupt);
  EXPECT_EQ(world.act(shard, {Doing::Kind::put, "k", "w"}).code(), Code::corrupt);
  // It serves other keys all the same.
  EXPECT_TRUE(world.act(shard, {Doing::Kind::put, "another", "w"}).ok());
}

TEST(CuckooDuoOwner, DoesNotTakeADamagedVaultAndLeavesTheLease) {
  World world(kSmall);
  (void)world.join();
  std::vector<std::byte> bytes(kSmall.slot_bytes);
  for (Place place = 0; place < kSmall.stash_begin(); ++place) {
    (void)put_pair(bytes, place, place + 1, base::bytes_of(key_of(place)), base::bytes_of("v"));
    std::copy(bytes.begin(), bytes.end(), world.slot_bytes(place).begin());
  }
  for (int times = 0; times < 2; ++times) {
    Shard& shard = world.join();
    world.take(shard);
    EXPECT_EQ(shard.body->taken.code(), Code::corrupt) << shard.body->taken.message();
  }
}

}  // namespace
}  // namespace farpool::cuckooduo
