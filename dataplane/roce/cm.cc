// SPDX-License-Identifier: Apache-2.0
#include "roce/cm.h"

#include "roce/psn.h"

namespace farpool::roce {
namespace {

constexpr std::size_t kMadBytes = 256;
constexpr std::size_t kMadHeader = 24;  // what messages have before their own fields
constexpr std::uint8_t kClassCm = 0x07;

std::uint32_t word(base::Bytes mad, std::size_t at) { return __builtin_bswap32(base::load<std::uint32_t>(&mad[at])); }
std::uint16_t half(base::Bytes mad, std::size_t at) {
  return std::uint16_t{__builtin_bswap16(base::load<std::uint16_t>(&mad[at]))};
}

}  // namespace

std::optional<CmMessage> parse_cm(const Packet& packet) {
  const base::Bytes mad = packet.payload;
  if (packet.bth.opcode != Opcode::ud_send_only || packet.bth.queue_pair != kManagerQueuePair) return {};
  if (mad.size() < kMadBytes || static_cast<std::uint8_t>(mad[1]) != kClassCm) return {};
  CmMessage message;
  message.kind = static_cast<CmKind>(half(mad, 16));
  message.local_id = word(mad, kMadHeader);
  switch (message.kind) {
    case CmKind::request: {
      message.queue_pair = word(mad, kMadHeader + 32) >> 8;
      message.receivers_psn = word(mad, kMadHeader + 44) >> 8;
      const unsigned mtu = static_cast<std::uint8_t>(mad[kMadHeader + 50]) >> 4;  // 1: 256 bytes
      message.mtu = mtu >= 1 && mtu <= 5 ? 128u << mtu : 0;
      return message;
    }
    case CmKind::reply:
      message.remote_id = word(mad, kMadHeader + 4);
      message.queue_pair = word(mad, kMadHeader + 12) >> 8;
      message.receivers_psn = word(mad, kMadHeader + 20) >> 8;
      return message;
    case CmKind::disconnect_request:
      message.remote_id = word(mad, kMadHeader + 4);
      message.queue_pair = word(mad, kMadHeader + 8) >> 8;
      return message;
    case CmKind::reject:
    case CmKind::ready:
    case CmKind::disconnect_reply:
      message.remote_id = word(mad, kMadHeader + 4);
      return message;
  }
  return {};
}

}  // namespace farpool::roce
