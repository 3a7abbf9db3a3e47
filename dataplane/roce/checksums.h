// SPDX-License-Identifier: Apache-2.0
// The sums of a RoCEv2 packet.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "roce/format.h"

namespace farpool::roce {

// Returns the ICRC of an IP packet whose last four bytes are its place, as the number that lies there little-endian. It
// covers nothing that routers change. The packet has at least an IP, a UDP and a base header.
std::uint32_t invariant_crc(base::Bytes ip_packet, bool v6);

// Returns the ones' complement of the ones' complement sum: 0 over bytes that have a right one in them.
std::uint16_t internet_checksum(base::Bytes bytes);

// Returns the checksum of UDP's header and what follows, with the pseudo-header before it. Never 0.
std::uint16_t udp_checksum(const Ip& ip, base::Bytes udp);

}  // namespace farpool::roce
