// SPDX-License-Identifier: Apache-2.0
#include "fabric/timer.h"

#include "base/check.h"
#include "fabric/fabric.h"

namespace farpool::fabric {

void TimerQueue::place(std::size_t slot, Timer* timer) {
  heap_[slot] = timer;
  timer->slot_ = slot + 1;
}

void TimerQueue::up(std::size_t slot) {
  Timer* timer = heap_[slot];
  while (slot > 0) {
    const std::size_t parent = (slot - 1) / 2;
    if (!before(timer, heap_[parent])) break;
    place(slot, heap_[parent]);
    slot = parent;
  }
  place(slot, timer);
}

void TimerQueue::down(std::size_t slot) {
  Timer* timer = heap_[slot];
  for (;;) {
    std::size_t child = 2 * slot + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], timer)) break;
    place(slot, heap_[child]);
    slot = child;
  }
  place(slot, timer);
}

void TimerQueue::arm(Timer& timer) {
  FARPOOL_CHECK(timer.slot_ == 0);
  timer.order_ = ++armed_;
  heap_.push_back(&timer);
  up(heap_.size() - 1);
}

void TimerQueue::disarm(Timer& timer) {
  if (timer.slot_ == 0) return;
  const std::size_t slot = timer.slot_ - 1;
  timer.slot_ = 0;
  Timer* last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  place(slot, last);
  up(slot);
  down(last->slot_ - 1);
}

std::size_t TimerQueue::fire_due(base::Nanos now) {
  const std::uint64_t last = armed_;
  std::size_t fired = 0;
  while (!heap_.empty() && heap_.front()->when <= now && heap_.front()->order_ <= last) {
    Timer& timer = *heap_.front();
    disarm(timer);
    timer.fire();
    ++fired;
  }
  return fired;
}

void Sleep::await_suspend(std::coroutine_handle<> handle) noexcept {
  handle_ = handle;
  port_.arm(*this);
}

}  // namespace farpool::fabric
