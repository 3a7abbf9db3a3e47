// SPDX-License-Identifier: Apache-2.0
// Works out, from a dead client's plan and the rows alone, what is left to do. Pure functions: clients repair with them
// while others work, a memory node that took its memory up repairs everything at once, and offline checkers judge with
// them.
//
// Rows change one at a time and in order. So the rows before some place are in their new state, those behind it in
// their old state, and at most the one between them is torn. However many have landed, the operation is finished, never
// undone: the plan is whole, and so is the new entry's extent. The paper's four states (section 4.2), which guess from
// duplicates and bad checksums, do not occur.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "index/image.h"
#include "layout/geometry.h"
#include "layout/operation_slot.h"

namespace farpool::rcuckoo {

// Returns the checksum of what stays unchanged when `slot` of a row changes.
std::uint64_t rest_of(const layout::Geometry& geometry, base::Bytes row, std::uint64_t slot);
// Returns the checksum for a WRITE that changes none of its entries.
std::uint64_t entries_of(base::Bytes row);

// Returns the rows of a plan in the order of their WRITEs; nothing if it cannot be a plan of this geometry.
std::optional<std::vector<std::uint64_t>> rows_of(const layout::Geometry& geometry, const layout::OperationSlot& slot);

struct Finish {
  std::string unexplained;  // if not empty: what no crash leaves; no row was edited
  std::size_t first = 0;    // rows from this one on were edited and are to be written, in order
};
// Edits the rows that are not in their new state. `rows` are the bytes of rows_of(), read under the dead client's
// locks.
Finish finish_rows(const layout::Geometry& geometry, const layout::OperationSlot& slot,
                   std::span<const base::MutableBytes> rows);

using index::HalfDone;
// Finds the half-done operations. `memory` is all of the node's regions, cut by `geometry`, with any bytes.
HalfDone half_done(const layout::Geometry& geometry, base::Bytes memory);

// The result of a repair that finishes what it can, and frees what was locked: for a memory node's new process over the
// memory of its predecessor. Only slots say what was locked: lock words may have been lost.
struct ImageRepair {
  std::uint64_t slots = 0;     // repaired
  std::uint64_t finished = 0;  // of them in the middle of writing rows
  std::uint64_t bits = 0;      // lock bits that stood
  // Slots that no crash explains; they and their locks stay, and everything else is repaired as if they did not exist.
  std::vector<std::string> quarantined;
};
// Repairs a memory. If it is cut short after any word, half_done() finds the rest and another call repairs it: rows are
// written before the word that says so, locks are freed while their slots still name them, and slots are cleared last.
ImageRepair repair_image(const layout::Geometry& geometry, base::MutableBytes memory);

}  // namespace farpool::rcuckoo
