// SPDX-License-Identifier: Apache-2.0
// Waits until another coroutine of the same port wakes it, or until a deadline. Waiters never resume inline, so the
// waking coroutine can finish its work first.
#pragma once

#include <coroutine>

#include "base/time.h"
#include "fabric/fabric.h"

namespace farpool::session {

class WaitQueue {
 public:
  explicit WaitQueue(fabric::Port& port) : port_(port) {}
  WaitQueue(const WaitQueue&) = delete;
  ~WaitQueue();

  // co_await queue.wait(deadline): true if woken, false at the deadline. Waiters wake in the order of their arrival.
  class [[nodiscard]] Waiter final : public fabric::Timer {
   public:
    Waiter(WaitQueue& queue, base::Nanos deadline) : queue_(queue) { when = deadline; }
    Waiter(const Waiter&) = delete;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) noexcept;
    bool await_resume() const noexcept { return woken_; }
    void fire() noexcept override;

   private:
    friend class WaitQueue;
    WaitQueue& queue_;
    std::coroutine_handle<> handle_;
    Waiter* next_ = nullptr;
    Waiter* previous_ = nullptr;
    bool woken_ = false;
  };
  Waiter wait(base::Nanos deadline) { return Waiter(*this, deadline); }

  void wake_one();
  void wake_all();
  bool empty() const { return head_ == nullptr; }

 private:
  void unlink(Waiter& waiter);
  fabric::Port& port_;
  Waiter* head_ = nullptr;
  Waiter* tail_ = nullptr;
};

}  // namespace farpool::session
