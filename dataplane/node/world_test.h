// SPDX-License-Identifier: Apache-2.0
// One memory node and its clients on the simulated wire, for the tests of session, node and heap together.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/sim/network.h"
#include "layout/operation_slot.h"
#include "layout/private_page.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "session/session.h"
#include "task/scope.h"

namespace farpool::node {

using base::kMillisecond;
using base::kSecond;
using base::Nanos;
using fabric::sim::SimPort;
using session::Session;
using Verdict = MemoryNode::Verdict;

inline const fabric::Peer kClientPeer{.pool_uid = "pool", .role = "client", .name = "test", .authenticated = true};

// Returns a shard map with this node alone in it.
inline v1alpha1::ShardMap map_with(const MemoryNode& node, std::uint64_t epoch) {
  v1alpha1::ShardMap map;
  map.set_pool_uid("pool");
  map.set_epoch(epoch);
  *map.add_nodes() = node.entry();
  map.add_tables();
  map.add_directory(0);
  return map;
}

struct TestWorld {
  // Delays every message by `slow`.
  explicit TestWorld(std::uint64_t seed = 1, std::uint64_t memory_bytes = 4 << 20, std::uint32_t max_sessions = 4,
                     Nanos slow = 0)
      : network({.seed = seed, .min_delay = 500 + slow, .max_delay = 3000 + slow}),
        wire(network.add_node("node-0:7400")),
        memory(std::move(*Memory::anonymous(memory_bytes))) {
    options.name = "memory-0";
    options.pool_uid = "pool";
    options.endpoint = "node-0:7400";
    options.version = "test";
    options.geometry.table_percent = 5;
    options.geometry.max_sessions = max_sessions;
    options.geometry.slots_per_session = 4;
    options.lease = 2 * kSecond;
    options.failure_timeout = 500 * kMillisecond;
    options.log = [this](bool, const std::string& line) { log.push_back(line); };
    options.on_change = [this] { ++changes; };
    begin_life();
  }

  base::Status try_begin_life() {
    auto created = MemoryNode::create(options, memory.span(), wire);
    if (!created.ok()) return created.status();
    node = std::move(*created);
    wire.serve(*node);
    return {};
  }
  void begin_life() {
    const base::Status status = try_begin_life();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // Ends the process as kill -9 does: the memory stays.
  void kill() {
    wire.stop();
    node.reset();
  }

  SimPort& client() { return network.add_client(kClientPeer); }
  const layout::Geometry& geometry() const { return node->geometry(); }

  static task::Task<void> note_end(task::Task<void> task, bool& ended) {
    co_await std::move(task);
    ended = true;
  }
  // Runs a task to its end, within virtual time. A task that does not end fails the test at once, because its frame
  // cannot be destroyed.
  void run(task::Task<void> task, Nanos within = 600 * kSecond) {
    bool ended = false;
    task::Scope scope;
    scope.spawn(note_end(std::move(task), ended));
    FARPOOL_CHECK(network.run_until([&] { return ended; }, network.now() + within));
  }
  // Lets time pass while everything continues.
  void pass(Nanos time) {
    bool over = false;
    network.at(network.now() + time, [&over] { over = true; });
    FARPOOL_CHECK(network.run_until([&] { return over; }, network.now() + 2 * time));
  }
  bool wait_until(const std::function<bool()>& done, Nanos within = 60 * kSecond) {
    return network.run_until(done, network.now() + within);
  }

  Session::Options session_options(SimPort& port) const {
    Session::Options options;
    options.endpoint = "node-0:7400";
    options.pool_uid = "pool";
    options.client_name = "client-" + std::to_string(port.index());
    options.epoch = node->stats().epoch;
    options.node_incarnation = node->incarnation();
    options.deadline = port.now() + 5 * kSecond;
    return options;
  }
  static task::Task<void> opening(SimPort& port, Session::Options options,
                                  base::Result<std::unique_ptr<Session>>& into) {
    into = co_await Session::open(port, std::move(options));
  }
  base::Result<std::unique_ptr<Session>> try_open(SimPort& port, Session::Options options) {
    base::Result<std::unique_ptr<Session>> result(base::Status(base::Code::internal, "never opened"));
    run(opening(port, std::move(options), result));
    return result;
  }
  std::unique_ptr<Session> open(SimPort& port) {
    auto opened = try_open(port, session_options(port));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  void close(std::unique_ptr<Session> session) { run(session->close(network.now() + 5 * kSecond)); }

  layout::OperationSlot slot(std::uint64_t index) const {
    return base::load<layout::OperationSlot>(memory.span().data() + geometry().at(layout::kSlots).offset +
                                             index * sizeof(layout::OperationSlot));
  }

  layout::PrivateRecord record() const {
    return layout::read_private_page(memory.span().last(layout::kPage)).record.value();
  }

  fabric::sim::Network network;
  fabric::sim::SimResponder& wire;
  Memory memory;
  MemoryNode::Options options;
  std::unique_ptr<MemoryNode> node;
  std::vector<std::string> log;
  int changes = 0;
};

}  // namespace farpool::node
