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
    sum.done += verdict.done;
    sum.unknown += verdict.unknown;
    sum.deaths += verdict.deaths;
    sum.zombies += verdict.zombies;
    sum.restarts += verdict.restarts;
    sum.losses += verdict.losses;
    sum.slots_repaired += verdict.slots_repaired;
  }
  EXPECT_GT(sum.done, 1000u);
  EXPECT_GT(sum.unknown, 0u);
  EXPECT_GT(sum.deaths, 0u);
  EXPECT_GT(sum.zombies, 0u);
  EXPECT_GT(sum.restarts, 0u);
  EXPECT_GT(sum.losses, 0u);
  EXPECT_GT(sum.slots_repaired, 0u);
}

TEST(Pools, OfOneSeedAreTheSame) {
  EXPECT_EQ(run_pool(7).trace_hash, run_pool(7).trace_hash);
  EXPECT_NE(run_pool(7).trace_hash, run_pool(8).trace_hash);
}

}  // namespace
}  // namespace farpool::sim
