// SPDX-License-Identifier: Apache-2.0
#include "session/wait.h"

#include "base/check.h"

namespace farpool::session {

WaitQueue::~WaitQueue() { FARPOOL_CHECK(head_ == nullptr); }

void WaitQueue::Waiter::await_suspend(std::coroutine_handle<> handle) noexcept {
  handle_ = handle;
  previous_ = queue_.tail_;
  (queue_.tail_ != nullptr ? queue_.tail_->next_ : queue_.head_) = this;
  queue_.tail_ = this;
  queue_.port_.arm(*this);
}

void WaitQueue::Waiter::fire() noexcept {
  if (!woken_) queue_.unlink(*this);
  handle_.resume();
}

void WaitQueue::unlink(Waiter& waiter) {
  (waiter.previous_ != nullptr ? waiter.previous_->next_ : head_) = waiter.next_;
  (waiter.next_ != nullptr ? waiter.next_->previous_ : tail_) = waiter.previous_;
}

void WaitQueue::wake_one() {
  if (head_ == nullptr) return;
  Waiter& waiter = *head_;
  unlink(waiter);
  waiter.woken_ = true;
  port_.disarm(waiter);
  port_.fire_soon(waiter);
}

void WaitQueue::wake_all() {
  while (head_ != nullptr) wake_one();
}

}  // namespace farpool::session
