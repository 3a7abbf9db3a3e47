// SPDX-License-Identifier: Apache-2.0
#include "net/ring_channel.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

namespace farpool::net::detail {
namespace {

constexpr std::uint64_t kMagic = 0x73676e69726c7066;  // "fplrings"
using Hello = std::array<std::uint64_t, 2>;

// Room for one descriptor, aligned as the kernel wants it.
union Ancillary {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

}  // namespace

bool same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

base::Status send_rings(int socket, const RingMemory& memory) {
  Hello hello{kMagic, RingMemory::kCapacity};
  iovec part{.iov_base = hello.data(), .iov_len = sizeof hello};
  Ancillary ancillary{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.bytes.data();
  message.msg_controllen = ancillary.bytes.size();
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = memory.descriptor();
  std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
  if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello)) return {};
  return {base::Code::unavailable, std::string("sending the descriptor of rings: ") + std::strerror(errno)};
}

base::Result<std::optional<RingMemory>> receive_rings(int socket) {
  Hello hello{};
  iovec part{.iov_base = hello.data(), .iov_len = sizeof hello};
  Ancillary ancillary{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.bytes.data();
  message.msg_controllen = ancillary.bytes.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::optional<RingMemory>();
  int descriptor = -1;
  const cmsghdr* control = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (control != nullptr && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS &&
      control->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
  }
  if (got == 0) return base::Status(base::Code::unavailable, "the peer closed the connection before it gave rings");
  if (got != static_cast<ssize_t>(sizeof hello) || hello[0] != kMagic || hello[1] != RingMemory::kCapacity ||
      descriptor < 0) {
    if (descriptor >= 0) ::close(descriptor);
    return base::Status(base::Code::corrupt, "the peer does not offer rings as this version has them");
  }
  auto memory = RingMemory::adopt(descriptor);
  if (!memory.ok()) return memory.status();
  return std::optional<RingMemory>(std::move(*memory));
}

}  // namespace farpool::net::detail
