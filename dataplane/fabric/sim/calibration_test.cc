// SPDX-License-Identifier: Apache-2.0
#include "fabric/sim/calibration.h"

#include <gtest/gtest.h>

#include <cmath>

namespace farpool::fabric::sim {
namespace {

TEST(Calibration, EveryFigureOfThePapersIsMetWithinItsBound) {
  for (const std::uint64_t seed : {1ull, 2ull}) {
    for (const Measurement& one : calibrate(seed)) {
      EXPECT_LE(std::abs(one.error()), one.allowed)
          << "seed " << seed << ", " << one.row << ", " << one.what << ": " << one.measured << " " << one.unit
          << ", the paper says " << one.least << " to " << one.most;
    }
  }
}

TEST(Calibration, ASeedIsARun) { EXPECT_EQ(report(calibrate(3)), report(calibrate(3))); }

}  // namespace
}  // namespace farpool::fabric::sim
