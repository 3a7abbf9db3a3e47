// SPDX-License-Identifier: Apache-2.0
#include "net/loop.h"

#include <sched.h>

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "net/spin.h"

namespace farpool::net {
namespace {

// How often hooks of a turn may make new work for it before it ends.
constexpr int kMostRounds = 16;
// The largest number of events in a turn, before the loop looks at the pollers.
constexpr std::size_t kMostHandlers = 256;

thread_local const Loop* running = nullptr;  // on this thread

}  // namespace

struct Loop::State {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  TurnLink early_hooks, hooks;   // heads of rings
  bool turn_end_due = false;     // end_turn has been posted, or a loop that polls calls it behind the pollers
  bool polls = false;            // each look at the pollers begins a turn
  Nanos turn_time = 0;           // 0: nobody has asked for it in this turn
  std::vector<Poller*> pollers;  // none where one was removed in this turn
  Spin spin{0};
  std::atomic<bool> stopping = false;
};

Loop::Loop() : state_(std::make_unique<State>()) {}

Loop::~Loop() = default;

void Loop::run() {
  const Loop* const before = std::exchange(running, this);
  for (;;) {
    // A stop of the context counts until it is restarted: an earlier stop has left its flag.
    state_->context.restart();
    if (state_->stopping.exchange(false)) break;
    if (state_->pollers.empty()) {
      state_->context.run();  // until stop(), or the first poller
    } else {
      run_pollers();
    }
  }
  running = before;
}

void Loop::stop() {
  state_->stopping = true;
  state_->context.stop();
}

void Loop::run_pollers() {
  Nanos idle_since = 0;  // 0: not idle, or nobody wants to know
  const auto idle_no_more = [&] {
    if (const Nanos since = std::exchange(idle_since, 0); since != 0) state_->spin.waited(now() - since);
  };
  state_->polls = true;
  while (!state_->stopping && !state_->pollers.empty()) {
    state_->turn_time = 0;
    // Handlers that make others ready at once could continue for ever.
    std::size_t handled = 0;
    while (handled < kMostHandlers && state_->context.poll_one() > 0) ++handled;
    const bool polled = poll_all();
    const bool hooked = state_->turn_end_due;
    if (hooked) end_turn();
    if (polled || hooked || handled > 0) {
      idle_no_more();
      continue;
    }
    if (state_->spin.on()) {
      const Nanos time = now();
      if (idle_since == 0) idle_since = time;
      if (time - idle_since < state_->spin.patience()) {
        ::sched_yield();  // what the loop waits for may need this processor
        continue;
      }
    }
    state_->turn_time = 0;
    if (may_sleep()) state_->context.run_one();
    idle_no_more();
  }
  state_->polls = false;
  state_->turn_time = 0;
  if (std::exchange(state_->turn_end_due, false)) end_turn_soon();
}

bool Loop::poll_all() {
  bool any = false;
  for (std::size_t i = 0; i < state_->pollers.size(); ++i) {
    if (state_->pollers[i] != nullptr) any |= state_->pollers[i]->poll();
  }
  std::erase(state_->pollers, nullptr);
  return any;
}

bool Loop::may_sleep() {
  return std::all_of(state_->pollers.begin(), state_->pollers.end(),
                     [](Poller* poller) { return poller == nullptr || poller->may_sleep(); });
}

void Loop::add(Poller& poller) {
  state_->pollers.push_back(&poller);
  if (state_->pollers.size() == 1) state_->context.stop();  // out of run(), which sees only what the system tells
}

void Loop::remove(Poller& poller) {
  std::replace(state_->pollers.begin(), state_->pollers.end(), &poller, static_cast<Poller*>(nullptr));
}

void Loop::set_spin(Nanos spin) { state_->spin = Spin(spin); }

void Loop::post(std::function<void()> what) { asio::post(state_->context, std::move(what)); }

void Loop::add_to(TurnLink& head, TurnHook& hook) {
  if (hook.next != &hook) return;
  hook.previous = head.previous;
  hook.next = &head;
  head.previous->next = &hook;
  head.previous = &hook;
  end_turn_soon();
}

void Loop::at_turn_end(TurnHook& hook) { add_to(state_->hooks, hook); }

void Loop::before_turn_end(TurnHook& hook) { add_to(state_->early_hooks, hook); }

void Loop::end_turn_soon() {
  if (std::exchange(state_->turn_end_due, true)) return;
  // Nothing has to be posted, which would allocate: pollers are called outside of Asio.
  if (state_->polls) return;
  // Asio runs handlers in the order in which they became ready: this one comes after all that are ready now.
  asio::post(state_->context, [this] { end_turn(); });
}

void Loop::end_turn() {
  for (int round = 0; round < kMostRounds && state_->early_hooks.next != &state_->early_hooks; ++round) {
    call_all(state_->early_hooks);
  }
  state_->turn_end_due = false;
  if (state_->early_hooks.next != &state_->early_hooks) end_turn_soon();
  call_all(state_->hooks);
  state_->turn_time = 0;
}

// Hooks that are queued from here on are called the next time.
void Loop::call_all(TurnLink& head) {
  TurnLink now;
  if (head.next == &head) return;
  now.next = head.next;
  now.previous = head.previous;
  now.next->previous = &now;
  now.previous->next = &now;
  head.next = head.previous = &head;
  while (now.next != &now) {
    auto* hook = static_cast<TurnHook*>(now.next);
    hook->unlink();
    hook->on_turn_end();
  }
}

Nanos Loop::turn_time() {
  if (running != this) return now();
  if (state_->turn_time == 0) {
    state_->turn_time = now();
    if (!state_->polls) end_turn_soon();
  }
  return state_->turn_time;
}

Nanos Loop::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

asio::io_context& Loop::context() { return state_->context; }

struct Alarm::State : std::enable_shared_from_this<Alarm::State> {
  State(Loop& loop, std::function<void()> what) : loop(loop), timer(loop.context()), what(std::move(what)) {}
  Loop& loop;
  asio::steady_timer timer;
  std::function<void()> what;
  std::uint64_t armed =
      0;  // raised whenever the alarm is set or cancelled: a firing that was under way knows it is late
};

Alarm::Alarm(Loop& loop, std::function<void()> what) : state_(std::make_shared<State>(loop, std::move(what))) {}

Alarm::~Alarm() { cancel(); }

void Alarm::set(Nanos when) {
  state_->timer.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(when)));
  state_->timer.async_wait([state = state_, armed = ++state_->armed](const asio::error_code&) {
    if (state->armed != armed) return;
    state->loop.state_->turn_time = 0;
    state->what();
  });
}

void Alarm::cancel() {
  ++state_->armed;
  state_->timer.cancel();
}

struct Watch::State : std::enable_shared_from_this<Watch::State> {
  State(Loop& loop, int descriptor, std::function<void()> readable)
      : descriptor(loop.context(), descriptor), readable(std::move(readable)) {}
  void wait() {
    descriptor.async_wait(asio::posix::descriptor_base::wait_read,
                          [state = shared_from_this()](const asio::error_code& error) {
                            if (error || state->ended) return;
                            state->readable();
                            if (!state->ended) state->wait();
                          });
  }
  asio::posix::stream_descriptor descriptor;
  std::function<void()> readable;
  bool ended = false;
};

Watch::Watch(Loop& loop, int descriptor, std::function<void()> readable)
    : state_(std::make_shared<State>(loop, descriptor, std::move(readable))) {
  state_->wait();
}

Watch::~Watch() {
  state_->ended = true;
  state_->descriptor.release();  // cancels the wait, and leaves the descriptor to its owner
}

}  // namespace farpool::net
