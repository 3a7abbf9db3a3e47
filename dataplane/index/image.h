// SPDX-License-Identifier: Apache-2.0
// What a look through a table's bytes finds while nobody changes them, in any protocol: for memory nodes that take
// their memory up again, tests, simulation and offline checkers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "layout/operation_slot.h"

namespace farpool::index {

// One key, in its place. The views are into the image, or into the rows that replace those of the image.
struct Sighting {
  std::string_view key;
  std::string_view value;
  std::uint64_t row = 0;          // or group
  std::uint64_t slot = 0;         // in it
  std::uint64_t block = 0;        // in units, if it has an extent
  std::uint64_t block_bytes = 0;  // 0: in place
};

// The units of the heap that index entries point to: the blocks in use.
class Reached {
 public:
  explicit Reached(std::uint64_t heap_bytes);
  bool at(std::uint64_t unit) const { return (words_[unit / 64] >> (unit % 64) & 1) != 0; }
  bool any(std::uint64_t first, std::uint64_t count) const;
  std::uint64_t units() const { return units_; }
  // Marks all units. Returns false if another entry points to one of them.
  bool mark(std::uint64_t first, std::uint64_t count);
  void clear(std::uint64_t first, std::uint64_t count);

 private:
  std::uint64_t units_;
  std::vector<std::uint64_t> words_;
};

// The unfinished operations that operation slots name, in a memory that no client changes any more, and their outcome:
// every claim is a dead client's.
struct HalfDone {
  enum class State : std::uint8_t {
    begun,        // its claim was being written: it holds nothing
    locking,      // it may hold each of its locks or not, and has written no row
    writing,      // it holds its locks, and the plan says which rows are still to be written
    written,      // it has written its rows, and may not have released its locks
    quarantined,  // no crash explains what lies under its locks: it stays, with them
  };
  struct Slot {
    std::uint64_t index = 0;
    State state = State::begun;
    layout::OperationSlot says;
    std::vector<std::uint64_t> rows;  // of the plan, from the first on that changes, in order; of the quarantined, all
    std::string why;                  // it is quarantined
  };
  std::vector<Slot> slots;
  // What these rows become; empty for rows in quarantine.
  std::map<std::uint64_t, std::vector<std::byte>> rows;
};

// A defect, or something half done. Its words name the place and the defect; they never contain key or value bytes.
struct Defect {
  enum class Kind : std::uint8_t {
    torn,         // a row does not match its checksum, or a header is impossible: its entries cannot be read
    impossible,   // an entry that no client writes
    beyond_heap,  // an extent outside the heap
    extent,       // an extent that is not whole
    hash,         // not the key's
    misplaced,    // in no place of its key
    twice,        // a key that lies somewhere else, too
    shared,       // a block that is another entry's, too
    tentative,    // not wrong: an unfinished insert
  };
  static constexpr std::size_t kKinds = 9;
  Kind kind = Kind::torn;
  std::uint64_t row = 0;
  std::uint64_t slot = 0;
  std::uint64_t offset = 0;  // in the table
  std::string what;
};

struct Report {
  static constexpr std::size_t kMostDefects = 100;

  explicit Report(std::uint64_t heap_bytes) : reached(heap_bytes) {}
  void tell(Defect defect) {
    ++of_kind[static_cast<std::size_t>(defect.kind)];
    if (defects.size() < kMostDefects) defects.push_back(std::move(defect));
  }
  std::uint64_t count(Defect::Kind kind) const { return of_kind[static_cast<std::size_t>(kind)]; }
  std::uint64_t defect_count() const;  // of what is wrong

  std::uint64_t rows = 0;
  std::uint64_t torn_rows = 0;
  std::uint64_t entries = 0;  // ones that are not empty
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of keys and values
  std::uint64_t extents = 0;
  std::uint64_t block_bytes = 0;  // of blocks, where the memory node serves the table
  Reached reached;                // also by entries that have a defect, as far as they can be read
  std::string state;              // for people: how far the table has grown, where its protocol says so
  std::vector<Defect> defects;    // the first of them
  std::array<std::uint64_t, Defect::kKinds> of_kind{};
};

struct Verification {
  std::function<void(const Sighting&)> visit;
  // Called now and then: how many rows have been looked at.
  std::function<void(std::uint64_t rows)> progress;
  // Rows to look at instead of the image's: what they become when operations under way are finished. May be null. For
  // RCuckoo; in a RACE table, an operation under way is either over or was never done.
  const std::map<std::uint64_t, std::vector<std::byte>>* instead = nullptr;
  // For RACE: which table has which keys, and the hash that decides it.
  base::Bytes directory;
  base::HashSecret pool_secret;
};

}  // namespace farpool::index
