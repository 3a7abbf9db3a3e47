// SPDX-License-Identifier: Apache-2.0
// Connections by librdmacm, as far as lanes need them. It resolves addresses and paths (which device and port, the
// peer's hardware address, service level, hop limit, packet size), and carries queue pair numbers from one side to the
// other. It knows no certificates: both sides have agreed on the connection over the session port before (see
// handshake.h).
#pragma once

#include <rdma/rdma_cma.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "fabric/fabric.h"
#include "fabric/timer.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/handshake.h"
#include "fabric/verbs/queue_pair.h"
#include "task/scope.h"

namespace farpool::fabric::verbs {

// Destroying it tells the peer, and refuses an unanswered request.
using Connection = Owned<rdma_cm_id, rdma_destroy_id>;

// The state of a connection, as librdmacm reports it once.
struct ConnectionEvent {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_ERROR;
  int status = 0;  // of failures: an error number, negative, or the peer's reason
  rdma_cm_id* id = nullptr;
  std::uint32_t peer_queue_pair = 0;  // of requests
  std::optional<Claim> claim;         // of requests
};
// For people: "the peer's address was not resolved: No route to host".
std::string text_of(const ConnectionEvent& event);

class ConnectionManager {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_connection_event(const ConnectionEvent& event) = 0;
  };

  // Opens librdmacm. Fails if there is none, or if it cannot use the device's address: the loopback interface's, or
  // another network namespace's, as in a pod that shares the device of its Kubernetes node.
  static base::Result<std::unique_ptr<ConnectionManager>> open(const Device& device);

  // Returns a non-blocking descriptor that can be read when there is something to take.
  int descriptor() const { return channel_->fd; }
  // Makes a connection from the device's address. The listener outlives it.
  base::Result<Connection> make(Listener& listener);
  // Listens for requests to the device's address, at a port that it chooses: requests come with connections of their
  // own.
  base::Result<Connection> listen(Listener& listener, std::uint16_t& port);
  // Hands on all events. A listener may do anything except destroy this.
  void take_events();
  base::Status resolve_address(rdma_cm_id& id, const Gid& peer, std::uint16_t port, base::Nanos patience) const;

 private:
  using Channel = std::unique_ptr<rdma_event_channel, decltype(&rdma_destroy_event_channel)>;
  ConnectionManager(const Device& device, Channel channel) : device_(device), channel_(std::move(channel)) {}
  sockaddr_storage address_of(const Gid& gid, std::uint16_t port) const;
  const Device& device_;
  Channel channel_;
};

// The client's side of one connection, from its peer's address to a queue pair that may send.
class Connecting final : public ConnectionManager::Listener, private Timer {
 public:
  Connecting(Port& port, ConnectionManager& manager) : port_(port), manager_(manager) {}
  ~Connecting() override { port_.disarm(*this); }

  // Connects; `request` and `reply` are what both sides said on the session port.
  task::Task<base::Result<Connection>> run(const AttachRequest& request, const AttachReply& reply, QueuePair& pair,
                                           base::Nanos deadline);
  // Makes run() end with this error soon.
  void give_up(base::Status why);

  void on_connection_event(const ConnectionEvent& event) override;

 private:
  // Waits for the next event of the connection; fails if it is not the one that is due.
  task::Task<base::Status> next(rdma_cm_event_type due);
  void fire() noexcept override { happened_.set(); }
  Port& port_;
  ConnectionManager& manager_;
  base::Nanos deadline_ = base::kNever;
  std::optional<ConnectionEvent> came_;
  base::Status given_up_;
  task::Event happened_;
};

}  // namespace farpool::fabric::verbs
