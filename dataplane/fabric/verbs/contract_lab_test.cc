// SPDX-License-Identifier: Apache-2.0
// The verbs wire under the contract suite, on the first RDMA device of this machine. It fails without one: see
// hack/lab.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "fabric/contract/suite.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/verbs/lab_test.h"
#include "fabric/verbs/responder.h"
#include "net/listener.h"
#include "net/throwaway_ca.h"

namespace farpool::fabric::contract {
namespace {

using session_port::LoopThread;
using verbs::VerbsThread;

// Laboratories are slow, and these tests do not measure how soon a failure is noticed.
constexpr Nanos kFailureTimeout = 20 * base::kSecond;

struct Shape {
  bool tls = false;
  Nanos spin = 0;
  bool managed = true;  // connected by librdmacm
  verbs::CallForm calls = verbs::CallForm::connected;
};

class VerbsWire final : public Wire {
 public:
  VerbsWire(TestHost& host, std::size_t clients, Shape shape) {
    auto device = verbs::Device::open({.connection_manager = shape.managed, .failure_timeout = kFailureTimeout});
    if (!device.ok()) {
      ADD_FAILURE() << device.status().message();
      return;
    }
    device_ = *device;
    std::shared_ptr<net::Tls> node_tls, client_tls;
    if (shape.tls) {
      node_tls = *net::Tls::load(ca_.issue("farpool://pool/node/n0"), net::Tls::Kind::mutual);
      client_tls = *net::Tls::load(ca_.issue("farpool://pool/client/c0"), net::Tls::Kind::mutual);
    }
    control_.on([&] {
      responder_ = std::make_unique<verbs::VerbsResponder>(
          control_.loop,
          session_port::Options{.listen = "127.0.0.1:0", .tls = node_tls, .handshake_deadline = kFailureTimeout},
          *device);
      const base::Status status = responder_->serve(host);
      EXPECT_TRUE(status.ok()) << status.message();
      // Finds a free port.
      auto listener = net::Listener::open(control_.loop, {.address = "127.0.0.1:0"}, [](auto) {});
      dead_ = (*listener)->address();
    });
    for (std::size_t i = 0; i < clients; ++i) {
      clients_.push_back(std::make_unique<VerbsThread>(client_tls, *device, shape.spin, nullptr, shape.calls));
    }
  }
  ~VerbsWire() override {
    clients_.clear();
    control_.on([this] { responder_.reset(); });
  }

  std::string endpoint() const override { return responder_->address(); }
  std::string dead_endpoint() const override { return dead_; }
  std::size_t clients() const override { return clients_.size(); }
  bool loses_refusals() const override { return true; }
  bool has_masked_cas() const override { return device_->masked_cas(); }
  Port& port(std::size_t client) override { return *clients_[client]->port; }
  Responder& responder() override { return *responder_; }

  bool run(std::vector<task::Task<void>> tasks) override {
    std::vector<std::future<void>> ended;
    for (std::size_t i = 0; i < tasks.size(); ++i) ended.push_back(clients_[i]->spawn(std::move(tasks[i])));
    for (const auto& each : ended) VerbsThread::wait(each);
    return true;
  }
  void on_control(std::function<void()> what) override { control_.on(what); }

 private:
  net::ThrowawayCa ca_;
  LoopThread control_;
  std::shared_ptr<verbs::Device> device_;
  std::unique_ptr<verbs::VerbsResponder> responder_;
  std::string dead_;
  std::vector<std::unique_ptr<VerbsThread>> clients_;
};

WireFactory wire_of(std::string name, Shape shape) {
  return {std::move(name),
          [shape](TestHost& host, std::size_t clients) { return std::make_unique<VerbsWire>(host, clients, shape); }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Verbs, Contract,
                         ::testing::Values(wire_of("Woken", {.managed = false}), wire_of("Tls", {.tls = true}),
                                           wire_of("Spinning", {.spin = 50 * base::kMillisecond}),
                                           wire_of("Datagrams", {.calls = verbs::CallForm::datagrams})),
                         name_of_wire);

}  // namespace farpool::fabric::contract
