// SPDX-License-Identifier: Apache-2.0
// The verbs wire for the suite of index protocols (thread_bed.h). It needs an RDMA device.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/time.h"
#include "fabric/session_port/server.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/responder.h"
#include "index/contract/thread_bed.h"

namespace farpool::index::contract {

class VerbsEnds final : public WireEnds {
 public:
  VerbsEnds() {
    auto opened = fabric::verbs::Device::open({.failure_timeout = kLong});
    if (!opened.ok()) give_up("no device", opened.status());
    device_ = std::move(*opened);
  }

  fabric::Responder& respond(net::Loop& control) override {
    responder_ = std::make_unique<fabric::verbs::VerbsResponder>(
        control,
        fabric::session_port::Options{
            .listen = "127.0.0.1:0", .executors = 1, .handshake_deadline = kLong, .spin = kSpin},
        device_);
    return *responder_;
  }
  base::Status serve(fabric::Host& host, std::uint64_t /*incarnation*/) override { return responder_->serve(host); }
  void end() override { responder_.reset(); }
  const std::string& address() const override { return responder_->address(); }
  std::unique_ptr<fabric::Port> port(net::Loop& loop) override {
    loop.set_spin(kSpin);
    auto opened = fabric::verbs::VerbsPort::open(loop, nullptr, device_, {});
    if (!opened.ok()) give_up("no port", opened.status());
    return std::move(*opened);
  }
  void look_at_lanes() override { EXPECT_GT(responder_->stats().lanes, 0u) << "its lane is not of this wire"; }

 private:
  // In an emulated guest, to wake a thread takes longer than a verb.
  static constexpr base::Nanos kSpin = base::kMillisecond;

  // A bed without a wire would crash in its first test.
  [[noreturn]] static void give_up(const char* what, const base::Status& why) {
    std::fprintf(stderr, "verbs: %s: %s\n", what, why.message().c_str());
    std::exit(1);
  }

  std::shared_ptr<fabric::verbs::Device> device_;
  std::unique_ptr<fabric::verbs::VerbsResponder> responder_;
};

}  // namespace farpool::index::contract
