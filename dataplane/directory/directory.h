// SPDX-License-Identifier: Apache-2.0
// The directory as words (layout/directory.h): where a key's table is, and which words a split changes, in which order.
// Pure; functions that read may be given any bytes.
//
// A split is a list of words to be written, made from the directory as it is. A client that takes over a dead client's
// split makes the list again from what it finds, without the words that have been written. So a splitter may die behind
// any word, and between any two words a reader is led to a table that has its key, or to both of a split.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/result.h"
#include "layout/directory.h"

namespace farpool::directory {

class View {
 public:
  // A view of a whole region, or, for readers of entries alone, of as much as its depth needs.
  View(base::Bytes bytes, std::uint64_t tables) : bytes_(bytes), tables_(tables) {}

  std::uint64_t tables() const { return tables_; }
  std::uint64_t most_depth() const { return layout::most_depth(tables_); }
  // As far as it can be.
  std::uint64_t depth() const;
  std::uint64_t said_depth() const { return word(0); }
  std::uint64_t entry(std::uint64_t index) const { return word(layout::entry_offset(index)); }
  std::uint64_t home(std::uint64_t table) const { return word(record(table)); }
  std::uint64_t split(std::uint64_t table) const { return word(record(table) + layout::kRecordSplit); }
  std::uint64_t progress(std::uint64_t table) const { return word(record(table) + layout::kRecordProgress); }
  std::uint64_t owner(std::uint64_t table) const { return word(record(table) + layout::kRecordOwner); }

 private:
  std::uint64_t word(std::uint64_t offset) const { return base::load<std::uint64_t>(bytes_.data() + offset); }
  std::uint64_t record(std::uint64_t table) const { return layout::record_offset(tables_, table); }
  base::Bytes bytes_;
  std::uint64_t tables_;
};

// Returns the bits of a key's hash that the directory uses. The map has chosen the memory node by the low bits of the
// same hash: within one memory node all keys are alike in them.
constexpr std::uint64_t hash_of(std::uint64_t pool_hash) { return pool_hash >> 32; }
inline std::uint64_t hash_of(const base::HashSecret& pool_secret, base::Bytes key) {
  return hash_of(base::keyed_hash(pool_secret, key));
}

constexpr std::uint64_t low_bits(std::uint64_t hash, std::uint64_t depth) { return hash & ((1ull << depth) - 1); }

struct Route {
  std::uint64_t table = 0;
  // The table of the split under way, where rows of `table` may still lie.
  std::optional<std::uint64_t> old;
  friend bool operator==(const Route&, const Route&) = default;
};
// Nothing: the entry names no table. A reader that is older than a doubling may meet that, or the directory is damaged.
std::optional<Route> route(const View& view, std::uint64_t hash);

// Returns every table that has, or once had, the key: in each split the old table keeps the keys with a 0.
std::vector<std::uint64_t> tables_of_all_times(const View& view, std::uint64_t hash);

// Returns how often each table has been split, at least. A split that is under way does not count.
std::uint64_t least_depth(const View& view);
// Returns how many tables, a power of two, share all keys evenly; all tables, once none is left to split another into.
std::uint64_t even_tables(const View& view);
// Returns a table that has been split fewer times than wanted and that nobody splits, one of several by `chance`.
// Nothing: there is none.
struct Shallow {
  std::uint64_t table = 0;
  std::uint64_t depth = 0;
};
std::optional<Shallow> shallow_table(const View& view, std::uint64_t depth, std::uint64_t chance);

// Makes a directory in which so many tables, a power of two, share all keys, as if one had been split into them.
// `bytes` are zero.
void format(base::MutableBytes bytes, std::uint64_t tables, std::uint64_t in_use = 1);

struct WordChange {
  std::uint64_t offset = 0;
  std::uint64_t word = 0;
};
using WordChanges = std::vector<WordChange>;

// What a split of `from` makes of its keys: those with a 1 behind the old suffix go to `to`.
struct Split {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t depth = 0;   // of both, afterwards
  std::uint64_t suffix = 0;  // of `from`; of `to` with the 1 before it
  std::uint64_t suffix_of_target() const { return suffix | 1ull << (depth - 1); }
  bool moves(std::uint64_t hash) const { return low_bits(hash, depth) == suffix_of_target(); }
};
// The split of `table` that is under way.
std::optional<Split> under_way(const View& view, std::uint64_t table);

// The words that begin a split of `table`, or go on beginning it. The caller holds the leases of table and directory,
// and writes them in this order. Rows are moved once all are there. Errors: out_of_memory (no table is left, or the
// suffix is as long as it can be), unavailable (the table is the new one of a split that is under way), corrupt.
base::Result<WordChanges> begin(const View& view, std::uint64_t table);
// Between the phases: all rows have been moved. The table's lease suffices.
WordChanges begin_clearing(const View& view, std::uint64_t table);
// All rows have been cleared. Both leases.
WordChanges end(const View& view, std::uint64_t table);

// Returns what is wrong in a directory that nobody changes, a sentence each. Splits may be under way.
std::vector<std::string> verify(const View& view, std::uint64_t rows_per_table);

}  // namespace farpool::directory
