// SPDX-License-Identifier: Apache-2.0
// A pool in one thread and virtual time: a memory node and its clients, all of them the code that runs on real wires. A
// world is a function of its options.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/sim/network.h"
#include "heap/heap.h"
#include "index/table.h"
#include "layout/geometry.h"
#include "session/session.h"
#include "sim/history.h"
#include "task/scope.h"

namespace farpool::node {
class MemoryNode;
}

namespace farpool::sim {

struct WorldOptions {
  fabric::sim::Options wire;
  layout::GeometryRequest geometry{.memory_bytes = 2560 << 10,
                                   .table_percent = 1,
                                   .entry_bytes = 16,
                                   .entries_per_row = 2,
                                   .rows_per_lock = 2,
                                   .max_sessions = 8,
                                   .slots_per_session = 2};
  std::uint64_t initial_tables = 1;
  Nanos lease = 2 * base::kSecond;
  Nanos failure_timeout = 40 * base::kMillisecond;
  std::uint32_t table_id = 0;
  bool device_locks = false;  // they lie in the memory node's NIC, and end with its process
};

class World;

// One client thread: a port, a session and a table.
class Client {
 public:
  const std::string& name() const { return name_; }
  std::size_t index() const { return port_->index(); }
  fabric::sim::SimPort& port() { return *port_; }
  session::Session& session() { return *body_->session; }
  heap::Heap* heap() { return body_->table->heap(); }  // nullptr: the memory node alone allocates
  index::Table& table() { return *body_->table; }
  bool connected() const { return body_->table != nullptr; }
  bool crashed() const { return port_->crashed(); }
  // Says whether its session ended without a goodbye.
  bool ended() const { return ended_ || (body_->session != nullptr && !closed_ && !body_->session->alive()); }
  std::uint64_t incarnation() const { return incarnation_; }
  std::uint64_t slots_offset() const { return slots_offset_; }
  std::uint64_t session_id() const { return session_id_; }

 private:
  friend class World;
  // The objects that the client's coroutines refer to. They are kept if the client crashed.
  struct Body {
    task::Scope scope;
    std::unique_ptr<session::Session> session;
    std::unique_ptr<index::Table> table;
    base::Status status;
  };
  std::string name_;
  fabric::sim::SimPort* port_ = nullptr;
  std::shared_ptr<Body> body_ = std::make_shared<Body>();
  std::uint64_t incarnation_ = 0;
  std::uint64_t slots_offset_ = 0;
  std::uint64_t session_id_ = 0;
  bool closed_ = false;
  bool ended_ = false;
};

class World {
 public:
  explicit World(WorldOptions options = {});
  World(const World&) = delete;
  // Lets living clients say goodbye; keeps crashed ones with their frames.
  ~World();

  // Opens a session, reads the superblock and opens the table. Must succeed.
  Client& connect(const std::string& name);
  // Does the same while the world runs: returns a client without a session, and starts the task that opens one
  // (connected() tells).
  Client& add(const std::string& name);
  task::Task<void> open(Client& client);
  // Returns the client's segments and closes its session.
  void disconnect(Client& client);

  // Starts a task of the client: it runs as the world runs.
  void spawn(Client& client, task::Task<void> task);
  // Runs until the client has nothing left to do, or has crashed. Returns false if virtual time ran out.
  bool settle(Client& client, Nanos within = 60 * base::kSecond);
  // Does both, spawn and settle.
  bool run(Client& client, task::Task<void> task, Nanos within = 60 * base::kSecond);
  bool run_until(const std::function<bool()>& done, Nanos within = 60 * base::kSecond);
  // Runs until no live client has anything posted: slots are cleared and blocks freed behind a call's back.
  bool quiesce(Nanos within = 60 * base::kSecond);

  // Kills the memory node's process and starts another over what it left, or over nothing. All sessions end; what was
  // under way stops at any word. Without its memory the pool begins anew, and so does the history. Returns false if the
  // memory could not be taken up.
  bool restart(bool keeps_memory);
  // Ends the keys of a client's session, as when the memory node's NIC destroys its queue pairs, at any word of what is
  // under way. The memory node's sessions learn nothing of it.
  void revoke(Client& client);

  // Makes one call of a history on a table, and notes the answer. Forgets failures without effect, and keeps their
  // status. A call that no other client hindered may not need more trips than it has to.
  task::Task<void> call(Client& client, Call call, Nanos patience);
  // The positions of the table that a scan covers.
  struct ScanRange {
    std::uint64_t first = 0, end = ~0ull;  // positions
    std::uint64_t count = 1;               // keys that a step asks for
    Nanos rest = 0;                        // between two steps
  };
  // Scans the range. For each of these keys, which all belong to the range alone, the world notes whether the scan
  // returned it.
  task::Task<void> scan(Client& client, std::vector<std::string> keys, ScanRange range, Nanos patience);

  fabric::sim::Network& network() { return network_; }
  node::MemoryNode& node() { return *node_; }
  fabric::sim::SimResponder& responder() { return responder_; }
  const layout::Geometry& geometry() const { return geometry_; }
  std::uint64_t initial_tables() const { return options_.initial_tables; }
  // Returns the memory with its locks, wherever they lie.
  base::Bytes memory() const;
  base::Bytes region(layout::RegionId id) const {
    return memory().subspan(geometry().at(id).offset, geometry().at(id).bytes);
  }
  const base::HashSecret& table_seed() const { return table_seed_; }
  const base::HashSecret& pool_secret() const { return pool_secret_; }
  History& history() { return history_; }
  const std::vector<std::unique_ptr<Client>>& clients() const { return clients_; }
  // Returns the calls that failed without effect, newest last: client and status.
  const std::vector<std::pair<std::size_t, base::Status>>& failures() const { return failures_; }
  const std::string& endpoint() const { return endpoint_; }
  // Returns keys that scans returned and no client has ever written.
  const std::vector<std::string>& strays() const { return strays_; }
  std::uint64_t pages() const { return pages_; }  // of all scans
  // Count the calls that no other client hindered, and list those of them that needed more trips than they had to.
  std::uint64_t budgeted() const { return budgeted_; }
  const std::vector<std::string>& over_budget() const { return over_budget_; }

 private:
  void serve();
  void judge_trips(const Call& call, const std::optional<std::string>& found, const fabric::Cost& cost);
  struct Memory;
  task::Task<void> close(Client& client);

  WorldOptions options_;
  const std::string endpoint_ = "node-0:7400";
  std::unique_ptr<Memory> memory_;
  base::MutableBytes memory_span_;
  std::vector<std::byte> first_locks_;  // that the memory holds while those in use lie in the NIC
  fabric::sim::Network network_;
  fabric::sim::SimResponder& responder_;
  std::unique_ptr<node::MemoryNode> node_;
  layout::Geometry geometry_;
  std::vector<std::unique_ptr<Client>> clients_;
  base::HashSecret table_seed_;
  base::HashSecret pool_secret_;
  History history_;
  std::vector<std::pair<std::size_t, base::Status>> failures_;
  std::uint64_t lost_ = 0;  // times that all memory was lost
  std::uint64_t budgeted_ = 0;
  std::vector<std::string> over_budget_;
  std::vector<std::string> strays_;
  std::uint64_t pages_ = 0;
};

// Returns the names that golden verb traces call places by: "slot 3", "lock word 0", "row 17", "rows 16..17", "block
// 0x40". With many tables "slot 1/3.14" is slot 14 of group 3 of table 1.
std::string name_place(const layout::Geometry& geometry, fabric::Remote at, std::uint64_t bytes);

}  // namespace farpool::sim
