// SPDX-License-Identifier: Apache-2.0
#include "sim/crash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "sim/swarm.h"

namespace farpool::sim {
namespace {

using How = Death::How;
using Repair = Death::Repair;

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

TEST(Crash, AClientThatIsBlockedRepairs) {
  std::uint64_t worlds = 0, locked = 0;
  std::map<std::string, index::Marks> marks;  // of the run that survived
  session::RepairMarks repairs;
  for (const Scenario& scenario : scenarios(1)) {
    const CrashTally tally = die_everywhere(scenario, How::cut, Repair::blocked);
    ASSERT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
    worlds += tally.worlds;
    locked += tally.locks_left;
    marks[scenario.name] = tally.marks;
    repairs += tally.repairs;
    std::printf("%-36s %llu crash points\n", scenario.name.c_str(), static_cast<unsigned long long>(tally.worlds));
  }
  EXPECT_GT(locked, worlds / 4) << "most crash points leave locks";
  EXPECT_GT(marks["update, lock conflict"].lock_conflicts, 0u);
  EXPECT_GT(marks["insert, lock conflict"].lock_conflicts, 0u);
  EXPECT_GT(marks["insert, stale memory"].failed_searches, 0u);
  EXPECT_GT(marks["insert, locks of two words"].multi_word_locks, 0u);
  EXPECT_GT(marks["put, both rows full"].escalations, 0u);
  EXPECT_GT(repairs.finished, 0u);
  EXPECT_GT(repairs.bits_released, 0u);
}

TEST(Crash, RaceNeedsNoRepairButOfSplits) {
  std::uint64_t worlds = 0, stolen = 0;
  std::map<std::string, index::Marks> marks;  // of the run that survived
  const auto all = [&](std::uint64_t seed, How how, Repair repair) {
    for (const Scenario& scenario : scenarios(seed, layout::Protocol::race)) {
      const CrashTally tally = die_everywhere(scenario, how, repair);
      ASSERT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
      EXPECT_EQ(tally.locks_left, 0u);
      EXPECT_EQ(tally.repairs.repaired, 0u);
      worlds += tally.worlds;
      stolen += tally.repairs.leases_stolen;
      EXPECT_TRUE(!scenario.splits.empty() || tally.repairs.leases_stolen == 0) << scenario.name;
      marks[scenario.name] = tally.marks;
    }
  };
  all(1, How::cut, Repair::blocked);
  all(2, How::lands, Repair::sweep);
  all(3, How::zombie, Repair::blocked);
  EXPECT_GT(worlds, 400u);
  EXPECT_GT(marks["insert, lock conflict"].rivals, 0u);
  EXPECT_EQ(marks["split of a table"].splits_finished, 1u);
  EXPECT_EQ(marks["split of a table with four entries"].splits_finished, 1u);
  EXPECT_EQ(marks["split of two tables at once"].splits_finished, 2u);
  EXPECT_EQ(marks["split of a table beside a split of another"].splits_finished, 1u);
  EXPECT_GT(stolen, 100u) << "splits of the dead are taken over";
}

TEST(Crash, SweepsRepairWhatBlocksNobody) {
  for (const Scenario& scenario : scenarios(2)) {
    const CrashTally tally = die_everywhere(scenario, How::lands, Repair::sweep, {.step = 3});
    ASSERT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
  }
}

TEST(Crash, RepairersDieToo) {
  session::RepairMarks repairs;
  for (const Scenario& scenario : scenarios(3)) {
    const CrashTally tally = die_everywhere(scenario, How::cut, Repair::repairer, {.step = 11});
    ASSERT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
    repairs += tally.repairs;
  }
  EXPECT_GT(repairs.leases_stolen, 0u);
  EXPECT_GT(repairs.barriers_found, 0u);
}

TEST(Crash, OutbackNeedsNoRepair) {
  std::uint64_t worlds = 0;
  const auto all = [&](How how, Repair repair) {
    for (const Scenario& scenario : scenarios(1, layout::Protocol::outback)) {
      const CrashTally tally = die_everywhere(scenario, how, repair);
      ASSERT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
      EXPECT_EQ(tally.locks_left, 0u);
      EXPECT_EQ(tally.repairs.repaired, 0u);
      worlds += tally.worlds;
    }
  };
  all(How::cut, Repair::blocked);
  all(How::lands, Repair::sweep);
  all(How::zombie, Repair::blocked);
  EXPECT_GT(worlds, 100u);
}

TEST(Crash, RepairersOfSplitsDieToo) {
  for (const Scenario& scenario : scenarios(1, layout::Protocol::race)) {
    if (scenario.splits.empty()) continue;
    const CrashTally tally = die_everywhere(scenario, How::lands, Repair::repairer, {.step = 3});
    ASSERT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
    EXPECT_GT(tally.repairs.leases_stolen, 0u) << scenario.name;
  }
}

// Different runs try different effects, and a set of runs tries all.
TEST(Crash, AnOffsetChoosesOtherEffects) {
  std::vector<Scenario> all = scenarios(1, layout::Protocol::race);
  Scenario& scenario = all[1];  // of a few effects, and with a stride as if they were many
  const auto worlds = [&](Repair repair, const Reach& reach) {
    const CrashTally tally = die_everywhere(scenario, How::cut, repair, reach);
    EXPECT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
    return tally.worlds - 1;  // one survives
  };
  const std::uint64_t singles = worlds(Repair::blocked, {}), pairs = worlds(Repair::stopped, {});
  scenario.stride = 3;
  EXPECT_EQ(worlds(Repair::blocked, {.every_effect = true}), singles);
  std::uint64_t of_some = 0, of_pairs = 0;
  for (std::uint64_t offset = 0; offset < 3; ++offset) of_some += worlds(Repair::blocked, {.offset = offset});
  EXPECT_EQ(of_some, singles);
  for (std::uint64_t offset = 0; offset < 24; ++offset) {
    of_pairs += worlds(Repair::stopped, {.every_effect = true, .offset = offset});
  }
  // One world for each effect of the victim has a repairer that survives; here one for each offset, too.
  EXPECT_EQ(of_pairs, pairs + 23 * singles);
}

// A failure names its scenario by a part of the name: the first scenario with that part is run again.
TEST(Crash, NamesOfScenariosAreFoundAgain) {
  for (const auto protocol : {layout::Protocol::rcuckoo, layout::Protocol::race, layout::Protocol::outback}) {
    const std::vector<Scenario> all = scenarios(1, protocol);
    for (const Scenario& scenario : all) {
      const auto first = std::find_if(all.begin(), all.end(), [&](const Scenario& one) {
        return one.name.find(scenario.name) != std::string::npos;
      });
      EXPECT_EQ(first->name, scenario.name);
    }
  }
}

TEST(Crash, ADeathIsReadAsItWasWrittenAndTold) {
  for (const char* text : {"cut,blocked,12", "lands,repairer,12,3", "zombie,sweep,0", "asleep,stopped,5,0"}) {
    const auto death = parse_death(text);
    ASSERT_TRUE(death) << text;
    EXPECT_EQ(name_of(*death), text);
  }
  for (const char* bad :
       {"", "cut", "cut,blocked", "cut,blocked,", "cut,blocked,1,2", "lands,repairer,1", "x,sweep,1"}) {
    EXPECT_FALSE(parse_death(bad)) << bad;
  }
  const std::vector<Scenario> all = scenarios(1);
  const std::string told = explain(all[0], {.after = 5});
  EXPECT_NE(told.find("asks insert k = 1"), std::string::npos) << told;
  EXPECT_NE(
      told.find("replay: simulate --crashes --seed 1 --branch 'insert, free slot, in place' --death cut,blocked,5"),
      std::string::npos)
      << told;
}

TEST(Crash, ZombiesChangeNothing) {
  std::uint64_t worlds = 0, late = 0;
  for (const Scenario& scenario : scenarios(4)) {
    const CrashTally tally = die_everywhere(scenario, How::zombie, Repair::blocked, {.step = 3});
    ASSERT_FALSE(tally.wrong) << explain(scenario, *tally.wrong);
    worlds += tally.worlds;
    late += tally.late_effects;
  }
  EXPECT_GT(worlds, 200u);
  EXPECT_EQ(late, 0u);
}

}  // namespace
}  // namespace farpool::sim
