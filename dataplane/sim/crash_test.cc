// SPDX-License-Identifier: Apache-2.0
#include "sim/crash.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "sim/swarm.h"

namespace farpool::sim {
namespace {

using fabric::sim::InFlight;

// Every crash point of a scenario, until the operation survives.
void die_everywhere(const Scenario& scenario, InFlight posted, std::uint64_t step, std::uint64_t& points,
                    std::uint64_t& locked, std::map<std::string, rcuckoo::Marks>* marks = nullptr) {
  for (std::uint64_t after = 0;; after += step) {
    ASSERT_LT(after, 3000u) << scenario.name << " never survives";
    const CrashVerdict verdict = run_crash(scenario, after, posted);
    std::string text;
    for (std::size_t i = 0; i < std::min<std::size_t>(verdict.wrong.size(), 5); ++i) text += verdict.wrong[i] + "\n";
    ASSERT_TRUE(verdict.wrong.empty()) << scenario.name << ", world " << scenario.options.wire.seed
                                       << ", dead after effect " << after
                                       << (posted == InFlight::cut ? ", nothing landed after it\n"
                                                                   : ", what was posted landed\n")
                                       << text;
    ++points;
    locked += verdict.locks_left ? 1 : 0;
    if (marks != nullptr) (*marks)[scenario.name] = verdict.marks;
    if (verdict.survived) return;
  }
}

TEST(Crash, EveryBranchIsThere) {
  std::set<std::string> names;
  for (const Scenario& scenario : scenarios(1)) EXPECT_TRUE(names.insert(scenario.name).second) << scenario.name;
  for (int moves = 1; moves <= 5; ++moves) {
    EXPECT_TRUE(names.contains("insert, path of " + std::to_string(moves) + " moves"))
        << "no path of " << moves << " moves was found";
  }
  EXPECT_TRUE(names.contains("insert, path of 2 moves, extent"));
  EXPECT_TRUE(names.contains("insert, locks of two words"));
  EXPECT_TRUE(names.contains("put, both rows full"));
  EXPECT_TRUE(names.contains("insert, stale memory"));
}

TEST(Crash, WhatIsLeftIsWhatSlotsAndLocksSay) {
  std::uint64_t points = 0, locked = 0;
  std::map<std::string, rcuckoo::Marks> marks;  // of the run that survived
  for (const Scenario& scenario : scenarios(1)) {
    std::uint64_t before = points;
    die_everywhere(scenario, InFlight::cut, 1, points, locked, &marks);
    if (HasFatalFailure()) return;
    std::printf("%-36s %llu crash points\n", scenario.name.c_str(), static_cast<unsigned long long>(points - before));
  }
  EXPECT_GT(locked, points / 4) << "most crash points leave locks";
  EXPECT_GT(marks["update, lock conflict"].lock_conflicts, 0u);
  EXPECT_GT(marks["insert, lock conflict"].lock_conflicts, 0u);
  EXPECT_GT(marks["insert, stale memory"].failed_searches, 0u);
  EXPECT_GT(marks["insert, locks of two words"].multi_word_locks, 0u);
  EXPECT_GT(marks["put, both rows full"].escalations, 0u);
}

TEST(Crash, WhatWasPostedMayLand) {
  std::uint64_t points = 0, locked = 0;
  for (const Scenario& scenario : scenarios(2)) {
    die_everywhere(scenario, InFlight::lands, 5, points, locked);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(locked, 0u);
}

}  // namespace
}  // namespace farpool::sim
