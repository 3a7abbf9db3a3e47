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

  static Nanos now();  // the monotonic clock; any thread

  asio::io_context& context();

 private:
  void end_turn();
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
