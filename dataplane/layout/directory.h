// SPDX-License-Identifier: Apache-2.0
// The bytes of the directory: which table has which keys. Extendible hashing: the low bits of a key's directory hash
// choose an entry, the entry names a table. It knows nothing of what a table's rows hold.
//
// OFFSET      SIZE      the directory region; E = 2^most_depth entries, N tables
//      0         8      depth: the low bits that choose an entry; entries from 2^depth on are not in use
//      8       8*E      entries
//    8+8*E    32*N      records, one for each table
//    ...         8      the last move of keys to other memory nodes that is finished (docs/adr/0012)
//
// Entries are hints: a reader that is led to the wrong table finds out from the table's rows. The holder of a table's
// lease relies on records. Only the holder of a lease writes a word (layout/lease.h), and any client may read it at any
// time.
#pragma once

#include <bit>
#include <cstdint>

#include "layout/lease.h"
#include "layout/word.h"

namespace farpool::layout {

inline constexpr std::uint64_t kMostTables = 1 << 14;

//    63                    39   38     37       32 31                             0
//   +------------------------+----------+----------+-------------------------------+
//   | version             25 | split  1 | depth  6 | table                      32 |
//   +------------------------+----------+----------+-------------------------------+
// The table has the keys whose hash has the entry's index in its low `depth` bits. While `splitting`, the table is one
// of the two of a split: rows of the new one may still lie in the old one.
struct EntryWord {
  using Table = Field<0, 32>;
  using Depth = Field<32, 6>;
  using Splitting = Field<38, 1>;
  using Version = Field<39, 25>;  // goes up with every change
  static_assert(tiles_a_word<Table, Depth, Splitting, Version>);
  static constexpr std::uint64_t of(std::uint64_t table, std::uint64_t depth, bool splitting, std::uint64_t before) {
    return Table::put(table) | Depth::put(depth) | Splitting::put(splitting ? 1 : 0) |
           Version::put(Version::get(before) + 1);
  }
  static constexpr bool says(std::uint64_t word, std::uint64_t table, std::uint64_t depth, bool splitting) {
    return Table::get(word) == table && Depth::get(word) == depth && (Splitting::get(word) != 0) == splitting;
  }
};

// Which keys a table has: those whose directory hash ends in the suffix. 0: there is no such table yet; numbers are
// never used again.
struct HomeWord {
  using Depth = Field<0, 6>;
  using Exists = Field<6, 1>;
  using Zero = Field<7, 25>;
  using Suffix = Field<32, 32>;
  static_assert(tiles_a_word<Depth, Exists, Zero, Suffix>);
  static constexpr std::uint64_t of(std::uint64_t depth, std::uint64_t suffix) {
    return Depth::put(depth) | Exists::put(1) | Suffix::put(suffix);
  }
};

// A split of the table that is under way. 0: none.
struct SplitWord {
  enum Phase : std::uint64_t {
    none = 0,
    moving = 1,    // rows before `progress` have been moved
    clearing = 2,  // all have been; copies that are left behind go, those in rows before `progress` have gone
    ending = 3,    // the entries change
  };
  using Target = Field<0, 32>;
  using PhaseOf = Field<32, 2>;
  using Zero = Field<34, 30>;
  static_assert(tiles_a_word<Target, PhaseOf, Zero>);
  static constexpr std::uint64_t of(std::uint64_t target, Phase phase) {
    return Target::put(target) | PhaseOf::put(phase);
  }
  static constexpr Phase phase(std::uint64_t word) { return static_cast<Phase>(PhaseOf::get(word)); }
};

// OFFSET SIZE  record of a table
//      0    8  home
//      8    8  split
//     16    8  progress   of the phase: a row
//     24    8  owner      incarnation of the one client that may change the table; 0: any may
inline constexpr std::uint64_t kRecordBytes = 32;
inline constexpr std::uint64_t kRecordSplit = 8, kRecordProgress = 16, kRecordOwner = 24;

// Tables of equal size fill alike, so their depths differ by little; two more than they need if all were alike.
constexpr std::uint64_t most_depth(std::uint64_t tables) {
  return tables == 1 ? 0 : static_cast<std::uint64_t>(std::bit_width(tables)) + 1;
}
constexpr std::uint64_t entry_offset(std::uint64_t index) { return 8 + 8 * index; }
constexpr std::uint64_t record_offset(std::uint64_t tables, std::uint64_t table) {
  return 8 + (8ull << most_depth(tables)) + kRecordBytes * table;
}
constexpr std::uint64_t move_offset(std::uint64_t tables) { return record_offset(tables, tables); }
constexpr std::uint64_t directory_bytes(std::uint64_t tables) { return move_offset(tables) + 8; }

// The greatest number of a move between memory nodes that a bucket's header, or a row's version, can hold.
inline constexpr std::uint64_t kMostMoves = (1 << 23) - 1;

// The lease of a table: only its holder splits the table, or moves keys of its rows elsewhere. The first lease word is
// the directory's own: its holder writes depth, homes and entries. Tables of the same lease wait for each other. A
// protocol with locks has no directory that changes, so these are the words of repair leases.
inline constexpr std::uint64_t kDirectoryLease = 0;
constexpr std::uint64_t table_lease(std::uint64_t table) { return 1 + table % (kRepairLeases - 1); }

}  // namespace farpool::layout
