// SPDX-License-Identifier: Apache-2.0
// Packet sequence numbers: 24 bits that wrap. Two of them can be compared if they are less than half of that apart.
#pragma once

#include <cstdint>

namespace farpool::roce {

inline constexpr std::uint32_t kPsnMask = 0xffffff;

constexpr std::uint32_t psn_add(std::uint32_t psn, std::uint32_t count) { return (psn + count) & kPsnMask; }

// Returns how far `to` is behind `from`: negative if it is before it. Between -2^23 and 2^23 - 1.
constexpr std::int32_t psn_distance(std::uint32_t from, std::uint32_t to) {
  const std::uint32_t forward = (to - from) & kPsnMask;
  return forward < 0x800000 ? static_cast<std::int32_t>(forward) : static_cast<std::int32_t>(forward) - 0x1000000;
}

constexpr bool psn_before(std::uint32_t a, std::uint32_t b) { return psn_distance(a, b) > 0; }

// Returns how many PSNs a READ of so many bytes takes, or a message of them has packets: one for no bytes.
constexpr std::uint32_t psns_of(std::uint32_t bytes, std::uint32_t mtu) {
  return bytes <= mtu ? 1 : static_cast<std::uint32_t>((std::uint64_t{bytes} + mtu - 1) / mtu);
}

}  // namespace farpool::roce
