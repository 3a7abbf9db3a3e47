// SPDX-License-Identifier: Apache-2.0
// Where a key may be, and what the index remembers of it. Pure functions of 64 bits: a keyed hash of the key under a
// secret that nobody but the table's clients has (supplement, Algorithm 1 and section 2.2).
//
//    63                              32 31            16 15             0
//   +----------------------------------+----------------+----------------+
//   | bucket of the first array     32 | second      16 | first       16 |
//   +----------------------------------+----------------+----------------+
//
// The bucket of the second array follows from the one of the first and from the first print, and the other way round, so
// that a pair whose first print is known can be moved before its key has been read.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "index/cuckooduo/shape.h"

namespace farpool::cuckooduo {

// Some bits of a key's hash. 0 is the print of an empty slot and of no key.
using Print = std::uint16_t;

constexpr Print print_from(std::uint32_t bits16, std::uint32_t print_bits) {
  return static_cast<Print>(1 + (bits16 * ((1u << print_bits) - 1) >> 16));
}

// In the paper each first print has a displacement of its own. Here it is the sum of one of a few strides, which are
// anywhere, and of a step, which is short: a scan of neighbouring buckets of the first array reads one stretch of the
// second for each stride, and finds every key of theirs. Strides alone would have to be many, as pairs of a full bucket
// have to have different other buckets; steps alone would leave keys where they crowd.
inline constexpr std::uint32_t kStrides = 8;
inline constexpr std::uint32_t kSteps = 64;
// Returns one of the strides, less than `buckets`.
constexpr std::uint32_t stride(std::uint32_t number, std::uint32_t buckets, std::uint64_t salt) {
  return static_cast<std::uint32_t>((base::mix(~salt ^ number) >> 32) * buckets >> 32);
}
// Returns how many steps are different in arrays of so many buckets.
constexpr std::uint32_t steps(std::uint32_t buckets) { return buckets < kSteps ? buckets : kSteps; }
// Returns how far the second array's bucket is behind the first array's, from the first print: less than `buckets`.
constexpr std::uint32_t displacement(Print first, std::uint32_t buckets, std::uint64_t salt) {
  const std::uint64_t bits = base::mix(salt ^ first);
  const std::uint32_t by = stride(static_cast<std::uint32_t>((bits >> 32) * kStrides >> 32), buckets, salt) +
                           static_cast<std::uint32_t>((bits & 0xffffffff) * steps(buckets) >> 32);
  return by < buckets ? by : by - buckets;
}
// Returns the bucket of the second array.
constexpr std::uint32_t forth(std::uint32_t bucket, Print first, std::uint32_t buckets, std::uint64_t salt) {
  const std::uint32_t sum = bucket + displacement(first, buckets, salt);
  return sum < buckets ? sum : sum - buckets;
}
// Returns the bucket of the first array.
constexpr std::uint32_t back(std::uint32_t bucket, Print first, std::uint32_t buckets, std::uint64_t salt) {
  const std::uint32_t by = displacement(first, buckets, salt);
  return bucket >= by ? bucket - by : bucket + buckets - by;
}

struct Spots {
  std::uint64_t row1 = 0, row2 = 0;  // of the first and of the second array (Shape::row)
  Print first = 0, second = 0;

  static Spots of(std::uint64_t hash, const Shape& shape, std::uint64_t salt) {
    const auto low = static_cast<std::uint32_t>(hash);
    Spots spots;
    spots.first = print_from(low & 0xffff, shape.print_bits);
    spots.second = print_from(low >> 16, shape.print_bits);
    const auto bucket = static_cast<std::uint32_t>((hash >> 32) * shape.buckets >> 32);
    spots.row1 = bucket;
    spots.row2 = shape.row(1, forth(bucket, spots.first, shape.buckets, salt));
    return spots;
  }
  // Returns the print that a slot at this place has of the key.
  Print at(Place place, const Shape& shape) const { return shape.is_second(place) ? second : first; }
  friend bool operator==(const Spots&, const Spots&) = default;
};

// Returns the row that a pair with this first print has in the other array.
inline std::uint64_t other_row(std::uint64_t row, Print first, const Shape& shape, std::uint64_t salt) {
  const auto bucket = static_cast<std::uint32_t>(row < shape.buckets ? row : row - shape.buckets);
  return row < shape.buckets ? shape.row(1, forth(bucket, first, shape.buckets, salt))
                             : shape.row(0, back(bucket, first, shape.buckets, salt));
}

}  // namespace farpool::cuckooduo
