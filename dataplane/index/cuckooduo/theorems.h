// SPDX-License-Identifier: Apache-2.0
// What the paper expects of collisions (supplement, section 2): figures for tests and measurements.
#pragma once

#include <cmath>

#include "index/cuckooduo/shape.h"

namespace farpool::cuckooduo {

// Returns how many keys find their print taken when a table with one print a key is filled to a load (theorem IV.1).
inline double collisions_of_one_print(const Shape& shape, double load) {
  const double slots = shape.slots;
  return 2.0 * shape.buckets * slots * slots * load * load / std::exp2(shape.print_bits);
}

// Returns a bound of how many of a full table's keys have a collision that two prints do not resolve (theorem IV.2).
inline double collisions_of_two_prints(const Shape& shape) {
  const double slots = shape.slots;
  return 4.0 * shape.buckets * slots * (slots + 1) * (slots - 1) / (3 * std::exp2(2.0 * shape.print_bits));
}

// Returns how many inserts find no path for each that finds one, when that part of the buckets is full (theorem IV.3, the
// integrand).
inline double without_a_path(const Shape& shape, double full_buckets) {
  double looked_at = 0;
  for (std::uint32_t i = 0; i <= shape.path; ++i) looked_at += 2 * std::pow(shape.slots, i);
  const double fails = std::pow(full_buckets, looked_at);
  return fails / (1 - fails);
}

}  // namespace farpool::cuckooduo
