// SPDX-License-Identifier: Apache-2.0
// Session, heap and memory node over the tcp wire: real threads, real sockets, real time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/session_port/server.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/responder.h"
#include "fabric/tcp/test_loop.h"
#include "heap/heap.h"
#include "layout/regions.h"
#include "layout/segment.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "session/session.h"

namespace farpool::node {
namespace {

using base::kSecond;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using fabric::Outcome;
using fabric::Remote;
using fabric::tcp::ClientThread;
using heap::Block;
using heap::Heap;
using heap::Purpose;
using session::Session;
using task::Task;

constexpr Nanos kPatience = 60 * kSecond;
// No machine stands still for as long as the long lease; the short one is for a client that does.
constexpr Nanos kLongLease = 20 * kSecond;
constexpr Nanos kShortLease = kSecond;

// A word of the table region that nothing else touches here.
constexpr Remote kWord{layout::kTable, 0};

// Waits until other threads have made `done` true.
bool eventually(const std::function<bool()>& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience);
  while (!done()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A memory node whose control loop and executors run on threads of their own.
struct Server {
  explicit Server(std::uint64_t bytes, Nanos lease = kLongLease) : memory(std::move(*Memory::anonymous(bytes))) {
    control.on([this, lease] {
      responder = std::make_unique<fabric::tcp::TcpResponder>(
          control.loop, fabric::session_port::Options{.listen = "127.0.0.1:0", .tls = nullptr, .executors = 2});
      MemoryNode::Options options;
      options.name = "memory-0";
      options.pool_uid = "pool";
      options.endpoint = "memory-0:7400";  // nobody dials what the map says here
      options.geometry.table_percent = 5;
      options.lease = lease;
      options.failure_timeout = lease / 2;
      options.require_authentication = false;
      options.log = [](bool, const std::string&) {};
      options.on_change = [] {};
      auto created = MemoryNode::create(std::move(options), memory.span(), *responder);
      ASSERT_TRUE(created.ok()) << created.status().message();
      node = std::move(*created);
      const Status status = responder->serve(*node);
      ASSERT_TRUE(status.ok()) << status.message();
      node->stand_alone();
    });
  }
  ~Server() {
    control.on([&] {
      responder.reset();
      node.reset();
    });
  }
  // Waits, because a goodbye is answered before its figures are published.
  bool closes(std::uint64_t sessions) const {
    return eventually([&] { return node->stats().sessions_closed == sessions; });
  }
  std::uint64_t fenced() const { return node->stats().sessions_fenced; }
  std::uint64_t word() const {
    return base::load<std::uint64_t>(memory.span().data() + node->geometry().at(layout::kTable).offset + kWord.offset);
  }

  Memory memory;
  fabric::session_port::LoopThread control;
  std::unique_ptr<fabric::tcp::TcpResponder> responder;
  std::unique_ptr<MemoryNode> node;
};

// A client with a session and a heap on a thread of its own.
struct Client : ClientThread {
  explicit Client(Server& server) : ClientThread(nullptr), geometry(server.node->geometry()) {
    Session::Options options;
    options.endpoint = server.responder->address();
    options.pool_uid = "pool";
    options.client_name = "client";
    options.epoch = 1;
    options.node_incarnation = server.node->incarnation();
    run(open(std::move(options)));
  }
  ~Client() {
    if (session) run(leave());
  }
  Task<void> open(Session::Options options) {
    options.deadline = port->now() + kPatience;
    auto opened = co_await Session::open(*port, std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (!opened.ok()) co_return;
    session = std::move(*opened);
    heap = std::make_unique<Heap>(*session, geometry.at(layout::kHeap).bytes, geometry.segment_bytes);
  }
  Task<void> leave() {
    if (session->alive()) co_await heap->release(port->now() + kPatience);
    co_await session->close(port->now() + kPatience);
    heap.reset();
    session.reset();
  }
  Task<void> post(Op op, Outcome& outcome) {
    Cost cost;
    const std::array chain{op};
    outcome = co_await session->post(chain, port->now() + kPatience, cost);
  }

  const layout::Geometry geometry;
  std::unique_ptr<Session> session;
  std::unique_ptr<Heap> heap;
};

TEST(OverTcp, ASessionTicksAndSaysGoodbye) {
  Server server(8 << 20);
  {
    Client client(server);
    ASSERT_TRUE(client.session);
    std::uint64_t era = 0;
    EXPECT_TRUE(eventually([&] {
      client.on([&] {
        client.session->hurry_eras();
        era = client.session->alive() ? client.session->era() : ~0ull;
      });
      return era >= 4;
    }));
    EXPECT_NE(era, ~0ull) << "it has ended";
    std::uint64_t old = ~0ull;
    Outcome outcome;
    client.run(client.post(Op::fetch_add(kWord, old, 5), outcome));
    EXPECT_EQ(outcome.fate, Fate::done);
    EXPECT_EQ(old, 0u);
  }
  EXPECT_TRUE(server.closes(1));
  EXPECT_EQ(server.fenced(), 0u);
  EXPECT_EQ(server.word(), 5u);
}

Task<void> add_one(Client& client, std::uint64_t& old, Outcome& outcome, std::shared_ptr<std::promise<void>> over) {
  co_await client.post(Op::fetch_add(kWord, old, 1), outcome);
  over->set_value();
}

// A client whose thread stands still, as after SIGSTOP, with verbs that it has posted and not sent.
TEST(OverTcp, WhatAFencedClientHadPostedNeverExecutes) {
  Server server(8 << 20, kShortLease);
  {
    Client zombie(server);
    ASSERT_TRUE(zombie.session);
    Outcome outcome{.fate = Fate::done};
    std::uint64_t old = 0;
    std::promise<void> go_on;
    std::promise<void> stopped;
    auto ended = std::make_shared<std::promise<void>>();
    zombie.loop.post([&] {
      // The doorbell is rung at the end of the turn, and the turn does not end.
      zombie.scope.spawn(add_one(zombie, old, outcome, ended));
      stopped.set_value();
      go_on.get_future().wait();
    });
    stopped.get_future().wait();
    EXPECT_TRUE(eventually([&] { return server.fenced() == 1; }));
    go_on.set_value();
    ClientThread::wait(ended->get_future());
    EXPECT_NE(outcome.fate, Fate::done);
    zombie.on([&] { EXPECT_FALSE(zombie.session->alive()); });
  }
  EXPECT_EQ(server.word(), 0u) << "a verb of a fenced session has executed";
  EXPECT_EQ(server.fenced(), 1u);
}

// Each client fills blocks with its own words and reads them back, and frees what the other took.
Task<void> churn(Client& client, std::uint64_t mark, std::uint64_t rounds, std::vector<Block>& left, bool& failed) {
  constexpr std::uint64_t kBytes = 256;
  base::Random random(mark);
  failed = true;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Cost cost;
    const Result<Block> block =
        co_await client.heap->allocate(kBytes, Purpose::addition, client.port->now() + kPatience, cost);
    EXPECT_TRUE(block.ok()) << block.status().message();
    if (!block.ok()) co_return;
    const Remote at{layout::kHeap, layout::block_offset(block->units)};
    std::array<std::uint64_t, kBytes / 8> words, back{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = mark << 48 | round << 8 | i;
    const std::array chain{Op::write(at, std::as_writable_bytes(std::span(words))),
                           Op::read(at, std::as_writable_bytes(std::span(back)))};
    const Outcome outcome = co_await client.session->post(chain, client.port->now() + kPatience, cost);
    EXPECT_EQ(outcome.fate, Fate::done);
    if (outcome.fate != Fate::done) co_return;
    left.push_back(*block);
    if (left.size() > 64) {
      std::swap(left.back(), left[random.below(left.size())]);
      const Block old = left.back();
      left.pop_back();
      // No other client may have written to it since.
      std::array<std::uint64_t, kBytes / 8> now{};
      const std::array look{
          Op::read({layout::kHeap, layout::block_offset(old.units)}, std::as_writable_bytes(std::span(now)))};
      const Outcome looked = co_await client.session->post(look, client.port->now() + kPatience, cost);
      EXPECT_EQ(looked.fate, Fate::done);
      const bool own = std::all_of(now.begin(), now.end(), [&](std::uint64_t word) {
        return word >> 48 == mark && word >> 8 << 8 == (now[0] & ~0xffull);
      });
      EXPECT_TRUE(own) << "two clients had one block";
      if (!own) co_return;
      client.heap->free(old.units, kBytes, cost);
    }
    EXPECT_EQ(words, back);
  }
  failed = false;
}

TEST(OverTcp, ClientsOnThreadsShareAHeapThatTheyTurnOverManyTimes) {
  Server server(4 << 20);
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::future<void>> over;
  std::array<std::vector<Block>, 3> left;
  std::array<bool, 3> failed{true, true, true};
  const std::uint64_t blocks = server.node->geometry().at(layout::kHeap).bytes / 256;
  for (std::size_t i = 0; i < left.size(); ++i) {
    clients.push_back(std::make_unique<Client>(server));
    over.push_back(clients[i]->spawn(churn(*clients[i], i + 1, blocks, left[i], failed[i])));
  }
  for (const auto& each : over) ClientThread::wait(each);
  EXPECT_EQ(failed, (std::array<bool, 3>{}));
  for (const auto& client : clients) EXPECT_EQ(client->heap->usage().anomalies, 0u);
  clients.clear();
  EXPECT_TRUE(server.closes(3));
  EXPECT_EQ(server.fenced(), 0u);
}

}  // namespace
}  // namespace farpool::node
