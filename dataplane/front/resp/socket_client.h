// SPDX-License-Identifier: Apache-2.0
// For tests of this room: a blocking client that sends bytes and cuts what comes back into replies. Every wait has a
// deadline.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace farpool::front::resp {

inline std::string encode(const std::vector<std::string>& words) {
  std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return bytes;
}

class SocketClient {
 public:
  static SocketClient unix_socket(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    FARPOOL_CHECK(path.size() < sizeof address.sun_path);
    std::memcpy(address.sun_path, path.data(), path.size());
    return SocketClient(AF_UNIX, reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  // "127.0.0.1:port"
  static SocketClient tcp(const std::string& where) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where.substr(where.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return SocketClient(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  SocketClient(SocketClient&& other) noexcept : socket_(std::exchange(other.socket_, -1)), in_(std::move(other.in_)) {}
  ~SocketClient() {
    if (socket_ >= 0) close(socket_);
  }

  // Takes what comes in while the other side is not ready to read.
  void send(std::string_view bytes) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!bytes.empty()) {
      pollfd ready{socket_, POLLIN | POLLOUT, 0};
      FARPOOL_CHECK(poll(&ready, 1, 1000) >= 0 && std::chrono::steady_clock::now() < deadline);
      if ((ready.revents & POLLIN) != 0 && !receive_some()) return;
      if ((ready.revents & POLLOUT) == 0) continue;
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return;  // closed by the other side: rest() tells
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  // The bytes of one whole reply.
  std::string reply() {
    while (true) {
      std::size_t at = 0;
      if (whole(at)) {
        std::string bytes = in_.substr(0, at);
        in_.erase(0, at);
        return bytes;
      }
      if (!receive()) return std::exchange(in_, {}) + "<closed>";
    }
  }
  std::string call(const std::vector<std::string>& words) {
    send(encode(words));
    return reply();
  }
  // Says that nothing more will be sent, and goes on listening.
  void half_close() { FARPOOL_CHECK(shutdown(socket_, SHUT_WR) == 0); }
  // Takes nothing that comes in, unlike send(). Returns how many bytes went, before the other side closed or the
  // patience ended.
  std::size_t push(std::string_view bytes, std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    std::size_t sent = 0;
    while (sent < bytes.size() && std::chrono::steady_clock::now() < deadline) {
      pollfd ready{socket_, POLLOUT, 0};
      FARPOOL_CHECK(poll(&ready, 1, 50) >= 0);
      if (ready.revents == 0) continue;
      const ssize_t got = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (got < 0 && errno != EAGAIN) break;
      if (got > 0) sent += static_cast<std::size_t>(got);
    }
    return sent;
  }
  int descriptor() const { return socket_; }

  // All that comes until the other side closes.
  std::string rest() {
    while (receive()) {
    }
    return std::exchange(in_, {});
  }

 private:
  static constexpr std::chrono::seconds kPatience{30};

  SocketClient(int family, const sockaddr* address, socklen_t bytes) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      socket_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      FARPOOL_CHECK(socket_ >= 0);
      if (connect(socket_, address, bytes) == 0) return;
      close(socket_);
      FARPOOL_CHECK(std::chrono::steady_clock::now() < deadline);  // the server did not come up
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  bool receive() {
    pollfd ready{socket_, POLLIN, 0};
    FARPOOL_CHECK(poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) ==
                  1);  // no reply in time
    return receive_some();
  }
  bool receive_some() {
    std::array<char, 65536> bytes;
    const ssize_t got = recv(socket_, bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    in_.append(bytes.data(), static_cast<std::size_t>(got));
    return true;
  }

  // Moves `at` behind one reply; false if it is not all there.
  bool whole(std::size_t& at) const {
    const std::size_t end = in_.find("\r\n", at);
    if (end == std::string::npos) return false;
    const char type = in_[at];
    const long count = std::strtol(in_.c_str() + at + 1, nullptr, 10);
    at = end + 2;
    switch (type) {
      case '$':
      case '=':
        if (count < 0) return true;
        at += static_cast<std::size_t>(count) + 2;
        return at <= in_.size();
      case '*':
      case '~':
      case '>':
      case '%':
        for (long i = 0; i < (type == '%' ? 2 * count : count); ++i) {
          if (!whole(at)) return false;
        }
        return true;
      default:
        return true;
    }
  }

  int socket_ = -1;
  std::string in_;
};

}  // namespace farpool::front::resp
