// SPDX-License-Identifier: Apache-2.0
// The client's end of the tcp wire: a port on a loop, and lanes that are connections; and of the shm wire, whose lanes
// are rings in memory shared with a memory node of this host.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "fabric/fabric.h"
#include "fabric/tcp/frame.h"
#include "fabric/timer.h"
#include "net/loop.h"
#include "net/stream.h"
#include "net/tls.h"

namespace farpool::fabric::tcp {

// Linux sends a lost segment again after 200 ms at the least, and after 400 ms the next time. This is one loss, and
// room for a slow turn of either side. The API's rule for a pool's failure timeout says the same.
inline constexpr Nanos kRetryTime = 500 * base::kMillisecond;
// What every lane of this wire can do.
Caps wire_caps();

// Where memory nodes of this host offer lanes over rings: each by its incarnation, so that no other can answer for it.
std::string rings_address(const std::string& directory, std::uint64_t node_incarnation);

// Lives on the loop's thread; the loop outlives it. Where TLS is on, what it reaches must present the role `node` and
// its own pool, and its name where one is wanted.
class TcpPort final : public Port {
 public:
  // `rings`: the directory of the shm wire. A lane to a memory node that is found there goes over rings, every other
  // over TCP. None: all go over TCP.
  TcpPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, std::string rings = {});
  ~TcpPort() override;

  Caps caps() const override { return wire_caps(); }
  Nanos now() const override { return net::Loop::now(); }
  std::uint64_t random() override;
  task::Task<base::Result<std::unique_ptr<Lane>>> open_lane(LaneGrant grant, Nanos deadline) override;
  void arm(Timer& timer) override;
  void disarm(Timer& timer) override;

  // One greeting and its answer on a memory node's session port; the stream stays open for the caller. Other wires open
  // their lanes with it.
  struct Answer {
    Welcome welcome = Welcome::refused;
    std::string body;
    std::unique_ptr<net::Stream> stream;
  };
  task::Task<base::Result<Answer>> ask(std::string endpoint, std::string node_name, Greeting kind, std::string body,
                                       Nanos deadline) {
    return greet(std::move(endpoint), std::move(node_name), tls_, kind, std::move(body), deadline);
  }

 private:
  friend class TcpLane;
  task::Task<base::Result<std::string>> exchange_with(std::string node_name, std::string endpoint, std::string request,
                                                      Nanos deadline) override;
  task::Task<base::Result<Answer>> greet(std::string endpoint, std::string node_name, std::shared_ptr<net::Tls> tls,
                                         Greeting kind, std::string body, Nanos deadline);
  task::Task<base::Status> say(Answer& answer, Greeting kind, std::string body, Nanos deadline);
  task::Task<base::Result<Answer>> open_over_rings(const LaneGrant& grant, Nanos deadline);
  void complete(Posting& posting);  // its waiter resumes with the next resume_completed
  void resume_soon();               // at the next turn
  void resume_completed();
  void wake(Nanos when);

  net::Loop& loop_;
  std::shared_ptr<net::Tls> tls_;
  std::string rings_;
  TimerQueue timers_;
  net::Alarm alarm_;
  Nanos alarm_at_ = base::kNever;
  Posting* first_completed_ = nullptr;
  Posting* last_completed_ = nullptr;
  bool resume_posted_ = false;
  std::shared_ptr<TcpPort*> self_;  // what is posted to the loop may outlive the port
  std::array<std::uint64_t, 64> entropy_{};
  std::size_t entropy_left_ = 0;
};

}  // namespace farpool::fabric::tcp
