// SPDX-License-Identifier: Apache-2.0
// Two cables of the kernel in a network namespace of the test's own: the ends c1 and s1 are for a box, c0 and s0 for
// clients and servers that talk through it. Needs root. The thread is back in its former namespace afterwards.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "roce/packet.h"
#include "swordbox/shell/link.h"

namespace farpool::swordbox {

inline bool does(const std::string& command) { return std::system(command.c_str()) == 0; }

class Cables {
 public:
  Cables() : former_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    EXPECT_EQ(::unshare(CLONE_NEWNET), 0) << "a network namespace needs root";
    // Otherwise the kernel talks on interfaces by itself.
    std::ofstream("/proc/sys/net/ipv6/conf/default/disable_ipv6") << "1";
    EXPECT_TRUE(does("ip link set lo up"));
    plug("c");
    plug("s");
  }
  ~Cables() {
    EXPECT_EQ(::setns(former_, CLONE_NEWNET), 0);
    ::close(former_);
  }
  Cables(const Cables&) = delete;
  static void plug(const std::string& name) {
    EXPECT_TRUE(does("printf 'link add " + name + "0 type veth peer name " + name + "1\nlink set " + name +
                     "0 up\nlink set " + name + "1 up\n' | ip -batch -"));
  }

 private:
  int former_;
};

using Bytes = std::vector<std::byte>;

inline Bytes frame_of(const roce::Packet& packet) {
  Bytes frame(2048);
  frame.resize(roce::build_sealed(packet, frame));
  return frame;
}

// A client or server at the end of a cable, that sends and takes frames as they are.
class End {
 public:
  explicit End(const std::string& interface) {
    auto opened = Link::open(interface);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (opened.ok()) link_ = std::move(*opened);
  }
  void send(base::Bytes frame, const Offload& offload = {}) {
    outbox_.borrow(frame, offload, false);
    link_->send(outbox_);
  }
  void send(const roce::Packet& packet) { send(frame_of(packet)); }
  // Returns the next frame, or nothing if none is there.
  Bytes take() {
    while (frames_.empty() && link_->receive(batch_) > 0) {
      for (Frame& frame : batch_.frames()) {
        finish_checksum(frame);
        frames_.emplace_back(frame.bytes.begin(), frame.bytes.end());
      }
    }
    if (frames_.empty()) return {};
    Bytes first = std::move(frames_.front());
    frames_.pop_front();
    return first;
  }
  const LinkCounts& counts() { return link_->counts(); }

 private:
  std::unique_ptr<Link> link_;
  Outbox outbox_;
  Batch batch_;
  std::deque<Bytes> frames_;
};

}  // namespace farpool::swordbox
