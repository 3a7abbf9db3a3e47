// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace farpool::fabric::verbs {

using base::Result;
using base::Status;

namespace {

ibv_qp* create(const Device& device, ibv_pd* domain, ibv_qp_init_attr& wanted, bool masked_cas) {
  if (!masked_cas || !::mlx5dv_is_supported(device.context()->device)) return ::ibv_create_qp(domain, &wanted);
  ibv_qp_init_attr_ex extended{};
  extended.send_cq = wanted.send_cq;
  extended.recv_cq = wanted.recv_cq;
  extended.srq = wanted.srq;
  extended.cap = wanted.cap;
  extended.qp_type = wanted.qp_type;
  extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  extended.pd = domain;
  extended.send_ops_flags = kSendOperations;
  mlx5dv_qp_init_attr raw{};
  // The library copies a completion's result for opcodes that it knows; this is none of them.
  raw.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  raw.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  raw.send_ops_flags = MLX5DV_QP_EX_WITH_RAW_WQE;
  ibv_qp* pair = ::mlx5dv_create_qp(device.context(), &extended, &raw);
  wanted.cap = extended.cap;
  return pair;
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::make(const Device& device, ibv_pd* domain, ibv_cq* completions,
                                                   const QueuePairOptions& options, std::uint32_t sequence,
                                                   std::uint8_t depth) {
  const auto gid = device.find_gid();
  if (!gid.ok()) return gid.status();
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions;
  wanted.srq = options.shared_receives;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {.max_send_wr = options.sends,
                .max_recv_wr = options.receives,
                .max_send_sge = options.send_parts,
                .max_recv_sge = options.receive_parts,
                .max_inline_data = options.inline_bytes};
  ibv_qp* pair = create(device, domain, wanted, options.masked_cas);
  if (pair == nullptr && options.inline_bytes > 0) {  // a device may refuse rather than give less
    wanted.cap.max_inline_data = 0;
    pair = create(device, domain, wanted, options.masked_cas);
  }
  if (pair == nullptr) return failure(device.name() + ": a queue pair", errno);
  std::unique_ptr<QueuePair> made(new QueuePair(device, *gid, pair, wanted.cap.max_inline_data));
  if (options.masked_cas && ::mlx5dv_is_supported(device.context()->device)) {
    made->extended_ = ::ibv_qp_to_qp_ex(pair);
    made->raw_ = ::mlx5dv_qp_ex_from_ibv_qp_ex(made->extended_);
  }
  made->end_ = {.queue_pair = pair->qp_num,
                .sequence = sequence & kMask24,
                .mtu = static_cast<std::uint8_t>(device.mtu()),
                .depth = depth};
  std::memcpy(made->end_.gid.data(), gid->gid.raw, made->end_.gid.size());

  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = static_cast<std::uint8_t>(gid->port_num);
  init.qp_access_flags = static_cast<unsigned>(options.access);
  if (const int error =
          ::ibv_modify_qp(pair, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) {
    return failure(device.name() + ": a queue pair's beginning", error);
  }
  return made;
}

int QueuePair::post(std::span<ibv_send_wr> requests, std::span<const std::optional<Masks>> masks) {
  if (raw_ != nullptr) return post_with_masks(*extended_, *raw_, requests, masks);
  ibv_send_wr* bad = nullptr;
  return ::ibv_post_send(pair_, requests.data(), &bad);
}

void QueuePair::stop() {
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ::ibv_modify_qp(pair_, &error, IBV_QP_STATE);
}

QueuePair::~QueuePair() {
  stop();
  ::ibv_destroy_qp(pair_);
}

Status QueuePair::connect(const End& peer, std::uint8_t mtu, std::uint8_t depth, Patience patience) {
  ibv_qp_attr receive{}, send{};
  receive.path_mtu = static_cast<ibv_mtu>(mtu);
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = peer.sequence;
  receive.ah_attr.is_global = 1;
  receive.ah_attr.port_num = static_cast<std::uint8_t>(gid_.port_num);
  std::memcpy(receive.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  receive.ah_attr.grh.hop_limit = 64;
  send.sq_psn = end_.sequence;
  return become_ready(receive, send, depth, patience);
}

Status QueuePair::path_of(rdma_cm_id& connection, const End& peer, ibv_qp_attr& receive, ibv_qp_attr& send) const {
  receive.qp_state = IBV_QPS_RTR;
  send.qp_state = IBV_QPS_RTS;
  int mask = 0;
  if (::rdma_init_qp_attr(&connection, &receive, &mask) != 0 || ::rdma_init_qp_attr(&connection, &send, &mask) != 0) {
    return failure(device_.name() + ": what the connection manager says of a queue pair", errno);
  }
  const ibv_gid& other = receive.ah_attr.grh.dgid;
  if (std::memcmp(other.raw, peer.gid.data(), peer.gid.size()) != 0) {
    return {base::Code::forbidden,
            device_.name() + ": " + text_of(other) + " is not the address that the session port told of"};
  }
  return {};
}

Status QueuePair::connect(rdma_cm_id& connection, const End& peer, std::uint8_t mtu, std::uint8_t depth,
                          Patience patience) {
  ibv_qp_attr receive{}, send{};
  if (Status status = path_of(connection, peer, receive, send); !status.ok()) return status;
  if (receive.dest_qp_num != peer.queue_pair) {
    return {base::Code::forbidden, device_.name() + ": queue pair " + std::to_string(receive.dest_qp_num) + " of " +
                                       text_of(receive.ah_attr.grh.dgid) +
                                       " is not the one that the session port told of"};
  }
  receive.path_mtu = std::min(receive.path_mtu, static_cast<ibv_mtu>(mtu));
  return become_ready(receive, send, depth, patience);
}

Status QueuePair::connect_beside(rdma_cm_id& connection, const End& peer, std::uint8_t mtu, std::uint8_t depth,
                                 Patience patience) {
  ibv_qp_attr receive{}, send{};
  if (Status status = path_of(connection, peer, receive, send); !status.ok()) return status;
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = peer.sequence;
  receive.path_mtu = std::min(receive.path_mtu, static_cast<ibv_mtu>(mtu));
  send.sq_psn = end_.sequence;
  return become_ready(receive, send, depth, patience);
}

// Sets what both kinds of connection have from this side: the entry of the address, and what the session port agreed.
Status QueuePair::become_ready(ibv_qp_attr receive, ibv_qp_attr send, std::uint8_t depth, Patience patience) {
  // A receive is always there (see call.h); these are for a peer that is slow to post it again.
  constexpr std::uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
  receive.qp_state = IBV_QPS_RTR;
  receive.max_dest_rd_atomic = depth;
  receive.min_rnr_timer = kReceiverNotReadyTimer;
  receive.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gid_.gid_index);
  receive.ah_attr.grh.traffic_class = device_.options().traffic_class;
  if (const int error = ::ibv_modify_qp(pair_, &receive,
                                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) {
    return failure(device_.name() + ": a path from " + text_of(gid_.gid) + " to " + text_of(receive.ah_attr.grh.dgid) +
                       " (is it routed through that interface?)",
                   error);
  }
  send.qp_state = IBV_QPS_RTS;
  send.timeout = patience.timeout;
  send.retry_cnt = std::min<std::uint8_t>(patience.retries, 6);
  send.rnr_retry = kReceiverNotReadyRetries;
  send.max_rd_atomic = depth;
  if (const int error = ::ibv_modify_qp(pair_, &send,
                                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) {
    return failure(device_.name() + ": a queue pair that may send", error);
  }
  return {};
}

}  // namespace farpool::fabric::verbs
