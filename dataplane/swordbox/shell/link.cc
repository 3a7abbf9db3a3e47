// SPDX-License-Identifier: Apache-2.0
#include "swordbox/shell/link.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/check.h"
#include "roce/checksums.h"

// Defined in linux/if_ether.h, which other headers here contradict.
#ifndef ETH_P_ALL
#define ETH_P_ALL 0x0003
#endif

namespace farpool::swordbox {
namespace {

using base::Code;
using base::Result;
using base::Status;

// The kernel stamps frames by this clock. Somebody may set it: then some frames look older or younger than they are.
base::Nanos wall_time() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * base::kSecond + time.tv_nsec;
}

ifreq request_for(const std::string& interface) {
  ifreq request{};
  std::memcpy(request.ifr_name, interface.c_str(), std::min(interface.size(), sizeof request.ifr_name - 1));
  return request;
}

bool set(int socket, int level, int option, int value) {
  return ::setsockopt(socket, level, option, &value, sizeof value) == 0;
}

Status error_of(const std::string& interface, const std::string& doing) {
  return {Code::unavailable, "interface " + interface + ": " + doing + ": " + std::strerror(errno)};
}

// Gives the socket what a shell needs of it, and binds it.
Status prepare(int socket, const std::string& interface, int index) {
  for (const auto& [option, what] :
       {std::pair(PACKET_VNET_HDR, "asking for what NICs are to do"), std::pair(PACKET_AUXDATA, "asking for VLAN tags"),
        std::pair(PACKET_IGNORE_OUTGOING, "leaving out frames that this machine sends")}) {
    if (!set(socket, SOL_PACKET, option, 1)) return error_of(interface, what);
  }
  if (!set(socket, SOL_SOCKET, SO_TIMESTAMPNS, 1)) return error_of(interface, "asking for times");
  // Frames wait there while the process is not on a processor. With less than asked for, more of them may be lost.
  constexpr int kBuffer = 8 << 20;
  if (!set(socket, SOL_SOCKET, SO_RCVBUFFORCE, kBuffer)) set(socket, SOL_SOCKET, SO_RCVBUF, kBuffer);
  if (!set(socket, SOL_SOCKET, SO_SNDBUFFORCE, kBuffer)) set(socket, SOL_SOCKET, SO_SNDBUF, kBuffer);
  packet_mreq all{};
  all.mr_ifindex = index;
  all.mr_type = PACKET_MR_PROMISC;
  if (::setsockopt(socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) {
    return error_of(interface, "taking frames for all addresses");
  }
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = index;
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return error_of(interface, "binding a raw socket");
  }
  return {};
}

}  // namespace

void finish_checksum(Frame& frame) {
  if ((frame.offload.flags & Offload::kNeedsSum) == 0) return;
  frame.offload.flags = 0;
  const std::size_t start = frame.offload.sum_start, place = start + frame.offload.sum_offset;
  if (place + 2 > frame.bytes.size()) return;
  // The sum of the pseudo-header stands there already.
  std::uint16_t sum = roce::internet_checksum(frame.bytes.subspan(start));
  if (sum == 0) sum = 0xffff;  // UDP: 0 means that there is none
  frame.bytes[place] = static_cast<std::byte>(sum >> 8);
  frame.bytes[place + 1] = static_cast<std::byte>(sum);
}

Batch::Batch() : memory_(kBatch * (kTag + kLongest)) {
  for (std::size_t i = 0; i < kBatch; ++i) {
    parts_[i][0] = {&offloads_[i], sizeof offloads_[i]};
    parts_[i][1] = {memory_.data() + i * (kTag + kLongest) + kTag, kLongest};
  }
}

Outbox::Outbox() {
  for (std::size_t i = 0; i < kRoom; ++i) {
    parts_[i][0] = {&offloads_[i], sizeof offloads_[i]};
    messages_[i] = {};
    messages_[i].msg_hdr.msg_iov = parts_[i].data();
    messages_[i].msg_hdr.msg_iovlen = 2;
  }
}

void Outbox::add(base::Bytes frame, const Offload& offload, bool bound) {
  FARPOOL_CHECK(!full());
  offloads_[count_] = offload;
  parts_[count_][1] = {const_cast<std::byte*>(frame.data()), frame.size()};
  bound_[count_] = bound;
  ++count_;
}

void Outbox::borrow(base::Bytes frame, const Offload& offload, bool bound) { add(frame, offload, bound); }

void Outbox::copy(base::Bytes frame) {
  FARPOOL_CHECK(!full() && frame.size() <= copies_[count_].size());
  std::copy(frame.begin(), frame.end(), copies_[count_].begin());
  add(base::Bytes(copies_[count_]).first(frame.size()), {}, true);
}

std::size_t Outbox::drop_bound() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (bound_[i]) continue;
    offloads_[kept] = offloads_[i];
    parts_[kept][1] = parts_[i][1];
    bound_[kept++] = false;
  }
  return count_ - std::exchange(count_, kept);
}

Result<std::unique_ptr<Link>> Link::open(const std::string& interface) {
  const unsigned index = interface.size() < IFNAMSIZ ? ::if_nametoindex(interface.c_str()) : 0;
  if (index == 0) {
    return Status(Code::invalid_argument,
                  "there is no interface \"" + interface + "\" here: `ip link` lists those of this network namespace");
  }
  // It receives nothing before it is bound.
  const int socket = ::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) {
    const bool refused = errno == EPERM || errno == EACCES;
    return Status(refused ? Code::forbidden : Code::unavailable,
                  "interface " + interface + ": opening a raw socket: " + std::strerror(errno) +
                      (refused ? "; the process needs the capability NET_RAW" : ""));
  }
  std::unique_ptr<Link> link(new Link(interface, static_cast<int>(index), socket));
  ifreq kind = request_for(interface);
  if (::ioctl(socket, SIOCGIFHWADDR, &kind) != 0) return error_of(interface, "asking for its address");
  if (kind.ifr_hwaddr.sa_family != ARPHRD_ETHER) {
    return Status(Code::invalid_argument, "interface " + interface + " is no Ethernet interface");
  }
  if (Status status = prepare(socket, interface, link->index_); !status.ok()) return status;
  return link;
}

Link::~Link() { ::close(socket_); }

Status Link::reopen() {
  auto fresh = open(interface_);
  if (!fresh.ok()) return fresh.status();
  std::swap(socket_, (*fresh)->socket_);
  index_ = (*fresh)->index_;
  return {};
}

std::size_t Link::receive(Batch& batch) {
  batch.count_ = 0;
  for (std::size_t i = 0; i < kBatch; ++i) {
    batch.messages_[i] = {};
    batch.messages_[i].msg_hdr.msg_iov = batch.parts_[i].data();
    batch.messages_[i].msg_hdr.msg_iovlen = 2;
    batch.messages_[i].msg_hdr.msg_control = batch.control_[i].data();
    batch.messages_[i].msg_hdr.msg_controllen = batch.control_[i].size();
  }
  const int got = ::recvmmsg(socket_, batch.messages_.data(), kBatch, MSG_DONTWAIT, nullptr);
  if (got < 0) {
    if (errno != EINVAL) return 0;  // nothing there, or the interface went down
    ++counts_.unreadable;           // and it is gone
    return 1;
  }
  const base::Nanos now = wall_time();
  const auto count = static_cast<std::size_t>(got);
  for (std::size_t i = 0; i < count; ++i) {
    if (take(batch, i, now, batch.frames_[batch.count_])) {
      ++batch.count_;
    } else {
      ++counts_.unreadable;
    }
  }
  counts_.received += batch.count_;
  return count;
}

// Makes a frame of what came in place `i`.
bool Link::take(Batch& batch, std::size_t i, base::Nanos now, Frame& frame) {
  msghdr& header = batch.messages_[i].msg_hdr;
  const std::size_t bytes = batch.messages_[i].msg_len;
  constexpr std::size_t kAddresses = 12;
  if ((header.msg_flags & MSG_TRUNC) != 0 || bytes < sizeof(Offload) + kAddresses) return false;
  auto* const data = static_cast<std::byte*>(batch.parts_[i][1].iov_base);
  frame = {.bytes = {data, bytes - sizeof(Offload)}, .offload = batch.offloads_[i]};
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SO_TIMESTAMPNS) {
      timespec time{};
      std::memcpy(&time, CMSG_DATA(each), sizeof time);
      frame.waited = now - (time.tv_sec * base::kSecond + time.tv_nsec);
    }
    if (each->cmsg_level != SOL_PACKET || each->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata more{};
    std::memcpy(&more, CMSG_DATA(each), sizeof more);
    if ((more.tp_status & TP_STATUS_VLAN_VALID) == 0) continue;
    // The kernel has taken the tag out of the frame: back between the addresses and the type.
    const std::uint16_t kind = htons((more.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0 ? more.tp_vlan_tpid : 0x8100);
    const std::uint16_t tag = htons(more.tp_vlan_tci);
    std::byte* const moved = data - Batch::kTag;
    std::memmove(moved, data, kAddresses);
    std::memcpy(moved + kAddresses, &kind, sizeof kind);
    std::memcpy(moved + kAddresses + sizeof kind, &tag, sizeof tag);
    frame.bytes = {moved, frame.bytes.size() + Batch::kTag};
    if ((frame.offload.flags & Offload::kNeedsSum) != 0) frame.offload.sum_start += Batch::kTag;
    if (is_several(frame.offload)) frame.offload.header_bytes += Batch::kTag;
  }
  return true;
}

void Link::send(Outbox& outbox) {
  std::size_t next = 0;
  while (next < outbox.count_) {
    const auto left = static_cast<unsigned>(outbox.count_ - next);
    const int sent = ::sendmmsg(socket_, outbox.messages_.data() + next, left, MSG_DONTWAIT);
    if (sent > 0) {
      counts_.sent += static_cast<std::uint64_t>(sent);
      next += static_cast<std::size_t>(sent);
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    count_failure(errno);  // of the first that is left
    ++next;
  }
  outbox.clear();
}

void Link::count_failure(int error) {
  switch (error) {
    case EMSGSIZE:
      ++counts_.dropped_long;
      return;
    case EAGAIN:
    case ENOBUFS:
      ++counts_.dropped_full;
      return;
    case ENETDOWN:
    case ENXIO:
    case ENODEV:
      ++counts_.dropped_down;
      return;
    default:
      ++counts_.dropped_failed;
  }
}

std::string Link::trouble() const {
  ifreq request = request_for(interface_);
  if (gone() || ::ioctl(socket_, SIOCGIFFLAGS, &request) != 0) return "interface " + interface_ + " is gone";
  if ((request.ifr_flags & IFF_UP) == 0) return "interface " + interface_ + " is down";
  if ((request.ifr_flags & IFF_RUNNING) == 0) return "interface " + interface_ + " has no carrier";
  return {};
}

bool Link::gone() const { return ::if_nametoindex(interface_.c_str()) != static_cast<unsigned>(index_); }

int Link::mtu() const {
  ifreq request = request_for(interface_);
  return ::ioctl(socket_, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

const LinkCounts& Link::counts() {
  tpacket_stats stats{};
  socklen_t length = sizeof stats;
  // The kernel begins at 0 again with every question.
  if (::getsockopt(socket_, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0) counts_.overrun += stats.tp_drops;
  return counts_;
}

}  // namespace farpool::swordbox
