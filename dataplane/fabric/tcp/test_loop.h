// SPDX-License-Identifier: Apache-2.0
// For tests: a port of this wire on a thread of its own.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/port.h"
#include "net/tls.h"

namespace farpool::fabric::tcp {

struct ClientThread : session_port::PortThread<TcpPort> {
  explicit ClientThread(std::shared_ptr<net::Tls> tls, const std::string& rings = {}) {
    on([&] { port = std::make_unique<TcpPort>(loop, std::move(tls), rings); });
  }
};

}  // namespace farpool::fabric::tcp
