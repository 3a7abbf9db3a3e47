// SPDX-License-Identifier: Apache-2.0
// For tests of this room and of wires: loops on threads of their own, and coroutines run on them.
#pragma once

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

#include "fabric/session_port/port.h"
#include "net/loop.h"
#include "net/tls.h"
#include "task/scope.h"

namespace farpool::fabric::session_port {

struct LoopThread {
  net::Loop loop;
  std::thread thread{[this] { loop.run(); }};
  ~LoopThread() {
    loop.stop();
    thread.join();
  }
  // Runs a function on the loop's thread; returns when it has run.
  void on(const std::function<void()>& what) {
    std::promise<void> ran;
    loop.post([&] {
      what();
      ran.set_value();
    });
    ran.get_future().get();
  }
};

// A port of some wire on a loop of its own.
template <class SomePort>
struct PortThread : LoopThread {
  ~PortThread() {
    on([this] { port.reset(); });
  }
  std::future<void> spawn(task::Task<void> task) {
    auto over = std::make_shared<std::promise<void>>();
    loop.post([this, over, task = std::make_shared<task::Task<void>>(std::move(task))] {
      scope.spawn(signal(std::move(*task), over));
    });
    return over->get_future();
  }
  // Spawns a task and waits for its end. A stuck task holds frames in use, so the process cannot continue then.
  void run(task::Task<void> task) { wait(spawn(std::move(task))); }
  static void wait(const std::future<void>& ended) {
    if (ended.wait_for(std::chrono::minutes(5)) == std::future_status::ready) return;
    std::fprintf(stderr, "a task did not end within five minutes\n");
    std::abort();
  }

  std::unique_ptr<SomePort> port;
  task::Scope scope;

 private:
  static task::Task<void> signal(task::Task<void> task, std::shared_ptr<std::promise<void>> over) {
    {
      task::Task<void> owned = std::move(task);
      co_await std::move(owned);
    }
    over->set_value();
  }
};

// Begins lanes, and leaves them to the test.
class BarePort final : public LoopPort {
 public:
  BarePort(net::Loop& loop, std::shared_ptr<net::Tls> tls) : LoopPort(loop, std::move(tls)) {}
  Caps caps() const override { return {}; }
  task::Task<base::Result<std::unique_ptr<Lane>>> open_lane(LaneGrant, Nanos) override {
    co_return base::Status(base::Code::unavailable, "this port makes no lanes");
  }
};

struct BareThread : PortThread<BarePort> {
  explicit BareThread(std::shared_ptr<net::Tls> tls) {
    on([&] { port = std::make_unique<BarePort>(loop, std::move(tls)); });
  }
};

}  // namespace farpool::fabric::session_port
