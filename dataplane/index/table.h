// SPDX-License-Identifier: Apache-2.0
// What every index protocol offers its callers: one table on one memory node, used by one client thread through its
// session. Every operation is atomic against those of all clients of the table, and linearizable per key.
//
// Every operation takes an absolute deadline and adds what it cost. It checks the deadline between trips: a posted trip
// always gets at least the pool's failure timeout, because giving up on it ends the session. Errors:
//   too_large        key or value beyond the limits
//   out_of_memory    the table has no room for the key, or the heap no block
//   timed_out        the deadline passed; nothing was done
//   locked           what a dead client left is quarantined; names it
//   unavailable      the session has ended; nothing was done
//   stale            keys have moved between memory nodes, and the client did not know when it called (Movable);
//                    nothing was done
//   moved            the key is not here, and will not be until the next move: ask the memory node that its part
//                    moves to; nothing was done
//   unknown_outcome  the session ended in the middle of the write
//   corrupt          the table holds impossible bytes
// Keys and values are views of the caller's memory and must live until the task has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "index/counts.h"
#include "index/edit.h"
#include "index/page.h"
#include "layout/geometry.h"
#include "layout/superblock.h"
#include "session/repair.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::heap {
class Heap;
}

namespace farpool::index {

struct Totals {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of keys and values
};

// The result of a repair of what dead clients left.
struct Swept : session::Repairer::Swept {
  std::uint64_t splits = 0;     // of tables, finished
  std::uint64_t splitting = 0;  // that other clients seem to be working on, or `trouble` came first
};

// The pool's latest move of parts of the hash space between memory nodes, as one memory node sees it (docs/adr/0012).
struct Move {
  std::uint64_t number = 0;  // 0: there has been none
  std::uint32_t depth = 0;
  std::vector<bool> leaving;  // by the low `depth` bits of the pool's hash of a key; empty: no key leaves
  bool leaves(std::uint64_t pool_hash) const { return !leaving.empty() && leaving[pool_hash & ((1ull << depth) - 1)]; }
};

// The memory node that receives moved keys. While a key is on its way, no other client changes it there.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // Adds the key, unless it is there already. After an error it may or may not be there.
  virtual task::Task<base::Status> take_in(std::string_view key, std::string_view value) = 0;
  virtual task::Task<base::Result<bool>> has(std::string_view key) = 0;
};

// The part of a protocol that moves keys between memory nodes. The caller holds the lease for moves at the memory node
// (layout::kMoveLease) during each call. Every step may be repeated at any point.
class Movable {
 public:
  using GoOn = std::function<base::Status()>;  // asked from time to time; an error ends the work

  virtual ~Movable() = default;
  // Takes over what the map says now.
  virtual void follow(Move move) = 0;
  // Adds a key that comes from another memory node, so that only clients that know of the move change it. Returns false
  // if it was here already.
  virtual task::Task<base::Result<bool>> admit(std::string_view key, std::string_view value, base::Nanos deadline,
                                               fabric::Cost& cost) = 0;
  // Says how far moves are at this memory node.
  struct Standing {
    std::uint64_t finished = 0;  // the number of the last move that is
    std::uint64_t lease = 0;     // layout::LeaseWord
  };
  virtual task::Task<base::Result<Standing>> standing() = 0;
  // Closes the table to clients that do not know of the move, and to new keys of parts that leave.
  virtual task::Task<base::Status> close(Arrivals* arrivals, const GoOn& go_on) = 0;
  // Moves every key that leaves, and records that the move is finished. Called when source and targets have been
  // closed.
  virtual task::Task<base::Status> move_away(Arrivals& arrivals, const GoOn& go_on) = 0;
};

class Table {
 public:
  virtual ~Table() = default;

  // The value may use the memory of `room`.
  virtual task::Task<base::Result<std::optional<std::string>>> lookup(std::string_view key, base::Nanos deadline,
                                                                      fabric::Cost& cost, std::string room = {}) = 0;
  // Adds the key. Returns false, and changes nothing, if it existed.
  virtual task::Task<base::Result<bool>> insert(std::string_view key, std::string_view value, base::Nanos deadline,
                                                fabric::Cost& cost) = 0;
  // Gives an existing key another value. Returns false if it did not exist.
  virtual task::Task<base::Result<bool>> update(std::string_view key, std::string_view value, base::Nanos deadline,
                                                fabric::Cost& cost) = 0;
  // Removes the key. Returns whether it existed.
  virtual task::Task<base::Result<bool>> remove(std::string_view key, base::Nanos deadline, fabric::Cost& cost) = 0;
  // Sets the key, whether or not it exists. Returns whether it existed.
  virtual task::Task<base::Result<bool>> put(std::string_view key, std::string_view value, base::Nanos deadline,
                                             fabric::Cost& cost) = 0;
  // Reads, decides and writes as one atomic step. Returns whether the key existed before.
  virtual task::Task<base::Result<bool>> modify(std::string_view key, Editor& editor, base::Nanos deadline,
                                                fabric::Cost& cost) = 0;
  // Sums the counters of all operation slots of the memory node. Exact when nothing changes.
  virtual task::Task<base::Result<Totals>> count(base::Nanos deadline, fabric::Cost& cost) = 0;
  // Returns one step of a scan, of about as many keys as a single read of that part of the table finds: see Page. A
  // position behind the last one has no keys. Takes no locks, and writes only what a lookup would have to repair.
  virtual task::Task<base::Result<Page>> scan(std::uint64_t position, std::uint64_t count, base::Nanos deadline,
                                              fabric::Cost& cost) = 0;
  // Returns the number of positions: at most 2^kPositionBits.
  virtual std::uint64_t positions() const = 0;

  virtual const layout::Geometry& geometry() const = 0;
  virtual const Marks& marks() const = 0;
  // Starts a split, in the background, of a table that has been split fewer than `depth` times, to make room ahead of
  // keys. `chance` spreads clients over such tables. Returns false if there is none. out_of_memory: the table cannot be
  // split.
  virtual task::Task<base::Result<bool>> split_ahead(std::uint64_t depth, std::uint64_t chance, base::Nanos deadline,
                                                     fabric::Cost& cost);
  // Starts a split of the table that has the key, in the background, unless one is under way, for clients that want
  // room before they need it. out_of_memory: it cannot be split.
  virtual task::Task<base::Status> split(std::string_view key, base::Nanos deadline, fabric::Cost& cost);
  // Returns when this client is splitting nothing, or at the deadline.
  virtual task::Task<base::Status> idle(base::Nanos deadline);
  // Says why this client's latest split is stuck; ok if the client has resumed one since. For people.
  virtual base::Status split_trouble() const { return {}; }
  // Repairs what dead clients left in the table, for a client that it does not block.
  virtual task::Task<base::Result<Swept>> sweep(base::Nanos deadline, fabric::Cost& cost);
  // Does the housekeeping. Every client calls it about once a tick, even one that does nothing else.
  virtual task::Task<void> maintain(base::Nanos deadline);
  // Returns to the memory node what the client held there for later. Part of a clean goodbye: no operation may run
  // then, and none may begin afterwards.
  virtual task::Task<void> release(base::Nanos deadline);
  // Sets what is called where a write of so many bytes finds no room in the table's heap, before it waits for some:
  // Heap::set_make_room. Tables without a heap never call it.
  virtual void set_make_room(std::function<bool(std::uint64_t bytes)>) {}
  // Returns the heap that the table takes its blocks from; nullptr: this client takes none. For tests and figures.
  virtual heap::Heap* heap() { return nullptr; }
  // Returns the repairer of what dead clients left under locks; nullptr: the protocol leaves nothing that clients
  // repair.
  virtual session::Repairer* repairer() { return nullptr; }
  virtual Movable* movable() { return nullptr; }
};

// Reads the memory node's superblock over the session and checks it against the session's grant.
task::Task<base::Result<layout::Superblock>> read_superblock(session::Session& session, base::Nanos deadline,
                                                             fabric::Cost& cost);

}  // namespace farpool::index
