// SPDX-License-Identifier: Apache-2.0
// What simulated loads are made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "layout/geometry.h"

namespace farpool::bench {

// A share of an operation mix, or of time: in [0, 1).
inline double uniform(base::Random& random) { return static_cast<double>(random.next() >> 11) * 0x1.0p-53; }

// Numbers whose popularity falls as YCSB's does: number i is drawn in proportion to 1 / (i + 1)^theta.
class Zipf {
 public:
  explicit Zipf(std::uint64_t numbers, double theta = 0.99) {
    double sum = 0;
    sums_.reserve(numbers);
    for (std::uint64_t i = 0; i < numbers; ++i) sums_.push_back(sum += std::pow(static_cast<double>(i + 1), -theta));
  }

  // Below the count of numbers.
  std::uint64_t draw(base::Random& random) const {
    const double drawn = sums_.back() * uniform(random);
    return static_cast<std::uint64_t>(std::upper_bound(sums_.begin(), sums_.end(), drawn) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

// A key of 8 bytes for each number.
inline std::string key_of(std::uint64_t number) {
  std::string key(8, '\0');
  base::store(reinterpret_cast<std::byte*>(key.data()), number);
  return key;
}

// Returns the bytes that an entry of such a table takes, with its share of what else is in its row.
inline double bytes_per_entry(const layout::GeometryRequest& request) {
  const layout::Shape& shape = layout::shape_of(request.protocol);
  const layout::TableFigures open{.entry_bytes = request.entry_bytes, .entries_per_row = request.entries_per_row};
  const layout::TableFigures& figures = shape.fixed != nullptr ? *shape.fixed : open;
  return static_cast<double>(figures.entry_bytes) +
         static_cast<double>(shape.row_trailer) / static_cast<double>(figures.entries_per_row);
}

// A percentile of values in rising order; 0 if there are none.
inline double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<std::size_t>(static_cast<double>(sorted.size()) * percent / 100))];
}

}  // namespace farpool::bench
