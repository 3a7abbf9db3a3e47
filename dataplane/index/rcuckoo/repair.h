// SPDX-License-Identifier: Apache-2.0
// Finds out what a dead client's plan leaves to be done, from the plan and the rows alone. Pure functions: clients
// repair with them while others work, a memory node that found its memory again repairs all of it at once, and offline
// checkers judge with them.
//
// One row changes at a time and in order, so the rows before some place are as after, those behind it as before, and at
// most the one between them is torn. However many landed, the operation is finished, never undone: the plan is
// whole, so the new entry's extent is, too. The paper's four states (section 4.2), which guess from duplicates and bad
// checksums, do not arise.
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

// Checksum of what stays as it is when `slot` of a row changes.
std::uint64_t rest_of(const layout::Geometry& geometry, base::Bytes row, std::uint64_t slot);
// And when none of its entries does.
std::uint64_t entries_of(base::Bytes row);

// The rows of a plan in the order in which they are written; nothing if it cannot be a plan of this geometry.
std::optional<std::vector<std::uint64_t>> rows_of(const layout::Geometry& geometry, const layout::OperationSlot& slot);

struct Finish {
  std::string unexplained;  // if not empty: what no crash leaves; no row was edited
  std::size_t first = 0;    // rows from this one on were edited and are to be written, in order
};
// Edits the rows that are not as after the operation. `rows` are the bytes of rows_of(), read under the dead's locks.
Finish finish_rows(const layout::Geometry& geometry, const layout::OperationSlot& slot,
                   std::span<const base::MutableBytes> rows);

using index::HalfDone;
// `memory` is all of the node's regions, cut by `geometry`, and any bytes.
HalfDone half_done(const layout::Geometry& geometry, base::Bytes memory);

// Repairs all of it: finishes what can be finished, and frees what was locked. For a memory node's new process over the
// memory of its last. Only slots say what was locked: lock words may have been lost.
struct ImageRepair {
  std::uint64_t slots = 0;     // repaired
  std::uint64_t finished = 0;  // of them in the middle of writing rows
  std::uint64_t bits = 0;      // lock bits that stood
  // Slots that no crash explains; they and their locks stay, everything else is as if they were not.
  std::vector<std::string> quarantined;
};
// If it is cut short after any word, half_done() finds the rest and another call repairs it: rows come before the word
// that says that they are done, locks are freed while their slots still name them, and slots are cleared last.
ImageRepair repair_image(const layout::Geometry& geometry, base::MutableBytes memory);

}  // namespace farpool::rcuckoo
