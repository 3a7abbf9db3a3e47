// SPDX-License-Identifier: Apache-2.0
// Messages of the connection manager: datagrams to queue pair 1 by which two queue pairs learn of each other.
#pragma once

#include <cstdint>
#include <optional>

#include "roce/packet.h"

namespace farpool::roce {

enum class CmKind : std::uint16_t {
  request = 0x10,
  reject = 0x12,
  reply = 0x13,
  ready = 0x14,
  disconnect_request = 0x15,
  disconnect_reply = 0x16,
};

struct CmMessage {
  CmKind kind = CmKind::request;
  std::uint32_t local_id = 0;   // the sender's number for this connection
  std::uint32_t remote_id = 0;  // the receiver's; not in requests
  // The sender's queue pair, in requests and replies; in a disconnect request the receiver's.
  std::uint32_t queue_pair = 0;
  std::uint32_t receivers_psn = 0;  // with which the receiver of this request or reply begins to send
  std::uint32_t mtu = 0;            // bytes, in requests
};

// Returns nothing for packets that are no such message.
std::optional<CmMessage> parse_cm(const Packet& packet);

}  // namespace farpool::roce
