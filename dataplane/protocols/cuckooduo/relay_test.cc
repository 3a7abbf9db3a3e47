// SPDX-License-Identifier: Apache-2.0
// Changes of clients that do not own the table: how they come to the owner, that each takes effect once whichever owners
// die, and what the memory node refuses.
#include "index/cuckooduo/relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "protocols/cuckooduo/world_test.h"

namespace farpool::cuckooduo {
namespace {

using layout::KvOp;
using layout::KvStatus;
using ::testing::HasSubstr;
using Asked = Result<Outbox::Asked>;

Task<void> asking(Shard::Body* body, Doing what, std::uint64_t version, Nanos deadline, Asked* into) {
  *into = co_await body->outbox->ask(what.op(), what.key, what.value, version, deadline, body->cost);
}
Asked ask(World& world, Shard& shard, const Doing& what, std::uint64_t version = 0, Nanos patience = kPatience) {
  Asked asked = Outbox::Asked{};
  world.run(asking(shard.body.get(), what, version, shard.port->now() + patience, &asked));
  return asked;
}
// Asks, and expects what a map says.
void change(World& world, Shard& shard, Pairs& pairs, const Doing& what) {
  const Asked asked = ask(world, shard, what);
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  EXPECT_EQ(asked->status, KvStatus::done);
  EXPECT_EQ(asked->existed, pairs.contains(what.key)) << what.key;
  what.apply(pairs);
}

TEST(CuckooDuoRelay, TheOwnerCarriesOutWhatOthersAskFor) {
  World world(kRoomy);
  Shard &owner = world.serve(), &a = world.join(), &b = world.join();
  Pairs pairs;
  for (std::uint64_t i = 0; i < 60; ++i) {
    change(world, i % 2 == 0 ? a : b, pairs, {Doing::Kind::put, key_of(i), value_of(i)});
  }
  change(world, a, pairs, {Doing::Kind::insert, key_of(1), "not this"});
  change(world, b, pairs, {Doing::Kind::insert, "new", "1"});
  change(world, a, pairs, {Doing::Kind::update, "new", std::string(500, 'x')});
  change(world, a, pairs, {Doing::Kind::update, "absent", "1"});
  change(world, b, pairs, {Doing::Kind::remove, key_of(3), ""});
  change(world, b, pairs, {Doing::Kind::remove, key_of(3), ""});
  world.expect(owner, pairs);
  for (const auto& [key, value] : pairs) EXPECT_EQ(world.glance(a, key).value(), value) << key;
  EXPECT_EQ(owner.body->inbox->counts().carried_out, 66u);
  EXPECT_EQ(served().relay->counts().relayed, 66u);
  EXPECT_EQ(served().relay->counts().waiting, 0u);
}

TEST(CuckooDuoRelay, AChangeMayAskForAVersion) {
  World world(kRoomy);
  (void)world.serve();
  Shard& other = world.join();
  Pairs pairs;
  change(world, other, pairs, {Doing::Kind::put, "k", "1"});
  std::uint64_t version = 0;
  for (Place place = 0; place < kRoomy.end(); ++place) {
    if (world.slot(place).whole()) version = world.slot(place).version;
  }
  const Doing what{Doing::Kind::update, "k", "2"};
  EXPECT_EQ(ask(world, other, what, version + 1)->status, KvStatus::version);
  EXPECT_EQ(world.glance(other, "k").value(), "1");
  EXPECT_EQ(ask(world, other, what, version)->status, KvStatus::done);
  EXPECT_EQ(ask(world, other, what, version)->status, KvStatus::version) << "it has another version now";
  EXPECT_EQ(world.glance(other, "k").value(), "2");
}

TEST(CuckooDuoRelay, SaysThatThereIsNoOwner) {
  World world(kRoomy);
  Shard& other = world.join();
  const Doing what{Doing::Kind::put, "k", "v"};
  EXPECT_EQ(ask(world, other, what)->status, KvStatus::no_owner);
  Shard& owner = world.serve();
  EXPECT_EQ(ask(world, other, what)->status, KvStatus::done);
  world.give_back(owner);
  EXPECT_EQ(ask(world, other, {Doing::Kind::put, "k", "w"})->status, KvStatus::no_owner);
  EXPECT_EQ(world.glance(other, "k").value(), "v") << "nothing was done";
  // It may be the owner again.
  world.take(owner);
  ASSERT_TRUE(owner.body->taken.ok()) << owner.body->taken.message();
  owner.body->inbox->open();
  ASSERT_TRUE(world.wait_until([&] { return World::serves(owner); }));
  EXPECT_EQ(ask(world, other, {Doing::Kind::put, "k", "w"})->status, KvStatus::done);
  EXPECT_EQ(world.glance(other, "k").value(), "w");
}

TEST(CuckooDuoRelay, OneThatGivesTheTableBackAnswersWhatItHas) {
  World world(kRoomy);
  Shard &owner = world.serve(), &other = world.join();
  std::vector<Asked> asked(10, Outbox::Asked{});
  for (std::size_t i = 0; i < asked.size(); ++i) {
    other.body->scope.spawn(
        asking(other.body.get(), {Doing::Kind::insert, key_of(i), "1"}, 0, other.soon(), &asked[i]));
  }
  ASSERT_TRUE(world.wait_until([&] { return owner.body->inbox->counts().carried_out > 0; }));
  world.give_back(owner);
  ASSERT_TRUE(world.wait_until([&] { return other.body->scope.running() == 0; }));
  std::size_t done = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    ASSERT_TRUE(asked[i].ok()) << asked[i].status().message();
    done += asked[i]->status == KvStatus::done ? 1 : 0;
    const bool there = world.glance(other, key_of(i)).value().has_value();
    EXPECT_EQ(there, asked[i]->status == KvStatus::done) << i;
  }
  EXPECT_GT(done, 0u);
}

// --- Owners that die

// A client inserts, updates and removes keys of its own, and expects what an only user of them would.
Task<void> script(Shard* shard, std::string name, int* done) {
  using Kind = Doing::Kind;
  const std::string large(100, 'l');
  const struct {
    Kind kind;
    const char* key;
    std::string value;
    bool existed;
  } steps[] = {{Kind::insert, "a", "1", false}, {Kind::insert, "a", "2", true},    {Kind::update, "a", large, true},
               {Kind::insert, "b", "1", false}, {Kind::put, "b", "2", true},       {Kind::remove, "a", "", true},
               {Kind::remove, "a", "", false},  {Kind::insert, "a", large, false}, {Kind::update, "c", "1", false},
               {Kind::insert, "c", "1", false}};
  for (const auto& step : steps) {
    Asked asked = Outbox::Asked{.status = KvStatus::no_owner};
    while (asked.ok() && asked->status == KvStatus::no_owner) {
      const Doing what{step.kind, name + step.key, step.value};
      co_await asking(shard->body.get(), what, 0, shard->soon(), &asked);
      if (asked.ok() && asked->status == KvStatus::no_owner) {
        co_await shard->port->sleep_until(shard->port->now() + base::kMillisecond);
      }
    }
    EXPECT_TRUE(asked.ok()) << name << " " << *done << ": " << asked.status().message();
    if (!asked.ok()) co_return;
    EXPECT_EQ(asked->status, KvStatus::done);
    EXPECT_EQ(asked->existed, step.existed) << name << step.key << ", step " << *done;
    ++*done;
  }
}
Pairs after_script(const std::string& name) {
  return {{name + "a", std::string(100, 'l')}, {name + "b", "2"}, {name + "c", "1"}};
}

Task<void> serving(Shard::Body* body, Nanos deadline) {
  co_await World::taking(body, deadline);
  if (body->taken.ok()) body->inbox->open();
}

struct Tally {
  std::uint64_t worlds = 0, again = 0, known = 0, settled = 0;
};

// Two clients send changes to owners that die after so many effects, and then to one that lives. Returns whether the
// first owner survived.
bool relay_through(std::uint64_t effects, std::uint64_t next_effects, InFlight posted, Tally& tally) {
  World world(kSmall, 1 + effects % 3);
  Shard &a = world.join(), &b = world.join(), &victim = world.serve();
  int done[2] = {0, 0};
  victim.port->crash_after(effects, posted);
  a.body->scope.spawn(script(&a, "A", &done[0]));
  b.body->scope.spawn(script(&b, "B", &done[1]));
  const auto over = [&] { return a.body->scope.running() + b.body->scope.running() == 0; };
  EXPECT_TRUE(world.wait_until([&] { return over() || victim.port->crashed(); }));
  const bool survived = !victim.port->crashed();
  if (survived) victim.port->crash(posted);
  Shard& second = world.join();
  second.port->crash_after(next_effects, posted);
  second.body->scope.spawn(serving(second.body.get(), second.soon()));
  EXPECT_TRUE(
      world.wait_until([&] { return second.port->crashed() || (over() && second.body->scope.running() == 0); }));
  Shard* last = &second;
  if (second.port->crashed()) last = &world.serve();
  EXPECT_TRUE(world.wait_until(over));
  if (last == &second) second.port->crash_after(~0ull, posted);  // it lives from here on
  EXPECT_EQ(done[0], 10);
  EXPECT_EQ(done[1], 10);
  Pairs pairs = after_script("A");
  pairs.merge(after_script("B"));
  world.expect(*last, pairs);
  ++tally.worlds;
  tally.again += served().relay->counts().again;
  for (Shard* one : {&second, last}) {
    if (one->port->crashed()) continue;
    tally.known += one->body->inbox->counts().known;
    tally.settled += one->owner().counts().settled;
  }
  return survived;
}

TEST(CuckooDuoRelay, WhicheverOwnersDieEachChangeTakesEffectOnce) {
  for (const InFlight posted : {InFlight::cut, InFlight::lands}) {
    Tally tally;
    std::uint64_t effects = 0;
    while (!relay_through(effects, 3 + effects * 7 % 40, posted, tally)) {
      ASSERT_FALSE(::testing::Test::HasFailure()) << "after " << effects << " effects";
      ASSERT_LT(++effects, 2000u);
    }
    EXPECT_GT(tally.worlds, 100u);
    EXPECT_GT(tally.again, 50u);
    EXPECT_GT(tally.known, 10u);
    if (posted == InFlight::cut) EXPECT_GT(tally.settled, 10u);
  }
}

// --- Owners that are stopped

TEST(CuckooDuoRelay, AnOwnerThatWasStoppedIsFencedAndItsAnswersCountForNothing) {
  World world(kRoomy);
  Shard &stopped = world.serve(), &other = world.join();
  Pairs pairs;
  change(world, other, pairs, {Doing::Kind::put, "there", "1"});
  stopped.port->pause();
  Asked inserted = Outbox::Asked{}, removed = inserted;
  Shard::Body* body = other.body.get();
  body->scope.spawn(asking(body, {Doing::Kind::insert, "new", "1"}, 0, other.soon(), &inserted));
  body->scope.spawn(asking(body, {Doing::Kind::remove, "there", ""}, 0, other.soon(), &removed));
  ASSERT_TRUE(world.wait_until([&] { return body->outbox->counts().silences > 0; }));
  EXPECT_EQ(body->scope.running(), 2u) << "nobody has answered";
  Shard& next = world.serve();
  ASSERT_TRUE(world.wait_until([&] { return body->scope.running() == 0; }));
  ASSERT_TRUE(inserted.ok() && removed.ok());
  EXPECT_FALSE(inserted->existed);
  EXPECT_TRUE(removed->existed);
  EXPECT_GT(served().relay->counts().again, 0u) << "the one that was stopped had been handed a request";
  // It goes on where it was stopped.
  const std::uint64_t relayed = served().relay->counts().relayed;
  stopped.port->resume();
  ASSERT_TRUE(world.wait_until([&] { return !stopped.body->session->alive(); }));
  world.give_back(stopped);
  EXPECT_EQ(served().relay->counts().relayed, relayed);
  EXPECT_TRUE(World::serves(next));
  world.expect(next, {{"new", "1"}});
}

TEST(CuckooDuoRelay, ARequestThatNoOwnerHasBeenHandedIsWithdrawnAtItsDeadline) {
  World world(kRoomy);
  Shard &stopped = world.serve(), &other = world.join();
  // The turn that waits takes the first request along. What comes later waits in the line.
  stopped.port->pause();
  Asked first = Outbox::Asked{};
  other.body->scope.spawn(asking(other.body.get(), {Doing::Kind::put, "first", "1"}, 0, other.soon(), &first));
  ASSERT_TRUE(world.wait_until([&] { return other.body->outbox->counts().silences > 0; }));
  const Asked second = ask(world, other, {Doing::Kind::put, "second", "1"}, 0, 5 * base::kMillisecond);
  EXPECT_EQ(second.code(), Code::timed_out) << second.status().message();
  EXPECT_THAT(second.status().message(), HasSubstr("nothing was done"));
  EXPECT_GT(other.body->outbox->counts().withdrawals, 0u);
  Shard& next = world.serve();
  ASSERT_TRUE(world.wait_until([&] { return other.body->scope.running() == 0; }));
  EXPECT_TRUE(first.ok()) << first.status().message();
  stopped.port->resume();
  world.expect(next, {{"first", "1"}});
}

TEST(CuckooDuoRelay, AClientThatDiesKeepsNobodyWaiting) {
  World world(kRoomy);
  Shard &owner = world.serve(), &victim = world.join(), &other = world.join();
  Asked asked = Outbox::Asked{};
  owner.port->pause();
  for (int i = 0; i < 3; ++i) {
    const Doing what{Doing::Kind::put, key_of(static_cast<std::uint64_t>(i)), "1"};
    victim.body->scope.spawn(asking(victim.body.get(), what, 0, victim.soon(), &asked));
  }
  ASSERT_TRUE(world.wait_until([&] { return served().relay->counts().waiting == 2; }));
  victim.port->crash(InFlight::lands);
  owner.port->resume();
  ASSERT_TRUE(world.wait_until([&] { return served().relay->counts().waiting == 0; }));
  Pairs pairs;
  change(world, other, pairs, {Doing::Kind::insert, "k", "1"});
}

// --- What cannot be

struct Raw {
  fabric::Outcome outcome;
  std::vector<std::byte> reply;
  KvStatus status() const { return static_cast<KvStatus>(base::load<std::uint16_t>(reply.data())); }
};
Task<void> calling(Shard::Body* body, std::uint32_t opcode, std::vector<std::byte> request, std::size_t room,
                   Nanos deadline, Raw* into) {
  const fabric::Buffer asked = body->session->port().buffer(std::max<std::size_t>(request.size(), 8));
  const fabric::Buffer told = body->session->port().buffer(room);
  std::copy(request.begin(), request.end(), asked.data());
  const std::array chain{fabric::Op::call(opcode, asked.first(request.size()), told.first(room))};
  into->outcome = co_await body->session->post(chain, deadline, body->cost);
  const base::Bytes reply = told.first(into->outcome.reply_bytes);
  into->reply.assign(reply.begin(), reply.end());
}
Raw call(World& world, Shard& shard, std::uint32_t opcode, std::vector<std::byte> request, std::size_t room = 4096) {
  Raw raw;
  world.run(calling(shard.body.get(), opcode, std::move(request), room, shard.soon(), &raw));
  return raw;
}
std::vector<std::byte> bytes_of(const layout::KvRequest& request) {
  std::vector<std::byte> bytes(layout::kv_request_bytes(request.key.size(), request.value.size()));
  std::size_t length = 0;
  EXPECT_EQ(put_kv_request(request, bytes, length), KvStatus::done);
  return bytes;
}
std::vector<std::byte> turn(const Turn& turn, const std::vector<Answer>& answers) {
  std::vector<std::byte> bytes(kLongestTurn);
  bytes.resize(put_turn(turn, answers, bytes));
  return bytes;
}

TEST(CuckooDuoRelay, RefusesWhatIsNoRequestOfAClient) {
  World world(kRoomy);
  Shard &owner = world.serve(), &other = world.join();
  const layout::KvRequest put{
      .op = KvOp::put, .request_id = 1 << 12, .key = base::bytes_of(std::string_view("k")), .value = {}};
  const auto status = [&](auto&& change) {
    layout::KvRequest request = put;
    change(request);
    return call(world, other, kChangeCall, bytes_of(request)).status();
  };
  EXPECT_EQ(status([](auto& request) { request.table = 1; }), KvStatus::bad_table);
  EXPECT_EQ(status([](auto& request) { request.place = 1; }), KvStatus::bad_place);
  EXPECT_EQ(status([](auto& request) { request.op = KvOp::append; }), KvStatus::bad_op);
  EXPECT_EQ(status([](auto& request) { request.client = 1; }), KvStatus::malformed);
  EXPECT_EQ(status([](auto& request) { request.move = 1; }), KvStatus::malformed);
  EXPECT_EQ(status([](auto& request) {
              request.flags = layout::KvRequest::kIfVersion;
              request.version = 1;
            }),
            KvStatus::malformed)
      << "a put has no version";
  EXPECT_EQ(call(world, other, kChangeCall, std::vector<std::byte>(65)).status(), KvStatus::bad_op);
  EXPECT_EQ(call(world, other, kChangeCall, std::vector<std::byte>(3)).status(), KvStatus::malformed);
  std::vector<std::byte> cut = bytes_of(put);
  cut.pop_back();
  EXPECT_EQ(call(world, other, kChangeCall, cut).status(), KvStatus::malformed);
  EXPECT_EQ(owner.body->inbox->counts().carried_out, 0u);
  world.expect(owner, {});
  // These end the lane.
  for (const auto& [opcode, bytes, room] :
       {std::tuple(kTurnCall, 7u, 4096u), std::tuple(kTurnCall, 16u, 8u), std::tuple(kWithdrawCall, 15u, 64u),
        std::tuple(kChangeCall, 72u, 8u), std::tuple(kWithdrawCall + 1, 16u, 64u)}) {
    Shard& another = world.join();
    const Raw raw = call(world, another, opcode, std::vector<std::byte>(bytes), room);
    EXPECT_EQ(raw.outcome.fate, fabric::Fate::refused) << opcode << " of " << bytes;
    EXPECT_NE(raw.outcome.why, fabric::Refusal::none);
  }
}

TEST(CuckooDuoRelay, BelievesNoTurnOfASessionWithoutTheLease) {
  World world(kRoomy);
  Shard &owner = world.serve(), &other = world.join(), &forger = world.join();
  const Raw refused = call(world, forger, kTurnCall, turn({}, {}));
  EXPECT_EQ(refused.status(), KvStatus::no_lease);
  EXPECT_TRUE(World::serves(owner));
  EXPECT_EQ(call(world, forger, kTurnCall, turn({.table = 1}, {})).status(), KvStatus::bad_table);
  // An answer to what another session was handed.
  owner.port->pause();
  Asked asked = Outbox::Asked{};
  other.body->scope.spawn(asking(other.body.get(), {Doing::Kind::put, "k", "v"}, 0, other.soon(), &asked));
  ASSERT_TRUE(world.wait_until([&] { return other.body->outbox->counts().silences > 0; }));
  EXPECT_EQ(call(world, forger, kTurnCall, turn({}, {{.ticket = 1}})).status(), KvStatus::no_lease);
  EXPECT_EQ(other.body->scope.running(), 1u);
  EXPECT_EQ(served().relay->counts().refused, 2u);
  owner.port->resume();
  ASSERT_TRUE(world.wait_until([&] { return other.body->scope.running() == 0; }));
  EXPECT_TRUE(asked.ok()) << asked.status().message();
  world.expect(owner, {{"k", "v"}});
}

TEST(CuckooDuoRelay, IgnoresAnswersToWhatTheOwnerWasNotHanded) {
  World world(kRoomy);
  Shard &owner = world.own(), &other = world.join();
  const std::vector<Answer> strays = {{.ticket = 1}, {.ticket = 1, .record = kRecords}, {.ticket = 9, .record = 3}};
  EXPECT_EQ(call(world, owner, kTurnCall, turn({.closing = true, .term = 1}, strays)).status(), KvStatus::done);
  EXPECT_EQ(served().relay->counts().strays, 3u);
  EXPECT_EQ(ask(world, other, {Doing::Kind::put, "k", "v"})->status, KvStatus::no_owner);
  // Turns have no order: one of a term that is closed already waits for nothing.
  EXPECT_EQ(call(world, owner, kTurnCall, turn({.term = 1}, {})).status(), KvStatus::done);
  EXPECT_EQ(served().relay->counts().owner, 0u);
}

TEST(CuckooDuoRelay, IgnoresAnswersToWhatAnotherOwnerWasHanded) {
  World world(kRoomy);
  Shard &stopped = world.serve(), &other = world.join();
  stopped.port->pause();
  Asked asked = Outbox::Asked{};
  other.body->scope.spawn(asking(other.body.get(), {Doing::Kind::put, "k", "v"}, 0, other.soon(), &asked));
  ASSERT_TRUE(world.wait_until([&] { return other.body->outbox->counts().silences > 0; }));
  Shard& next = world.own();
  EXPECT_EQ(call(world, next, kTurnCall, turn({.closing = true}, {{.ticket = 1}})).status(), KvStatus::done);
  EXPECT_EQ(served().relay->counts().strays, 1u);
  EXPECT_EQ(other.body->scope.running(), 1u);
  next.body->inbox->open();
  ASSERT_TRUE(world.wait_until([&] { return other.body->scope.running() == 0; }));
  EXPECT_TRUE(asked.ok()) << asked.status().message();
  world.expect(next, {{"k", "v"}});
  stopped.port->resume();
}

// What an owner has begun and nobody knows the end of is judged before another owner changes anything.
TEST(CuckooDuoRelay, TheNextOwnerSettlesRecords) {
  World world(kRoomy);
  Shard& first = world.own();
  Pairs pairs;
  world.put(first, pairs, "k", "v");
  std::uint64_t version = 0;
  for (Place place = 0; place < kRoomy.end(); ++place) {
    if (world.slot(place).whole()) version = world.slot(place).version;
  }
  world.give_back(first);
  const auto at = [&](std::uint32_t number) {
    return world.region(layout::kTable).subspan(world.site().record(number).offset, Record::kBytes);
  };
  put_record(at(1), 1, {.ticket = 11, .version = version, .pairs = 1});
  put_record(at(2), 2, {.ticket = 12, .version = version + 1, .pairs = 1});
  put_record(at(3), 3, {.ticket = 13, .version = version, .existed = true});
  put_record(at(4), 4, {.ticket = 14, .version = version + 1, .existed = true});
  Shard& next = world.own();
  EXPECT_EQ(next.owner().counts().settled, 4u);
  EXPECT_EQ(next.owner().outcome(1, 11), false);
  EXPECT_EQ(next.owner().outcome(2, 12), std::nullopt);
  EXPECT_EQ(next.owner().outcome(3, 13), std::nullopt) << "the pair is still there";
  EXPECT_EQ(next.owner().outcome(4, 14), true);
  EXPECT_EQ(next.owner().outcome(1, 12), std::nullopt) << "another request";
  // The verdicts are in the memory: versions may come again.
  EXPECT_TRUE(read_record(at(1), 1)->done && read_record(at(4), 4)->done);
  for (const std::uint32_t number : {2u, 3u}) {
    const base::Bytes bytes = at(number);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), Record::kBytes) << number;
  }
}

TEST(CuckooDuoRelay, ABusyLineRefusesMore) {
  World world(kRoomy);
  Shard& owner = world.serve();
  owner.port->pause();
  std::vector<Shard*> others;
  std::vector<Asked> asked(kRecords + 2, Outbox::Asked{});
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (i % 10 == 0) others.push_back(&world.join());
    const Doing what{Doing::Kind::put, key_of(i), "1"};
    Shard& other = *others.back();
    other.body->scope.spawn(asking(other.body.get(), what, 0, other.soon(), &asked[i]));
  }
  const auto running = [&] {
    std::size_t sum = 0;
    for (const Shard* other : others) sum += other->body->scope.running();
    return sum;
  };
  ASSERT_TRUE(world.wait_until([&] { return running() == kRecords; }));
  owner.port->resume();
  ASSERT_TRUE(world.wait_until([&] { return running() == 0; }));
  std::size_t done = 0, busy = 0;
  for (const Asked& one : asked) {
    ASSERT_TRUE(one.ok()) << one.status().message();
    done += one->status == KvStatus::done ? 1 : 0;
    busy += one->status == KvStatus::busy ? 1 : 0;
  }
  EXPECT_EQ(done, kRecords);
  EXPECT_EQ(busy, 2u);
}

}  // namespace
}  // namespace farpool::cuckooduo
