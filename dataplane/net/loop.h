// SPDX-License-Identifier: Apache-2.0
// One thread's event loop. A loop and everything on it (streams, alarms, ports) belong to the thread that runs it;
// exceptions are marked.
#pragma once

#include <functional>
#include <memory>

#include "base/time.h"

namespace asio {
class io_context;
}

namespace farpool::net {

using base::Nanos;

// A hook that runs once when the current turn ends: when everything that became ready with it has been handled. So what
// a turn has queued leaves with one system call, one doorbell.
struct TurnLink {
  TurnLink* next = this;
  TurnLink* previous = this;
};

class TurnHook : private TurnLink {
 public:
  virtual void on_turn_end() noexcept = 0;

 protected:
  TurnHook() = default;
  TurnHook(const TurnHook&) = delete;
  ~TurnHook() { unlink(); }  // does not run any more

 private:
  friend class Loop;
  void unlink() {
    next->previous = previous;
    previous->next = next;
    next = previous = this;
  }
};

// A source that the loop looks at in every turn, because no system call reports it: a ring in shared memory, a
// completion queue. If no poller does anything, the loop spins for its set time, where that pays (net/spin.h), and then
// sleeps.
class Poller {
 public:
  // Handles what is there; returns false if there was nothing. May remove any poller, and may destroy others but not
  // itself.
  virtual bool poll() noexcept = 0;
  // Called when the loop is about to sleep: arranges to be woken. Returns false if something is there already.
  virtual bool may_sleep() noexcept = 0;

 protected:
  ~Poller() = default;
};

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;

  // Runs until stop(). May be called again afterwards.
  void run();
  void stop();                            // any thread
  void post(std::function<void()> what);  // any thread: runs `what` on the loop's thread, at a later turn

  // Calls the hook once when the current turn ends; further calls before then change nothing.
  void at_turn_end(TurnHook& hook);
  // The same, before the hooks that are called at the turn's end: what it does still belongs to the turn.
  void before_turn_end(TurnHook& hook);

  void add(Poller& poller);
  void remove(Poller& poller);  // no effect if it is not there
  // Sets how long to look at the pollers in vain before sleeping: that trades CPU for latency. The loop does so only as
  // long as most of its waits are short (net/spin.h). Default: 0, not at all.
  // Called before run(), or on the loop's thread.
  void set_spin(Nanos spin);

  static Nanos now();  // the monotonic clock; any thread
  // Returns the time at which the current turn first asked for it: the clock is read once a turn, and anew when an alarm
  // fires, so that what the alarm was set for has come. Never later than now(); the same as now() outside of run() and
  // on other threads.
  Nanos turn_time();

  asio::io_context& context();

 private:
  void end_turn();
  void end_turn_soon();
  void add_to(TurnLink& head, TurnHook& hook);
  static void call_all(TurnLink& head);
  void run_pollers();
  bool poll_all();
  bool may_sleep();
  friend class Alarm;
  struct State;
  std::unique_ptr<State> state_;
};

// Calls a function at or after a time, on the loop's thread. Setting it again moves it; destroying it cancels it.
class Alarm {
 public:
  Alarm(Loop& loop, std::function<void()> what);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  void set(Nanos when);
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Calls a function, on the loop's thread, whenever a descriptor can be read, as long as the watch lives. The
// descriptor's owner keeps it non-blocking and open. The function reads until nothing is left, and may destroy the
// watch.
class Watch {
 public:
  Watch(Loop& loop, int descriptor, std::function<void()> readable);
  ~Watch();
  Watch(const Watch&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace farpool::net
