// SPDX-License-Identifier: Apache-2.0
// The memory node's side of CALLs for data: one thread that receives, executes and answers the CALLs of its lanes. A
// lane has a link here: a queue pair of its own, whose receives come from a queue that all links share, or an address
// for datagrams, which all come to one queue pair. The queue always holds a receive for every CALL that the lanes may
// have in flight, so a client that keeps to its window never has to wait.
//
// Each CALL has a line of its link, and the line keeps the answer until its next CALL comes: a datagram that arrives
// again finds the answer there, and executes nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/counts.h"
#include "base/result.h"
#include "fabric/host.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/handshake.h"
#include "fabric/verbs/queue_pair.h"

namespace farpool::fabric::verbs {

// Counts of CALLs for data: see kCallGauges and kCallCounts. An owner is a kind of link.
struct CallStats {
  std::uint64_t links = 0;
  std::uint64_t calls = 0;
  std::uint64_t held = 0;
  std::uint64_t repeated = 0;
  std::uint64_t ignored = 0;
};

// What there is now.
inline constexpr auto kCallGauges = std::to_array<base::Count<CallStats>>({
    {&CallStats::links, "links", "Links for CALLs for data that are open."},
    {&CallStats::held, "held_calls", "CALLs for data that services hold."},
});
inline constexpr auto kCallCounts = std::to_array<base::Count<CallStats>>({
    {&CallStats::calls, "calls", "CALLs for data executed."},
    {&CallStats::repeated, "repeated_calls", "CALLs for data whose request came again.", "datagrams"},
    {&CallStats::ignored, "ignored_messages", "Messages that belong to no CALL for data.", "datagrams"},
});
static_assert(sizeof(CallStats) == (kCallGauges.size() + kCallCounts.size()) * sizeof(std::uint64_t));

inline void operator+=(CallStats& sum, const CallStats& more) {
  base::add_counts(kCallGauges, sum, more);
  base::add_counts(kCallCounts, sum, more);
}

class CallServer {
 public:
  // Called on the server's thread when the link of this lane must end.
  using Ended = std::function<void(std::uint64_t lane, const std::string& why)>;
  // The domain outlives the server.
  static base::Result<std::unique_ptr<CallServer>> make(std::shared_ptr<Device> device, ibv_pd* domain, Nanos spin,
                                                        Ended ended);
  // Joins the thread. The answers of tickets that are still held go nowhere. No link is used afterwards.
  ~CallServer();

  // The control thread calls the functions from here on.

  class Link;
  struct Wanted {
    std::uint64_t lane = 0;
    std::uint64_t session_id = 0;
    Service* service = nullptr;
    CallEnd client;
    End lane_of_client;  // the client's address, and its queue pair's path MTU
    std::uint32_t sequence = 0;
    std::uint64_t cookie = 0;
  };
  base::Result<std::shared_ptr<Link>> admit(const Wanted& wanted);
  // Returns what the client learns of the link.
  static const CallEnd& said(const Link& link);
  // Starts to execute its CALLs. `connection`: the lane's, if there is one.
  base::Status open(const std::shared_ptr<Link>& link, rdma_cm_id* connection, std::uint8_t mtu, Patience patience);
  // Stops executing CALLs of the link, some time later: see drain().
  void close(std::shared_ptr<Link> link);
  // Called when the session's links have been closed. Calls `then`, on the server's thread, once none of them executes
  // any more and the service has given back what it held.
  void drain(std::uint64_t session_id, std::function<void()> then);

  CallStats stats() const;  // any thread

  struct State;  // internal

 private:
  explicit CallServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace farpool::fabric::verbs
