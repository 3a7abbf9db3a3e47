// SPDX-License-Identifier: Apache-2.0
// The tcp wire under the contract suite, over real sockets: plain, with TLS, and with more than one executor; and the
// shm wire, whose exchanges go over TLS and whose lanes over rings.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "fabric/contract/suite.h"
#include "fabric/session_port/server.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/responder.h"
#include "fabric/tcp/test_loop.h"
#include "net/listener.h"
#include "net/throwaway_ca.h"

namespace farpool::fabric::contract {
namespace {

using session_port::LoopThread;
using tcp::ClientThread;

struct Shape {
  bool tls = false;
  std::size_t executors = 1;
  bool rings = false;
  base::Nanos spin = 0;
};

class TcpWire final : public Wire {
 public:
  TcpWire(TestHost& host, std::size_t clients, Shape shape) {
    std::shared_ptr<net::Tls> node_tls, client_tls;
    if (shape.tls) {
      node_tls = *net::Tls::load(ca_.issue("farpool://pool/node/n0"), net::Tls::Kind::mutual);
      client_tls = *net::Tls::load(ca_.issue("farpool://pool/client/c0"), net::Tls::Kind::mutual);
    }
    if (shape.rings) {
      std::string pattern = (std::filesystem::temp_directory_path() / "farpool-shm-XXXXXX").string();
      EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
      directory_ = pattern;
    }
    responder_ = std::make_unique<tcp::TcpResponder>(
        control_.loop, session_port::Options{
                           .listen = "127.0.0.1:0", .tls = node_tls, .executors = shape.executors, .spin = shape.spin});
    control_.on([&] {
      base::Status status = responder_->serve(host);
      EXPECT_TRUE(status.ok()) << status.message();
      if (shape.rings) status = responder_->serve_rings(tcp::rings_address(directory_, 1));
      EXPECT_TRUE(status.ok()) << status.message();
    });
    // Finds a free port.
    control_.on([&] {
      auto listener = net::Listener::open(control_.loop, {.address = "127.0.0.1:0"}, [](auto) {});
      dead_ = (*listener)->address();
    });
    for (std::size_t i = 0; i < clients; ++i)
      clients_.push_back(std::make_unique<ClientThread>(client_tls, directory_));
  }
  ~TcpWire() override {
    if (!directory_.empty()) {
      // A lane that ends leaves the count of all lanes first.
      const auto stats = responder_->stats();
      EXPECT_LE(stats.lanes, stats.ring_lanes) << "a lane over TCP";
    }
    clients_.clear();
    control_.on([this] { responder_.reset(); });
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  std::string endpoint() const override { return responder_->address(); }
  std::string dead_endpoint() const override { return dead_; }
  std::size_t clients() const override { return clients_.size(); }
  Port& port(std::size_t client) override { return *clients_[client]->port; }
  Responder& responder() override { return *responder_; }

  bool run(std::vector<task::Task<void>> tasks) override {
    std::vector<std::future<void>> ended;
    for (std::size_t i = 0; i < tasks.size(); ++i) ended.push_back(clients_[i]->spawn(std::move(tasks[i])));
    for (const auto& each : ended) ClientThread::wait(each);
    return true;
  }
  void on_control(std::function<void()> what) override { control_.on(what); }

 private:
  net::ThrowawayCa ca_;
  std::string directory_;
  LoopThread control_;
  std::unique_ptr<tcp::TcpResponder> responder_;
  std::string dead_;
  std::vector<std::unique_ptr<ClientThread>> clients_;
};

WireFactory wire_of(std::string name, Shape shape) {
  return {std::move(name),
          [shape](TestHost& host, std::size_t clients) { return std::make_unique<TcpWire>(host, clients, shape); }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Tcp, Contract,
                         ::testing::Values(wire_of("Plain", {}), wire_of("Tls", {.tls = true}),
                                           wire_of("TwoExecutors", {.executors = 2})),
                         name_of_wire);
INSTANTIATE_TEST_SUITE_P(
    Shm, Contract,
    ::testing::Values(wire_of("Sleeping", {.tls = true, .rings = true}),
                      wire_of("Spinning",
                              {.tls = true, .executors = 2, .rings = true, .spin = 50 * base::kMicrosecond})),
    name_of_wire);

}  // namespace farpool::fabric::contract
