// SPDX-License-Identifier: Apache-2.0
// How far the time model is from what the papers measured: each of their measurements done again, with verbs on lanes
// of the simulated wire, and compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace farpool::fabric::sim {

struct Measurement {
  std::string row;   // of the papers' claims
  std::string what;  // was measured, and how
  std::string unit;
  double least, most;  // what the paper states; equal if it is one figure
  double measured;
  double allowed;  // error, in percent
  // Percent beyond the nearer end of what the paper states; 0 within.
  double error() const;
};

std::vector<Measurement> calibrate(std::uint64_t seed);
// As a page for people.
std::string report(const std::vector<Measurement>& measurements);

}  // namespace farpool::fabric::sim
