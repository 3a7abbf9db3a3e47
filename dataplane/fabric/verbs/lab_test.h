// SPDX-License-Identifier: Apache-2.0
// For tests of this room that need an RDMA device: ports on threads of their own.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "fabric/session_port/test_loop.h"
#include "fabric/verbs/port.h"

namespace farpool::fabric::verbs {

struct VerbsThread : session_port::PortThread<VerbsPort> {
  VerbsThread(std::shared_ptr<net::Tls> tls, std::shared_ptr<Device> device, Nanos spin = 0,
              std::function<void(const std::string&)> log = {}, CallForm calls = CallForm::connected) {
    on([&] {
      loop.set_spin(spin);
      auto opened = VerbsPort::open(loop, std::move(tls), std::move(device), {.log = std::move(log), .calls = calls});
      EXPECT_TRUE(opened.ok()) << opened.status().message();
      port = std::move(*opened);
    });
  }
};

}  // namespace farpool::fabric::verbs
