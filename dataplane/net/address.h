// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace farpool::net {

// `host:port`, `[v6]:port`, `unix:/path`, or `shm:/path`: rings in shared memory, handed over on a Unix socket.
struct Address {
  std::string host;  // name or number, without brackets; empty for a Unix socket
  std::uint16_t port = 0;
  std::string path;  // of a Unix socket
  bool rings = false;

  static base::Result<Address> parse(std::string_view text);
  std::string text() const;
  bool local() const { return !path.empty(); }
};

}  // namespace farpool::net
