// SPDX-License-Identifier: Apache-2.0
// The two sides of a session against each other.
#include "session/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "layout/calls.h"
#include "layout/regions.h"
#include "node/world_test.h"

namespace farpool::node {
namespace {

using base::Code;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using session::EraPin;

// A word of the table region that nothing else touches here.
constexpr fabric::Remote kWord{layout::kTable, 0};

task::Task<void> post_one(Session& session, Op op, Outcome& outcome) {
  Cost cost;
  const std::array chain{op};
  outcome = co_await session.post(chain, session.port().now() + kSecond, cost);
}

std::uint64_t word_of(const TestWorld& world) {
  return base::load<std::uint64_t>(world.memory.span().data() + world.geometry().at(layout::kTable).offset);
}

TEST(Session, OpensTicksAndSaysGoodbye) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  auto session = world.open(port);
  ASSERT_TRUE(session);
  EXPECT_EQ(session->grant().slots, 4u);
  EXPECT_EQ(session->epoch(), 1u);
  EXPECT_TRUE(session->why().ok());
  for (const layout::RegionId id : {layout::kSlots, layout::kTable, layout::kHeap}) {
    EXPECT_EQ(session->region_bytes(id), world.geometry().at(id).bytes);
  }
  world.pass(60 * kSecond);  // thirty leases
  EXPECT_TRUE(session->alive()) << session->why().message();
  EXPECT_GT(session->era(), 20u);
  EXPECT_GE(session->safe_era() + 2, session->era());
  EXPECT_EQ(session->places(), 1u);
  world.node->stand_alone();
  world.pass(kSecond);
  EXPECT_EQ(session->epoch(), 2u);
  Outcome outcome;
  std::uint64_t old = 0;
  world.run(post_one(*session, Op::fetch_add(kWord, old, 0), outcome));
  EXPECT_EQ(outcome.fate, Fate::done);
  world.close(std::move(session));
  EXPECT_EQ(world.node->stats().sessions_closed, 1u);
  EXPECT_EQ(world.node->stats().sessions, 0u);
  for (const std::string& line : world.log) {
    EXPECT_EQ(line.find("of the dead"), std::string::npos) << line;
    EXPECT_EQ(line.find("half done"), std::string::npos) << line;
  }
}

TEST(Session, AMemoryNodeSaysWhichProcessesClosedTheirSessions) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  Session::Options options = world.session_options(port);
  options.client_process = 7;
  options.node_name = "memory-0";
  auto session = world.try_open(port, options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_EQ((*session)->grant().lane.node_name, "memory-0") << "its certificate has to say so";
  EXPECT_EQ(world.node->facts().memory_node().closed_size(), 0);
  world.close(std::move(*session));
  ASSERT_EQ(world.node->facts().memory_node().closed_size(), 1);
  EXPECT_EQ(world.node->facts().memory_node().closed(0), 7u);
}

TEST(Session, RefusalsTellTheClientWhatToDo) {
  TestWorld world;
  SimPort& port = world.client();
  EXPECT_EQ(world.try_open(port, world.session_options(port)).code(), Code::invalid_argument);  // epoch 0
  auto options = world.session_options(port);
  options.epoch = 1;
  auto refused = world.try_open(port, options);
  EXPECT_EQ(refused.code(), Code::unavailable);
  EXPECT_NE(refused.status().message().find("no epoch"), std::string::npos) << refused.status().message();
  world.node->stand_alone();
  options.epoch = 2;
  EXPECT_EQ(world.try_open(port, options).code(), Code::stale);
  options.epoch = 1;
  options.node_incarnation ^= 1;
  EXPECT_EQ(world.try_open(port, options).code(), Code::stale);
  options = world.session_options(port);
  options.pool_uid = "loop";
  EXPECT_EQ(world.try_open(port, options).code(), Code::forbidden);
  options = world.session_options(port);
  options.endpoint = "node-7:7400";
  EXPECT_EQ(world.try_open(port, options).code(), Code::unavailable);
  world.network.options().retry_time = world.options.failure_timeout + 1;
  refused = world.try_open(port, world.session_options(port));
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.status().message().find("--failure-timeout"), std::string::npos) << refused.status().message();
}

TEST(Session, AnEpochThatStopsTheNodeEndsIt) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  auto session = world.open(port);
  v1alpha1::ShardMap map = *std::make_unique<v1alpha1::ShardMap>(world.node->facts().memory_node().map());
  map.set_epoch(2);
  map.mutable_nodes(0)->set_state(v1alpha1::MemoryNodeEntry::STATE_STOPPED);
  base::HashSecret secret = session->grant().pool_secret;
  EXPECT_EQ(world.node->publish(map, secret).verdict, MemoryNode::Verdict::adopted);
  EXPECT_TRUE(world.wait_until([&] { return !session->alive(); }));
  Outcome outcome{.fate = Fate::done};
  std::uint64_t old = 0;
  world.run(post_one(*session, Op::fetch_add(kWord, old, 1), outcome));
  EXPECT_EQ(outcome.fate, Fate::refused);
  EXPECT_FALSE(session->why().message().empty());
  world.close(std::move(session));
  auto options = world.session_options(port);
  options.epoch = 2;
  const auto again = world.try_open(port, options);
  EXPECT_EQ(again.code(), Code::unavailable);
  EXPECT_NE(again.status().message().find("accept the loss"), std::string::npos) << again.status().message();
}

// A client that writes as soon as it has a lane, as often as it may.
task::Task<void> open_and_add(SimPort& port, Session::Options options, std::unique_ptr<Session>& into) {
  auto opened = co_await Session::open(port, std::move(options));
  if (!opened.ok()) co_return;
  into = std::move(*opened);
  for (int i = 0; i < 40 && into->alive(); ++i) {
    Outcome outcome;
    std::uint64_t old = 0;
    co_await post_one(*into, Op::fetch_add(kWord, old, 1), outcome);
    if (outcome.fate != Fate::done) co_return;
  }
}

// A session may be fenced while its client is about to open the lane. At whatever moment that is, nothing of the
// session lands once the memory node says that it has ended.
TEST(Session, ALaneThatIsOpenedWhileItsSessionIsBeingFencedCarriesNothing) {
  int opened = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    TestWorld world(seed);
    world.node->stand_alone();
    SimPort& port = world.client();
    Session::Options options = world.session_options(port);
    options.client_process = 7;
    std::unique_ptr<Session> session;
    bool over = false, fenced = false;
    std::uint64_t at_the_end = 0;
    task::Scope scope;
    scope.spawn(TestWorld::note_end(open_and_add(port, options, session), over));
    FARPOOL_CHECK(world.network.run_until([&] { return world.node->stats().sessions > 0; }, kSecond));
    world.network.at(world.network.now() + static_cast<Nanos>(seed * 60), [&] {
      world.node->fence({7}, [&](const v1alpha1::FenceResponse&) {
        fenced = true;
        at_the_end = word_of(world);
      });
    });
    ASSERT_TRUE(world.wait_until([&] { return fenced && over; }));
    world.pass(10 * kMillisecond);
    EXPECT_EQ(word_of(world), at_the_end) << "seed " << seed << ": something landed behind the fence";
    EXPECT_EQ(world.node->stats().sessions, 0u);
    ++(session ? opened : refused);
    if (session) world.close(std::move(session));
  }
  EXPECT_GT(opened, 20);
  EXPECT_GT(refused, 20);
}

// Clocks are never compared: the client counts from when it sent its last answered tick, and stops before the node lets
// go.
TEST(Session, TheClientStopsBeforeTheNodeFencesIt) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    TestWorld world(seed);
    world.node->stand_alone();
    SimPort& port = world.client();
    auto session = world.open(port);
    world.pass(base::Nanos(seed) * 137 * kMillisecond);
    world.wire.hold_calls(true);
    Nanos stopped = 0, fenced = 0;
    ASSERT_TRUE(world.wait_until([&] {
      if (stopped == 0 && !session->alive()) stopped = world.network.now();
      if (fenced == 0 && world.node->stats().sessions_fenced > 0) fenced = world.network.now();
      return stopped != 0 && fenced != 0;
    }));
    EXPECT_LT(stopped, fenced) << "seed " << seed;
    EXPECT_EQ(session->why().code(), Code::unavailable);
    EXPECT_NE(session->why().message().find("did not answer a tick within the lease"), std::string::npos)
        << session->why().message();
    world.wire.hold_calls(false);
    world.close(std::move(session));
  }
}

TEST(Session, AStoppedClientIsFencedAndFindsOutWhenItWakes) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  auto session = world.open(port);
  const std::uint64_t before = word_of(world);
  port.pause();
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions_fenced == 1; }));
  port.resume();
  EXPECT_FALSE(session->alive());
  Outcome outcome;
  std::uint64_t old = 0;
  world.run(post_one(*session, Op::fetch_add(kWord, old, 1), outcome));
  EXPECT_NE(outcome.fate, Fate::done);
  world.pass(kSecond);
  EXPECT_EQ(word_of(world), before);
  // Its incarnation never comes back.
  auto options = world.session_options(port);
  options.client_incarnation = session->grant().client_incarnation;
  EXPECT_EQ(world.try_open(port, options).code(), Code::stale);
  world.close(std::move(session));
}

TEST(Session, ALostGoodbyeCostsOnlyTheLease) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  auto session = world.open(port);
  world.network.options().lose_exchange = 1;
  world.close(std::move(session));
  world.network.options().lose_exchange = 0;
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions == 0; }));
  EXPECT_EQ(world.node->stats().sessions_held_by_the_dead, 0u);
}

task::Task<void> use_slot(Session& session, std::uint64_t keys, fabric::Cost& cost, Outcome& outcome) {
  auto slot = co_await session.take_slot(session.port().now() + kSecond);
  FARPOOL_CHECK(slot.ok());
  slot->words().lock_word[0] = {.offset = 0, .mask = 1};
  slot->words().keys_after = slot->words().keys + keys;
  const std::array chain{slot->claim(0, cost), slot->plan(), slot->settle()};
  outcome = co_await session.post(chain, session.port().now() + kSecond, cost);
  slot->clear(cost);
}

TEST(Session, SlotsNameTheirHolderAndCountersOutliveTheSession) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  std::uint64_t sequence = 0;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    auto session = world.open(port);
    Cost cost;
    Outcome outcome;
    world.run(use_slot(*session, 5, cost, outcome));
    EXPECT_EQ(outcome.fate, Fate::done);
    EXPECT_EQ(cost.trips, 1u);
    EXPECT_EQ(cost.messages, 4u);  // the clear rides in the background
    world.close(std::move(session));
    const layout::OperationSlot left = world.slot(0);
    EXPECT_EQ(left.holder, 0u);
    EXPECT_EQ(left.keys, 5 * round);
    EXPECT_GT(left.sequence, sequence);
    sequence = left.sequence;
  }
  world.pass(2 * kSecond);
  EXPECT_EQ(world.node->stats().keys, 15u);
}

// Drains rely on this. The table has room for a hundred times as many keys.
TEST(Session, KeysAreToldOfByTheHundredthOfThemselves) {
  TestWorld world(1, 64 << 20);
  world.node->stand_alone();
  ASSERT_GT(world.node->stats().entries, 100'000u);
  auto session = world.open(world.client());
  const auto told_after = [&](std::int64_t keys) {
    Cost cost;
    Outcome outcome;
    world.run(use_slot(*session, static_cast<std::uint64_t>(keys), cost, outcome));
    world.pass(2 * kSecond);
    return world.node->facts().memory_node().keys();
  };
  EXPECT_EQ(told_after(1), 1u);
  EXPECT_EQ(told_after(10), 1u);
  EXPECT_EQ(told_after(1), 12u);
  EXPECT_EQ(told_after(2988), 3000u);
  EXPECT_EQ(told_after(-30), 3000u);
  EXPECT_EQ(told_after(-1), 2969u);
  EXPECT_EQ(told_after(-2960), 9u);
  EXPECT_EQ(told_after(-8), 9u);
  EXPECT_EQ(told_after(-1), 0u);
  world.close(std::move(session));
}

task::Task<void> hold_slot(Session& session, task::Event& go, std::size_t& holding) {
  auto slot = co_await session.take_slot(session.port().now() + 10 * kSecond);
  FARPOOL_CHECK(slot.ok());
  ++holding;
  co_await go;
}
task::Task<void> want_slot(Session& session, Nanos patience, base::Status& status) {
  auto slot = co_await session.take_slot(session.port().now() + patience);
  status = slot.status();
}

TEST(Session, SlotsBoundTheOperationsInFlight) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  std::array<task::Event, 2> go;
  std::size_t holding = 0;
  task::Scope scope;
  for (int i = 0; i < 6; ++i) scope.spawn(hold_slot(*session, go[i < 4 ? 0 : 1], holding));
  EXPECT_EQ(holding, 4u);
  base::Status late;
  world.run(want_slot(*session, 10 * kMillisecond, late));
  EXPECT_EQ(late.code(), Code::timed_out);
  go[0].set();
  EXPECT_TRUE(world.wait_until([&] { return holding == 6; }));
  base::Status soon{Code::internal, ""};
  world.run(want_slot(*session, kSecond, soon));
  EXPECT_TRUE(soon.ok());
  go[1].set();
  EXPECT_EQ(scope.running(), 0u);
  world.close(std::move(session));
}

TEST(Session, ATaskThatWaitsForASlotHearsOfTheSessionsEnd) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  Session::Options options = world.session_options(port);
  options.client_process = 7;
  auto opened = world.try_open(port, options);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  std::unique_ptr<Session> session = std::move(*opened);
  task::Event go;
  std::size_t holding = 0;
  base::Status heard;
  task::Scope scope;
  for (int i = 0; i < 4; ++i) scope.spawn(hold_slot(*session, go, holding));
  scope.spawn(want_slot(*session, 600 * kSecond, heard));
  world.pass(kMillisecond);
  EXPECT_TRUE(heard.ok());
  world.node->fence({7}, [](const v1alpha1::FenceResponse& told) { EXPECT_EQ(told.left_size(), 0); });
  ASSERT_TRUE(world.wait_until([&] { return !heard.ok(); }, world.options.lease));
  EXPECT_EQ(heard.code(), Code::unavailable);
  EXPECT_FALSE(session->alive());
  base::Status refused;
  go.set();
  world.run(want_slot(*session, kSecond, refused));
  EXPECT_EQ(refused.code(), Code::unavailable) << "slots are free, and the session has ended";
  world.close(std::move(session));
}

TEST(Session, AVerbThatIsRefusedEndsIt) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  Outcome outcome;
  std::uint64_t old = 0;
  const fabric::Remote beyond{layout::kTable, world.geometry().at(layout::kTable).bytes};
  world.run(post_one(*session, Op::fetch_add(beyond, old, 1), outcome));
  EXPECT_EQ(outcome.fate, Fate::refused);
  EXPECT_FALSE(session->alive());
  EXPECT_EQ(session->why().code(), Code::stale);
  EXPECT_NE(session->why().message().find("refused a verb"), std::string::npos) << session->why().message();
  world.close(std::move(session));
}

TEST(Session, AChainThatIsNotConfirmedEndsIt) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  world.network.options().lose_reply = 1;
  Outcome outcome;
  std::uint64_t old = 0;
  world.run(post_one(*session, Op::fetch_add(kWord, old, 1), outcome));
  world.network.options().lose_reply = 0;
  EXPECT_EQ(outcome.fate, Fate::maybe);
  EXPECT_FALSE(session->alive());
  EXPECT_NE(session->why().message().find("did not confirm a chain"), std::string::npos) << session->why().message();
  world.close(std::move(session));
}

// A client that begins anew says which session it has given up: nobody waits for that one's lease.
TEST(Session, ASessionEndsTheOneBeforeIt) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  auto first = world.open(port);
  Session::Options options = world.session_options(port);
  options.previous_incarnation = first->grant().client_incarnation;
  options.previous_token = first->grant().lane.token;
  auto second = world.try_open(port, options);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE(world.wait_until([&] { return !first->alive(); }, 10 * kMillisecond));
  EXPECT_EQ(world.node->stats().sessions, 1u);
  world.close(std::move(first));
  EXPECT_TRUE((*second)->alive());
  world.close(std::move(*second));
}

task::Task<void> tick(Session& session, Nanos patience) { co_await session.tick_now(session.port().now() + patience); }

task::Task<void> ask_to_forget(Session& session, Nanos patience, std::optional<base::Result<std::uint64_t>>& answer) {
  answer = co_await session.ask_to_forget(session.port().now() + patience);
}

TEST(Session, WhoAsksToForgetIsAnsweredByATickThatAsked) {
  for (int round = 0; round < 8; ++round) {
    TestWorld world(1, 4 << 20, 4, 100 * base::kMicrosecond);
    world.node->stand_alone();
    SimPort& port = world.client();
    auto session = world.open(port);
    // A tick may be under way.
    world.pass(round * session->grant().tick / 8);
    if (round % 2 == 0) ASSERT_TRUE(world.wait_until([&] { return port.in_flight() > 0; }));
    const std::uint64_t forgets = session->forgets();
    std::optional<base::Result<std::uint64_t>> answer;
    world.run(ask_to_forget(*session, 10 * kSecond, answer));
    ASSERT_TRUE(answer->ok()) << answer->status().message();
    EXPECT_EQ(session->forgets(), forgets + 1) << round;
    EXPECT_EQ(**answer, session->era());
    world.close(std::move(session));
  }
}

TEST(Session, WhoAsksToForgetHearsOfTheDeadlineAndTheEnd) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  world.wire.hold_calls(true);
  std::optional<base::Result<std::uint64_t>> answer;
  world.run(ask_to_forget(*session, 10 * kMillisecond, answer));
  EXPECT_EQ(answer->code(), Code::timed_out);
  EXPECT_TRUE(session->alive());
  session->end({Code::stale, "the test ends it"});
  world.run(ask_to_forget(*session, 10 * kSecond, answer));
  EXPECT_EQ(answer->code(), Code::stale);
  world.wire.hold_calls(false);
  world.close(std::move(session));
}

TEST(Session, ATickThatIsUnderWayIsNotTheOneThatWasAskedFor) {
  TestWorld world(1, 4 << 20, 4, 100 * base::kMicrosecond);
  world.node->stand_alone();
  SimPort& port = world.client();
  auto session = world.open(port);
  ASSERT_TRUE(world.wait_until([&] { return port.in_flight() > 0; }));
  const std::uint64_t era = session->era();
  world.run(tick(*session, kSecond));
  EXPECT_EQ(session->era(), era + 2);
  world.close(std::move(session));
}

TEST(Session, AHurryBeginsAtOnce) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  const std::uint64_t before = session->era();
  ASSERT_TRUE(world.wait_until([&] { return session->era() > before; }));
  const std::uint64_t era = session->era();
  world.pass(kMillisecond);
  session->hurry_eras();
  EXPECT_TRUE(world.wait_until([&] { return session->era() > era; }, session->grant().tick / 4));
  world.close(std::move(session));
}

TEST(Session, ASlotThatIsGivenBackGoesToTheOneThatWaits) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  task::Event first, newcomers, waiter;
  std::size_t held_first = 0, held_by_newcomers = 0, held_by_waiter = 0;
  task::Scope scope;
  for (int i = 0; i < 4; ++i) scope.spawn(hold_slot(*session, first, held_first));
  scope.spawn(hold_slot(*session, waiter, held_by_waiter));
  first.set();  // the waiter is woken, and runs later
  EXPECT_EQ(held_by_waiter, 0u);
  for (int i = 0; i < 4; ++i) scope.spawn(hold_slot(*session, newcomers, held_by_newcomers));
  EXPECT_EQ(held_by_newcomers, 3u);
  EXPECT_TRUE(world.wait_until([&] { return held_by_waiter == 1; }));
  EXPECT_EQ(held_by_newcomers, 3u);
  waiter.set();
  EXPECT_TRUE(world.wait_until([&] { return held_by_newcomers == 4; }));
  newcomers.set();
  EXPECT_EQ(scope.running(), 0u);
  world.close(std::move(session));
}

TEST(Session, ASlotThatIsDroppedAfterAWriteIsClearedAllTheSame) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  struct Drop {
    static task::Task<void> run(Session& session) {
      auto slot = co_await session.take_slot(session.port().now() + kSecond);
      Cost cost;
      const std::array chain{slot->claim(0, cost)};
      co_await session.post(chain, session.port().now() + kSecond, cost);
    }
  };
  world.run(Drop::run(*session));
  EXPECT_NE(world.slot(0).holder, 0u);
  EXPECT_TRUE(world.wait_until([&] { return world.slot(0).holder == 0; }));
  world.close(std::move(session));
}

// Claims a slot, keeps it for some time, and gives it back. `held` is what the memory node had for its holder then.
task::Task<void> claim_for(TestWorld& world, Session& session, Nanos time, Cost& cost, std::uint64_t& held) {
  auto slot = co_await session.take_slot(session.port().now() + kSecond);
  FARPOOL_CHECK(slot.ok());
  const std::array chain{slot->claim(0, cost)};
  (void)co_await session.post(chain, session.port().now() + kSecond, cost);
  co_await session.port().sleep_for(time);
  held = world.slot(0).holder;
  slot->clear(cost);
}

TEST(Session, AClaimSavesTheClearOfItsTurnAndOfNoOther) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  std::array<Cost, 3> costs;
  std::array<std::uint64_t, 3> held{};
  struct Claims {
    static task::Task<void> run(TestWorld& world, Session& session, std::array<Cost, 3>& costs,
                                std::array<std::uint64_t, 3>& held) {
      co_await claim_for(world, session, kMillisecond, costs[0], held[0]);
      co_await claim_for(world, session, kMillisecond, costs[1], held[1]);
      co_await session.port().sleep_for(1);
      co_await claim_for(world, session, kMillisecond, costs[2], held[2]);
    }
  };
  world.run(Claims::run(world, *session, costs, held));
  for (const std::uint64_t holder : held) {
    EXPECT_EQ(holder, session->grant().client_incarnation) << "a clear came behind the claim";
  }
  EXPECT_EQ(costs[0].messages, 2u);
  EXPECT_EQ(costs[1].messages, 1u) << "the clear before it was charged, and never left";
  EXPECT_EQ(costs[2].messages, 2u);
  EXPECT_TRUE(world.wait_until([&] { return world.slot(0).holder == 0; }));
  world.close(std::move(session));
}

TEST(Session, ASlotOfWhichNobodyKnowsThatItIsClearedEndsTheSession) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  struct Clear {
    static task::Task<void> run(TestWorld& world, Session& session) {
      auto slot = co_await session.take_slot(session.port().now() + kSecond);
      Cost cost;
      const std::array chain{slot->claim(0, cost)};
      co_await session.post(chain, session.port().now() + kSecond, cost);
      world.network.options().lose_reply = 1;
      slot->clear(cost);
    }
  };
  world.run(Clear::run(world, *session));
  ASSERT_TRUE(world.wait_until([&] { return !session->alive(); }, world.options.lease));
  world.network.options().lose_reply = 0;
  world.pass(kMillisecond);
  EXPECT_NE(session->why().message().find("did not confirm cleared operation slots"), std::string::npos)
      << session->why().message();
  world.close(std::move(session));
}

TEST(Session, AClientThatDiesInMidOperationLeavesItsSlot) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  struct Body {
    task::Scope scope;
    std::unique_ptr<Session> session;
    Cost cost;
    Outcome outcome;
  };
  auto body = std::make_shared<Body>();
  body->session = world.open(port);
  const std::uint64_t incarnation = body->session->grant().client_incarnation;
  port.crash_after(layout::kSlotClaim.bytes / 8, fabric::sim::InFlight::cut);  // the claim's words, and then no more
  body->scope.spawn(use_slot(*body->session, 1, body->cost, body->outcome));
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions_fenced == 1; }));
  fabric::sim::bury(body);
  EXPECT_EQ(world.slot(0).holder, incarnation);
  EXPECT_EQ(world.node->stats().sessions_held_by_the_dead, 1u);
  EXPECT_NE(world.log.back().find("left an operation half done"), std::string::npos) << world.log.back();
  auto next = world.open(world.client());
  EXPECT_EQ(next->grant().slots_offset, 4 * sizeof(layout::OperationSlot));
  world.close(std::move(next));
}

TEST(Session, APinHoldsTheEraBackForEverybody) {
  TestWorld world;
  world.node->stand_alone();
  auto reader = world.open(world.client()), writer = world.open(world.client());
  world.pass(3 * kSecond);
  std::uint64_t pinned = 0;
  {
    const EraPin pin = reader->pin();
    pinned = reader->era();
    world.pass(3 * kSecond);
    EXPECT_LE(writer->safe_era(), pinned);
    EXPECT_LE(writer->era(), pinned + 1);
    const EraPin later = reader->pin();
    world.pass(kSecond);
    EXPECT_LE(writer->safe_era(), pinned);
    EXPECT_TRUE(reader->alive());  // it is slow, not dead
  }
  world.pass(2 * kSecond);
  EXPECT_GT(writer->safe_era(), pinned + 1);
  world.close(std::move(reader));
  world.close(std::move(writer));
}

// A memory node with wrong answers.
class Liar final : public fabric::Host {
 public:
  Liar(TestWorld& world) : world_(world) { world.wire.serve(*this); }
  void on_exchange(const fabric::Peer& peer, std::string request, std::function<void(std::string)> reply) override {
    world_.node->on_exchange(peer, std::move(request), [this, reply = std::move(reply)](std::string honest) {
      reply(reply_for ? reply_for(std::move(honest)) : std::move(honest));
    });
  }
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>& token) override {
    return world_.node->on_open_lane(token);
  }
  std::optional<std::size_t> on_call(std::uint64_t session_id, std::uint32_t opcode, base::Bytes request,
                                     base::MutableBytes reply) override {
    const std::optional<std::size_t> honest = world_.node->on_call(session_id, opcode, request, reply);
    if (!tick_for || opcode != layout::kTick || !honest) return honest;
    auto told = base::load<layout::TickReply>(reply.data());
    const std::size_t bytes = tick_for(told);
    base::store(reply.data(), told);
    return bytes;
  }

  std::function<std::string(std::string)> reply_for;
  std::function<std::size_t(layout::TickReply&)> tick_for;  // returns the reply's length

 private:
  TestWorld& world_;
};

// Eras say which memory may be used again: a client believes no part of an impossible answer.
TEST(Session, ATickThatCannotBeEndsTheSession) {
  struct Case {
    const char* what;
    std::function<std::size_t(layout::TickReply&, const Session&)> lie;
  };
  constexpr std::size_t kWhole = sizeof(layout::TickReply);
  const Case cases[] = {
      {"a short reply", [](auto&, auto&) { return kWhole - 8; }},
      {"no reply", [](auto&, auto&) { return std::size_t{0}; }},
      {"an era before the last", [](auto& told, auto& session) { return told.era = session.era() - 1, kWhole; }},
      {"an era that nobody has published", [](auto& told, auto&) { return told.era += 2, kWhole; }},
      {"a safe era that has not begun", [](auto& told, auto&) { return told.safe_era = told.era + 1, kWhole; }},
      {"a safe era before the last", [](auto& told, auto&) { return told.safe_era = 0, kWhole; }},
  };
  for (const Case& c : cases) {
    TestWorld world;
    world.node->stand_alone();
    Liar liar(world);
    auto session = world.open(world.client());
    world.pass(3 * kSecond);
    ASSERT_TRUE(session->alive()) << session->why().message();
    ASSERT_GT(session->safe_era(), 0u);
    const std::uint64_t era = session->era(), safe_era = session->safe_era();
    std::uint64_t honest = 0;
    liar.tick_for = [&](layout::TickReply& told) {
      honest = std::max(honest, told.era);
      return c.lie(told, *session);
    };
    EXPECT_TRUE(world.wait_until([&] { return !session->alive(); }, kSecond)) << c.what;
    EXPECT_EQ(session->why().code(), Code::corrupt) << c.what << ": " << session->why().message();
    EXPECT_LE(session->era(), std::max(era, honest)) << c.what;
    EXPECT_EQ(session->safe_era(), safe_era) << c.what;
    liar.tick_for = nullptr;
    world.close(std::move(session));
  }
}

TEST(Session, AGrantThatCannotBeIsNotTaken) {
  TestWorld world;
  world.node->stand_alone();
  Liar liar(world);
  SimPort& port = world.client();
  const std::function<std::string(std::string)> lies[] = {
      [](const std::string&) { return std::string("\x0a\xff"); },
      [](std::string honest) {
        v1alpha1::SessionReply reply;
        EXPECT_TRUE(reply.ParseFromString(honest));
        reply.mutable_grant()->set_node_incarnation(reply.grant().node_incarnation() + 1);
        return reply.SerializeAsString();
      },
  };
  for (const auto& lie : lies) {
    liar.reply_for = lie;
    EXPECT_EQ(world.try_open(port, world.session_options(port)).code(), Code::corrupt);
  }
}

// A slot that is not idle is a dead client's: its half-done operation would be forgotten.
TEST(Session, OperationSlotsThatAreNotIdleAreNotTaken) {
  TestWorld world;
  world.node->stand_alone();
  const std::uint64_t at = world.geometry().at(layout::kSlots).offset + 2 * sizeof(layout::OperationSlot);
  base::store(world.memory.span().data() + at + layout::kSlotHolder.offset, std::uint64_t{5});
  SimPort& port = world.client();
  const auto refused = world.try_open(port, world.session_options(port));
  ASSERT_EQ(refused.code(), Code::corrupt);
  EXPECT_NE(refused.status().message().find("operation slot 2 "), std::string::npos) << refused.status().message();
  EXPECT_EQ(world.slot(2).holder, 5u);
}

// The client stood still while it opened the session. The memory node counts the lease from later on, and still has it.
TEST(Session, ASessionWhoseLeaseIsOverBeforeItIsReadyIsNotHandedOut) {
  TestWorld world;
  world.node->stand_alone();
  SimPort& port = world.client();
  Session::Options options = world.session_options(port);
  options.deadline = port.now() + 60 * kSecond;
  base::Result<std::unique_ptr<Session>> opened(base::Status(Code::internal, "never opened"));
  bool over = false;
  task::Scope scope;
  scope.spawn(TestWorld::note_end(TestWorld::opening(port, options, opened), over));
  ASSERT_TRUE(world.wait_until([&port] { return port.in_flight() > 0; })) << "it reads its operation slots";
  port.pause();
  world.pass(world.options.lease - world.options.lease / 16);
  ASSERT_EQ(world.node->stats().sessions, 1u);
  port.resume();
  ASSERT_TRUE(world.wait_until([&over] { return over; }, kSecond));
  EXPECT_EQ(opened.code(), Code::unavailable);
  EXPECT_NE(opened.status().message().find("lease"), std::string::npos) << opened.status().message();
  if (opened.ok()) world.close(std::move(*opened));
}

task::Task<void> say_goodbye(Session& session, bool& over) {
  co_await session.close(session.port().now() + kSecond);
  over = true;
}

TEST(Session, ASessionThatClosesLendsNoSlot) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  bool over = false;
  base::Status refused;
  task::Scope scope;
  const Nanos begun = world.network.now();
  EXPECT_FALSE(session->leaving());
  scope.spawn(say_goodbye(*session, over));
  EXPECT_TRUE(session->leaving());
  scope.spawn(want_slot(*session, kSecond, refused));
  EXPECT_FALSE(over);
  EXPECT_TRUE(session->alive());
  EXPECT_EQ(refused.code(), Code::unavailable);
  EXPECT_NE(refused.message().find("is closing"), std::string::npos) << refused.message();
  ASSERT_TRUE(world.wait_until([&over] { return over; }));
  EXPECT_LT(world.network.now() - begun, session->grant().tick / 4);
  EXPECT_FALSE(session->alive());
  EXPECT_NE(session->why().message().find("was closed"), std::string::npos) << session->why().message();
}

TEST(Session, ATickCanBeHadSoonAndIsBoundedByItsDeadline) {
  TestWorld world;
  world.node->stand_alone();
  auto session = world.open(world.client());
  const Nanos begun = world.network.now();
  const std::uint64_t era = session->era();
  for (int i = 0; i < 4; ++i) world.run(tick(*session, kSecond));
  EXPECT_EQ(session->era(), era + 4);
  EXPECT_LT(world.network.now() - begun, 4 * session->grant().tick);
  world.pass(4 * session->grant().tick);
  const std::uint64_t after = session->era();
  world.pass(4 * session->grant().tick);
  EXPECT_LE(session->era(), after + 5) << "the hurry is over";
  world.wire.hold_calls(true);
  const Nanos held = world.network.now();
  world.run(tick(*session, 20 * kMillisecond));
  EXPECT_LE(world.network.now() - held, 21 * kMillisecond);
  world.wire.hold_calls(false);
  world.pass(kSecond);
  EXPECT_TRUE(session->alive());
  world.close(std::move(session));
}

}  // namespace
}  // namespace farpool::node
