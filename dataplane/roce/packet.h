// SPDX-License-Identifier: Apache-2.0
// Reads and writes RoCEv2 packets, without allocating. What parse() accepts, build() gives back byte for byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "roce/format.h"

namespace farpool::roce {

struct Packet {
  Ethernet ethernet;
  Ip ip;
  Udp udp;
  Bth bth;
  // What the opcode's headers say; the others mean nothing.
  Deth deth;
  Reth reth;
  Atomic atomic;
  Aeth aeth;
  std::uint64_t prior = 0;      // the word before an atomic
  std::uint32_t immediate = 0;  // or the key that a SEND invalidates
  base::Bytes payload;          // with the pad; points into the packet that was parsed
  std::uint32_t icrc = 0;
  base::Bytes tail;  // what stands behind the IP packet: Ethernet fills short frames up

  // Returns the payload without the pad.
  base::Bytes data() const { return payload.first(payload.size() - bth.pad); }
};

enum class Refusal : std::uint8_t {
  none,
  too_short,
  not_ip,
  ip_options,  // IPv4 options, which RoCEv2 does not use
  ip_fragment,
  not_roce,    // another protocol than UDP, or another port
  bad_length,  // lengths of IP, UDP and headers contradict each other
  bad_pad,     // more pad than payload
};
const char* text_of(Refusal refusal);

// Reads a whole Ethernet frame, without its frame check sequence. Looks at no checksum. `packet` points into `frame`.
Refusal parse(base::Bytes frame, Packet& packet);

// Writes the packet with the checksums that it says, and returns how many bytes that took: 0 if there is no room.
std::size_t build(const Packet& packet, base::MutableBytes to);

// Writes the packet with right checksums. A UDP checksum of 0 stays 0.
std::size_t build_sealed(const Packet& packet, base::MutableBytes to);

// Says whether the checksums of a frame that parse() has accepted are right: ICRC, IPv4's, and UDP's if it has one.
bool sums_hold(base::Bytes frame, const Packet& packet);

}  // namespace farpool::roce
