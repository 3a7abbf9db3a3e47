// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace farpool::fabric {

class Port;

// An intrusive timer: its owner keeps it alive while armed.
class Timer {
 public:
  virtual void fire() noexcept = 0;
  base::Nanos when = base::kNever;

 protected:
  ~Timer() = default;

 private:
  friend class TimerQueue;
  std::size_t slot_ = 0;  // place in the heap plus one; 0 = not armed
  std::uint64_t order_ = 0;
};

// A binary heap of armed timers, for the ports. Equal times fire in arming order.
class TimerQueue {
 public:
  void arm(Timer& timer);
  void disarm(Timer& timer);
  base::Nanos next() const { return heap_.empty() ? base::kNever : heap_.front()->when; }
  // Fires everything due at `now`; timers that are armed meanwhile for a time <= now fire in the next call. Returns how
  // many fired.
  std::size_t fire_due(base::Nanos now);

 private:
  bool before(const Timer* a, const Timer* b) const {
    return a->when != b->when ? a->when < b->when : a->order_ < b->order_;
  }
  void place(std::size_t slot, Timer* timer);
  void up(std::size_t slot);
  void down(std::size_t slot);
  std::vector<Timer*> heap_;
  std::uint64_t armed_ = 0;
};

// co_await port.sleep_until(t)
class [[nodiscard]] Sleep final : public Timer {
 public:
  Sleep(Port& port, base::Nanos until) : port_(port) { when = until; }
  Sleep(const Sleep&) = delete;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept;
  void await_resume() const noexcept {}
  void fire() noexcept override { handle_.resume(); }

 private:
  Port& port_;
  std::coroutine_handle<> handle_;
};

}  // namespace farpool::fabric
