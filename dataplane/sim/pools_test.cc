// SPDX-License-Identifier: Apache-2.0
#include "sim/pools.h"

#include <gtest/gtest.h>

namespace farpool::sim {
namespace {

TEST(Pools, AreRightAndEverythingHappensInThem) {
  PoolVerdict sum;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const PoolVerdict verdict = run_pool(seed);
    for (const std::string& what : verdict.wrong) ADD_FAILURE() << "seed " << seed << ": " << what;
    add(sum, verdict);
  }
  for (const std::string& what : never_reached(sum)) ADD_FAILURE() << "there were no " << what;
}

TEST(Pools, OfOneSeedAreTheSame) {
  EXPECT_EQ(run_pool(7).trace_hash, run_pool(7).trace_hash);
  EXPECT_NE(run_pool(7).trace_hash, run_pool(8).trace_hash);
}

}  // namespace
}  // namespace farpool::sim
