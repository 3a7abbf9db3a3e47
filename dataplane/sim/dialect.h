// SPDX-License-Identifier: Apache-2.0
// What worlds and judges know of one index protocol: how its worlds are drawn, where its keys can lie, which branches
// its operations have, which small worlds are explored, and what a death may leave. A protocol has two files, and a
// line in dialect.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "index/table.h"
#include "layout/geometry.h"
#include "layout/operation_slot.h"
#include "sim/crash.h"
#include "sim/explore.h"
#include "sim/history.h"
#include "sim/setting.h"
#include "sim/world.h"

namespace farpool::sim {

class Dialect {
 public:
  virtual ~Dialect() = default;

  // Names the protocol, for people.
  virtual std::string title() const = 0;

  // --- What the protocol does not have yet

  // Says whether a scan's positions are in the order of rows, so that some rows are a part of a scan.
  virtual bool scans_by_rows() const { return true; }
  // Says whether random worlds come to what this mark counts; otherwise the protocol's own tests do.
  virtual bool comes_to(std::uint64_t index::Marks::* /*mark*/) const { return true; }

  // Say whether its clients empty segments of the heap, and whether they clear marks of rows that have become empty.
  virtual bool compacts() const { return true; }
  virtual bool clears() const { return true; }

  // --- Random worlds

  // Changes what a seed has drawn to suit the protocol. It draws more from streams of its own.
  virtual void adapt(SwarmSetting&, std::uint64_t /*seed*/) const {}
  virtual void adapt(PoolSetting& setting, std::uint64_t seed) const = 0;
  // Says whether all places of the key are among these rows of its table.
  virtual bool within(const World& world, std::string_view key, std::uint64_t first, std::uint64_t rows) const = 0;

  // --- Small worlds

  // Returns the worlds whose every order is explored.
  virtual std::vector<SmallWorld> small_worlds() const = 0;

  // --- Judges

  // Returns how many trips a call may need when nothing is in its way; nothing if there is no such limit.
  virtual std::optional<std::uint32_t> trips(const layout::Geometry& geometry, const Call& call,
                                             const std::optional<std::string>& found) const = 0;
  // Says whether the end of so many clients explains counters that are off by so many keys.
  virtual bool explains_counters(std::int64_t /*keys_off*/, std::uint64_t /*ended*/) const { return false; }
  // Returns the rows that a death left half written.
  virtual std::set<std::uint64_t> torn_rows(const World&) const { return {}; }
  // Says whether an operation under way is in the way of another one of its key.
  virtual bool hinders(const World& world) const = 0;
  // Returns the contradictions between the table before and after an operation.
  virtual std::vector<std::string> impossible_rows(const layout::Geometry&, base::Bytes /*before*/,
                                                   base::Bytes /*after*/) const {
    return {};
  }
  // Returns the differences between the two tables that a dead client's operation slot does not explain.
  virtual std::vector<std::string> unexplained(const layout::Geometry&, base::Bytes /*before*/, base::Bytes /*after*/,
                                               const layout::OperationSlot&) const {
    return {"an operation slot says something, and operations of this protocol say nothing there"};
  }

  // --- Deaths

  // Returns the branches that only this protocol has.
  virtual std::vector<Scenario> scenarios(std::uint64_t seed) const = 0;

  // --- Stories

  // Names a place of the table region.
  virtual std::string name_row(const layout::Geometry& geometry, std::uint64_t offset, std::uint64_t bytes) const = 0;
};

const Dialect& dialect_of(layout::Protocol protocol);
// Names the protocol in stories and sums. The first protocol has no name there.
std::string title_of(layout::Protocol protocol);
// Returns the argument of simulate that chooses the protocol, with a blank behind it. The first protocol needs none.
std::string flag_of(layout::Protocol protocol);

}  // namespace farpool::sim
