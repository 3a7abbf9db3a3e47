// SPDX-License-Identifier: Apache-2.0
// Structs of counters that are described by one table each: sums, metrics, stories and judges go through the table, so
// that a counter is added in one place.
//
//   struct Marks { std::uint64_t splits = 0; ... };
//   inline constexpr auto kMarks = std::to_array<base::Count<Marks>>({{&Marks::splits, "splits", "Splits begun."}, ...});
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/counter.h"

namespace farpool::base {

// What alone makes a counter count.
enum class Cause : std::uint8_t {
  any,
  scan,        // nothing but scans
  contention,  // an attempt that another client's change has made fail
};

template <class Counts>
struct Count {
  std::uint64_t Counts::*value;
  std::string_view name;        // in snake case, as in the name of its metric
  std::string_view help;        // a sentence for people who read metrics
  std::string_view owner = {};  // what alone counts it, by name; empty: several do
  Cause cause = Cause::any;
};

// Adds each counter of `more` to `sum`.
template <class Counts, std::size_t kCount>
void add_counts(const std::array<Count<Counts>, kCount>& table, Counts& sum, const Counts& more) {
  for (const Count<Counts>& count : table) sum.*count.value += more.*count.value;
}

// Returns the sum of the counters that have this cause.
template <class Counts, std::size_t kCount>
std::uint64_t sum_of(const std::array<Count<Counts>, kCount>& table, const Counts& counts, Cause cause) {
  std::uint64_t sum = 0;
  for (const Count<Counts>& count : table) sum += count.cause == cause ? counts.*count.value : 0;
  return sum;
}

// Returns a counter's name with blanks, for sentences.
inline std::string words_of(std::string_view name) {
  std::string words(name);
  for (char& c : words) c = c == '_' ? ' ' : c;
  return words;
}

// Returns "splits 3, rows torn 0, ..." in the order of the table.
template <class Counts, std::size_t kCount>
std::string describe_counts(const std::array<Count<Counts>, kCount>& table, const Counts& counts) {
  std::string text;
  for (const Count<Counts>& count : table) {
    text += (text.empty() ? "" : ", ") + words_of(count.name) + " " + std::to_string(counts.*count.value);
  }
  return text;
}

// Returns the names of the counters that are 0, among the ones that `wanted` chooses.
template <class Counts, std::size_t kCount, class Wanted>
std::vector<std::string> never_counted(const std::array<Count<Counts>, kCount>& table, const Counts& counts,
                                       const Wanted& wanted) {
  std::vector<std::string> never;
  for (const Count<Counts>& count : table) {
    if (counts.*count.value == 0 && wanted(count)) never.push_back(words_of(count.name));
  }
  return never;
}

// Counters of a table that one thread sets and others read.
template <class Counts, std::size_t kCount>
class PublishedCounts {
 public:
  explicit PublishedCounts(const std::array<Count<Counts>, kCount>& table) : table_(table) {}

  void set(const Counts& counts) {
    for (std::size_t i = 0; i < kCount; ++i) values_[i].set(counts.*table_[i].value);
  }
  // By the place in the table.
  std::uint64_t get(std::size_t i) const { return values_[i].get(); }
  // Returns 0 for a counter that the table does not have.
  std::uint64_t get(std::uint64_t Counts::*value) const {
    for (std::size_t i = 0; i < kCount; ++i) {
      if (table_[i].value == value) return values_[i].get();
    }
    return 0;
  }

 private:
  const std::array<Count<Counts>, kCount>& table_;
  std::array<Counter, kCount> values_;
};

// Counters of a table that one thread at a time adds to and any thread reads.
template <const auto& kTable>
class SharedCounts {
 public:
  template <auto kValue>
  void add(std::uint64_t amount = 1) {
    values_[place_of<kValue>()].add(amount);
  }
  template <class Counts>
  void add_to(Counts& sum) const {
    for (std::size_t i = 0; i < values_.size(); ++i) sum.*kTable[i].value += values_[i].get();
  }

 private:
  template <auto kValue>
  static consteval std::size_t place_of() {
    for (std::size_t i = 0; i < kTable.size(); ++i) {
      if (kTable[i].value == kValue) return i;
    }
    throw "the table lacks this counter";
  }

  std::array<Counter, kTable.size()> values_;
};

}  // namespace farpool::base
