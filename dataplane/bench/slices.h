// SPDX-License-Identifier: Apache-2.0
// A simulated world that runs for long: the network takes many steps without an end for a hang, so it gets an end of
// every slice of time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/time.h"
#include "sim/world.h"
#include "task/task.h"

namespace farpool::bench {

// Runs until `done()`, or until virtual time has passed `until`.
template <typename Done>
void run_in_slices(sim::World& world, const Done& done, base::Nanos until) {
  constexpr base::Nanos kSlice = base::kMillisecond;
  fabric::sim::Network& network = world.network();
  while (!done() && network.now() < until) {
    bool past = false;
    network.at(std::min(until, network.now() + kSlice), [&past] { past = true; });
    FARPOOL_CHECK(world.run_until([&past] { return past; }));
  }
}

// Tasks of clients, and the wait for their end.
class Tasks {
 public:
  explicit Tasks(sim::World& world) : world_(world) {}
  void start(sim::Client& client, task::Task<void> task) {
    ++running_;
    world_.spawn(client, count_down(std::move(task)));
  }
  void finish() {
    const auto idle = [this] { return running_ == 0; };
    run_in_slices(world_, idle, world_.network().now() + 600 * base::kSecond);
    FARPOOL_CHECK(idle());
  }

 private:
  task::Task<void> count_down(task::Task<void> task) {
    co_await std::move(task);
    --running_;
  }

  sim::World& world_;
  std::uint64_t running_ = 0;
};

}  // namespace farpool::bench
