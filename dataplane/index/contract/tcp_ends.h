// SPDX-License-Identifier: Apache-2.0
// The tcp and shm wires for the suite of index protocols (thread_bed.h).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "fabric/session_port/server.h"
#include "fabric/tcp/port.h"
#include "fabric/tcp/responder.h"
#include "index/contract/thread_bed.h"

namespace farpool::index::contract {

class TcpEnds final : public WireEnds {
 public:
  enum class Lanes : std::uint8_t { sockets, rings };

  explicit TcpEnds(Lanes lanes) : lanes_(lanes) {
    if (lanes == Lanes::sockets) return;
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-index-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  ~TcpEnds() override {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  fabric::Responder& respond(net::Loop& control) override {
    responder_ = std::make_unique<fabric::tcp::TcpResponder>(
        control, fabric::session_port::Options{.listen = "127.0.0.1:0", .executors = 2, .handshake_deadline = kLong});
    return *responder_;
  }
  base::Status serve(fabric::Host& host, std::uint64_t incarnation) override {
    base::Status served = responder_->serve(host);
    if (!served.ok() || lanes_ == Lanes::sockets) return served;
    return responder_->serve_rings(fabric::tcp::rings_address(directory_, incarnation));
  }
  void end() override {
    EXPECT_GT(responder_->stats().chains, 0u) << "nothing went over this wire";
    responder_.reset();
  }
  const std::string& address() const override { return responder_->address(); }
  std::unique_ptr<fabric::Port> port(net::Loop& loop) override {
    return std::make_unique<fabric::tcp::TcpPort>(loop, nullptr, directory_);
  }
  void look_at_lanes() override {
    const auto stats = responder_->stats();
    EXPECT_EQ(stats.ring_lanes, lanes_ == Lanes::rings ? stats.lanes : 0u) << "its lanes are not of this wire";
  }

 private:
  const Lanes lanes_;
  std::string directory_;
  std::unique_ptr<fabric::tcp::TcpResponder> responder_;
};

}  // namespace farpool::index::contract
