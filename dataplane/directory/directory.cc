// SPDX-License-Identifier: Apache-2.0
#include "directory/directory.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

namespace farpool::directory {

using base::Code;
using base::Result;
using base::Status;
using layout::EntryWord;
using layout::HomeWord;
using layout::SplitWord;

namespace {

bool exists(std::uint64_t home) { return HomeWord::Exists::get(home) != 0; }

// Collects words that differ from what is there.
class Writer {
 public:
  explicit Writer(const View& view) : view_(view) {}
  void depth(std::uint64_t depth) {
    if (view_.said_depth() != depth) changes_.push_back({0, depth});
  }
  void entry(std::uint64_t index, std::uint64_t before, std::uint64_t table, std::uint64_t depth, bool splitting) {
    if (!EntryWord::says(before, table, depth, splitting)) {
      changes_.push_back({layout::entry_offset(index), EntryWord::of(table, depth, splitting, before)});
    }
  }
  void copy(std::uint64_t index, std::uint64_t word) {
    if (view_.entry(index) != word) changes_.push_back({layout::entry_offset(index), word});
  }
  void home(std::uint64_t table, std::uint64_t word) { record(table, 0, view_.home(table), word); }
  void split(std::uint64_t table, std::uint64_t word) { record(table, layout::kRecordSplit, view_.split(table), word); }
  void progress(std::uint64_t table, std::uint64_t word) {
    record(table, layout::kRecordProgress, view_.progress(table), word);
  }
  WordChanges done() { return std::move(changes_); }

 private:
  void record(std::uint64_t table, std::uint64_t offset, std::uint64_t before, std::uint64_t word) {
    if (before != word) changes_.push_back({layout::record_offset(view_.tables(), table) + offset, word});
  }
  const View& view_;
  WordChanges changes_;
};

// Both halves' entries, new ones first: an old one says nothing that anybody relies on.
void tell_entries(const View& view, Writer& writer, const Split& split, std::uint64_t depth, bool splitting) {
  for (const bool fresh : {true, false}) {
    const std::uint64_t suffix = fresh ? split.suffix_of_target() : split.suffix;
    for (std::uint64_t i = suffix; i < 1ull << depth; i += 1ull << split.depth) {
      // What a doubling of before has copied there.
      const std::uint64_t before = view.entry(depth > view.depth() ? low_bits(i, view.depth()) : i);
      writer.entry(i, before, fresh ? split.to : split.from, split.depth, splitting);
    }
  }
}

// Says whether the first word of the split that makes the table has been written, and no more.
bool about_to_be_told_of(const View& view, std::uint64_t table) {
  const std::uint64_t home = view.home(table), depth = HomeWord::Depth::get(home);
  // New tables have the keys with a 1.
  if (depth == 0 || HomeWord::Suffix::get(home) >> (depth - 1) != 1) return false;
  const std::uint64_t parent = HomeWord::of(depth - 1, low_bits(HomeWord::Suffix::get(home), depth - 1));
  for (std::uint64_t other = 0; other < view.tables(); ++other) {
    if (view.home(other) == parent && view.split(other) == 0) return true;
  }
  return false;
}

std::optional<std::uint64_t> table_for(const View& view, std::uint64_t home) {
  std::optional<std::uint64_t> free;
  for (std::uint64_t table = 0; table < view.tables(); ++table) {
    if (view.home(table) == home) return table;  // a splitter died behind its first word
    if (view.home(table) == 0 && !free) free = table;
  }
  return free;
}

}  // namespace

std::uint64_t View::depth() const { return std::min(word(0), most_depth()); }

std::optional<Route> route(const View& view, std::uint64_t hash) {
  const std::uint64_t entry = view.entry(low_bits(hash, view.depth()));
  const std::uint64_t table = EntryWord::Table::get(entry), depth = EntryWord::Depth::get(entry);
  if (table >= view.tables() || depth > view.depth() || EntryWord::Version::get(entry) == 0) return std::nullopt;
  Route found{.table = table};
  if (EntryWord::Splitting::get(entry) != 0 && depth > 0 && (hash >> (depth - 1) & 1) != 0) {
    const std::uint64_t sibling = EntryWord::Table::get(view.entry(low_bits(hash, depth - 1)));
    if (sibling < view.tables() && sibling != table) found.old = sibling;
  }
  return found;
}

std::vector<std::uint64_t> tables_of_all_times(const View& view, std::uint64_t hash) {
  std::vector<std::uint64_t> tables;
  for (std::uint64_t depth = 0; depth <= view.depth(); ++depth) {
    const std::uint64_t table = EntryWord::Table::get(view.entry(low_bits(hash, depth)));
    if (table < view.tables() && std::find(tables.begin(), tables.end(), table) == tables.end()) {
      tables.push_back(table);
    }
  }
  return tables;
}

std::uint64_t least_depth(const View& view) {
  std::uint64_t least = view.depth();
  for (std::uint64_t i = 0; i < 1ull << view.depth(); ++i) {
    const std::uint64_t entry = view.entry(i), depth = EntryWord::Depth::get(entry);
    least = std::min(least, EntryWord::Splitting::get(entry) != 0 && depth > 0 ? depth - 1 : depth);
  }
  return least;
}

std::uint64_t even_tables(const View& view) {
  for (std::uint64_t table = 0; table < view.tables(); ++table) {
    if (!exists(view.home(table)) || view.split(table) != 0) return 1ull << least_depth(view);
  }
  return view.tables();
}

std::optional<Shallow> shallow_table(const View& view, std::uint64_t depth, std::uint64_t chance) {
  const std::uint64_t entries = 1ull << view.depth();
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::uint64_t entry = view.entry((chance + i) % entries);
    if (EntryWord::Splitting::get(entry) != 0 || EntryWord::Depth::get(entry) >= depth) continue;
    return Shallow{.table = EntryWord::Table::get(entry), .depth = EntryWord::Depth::get(entry)};
  }
  return std::nullopt;
}

void format(base::MutableBytes bytes, std::uint64_t tables, std::uint64_t in_use) {
  const auto depth = static_cast<std::uint64_t>(std::countr_zero(in_use));
  base::store(bytes.data(), depth);
  for (std::uint64_t table = 0; table < in_use; ++table) {
    base::store(bytes.data() + layout::entry_offset(table), EntryWord::of(table, depth, false, 0));
    base::store(bytes.data() + layout::record_offset(tables, table), HomeWord::of(depth, table));
  }
}

std::optional<Split> under_way(const View& view, std::uint64_t table) {
  const std::uint64_t split = view.split(table), target = SplitWord::Target::get(split);
  if (split == 0 || target >= view.tables()) return std::nullopt;
  const std::uint64_t home = view.home(target), depth = HomeWord::Depth::get(home);
  if (!exists(home) || depth == 0 || depth > view.most_depth()) return std::nullopt;
  return Split{table, target, depth, low_bits(HomeWord::Suffix::get(home), depth - 1)};
}

Result<WordChanges> begin(const View& view, std::uint64_t table) {
  const std::uint64_t home = view.home(table);
  std::optional<Split> split = under_way(view, table);
  if (!exists(home) || (view.split(table) != 0 && !split)) {
    return Status(Code::corrupt, "the directory's record of table " + std::to_string(table) + " cannot be");
  }
  Writer writer(view);
  if (!split) {
    bool being_made = about_to_be_told_of(view, table);
    for (std::uint64_t other = 0; other < view.tables(); ++other) {
      being_made |= view.split(other) != 0 && SplitWord::Target::get(view.split(other)) == table;
    }
    if (being_made) {
      return Status(Code::unavailable, "table " + std::to_string(table) + " is itself being made by a split");
    }
    const std::uint64_t depth = HomeWord::Depth::get(home) + 1;
    if (depth > view.most_depth()) {
      return Status(Code::out_of_memory, "table " + std::to_string(table) + " has been split as often as can be");
    }
    split = Split{table, 0, depth, HomeWord::Suffix::get(home)};
    const std::uint64_t home_of_target = HomeWord::of(depth, split->suffix_of_target());
    const auto target = table_for(view, home_of_target);
    if (!target) {
      return Status(Code::out_of_memory, "all " + std::to_string(view.tables()) + " tables have keys already");
    }
    split->to = *target;
    writer.home(split->to, home_of_target);
    writer.progress(table, 0);
    writer.split(table, SplitWord::of(split->to, SplitWord::moving));
  } else if (SplitWord::phase(view.split(table)) != SplitWord::moving) {
    return WordChanges();
  }
  const std::uint64_t depth = view.depth();
  if (split->depth > depth) {  // by one
    for (std::uint64_t i = 0; i < 1ull << depth; ++i) writer.copy(i + (1ull << depth), view.entry(i));
    writer.depth(split->depth);
  }
  tell_entries(view, writer, *split, std::max(depth, split->depth), true);
  return writer.done();
}

WordChanges begin_clearing(const View& view, std::uint64_t table) {
  Writer writer(view);
  writer.progress(table, 0);
  writer.split(table, SplitWord::of(SplitWord::Target::get(view.split(table)), SplitWord::clearing));
  return writer.done();
}

WordChanges end(const View& view, std::uint64_t table) {
  const std::optional<Split> split = under_way(view, table);
  if (!split) return {};
  Writer writer(view);
  writer.split(table, SplitWord::of(split->to, SplitWord::ending));
  writer.home(table, HomeWord::of(split->depth, split->suffix));
  tell_entries(view, writer, *split, view.depth(), false);
  WordChanges changes = writer.done();
  changes.push_back({layout::record_offset(view.tables(), table) + layout::kRecordSplit, 0});
  return changes;
}

// --- What must hold

namespace {

class Verifier {
 public:
  Verifier(const View& view, std::uint64_t rows) : view_(view), rows_(rows), targeted_(view.tables(), false) {}

  std::vector<std::string> run() {
    if (view_.said_depth() > view_.most_depth()) tell("the directory is deeper than it can be");
    for (std::uint64_t table = 0; table < view_.tables(); ++table) look_at_record(table);
    std::vector<bool> named(view_.tables(), false);
    for (std::uint64_t i = 0; i < 1ull << view_.depth(); ++i) {
      const std::uint64_t entry = view_.entry(i), table = EntryWord::Table::get(entry);
      if (table < view_.tables()) named[table] = true;
      if (!right(i, entry)) tell("entry " + std::to_string(i) + " of the directory contradicts the tables' records");
    }
    for (std::uint64_t table = 0; table < view_.tables(); ++table) {
      if (exists(view_.home(table)) && !named[table] && !targeted_[table] && !about_to_be_told_of(view_, table)) {
        tell("no entry of the directory names table " + std::to_string(table));
      }
    }
    return std::move(wrong_);
  }

 private:
  void tell(std::string what) {
    if (wrong_.size() < kMost) wrong_.push_back(std::move(what));
  }
  static constexpr std::size_t kMost = 100;

  bool home_can_be(std::uint64_t home) const {
    const std::uint64_t depth = HomeWord::Depth::get(home);
    return exists(home) && HomeWord::Zero::get(home) == 0 && depth <= view_.most_depth() &&
           HomeWord::Suffix::get(home) >> depth == 0;
  }

  void look_at_record(std::uint64_t table) {
    const std::uint64_t home = view_.home(table), word = view_.split(table);
    const std::string name = "the directory's record of table " + std::to_string(table);
    if (home == 0 && table != 0) {
      if (word != 0 || view_.progress(table) != 0 || view_.owner(table) != 0) tell(name + " is of none that exists");
      return;
    }
    if (!home_can_be(home)) return tell(name + " cannot be");
    if (!homes_.insert(home).second) tell(name + " is that of another table, too");
    if (view_.progress(table) > rows_) tell(name + " tells of rows that there are not");
    if (word == 0) return;
    const std::optional<Split> split = under_way(view_, table);
    const SplitWord::Phase phase = SplitWord::phase(word);
    const std::uint64_t depth = HomeWord::Depth::get(home);
    if (SplitWord::Zero::get(word) != 0 || phase == SplitWord::none || !split || split->to == table ||
        !home_can_be(view_.home(split->to)) ||
        HomeWord::Suffix::get(view_.home(split->to)) != split->suffix_of_target() ||
        HomeWord::Suffix::get(home) != split->suffix ||
        !(depth == split->depth - 1 || (phase == SplitWord::ending && depth == split->depth))) {
      return tell(name + " tells of a split that cannot be");
    }
    if (targeted_[split->to]) tell("two splits make table " + std::to_string(split->to));
    targeted_[split->to] = true;
    splits_.push_back(*split);
  }

  // Says whether what the entry says is true, or about to be.
  bool right(std::uint64_t index, std::uint64_t entry) const {
    const std::uint64_t table = EntryWord::Table::get(entry), depth = EntryWord::Depth::get(entry);
    const bool splitting = EntryWord::Splitting::get(entry) != 0;
    if (table >= view_.tables() || depth > view_.depth() || !exists(view_.home(table))) return false;
    for (const Split& split : splits_) {
      if (low_bits(index, split.depth - 1) != split.suffix) continue;
      const SplitWord::Phase phase = SplitWord::phase(view_.split(split.from));
      const bool told = table == (split.moves(index) ? split.to : split.from) && depth == split.depth &&
                        (splitting || phase == SplitWord::ending);
      const bool untold = table == split.from && depth == split.depth - 1 && !splitting && phase == SplitWord::moving;
      return told || untold;
    }
    return !splitting && depth == HomeWord::Depth::get(view_.home(table)) &&
           low_bits(index, depth) == HomeWord::Suffix::get(view_.home(table));
  }

  const View& view_;
  const std::uint64_t rows_;
  std::unordered_set<std::uint64_t> homes_;
  std::vector<bool> targeted_;
  std::vector<Split> splits_;
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> verify(const View& view, std::uint64_t rows_per_table) {
  return Verifier(view, rows_per_table).run();
}

}  // namespace farpool::directory
