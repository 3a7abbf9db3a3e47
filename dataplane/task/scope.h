// SPDX-License-Identifier: Apache-2.0
// Structured concurrency for tasks of one thread: nothing outlives the scope that spawned it, and nothing is detached.
#pragma once

#include <coroutine>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "task/task.h"

namespace farpool::task {

// Owns spawned tasks. It must be joined (or be empty) before it is destroyed: a frame that a wire still writes to may
// not die. To end tasks early, sever their lanes or tell them to stop, then join: a task is never destroyed in
// mid-operation.
class Scope {
 public:
  Scope() = default;
  Scope(const Scope&) = delete;
  ~Scope() { FARPOOL_CHECK(running_ == 0); }

  // Starts the task at once and runs it up to its first suspension.
  void spawn(Task<void> task) {
    ++running_;
    run(this, std::move(task));
  }

  std::size_t running() const { return running_; }

  // Resumes when nothing is running any more. One joiner at a time.
  auto join() {
    struct Awaiter {
      Scope& scope;
      bool await_ready() const noexcept { return scope.running_ == 0; }
      void await_suspend(std::coroutine_handle<> waiter) noexcept {
        FARPOOL_CHECK(!scope.joiner_);
        scope.joiner_ = waiter;
      }
      void await_resume() const noexcept {}
    };
    return Awaiter{*this};
  }

 private:
  struct Root {
    struct promise_type {
      static void* operator new(std::size_t bytes) { return allocate_frame(bytes); }
      static void operator delete(void* frame, std::size_t bytes) noexcept { free_frame(frame, bytes); }
      Root get_return_object() { return {}; }
      std::suspend_never initial_suspend() noexcept { return {}; }
      std::suspend_never final_suspend() noexcept { return {}; }
      void return_void() {}
      void unhandled_exception() noexcept { std::terminate(); }
    };
  };
  static Root run(Scope* scope, Task<void> task) {
    {
      Task<void> owned = std::move(task);
      co_await std::move(owned);
    }
    scope->ended();
  }
  void ended() {
    if (--running_ == 0 && joiner_) std::exchange(joiner_, {}).resume();
  }

  std::size_t running_ = 0;
  std::coroutine_handle<> joiner_;
};

// A one-shot or repeated signal between tasks of one thread: waiters resume, in order, when it is set.
class Event {
 public:
  bool is_set() const { return set_; }
  void set() {
    set_ = true;
    Waiter* waiter = std::exchange(head_, nullptr);
    tail_ = nullptr;
    while (waiter != nullptr) {
      Waiter* next = waiter->next;
      waiter->handle.resume();
      waiter = next;
    }
  }
  void reset() { set_ = false; }

  struct Waiter {
    Event& event;
    std::coroutine_handle<> handle{};
    Waiter* next = nullptr;
    bool await_ready() const noexcept { return event.set_; }
    void await_suspend(std::coroutine_handle<> waiter) noexcept {
      handle = waiter;
      (event.tail_ != nullptr ? event.tail_->next : event.head_) = this;
      event.tail_ = this;
    }
    void await_resume() const noexcept {}
  };
  Waiter operator co_await() noexcept { return Waiter{*this}; }

 private:
  bool set_ = false;
  Waiter* head_ = nullptr;
  Waiter* tail_ = nullptr;
};

}  // namespace farpool::task
