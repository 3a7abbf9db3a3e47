// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/manager.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace farpool::fabric::verbs {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;

namespace {

sockaddr* raw(sockaddr_storage& address) { return reinterpret_cast<sockaddr*>(&address); }

// Ignores events: the session port reports a connection's end.
class Nobody final : public ConnectionManager::Listener {
  void on_connection_event(const ConnectionEvent&) override {}
} nobody;

int milliseconds(Nanos time) { return static_cast<int>(std::clamp<Nanos>(time / base::kMillisecond, 1, 1 << 30)); }

Gid gid_of(const ibv_gid_entry& entry) {
  Gid gid;
  std::memcpy(gid.data(), entry.gid.raw, gid.size());
  return gid;
}

}  // namespace

std::string text_of(const ConnectionEvent& event) {
  std::string why = event.status < 0 ? std::strerror(-event.status) : "reason " + std::to_string(event.status);
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return "the peer's address was not resolved: " + why;
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return "there is no path to the peer: " + why;
    case RDMA_CM_EVENT_UNREACHABLE:
      return "the peer does not answer: " + why;
    case RDMA_CM_EVENT_REJECTED:
      return "the peer refused the connection: " + why;
    default:
      return std::string("the connection manager says ") + ::rdma_event_str(event.type) + ": " + why;
  }
}

Result<std::unique_ptr<ConnectionManager>> ConnectionManager::open(const Device& device) {
  Channel channel(::rdma_create_event_channel(), ::rdma_destroy_event_channel);
  if (channel == nullptr) return failure("librdmacm has no connections here", errno);
  if (!stop_blocking(channel->fd)) return failure("a channel of librdmacm that does not block", errno);
  std::unique_ptr<ConnectionManager> manager(new ConnectionManager(device, std::move(channel)));
  // It finds a device by an address of this network namespace; it must be the same device.
  const auto tried = manager->make(nobody);
  if (!tried.ok()) return tried.status();
  return manager;
}

// Adds to a GID's address a port and, if it is link-local, an interface.
sockaddr_storage ConnectionManager::address_of(const Gid& gid, std::uint16_t port) const {
  sockaddr_storage storage{};
  ibv_gid raw_gid;
  std::memcpy(raw_gid.raw, gid.data(), gid.size());
  if (is_ipv4(raw_gid)) {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    std::memcpy(&address.sin_addr, raw_gid.raw + 12, sizeof address.sin_addr);
  } else {
    auto& address = reinterpret_cast<sockaddr_in6&>(storage);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    std::memcpy(&address.sin6_addr, raw_gid.raw, sizeof address.sin6_addr);
    if (const auto own = device_.find_gid(); own.ok() && is_link_local(raw_gid)) {
      address.sin6_scope_id = own->ndev_ifindex;
    }
  }
  return storage;
}

Result<Connection> ConnectionManager::make(Listener& listener) {
  const auto own = device_.find_gid();
  if (!own.ok()) return own.status();
  const std::string address = text_of(own->gid);
  rdma_cm_id* made = nullptr;
  if (::rdma_create_id(channel_.get(), &made, &listener, RDMA_PS_TCP) != 0) {
    return failure("librdmacm makes no connection", errno);
  }
  Connection connection(made);
  sockaddr_storage at = address_of(gid_of(*own), 0);
  if (::rdma_bind_addr(made, raw(at)) != 0) return failure("librdmacm cannot use address " + address, errno);
  if (made->verbs == nullptr || device_.name() != ::ibv_get_device_name(made->verbs->device)) {
    return Status(Code::unavailable, "librdmacm does not know " + address + " as an address of " + device_.name());
  }
  std::uint8_t traffic_class = device_.options().traffic_class;
  if (::rdma_set_option(made, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &traffic_class, sizeof traffic_class) != 0) {
    return failure("librdmacm takes no traffic class", errno);
  }
  return connection;
}

Result<Connection> ConnectionManager::listen(Listener& listener, std::uint16_t& port) {
  auto connection = make(listener);
  if (!connection.ok()) return connection;
  constexpr int kBacklog = 1024;
  if (::rdma_listen(connection->get(), kBacklog) != 0) return failure("librdmacm does not listen", errno);
  port = ntohs(::rdma_get_src_port(connection->get()));
  return connection;
}

Status ConnectionManager::resolve_address(rdma_cm_id& id, const Gid& peer, std::uint16_t port, Nanos patience) const {
  sockaddr_storage to = address_of(peer, port);
  if (::rdma_resolve_addr(&id, nullptr, raw(to), milliseconds(patience)) != 0) {
    return failure("librdmacm resolves no addresses", errno);
  }
  return {};
}

void ConnectionManager::take_events() {
  rdma_cm_event* told = nullptr;
  while (::rdma_get_cm_event(channel_.get(), &told) == 0) {
    ConnectionEvent event{.type = told->event, .status = told->status, .id = told->id};
    if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      event.peer_queue_pair = told->param.conn.qp_num;
      event.claim = get_claim({static_cast<const std::byte*>(told->param.conn.private_data),
                               told->param.conn.private_data != nullptr ? told->param.conn.private_data_len : 0u});
    }
    auto* listener = static_cast<Listener*>(told->id->context);
    ::rdma_ack_cm_event(told);  // or the connection could not be destroyed
    listener->on_connection_event(event);
  }
}

task::Task<Result<Connection>> Connecting::run(const AttachRequest& request, const AttachReply& reply, QueuePair& pair,
                                               Nanos deadline) {
  deadline_ = deadline;
  auto connection = manager_.make(*this);
  if (!connection.ok()) co_return connection.status();
  rdma_cm_id& id = **connection;
  const Nanos patience = deadline - port_.now();
  if (Status status = manager_.resolve_address(id, reply.node.gid, reply.manager_port, patience); !status.ok()) {
    co_return status;
  }
  if (Status status = co_await next(RDMA_CM_EVENT_ADDR_RESOLVED); !status.ok()) co_return status;
  if (::rdma_resolve_route(&id, milliseconds(patience)) != 0) co_return failure("librdmacm resolves no paths", errno);
  if (Status status = co_await next(RDMA_CM_EVENT_ROUTE_RESOLVED); !status.ok()) co_return status;
  const auto claim = put(Claim{.queue_pair = reply.node.queue_pair, .nonce = request.nonce});
  rdma_conn_param wanted{};
  wanted.private_data = claim.data();
  wanted.private_data_len = claim.size();
  wanted.responder_resources = wanted.initiator_depth = reply.node.depth;
  wanted.retry_count = reply.patience.retries;
  wanted.rnr_retry_count = kReceiverNotReadyRetries;
  wanted.qp_num = pair.end().queue_pair;
  if (::rdma_connect(&id, &wanted) != 0) co_return failure("librdmacm asks for no connection", errno);
  if (Status status = co_await next(RDMA_CM_EVENT_CONNECT_RESPONSE); !status.ok()) co_return status;
  Status status = pair.connect(id, reply.node, reply.node.mtu, reply.node.depth, reply.patience);
  if (!status.ok()) co_return status;
  if (::rdma_establish(&id) != 0) co_return failure("librdmacm establishes no connection", errno);
  id.context = &nobody;
  co_return std::move(*connection);
}

task::Task<Status> Connecting::next(rdma_cm_event_type due) {
  came_.reset();
  happened_.reset();
  if (given_up_.ok()) {
    port_.disarm(*this);
    when = deadline_;
    if (when != base::kNever) port_.arm(*this);
    co_await happened_;
    port_.disarm(*this);
  }
  if (!given_up_.ok()) co_return given_up_;
  if (!came_) co_return Status(Code::timed_out, std::string("no ") + ::rdma_event_str(due) + " by the deadline");
  if (came_->type != due) co_return Status(Code::unavailable, text_of(*came_));
  co_return Status();
}

// The waiting coroutine resumes at a later turn, because it may destroy the caller of this.
void Connecting::on_connection_event(const ConnectionEvent& event) {
  if (came_) return;
  came_ = event;
  port_.disarm(*this);
  when = port_.now();
  port_.arm(*this);
}

void Connecting::give_up(Status why) {
  given_up_ = std::move(why);
  port_.disarm(*this);
  when = port_.now();
  port_.arm(*this);
}

}  // namespace farpool::fabric::verbs
