// SPDX-License-Identifier: Apache-2.0
// Within one client, changes of one key take turns here and not at the table's locks. A hot key then costs each client
// one attempt at the lock at a time, and changes go in the order of their arrival. Keys that share a gate only wait for
// each other.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/time.h"
#include "fabric/fabric.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::client {

class Gates {
 public:
  explicit Gates(fabric::Port& port) {
    for (std::size_t i = 0; i < kGates; ++i) gates_.emplace_back(port);
  }

 private:
  static constexpr std::size_t kGates = 1024;
  struct Gate {
    explicit Gate(fabric::Port& port) : queue(port) {}
    bool busy = false;
    session::WaitQueue queue;
  };

 public:
  // Holds the gate for its holder alone. Empty: the deadline passed first.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ == nullptr) return;
      // If the gate is handed to the next in the queue, it stays busy.
      gate_->queue.empty() ? void(gate_->busy = false) : gate_->queue.wake_one();
    }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    friend class Gates;
    explicit Pass(Gate& gate) : gate_(&gate) {}
    Gate* gate_ = nullptr;
  };

  task::Task<Pass> enter(std::string_view key, base::Nanos deadline) {
    Gate& gate = gates_[base::mix(std::hash<std::string_view>{}(key)) % kGates];
    if (std::exchange(gate.busy, true)) {
      const bool mine = co_await gate.queue.wait(deadline);
      if (!mine) co_return Pass();
    }
    co_return Pass(gate);
  }

 private:
  std::deque<Gate> gates_;
};

}  // namespace farpool::client
