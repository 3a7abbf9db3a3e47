// SPDX-License-Identifier: Apache-2.0
// Within one client, changes of one key take turns here and not at the table's locks. A hot key then costs each client
// one attempt at the lock at a time, and changes go in the order of their arrival.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

// A key has a gate while it is being changed. Allocates nothing once there have been as many at a time.
class Gates {
  struct Gate {
    explicit Gate(fabric::Port& port) : queue(port) {}
    std::uint64_t hash = 0;
    Gate* next = nullptr;
    session::WaitQueue queue;
  };

 public:
  explicit Gates(fabric::Port& port) : port_(port) {}
  Gates(const Gates&) = delete;

  // Holds the gate for its holder alone. Empty: the deadline passed first.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept : gates_(other.gates_), gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&& other) noexcept {
      std::swap(gates_, other.gates_);
      std::swap(gate_, other.gate_);
      return *this;
    }
    ~Pass() {
      if (gate_ != nullptr) gates_->leave(*gate_);
    }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    friend class Gates;
    Pass(Gates& gates, Gate& gate) : gates_(&gates), gate_(&gate) {}
    Gates* gates_ = nullptr;
    Gate* gate_ = nullptr;
  };

  // Two keys of one hash merely wait for each other.
  static std::uint64_t hash(std::string_view key) { return base::mix(std::hash<std::string_view>{}(key)); }
  // Returns an empty pass if the key is being changed.
  Pass enter_now(std::uint64_t hash) {
    if (find(hash) != nullptr) return {};
    if (spare_ == nullptr) spare_ = &all_.emplace_back(port_);
    Gate& gate = *std::exchange(spare_, spare_->next);
    Gate*& bucket = buckets_[hash % kBuckets];
    gate.hash = hash;
    gate.next = std::exchange(bucket, &gate);
    return {*this, gate};
  }
  task::Task<Pass> enter(std::uint64_t hash, base::Nanos deadline) {
    Gate* const gate = find(hash);
    if (gate == nullptr) co_return enter_now(hash);
    // It is handed to the first in its queue.
    const bool mine = co_await gate->queue.wait(deadline);
    if (!mine) co_return Pass();
    co_return Pass(*this, *gate);
  }

 private:
  static constexpr std::size_t kBuckets = 1024;

  Gate* find(std::uint64_t hash) const {
    Gate* gate = buckets_[hash % kBuckets];
    while (gate != nullptr && gate->hash != hash) gate = gate->next;
    return gate;
  }
  void leave(Gate& gate) {
    if (!gate.queue.empty()) return gate.queue.wake_one();
    Gate** at = &buckets_[gate.hash % kBuckets];
    while (*at != &gate) at = &(*at)->next;
    *at = gate.next;
    gate.next = std::exchange(spare_, &gate);
  }

  fabric::Port& port_;
  std::array<Gate*, kBuckets> buckets_{};
  std::deque<Gate> all_;
  Gate* spare_ = nullptr;
};

}  // namespace farpool::client
