// SPDX-License-Identifier: Apache-2.0
// The client's end of the tcp wire: a port on a loop, and lanes that are connections; and of the shm wire, whose lanes
// are rings in memory shared with a memory node of this host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fabric/fabric.h"
#include "fabric/session_port/port.h"
#include "net/loop.h"
#include "net/tls.h"

namespace farpool::fabric::tcp {

// Linux sends a lost segment again after 200 ms at the least, and after 400 ms the next time. This is one loss, and
// room for a slow turn of either side. The API's rule for a pool's failure timeout says the same.
inline constexpr Nanos kRetryTime = 500 * base::kMillisecond;
// What every lane of this wire can do.
Caps wire_caps();

// Where memory nodes of this host offer lanes over rings: each by its incarnation, so that no other can answer for it.
std::string rings_address(const std::string& directory, std::uint64_t node_incarnation);

// Lives on the loop's thread; the loop outlives it.
class TcpPort final : public session_port::LoopPort {
 public:
  // `rings`: the directory of the shm wire. A lane to a memory node that is found there goes over rings, every other
  // over TCP. None: all go over TCP.
  TcpPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, std::string rings = {});
  ~TcpPort() override;

  Caps caps() const override { return wire_caps(); }
  task::Task<base::Result<std::unique_ptr<Lane>>> open_lane(LaneGrant grant, Nanos deadline) override;

 private:
  friend class TcpLane;
  void complete(Posting& posting);  // its waiter resumes with the next resume_completed
  void resume_soon();               // at the next turn
  void resume_completed();

  std::string rings_;
  Posting* first_completed_ = nullptr;
  Posting* last_completed_ = nullptr;
  bool resume_posted_ = false;
  std::shared_ptr<TcpPort*> self_;  // what is posted to the loop may outlive the port
};

}  // namespace farpool::fabric::tcp
