// SPDX-License-Identifier: Apache-2.0
#include "roce/checksums.h"

#include <isa-l/crc.h>

#include <array>

#include "base/check.h"

namespace farpool::roce {
namespace {

std::uint64_t add(base::Bytes bytes, std::uint64_t sum) {
  std::size_t i = 0;
  for (; i + 1 < bytes.size(); i += 2) sum += std::uint16_t{__builtin_bswap16(base::load<std::uint16_t>(&bytes[i]))};
  if (i < bytes.size()) sum += std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << 8;
  return sum;
}

std::uint16_t fold(std::uint64_t sum) {
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

std::uint32_t crc(std::uint32_t before, const std::byte* bytes, std::size_t count) {
  return crc32_gzip_refl(before, reinterpret_cast<const unsigned char*>(bytes), count);
}

}  // namespace

std::uint32_t invariant_crc(base::Bytes ip_packet, bool v6) {
  const std::size_t ip = v6 ? kIpv6Bytes : kIpv4Bytes, headers = ip + kUdpBytes + kBthBytes;
  FARPOOL_CHECK(ip_packet.size() >= headers + kIcrcBytes);
  // All ones stand for what may change: the local route header, which RoCEv2 does not have, and these.
  constexpr std::size_t kRoute = 8;
  constexpr auto kOnes = std::byte{0xff};
  std::array<std::byte, kRoute + kIpv6Bytes + kUdpBytes + kBthBytes> masked;
  std::fill_n(masked.begin(), kRoute, kOnes);
  std::byte* const copy = &masked[kRoute];
  std::memcpy(copy, ip_packet.data(), headers);
  if (v6) {
    copy[0] |= std::byte{0x0f};  // traffic class and flow label
    copy[1] = copy[2] = copy[3] = kOnes;
    copy[7] = kOnes;  // hops
  } else {
    copy[1] = kOnes;              // traffic class
    copy[8] = kOnes;              // hops
    copy[10] = copy[11] = kOnes;  // checksum
  }
  copy[ip + 6] = copy[ip + 7] = kOnes;  // UDP's checksum
  copy[ip + kUdpBytes + 4] = kOnes;     // congestion
  const std::uint32_t before = crc(0, masked.data(), kRoute + headers);
  return crc(before, ip_packet.data() + headers, ip_packet.size() - headers - kIcrcBytes);
}

std::uint16_t internet_checksum(base::Bytes bytes) { return fold(add(bytes, 0)); }

std::uint16_t udp_checksum(const Ip& ip, base::Bytes udp) {
  const std::size_t skip = ip.v6 ? 0 : 12;  // an IPv4 address is the last four bytes
  std::uint64_t sum = add(std::as_bytes(std::span(ip.from.bytes)).subspan(skip), 17 + udp.size());
  sum = add(std::as_bytes(std::span(ip.to.bytes)).subspan(skip), sum);
  const std::uint16_t folded = fold(add(udp, sum));
  return folded == 0 ? 0xffff : folded;
}

}  // namespace farpool::roce
