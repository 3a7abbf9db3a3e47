// SPDX-License-Identifier: Apache-2.0
// A mover between two memory nodes, with tables that only note what it asks of them.
#include "client/mover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/sim/network.h"
#include "layout/lease.h"
#include "layout/regions.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "session/session.h"
#include "session/tenure.h"
#include "task/scope.h"

namespace farpool::client {
namespace {

using base::Code;
using base::kSecond;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::sim::SimPort;
using session::Session;
using task::Task;
using Calls = std::vector<std::string>;

constexpr std::uint64_t kMove = 3;

class NotingTable final : public index::Table, public index::Movable {
 public:
  NotingTable(std::string name, Calls& calls) : name_(std::move(name)), calls_(calls) {}

  // What it answers.
  Result<Standing> says = Standing{.finished = kMove - 1, .lease = 0};
  Status closes, moves;
  std::size_t without_room = 0;  // additions, from now on
  bool waits = false;            // in move_away, until it may not go on
  SimPort* port = nullptr;
  // What it was answered then.
  Status went_on, took_in, had;

  Movable* movable() override { return this; }
  void follow(index::Move) override {}
  Task<Result<bool>> admit(std::string_view, std::string_view, Nanos, Cost&) override {
    note("admits");
    if (without_room == 0) co_return true;
    --without_room;
    co_return Status(Code::out_of_memory, name_ + " is full");
  }
  Task<Result<Standing>> standing() override {
    note("stands");
    co_return says;
  }
  Task<Status> close(index::Arrivals*, const GoOn&) override {
    note("closes");
    co_return closes;
  }
  Task<Status> move_away(index::Arrivals& arrivals, const GoOn& go_on) override {
    note("moves");
    if (waits) {
      const Nanos end = port->now() + 10 * kSecond;
      while (port->now() < end && go_on().ok()) co_await port->sleep_for(10 * base::kMillisecond);
    }
    went_on = go_on();
    took_in = co_await arrivals.take_in("key", "value");
    had = (co_await arrivals.has("key")).status();
    co_return moves;
  }
  Task<Result<bool>> modify(std::string_view, index::Editor&, Nanos, Cost&) override {
    note("looks");
    co_return true;
  }

  // Nobody asks for the rest.
  Task<Result<std::optional<std::string>>> lookup(std::string_view, Nanos, Cost&, std::string) override {
    co_return Status(Code::internal, name_);
  }
  Task<Result<bool>> insert(std::string_view, std::string_view, Nanos, Cost&) override { return none(); }
  Task<Result<bool>> update(std::string_view, std::string_view, Nanos, Cost&) override { return none(); }
  Task<Result<bool>> remove(std::string_view, Nanos, Cost&) override { return none(); }
  Task<Result<bool>> put(std::string_view, std::string_view, Nanos, Cost&) override { return none(); }
  Task<Result<index::Totals>> count(Nanos, Cost&) override { co_return Status(Code::internal, name_); }
  Task<Result<index::Page>> scan(std::uint64_t, std::uint64_t, Nanos, Cost&) override {
    co_return Status(Code::internal, name_);
  }
  std::uint64_t positions() const override { return 1; }
  const layout::Geometry& geometry() const override { return geometry_; }
  const index::Marks& marks() const override { return marks_; }

 private:
  void note(const char* what) { calls_.push_back(name_ + " " + what); }
  Task<Result<bool>> none() { co_return Status(Code::internal, name_); }

  const std::string name_;
  Calls& calls_;
  const layout::Geometry geometry_;
  const index::Marks marks_;
};

class MoverTest : public ::testing::Test {
 protected:
  MoverTest() {
    for (int i = 0; i < 2; ++i) {
      const std::string endpoint = "node-" + std::to_string(i) + ":7400";
      wires_.push_back(&network_.add_node(endpoint));
      memory_.push_back(std::move(*node::Memory::anonymous(4 << 20)));
      node::MemoryNode::Options options;
      options.name = "memory-" + std::to_string(i);
      options.pool_uid = "pool";
      options.endpoint = endpoint;
      options.geometry.max_sessions = 4;
      options.geometry.slots_per_session = 4;
      options.geometry.table_percent = 5;
      options.lease = 2 * kSecond;
      options.failure_timeout = 200 * base::kMillisecond;
      auto created = node::MemoryNode::create(std::move(options), memory_.back().span(), *wires_.back());
      EXPECT_TRUE(created.ok()) << created.status().message();
      nodes_.push_back(std::move(*created));
      wires_.back()->serve(*nodes_.back());
      EXPECT_EQ(nodes_.back()->stand_alone().verdict, node::MemoryNode::Verdict::adopted);
    }
    port_ = &client();
    source_.port = target_.port = port_;
    for (std::size_t i = 0; i < 2; ++i) sessions_.push_back(open(*port_, i));
  }
  ~MoverTest() override {
    for (auto& session : sessions_) run(session->close(network_.now() + kSecond));
  }

  SimPort& client() {
    return network_.add_client({.pool_uid = "pool", .role = "client", .name = "c", .authenticated = true});
  }
  static Task<void> ending(Task<void> task, bool& ended) {
    co_await std::move(task);
    ended = true;
  }
  void run(Task<void> task) {
    bool ended = false;
    task::Scope scope;
    scope.spawn(ending(std::move(task), ended));
    FARPOOL_CHECK(network_.run_until([&] { return ended; }, network_.now() + 60 * kSecond));
  }
  static Task<void> opening(SimPort& port, Session::Options options, std::unique_ptr<Session>& into) {
    auto opened = co_await Session::open(port, std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (opened.ok()) into = std::move(*opened);
  }
  std::unique_ptr<Session> open(SimPort& port, std::size_t i) {
    Session::Options options;
    options.endpoint = "node-" + std::to_string(i) + ":7400";
    options.pool_uid = "pool";
    options.client_name = "c";
    options.epoch = nodes_[i]->stats().epoch;
    options.node_incarnation = nodes_[i]->incarnation();
    options.deadline = port.now() + kSecond;
    std::unique_ptr<Session> session;
    run(opening(port, std::move(options), session));
    FARPOOL_CHECK(session != nullptr);
    return session;
  }
  static Task<void> moving(Mover& mover, std::optional<Status>& into) { into = co_await mover.run(kMove); }
  static Task<void> taking(session::Tenure& tenure, Nanos deadline) {
    const Status taken = co_await tenure.take(layout::kMoveLease, deadline);
    EXPECT_TRUE(taken.ok()) << taken.message();
  }
  std::byte* lease(std::size_t i) const {
    return memory_[i].span().data() + nodes_[i]->geometry().at(layout::kLeases).offset + layout::kMoveLease * 8;
  }
  bool held(std::size_t i) const { return layout::LeaseWord::held(base::load<std::uint64_t>(lease(i))); }
  Mover mover() {
    return {{sessions_[0].get(), &source_},
            {{sessions_[1].get(), &target_}},
            [](std::string_view) { return std::size_t{0}; },
            [this] { return wanted_; },
            [this](std::size_t target, std::uint64_t bytes, Nanos) { return make_room(target, bytes); }};
  }
  Task<bool> make_room(std::size_t target, std::uint64_t bytes) {
    EXPECT_EQ(target, 0u);
    EXPECT_EQ(bytes, std::string("keyvalue").size());
    calls_.push_back("room is made");
    co_return rooms_ > 0 && rooms_-- > 0;
  }
  // Returns how a whole move ends.
  Status move() {
    calls_.clear();
    Mover mover = this->mover();
    std::optional<Status> ended;
    run(moving(mover, ended));
    EXPECT_FALSE(held(0) || held(1)) << "it has given its leases back";
    return *ended;
  }

  fabric::sim::Network network_{fabric::sim::Options{.seed = 3}};
  std::vector<fabric::sim::SimResponder*> wires_;
  std::vector<node::Memory> memory_;
  std::vector<std::unique_ptr<node::MemoryNode>> nodes_;
  SimPort* port_ = nullptr;
  Calls calls_;
  NotingTable source_{"source", calls_}, target_{"target", calls_};
  Status wanted_;          // says whether the move still is
  std::size_t rooms_ = 0;  // that can be made
  std::vector<std::unique_ptr<Session>> sessions_;
};

TEST_F(MoverTest, ClosesTargetsBeforeTheSource) {
  EXPECT_TRUE(move().ok());
  EXPECT_EQ(calls_, (Calls{"source stands", "target closes", "source closes", "source moves", "target admits",
                           "target looks"}));
  EXPECT_TRUE(source_.took_in.ok() && source_.had.ok());
}

// A pool that evicts may be made smaller when it is full.
TEST_F(MoverTest, MakesRoomAtATargetThatIsFull) {
  target_.without_room = 2;
  rooms_ = 2;
  EXPECT_TRUE(move().ok());
  EXPECT_TRUE(source_.took_in.ok()) << source_.took_in.message();
  EXPECT_EQ(std::ranges::count(calls_, "target admits"), 3);
  EXPECT_EQ(std::ranges::count(calls_, "room is made"), 2);
  target_.without_room = 5;
  rooms_ = 1;
  EXPECT_TRUE(move().ok());
  EXPECT_EQ(source_.took_in.message(), "target is full");
  EXPECT_EQ(std::ranges::count(calls_, "target admits"), 2);
}

// Two movers would move the same keys, and an older value could replace a newer one.
TEST_F(MoverTest, MovesNothingWithoutTheLeasesOfAllEnds) {
  for (const std::size_t taken : {0u, 1u}) {
    const auto other = open(client(), taken);
    session::Tenure tenure(*other);
    run(taking(tenure, network_.now() + kSecond));
    calls_.clear();
    {
      Mover mover = this->mover();
      std::optional<Status> ended;
      run(moving(mover, ended));
      EXPECT_FALSE(ended->ok());
      EXPECT_FALSE(mover.begun());
    }
    EXPECT_EQ(calls_, Calls()) << "the lease of end " << taken << " is another's";
    EXPECT_TRUE(held(taken));
    EXPECT_FALSE(held(1 - taken));
    run(tenure.give_back(network_.now() + kSecond));
    run(other->close(network_.now() + kSecond));
  }
}

TEST_F(MoverTest, AMoveThatIsFinishedIsLeftAlone) {
  for (const std::uint64_t finished : {kMove, kMove + 1}) {
    source_.says = index::Movable::Standing{.finished = finished, .lease = 0};
    EXPECT_TRUE(move().ok());
    EXPECT_EQ(calls_, Calls{"source stands"});
  }
  source_.says = Status(Code::corrupt, "no number");
  EXPECT_EQ(move().code(), Code::corrupt);
  EXPECT_EQ(calls_, Calls{"source stands"});
}

// Keys leave only when no client that does not know of the move changes them at either end.
TEST_F(MoverTest, MovesNothingIfAnEndCannotBeClosed) {
  target_.closes = Status(Code::timed_out, "a target");
  EXPECT_EQ(move().message(), "a target");
  EXPECT_EQ(calls_, (Calls{"source stands", "target closes"}));
  target_.closes = {};
  source_.closes = Status(Code::timed_out, "the source");
  EXPECT_EQ(move().message(), "the source");
  EXPECT_EQ(calls_, (Calls{"source stands", "target closes", "source closes"}));
}

TEST_F(MoverTest, StopsWhenTheMoveIsNotWantedAnyMore) {
  wanted_ = Status(Code::unavailable, "another map has come");
  EXPECT_TRUE(move().ok()) << "the table decides when it asks";
  EXPECT_EQ(source_.went_on.message(), "another map has come");
  EXPECT_EQ(source_.took_in.message(), "another map has come");
  EXPECT_EQ(std::ranges::count(calls_, "target admits"), 0);
}

TEST_F(MoverTest, StopsWhenItHasLostALease) {
  source_.waits = true;
  for (const std::size_t lost : {0u, 1u}) {
    calls_.clear();
    Mover mover = this->mover();
    std::optional<Status> ended;
    task::Scope scope;
    scope.spawn(moving(mover, ended));
    ASSERT_TRUE(network_.run_until([this] { return !calls_.empty() && calls_.back() == "source moves"; },
                                   network_.now() + kSecond));
    const Nanos before = network_.now();
    base::store(lease(lost), layout::LeaseWord::held_by(0, 99));
    ASSERT_TRUE(network_.run_until([&] { return ended.has_value(); }, network_.now() + 20 * kSecond));
    EXPECT_LT(network_.now() - before, 5 * kSecond);
    EXPECT_FALSE(source_.went_on.ok());
    EXPECT_FALSE(source_.took_in.ok());
    if (lost == 1) EXPECT_FALSE(source_.had.ok()) << "another mover may have this key in hand";
    EXPECT_EQ(std::ranges::count(calls_, "target admits"), 0);
    base::store(lease(lost), std::uint64_t{0});
    for (std::size_t i = 0; i < 2; ++i) {
      if (sessions_[i]->alive()) continue;
      run(sessions_[i]->close(network_.now() + kSecond));
      sessions_[i] = open(*port_, i);
    }
  }
}

}  // namespace
}  // namespace farpool::client
