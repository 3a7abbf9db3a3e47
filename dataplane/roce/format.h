// SPDX-License-Identifier: Apache-2.0
// The words of a RoCEv2 packet. Numbers are the host's here; packet.h knows their bytes on the wire, which are
// big-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace farpool::roce {

inline constexpr std::uint16_t kUdpPort = 4791;
// The queue pair of the connection manager, and the key of its datagrams.
inline constexpr std::uint32_t kManagerQueuePair = 1;
inline constexpr std::uint32_t kManagerKey = 0x80010000;

// Sizes on the wire.
inline constexpr std::size_t kEthernetBytes = 14;
inline constexpr std::size_t kTagBytes = 4;
inline constexpr std::size_t kIpv4Bytes = 20;
inline constexpr std::size_t kIpv6Bytes = 40;
inline constexpr std::size_t kUdpBytes = 8;
inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kRethBytes = 16;
inline constexpr std::size_t kAtomicBytes = 28;
inline constexpr std::size_t kMasksBytes = 16;
inline constexpr std::size_t kAethBytes = 4;
inline constexpr std::size_t kAtomicAckBytes = 8;
inline constexpr std::size_t kDethBytes = 8;
inline constexpr std::size_t kImmediateBytes = 4;
inline constexpr std::size_t kIcrcBytes = 4;
// The longest that stands before a packet's payload.
inline constexpr std::size_t kLongestHeaders =
    kEthernetBytes + kTagBytes + kIpv6Bytes + kUdpBytes + kBthBytes + kAtomicBytes + kMasksBytes;

enum class Opcode : std::uint8_t {
  // Reliable connections: requests
  send_first = 0x00,
  send_middle = 0x01,
  send_last = 0x02,
  send_last_immediate = 0x03,
  send_only = 0x04,
  send_only_immediate = 0x05,
  write_first = 0x06,
  write_middle = 0x07,
  write_last = 0x08,
  write_last_immediate = 0x09,
  write_only = 0x0a,
  write_only_immediate = 0x0b,
  read_request = 0x0c,
  compare_swap = 0x13,
  fetch_add = 0x14,
  send_last_invalidate = 0x16,
  send_only_invalidate = 0x17,
  flush = 0x1c,
  atomic_write = 0x1d,
  // and responses
  read_response_first = 0x0d,
  read_response_middle = 0x0e,
  read_response_last = 0x0f,
  read_response_only = 0x10,
  acknowledge = 0x11,
  atomic_acknowledge = 0x12,
  // Unreliable connections
  uc_send_first = 0x20,
  uc_send_last_immediate = 0x23,
  uc_send_only_immediate = 0x25,
  uc_write_first = 0x26,
  uc_write_last_immediate = 0x29,
  uc_write_only = 0x2a,
  uc_write_only_immediate = 0x2b,
  // Datagrams
  ud_send_only = 0x64,
  ud_send_only_immediate = 0x65,
  // Says that the network is congested.
  congestion = 0x81,
  // A masked CAS: AtomicETH, then the masks of swap and compare. The vendor that has them publishes neither opcode nor
  // header. This number is one of the range that the specification leaves to vendors, and the header is what fabric/cost.h
  // counts. Not captured.
  masked_compare_swap = 0xd3,
};

struct Ethernet {
  std::array<std::uint8_t, 6> to = {};
  std::array<std::uint8_t, 6> from = {};
  bool tagged = false;
  std::uint16_t tag = 0;
};

// An address of IPv6, or of IPv4 as ::ffff:a.b.c.d.
struct Address {
  std::array<std::uint8_t, 16> bytes = {};
  friend bool operator==(const Address&, const Address&) = default;
};
constexpr Address ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}};
}

struct Ip {
  bool v6 = false;
  Address from, to;
  std::uint8_t traffic_class = 0;
  std::uint8_t hops = 64;
  std::uint16_t id = 0;          // IPv4
  bool do_not_split = true;      // IPv4
  std::uint16_t checksum = 0;    // IPv4
  std::uint32_t flow_label = 0;  // IPv6
};

struct Udp {
  std::uint16_t from_port = 0xc000;
  std::uint16_t checksum = 0;  // 0: none
};

// The base transport header.
struct Bth {
  Opcode opcode = Opcode::send_only;
  bool solicited = false;
  bool migrated = true;
  std::uint8_t pad = 0;  // bytes that fill the payload up to a multiple of 4
  std::uint8_t version = 0;
  std::uint16_t partition = 0xffff;
  std::uint8_t congestion = 0;  // two bits, and six reserved ones
  std::uint32_t queue_pair = 0;
  bool ack_request = false;
  std::uint8_t reserved = 0;
  std::uint32_t psn = 0;
};

// What a READ or WRITE goes to (RETH).
struct Reth {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint32_t length = 0;
};

// What an atomic goes to (AtomicETH), with the masks of a masked CAS.
struct Atomic {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint64_t swap_or_add = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_mask = ~std::uint64_t{0};
  std::uint64_t compare_mask = ~std::uint64_t{0};
};

// The header of acknowledgements (AETH).
struct Aeth {
  std::uint8_t syndrome = 0;
  std::uint32_t msn = 0;  // how many messages the responder has completed
};
enum class AckKind : std::uint8_t { ack, rnr, reserved, nak };
constexpr AckKind ack_kind(std::uint8_t syndrome) { return static_cast<AckKind>((syndrome >> 5) & 3); }
// An ACK without an account of receive credits.
inline constexpr std::uint8_t kAckWithoutCredits = 0x1f;
inline constexpr std::uint8_t kNakSequence = 0x60;
inline constexpr std::uint8_t kNakInvalid = 0x61;
inline constexpr std::uint8_t kNakAccess = 0x62;
inline constexpr std::uint8_t kNakOperation = 0x63;

// Whom a datagram is from (DETH).
struct Deth {
  std::uint32_t key = 0;
  std::uint8_t reserved = 0;
  std::uint32_t queue_pair = 0;
};

// Which headers follow the base header, in this order.
enum Header : unsigned {
  has_deth = 1,
  has_reth = 2,
  has_atomic = 4,
  has_masks = 8,
  has_aeth = 16,
  has_prior = 32,
  has_immediate = 64
};
// Returns a sum of them: 0 for opcodes without any, and for unknown ones, whose headers count as payload.
unsigned headers_of(Opcode opcode);
std::size_t bytes_of(unsigned headers);

// Say what an opcode of a reliable connection is. False for all others.
bool is_request(Opcode opcode);
bool is_response(Opcode opcode);
bool is_atomic(Opcode opcode);
bool is_write(Opcode opcode);
bool ends_message(Opcode opcode);

}  // namespace farpool::roce
