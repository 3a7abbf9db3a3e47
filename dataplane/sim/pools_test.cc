// SPDX-License-Identifier: Apache-2.0
#include "sim/pools.h"

#include <gtest/gtest.h>

#include "base/marks.h"

namespace farpool::sim {
namespace {

TEST(Pools, AreRightAndEverythingHappensInThem) {
  PoolVerdict sum;
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    const PoolVerdict verdict = run_pool(seed);
    if (!verdict.wrong.empty()) ADD_FAILURE() << explain_pool(seed);
    add(sum, verdict);
  }
  for (const std::string& what : never_reached(sum)) ADD_FAILURE() << "there were no " << what;
}

TEST(Pools, OfOutbackAreRightAndAskAgainWhatWasLost) {
  constexpr auto kProtocol = layout::Protocol::outback;
  PoolVerdict sum;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const PoolVerdict verdict = run_pool(seed, {}, false, kProtocol);
    if (!verdict.wrong.empty()) ADD_FAILURE() << explain_pool(seed, {}, kProtocol);
    add(sum, verdict);
  }
  for (const std::string& what : never_reached(sum, kProtocol)) ADD_FAILURE() << "there were no " << what;
  EXPECT_GT(base::Mark::hits("outback_grown_sixteenfold"), 2u);
}

TEST(Pools, OfOneSeedAreTheSame) {
  EXPECT_EQ(run_pool(7).trace_hash, run_pool(7).trace_hash);
  EXPECT_NE(run_pool(7).trace_hash, run_pool(8).trace_hash);
}

// A failure prints parts: each is a run of its own, which is judged and told, and is the same every time.
TEST(Pools, APartOfASeedIsARunToo) {
  const PoolVerdict whole = run_pool(7);
  EXPECT_TRUE(whole.story.empty());
  Selection few;
  few.kept.assign(whole.elements, false);
  for (std::size_t i = 0; i < whole.elements; i += 9) few.kept[i] = true;
  const PoolVerdict part = run_pool(7, few, true);
  EXPECT_TRUE(part.wrong.empty());
  EXPECT_EQ(part.elements, whole.elements);
  EXPECT_LT(part.done, whole.done);
  EXPECT_EQ(part.trace_hash, run_pool(7, few).trace_hash);
  EXPECT_NE(part.story.find("node-0  serves"), std::string::npos) << part.story;
  EXPECT_NE(part.story.find("asks"), std::string::npos) << part.story;
}

// 964: an insert waited for room while one move ended and the next began, and placed its key where it no longer
// belonged.
TEST(Pools, WhatWasFoundOnceStaysMended) {
  for (const std::uint64_t seed : {964ull}) {
    const PoolVerdict verdict = run_pool(seed, {}, false, layout::Protocol::race);
    if (!verdict.wrong.empty()) ADD_FAILURE() << explain_pool(seed, {}, layout::Protocol::race);
  }
}

}  // namespace
}  // namespace farpool::sim
