// SPDX-License-Identifier: Apache-2.0
// What is found when a table's bytes are looked through while nobody changes them, whatever the protocol. For memory
// nodes that take their memory up again, tests, simulation and offline checkers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace farpool::index {

// One key, where it lies. The views are into the image.
struct Sighting {
  std::string_view key;
  std::string_view value;
  std::uint64_t row = 0;          // or group
  std::uint64_t slot = 0;         // in it
  std::uint64_t block = 0;        // in units, if it has an extent
  std::uint64_t block_bytes = 0;  // 0: in place
};

// Which units of the heap index entries point to: the blocks that are in use.
class Reached {
 public:
  explicit Reached(std::uint64_t heap_bytes);
  bool at(std::uint64_t unit) const { return (words_[unit / 64] >> (unit % 64) & 1) != 0; }
  bool any(std::uint64_t first, std::uint64_t count) const;
  std::uint64_t units() const { return units_; }
  // False, if another entry points to one of the units. All are marked.
  bool mark(std::uint64_t first, std::uint64_t count);
  void clear(std::uint64_t first, std::uint64_t count);

 private:
  std::uint64_t units_;
  std::vector<std::uint64_t> words_;
};

struct Report {
  static constexpr std::size_t kMostDefects = 100;

  explicit Report(std::uint64_t heap_bytes) : reached(heap_bytes) {}
  void defect(std::string what) {
    if (++defect_count <= kMostDefects) defects.push_back(std::move(what));
  }

  std::uint64_t rows = 0;
  std::uint64_t torn_rows = 0;  // whose entries nobody can read
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of keys and values
  std::uint64_t extents = 0;
  // Torn rows and keys that lie twice, where an operation was under way; tentative slots.
  std::uint64_t unfinished = 0;
  Reached reached;  // also by entries that have a defect, as far as they can be read
  // Each says which place is wrong and how; never key or value bytes. The first of them, and how many there are.
  std::vector<std::string> defects;
  std::uint64_t defect_count = 0;
};

struct Verification {
  std::function<void(const Sighting&)> visit;
  // Told of now and then: how many rows have been looked at.
  std::function<void(std::uint64_t rows)> progress;
  // Whether an operation that was under way may have left this row half written, or a key of it twice.
  std::function<bool(std::uint64_t row)> held;
};

}  // namespace farpool::index
