// SPDX-License-Identifier: Apache-2.0
// One thread's event loop. A loop and everything that lives on it (streams, alarms, ports) belong to the thread that
// runs it, except what says otherwise.
#pragma once

#include <functional>
#include <memory>

#include "base/time.h"

namespace asio {
class io_context;
}

namespace farpool::net {

using base::Nanos;

// Something that wants to act once when the current turn ends: when all that had become ready with it has been handled.
// What a turn has queued then leaves with one system call, one doorbell.
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
  ~TurnHook() { unlink(); }  // forgotten, should the end of the turn still be to come

 private:
  friend class Loop;
  void unlink() {
    next->previous = previous;
    previous->next = next;
    next = previous = this;
  }
};

// Something that the loop looks at in every turn, because no system call tells of it: a ring in shared memory, a
// completion queue. While none does anything the loop sleeps, after spinning for as long as it was told.
class Poller {
 public:
  // Handles what is there; false if that was nothing. May remove any poller, and destroy others than itself.
  virtual bool poll() noexcept = 0;
  // The loop is about to sleep: arranges to be woken. False if something is there already.
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

  void add(Poller& poller);
  void remove(Poller& poller);  // no effect if it is not there
  // How long to look at the pollers in vain before sleeping: latency for CPU. Default: not at all. Before run(), or
  // on the loop's thread.
  void set_spin(Nanos spin);

  static Nanos now();  // the monotonic clock; any thread

  asio::io_context& context();

 private:
  void end_turn();
  void run_pollers();
  bool poll_all();
  bool may_sleep();
  struct State;
  std::unique_ptr<State> state_;
};

// Calls a function at or after a time, on the loop's thread. Setting it again moves it; destroying it forgets it.
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

// Calls a function, on the loop's thread, whenever a descriptor can be read, as long as it lives. The descriptor is its
// owner's: it must be non-blocking and stay open. The function reads until there is nothing more, and may destroy the
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
