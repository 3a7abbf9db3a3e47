// SPDX-License-Identifier: Apache-2.0
// RCuckoo: one table on one memory node, used by one client thread through its session. Every operation is atomic
// against those of all clients of the table, and linearizable per key.
//
// Every operation takes an absolute deadline and adds what it cost. The deadline is looked at between trips: a trip
// once posted is given at least the pool's failure timeout, because to give up on it ends the session. Errors:
//   too_large        key or value beyond the limits             out_of_memory    no room within the search depth, or no
//   block timed_out        the deadline passed; nothing was done      locked           what a dead client left is
//   quarantined; names it     unavailable      the session has ended; nothing was done    unknown_outcome  the session
//   ended in the middle of the write corrupt          bytes in the table that cannot be
// Keys and values are views of the caller's memory and must live until the task has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "fabric/cost.h"
#include "heap/heap.h"
#include "index/edit.h"
#include "layout/geometry.h"
#include "layout/superblock.h"
#include "session/repair.h"
#include "session/session.h"
#include "task/task.h"

namespace farpool::rcuckoo {

using index::Edit;
using index::Editor;

// Counts of what is rare, for metrics and for tests that want to see that it happened.
struct Marks {
  std::uint64_t lock_conflicts = 0;    // attempts at a lock word that found a bit taken
  std::uint64_t lock_restarts = 0;     // held words given back because a later one did not come free
  std::uint64_t torn_rows = 0;         // lock-free reads that met a row in the middle of a WRITE
  std::uint64_t stale_extents = 0;     // extents reused or torn under a lock-free read
  std::uint64_t changed_misses = 0;    // misses that the second read did not confirm
  std::uint64_t escalations = 0;       // puts that found both rows full
  std::uint64_t failed_searches = 0;   // no path among the locked rows
  std::uint64_t explorations = 0;      // searches that fetched what they looked at
  std::uint64_t displaced = 0;         // entries moved
  std::uint64_t multi_word_locks = 0;  // operations whose locks needed more than one masked CAS
  friend bool operator==(const Marks&, const Marks&) = default;
};

// Reads the memory node's superblock over the session and checks it against the session's grant.
task::Task<base::Result<layout::Superblock>> read_superblock(session::Session& session, base::Nanos deadline,
                                                             fabric::Cost& cost);

class Table {
 public:
  // Session and heap outlive the table, and the table its operations.
  Table(session::Session& session, heap::Heap& heap, const layout::Geometry& geometry, std::uint32_t table_id = 0);
  ~Table();

  task::Task<base::Result<std::optional<std::string>>> lookup(std::string_view key, base::Nanos deadline,
                                                              fabric::Cost& cost);
  // Adds the key. False: it existed, and nothing was changed.
  task::Task<base::Result<bool>> insert(std::string_view key, std::string_view value, base::Nanos deadline,
                                        fabric::Cost& cost);
  // Gives an existing key another value. False: it did not exist.
  task::Task<base::Result<bool>> update(std::string_view key, std::string_view value, base::Nanos deadline,
                                        fabric::Cost& cost);
  // True if the key existed.
  task::Task<base::Result<bool>> remove(std::string_view key, base::Nanos deadline, fabric::Cost& cost);
  // Sets the key whether or not it exists. True if it existed.
  task::Task<base::Result<bool>> put(std::string_view key, std::string_view value, base::Nanos deadline,
                                     fabric::Cost& cost);
  // Reads, decides and writes under the key's locks. True if the key existed before.
  task::Task<base::Result<bool>> modify(std::string_view key, Editor& editor, base::Nanos deadline, fabric::Cost& cost);

  struct Totals {
    std::uint64_t keys = 0;
    std::uint64_t bytes = 0;  // of keys and values
  };
  // Sums the counters of all operation slots of the memory node. Exact when nothing changes.
  task::Task<base::Result<Totals>> count(base::Nanos deadline, fabric::Cost& cost);

  const layout::Geometry& geometry() const;
  const Marks& marks() const;
  // Repairs what dead clients left in the table: for whoever is not blocked by it.
  session::Repairer& repairer();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace farpool::rcuckoo
