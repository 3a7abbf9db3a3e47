// SPDX-License-Identifier: Apache-2.0
// One index protocol: everything that memory nodes, clients and checkers ask of it, except the numbers in
// layout/protocol.h. A protocol is one such object; the room `protocols` has the list. Memory nodes call these
// functions when they format, take up or audit a memory, and clients when they open a table; operations never do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "fabric/fabric.h"
#include "fabric/service.h"
#include "index/counts.h"
#include "index/image.h"
#include "index/table.h"
#include "layout/geometry.h"
#include "layout/operation_slot.h"
#include "session/eras.h"
#include "session/session.h"

namespace farpool::v1alpha1 {
class MemoryNodeEntry;
class MemoryNodeFacts;
}  // namespace farpool::v1alpha1

namespace farpool::index {

// What a protocol asks of a wire, in the words of fabric::Caps.
struct Needs {
  std::uint32_t chain = 1;            // verbs of its longest chain
  std::uint64_t verb_bytes = 8;       // of its longest READ or WRITE
  std::uint32_t calls_in_flight = 0;  // CALLs for data on one lane; 0: it has none
  std::uint64_t call_bytes = 0;       // the longest request of one, and the longest reply
};
// Says which needs the wire cannot serve, or ok. `name` is the protocol's.
base::Status check_wire(std::string_view name, const Needs& needs, const fabric::Caps& caps);

// What became of half-done operations of an earlier process over the memory.
struct Mended {
  std::uint64_t operations = 0;
  std::string what;               // for people: "found 3 inserts half done, and undid them"
  std::vector<std::string> left;  // for people: what no crash explains; it stays unchanged
};

// What a memory node runs for its clients: the operations, where it executes them itself (layout::Served), or what
// clients say to each other.
class NodeSide {
 public:
  virtual ~NodeSide() = default;
  // Executes the CALLs for data of all sessions.
  virtual fabric::Service& service() = 0;
  struct Numbers {
    std::uint64_t keys = 0;
    std::uint64_t bytes = 0;  // of keys and values
    std::uint64_t heap = 0;   // bytes that keys and values can take, with all that belongs to them
    std::uint64_t live = 0;   // what they take of these
    NodeMarks marks = {};
  };
  // Returns what is in the memory now. Nothing: clients count that, in their operation slots. Any thread.
  virtual std::optional<Numbers> numbers() const = 0;
};

// Where a table that outlives sessions gets them: one after the other, all with the same memory. One thread.
class Sessions {
 public:
  virtual ~Sessions() = default;
  virtual fabric::Port& port() = 0;  // of all of them
  // Returns a session that lives, and waits until there is one. Operations hold it for as long as they use it. Errors:
  // unavailable, timed_out: there is none now. stale: there will be none, because the memory is gone, the map no longer
  // names it, or the client closes.
  virtual task::Task<base::Result<std::shared_ptr<session::Session>>> next(base::Nanos deadline) = 0;
};

class Protocol {
 public:
  using Progress = std::function<void(std::uint64_t rows)>;  // may be empty

  explicit Protocol(layout::Protocol number) : number_(number) {}
  virtual ~Protocol() = default;
  Protocol(const Protocol&) = delete;

  layout::Protocol number() const { return number_; }
  std::string_view name() const { return layout::shape_of(number_).name; }
  virtual Needs needs() const = 0;
  // Says why there can be no table in a memory that is cut so, or ok.
  virtual base::Status check(const layout::Geometry&) const { return {}; }

  // --- The memory node: bytes that no client changes. `memory` is all of them, cut by the geometry.

  // Makes the tables of a zeroed memory empty. The directory is formatted separately. `seed` is the tables' own: no
  // other memory has had it.
  virtual void format(const layout::Geometry& geometry, base::MutableBytes memory, const base::HashSecret& seed,
                      std::uint64_t initial_tables, const Progress& progress) const = 0;
  // Finishes or undoes the half-done operations of clients, which have all ended, and frees what they held. If it is
  // cut short after any word, another call does the rest.
  virtual Mended mend(const layout::Geometry& geometry, base::MutableBytes memory, const Progress& progress) const = 0;
  // Says what operation slots plan, and what rows become once the plans are carried out.
  virtual HalfDone half_done(const layout::Geometry&, base::Bytes) const { return {}; }
  // Checks every entry. `table` and `heap` are the regions' bytes.
  virtual Report verify(const layout::Geometry& geometry, base::Bytes table, base::Bytes heap,
                        const base::HashSecret& seed, const Verification& how) const = 0;
  // Returns the rows that an operation slot's plan names; nothing if it is no plan of such a table.
  virtual std::optional<std::vector<std::uint64_t>> rows_of(const layout::Geometry&,
                                                            const layout::OperationSlot&) const {
    return std::nullopt;
  }
  // Starts what the memory node runs for its clients, if there is something: after format() or mend(). Memory and eras outlive
  // what it returns. corrupt: why the memory cannot be served.
  virtual base::Result<std::unique_ptr<NodeSide>> serve(const layout::Geometry&, base::MutableBytes,
                                                        const base::HashSecret&, const session::EraWords&) const {
    return std::unique_ptr<NodeSide>();
  }
  // Returns the bytes of a region that clients reach.
  virtual layout::Span reachable(const layout::Geometry& geometry, layout::RegionId id) const {
    return geometry.at(id);
  }
  // Write the shape of the table into what the memory node says of itself, and into its entry of a shard map.
  virtual void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeFacts& facts) const = 0;
  virtual void describe(const layout::Geometry& geometry, v1alpha1::MemoryNodeEntry& entry) const = 0;

  // --- The client

  // Opens the table of a memory node, with all that it needs beside the session. The session outlives it.
  virtual std::unique_ptr<Table> open(session::Session& session, const layout::Geometry& geometry,
                                      std::uint32_t table_id) const = 0;
  // Opens a table that outlives its sessions: what it holds at the memory node stays its own when a session is lost.
  // The grant is that of any session there. nullptr: the protocol has none such, and open() makes another table for each
  // session.
  virtual std::unique_ptr<Table> open_lasting(Sessions&, const session::Grant&, const layout::Geometry&,
                                              std::uint32_t) const {
    return nullptr;
  }

 private:
  const layout::Protocol number_;
};

}  // namespace farpool::index
