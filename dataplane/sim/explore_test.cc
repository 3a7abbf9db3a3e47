// SPDX-License-Identifier: Apache-2.0
// The explorer finds planted faults within the smallest bound that allows them, and finds none where there are none.
#include "sim/explore.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "fabric/contract/wire.h"
#include "sim/explore_worlds.h"
#include "task/scope.h"

namespace farpool::sim {
namespace {

using fabric::Fate;
using fabric::Lane;
using fabric::Op;
using fabric::Outcome;
using fabric::contract::TestHost;

// Clients that each run one coroutine on a few words of a memory node.
class Toy final : public Scene {
 public:
  struct Actor {
    Toy* toy = nullptr;
    fabric::sim::SimPort* port = nullptr;
    std::unique_ptr<Lane> lane;
    bool begun = false, over = false;
    std::string noted;  // what it concluded

    task::Task<Outcome> post(std::vector<Op> ops) { co_return co_await lane->post(ops, port->now() + base::kSecond); }
    task::Task<std::uint64_t> read(std::uint64_t word) {
      fabric::Buffer into = port->buffer(8);
      co_await post({Op::read(at(word), into.first(8))});
      co_return base::load<std::uint64_t>(into.data());
    }
    task::Task<void> write(std::uint64_t word, std::uint64_t value) {
      fabric::Buffer from = port->buffer(8);
      base::store(from.data(), value);
      co_await post({Op::write(at(word), from.first(8))});
    }
  };
  using Body = task::Task<void> (*)(Actor&);
  using Judge = std::vector<std::string> (*)(Toy&);

  static fabric::Remote at(std::uint64_t word) { return {TestHost::kSmall, 8 * word}; }

  Toy(std::vector<Body> bodies, Judge judge)
      : host_(64), network_({.tear = false}), bodies_(std::move(bodies)), judge_(judge) {
    fabric::sim::SimResponder& node = network_.add_node("node");
    node.serve(host_);
    actors_.resize(bodies_.size());
    for (std::size_t i = 0; i < actors_.size(); ++i) {
      actors_[i].toy = this;
      actors_[i].port = &network_.add_client({.role = "client"});
      scope_.spawn(open(actors_[i], host_.grant(i + 1, "node")));
    }
    network_.run_until([this] { return scope_.running() == 0; }, base::kSecond);
  }
  ~Toy() override {
    for (Actor& actor : actors_) {
      actor.port->revive();
      actor.lane->sever();
    }
    network_.run_until([this] { return scope_.running() == 0; }, base::kNever);
    for (Actor& actor : actors_) actor.lane.reset();
  }

  fabric::sim::Network& network() override { return network_; }
  std::size_t clients() const override { return actors_.size(); }
  bool may_begin(std::size_t client) const override { return !actors_[client].begun; }
  void begin(std::size_t client) override {
    actors_[client].begun = true;
    scope_.spawn(play(actors_[client], bodies_[client]));
  }
  bool busy(std::size_t client) const override { return actors_[client].begun && !actors_[client].over; }
  void crash(std::size_t client) override { actors_[client].port->crash(fabric::sim::InFlight::cut); }
  std::uint64_t fingerprint() const override {
    std::uint64_t bits = 0;
    for (const Actor& actor : actors_) bits = bits * 4 + (actor.begun ? 1 : 0) + (actor.over ? 2 : 0);
    return bits;
  }
  std::vector<std::string> judge() override { return judge_(*this); }
  std::string next_name(std::size_t) const override { return "its part"; }
  std::string place(fabric::Remote at, std::uint64_t) const override { return "word " + std::to_string(at.offset / 8); }

  std::uint64_t word(std::uint64_t number) { return host_.word(TestHost::kSmall, 8 * number); }
  const Actor& actor(std::size_t number) const { return actors_[number]; }

 private:
  static task::Task<void> open(Actor& actor, fabric::LaneGrant grant) {
    auto lane = co_await actor.port->open_lane(std::move(grant), base::kSecond);
    if (lane) actor.lane = std::move(*lane);
  }
  static task::Task<void> play(Actor& actor, Body body) {
    co_await body(actor);
    actor.over = true;
  }

  TestHost host_;
  fabric::sim::Network network_;
  std::vector<Actor> actors_;
  const std::vector<Body> bodies_;
  const Judge judge_;
  task::Scope scope_;
};

SmallWorld world(std::vector<Toy::Body> bodies, Toy::Judge judge, Bounds bounds) {
  return {"toy", bounds, [=] { return std::make_unique<Toy>(bodies, judge); }};
}

// --- A lock in word 0 and a counter in word 1.

task::Task<void> add_under_lock(Toy::Actor& a, bool atomic) {
  for (;;) {
    std::uint64_t held = 1;
    if (atomic) {
      std::uint64_t old = 1;
      co_await a.post({Op::cas(Toy::at(0), old, 0, 1)});
      held = old;
    } else {
      held = co_await a.read(0);
      if (held == 0) co_await a.write(0, 1);
    }
    if (held == 0) break;
    if (!a.lane->open()) co_return;  // the world ends
    co_await a.port->sleep_for(base::kMicrosecond);
  }
  const std::uint64_t count = co_await a.read(1);
  co_await a.write(1, count + 1);
  co_await a.write(0, 0);
}
task::Task<void> with_atomic_lock(Toy::Actor& a) { return add_under_lock(a, true); }
task::Task<void> with_plain_lock(Toy::Actor& a) { return add_under_lock(a, false); }

std::vector<std::string> all_counted(Toy& toy) {
  if (toy.word(1) == toy.clients()) return {};
  return {"the counter is " + std::to_string(toy.word(1))};
}

TEST(Explore, FindsALockThatIsNoLockWithAsManyPreemptionsAsItTakes) {
  const std::vector<Toy::Body> plain{with_plain_lock, with_plain_lock};
  const SmallWorld broken = world(plain, all_counted, {.preemptions = 2});
  const Explored found = explore(broken);
  ASSERT_TRUE(found.failure);
  EXPECT_EQ(found.failure->wrong, std::vector<std::string>{"the counter is 1"});
  EXPECT_NE(found.failure->story.find("client 1  READ  word 0"), std::string::npos) << found.failure->story;
  // Its tape tells the same story again, and every decision of it matters.
  EXPECT_EQ(replay(broken, found.failure->tape).wrong, found.failure->wrong);
  EXPECT_EQ(replay(broken, found.failure->tape).story, found.failure->story);
  for (const auto& [decision, way] : found.failure->tape) {
    Tape without = found.failure->tape;
    without.erase(decision);
    EXPECT_TRUE(replay(broken, without).wrong.empty());
  }
  EXPECT_FALSE(explore(world(plain, all_counted, {.preemptions = 0})).failure);
}

TEST(Explore, FindsNothingInALock) {
  for (const std::size_t clients : {2u, 3u}) {
    const Explored found =
        explore(world(std::vector<Toy::Body>(clients, with_atomic_lock), all_counted, {.preemptions = 3}));
    EXPECT_FALSE(found.failure) << found.failure->story;
    EXPECT_TRUE(found.whole);
    EXPECT_GT(found.states, 10u);
    EXPECT_GT(found.judged, 2u);
  }
}

TEST(Explore, StopsWhenItIsToldTo) {
  const Explored found = explore(world({with_atomic_lock, with_atomic_lock}, all_counted, {.preemptions = 3}), 5);
  EXPECT_FALSE(found.whole);
}

// --- Words that belong together.

constexpr std::uint64_t kMany = 5;
task::Task<void> write_many(Toy::Actor& a) {
  fabric::Buffer from = a.port->buffer(8 * kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) base::store(from.data() + 8 * i, std::uint64_t{7});
  co_await a.post({Op::write(Toy::at(0), from.first(8 * kMany))});
}
task::Task<void> read_many(Toy::Actor& a) {
  fabric::Buffer into = a.port->buffer(8 * kMany);
  co_await a.post({Op::read(Toy::at(0), into.first(8 * kMany))});
  for (std::uint64_t i = 0; i < kMany; ++i) a.noted += base::load<std::uint64_t>(into.data() + 8 * i) == 0 ? '0' : '1';
}
// What all runs together saw.
std::set<std::string>& sights() {
  static std::set<std::string> seen;
  return seen;
}
std::vector<std::string> note(Toy& toy) {
  sights().insert(toy.actor(1).noted);
  return {};
}
TEST(Explore, TearsOnceAtEveryWordFromBothEnds) {
  sights().clear();
  EXPECT_TRUE(explore(world({write_many, read_many}, note, {.preemptions = 1})).whole);
  EXPECT_EQ(sights(), (std::set<std::string>{"00000", "00001", "00011", "00111", "01111", "10000", "11000", "11100",
                                             "11110", "11111"}));
  sights().clear();
  EXPECT_TRUE(explore(world({write_many, read_many}, note, {.preemptions = 0})).whole);
  EXPECT_EQ(sights(), (std::set<std::string>{"00000", "11111"}));
}

// --- Verbs of one chain that change places.

task::Task<void> write_two(Toy::Actor& a) {
  co_await a.write(0, 1);
  co_await a.write(1, 1);
}
task::Task<void> read_two(Toy::Actor& a) {
  fabric::Buffer into = a.port->buffer(16);
  co_await a.post({Op::read(Toy::at(0), into.first(8)), Op::read(Toy::at(1), into.span().subspan(8, 8))});
  a.noted = std::to_string(base::load<std::uint64_t>(into.data())) +
            std::to_string(base::load<std::uint64_t>(into.data() + 8));
}
TEST(Explore, LetsReadsChangePlaces) {
  sights().clear();
  EXPECT_TRUE(explore(world({write_two, read_two}, note, {.preemptions = 2})).whole);
  EXPECT_EQ(sights(), (std::set<std::string>{"00", "01", "10", "11"}));
}
TEST(Explore, PreemptsNobodyWithMoreUnderWayThanItMay) {
  sights().clear();
  EXPECT_TRUE(explore(world({write_two, read_two}, note, {.preemptions = 2, .few = 1})).whole);
  EXPECT_EQ(sights(), (std::set<std::string>{"00", "01", "10", "11"}));  // a verb is left when it is preempted
  sights().clear();
  EXPECT_TRUE(explore(world({write_two, read_two}, note, {.preemptions = 2, .few = 0})).whole);
  EXPECT_EQ(sights(), (std::set<std::string>{"00", "11"}));
}

// --- Losses and deaths.

task::Task<void> add_blindly(Toy::Actor& a) {
  std::uint64_t old = 0;
  const Outcome outcome = co_await a.post({Op::fetch_add(Toy::at(1), old, 1)});
  a.noted = outcome.fate == Fate::done ? "done" : "maybe";
}
std::vector<std::string> added(Toy& toy) {
  sights().insert(toy.actor(0).noted + " " + std::to_string(toy.word(1)));
  return {};
}
TEST(Explore, LosesAnswersWithinItsBound) {
  sights().clear();
  EXPECT_TRUE(explore(world({add_blindly}, added, {.preemptions = 0, .losses = 1})).whole);
  EXPECT_EQ(sights(), (std::set<std::string>{"done 1", "maybe 1"}));
}

template <bool kPublishesFirst>
task::Task<void> publish(Toy::Actor& a) {
  co_await a.write(kPublishesFirst ? 0 : 1, 1);
  co_await a.write(kPublishesFirst ? 1 : 0, 1);
}
std::vector<std::string> published_whole(Toy& toy) {
  return toy.word(0) == 1 && toy.word(1) == 0 ? std::vector<std::string>{"it points to nothing"}
                                              : std::vector<std::string>();
}
TEST(Explore, KillsClientsAfterAnyEffect) {
  const Bounds bounds{.preemptions = 0, .crashes = 1, .mortal = {0}};
  const Explored found = explore(world({publish<true>}, published_whole, bounds));
  ASSERT_TRUE(found.failure);
  EXPECT_NE(found.failure->story.find("dies"), std::string::npos) << found.failure->story;
  EXPECT_FALSE(explore(world({publish<false>}, published_whole, bounds)).failure);
  EXPECT_FALSE(explore(world({publish<true>}, published_whole, {.preemptions = 0})).failure);
}

// --- Tapes.

TEST(Tape, IsReadAsItWasWritten) {
  const Tape tape{{3, 1}, {17, 22}};
  EXPECT_EQ(describe(tape), "3:1,17:22");
  EXPECT_EQ(parse_tape("3:1,17:22"), tape);
  EXPECT_EQ(parse_tape("-"), Tape());
  EXPECT_EQ(describe(Tape()), "-");
  for (const char* bad : {"", "3", "3:", "3:x", "3:1,", "3:1;4:1", ":1", "3:1,3:2"})
    EXPECT_FALSE(parse_tape(bad)) << bad;
}

// --- The pool's own worlds; all of them are explored by `simulate --worlds`.

TEST(SmallWorlds, AFewAreRight) {
  for (const char* name : {"insert-remove", "update-lookup", "extent-update-lookup", "move-lookup", "move-dies-lookup",
                           "split-modify", "outback-overflow-lookup", "outback-long-lookup", "outback-grows-lookup",
                           "outback-rebuilds-lookup", "outback-rebuilds-insert"}) {
    const SmallWorld* found = find_small_world(name);
    ASSERT_NE(found, nullptr) << name;
    const Explored explored = explore(*found);
    EXPECT_TRUE(explored.whole) << name;
    // Where a memory node executes an operation as one, there are few orders.
    EXPECT_GT(explored.judged, std::string_view(name).starts_with("outback-") ? 10u : 50u) << name;
    ASSERT_FALSE(explored.failure) << name << ": " << explored.failure->wrong[0] << "\n"
                                   << explored.failure->story << "replay: simulate --world " << name << " --tape "
                                   << describe(explored.failure->tape);
  }
}

TEST(SmallWorlds, ATapeIsARun) {
  const SmallWorld& world = *find_small_world("modify-modify");
  const Replayed first = replay(world, {}), other = replay(world, {{2, 1}});
  EXPECT_EQ(replay(world, {}).story, first.story);
  EXPECT_NE(other.story, first.story);
  EXPECT_TRUE(first.wrong.empty());
}

}  // namespace
}  // namespace farpool::sim
