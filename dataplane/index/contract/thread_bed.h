// SPDX-License-Identifier: Apache-2.0
// The real wires for the suite of index protocols: a memory node in this process, whose control loop and executors have
// threads, and clients on threads of their own. What tears and reorders are sockets or rings, and the
// processors between them. A wire brings its two ends: tcp_ends.h.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/host.h"
#include "fabric/session_port/test_loop.h"
#include "index/contract/bed.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"

namespace farpool::index::contract {

// No machine stands still for so long: only clients that the test kills count as dead.
inline constexpr base::Nanos kLong = 20 * base::kSecond;

// What a wire brings to a bed.
class WireEnds {
 public:
  virtual ~WireEnds() = default;
  // The control thread calls these: makes the memory node's end, serves, and ends.
  virtual fabric::Responder& respond(net::Loop& control) = 0;
  virtual base::Status serve(fabric::Host& host, std::uint64_t incarnation) = 0;
  virtual void end() = 0;
  // Any thread.
  virtual const std::string& address() const = 0;
  // Makes a client's port, on its loop's thread.
  virtual std::unique_ptr<fabric::Port> port(net::Loop& loop) = 0;
  // Fails the test if a lane is not of this wire. Called after each client has come.
  virtual void look_at_lanes() = 0;
};

// Draws from a seed what a memory node asks of chance, its tables' seeds above all: where keys lie, and how far a scan
// comes with one look, is then the same in every run.
class SeededResponder final : public fabric::Responder {
 public:
  SeededResponder(fabric::Responder& wire, std::uint64_t seed) : wire_(wire), random_(seed) {}
  fabric::Caps caps() const override { return wire_.caps(); }
  void fence(std::uint64_t session_id, std::function<void()> done) override {
    wire_.fence(session_id, std::move(done));
  }
  void after(base::Nanos delay, std::function<void()> what) override { wire_.after(delay, std::move(what)); }
  base::Nanos now() const override { return wire_.now(); }
  std::uint64_t random() override { return random_.next(); }

 private:
  fabric::Responder& wire_;
  base::Random random_;
};

class ThreadBed final : public Bed {
 public:
  ThreadBed(const layout::GeometryRequest& table, std::uint64_t seed, std::unique_ptr<WireEnds> wire)
      : seed_(seed), memory_(std::move(*node::Memory::anonymous(table.memory_bytes))), wire_(std::move(wire)) {
    control_.on([&] { serve(table); });
  }
  ~ThreadBed() override {
    for (const auto& client : clients_) client->run(leave(*client));
    clients_.clear();
    control_.on([this] {
      wire_->end();
      node_.reset();
    });
  }

  Member& connect() override {
    clients_.push_back(std::make_unique<ThreadMember>(*wire_));
    ThreadMember& client = *clients_.back();
    client.run(open(client));
    members_.push_back(&client);
    wire_->look_at_lanes();
    return client;
  }
  void run(std::vector<Job> jobs) override {
    std::vector<std::future<void>> ended;
    for (Job& job : jobs) ended.push_back(static_cast<ThreadMember&>(*job.by).spawn(std::move(job.task)));
    for (const auto& each : ended) ThreadMember::wait(each);
  }
  base::Nanos moment() override { return net::Loop::now(); }
  void quiesce() override {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    // A CALL of the owner waits at the memory node, beside everything else that it posts.
    const std::size_t waiting = owned ? 1 : 0;
    while (posted() > waiting) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit) << "verbs are under way for ever";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  const layout::Geometry& geometry() const override { return node_->geometry(); }
  base::Bytes memory() override { return memory_.span(); }

 private:
  struct ThreadMember final : Member, fabric::session_port::PortThread<fabric::Port> {
    explicit ThreadMember(WireEnds& wire) {
      on([&] { PortThread::port = wire.port(loop); });
    }
    fabric::Port& port() override { return *PortThread::port; }
    session::Session& session() override { return *opened; }
    Table& table() override { return *its_table; }
    std::unique_ptr<session::Session> opened;
    std::unique_ptr<Table> its_table;
  };

  // Counts what clients have posted. What is freed is posted when the turn that unlinked it is over, so this looks in a
  // turn of its own.
  std::size_t posted() {
    std::size_t sum = 0;
    for (const auto& client : clients_) {
      client->on([&] { sum += client->session().alive() ? client->session().lane().pending() : 0; });
    }
    return sum;
  }

  // On the control thread.
  void serve(const layout::GeometryRequest& table) {
    drawn_ = std::make_unique<SeededResponder>(wire_->respond(control_.loop), seed_);
    node::MemoryNode::Options options;
    options.name = "memory-0";
    options.pool_uid = kPool;
    options.endpoint = "memory-0:7400";  // nobody dials what the map says here
    options.geometry = table;
    options.lease = 2 * kLong;
    options.failure_timeout = kLong;
    options.require_authentication = false;
    options.log = [](bool, const std::string&) {};
    options.on_change = [] {};
    auto created = node::MemoryNode::create(std::move(options), memory_.span(), *drawn_);
    ASSERT_TRUE(created.ok()) << created.status().message();
    node_ = std::move(*created);
    const base::Status served = wire_->serve(*node_, node_->incarnation());
    ASSERT_TRUE(served.ok()) << served.message();
    ASSERT_EQ(node_->stand_alone().verdict, node::MemoryNode::Verdict::adopted);
  }
  task::Task<void> open(ThreadMember& client) {
    auto session = co_await session::Session::open(client.port(), {.endpoint = wire_->address(),
                                                                   .pool_uid = kPool,
                                                                   .client_name = "client",
                                                                   .epoch = 1,
                                                                   .node_incarnation = node_->incarnation(),
                                                                   .deadline = client.port().now() + kLong});
    if (!session) {
      std::fprintf(stderr, "a client has no session: %s\n", session.status().message().c_str());
      std::abort();
    }
    client.opened = std::move(*session);
    client.its_table = protocols::of(geometry().protocol).open(*client.opened, geometry(), 0);
  }
  static task::Task<void> leave(ThreadMember& client) {
    const base::Nanos deadline = client.port().now() + kLong;
    (void)co_await client.table().idle(deadline);
    if (client.session().alive()) co_await client.table().release(deadline);
    co_await client.session().close(deadline);
    client.its_table.reset();
    client.opened.reset();
  }

  static constexpr char kPool[] = "pool";

  const std::uint64_t seed_;
  node::Memory memory_;
  const std::unique_ptr<WireEnds> wire_;
  fabric::session_port::LoopThread control_;
  std::unique_ptr<SeededResponder> drawn_;
  std::unique_ptr<node::MemoryNode> node_;
  std::vector<std::unique_ptr<ThreadMember>> clients_;
};

}  // namespace farpool::index::contract
