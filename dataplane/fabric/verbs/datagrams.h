// SPDX-License-Identifier: Apache-2.0
// A queue pair for datagrams, which reaches any number of peers, each by an address, its number and its key.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/handshake.h"

namespace farpool::fabric::verbs {

// Returns the longest message that a datagram of this device carries, on its side of a path.
std::size_t datagram_bytes(const Device& device);

using Address = Owned<ibv_ah, ibv_destroy_ah>;

class Datagrams {
 public:
  // Sends completions of both kinds to `completions`. The caller draws the key.
  static base::Result<std::unique_ptr<Datagrams>> make(const Device& device, ibv_pd* domain, ibv_cq* completions,
                                                       std::uint32_t sends, std::uint32_t receives,
                                                       std::uint32_t inline_bytes, std::uint32_t key);
  Datagrams(const Datagrams&) = delete;
  ~Datagrams() { ::ibv_destroy_qp(pair_); }

  base::Result<Address> address_of(const Gid& peer) const;
  ibv_qp* raw() const { return pair_; }
  std::uint32_t number() const { return pair_->qp_num; }
  std::uint32_t key() const { return key_; }
  std::uint32_t inline_bytes() const { return inline_bytes_; }

 private:
  Datagrams(const Device& device, ibv_pd* domain, const ibv_gid_entry& gid, ibv_qp* pair, std::uint32_t key,
            std::uint32_t inline_bytes)
      : device_(device), domain_(domain), gid_(gid), pair_(pair), key_(key), inline_bytes_(inline_bytes) {}
  const Device& device_;
  ibv_pd* domain_;
  const ibv_gid_entry gid_;
  ibv_qp* pair_;
  std::uint32_t key_;
  std::uint32_t inline_bytes_;
};

}  // namespace farpool::fabric::verbs
