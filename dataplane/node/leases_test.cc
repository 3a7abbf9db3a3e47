// SPDX-License-Identifier: Apache-2.0
// Leases of clients at one memory node, against each other.
#include "session/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "layout/lease.h"
#include "layout/regions.h"
#include "node/world_test.h"
#include "session/tenure.h"

namespace farpool::node {
namespace {

using base::Code;
using base::kMicrosecond;
using base::Result;
using base::Status;
using fabric::Cost;
using layout::LeaseWord;
using session::Lease;
using session::Leases;
using task::Task;
using testing::HasSubstr;

constexpr std::uint64_t kLease = 5, kOther = 9;

// A client, and what one task of it has.
struct Client {
  SimPort* port = nullptr;
  std::unique_ptr<Session> session;
  std::vector<Lease> held;
  Cost cost;

  Leases& leases() const { return session->leases(); }
};

using Answer = std::optional<Result<bool>>;

Task<void> taking(Leases& leases, std::uint64_t index, std::vector<Lease>& held, Nanos deadline, Answer& answer) {
  Cost cost;
  const Status status = co_await leases.take(index, held, deadline, cost);
  answer = status.ok() ? Result<bool>(true) : Result<bool>(status);
}
Task<void> attempting(Leases& leases, std::uint64_t index, std::vector<Lease>& held, Nanos deadline, Answer& answer) {
  Cost cost;
  answer = co_await leases.attempt(index, held, deadline, cost);
}
Task<void> renewing(Leases& leases, std::vector<Lease>& held, Nanos deadline, Cost& cost, Answer& answer) {
  const Status status = co_await leases.renew(held, deadline, cost);
  answer = status.ok() ? Result<bool>(true) : Result<bool>(status);
}
Task<void> giving_back(Leases& leases, std::vector<Lease>& held, Nanos deadline) {
  Cost cost;
  co_await leases.give_back(held, deadline, cost);
  held.clear();
}
Task<void> sweeping(Leases& leases, Nanos deadline, Cost& cost, Answer& answer) {
  const Status status = co_await leases.sweep(deadline, cost);
  answer = status.ok() ? Result<bool>(true) : Result<bool>(status);
}

struct LeaseWorld : TestWorld {
  explicit LeaseWorld(layout::Protocol protocol, std::uint64_t seed = 1) : TestWorld(seed) {
    kill();
    memory = std::move(*Memory::anonymous(memory.span().size()));
    options.geometry.protocol = protocol;
    begin_life();
    node->stand_alone();
  }
  ~LeaseWorld() {
    for (Client& client : clients) end(client);
  }

  Client& add() {
    Client& client = clients.emplace_back();
    client.port = &this->client();
    client.session = open(*client.port);
    return client;
  }
  void end(Client& client) {
    client.port->resume();
    if (client.session) close(std::exchange(client.session, nullptr));
  }
  std::uint64_t& word(std::uint64_t index) {
    return reinterpret_cast<std::uint64_t*>(memory.span().data() + geometry().at(layout::kLeases).offset)[index];
  }
  bool holds(const Client& client, std::uint64_t index) {
    return LeaseWord::held(word(index)) &&
           LeaseWord::Session::get(word(index)) == LeaseWord::Session::get(client.session->grant().session_id);
  }
  Nanos in(Nanos time) { return network.now() + time; }
  Nanos timeout() const { return options.failure_timeout; }
  // Where clients only read leases, the memory node releases those of a session that has ended. Elsewhere they are
  // stolen.
  bool releases() const { return layout::shape_of(options.geometry.protocol).served != nullptr; }

  Result<bool> attempt(Client& client, std::uint64_t index) {
    Answer answer;
    run(attempting(client.leases(), index, client.held, in(10 * kSecond), answer));
    return *answer;
  }
  Result<bool> take(Client& client, std::uint64_t index, Nanos within = 10 * kSecond) {
    Answer answer;
    run(taking(client.leases(), index, client.held, in(within), answer));
    return *answer;
  }
  Result<bool> renew(Client& client) {
    Answer answer;
    run(renewing(client.leases(), client.held, in(kSecond), client.cost, answer));
    return *answer;
  }
  Result<bool> sweep(Client& client) {
    Answer answer;
    run(sweeping(client.leases(), in(kSecond), client.cost, answer));
    return *answer;
  }
  void give_back(Client& client) { run(giving_back(client.leases(), client.held, in(kSecond))); }

  std::deque<Client> clients;
};

// Over the wire, and by the memory node where clients only read.
class LeasesOfANode : public ::testing::TestWithParam<layout::Protocol> {};
class TenureAtANode : public LeasesOfANode {};

TEST_P(LeasesOfANode, AreTakenRenewedWhenDueAndGivenBack) {
  LeaseWorld world(GetParam());
  Client& client = world.add();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(*world.take(client, kLease));
    ASSERT_EQ(client.held.size(), 1u);
    EXPECT_TRUE(world.holds(client, kLease));
    EXPECT_EQ(client.held[0].word, world.word(kLease));
    for (int renewals = 0; renewals < 3; ++renewals) {
      const std::uint64_t taken = world.word(kLease);
      EXPECT_TRUE(*world.renew(client));
      EXPECT_EQ(world.word(kLease), taken) << "it is not due";
      world.pass(world.timeout() / 8);
      EXPECT_TRUE(*world.renew(client));
      EXPECT_EQ(world.word(kLease), LeaseWord::held_by(taken, client.session->grant().session_id));
      EXPECT_EQ(client.held[0].word, world.word(kLease));
    }
    world.give_back(client);
    EXPECT_FALSE(LeaseWord::held(world.word(kLease)));
    EXPECT_TRUE(client.session->alive()) << client.session->why().message();
  }
  EXPECT_EQ(client.leases().marks().complaints, 0u);
  EXPECT_EQ(client.leases().marks().waits, 0u);
  EXPECT_EQ(client.leases().marks().stolen, 0u);
  EXPECT_EQ(client.cost.trips, 6u) << "of the renewals";
}

TEST_P(LeasesOfANode, OneTaskOfAClientAtATimeHasOne) {
  LeaseWorld world(GetParam());
  Client& client = world.add();
  ASSERT_TRUE(*world.take(client, kLease));
  std::vector<Lease> first = std::exchange(client.held, {});
  EXPECT_FALSE(client.leases().wanted(kLease));
  EXPECT_FALSE(*world.attempt(client, kLease));
  EXPECT_TRUE(client.leases().wanted(kLease));
  EXPECT_FALSE(client.leases().wanted(kLease)) << "since the last call";
  const auto late = world.take(client, kLease, 10 * kMillisecond);
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.status().message(), HasSubstr("another operation of this client"));

  // It keeps what it has while it waits.
  ASSERT_TRUE(*world.take(client, kOther));
  const std::uint64_t before = world.word(kOther);
  task::Scope scope;
  Answer answer;
  scope.spawn(taking(client.leases(), kLease, client.held, world.in(10 * kSecond), answer));
  world.pass(world.timeout() / 4);
  EXPECT_FALSE(answer);
  EXPECT_NE(world.word(kOther), before);
  world.run(giving_back(client.leases(), first, world.in(kSecond)));
  EXPECT_TRUE(world.wait_until([&] { return answer.has_value(); }, kMillisecond)) << "nobody woke it";
  EXPECT_TRUE(**answer);
  EXPECT_EQ(client.held.size(), 2u);
  world.give_back(client);
  EXPECT_EQ(client.leases().marks().waits, 0u) << "another client had it";
}

TEST_P(LeasesOfANode, AHolderThatLivesKeepsOne) {
  LeaseWorld world(GetParam());
  Client& holder = world.add();
  Client& other = world.add();
  ASSERT_TRUE(*world.take(holder, kLease));
  EXPECT_FALSE(*world.attempt(other, kLease));
  EXPECT_EQ(other.leases().marks().complaints, 1u);

  ASSERT_TRUE(*world.take(other, kOther));
  const std::uint64_t before = world.word(kOther);
  const auto late = world.take(other, kLease, 100 * kMillisecond);
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.status().message(), HasSubstr("before another client had given the lease back"));
  EXPECT_TRUE(world.holds(holder, kLease));
  EXPECT_NE(world.word(kOther), before) << "it keeps what it has while it waits";
  EXPECT_GT(other.leases().marks().waits, 0u);
  EXPECT_LE(other.leases().marks().waits, 200u) << "it waits a moment between two looks";
  EXPECT_LE(other.leases().marks().complaints, 1u + 100 * kMillisecond / (world.timeout() / 16) + 1);
  EXPECT_EQ(other.held.size(), 1u);

  task::Scope scope;
  Answer answer;
  scope.spawn(taking(other.leases(), kLease, other.held, world.in(10 * kSecond), answer));
  world.pass(10 * kMillisecond);
  EXPECT_FALSE(answer);
  world.give_back(holder);
  ASSERT_TRUE(world.wait_until([&] { return answer.has_value(); }, 10 * kMillisecond));
  EXPECT_TRUE(**answer);
  EXPECT_TRUE(world.holds(other, kLease));
  EXPECT_EQ(other.leases().marks().stolen, 0u);
  world.give_back(other);
}

TEST_P(LeasesOfANode, AHolderThatStandsStillForTheFailureTimeoutLosesOne) {
  for (const bool waits : {false, true}) {
    LeaseWorld world(GetParam());
    Client& holder = world.add();
    Client& other = world.add();
    ASSERT_TRUE(*world.take(holder, kLease));
    holder.port->pause();
    EXPECT_FALSE(*world.attempt(other, kLease)) << "it may live";
    world.pass(world.timeout());
    const Nanos begun = world.network.now();
    EXPECT_TRUE(*(waits ? world.take(other, kLease) : world.attempt(other, kLease)));
    EXPECT_LT(world.network.now() - begun, world.timeout() / 16) << "it asks again while the holder is being ended";
    EXPECT_EQ(other.leases().marks().stolen, world.releases() ? 0u : 1u);
    EXPECT_GE(other.leases().marks().complaints, 2u);
    EXPECT_EQ(other.held.size(), 1u);
    EXPECT_TRUE(world.holds(other, kLease));
    EXPECT_EQ(world.node->stats().sessions_fenced, 1u);

    const std::uint64_t stolen = world.word(kLease);
    holder.port->resume();
    world.give_back(holder);
    EXPECT_EQ(world.word(kLease), stolen);
    EXPECT_FALSE(holder.session->alive());
    EXPECT_TRUE(*world.renew(other));
    world.give_back(other);
    EXPECT_TRUE(other.session->alive());
  }
}

TEST_P(LeasesOfANode, TwoThatAttemptAtOnceAreNotBothGivenIt) {
  int lost_between = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    LeaseWorld world(GetParam(), seed);
    Client& one = world.add();
    Client& other = world.add();
    Answer first, second;
    task::Scope scope;
    scope.spawn(attempting(one.leases(), kLease, one.held, world.in(kSecond), first));
    scope.spawn(attempting(other.leases(), kLease, other.held, world.in(kSecond), second));
    ASSERT_TRUE(world.wait_until([&] { return first && second; }));
    EXPECT_NE(**first, **second) << seed;
    EXPECT_EQ(one.held.size() + other.held.size(), 1u);
    Client& winner = **first ? one : other;
    Client& loser = **first ? other : one;
    EXPECT_TRUE(world.holds(winner, kLease));
    // One that lost between its look and its attempt knows of nobody who stands still.
    lost_between += loser.leases().marks().complaints == 0 ? 1 : 0;
    world.give_back(winner);
    EXPECT_TRUE(*world.attempt(loser, kLease)) << "the attempt before was over";
    world.give_back(loser);
  }
  EXPECT_GT(lost_between, 0);
}

TEST_P(LeasesOfANode, TwoThatContendAtOnceHaveItOneAfterTheOther) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    LeaseWorld world(GetParam(), seed);
    Client& one = world.add();
    Client& other = world.add();
    Answer first, second;
    task::Scope scope;
    scope.spawn(taking(one.leases(), kLease, one.held, world.in(10 * kSecond), first));
    scope.spawn(taking(other.leases(), kLease, other.held, world.in(10 * kSecond), second));
    ASSERT_TRUE(world.wait_until([&] { return first || second; }));
    world.pass(kMillisecond);
    EXPECT_NE(first.has_value(), second.has_value()) << seed;
    EXPECT_EQ(one.held.size() + other.held.size(), 1u);
    world.give_back(first ? one : other);
    ASSERT_TRUE(world.wait_until([&] { return first && second; }, kSecond));
    EXPECT_TRUE(**first && **second);
    EXPECT_EQ(one.leases().marks().stolen + other.leases().marks().stolen, 0u);
    world.give_back(one);
    world.give_back(other);
  }
}

TEST_P(LeasesOfANode, AClientThatHasLostOneEnds) {
  for (const bool renews : {true, false}) {
    LeaseWorld world(GetParam());
    Client& client = world.add();
    ASSERT_TRUE(*world.take(client, kLease));
    const std::uint64_t others = LeaseWord::held_by(world.word(kLease), 12345);
    world.word(kLease) = others;
    world.pass(world.timeout() / 8);
    if (renews) {
      const auto renewed = world.renew(client);
      EXPECT_EQ(renewed.code(), Code::stale);
      EXPECT_THAT(renewed.status().message(), HasSubstr("the work under it was given up"));
    } else {
      world.give_back(client);
    }
    EXPECT_FALSE(client.session->alive());
    EXPECT_EQ(client.session->why().code(), Code::stale);
    EXPECT_THAT(client.session->why().message(), HasSubstr("lease 5 was taken away"));
    EXPECT_EQ(world.word(kLease), others);
  }
}

TEST_P(LeasesOfANode, ASweepGivesBackWhatEndedClientsHad) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    LeaseWorld world(GetParam(), seed);
    Client& dead = world.add();
    Client& living = world.add();
    Client& sweeper = world.add();
    ASSERT_TRUE(*world.take(dead, kLease));
    ASSERT_TRUE(*world.take(living, kOther));
    dead.port->pause();
    ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions_fenced == 1; }));
    const bool alone = seed % 2 == 0;
    if (alone) {
      ASSERT_TRUE(*world.sweep(sweeper));
      const std::uint64_t trips = world.releases() ? 2 : 4;
      EXPECT_EQ(sweeper.cost.trips, trips) << "it reads the words, asks about each holder, and gives one back";
    } else {
      Answer one, other;
      task::Scope scope;
      scope.spawn(sweeping(sweeper.leases(), world.in(kSecond), sweeper.cost, one));
      scope.spawn(sweeping(living.leases(), world.in(kSecond), living.cost, other));
      ASSERT_TRUE(world.wait_until([&] { return one && other; }));
      EXPECT_TRUE(**one && **other);
    }
    EXPECT_FALSE(LeaseWord::held(world.word(kLease)));
    EXPECT_TRUE(world.holds(living, kOther));
    EXPECT_EQ(sweeper.leases().marks().stolen + living.leases().marks().stolen, world.releases() ? 0u : 1u);
    EXPECT_EQ(sweeper.leases().marks().complaints, 0u);
    world.give_back(living);
  }
}

Task<void> taking_tenure(session::Tenure& tenure, Nanos deadline, std::optional<Status>& answer) {
  answer = co_await tenure.take(kLease, deadline);
}
Task<void> ending_tenure(session::Tenure& tenure, Nanos deadline) { co_await tenure.give_back(deadline); }

TEST_P(TenureAtANode, KeepsALeaseUntilItIsGivenBack) {
  LeaseWorld world(GetParam());
  Client& holder = world.add();
  Client& other = world.add();
  session::Tenure tenure(*holder.session), refused(*other.session);
  std::optional<Status> answer;
  world.run(taking_tenure(tenure, world.in(kSecond), answer));
  ASSERT_TRUE(answer->ok()) << answer->message();
  for (int round = 0; round < 4; ++round) {
    EXPECT_FALSE(*world.attempt(other, kLease));
    world.pass(world.timeout());
  }
  EXPECT_TRUE(holder.session->alive()) << "the holder never stood still";
  EXPECT_TRUE(world.holds(holder, kLease));
  world.run(taking_tenure(refused, world.in(10 * kMillisecond), answer));
  EXPECT_EQ(answer->code(), Code::timed_out);
  world.run(ending_tenure(refused, world.in(kSecond)));
  world.run(ending_tenure(tenure, world.in(kSecond)));
  EXPECT_FALSE(LeaseWord::held(world.word(kLease)));
}

TEST_P(TenureAtANode, EndsInTheMiddleOfARenewal) {
  for (Nanos at = 0; at < 16 * kMicrosecond; at += kMicrosecond / 2) {
    LeaseWorld world(GetParam());
    Client& holder = world.add();
    session::Tenure tenure(*holder.session);
    std::optional<Status> answer;
    world.run(taking_tenure(tenure, world.in(kSecond), answer));
    ASSERT_TRUE(answer->ok()) << answer->message();
    world.pass(world.timeout() / 8 - 4 * kMicrosecond + at);
    world.run(ending_tenure(tenure, world.in(kSecond)));
    EXPECT_TRUE(holder.session->alive()) << at << ": " << holder.session->why().message();
    EXPECT_FALSE(LeaseWord::held(world.word(kLease))) << at;
  }
}

// Whatever step its session ends at, an operation says so soon.
TEST_P(LeasesOfANode, AnOperationEndsWithItsSession) {
  using Start = std::function<Task<void>(LeaseWorld&, Client&, Answer&)>;
  const auto forever = [](LeaseWorld& world) { return world.in(100 * kSecond); };
  struct Case {
    const char* what;
    std::function<void(LeaseWorld&, Client&, Client&)> prepare;  // for a client, with another
    Start start;
    Nanos until, step;
  };
  const Case cases[] = {
      {"an attempt", [](LeaseWorld&, Client&, Client&) {},
       [&](LeaseWorld& world, Client& client, Answer& answer) {
         return attempting(client.leases(), kLease, client.held, forever(world), answer);
       },
       20 * kMicrosecond, kMicrosecond / 2},
      {"an attempt at one that another client has",
       [](LeaseWorld& world, Client&, Client& other) {
         EXPECT_TRUE(*world.take(other, kLease));
         world.pass(world.timeout());
       },
       [&](LeaseWorld& world, Client& client, Answer& answer) {
         return attempting(client.leases(), kLease, client.held, forever(world), answer);
       },
       20 * kMicrosecond, kMicrosecond / 2},
      {"a wait for another client",
       [](LeaseWorld& world, Client&, Client& other) { EXPECT_TRUE(*world.take(other, kLease)); },
       [&](LeaseWorld& world, Client& client, Answer& answer) {
         return taking(client.leases(), kLease, client.held, forever(world), answer);
       },
       2 * kMillisecond, 17 * kMicrosecond},
      {"a renewal",
       [](LeaseWorld& world, Client& client, Client&) {
         EXPECT_TRUE(*world.take(client, kLease));
         world.pass(world.timeout() / 8);
       },
       [&](LeaseWorld& world, Client& client, Answer& answer) {
         return renewing(client.leases(), client.held, forever(world), client.cost, answer);
       },
       8 * kMicrosecond, kMicrosecond / 2},
      {"a sweep",
       [](LeaseWorld& world, Client&, Client& other) {
         EXPECT_TRUE(*world.take(other, kLease));
         other.port->pause();
         EXPECT_TRUE(world.wait_until([&] { return world.node->stats().sessions_fenced == 1; }));
       },
       [&](LeaseWorld& world, Client& client, Answer& answer) {
         return sweeping(client.leases(), forever(world), client.cost, answer);
       },
       25 * kMicrosecond, kMicrosecond / 2},
  };
  for (const Case& c : cases) {
    int ended = 0;
    std::uint64_t seed = 0;
    for (Nanos at = 0; at < c.until; at += c.step) {
      LeaseWorld world(GetParam(), ++seed);
      Client& client = world.add();
      Client& other = world.add();
      c.prepare(world, client, other);
      Answer answer;
      task::Scope scope;
      scope.spawn(c.start(world, client, answer));
      if (at > 0) world.pass(at);
      const bool over = answer.has_value();
      client.session->end({Code::stale, "the test ends it"});
      ASSERT_TRUE(world.wait_until([&] { return answer.has_value(); }, 3 * kMillisecond)) << c.what << ", " << at;
      if (over) continue;
      ++ended;
      EXPECT_EQ(answer->code(), Code::stale) << c.what << ", " << at;
      EXPECT_THAT(answer->status().message(), HasSubstr("the test ends it")) << c.what << ", " << at;
    }
    EXPECT_GE(ended, 5) << c.what;
  }
}

TEST_P(LeasesOfANode, ATaskThatWaitsForAnotherOfItsClientEndsWithWhatItHas) {
  LeaseWorld world(GetParam());
  Client& client = world.add();
  ASSERT_TRUE(*world.take(client, kLease));
  std::vector<Lease> first = std::exchange(client.held, {});
  ASSERT_TRUE(*world.take(client, kOther));
  Answer answer;
  task::Scope scope;
  scope.spawn(taking(client.leases(), kLease, client.held, world.in(kSecond), answer));
  world.pass(kMillisecond);
  client.session->end({Code::stale, "the test ends it"});
  ASSERT_TRUE(world.wait_until([&] { return answer.has_value(); }));
  EXPECT_EQ(answer->code(), Code::stale) << answer->status().message();
}

constexpr auto kProtocols = {layout::Protocol::rcuckoo, layout::Protocol::outback};
std::string name_of(const ::testing::TestParamInfo<layout::Protocol>& of) {
  return std::string(layout::shape_of(of.param).name);
}
INSTANTIATE_TEST_SUITE_P(Of, LeasesOfANode, ::testing::ValuesIn(kProtocols), name_of);
INSTANTIATE_TEST_SUITE_P(Of, TenureAtANode, ::testing::ValuesIn(kProtocols), name_of);

}  // namespace
}  // namespace farpool::node
