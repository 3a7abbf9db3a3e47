// SPDX-License-Identifier: Apache-2.0
// How a memory node's memory is cut into regions. Pure: the same request gives the same geometry everywhere.
//
//   | superblock | operation slots | repair leases | locks | tables: rows | directory | heap: segments | private page |
//
// Every region begins on a page. The last page of the memory is in no region (layout/private_page.h). Tables and
// lock bits share the tables' percentage; the heap takes what is left. Where the memory node executes the operations
// (layout::Served), rows lie in the heap, and a session has one operation slot, which it never uses.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "layout/protocol.h"
#include "layout/regions.h"
#include "layout/word.h"

namespace farpool::layout {

inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kMaxEntriesPerRow = 16;
inline constexpr std::uint64_t kMaxEntryBytes = 64;
inline constexpr std::uint64_t kMaxRowsPerLock = 64;

// Behind the rows of the table region lie their marks, a MarkWord for a stretch of rows. A mark that is not set: the rows
// are empty. A client that puts the first entry there sets the mark ahead of it, in the same chain. So scans pass over
// what is not used (docs/adr/0018). Where there are several tables, rows are numbered within one: all tables share
// marks, and a split changes none.
inline constexpr std::uint64_t kFewestRowsPerMark = 8;
inline constexpr std::uint64_t kMostMarks = 1 << 17;  // 1 MiB of them

//    63            48 47                                              0
//   +----------------+-------------------------------------------------+
//   | generation  16 | times set                                    48 |
//   +----------------+-------------------------------------------------+
// A mark is set if it has been set once or more since it was cleared. Clients change it by atomics alone: they set it by
// an FAA, and clear it by a CAS to the next generation, which fails if the mark has been set meanwhile (docs/adr/0029).
// Only a memory node that serves no client yet stores a mark.
struct MarkWord {
  using TimesSet = Field<0, 48>;
  using Generation = Field<48, 16>;
  static_assert(tiles_a_word<TimesSet, Generation>);
  static constexpr std::uint64_t kSetOnce = TimesSet::put(1);  // what an FAA adds
  static constexpr bool is_set(std::uint64_t word) { return TimesSet::get(word) != 0; }
  static constexpr std::uint64_t cleared(std::uint64_t word) { return Generation::put(Generation::get(word) + 1); }
};

struct GeometryRequest {
  std::uint64_t memory_bytes = 0;  // a multiple of the page
  std::uint64_t table_percent = 25;
  std::uint64_t entry_bytes = 16;
  std::uint64_t entries_per_row = 8;
  std::uint64_t rows_per_lock = 16;
  std::uint64_t max_sessions = 256;
  // Changes that a client has under way in this node at once; 0: 64, or fewer, but not fewer than 16, where they would
  // take more than a sixteenth of the memory.
  std::uint64_t slots_per_session = 0;
  std::uint64_t max_lock_bytes =
      0;  // of the lock region; 0: one bit for every lock. Fewer bits than locks are shared (virtual locks)
  // The sizes of entries and rows are ignored where the protocol has its own (Shape::fixed), and max_lock_bytes where
  // it has no locks.
  Protocol protocol{};
  // A power of two. Table 0 has all keys at first; the others are there for splits, where the protocol has such.
  std::uint64_t tables = 1;
};

struct Span {
  std::uint64_t offset = 0;  // in the node's memory
  std::uint64_t bytes = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

struct Geometry {
  std::uint64_t memory_bytes = 0;
  Protocol protocol{};
  std::uint64_t entry_bytes = 0;
  std::uint64_t entries_per_row = 0;
  std::uint64_t rows_per_lock = 0;
  std::uint64_t rows = 0;       // of all tables together
  std::uint64_t tables = 0;     // of equal size, one behind the other
  std::uint64_t lock_bits = 0;  // physical; logical lock l is bit l mod lock_bits
  std::uint64_t max_sessions = 0;
  std::uint64_t slots_per_session = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t segments = 0;
  std::array<Span, kRegions> region{};  // by RegionId

  const Shape& shape() const { return shape_of(protocol); }  // the protocol must be known
  std::uint64_t row_bytes() const { return entry_bytes * entries_per_row + shape().row_trailer; }
  std::uint64_t locks() const { return shape().locks ? (rows + rows_per_lock - 1) / rows_per_lock : 1; }  // logical
  constexpr std::uint64_t entries() const { return rows * entries_per_row; }
  constexpr std::uint64_t rows_per_table() const { return rows / tables; }
  constexpr std::uint64_t rows_per_mark() const {
    return std::max(kFewestRowsPerMark, std::bit_ceil((rows_per_table() + kMostMarks - 1) / kMostMarks));
  }
  std::uint64_t marks() const {
    return shape().served != nullptr ? 0 : (rows_per_table() + rows_per_mark() - 1) / rows_per_mark();
  }
  constexpr std::uint64_t mark_of(std::uint64_t row) const { return row / rows_per_mark(); }  // of a row of a table
  std::uint64_t mark_offset(std::uint64_t mark) const {                                       // in the table region
    return rows * row_bytes() + mark * 8;
  }
  std::uint64_t table_bytes() const {
    return shape().served != nullptr ? shape().served->table_bytes(rows) : mark_offset(marks());
  }
  const Span& at(RegionId id) const { return region[id]; }
  constexpr std::uint64_t private_page() const { return memory_bytes - kPage; }  // offset in the node's memory

  friend bool operator==(const Geometry&, const Geometry&) = default;
};
static_assert(base::wire_safe<Geometry> && sizeof(Geometry) == 8 * 26);

// Cuts the memory. invalid_argument says which figure cannot work, and what would.
base::Result<Geometry> plan_geometry(const GeometryRequest& request);

// Says whether a geometry that came from elsewhere hangs together: nothing overlaps, everything lies within the memory.
base::Status check_geometry(const Geometry& geometry);

}  // namespace farpool::layout
