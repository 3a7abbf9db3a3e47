// SPDX-License-Identifier: Apache-2.0
// One reliable connection's queue pair, from its making to its end. One-shot: a failed one is destroyed, and another is
// made.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/handshake.h"
#include "fabric/verbs/masked_cas.h"

namespace farpool::fabric::verbs {

// How often it waits for a peer that posts no receive: a finite number, which 7 would not be.
inline constexpr std::uint8_t kReceiverNotReadyRetries = 6;

struct QueuePairOptions {
  std::uint32_t sends = 0;
  std::uint32_t receives = 0;
  std::uint32_t send_parts = 1;  // spans of one request
  std::uint32_t receive_parts = 1;
  std::uint32_t inline_bytes = 0;      // wanted; inline_bytes() says what there is
  int access = 0;                      // of the peer: IBV_ACCESS_REMOTE_*
  ibv_srq* shared_receives = nullptr;  // in place of its own
  bool masked_cas = false;             // raw entries, if it is an mlx5 device: without, masks are left out
};

class QueuePair {
 public:
  // Sends completions of both kinds to `completions`. The caller draws the sequence number.
  static base::Result<std::unique_ptr<QueuePair>> make(const Device& device, ibv_pd* domain, ibv_cq* completions,
                                                       const QueuePairOptions& options, std::uint32_t sequence,
                                                       std::uint8_t depth);
  QueuePair(const QueuePair&) = delete;
  // Moves it to error and destroys it: when this returns, the device neither executes a verb of the peer's nor touches
  // memory for one of ours.
  ~QueuePair();

  // Ends it: nothing of either side executes from here on, and it cannot be used again.
  void stop();

  // Makes it ready to receive and to send, on a path made of what the peer said of itself.
  base::Status connect(const End& peer, std::uint8_t mtu, std::uint8_t depth, Patience patience);
  // Does the same on the path that librdmacm has resolved, for a connection that has been requested or answered: to
  // that peer and no other.
  base::Status connect(rdma_cm_id& connection, const End& peer, std::uint8_t mtu, std::uint8_t depth,
                       Patience patience);
  // Does the same for a queue pair beside the connection's own: on its path, to another queue pair of its peer.
  base::Status connect_beside(rdma_cm_id& connection, const End& peer, std::uint8_t mtu, std::uint8_t depth,
                              Patience patience);

  ibv_qp* raw() const { return pair_; }
  // Sends all of the linked requests, or none. Returns 0, or the error. A queue pair without raw entries executes a
  // masked CAS as an ordinary one, as some devices might: the trial finds that out.
  int post(std::span<ibv_send_wr> requests, std::span<const std::optional<Masks>> masks);
  std::uint32_t inline_bytes() const { return inline_bytes_; }
  // Returns what the peer learns of it.
  const End& end() const { return end_; }

 private:
  QueuePair(const Device& device, const ibv_gid_entry& gid, ibv_qp* pair, std::uint32_t inline_bytes)
      : device_(device), gid_(gid), pair_(pair), inline_bytes_(inline_bytes) {}
  base::Status path_of(rdma_cm_id& connection, const End& peer, ibv_qp_attr& receive, ibv_qp_attr& send) const;
  base::Status become_ready(ibv_qp_attr receive, ibv_qp_attr send, std::uint8_t depth, Patience patience);
  const Device& device_;
  const ibv_gid_entry gid_;
  ibv_qp* pair_;
  ibv_qp_ex* extended_ = nullptr;
  mlx5dv_qp_ex* raw_ = nullptr;
  std::uint32_t inline_bytes_;
  End end_;
};

}  // namespace farpool::fabric::verbs
