// SPDX-License-Identifier: Apache-2.0
// The tcp and shm wires for the suite of index protocols: a memory node in this process, whose control loop and
// executors have threads, and clients on threads of their own. What tears and reorders are sockets, rings, and the
// processors between them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/host.h"
#include "fabric/session_port/server.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/port.h"
#include "fabric/tcp/responder.h"
#include "fabric/tcp/test_loop.h"
#include "index/contract/bed.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"

namespace farpool::index::contract {

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

class TcpBed final : public Bed {
 public:
  enum class Lanes : std::uint8_t { sockets, rings };

  TcpBed(const layout::GeometryRequest& table, std::uint64_t seed, Lanes lanes)
      : lanes_(lanes), seed_(seed), memory_(std::move(*node::Memory::anonymous(table.memory_bytes))) {
    if (lanes == Lanes::rings) {
      std::string pattern = (std::filesystem::temp_directory_path() / "farpool-index-XXXXXX").string();
      EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
      directory_ = pattern;
    }
    control_.on([&] { serve(table); });
  }
  ~TcpBed() override {
    for (const auto& client : clients_) client->run(leave(*client));
    EXPECT_GT(responder_->stats().chains, 0u);
    clients_.clear();
    control_.on([this] {
      responder_.reset();
      node_.reset();
    });
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  Member& connect() override {
    clients_.push_back(std::make_unique<TcpMember>(directory_));
    TcpMember& client = *clients_.back();
    client.run(open(client));
    members_.push_back(&client);
    const auto stats = responder_->stats();
    EXPECT_EQ(stats.ring_lanes, lanes_ == Lanes::rings ? stats.lanes : 0u) << "its lanes are not of this wire";
    return client;
  }
  void run(std::vector<Job> jobs) override {
    std::vector<std::future<void>> ended;
    for (Job& job : jobs) ended.push_back(static_cast<TcpMember&>(*job.by).spawn(std::move(job.task)));
    for (const auto& each : ended) TcpMember::wait(each);
  }
  base::Nanos moment() override { return net::Loop::now(); }
  void quiesce() override {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    for (const auto& client : clients_) {
      // What is freed is posted when the turn that unlinked it is over, so this looks in a turn of its own.
      for (bool quiet = false; !quiet;) {
        client->on([&] { quiet = !client->session().alive() || client->session().lane().pending() == 0; });
        if (quiet) continue;
        ASSERT_LT(std::chrono::steady_clock::now(), limit) << "verbs are under way for ever";
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  const layout::Geometry& geometry() const override { return node_->geometry(); }
  base::Bytes memory() override { return memory_.span(); }

 private:
  struct TcpMember final : Member, fabric::tcp::ClientThread {
    explicit TcpMember(const std::string& directory) : ClientThread(nullptr, directory) {}
    fabric::Port& port() override { return *ClientThread::port; }
    session::Session& session() override { return *opened; }
    Table& table() override { return *its_table; }
    std::unique_ptr<session::Session> opened;
    std::unique_ptr<Table> its_table;
  };

  // On the control thread.
  void serve(const layout::GeometryRequest& table) {
    responder_ = std::make_unique<fabric::tcp::TcpResponder>(
        control_.loop,
        fabric::session_port::Options{.listen = "127.0.0.1:0", .executors = 2, .handshake_deadline = kLong});
    drawn_ = std::make_unique<SeededResponder>(*responder_, seed_);
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
    const base::Status served = responder_->serve(*node_);
    ASSERT_TRUE(served.ok()) << served.message();
    ASSERT_EQ(node_->stand_alone().verdict, node::MemoryNode::Verdict::adopted);
    if (lanes_ == Lanes::sockets) return;
    const base::Status rings = responder_->serve_rings(fabric::tcp::rings_address(directory_, node_->incarnation()));
    ASSERT_TRUE(rings.ok()) << rings.message();
  }
  task::Task<void> open(TcpMember& client) {
    auto session = co_await session::Session::open(client.port(), {.endpoint = responder_->address(),
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
  static task::Task<void> leave(TcpMember& client) {
    const base::Nanos deadline = client.port().now() + kLong;
    (void)co_await client.table().idle(deadline);
    if (client.session().alive()) co_await client.table().release(deadline);
    co_await client.session().close(deadline);
    client.its_table.reset();
    client.opened.reset();
  }

  // No machine stands still for so long: only clients that the test kills count as dead.
  static constexpr base::Nanos kLong = 20 * base::kSecond;
  static constexpr char kPool[] = "pool";

  const Lanes lanes_;
  const std::uint64_t seed_;
  std::string directory_;
  node::Memory memory_;
  fabric::session_port::LoopThread control_;
  std::unique_ptr<fabric::tcp::TcpResponder> responder_;
  std::unique_ptr<SeededResponder> drawn_;
  std::unique_ptr<node::MemoryNode> node_;
  std::vector<std::unique_ptr<TcpMember>> clients_;
};

}  // namespace farpool::index::contract
