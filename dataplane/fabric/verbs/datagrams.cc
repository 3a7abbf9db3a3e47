// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/datagrams.h"

#include <cerrno>
#include <cstring>
#include <string>

namespace farpool::fabric::verbs {

using base::Result;

std::size_t datagram_bytes(const Device& device) { return std::size_t{128} << device.mtu(); }

Result<std::unique_ptr<Datagrams>> Datagrams::make(const Device& device, ibv_pd* domain, ibv_cq* completions,
                                                   std::uint32_t sends, std::uint32_t receives,
                                                   std::uint32_t inline_bytes, std::uint32_t key) {
  const auto gid = device.find_gid();
  if (!gid.ok()) return gid.status();
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions;
  wanted.qp_type = IBV_QPT_UD;
  wanted.cap = {.max_send_wr = sends,
                .max_recv_wr = receives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = inline_bytes};
  ibv_qp* pair = ::ibv_create_qp(domain, &wanted);
  if (pair == nullptr && inline_bytes > 0) {  // a device may refuse rather than give less
    wanted.cap.max_inline_data = 0;
    pair = ::ibv_create_qp(domain, &wanted);
  }
  if (pair == nullptr) return failure(device.name() + ": a queue pair for datagrams", errno);
  std::unique_ptr<Datagrams> made(new Datagrams(device, domain, *gid, pair, key, wanted.cap.max_inline_data));
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = static_cast<std::uint8_t>(gid->port_num);
  state.qkey = key;
  int error = ::ibv_modify_qp(pair, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  state.qp_state = IBV_QPS_RTR;
  if (error == 0) error = ::ibv_modify_qp(pair, &state, IBV_QP_STATE);
  state.qp_state = IBV_QPS_RTS;
  if (error == 0) error = ::ibv_modify_qp(pair, &state, IBV_QP_STATE | IBV_QP_SQ_PSN);
  if (error != 0) return failure(device.name() + ": the beginning of a queue pair for datagrams", error);
  return made;
}

Result<Address> Datagrams::address_of(const Gid& peer) const {
  ibv_ah_attr path{};
  path.is_global = 1;
  path.port_num = static_cast<std::uint8_t>(gid_.port_num);
  std::memcpy(path.grh.dgid.raw, peer.data(), peer.size());
  path.grh.sgid_index = static_cast<std::uint8_t>(gid_.gid_index);
  path.grh.hop_limit = 64;
  path.grh.traffic_class = device_.options().traffic_class;
  Address address(::ibv_create_ah(domain_, &path));
  if (address == nullptr) {
    return failure(device_.name() + ": a path for datagrams to " + text_of(path.grh.dgid) +
                       " (is it routed through that interface?)",
                   errno);
  }
  return address;
}

}  // namespace farpool::fabric::verbs
