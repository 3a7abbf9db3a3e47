// SPDX-License-Identifier: Apache-2.0
// The client's half of the session port: a port on a loop that exchanges requests with memory nodes and begins lanes
// there. The wire's port, which derives from this one, does the rest with a lane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "fabric/fabric.h"
#include "fabric/session_port/greeting.h"
#include "fabric/timer.h"
#include "net/loop.h"
#include "net/stream.h"
#include "net/tls.h"
#include "task/task.h"

namespace farpool::fabric::session_port {

// Lives on the loop's thread; the loop outlives it. If TLS is on, its peers must present the role `node` and its own
// pool, and the wanted name if there is one.
class LoopPort : public Port {
 public:
  // The turn's time: a turn reads the clock once.
  Nanos now() const final { return loop_.turn_time(); }
  std::uint64_t random() final;
  void arm(Timer& timer) final;
  void disarm(Timer& timer) final;
  void fire_soon(Timer& timer) final;

  // A lane that a memory node has accepted: what it said, and the connection, which stays open as long as the lane.
  struct Begun {
    std::string answer;
    std::unique_ptr<net::Stream> stream;
  };
  // Spends the grant's token, which must outlive the task, and passes `request` to the wire there. `kind`: lane if the
  // connection is to carry the lane, otherwise attach. forbidden: the memory node refused.
  task::Task<base::Result<Begun>> begin_lane(Greeting kind, const LaneGrant& grant, std::string request,
                                             Nanos deadline);
  // Begins a lane where peers show no certificates, at a socket of this machine: both sides prove that they know the
  // token. The token is never sent, because the listener there might use it. It must outlive the task.
  task::Task<base::Result<Begun>> begin_lane_by_proof(std::string address, const Token& token, Nanos deadline);

 protected:
  LoopPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, SlabSource* registered = nullptr);

  net::Loop& loop_;

 private:
  // One greeting and its answer; the connection stays open for the next.
  struct Answer {
    Welcome welcome = Welcome::refused;
    std::string body;
    std::unique_ptr<net::Stream> stream;
  };
  task::Task<base::Result<std::string>> exchange_with(std::string node_name, std::string endpoint, std::string request,
                                                      Nanos deadline) final;
  task::Task<base::Result<Answer>> greet(std::string endpoint, std::string node_name, std::shared_ptr<net::Tls> tls,
                                         Greeting kind, std::string body, Nanos deadline);
  task::Task<base::Status> say(Answer& answer, Greeting kind, std::string body, Nanos deadline);
  void wake(Nanos when);

  // Fires timers before the turn ends.
  class Soon final : public net::TurnHook {
   public:
    explicit Soon(net::Loop& loop) : loop_(loop) {}
    void add(Timer& timer);
    void on_turn_end() noexcept override;

   private:
    net::Loop& loop_;
    std::vector<Timer*> timers_, firing_;
  };

  std::shared_ptr<net::Tls> tls_;
  Soon soon_;
  TimerQueue timers_;
  net::Alarm alarm_;
  Nanos alarm_at_ = base::kNever;
  std::array<std::uint64_t, 64> entropy_{};
  std::size_t entropy_left_ = 0;
};

}  // namespace farpool::fabric::session_port
