// SPDX-License-Identifier: Apache-2.0
#include "roce/packet.h"

#include <algorithm>
#include <array>
#include <bit>

#include "roce/checksums.h"

namespace farpool::roce {
namespace {

constexpr std::uint16_t kTypeTag = 0x8100;
constexpr std::uint16_t kTypeIpv4 = 0x0800;
constexpr std::uint16_t kTypeIpv6 = 0x86dd;
constexpr std::uint8_t kProtocolUdp = 17;

// Reads big-endian numbers one behind the other. The caller has checked that they are there.
class Reader {
 public:
  explicit Reader(base::Bytes from) : from_(from) {}
  std::uint8_t byte() { return number<std::uint8_t>(); }
  std::uint16_t half() { return std::uint16_t{__builtin_bswap16(number<std::uint16_t>())}; }
  std::uint32_t word() { return __builtin_bswap32(number<std::uint32_t>()); }
  std::uint64_t twice() { return __builtin_bswap64(number<std::uint64_t>()); }
  std::uint32_t three() {
    const std::uint32_t high = byte();
    return high << 16 | half();
  }
  base::Bytes bytes(std::size_t count) {
    const base::Bytes taken = from_.subspan(at_, count);
    at_ += count;
    return taken;
  }
  std::size_t left() const { return from_.size() - at_; }
  std::size_t at() const { return at_; }

 private:
  template <class T>
  T number() {
    return base::load<T>(bytes(sizeof(T)).data());
  }

  base::Bytes from_;
  std::size_t at_ = 0;
};

class Writer {
 public:
  explicit Writer(base::MutableBytes to) : to_(to) {}
  void byte(std::uint8_t value) { number(value); }
  void half(std::uint16_t value) { number(std::uint16_t{__builtin_bswap16(value)}); }
  void word(std::uint32_t value) { number(__builtin_bswap32(value)); }
  void twice(std::uint64_t value) { number(__builtin_bswap64(value)); }
  void three(std::uint32_t value) {
    byte(static_cast<std::uint8_t>(value >> 16));
    half(static_cast<std::uint16_t>(value));
  }
  void bytes(base::Bytes from) {
    if (!from.empty()) std::memcpy(&to_[at_], from.data(), from.size());
    at_ += from.size();
  }
  std::size_t at() const { return at_; }

 private:
  template <class T>
  void number(T value) {
    bytes(base::bytes_of(value));
  }

  base::MutableBytes to_;
  std::size_t at_ = 0;
};

template <std::size_t kCount>
void take(Reader& from, std::array<std::uint8_t, kCount>& to) {
  std::memcpy(to.data(), from.bytes(kCount).data(), kCount);
}

// Where the parts of a frame begin, by what its link and family are.
std::size_t ip_offset(const Packet& packet) { return kEthernetBytes + (packet.ethernet.tagged ? kTagBytes : 0); }
std::size_t udp_offset(const Packet& packet) { return ip_offset(packet) + (packet.ip.v6 ? kIpv6Bytes : kIpv4Bytes); }
std::size_t transport_bytes(const Packet& packet) {
  return kBthBytes + bytes_of(headers_of(packet.bth.opcode)) + packet.payload.size() + kIcrcBytes;
}

// Each returns how many bytes IP says that there are behind its header.
Refusal parse_ipv4(Reader& in, Ip& ip, std::size_t& bytes) {
  const std::size_t begin = in.at(), left = in.left();
  if (left < kIpv4Bytes) return Refusal::too_short;
  const std::uint8_t first = in.byte();
  if (first >> 4 != 4) return Refusal::not_ip;
  if (first != 0x45) return Refusal::ip_options;
  ip.v6 = false;
  ip.traffic_class = in.byte();
  const std::size_t length = in.half();
  ip.id = in.half();
  const std::uint16_t fragment = in.half();
  ip.hops = in.byte();
  const std::uint8_t protocol = in.byte();
  ip.checksum = in.half();
  ip.from = ip.to = ipv4(0, 0, 0, 0);
  std::memcpy(&ip.from.bytes[12], in.bytes(4).data(), 4);
  std::memcpy(&ip.to.bytes[12], in.bytes(4).data(), 4);
  if ((fragment & 0xbfff) != 0) return Refusal::ip_fragment;
  ip.do_not_split = (fragment & 0x4000) != 0;
  if (protocol != kProtocolUdp) return Refusal::not_roce;
  if (length < kIpv4Bytes || length > left || in.at() != begin + kIpv4Bytes) return Refusal::bad_length;
  bytes = length - kIpv4Bytes;
  return Refusal::none;
}

Refusal parse_ipv6(Reader& in, Ip& ip, std::size_t& bytes) {
  if (in.left() < kIpv6Bytes) return Refusal::too_short;
  const std::uint32_t first = in.word();
  if (first >> 28 != 6) return Refusal::not_ip;
  ip.v6 = true;
  ip.traffic_class = static_cast<std::uint8_t>(first >> 20);
  ip.flow_label = first & 0xfffff;
  bytes = in.half();
  const std::uint8_t next = in.byte();
  ip.hops = in.byte();
  take(in, ip.from.bytes);
  take(in, ip.to.bytes);
  if (next != kProtocolUdp) return Refusal::not_roce;
  return bytes > in.left() ? Refusal::bad_length : Refusal::none;
}

void parse_bth(Reader& in, Bth& bth) {
  bth.opcode = static_cast<Opcode>(in.byte());
  const std::uint8_t flags = in.byte();
  bth.solicited = (flags & 0x80) != 0;
  bth.migrated = (flags & 0x40) != 0;
  bth.pad = (flags >> 4) & 3;
  bth.version = flags & 15;
  bth.partition = in.half();
  bth.congestion = in.byte();
  bth.queue_pair = in.three();
  const std::uint8_t request = in.byte();
  bth.ack_request = (request & 0x80) != 0;
  bth.reserved = request & 0x7f;
  bth.psn = in.three();
}

void parse_headers(Reader& in, unsigned headers, Packet& packet) {
  if (headers & has_deth) {
    packet.deth.key = in.word();
    packet.deth.reserved = in.byte();
    packet.deth.queue_pair = in.three();
  }
  if (headers & has_reth) {
    packet.reth.address = in.twice();
    packet.reth.key = in.word();
    packet.reth.length = in.word();
  }
  if (headers & has_atomic) {
    packet.atomic = {};
    packet.atomic.address = in.twice();
    packet.atomic.key = in.word();
    packet.atomic.swap_or_add = in.twice();
    packet.atomic.compare = in.twice();
  }
  if (headers & has_masks) {
    packet.atomic.swap_mask = in.twice();
    packet.atomic.compare_mask = in.twice();
  }
  if (headers & has_aeth) {
    packet.aeth.syndrome = in.byte();
    packet.aeth.msn = in.three();
  }
  if (headers & has_prior) packet.prior = in.twice();
  if (headers & has_immediate) packet.immediate = in.word();
}

void build_ip(const Packet& packet, std::size_t bytes, Writer& out) {
  const Ip& ip = packet.ip;
  if (ip.v6) {
    out.word(std::uint32_t{6} << 28 | std::uint32_t{ip.traffic_class} << 20 | ip.flow_label);
    out.half(static_cast<std::uint16_t>(bytes));
    out.byte(kProtocolUdp);
    out.byte(ip.hops);
    out.bytes(std::as_bytes(std::span(ip.from.bytes)));
    out.bytes(std::as_bytes(std::span(ip.to.bytes)));
    return;
  }
  out.byte(0x45);
  out.byte(ip.traffic_class);
  out.half(static_cast<std::uint16_t>(kIpv4Bytes + bytes));
  out.half(ip.id);
  out.half(ip.do_not_split ? 0x4000 : 0);
  out.byte(ip.hops);
  out.byte(kProtocolUdp);
  out.half(ip.checksum);
  out.bytes(std::as_bytes(std::span(ip.from.bytes)).subspan(12));
  out.bytes(std::as_bytes(std::span(ip.to.bytes)).subspan(12));
}

void build_bth(const Bth& bth, Writer& out) {
  out.byte(static_cast<std::uint8_t>(bth.opcode));
  out.byte(static_cast<std::uint8_t>((bth.solicited ? 0x80 : 0) | (bth.migrated ? 0x40 : 0) | (bth.pad & 3) << 4 |
                                     (bth.version & 15)));
  out.half(bth.partition);
  out.byte(bth.congestion);
  out.three(bth.queue_pair);
  out.byte(static_cast<std::uint8_t>((bth.ack_request ? 0x80 : 0) | (bth.reserved & 0x7f)));
  out.three(bth.psn);
}

void build_headers(const Packet& packet, unsigned headers, Writer& out) {
  if (headers & has_deth) {
    out.word(packet.deth.key);
    out.byte(packet.deth.reserved);
    out.three(packet.deth.queue_pair);
  }
  if (headers & has_reth) {
    out.twice(packet.reth.address);
    out.word(packet.reth.key);
    out.word(packet.reth.length);
  }
  if (headers & has_atomic) {
    out.twice(packet.atomic.address);
    out.word(packet.atomic.key);
    out.twice(packet.atomic.swap_or_add);
    out.twice(packet.atomic.compare);
  }
  if (headers & has_masks) {
    out.twice(packet.atomic.swap_mask);
    out.twice(packet.atomic.compare_mask);
  }
  if (headers & has_aeth) {
    out.byte(packet.aeth.syndrome);
    out.three(packet.aeth.msn);
  }
  if (headers & has_prior) out.twice(packet.prior);
  if (headers & has_immediate) out.word(packet.immediate);
}

void put_half(base::MutableBytes to, std::size_t at, std::uint16_t value) {
  base::store(&to[at], std::uint16_t{__builtin_bswap16(value)});
}

}  // namespace

const char* text_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::none:
      return "a packet";
    case Refusal::too_short:
      return "shorter than its headers";
    case Refusal::not_ip:
      return "neither IPv4 nor IPv6";
    case Refusal::ip_options:
      return "IPv4 with options";
    case Refusal::ip_fragment:
      return "a fragment";
    case Refusal::not_roce:
      return "not UDP to port 4791";
    case Refusal::bad_length:
      return "lengths that contradict each other";
    case Refusal::bad_pad:
      return "more pad than payload";
  }
  return "unknown";
}

Refusal parse(base::Bytes frame, Packet& packet) {
  Reader in(frame);
  if (in.left() < kEthernetBytes) return Refusal::too_short;
  take(in, packet.ethernet.to);
  take(in, packet.ethernet.from);
  std::uint16_t type = in.half();
  packet.ethernet.tagged = type == kTypeTag;
  if (packet.ethernet.tagged) {
    if (in.left() < kTagBytes) return Refusal::too_short;
    packet.ethernet.tag = in.half();
    type = in.half();
  }
  if (type != kTypeIpv4 && type != kTypeIpv6) return Refusal::not_ip;
  std::size_t bytes = 0;
  const Refusal ip = type == kTypeIpv4 ? parse_ipv4(in, packet.ip, bytes) : parse_ipv6(in, packet.ip, bytes);
  if (ip != Refusal::none) return ip;
  if (bytes < kUdpBytes) return Refusal::bad_length;
  packet.udp.from_port = in.half();
  if (in.half() != kUdpPort) return Refusal::not_roce;
  const std::size_t udp_length = in.half();
  packet.udp.checksum = in.half();
  if (udp_length != bytes || bytes < kUdpBytes + kBthBytes + kIcrcBytes) return Refusal::bad_length;
  std::size_t rest = bytes - kUdpBytes - kBthBytes - kIcrcBytes;
  parse_bth(in, packet.bth);
  const unsigned headers = headers_of(packet.bth.opcode);
  if (rest < bytes_of(headers)) return Refusal::bad_length;
  rest -= bytes_of(headers);
  parse_headers(in, headers, packet);
  if (rest < packet.bth.pad) return Refusal::bad_pad;
  packet.payload = in.bytes(rest);
  packet.icrc = base::load<std::uint32_t>(in.bytes(kIcrcBytes).data());
  packet.tail = in.bytes(in.left());
  return Refusal::none;
}

std::size_t build(const Packet& packet, base::MutableBytes to) {
  const std::size_t bytes = kUdpBytes + transport_bytes(packet);
  const std::size_t whole = udp_offset(packet) + bytes + packet.tail.size();
  if (whole > to.size() || bytes > 0xffff - kIpv4Bytes) return 0;
  Writer out(to);
  out.bytes(std::as_bytes(std::span(packet.ethernet.to)));
  out.bytes(std::as_bytes(std::span(packet.ethernet.from)));
  if (packet.ethernet.tagged) {
    out.half(kTypeTag);
    out.half(packet.ethernet.tag);
  }
  out.half(packet.ip.v6 ? kTypeIpv6 : kTypeIpv4);
  build_ip(packet, bytes, out);
  out.half(packet.udp.from_port);
  out.half(kUdpPort);
  out.half(static_cast<std::uint16_t>(bytes));
  out.half(packet.udp.checksum);
  build_bth(packet.bth, out);
  build_headers(packet, headers_of(packet.bth.opcode), out);
  out.bytes(packet.payload);
  out.bytes(base::bytes_of(packet.icrc));
  out.bytes(packet.tail);
  return out.at();
}

std::size_t build_sealed(const Packet& packet, base::MutableBytes to) {
  const std::size_t whole = build(packet, to);
  if (whole == 0) return 0;
  const std::size_t ip = ip_offset(packet), udp = udp_offset(packet);
  const base::MutableBytes frame = to.first(whole - packet.tail.size());
  if (!packet.ip.v6) {
    put_half(frame, ip + 10, 0);
    put_half(frame, ip + 10, internet_checksum(frame.subspan(ip, kIpv4Bytes)));
  }
  const std::uint32_t icrc = invariant_crc(frame.subspan(ip), packet.ip.v6);
  base::store(&frame[frame.size() - kIcrcBytes], icrc);
  if (packet.udp.checksum != 0) {
    put_half(frame, udp + 6, 0);
    put_half(frame, udp + 6, udp_checksum(packet.ip, frame.subspan(udp)));
  }
  return whole;
}

bool sums_hold(base::Bytes frame, const Packet& packet) {
  const std::size_t ip = ip_offset(packet), udp = udp_offset(packet);
  const base::Bytes whole = frame.first(frame.size() - packet.tail.size());
  if (!packet.ip.v6 && internet_checksum(whole.subspan(ip, kIpv4Bytes)) != 0) return false;
  // Over a part with a right sum in it the sum is 0, which UDP writes as all ones.
  if (packet.udp.checksum != 0 && udp_checksum(packet.ip, whole.subspan(udp)) != 0xffff) return false;
  return invariant_crc(whole.subspan(ip), packet.ip.v6) == packet.icrc;
}

}  // namespace farpool::roce
