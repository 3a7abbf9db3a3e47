// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/marks.h"

namespace farpool::sim {
namespace {

// FARPOOL_SIM_SEEDS=<count> runs more; FARPOOL_SIM_FIRST_SEED=<seed> begins elsewhere.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Swarm, EverySeedIsLinearizableAndLeavesTheMemoryInOrder) {
  const std::uint64_t first = from_environment("FARPOOL_SIM_FIRST_SEED", 1),
                      count = from_environment("FARPOOL_SIM_SEEDS", 120);
  index::Marks marks;
  session::RepairMarks repairs;
  std::map<std::string, std::uint64_t> failures;
  std::uint64_t calls = 0;
  int bad = 0;
  for (std::uint64_t seed = first; seed < first + count && bad < 3; ++seed) {
    const Verdict verdict = run_swarm(seed);
    add(marks, verdict.marks);
    repairs += verdict.repairs;
    calls += verdict.calls;
    for (const auto& [code, times] : verdict.failures) failures[code] += times;
    if (verdict.wrong.empty()) continue;
    ++bad;
    std::string text;
    for (std::size_t i = 0; i < std::min<std::size_t>(verdict.wrong.size(), 4); ++i) text += verdict.wrong[i] + "\n";
    ADD_FAILURE() << "seed " << seed << " (" << verdict.setting << "):\n" << text << "replay: simulate --seed " << seed;
  }
  std::printf("%llu seeds, %llu calls; %s\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(calls), describe(marks).c_str());
  std::printf("%s\n", describe(repairs).c_str());
  for (const auto& [code, times] : failures)
    std::printf("%s: %llu calls\n", code.c_str(), static_cast<unsigned long long>(times));
  if (count < 100) return;
  // The rare branches were reached.
  EXPECT_GT(marks.lock_conflicts, 0u);
  EXPECT_GT(marks.lock_restarts, 0u);
  EXPECT_GT(marks.torn_rows, 0u);
  EXPECT_GT(marks.changed_misses, 0u);
  EXPECT_GT(marks.escalations, 0u);
  EXPECT_GT(marks.failed_searches, 0u);
  EXPECT_GT(marks.explorations, 0u);
  EXPECT_GT(marks.displaced, 0u);
  EXPECT_GT(marks.multi_word_locks, 0u);
  EXPECT_GT(repairs.repaired, 0u);
  EXPECT_GT(repairs.finished, 0u);
  EXPECT_GT(repairs.bits_released, 0u);
  EXPECT_GT(repairs.waited_for, 0u);
  EXPECT_EQ(repairs.quarantined, 0u);
  EXPECT_GT(base::Mark::hits("sim_verbs_changed_places"), 0u);
  EXPECT_GT(base::Mark::hits("sim_turn_of_a_stopped_thread"), 0u);
}

TEST(Swarm, RaceIsLinearizableAndLeavesTheMemoryInOrder) {
  const std::uint64_t first = from_environment("FARPOOL_SIM_FIRST_SEED", 1),
                      count = from_environment("FARPOOL_SIM_SEEDS", 120);
  index::Marks marks;
  int bad = 0;
  std::map<std::string, std::uint64_t> failures;
  for (std::uint64_t seed = first; seed < first + count && bad < 3; ++seed) {
    const Verdict verdict = run_swarm(seed, layout::Protocol::race);
    add(marks, verdict.marks);
    for (const auto& [code, times] : verdict.failures) failures[code] += times;
    if (verdict.wrong.empty()) continue;
    ++bad;
    std::string text;
    for (std::size_t i = 0; i < std::min<std::size_t>(verdict.wrong.size(), 4); ++i) text += verdict.wrong[i] + "\n";
    ADD_FAILURE() << "seed " << seed << " (" << verdict.setting << "):\n"
                  << text << "replay: simulate --protocol race --seed " << seed;
  }
  std::printf("%s\n", describe(marks).c_str());
  for (const auto& [code, times] : failures)
    std::printf("%s: %llu calls\n", code.c_str(), static_cast<unsigned long long>(times));
  if (count < 100) return;
  EXPECT_GT(marks.slot_conflicts, 0u);
  EXPECT_GT(marks.rivals, 0u);
  EXPECT_GT(marks.removed, 0u);
  EXPECT_GT(failures["out_of_memory"], 0u);
}

// What seeds have found. Each is kept: it replays the world in which it showed, as long as worlds are drawn as they
// are.
TEST(Swarm, WhatWasFoundOnceStaysMended) {
  struct Found {
    std::uint64_t seed;
    const char* what;
  };
  for (const Found& found : {
           Found{35838,
                 "an insert that looked for room waited for a row that a dead client had left torn, and told nobody"},
           Found{37797, "a reader took a row for damaged that was repaired between two of its looks"},
           Found{39834, "likewise, of an extent"},
           Found{9526, "the free of a replaced block is lost with a client that ends right before it"},
       }) {
    const Verdict verdict = run_swarm(found.seed);
    EXPECT_TRUE(verdict.wrong.empty()) << "seed " << found.seed << ", " << found.what << ": " << verdict.wrong[0];
  }
}

TEST(Swarm, ASeedIsARun) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_EQ(run_swarm(seed).trace_hash, run_swarm(seed).trace_hash) << "seed " << seed;
  EXPECT_NE(run_swarm(1).trace_hash, run_swarm(2).trace_hash);
}

}  // namespace
}  // namespace farpool::sim
