// SPDX-License-Identifier: Apache-2.0
// Finds the place of an insert: a cuckoo path, guessed from what the client remembers, or found among rows that it
// fetches for that. Internal to the room.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "index/rcuckoo/state.h"

namespace farpool::rcuckoo {

class Planner {
 public:
  Planner(Table::State& state, Places places) : state_(state), roots_{places.first, places.second} {}

  // Uses memory alone. Presumes that unknown rows have room.
  bool speculate(Path& path);

  // Fetches, without locks, every row that the search looks at. Returns false only if there is no path among them: the
  // table is full for this key.
  Task<Result<bool>> explore(Path& path, Nanos deadline, Cost& cost);

  // Searches only among the given rows, which are held and have just been read. `at` returns a row's bytes, or none.
  template <class At>
  bool search_held(const At& at, Path& path);

 private:
  Task<Status> fetch(std::span<const std::uint64_t> rows, Nanos deadline, Cost& cost);

  Table::State& state_;
  const std::array<std::uint64_t, 2> roots_;
  std::unordered_map<std::uint64_t, std::vector<std::byte>> fetched_;
  // A row that was torn when it was last fetched, if there was one.
  struct Torn {
    std::uint64_t row = 0;
    std::uint64_t checksum = 0;
  };
  std::optional<Torn> torn_;
};

// The searches share this: how to look into a row's bytes, and that an operation slot must be able to name the locks.
template <class At, Sight kOther>
class RowsAt {
 public:
  RowsAt(Table::State& state, std::span<const std::uint64_t> roots, const At& at, unsigned max_words)
      : state_(state), roots_(roots), at_(at), max_words_(max_words) {}

  Sight sight(std::uint64_t row) { return at_(row).empty() ? kOther : Sight::known; }
  int empty_slot(std::uint64_t row) { return RowView(state_.geometry, at_(row)).empty_slot(); }
  std::uint64_t alternate(std::uint64_t row, std::uint64_t slot) {
    const Entry entry = RowView(state_.geometry, at_(row)).entry(slot);
    return displaced_to(hash_of(entry, state_.seed()), row, state_.geometry.rows);
  }
  bool accepts(const Path& path) {
    std::array<std::uint64_t, Path::kMaxSteps + 2> words{};
    std::size_t count = 0;
    for (const Displacement& step : path.steps()) words[count++] = word_of(step.row);
    for (const std::uint64_t root : roots_) words[count++] = word_of(root);
    std::sort(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count));
    const auto end = std::unique(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<std::size_t>(end - words.begin()) <= max_words_;
  }

 private:
  std::uint64_t word_of(std::uint64_t row) const {
    return lock_bit(state_.geometry, lock_of(state_.geometry, row)).offset;
  }
  Table::State& state_;
  std::span<const std::uint64_t> roots_;
  const At& at_;
  unsigned max_words_;
};

template <class At>
bool Planner::search_held(const At& at, Path& path) {
  RowsAt<At, Sight::excluded> rows(state_, roots_, at, layout::OperationSlot::kLockWords);
  return state_.search.find(rows, state_.geometry.entries_per_row, roots_, kDepth, path);
}

}  // namespace farpool::rcuckoo
