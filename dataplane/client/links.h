// SPDX-License-Identifier: Apache-2.0
// What a pool holds with the memory nodes of its map. For the pool's own sources:
//
//   pool.cc        its life, and the node that serves a key
//   operations.cc  operations on keys
//   scan.cc        scans, and where they go on
//   follow.cc      the map, and a session with each of its nodes
//   reclaim.cc     keys that have expired, and that nobody asks for
//   evict.cc       room at memory nodes that are full
//   moves.cc       splits of tables ahead of need, and moves of keys between nodes
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/pool.h"
#include "index/protocol.h"
#include "session/session.h"

namespace farpool::client {

inline constexpr Nanos kFirstBackoff = 50 * base::kMillisecond;
// How often a link looks at its session.
inline constexpr Nanos kLook = 100 * base::kMillisecond;

// A table that outlives its sessions, and where it gets them: from the bonds with the memory node of this name, for as
// long as that has this memory.
struct Pool::Lasting final : index::Sessions {
  explicit Lasting(Pool& of) : pool(of) {}
  fabric::Port& port() override { return pool.port_; }
  task::Task<base::Result<std::shared_ptr<session::Session>>> next(Nanos deadline) override;

  Pool& pool;
  std::string node;
  std::uint32_t table_id = 0;
  base::HashSecret seed;  // of the tables: no other memory has it
  layout::Geometry geometry;
  bool gone = false;  // the memory, or the map no longer names it
  std::unique_ptr<index::Table> table;
};

// What this client does about the room at a memory node.
struct Pool::Room {
  explicit Room(fabric::Port& port) : paid(port) {}

  std::int64_t owed = 0;  // bytes to be freed, about
  bool paying = false;    // pay_debt() runs, and refers to it
  session::WaitQueue paid;
  std::uint64_t removed = 0;     // keys, ever
  std::uint64_t failed = 0;      // removals and looks for keys, ever: others may succeed
  std::uint64_t vain_turns = 0;  // through the table, that found keys and none to remove
  Nanos full_at = 0;             // when a write last found no room
  Nanos full_until = 0;          // unless another one does
  Nanos settled_at = 0;          // what was removed is expected to be free from then on
  Nanos none_until = 0;          // no key is looked for before
  std::uint64_t part = 0;        // bytes that the last such write added to the debt
  fabric::Cost cost;
};

// A session with a node, and the table behind it.
struct Pool::Bond {
  explicit Bond(fabric::Port& port) : room(port) {}

  std::shared_ptr<session::Session> session;
  std::shared_ptr<Lasting> lasting;  // none: the table lives with the session
  std::shared_ptr<index::Table> table;
  std::size_t uses = 0;  // operations under way
  // The last move of keys that is known to be finished at the node, and when to look again.
  std::uint64_t moved = 0;
  Nanos move_due = 0;
  std::uint64_t move_lease = 0;  // as last read, when another client was moving keys
  std::string move_trouble;
  // How many of the tables that the map asks for are known to be in use at the node, and when to look again.
  std::uint64_t split_into = 0;
  Nanos split_due = 0;
  std::string split_trouble;
  Nanos repair_due = 0;                          // 0: no client is known to have died
  std::optional<std::uint64_t> deaths_repaired;  // up to which no split is left
  fabric::Cost repair_cost;                      // of repairs that no operation waited for
  Room room;
};

// A node of the map.
struct Pool::Link {
  std::string name;
  std::string endpoint;
  std::uint64_t incarnation = 0;
  std::uint32_t table = 0;
  bool stopped = false;     // by the map
  bool retired = false;     // no longer in the map
  bool kept = false;        // its keep() runs, and refers to it
  bool moving = false;      // a move of keys away from it runs, and refers to it
  bool reclaiming = false;  // a search for keys that have expired runs, and refers to it
  index::Move move;         // of keys between memory nodes, as the map has it
  std::unique_ptr<Bond> bond;
  // The session before, if it ended without a goodbye: its incarnation, and its first lane token.
  std::uint64_t previous = 0;
  std::array<std::byte, 16> previous_token{};
  base::Status trouble{base::Code::unavailable, "no session has been opened yet"};

  bool wanted() const { return !stopped && !retired; }
  // Says whether keys are to move away and this client does not yet know that all have.
  bool leaving() const { return !retired && !move.leaving.empty() && (bond == nullptr || bond->moved < move.number); }
};

// The bond that an operation uses. The pool does not give a bond up while one of these lives.
class Pool::Borrowed {
 public:
  Borrowed(Pool& pool, Bond& bond) : pool_(&pool), bond_(&bond) { ++bond_->uses; }
  Borrowed(Borrowed&& other) noexcept : pool_(other.pool_), bond_(std::exchange(other.bond_, nullptr)) {}
  Borrowed& operator=(Borrowed&&) = delete;
  ~Borrowed() {
    if (bond_ == nullptr || --bond_->uses > 0) return;
    if (pool_->closing_ || !bond_->session->alive()) pool_->links_due_.wake_all();
  }
  session::Session& session() const { return *bond_->session; }
  index::Table& table() const { return *bond_->table; }
  Bond& bond() const { return *bond_; }
  bool alive() const { return bond_->session->alive(); }

 private:
  Pool* pool_;
  Bond* bond_;
};

// What an operation cost, and how it ended.
class Pool::Account {
 public:
  Account(Pool& pool, Operation operation)
      : deadline(pool.port_.now() + pool.options_.operation_deadline),
        pool_(pool),
        begun_(deadline - pool.options_.operation_deadline),
        counters_(pool.counters_.operations[static_cast<std::size_t>(operation)]) {}

  void retry() { counters_.retries.add(); }
  base::Status late() {
    close(base::Code::timed_out);
    return {base::Code::timed_out, "other operations of this client on the same key took until the deadline"};
  }
  void close(base::Code code) {
    counters_.outcomes[static_cast<std::size_t>(code)].add();
    counters_.trips.add(cost.trips);
    counters_.chains.add(cost.chains);
    counters_.messages.add(cost.messages);
    counters_.bytes.add(cost.bytes);
    counters_.latencies.record(pool_.port_.now() - begun_);
  }

  const Nanos deadline;
  fabric::Cost cost;
  // The epoch of the current attempt, and the epoch in which the key had already left the node that its part is
  // leaving: while the pool follows that epoch, the key is at the next node.
  std::uint64_t routed_in = 0, left_in = 0;
  std::uint64_t hash = 0;  // of the key, by the pool's secret

 private:
  Pool& pool_;
  const Nanos begun_;
  PoolCounters::PerOperation& counters_;
};

}  // namespace farpool::client
