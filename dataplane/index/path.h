// SPDX-License-Identifier: Apache-2.0
// Breadth-first search for a cuckoo path, over what is known of the rows. RCuckoo's clients search rows that they
// remember or have locked; CuckooDuo's owner searches the buckets of its index. The measurements use the same code.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace farpool::index {

struct Displacement {
  std::uint64_t row = 0;
  std::uint32_t slot = 0;  // of the entry that moves to the next step's row; at the end of the path, the empty slot
};

// Leads from one of the new key's rows to a row with room. No row occurs twice.
struct Path {
  static constexpr std::size_t kMaxSteps = 16;
  std::array<Displacement, kMaxSteps> step{};
  std::size_t length = 0;
  bool presumed = false;  // nothing is known of the last row: its slot means nothing

  std::span<const Displacement> steps() const { return {step.data(), length}; }
};

enum class Sight : std::uint8_t {
  known,     // its entries can be looked at
  unknown,   // nothing is known: presumed to have room
  excluded,  // not to be touched
};

// `Rows` says what is known:
//   Sight sight(row)           int empty_slot(row)  // -1: full
//   alternate(row, slot)       // the other row of an entry
//   bool accepts(path)         // the last word on a path that was found
class PathSearch {
 public:
  // Finds the shortest acceptable path that displaces at most `depth` entries; among equal ones, the first in order of
  // roots and slots. Returns false if there is none.
  template <class Rows>
  bool find(Rows& rows, std::uint64_t entries_per_row, std::span<const std::uint64_t> roots, unsigned depth,
            Path& path) {
    FARPOOL_CHECK(depth + 1 <= Path::kMaxSteps);
    nodes_.clear();
    begin_visit();
    for (const std::uint64_t root : roots) {
      if (visit(root) && reach(rows, {root, kNone, 0, 0}, path)) return true;
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node from = nodes_[i];
      if (from.depth == depth) break;  // the queue is in order of depth
      for (std::uint32_t slot = 0; slot < entries_per_row; ++slot) {
        const std::uint64_t row = rows.alternate(from.row, slot);
        if (!visit(row)) continue;  // also an entry whose two rows are one
        if (reach(rows, {row, static_cast<std::uint32_t>(i), slot, from.depth + 1}, path)) return true;
      }
    }
    return false;
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Node {
    std::uint64_t row;
    std::uint32_t from;  // node whose entry would move here
    std::uint32_t slot;  // which of its entries
    std::uint32_t depth;
  };

  // Ends the search at this node, or queues it.
  template <class Rows>
  bool reach(Rows& rows, const Node& node, Path& path) {
    const Sight sight = rows.sight(node.row);
    if (sight == Sight::excluded) return false;
    const int empty = sight == Sight::unknown ? 0 : rows.empty_slot(node.row);
    if (empty >= 0) {
      unwind(node, static_cast<std::uint32_t>(empty), path);
      path.presumed = sight == Sight::unknown;
      if (rows.accepts(path)) return true;
    }
    // A row with room never needs to lose an entry; the entries of an unknown row are unknown.
    if (empty < 0) nodes_.push_back(node);
    return false;
  }

  void unwind(const Node& end, std::uint32_t empty, Path& path) const {
    path.length = end.depth + 1;
    path.step[end.depth] = {end.row, empty};
    std::uint32_t slot = end.slot;
    for (std::uint32_t at = end.from; at != kNone;) {
      const Node& node = nodes_[at];
      path.step[node.depth] = {node.row, slot};
      slot = node.slot;
      at = node.from;
    }
  }

  // A set of rows that is emptied in constant time: open addressing, stamped with the search's number.
  void begin_visit() {
    if (seen_.empty()) seen_.resize(1024);
    if (++stamp_ == 0) {
      std::fill(seen_.begin(), seen_.end(), Seen{});
      stamp_ = 1;
    }
    visited_ = 0;
  }
  bool visit(std::uint64_t row) {
    if (visited_ * 2 >= seen_.size()) grow();
    return place(row);
  }
  bool place(std::uint64_t row) {
    const std::size_t mask = seen_.size() - 1;
    for (std::size_t at = static_cast<std::size_t>(row * 0x9e3779b97f4a7c15ull >> 32) & mask;; at = (at + 1) & mask) {
      if (seen_[at].stamp != stamp_) {
        seen_[at] = {row, stamp_};
        ++visited_;
        return true;
      }
      if (seen_[at].row == row) return false;
    }
  }
  void grow() {
    std::vector<Seen> old(seen_.size() * 2);
    old.swap(seen_);
    visited_ = 0;
    for (const Seen& seen : old) {
      if (seen.stamp == stamp_) place(seen.row);
    }
  }

  struct Seen {
    std::uint64_t row = 0;
    std::uint32_t stamp = 0;
  };
  std::vector<Node> nodes_;
  std::vector<Seen> seen_;
  std::size_t visited_ = 0;
  std::uint32_t stamp_ = 0;
};

}  // namespace farpool::index
