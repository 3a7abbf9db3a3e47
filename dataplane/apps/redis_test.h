// SPDX-License-Identifier: Apache-2.0
// For tests of the daemons: a client that speaks RESP.
#pragma once

#include <string>

#include "apps/daemon_test.h"

namespace farpool::apps {

// One connection that sends a command and takes its reply, which is one line or one bulk string.
class Redis {
 public:
  explicit Redis(int port, const std::string& host = "127.0.0.1") : fd_(connect_to(port, host)) { EXPECT_GE(fd_, 0); }
  Redis(const Redis&) = delete;
  ~Redis() { ::close(fd_); }
  std::string ask(const std::string& command) {
    const std::string request = command + "\r\n";
    if (::send(fd_, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
      return "gone";
    const std::string first = line();
    return first.starts_with("$") && first != "$-1" ? line() : first;
  }

 private:
  std::string line() {
    std::string text;
    for (char c; ::read(fd_, &c, 1) == 1;) {
      text.push_back(c);
      if (text.ends_with("\r\n")) return text.substr(0, text.size() - 2);
    }
    return "gone";
  }
  int fd_;
};

}  // namespace farpool::apps
