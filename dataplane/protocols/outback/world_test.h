// SPDX-License-Identifier: Apache-2.0
// A simulated memory node of an Outback pool, whose memory outlives its processes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/sim/network.h"
#include "node/memory.h"
#include "node/memory_node.h"

namespace farpool::outback {

inline constexpr char kUid[] = "pool-1";
inline constexpr char kEndpoint[] = "node-0:7400";
inline const fabric::Peer kPeer{.pool_uid = kUid, .role = "client", .name = "test", .authenticated = true};

struct PoolWorld {
  explicit PoolWorld(fabric::sim::Options options = {}, std::uint64_t memory_bytes = 8 << 20)
      : network(options),
        wire(network.add_node(kEndpoint)),
        memory(std::move(*node::Memory::anonymous(memory_bytes))) {}

  base::Status begin_life() {
    auto created = node::MemoryNode::create(
        {.name = "memory-0",
         .pool_uid = kUid,
         .endpoint = kEndpoint,
         .geometry = {.table_percent = 2, .max_sessions = 8, .protocol = layout::Protocol::outback},
         .lease = 2 * base::kSecond,
         .failure_timeout = 200 * base::kMillisecond,
         .log = [this](bool, const std::string& line) { log.push_back(line); }},
        memory.span(), wire);
    if (!created.ok()) return created.status();
    node = std::move(*created);
    wire.serve(*node);
    EXPECT_EQ(node->stand_alone(++epoch).verdict, node::MemoryNode::Verdict::adopted);
    return {};
  }
  void kill() {
    wire.stop();
    node.reset();
  }
  void lose_memory() { std::ranges::fill(memory.span(), std::byte{0}); }
  base::MutableBytes region(layout::RegionId id) const {
    const layout::Span& at = node->geometry().at(id);
    return memory.span().subspan(at.offset, at.bytes);
  }
  bool logged(const std::string& text) const {
    return std::ranges::any_of(log, [&](const std::string& line) { return line.find(text) != std::string::npos; });
  }

  fabric::sim::Network network;
  fabric::sim::SimResponder& wire;
  node::Memory memory;
  std::unique_ptr<node::MemoryNode> node;
  std::vector<std::string> log;
  std::uint64_t epoch = 0;
};

}  // namespace farpool::outback
