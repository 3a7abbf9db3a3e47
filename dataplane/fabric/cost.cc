// SPDX-License-Identifier: Apache-2.0
#include "fabric/cost.h"

#include <algorithm>

#include "roce/format.h"

namespace farpool::fabric {
namespace {

constexpr std::uint64_t kPacket =
    roce::kEthernetBytes + roce::kIpv4Bytes + roce::kUdpBytes + roce::kBthBytes + roce::kIcrcBytes;
constexpr std::uint64_t kReth = roce::kRethBytes;
constexpr std::uint64_t kAeth = roce::kAethBytes;
constexpr std::uint64_t kAtomicEth = roce::kAtomicBytes;
constexpr std::uint64_t kMasks = roce::kMasksBytes;

std::uint64_t packets(std::uint64_t bytes, std::uint64_t mtu) {
  if (bytes <= mtu) return 1;  // mostly, and without a division
  return (bytes + mtu - 1) / mtu;
}

}  // namespace

std::uint64_t request_bytes(const Op& op, std::uint64_t mtu) {
  const std::uint64_t length = op.local.size();
  switch (op.verb) {
    case Verb::read:
      return kPacket + kReth;
    case Verb::write:
      return packets(length, mtu) * kPacket + kReth + length;
    case Verb::cas:
    case Verb::fetch_add:
      return kPacket + kAtomicEth;
    case Verb::masked_cas:
      return kPacket + kAtomicEth + kMasks;
    case Verb::call:  // a SEND, and the acknowledgement of its answer
      return packets(length, mtu) * kPacket + length + kPacket + kAeth;
  }
  return 0;
}

std::uint64_t reply_bytes(const Op& op, std::uint64_t mtu) {
  switch (op.verb) {
    case Verb::read: {
      const std::uint64_t n = packets(op.local.size(), mtu);  // only the first and last reply packets carry an AETH
      return n * kPacket + std::min<std::uint64_t>(n, 2) * kAeth + op.local.size();
    }
    case Verb::write:
      return kPacket + kAeth;
    case Verb::cas:
    case Verb::fetch_add:
    case Verb::masked_cas:
      return kPacket + kAeth + roce::kAtomicAckBytes;
    case Verb::call:  // the acknowledgement of the SEND, and the answer's own
      return kPacket + kAeth + packets(op.reply.size(), mtu) * kPacket + op.reply.size();
  }
  return 0;
}

std::uint64_t wire_bytes(const Op& op, std::uint64_t mtu) { return request_bytes(op, mtu) + reply_bytes(op, mtu); }

}  // namespace farpool::fabric
