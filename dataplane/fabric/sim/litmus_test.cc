// SPDX-License-Identifier: Apache-2.0
// Litmus tests: over many seeds each weak outcome that the contract permits occurs, and each that it forbids never
// does. The lines of fabric/contract/ordering.md, one by one.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fabric/contract/wire.h"
#include "fabric/sim/network.h"
#include "task/scope.h"

namespace farpool::fabric::sim {
namespace {

using contract::TestHost;

constexpr std::uint64_t kSeeds = 200;
constexpr std::size_t kWords = 8;

Remote at(std::uint64_t offset) { return {TestHost::kSmall, offset}; }

// One memory node and two clients, each with two lanes.
struct World {
  explicit World(Options options) : network(options), node(network.add_node("node")) {
    node.serve(host);
    for (int i = 0; i < 2; ++i) ports.push_back(&network.add_client({.role = "client"}));
  }
  TestHost host{64};
  Network network;
  SimResponder& node;
  std::vector<SimPort*> ports;
  std::string outcome;
  Nanos soon() const { return network.now() + base::kSecond; }
};

struct Memory {
  explicit Memory(Port& port, std::uint64_t value = 0) : buffer(port.buffer(8 * kWords)) {
    for (std::size_t i = 0; i < kWords; ++i) base::store(buffer.data() + 8 * i, value);
  }
  std::uint64_t word(std::size_t i) const { return base::load<std::uint64_t>(buffer.data() + 8 * i); }
  std::set<std::uint64_t> values() const {
    std::set<std::uint64_t> seen;
    for (std::size_t i = 0; i < kWords; ++i) seen.insert(word(i));
    return seen;
  }
  base::MutableBytes span() const { return buffer.first(8 * kWords); }
  Buffer buffer;
};

task::Task<std::unique_ptr<Lane>> open_at(World& world, TestHost& host, std::string endpoint, std::size_t client) {
  auto lane = co_await world.ports[client]->open_lane(host.grant(client + 1, std::move(endpoint)), world.soon());
  if (!lane) std::abort();
  co_return std::move(*lane);
}
task::Task<std::unique_ptr<Lane>> open(World& world, std::size_t client) {
  return open_at(world, world.host, "node", client);
}

task::Task<void> post(World& world, Lane& lane, std::vector<Op> ops) {
  const Outcome outcome = co_await lane.post(ops, world.soon());
  EXPECT_EQ(outcome.fate, Fate::done);
}

using Body = task::Task<void> (*)(World&);

task::Task<void> until_over(task::Task<void> body, bool& over) {
  co_await std::move(body);
  over = true;
}

// Every outcome of the body over many seeds.
std::set<std::string> outcomes(Body body, Options options = {}) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    options.seed = seed;
    World world(options);
    bool over = false;
    task::Scope scope;
    scope.spawn(until_over(body(world), over));
    if (!world.network.run_until([&over] { return over; }, 100 * base::kSecond)) std::abort();
    seen.insert(world.outcome);
  }
  return seen;
}
using Set = std::set<std::string>;

std::string describe(const std::set<std::uint64_t>& values) {
  std::string text;
  for (std::uint64_t value : values) text += (text.empty() ? "" : "+") + std::to_string(value);
  return text;
}

// ---- pairs of one lane ----------------------------------------------------------------------------------------------

// `first` and `second` in one chain; the outcome is what `read` or `old` holds then.
task::Task<void> read_then_write(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 1), into(*world.ports[0]);
  co_await post(world, *lane, {Op::read(at(0), into.span()), Op::write(at(0), from.span())});
  world.outcome = describe(into.values());
}
TEST(Litmus, AReadIsOvertakenByALaterWriteEvenInPart) { EXPECT_EQ(outcomes(read_then_write), (Set{"0", "0+1", "1"})); }
TEST(Litmus, WithoutTearingAReadIsOvertakenWhole) {
  EXPECT_EQ(outcomes(read_then_write, {.tear = false}), (Set{"0", "1"}));
}

task::Task<void> read_then_fenced_write(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 1), into(*world.ports[0]);
  co_await post(world, *lane, {Op::read(at(0), into.span()), Op::write(at(0), from.span()).fenced()});
  world.outcome = describe(into.values());
}
TEST(Litmus, AReadIsNotOvertakenByAFencedWrite) { EXPECT_EQ(outcomes(read_then_fenced_write), Set{"0"}); }

task::Task<void> read_then_atomic(World& world) {
  auto lane = co_await open(world, 0);
  Memory into(*world.ports[0]);
  std::uint64_t old = 0;
  co_await post(world, *lane, {Op::read(at(0), into.span()), Op::cas(at(0), old, 0, 1)});
  world.outcome = std::to_string(into.word(0));
}
TEST(Litmus, AReadIsOvertakenByALaterAtomic) { EXPECT_EQ(outcomes(read_then_atomic), (Set{"0", "1"})); }

task::Task<void> read_then_call(World& world) {
  auto lane = co_await open(world, 0);
  Memory into(*world.ports[0]), request(*world.ports[0]), reply(*world.ports[0]);
  task::Scope scope;
  scope.spawn(post(world, *lane, {Op::read(at(0), into.span())}));
  scope.spawn(post(world, *lane, {Op::call(TestHost::kBump, request.span().first(8), reply.span())}));
  co_await scope.join();
  world.outcome = std::to_string(into.word(0));
}
TEST(Litmus, AReadIsOvertakenByALaterCall) { EXPECT_EQ(outcomes(read_then_call), (Set{"0", "1"})); }

task::Task<void> change_twice(World& world, Lane& lane) {
  Memory one(*world.ports[1], 1), two(*world.ports[1], 2);
  co_await post(world, lane, {Op::write(at(0), one.span().first(8))});
  co_await post(world, lane, {Op::write(at(0), two.span().first(8))});
}
task::Task<void> read_then_read(World& world) {
  auto lane = co_await open(world, 0), other = co_await open(world, 1);
  Memory first(*world.ports[0]), second(*world.ports[0]);
  task::Scope scope;
  scope.spawn(change_twice(world, *other));
  scope.spawn(post(world, *lane, {Op::read(at(0), first.span().first(8)), Op::read(at(0), second.span().first(8))}));
  co_await scope.join();
  world.outcome = first.word(0) > second.word(0) ? "the second is older" : "in order";
}
TEST(Litmus, TwoReadsChangePlaces) {
  EXPECT_EQ(outcomes(read_then_read, {.straggle = 0.5}), (Set{"in order", "the second is older"}));
}

task::Task<void> atomic_then_read(World& world) {
  auto lane = co_await open(world, 0);
  Memory into(*world.ports[0]);
  std::uint64_t old = 0;
  co_await post(world, *lane, {Op::masked_cas(at(8), old, 0, 1, 1, 1), Op::read(at(0), into.span())});
  world.outcome = std::to_string(into.word(1));
}
TEST(Litmus, AnAtomicIsNeverOvertakenByALaterRead) {
  EXPECT_EQ(outcomes(atomic_then_read, {.straggle = 0.5}), Set{"1"});
}

task::Task<void> atomic_then_write(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 5);
  std::uint64_t old = 0;
  co_await post(world, *lane, {Op::fetch_add(at(0), old, 1), Op::write(at(0), from.span().first(8))});
  world.outcome = std::to_string(old);
}
TEST(Litmus, AnAtomicIsOvertakenByALaterWrite) { EXPECT_EQ(outcomes(atomic_then_write), (Set{"0", "5"})); }

task::Task<void> atomic_then_fenced_write(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 5);
  std::uint64_t old = 0;
  co_await post(world, *lane, {Op::fetch_add(at(0), old, 1), Op::write(at(0), from.span().first(8)).fenced()});
  world.outcome = std::to_string(old);
}
TEST(Litmus, AnAtomicIsNotOvertakenByAFencedWrite) { EXPECT_EQ(outcomes(atomic_then_fenced_write), Set{"0"}); }

task::Task<void> atomic_then_atomic(World& world) {
  auto lane = co_await open(world, 0);
  std::uint64_t first = 0, second = 0;
  co_await post(world, *lane, {Op::fetch_add(at(0), first, 1), Op::fetch_add(at(0), second, 1)});
  world.outcome = std::to_string(first) + " " + std::to_string(second);
}
TEST(Litmus, TwoAtomicsChangePlaces) { EXPECT_EQ(outcomes(atomic_then_atomic), (Set{"0 1", "1 0"})); }

task::Task<void> atomic_then_call(World& world) {
  auto lane = co_await open(world, 0);
  Memory request(*world.ports[0]), reply(*world.ports[0]);
  std::uint64_t old = 0;
  task::Scope scope;
  scope.spawn(post(world, *lane, {Op::fetch_add(at(0), old, 1)}));
  scope.spawn(post(world, *lane, {Op::call(TestHost::kPeek, request.span().first(8), reply.span())}));
  co_await scope.join();
  world.outcome = std::to_string(reply.word(0));
}
TEST(Litmus, AnAtomicIsOvertakenByALaterCall) { EXPECT_EQ(outcomes(atomic_then_call), (Set{"0", "1"})); }

task::Task<void> call_then_write(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 5), request(*world.ports[0]), reply(*world.ports[0]);
  task::Scope scope;
  scope.spawn(post(world, *lane, {Op::call(TestHost::kPeek, request.span().first(8), reply.span())}));
  scope.spawn(post(world, *lane, {Op::write(at(0), from.span()).fenced()}));
  co_await scope.join();
  world.outcome = std::to_string(reply.word(0));
}
TEST(Litmus, ACallIsOvertakenByALaterWriteFenceOrNot) { EXPECT_EQ(outcomes(call_then_write), (Set{"0", "5"})); }

task::Task<void> write_then_all(World& world) {
  auto lane = co_await open(world, 0);
  Memory a(*world.ports[0], 1), b(*world.ports[0], 2), into(*world.ports[0]);
  std::uint64_t old = 0;
  co_await post(world, *lane,
                {Op::write(at(0), a.span()), Op::write(at(0), b.span()), Op::read(at(0), into.span()),
                 Op::cas(at(8 * (kWords - 1)), old, 2, 3)});
  world.outcome = describe(into.values()) + " " + std::to_string(old);
}
TEST(Litmus, AWriteIsNeverOvertaken) {
  // The CAS may overtake the READ, so the last word that the READ sees may be the CAS's.
  EXPECT_EQ(outcomes(write_then_all, {.straggle = 0.3}), (Set{"2 2", "2+3 2"}));
}

// ---- between lanes --------------------------------------------------------------------------------------------------

task::Task<void> write_a_long_one(World& world, Lane& lane) {
  Memory from(*world.ports[1], 1);
  co_await post(world, lane, {Op::write(at(0), from.span())});
}
task::Task<void> torn(World& world) {
  auto lane = co_await open(world, 0), other = co_await open(world, 1);
  Memory into(*world.ports[0]);
  task::Scope scope;
  scope.spawn(write_a_long_one(world, *other));
  scope.spawn(post(world, *lane, {Op::read(at(0), into.span())}));
  co_await scope.join();
  std::string mix;
  for (std::size_t i = 0; i < kWords; ++i) mix += into.word(i) == 0 ? '0' : '1';
  const bool prefix = mix.find("01") == std::string::npos, suffix = mix.find("10") == std::string::npos;
  world.outcome = prefix && suffix ? "whole"
                  : prefix         ? "torn, low words first"
                  : suffix         ? "torn, high words first"
                                   : "torn";
}
TEST(Litmus, AReadOfAWriteTearsInEveryWay) {
  EXPECT_EQ(outcomes(torn), (Set{"whole", "torn, low words first", "torn, high words first", "torn"}));
}

task::Task<void> two_lanes(World& world) {
  auto first = co_await open(world, 0), second = co_await open(world, 0);
  Memory one(*world.ports[0], 1), two(*world.ports[0], 2);
  task::Scope scope;
  scope.spawn(post(world, *first, {Op::write(at(0), one.span().first(8))}));
  scope.spawn(post(world, *second, {Op::write(at(0), two.span().first(8))}));
  co_await scope.join();
  world.outcome = std::to_string(world.host.word(TestHost::kSmall, 0));
}
TEST(Litmus, LanesAreNotOrdered) { EXPECT_EQ(outcomes(two_lanes), (Set{"1", "2"})); }

// A WRITE of 2 and a CAS of 0 to 1, on two lanes: what the CAS found, and what is there behind both.
task::Task<void> write_beside_cas(World& world, bool awaited) {
  auto one = co_await open(world, 0), other = co_await open(world, 1);
  Memory from(*world.ports[1], 2), into(*world.ports[0]);
  std::uint64_t old = 9;
  task::Scope scope;
  std::vector<Op> write{Op::write(at(0), from.span().first(8))};
  if (!awaited) scope.spawn(post(world, *other, write));
  co_await post(world, *one, {Op::cas(at(0), old, 0, 1)});
  if (awaited) scope.spawn(post(world, *other, write));
  co_await scope.join();
  co_await post(world, *one, {Op::read(at(0), into.span().first(8))});
  world.outcome = std::to_string(old) + ", then " + std::to_string(into.word(0));
}
task::Task<void> write_in_flight(World& world) { return write_beside_cas(world, false); }
task::Task<void> write_afterwards(World& world) { return write_beside_cas(world, true); }
TEST(Litmus, AWriteIsLostWhileAnAtomicOfAnotherLaneChangesTheWord) {
  EXPECT_EQ(outcomes(write_in_flight), (Set{"2, then 2", "0, then 2", "0, then 1"}));
}
TEST(Litmus, AWriteBehindAnAwaitedAtomicIsNotLost) { EXPECT_EQ(outcomes(write_afterwards), Set{"0, then 2"}); }

// ---- fates ----------------------------------------------------------------------------------------------------------

task::Task<void> add_with_losses(World& world) {
  auto lane = co_await open(world, 0);
  std::uint64_t old = 0;
  const std::vector ops{Op::fetch_add(at(0), old, 1)};
  world.network.options().lose_reply = 0.3;
  const Outcome outcome = co_await lane->post(ops, world.ports[0]->now() + 8 * base::kMicrosecond);
  co_await world.ports[0]->sleep_for(base::kMillisecond);
  world.outcome = std::string(outcome.fate == Fate::done ? "done" : "maybe") + " " +
                  std::to_string(world.host.word(TestHost::kSmall, 0));
}
TEST(Litmus, AMaybeMayHaveHappenedOrNotAndADoneHas) {
  EXPECT_EQ(outcomes(add_with_losses, {.straggle = 0.2}), (Set{"done 1", "maybe 0", "maybe 1"}));
}

// A severed lane's WRITE lands before or after its posting has ended, whole or not at all; and only a fence stops it.
task::Task<void> sever_then_look(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 1);
  {
    task::Scope scope;
    const std::vector ops{Op::write(at(0), from.span())};
    Posting posting = lane->post(ops, world.soon());
    struct Ender {
      static task::Task<void> end(World& world, Lane& lane) {
        co_await world.ports[0]->sleep_for(2 * base::kMicrosecond);
        lane.sever();
      }
    };
    scope.spawn(Ender::end(world, *lane));
    co_await posting;
    co_await scope.join();
  }
  std::uint64_t soon = 0, later = 0;
  for (std::size_t i = 0; i < kWords; ++i) soon += world.host.word(TestHost::kSmall, 8 * i);
  co_await world.ports[0]->sleep_for(base::kMillisecond);
  for (std::size_t i = 0; i < kWords; ++i) later += world.host.word(TestHost::kSmall, 8 * i);
  world.outcome = std::string(soon == later ? "settled " : "landed late ") + (later == 0        ? "nothing"
                                                                              : later == kWords ? "all"
                                                                                                : "part");
}
TEST(Litmus, ASeveredWriteMayLandLater) {
  const Set seen = outcomes(sever_then_look);
  EXPECT_TRUE(seen.contains("landed late all"));
  EXPECT_TRUE(seen.contains("settled nothing"));
}

// The memory node fences while a WRITE is under way: it stops at some word, and what has not landed by then never does.
// The outcome is what is there when the fence is told to be over, and whether that lasts.
task::Task<void> post_and_shrug(Lane& lane, std::vector<Op> ops, Nanos deadline, std::string& fate) {
  const Outcome outcome = co_await lane.post(ops, deadline);
  fate = outcome.fate == Fate::done ? "done" : outcome.fate == Fate::maybe ? "maybe" : "refused";
}
std::string how_much(World& world, std::uint64_t first, std::uint64_t words) {
  std::uint64_t landed = 0;
  for (std::uint64_t i = first; i < first + words; ++i) landed += world.host.word(TestHost::kSmall, 8 * i) != 0;
  return landed == 0 ? "nothing" : landed == words ? "all" : "part";
}
Nanos some_time(World& world) { return static_cast<Nanos>(world.network.random().below(12'000)); }

task::Task<void> fence_amid_writes(World& world) {
  auto lane = co_await open(world, 0);
  Memory first(*world.ports[0], 1), second(*world.ports[0], 2);
  std::string fate, found;
  {
    task::Scope scope;
    scope.spawn(post_and_shrug(*lane,
                               {Op::write(at(0), first.span()), Op::write(at(8 * kWords), second.span()).fenced()},
                               world.soon(), fate));
    task::Event over;
    world.network.at(world.network.now() + some_time(world), [&] {
      world.node.fence(1, [&] {
        found = how_much(world, 0, kWords) + " and " + how_much(world, kWords, kWords);
        over.set();
      });
    });
    co_await over;
    co_await scope.join();
  }
  co_await world.ports[1]->sleep_for(base::kMillisecond);
  const bool lasts = found == how_much(world, 0, kWords) + " and " + how_much(world, kWords, kWords);
  world.outcome = found + (lasts ? "" : ", and later more");
  if (fate == "done" && found != "all and all") world.outcome += ", and told to be done";
}
TEST(Litmus, AFenceCutsAWriteAtAnyWordAndForGood) {
  EXPECT_EQ(outcomes(fence_amid_writes, {.straggle = 0.3}),
            (Set{"nothing and nothing", "part and nothing", "all and nothing", "all and part", "all and all"}));
}

// ---- memory nodes that restart --------------------------------------------------------------------------------------

// The process is killed while a WRITE and an atomic are under way; another one serves the same memory. What had landed
// stays, nothing lands later, and the new life serves new lanes alone.
task::Task<void> restart_amid_a_chain(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 1);
  std::string fate, found;
  std::uint64_t old = 0;
  {
    task::Scope scope;
    scope.spawn(post_and_shrug(*lane, {Op::write(at(0), from.span()), Op::fetch_add(at(8 * kWords), old, 1)},
                               world.soon(), fate));
    world.network.at(world.network.now() + some_time(world), [&] {
      world.node.stop();
      found = how_much(world, 0, kWords) + " and " + how_much(world, kWords, 1);
    });
    world.network.at(world.network.now() + 20 * base::kMicrosecond, [&] { world.node.serve(world.host); });
    co_await scope.join();
  }
  co_await world.ports[1]->sleep_for(base::kMillisecond);
  EXPECT_EQ(found, how_much(world, 0, kWords) + " and " + how_much(world, kWords, 1)) << "something landed afterwards";
  EXPECT_FALSE(fate == "done" && found != "all and all");
  auto again = co_await open(world, 0);
  co_await post(world, *again, {Op::write(at(8 * 16 * kWords), from.span())});
  EXPECT_EQ(how_much(world, 16 * kWords, kWords), "all");
  co_await post_and_shrug(*lane, {Op::write(at(8 * 32 * kWords), from.span())}, world.soon(), fate);
  EXPECT_EQ(fate, "maybe") << "a lane of the old life";
  EXPECT_EQ(how_much(world, 32 * kWords, kWords), "nothing");
  world.outcome = found;
}
TEST(Litmus, ARestartStopsVerbsAtAnyWordAndEndsEveryLane) {
  EXPECT_EQ(outcomes(restart_amid_a_chain, {.straggle = 0.3}),
            (Set{"nothing and nothing", "part and nothing", "all and nothing", "all and all"}));
}

// Nobody answers meanwhile; what the old host had asked for does not happen to the new one, whose memory is zero.
task::Task<void> restart_with_new_memory(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 1);
  co_await post(world, *lane, {Op::write(at(0), from.span())});
  bool old_timer = false, old_fence = false;
  world.node.after(base::kMillisecond, [&] { old_timer = true; });
  world.node.fence(2, [&] { old_fence = true; });
  world.node.stop();
  const auto said = co_await world.ports[1]->exchange("node", "hello", world.soon());
  const auto opened = co_await world.ports[1]->open_lane(world.host.grant(2, "node"), world.soon());
  EXPECT_EQ(said.code(), base::Code::unavailable);
  EXPECT_EQ(opened.status().code(), base::Code::unavailable);
  TestHost fresh(64);
  world.node.serve(fresh);
  const auto heard = co_await world.ports[1]->exchange("node", "hello", world.soon());
  EXPECT_TRUE(heard.ok());
  std::string fate;
  co_await post_and_shrug(*lane, {Op::write(at(0), from.span())}, world.soon(), fate);
  co_await world.ports[1]->sleep_for(10 * base::kMillisecond);
  world.outcome = fate + (old_timer || old_fence ? ", and the dead host acts" : "") +
                  (fresh.word(TestHost::kSmall, 0) == 0 ? "" : ", and reaches the new memory");
  world.node.stop();
}
TEST(Litmus, ARestartWithNewMemoryIsAnotherNode) { EXPECT_EQ(outcomes(restart_with_new_memory), Set{"maybe"}); }

// ---- several memory nodes -------------------------------------------------------------------------------------------

// A flag on one node, data on another: one client writes the data and then the flag, the other reads the flag and then
// the data.
task::Task<void> write_one_by_one(World& world, Lane& data, Lane& flag, bool awaits) {
  Memory one(*world.ports[0], 1);
  task::Scope scope;
  if (awaits) {
    co_await post(world, data, {Op::write(at(0), one.span().first(8))});
    co_await post(world, flag, {Op::write(at(0), one.span().first(8))});
  } else {
    scope.spawn(post(world, data, {Op::write(at(0), one.span().first(8))}));
    scope.spawn(post(world, flag, {Op::write(at(0), one.span().first(8))}));
  }
  co_await scope.join();
}
template <bool kAwaits>
task::Task<void> two_nodes(World& world) {
  TestHost other(64);
  SimResponder& second = world.network.add_node("second");
  second.serve(other);
  auto data = co_await open(world, 0), seen_data = co_await open(world, 1);
  auto flag = co_await open_at(world, other, "second", 0), seen_flag = co_await open_at(world, other, "second", 1);
  Memory first(*world.ports[1]), then(*world.ports[1]);
  task::Scope scope;
  scope.spawn(write_one_by_one(world, *data, *flag, kAwaits));
  co_await post(world, *seen_flag, {Op::read(at(0), first.span().first(8))});
  co_await post(world, *seen_data, {Op::read(at(0), then.span().first(8))});
  co_await scope.join();
  world.outcome = "flag " + std::to_string(first.word(0)) + " data " + std::to_string(then.word(0));
  second.stop();
}
TEST(Litmus, MemoryNodesAreNotOrdered) {
  EXPECT_EQ(outcomes(two_nodes<false>, {.straggle = 0.3}),
            (Set{"flag 0 data 0", "flag 0 data 1", "flag 1 data 0", "flag 1 data 1"}));
}
TEST(Litmus, WhatWasAwaitedComesFirstOnAllMemoryNodes) {
  EXPECT_EQ(outcomes(two_nodes<true>, {.straggle = 0.3}), (Set{"flag 0 data 0", "flag 0 data 1", "flag 1 data 1"}));
}

// ---- clocks ---------------------------------------------------------------------------------------------------------

TEST(Clock, ShowsATimeFirstWhenItSaysSo) {
  for (const std::int64_t drift : {0, 1, 200, -200, 300'000, -990'000, 999'999}) {
    for (const Nanos offset : {Nanos{0}, Nanos{12'345'678'901}}) {
      const Clock clock(offset, drift);
      base::Random random(static_cast<std::uint64_t>(drift + 7));
      for (int i = 0; i < 2000; ++i) {
        const auto shown = offset + static_cast<Nanos>(random.below(1ull << random.below(50)));
        const Nanos time = clock.when(shown);
        ASSERT_GE(clock.at(time), shown) << drift;
        if (time > 0) ASSERT_LT(clock.at(time - 1), shown) << drift;
        ASSERT_LE(clock.at(time), clock.at(time + 1)) << drift;
      }
    }
  }
}

task::Task<void> sleep_a_while(SimPort& port, Nanos& slept, Nanos& ended, const Network& network) {
  const Nanos begun = port.now();
  co_await port.sleep_for(base::kMillisecond);
  slept = port.now() - begun;
  ended = network.now();
}
// A timer fires by its own machine's clock, so the order of two machines' timers says nothing.
task::Task<void> sleep_side_by_side(World& world) {
  Nanos slept[2] = {}, ended[2] = {};
  task::Scope scope;
  for (std::size_t i = 0; i < 2; ++i) scope.spawn(sleep_a_while(*world.ports[i], slept[i], ended[i], world.network));
  Nanos node_ended = 0;
  const Nanos node_begun = world.node.now();
  Nanos node_slept = 0;
  world.node.after(base::kMillisecond, [&] {
    node_ended = world.network.now();
    node_slept = world.node.now() - node_begun;
  });
  co_await scope.join();
  co_await world.ports[0]->sleep_for(4 * base::kMillisecond);
  for (const Nanos one : {slept[0], slept[1], node_slept}) {
    EXPECT_GE(one, base::kMillisecond);
    EXPECT_LE(one, base::kMillisecond + 1);
  }
  world.outcome = ended[0] == ended[1]  ? "together"
                  : ended[0] < ended[1] ? "the first is first"
                                        : "the second is first";
  world.outcome += node_ended < ended[0] ? ", after the node" : node_ended == ended[0] ? "" : ", before the node";
}
TEST(Litmus, ClocksAgreeByDefault) { EXPECT_EQ(outcomes(sleep_side_by_side), Set{"together"}); }
TEST(Litmus, ClocksDrift) {
  EXPECT_EQ(outcomes(sleep_side_by_side, {.max_offset = base::kSecond, .max_drift_ppm = 200'000}),
            (Set{"the first is first, after the node", "the first is first, before the node",
                 "the second is first, after the node", "the second is first, before the node"}));
}

// ---- crashes and pauses ---------------------------------------------------------------------------------------------

struct Owned {  // what a client owns lives on the heap, so that a crash can bury it
  task::Scope scope;
};
task::Task<void> three_writes_and_an_add(World& world) {
  auto lane = co_await open(world, 0);
  Memory from(*world.ports[0], 1);
  std::uint64_t old = 0;
  co_await post(world, *lane, {Op::write(at(0), from.span().first(24))});
  co_await post(world, *lane, {Op::fetch_add(at(64), old, 1)});
}
std::uint64_t words_landed(World& world) {
  std::uint64_t sum = 0;
  for (std::uint64_t word : world.host.snapshot()) sum += word;
  return sum;
}

TEST(Crash, CutsExactlyAfterTheNthEffect) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (std::uint64_t after = 0; after <= 5; ++after) {
      World world({.seed = seed});
      auto body = std::make_shared<Owned>();
      world.ports[0]->crash_after(after, InFlight::cut);
      bool over = false;
      body->scope.spawn(until_over(three_writes_and_an_add(world), over));
      world.network.run_until([&] { return over; }, base::kSecond);
      while (world.network.step()) {
      }
      EXPECT_EQ(world.ports[0]->crashed(), after <= 4) << after;
      EXPECT_EQ(over, after > 4);
      EXPECT_EQ(words_landed(world), std::min<std::uint64_t>(after, 4));
      if (!over) bury(body);
    }
  }
}

TEST(Crash, LetsWhatWasPostedLand) {
  std::set<std::uint64_t> landed;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world({.seed = seed});
    auto body = std::make_shared<Owned>();
    world.ports[0]->crash_after(1, InFlight::lands);
    bool over = false;
    body->scope.spawn(until_over(three_writes_and_an_add(world), over));
    world.network.run_until([&] { return world.ports[0]->crashed(); }, base::kSecond);
    EXPECT_EQ(words_landed(world), 1u);
    EXPECT_TRUE(world.network.drain(*world.ports[0], world.network.now() + base::kSecond));
    EXPECT_FALSE(over);
    landed.insert(words_landed(world));
    bury(body);
  }
  EXPECT_EQ(landed, std::set<std::uint64_t>{3})
      << "the chain that was posted, and nothing that it would have posted next";
}

TEST(Crash, APausedClientGoesOnWhereItStopped) {
  World world({});
  bool over = false;
  task::Scope scope;
  scope.spawn(until_over(three_writes_and_an_add(world), over));
  world.network.run_until([&] { return words_landed(world) == 3; }, base::kSecond);
  world.ports[0]->pause();
  bool passed = false;
  world.network.at(world.network.now() + 10 * base::kMillisecond, [&] { passed = true; });
  world.network.run_until([&] { return passed; }, base::kSecond);
  EXPECT_FALSE(over);
  EXPECT_EQ(words_landed(world), 3u);
  world.ports[0]->resume();
  EXPECT_TRUE(world.network.run_until([&] { return over; }, base::kSecond));
  EXPECT_EQ(words_landed(world), 4u);
}

// ---- determinism ----------------------------------------------------------------------------------------------------

std::uint64_t hash_of(Body body, std::uint64_t seed) {
  World world({.seed = seed, .straggle = 0.3});
  bool over = false;
  task::Scope scope;
  scope.spawn(until_over(body(world), over));
  if (!world.network.run_until([&over] { return over; }, 100 * base::kSecond)) std::abort();
  return world.network.trace().hash();
}
TEST(Determinism, ASeedIsARun) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const std::uint64_t hash = hash_of(torn, seed);
    EXPECT_EQ(hash, hash_of(torn, seed)) << "seed " << seed;
    hashes.insert(hash);
  }
  EXPECT_EQ(hashes.size(), 50u);
}

TEST(Trace, IsReadable) {
  World world({.keep_chains = true});
  bool over = false;
  task::Scope scope;
  scope.spawn(until_over(atomic_then_read(world), over));
  ASSERT_TRUE(world.network.run_until([&over] { return over; }, base::kSecond));
  EXPECT_EQ(Trace::format(world.network.trace().chains()),
            "trip 1   MCAS  region 7 +8  0/1 -> 1/1\n"
            "         READ  region 7 +0  64 B\n");
}

}  // namespace
}  // namespace farpool::fabric::sim
