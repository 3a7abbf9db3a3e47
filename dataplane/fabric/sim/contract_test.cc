// SPDX-License-Identifier: Apache-2.0
// The simulated wire passes the suite of every wire, under several seeds.
#include <chrono>

#include "fabric/contract/suite.h"
#include "fabric/sim/network.h"

namespace farpool::fabric::contract {
namespace {

task::Task<void> count_down(task::Task<void> task, std::size_t& left) {
  co_await std::move(task);
  --left;
}

class SimWire final : public Wire {
 public:
  SimWire(TestHost& host, std::size_t clients, sim::Options options)
      : network_(options), node_(network_.add_node("node-0:7400")) {
    node_.serve(host);
    for (std::size_t i = 0; i < clients; ++i) ports_.push_back(&network_.add_client({.role = "client"}));
  }

  std::string endpoint() const override { return node_.endpoint(); }
  std::string dead_endpoint() const override { return "node-1:7400"; }
  std::size_t clients() const override { return ports_.size(); }
  Port& port(std::size_t client) override { return *ports_[client]; }
  Responder& responder() override { return node_; }

  bool run(std::vector<task::Task<void>> tasks) override {
    std::size_t left = tasks.size();
    task::Scope scope;
    for (auto& task : tasks) scope.spawn(count_down(std::move(task), left));
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (left > 0) {
      if (!network_.step() || std::chrono::steady_clock::now() > limit) std::abort();  // frames are still suspended
    }
    return true;
  }
  void on_control(std::function<void()> what) override { what(); }
  void hold_calls(TestHost&) override { node_.hold_calls(true); }
  void release_calls(TestHost&) override { node_.hold_calls(false); }

 private:
  sim::Network network_;
  sim::SimResponder& node_;
  std::vector<sim::SimPort*> ports_;
};

WireFactory seeded(std::string name, sim::Options options) {
  return {std::move(name), [options](TestHost& host, std::size_t clients) -> std::unique_ptr<Wire> {
            return std::make_unique<SimWire>(host, clients, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(Sim, Contract,
                         ::testing::Values(seeded("Seed1", {.seed = 1}), seeded("Seed2", {.seed = 2}),
                                           seeded("Straggling", {.seed = 3, .straggle = 0.5}),
                                           seeded("Whole", {.seed = 4, .tear = false}),
                                           seeded("WholeChains", {.seed = 6, .whole = true}),
                                           seeded("Timed", {.seed = 5, .timing = {.nic = &sim::kConnectX5}})),
                         name_of_wire);

}  // namespace
}  // namespace farpool::fabric::contract
