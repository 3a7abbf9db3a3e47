// SPDX-License-Identifier: Apache-2.0
// What a client remembers of the table: some rows, perhaps stale. Only searches for a cuckoo path use it, and no path
// is used before its rows have been read under their locks. So a stale row costs a trip and never causes an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "index/rcuckoo/layout.h"

namespace farpool::rcuckoo {

inline constexpr std::uint64_t kCacheBytes = 64 * 1024;

// A direct-mapped cache: neighbours never displace each other, and a table's hot stretch stays.
class RowCache {
 public:
  explicit RowCache(const Geometry& geometry)
      : row_bytes_(geometry.row_bytes()),
        rows_(kCacheBytes / geometry.row_bytes() == 0 ? 1 : kCacheBytes / geometry.row_bytes(), kNothing),
        bytes_(rows_.size() * geometry.row_bytes()) {}

  // Learns whole rows only.
  void learn(std::uint64_t row, base::Bytes bytes) {
    const std::size_t at = row % rows_.size();
    rows_[at] = row;
    std::memcpy(bytes_.data() + at * row_bytes_, bytes.data(), row_bytes_);
  }
  // Returns the row's bytes; empty if it remembers none.
  base::Bytes recall(std::uint64_t row) const {
    const std::size_t at = row % rows_.size();
    return rows_[at] == row ? base::Bytes(bytes_).subspan(at * row_bytes_, row_bytes_) : base::Bytes();
  }
  void forget() { std::fill(rows_.begin(), rows_.end(), kNothing); }

 private:
  static constexpr std::uint64_t kNothing = ~0ull;
  std::uint64_t row_bytes_;
  std::vector<std::uint64_t> rows_;
  std::vector<std::byte> bytes_;
};

}  // namespace farpool::rcuckoo
