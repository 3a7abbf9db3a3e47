// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/marks.h"
#include "protocols/protocols.h"

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
  std::uint64_t calls = 0, zombies = 0, late_writes = 0, restarts = 0, losses = 0, revocations = 0, new_lives = 0,
                budgeted = 0;
  int bad = 0;
  for (std::uint64_t seed = first; seed < first + count && bad < 3; ++seed) {
    const Verdict verdict = run_swarm(seed);
    marks += verdict.marks;
    repairs += verdict.repairs;
    calls += verdict.calls;
    zombies += verdict.zombies;
    late_writes += verdict.late_writes;
    restarts += verdict.restarts;
    losses += verdict.losses;
    revocations += verdict.revocations;
    new_lives += verdict.new_lives;
    budgeted += verdict.budgeted;
    for (const auto& [code, times] : verdict.failures) failures[code] += times;
    if (verdict.wrong.empty()) continue;
    ++bad;
    ADD_FAILURE() << explain(seed);
  }
  std::printf("%llu seeds, %llu calls; %s\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(calls), base::describe_counts(index::kMarks, marks).c_str());
  std::printf("%s\n", base::describe_counts(session::kRepairMarks, repairs).c_str());
  const auto print = [](std::uint64_t count, const char* what) {
    std::printf("%llu %s\n", static_cast<unsigned long long>(count), what);
  };
  print(zombies, "zombies woke after they had been fenced");
  print(late_writes, "words of theirs landed");
  print(restarts, "restarts of the memory node with its memory");
  print(losses, "without");
  print(revocations, "sessions revoked in the middle of whatever they did");
  print(new_lives, "new lives of clients whose session had ended");
  print(budgeted, "calls with nobody in their way, none of which took more trips than it had to");
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
  EXPECT_GT(zombies, 0u);
  EXPECT_EQ(late_writes, 0u);
  EXPECT_GT(restarts, 0u);
  EXPECT_GT(losses, 0u);
  EXPECT_GT(revocations, 0u);
  EXPECT_GT(new_lives, 0u);
  EXPECT_GT(budgeted, 0u);
  // A client that is ended while it lives tells each of its callers: done, not done, or that nobody knows.
  EXPECT_GT(base::Mark::hits("sim_ended_while_alive_done"), 0u);
  EXPECT_GT(base::Mark::hits("sim_ended_while_alive_not_done"), 0u);
  EXPECT_GT(base::Mark::hits("sim_ended_while_alive_unknown"), 0u);
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
    const Verdict verdict = run_swarm(seed, {.protocol = layout::Protocol::race});
    marks += verdict.marks;
    for (const auto& [code, times] : verdict.failures) failures[code] += times;
    if (verdict.wrong.empty()) continue;
    ++bad;
    ADD_FAILURE() << explain(seed, {}, {.protocol = layout::Protocol::race});
  }
  std::printf("%s\n", base::describe_counts(index::kMarks, marks).c_str());
  for (const auto& [code, times] : failures)
    std::printf("%s: %llu calls\n", code.c_str(), static_cast<unsigned long long>(times));
  if (count < 100) return;
  EXPECT_GT(marks.slot_conflicts, 0u);
  EXPECT_GT(marks.rivals, 0u);
  EXPECT_GT(marks.splits_finished, 0u);
  EXPECT_GT(marks.splits_taken_over, 0u);
  EXPECT_GT(marks.stale_routes, 0u);
  EXPECT_GT(marks.looked_again, 0u);
  EXPECT_GT(marks.split_waits, 0u);
  EXPECT_GT(marks.moved, 0u);
  EXPECT_GT(marks.removed, 0u);
  EXPECT_GT(failures["out of memory"], 0u);
}

TEST(Swarm, OutbackIsLinearizableAndLeavesTheMemoryInOrder) {
  const std::uint64_t first = from_environment("FARPOOL_SIM_FIRST_SEED", 1),
                      count = from_environment("FARPOOL_SIM_SEEDS", 120);
  index::Marks marks;
  std::uint64_t restarts = 0, budgeted = 0;
  int bad = 0;
  for (std::uint64_t seed = first; seed < first + count && bad < 3; ++seed) {
    const Take take{.protocol = layout::Protocol::outback, .scans = seed % 3 == 0};
    const Verdict verdict = run_swarm(seed, take);
    marks += verdict.marks;
    restarts += verdict.restarts;
    budgeted += verdict.budgeted;
    if (verdict.wrong.empty()) continue;
    ++bad;
    ADD_FAILURE() << explain(seed, {}, take);
  }
  std::printf("%s\n", base::describe_counts(index::kMarks, marks).c_str());
  if (count < 100) return;
  EXPECT_TRUE(never_reached(marks, layout::Protocol::outback, true).empty());
  EXPECT_GT(restarts, 0u);
  EXPECT_GT(budgeted, 1000u);
}

// Scans beside everything else return every key that exists during the whole scan, and no key that never existed.
TEST(Swarm, ScansTellOfWhatIsThereAndOfNothingElse) {
  const std::uint64_t first = from_environment("FARPOOL_SIM_FIRST_SEED", 1),
                      count = from_environment("FARPOOL_SIM_SEEDS", 120) / 2;
  for (const layout::Protocol protocol : {layout::Protocol::rcuckoo, layout::Protocol::race}) {
    index::Marks marks;
    std::uint64_t scans = 0, pages = 0;
    int bad = 0;
    for (std::uint64_t seed = first; seed < first + count && bad < 3; ++seed) {
      const Take take{.protocol = protocol, .scans = true};
      const Verdict verdict = run_swarm(seed, take);
      marks += verdict.marks;
      scans += verdict.scans;
      pages += verdict.pages;
      if (verdict.wrong.empty()) continue;
      ++bad;
      ADD_FAILURE() << explain(seed, {}, take);
    }
    std::printf("%llu scans in %llu steps; %s\n", static_cast<unsigned long long>(scans),
                static_cast<unsigned long long>(pages), base::describe_counts(index::kMarks, marks).c_str());
    if (count < 50) continue;
    EXPECT_GT(scans, 2 * count);
    EXPECT_GT(pages, scans);
    EXPECT_GT(protocol == layout::Protocol::race ? marks.moved : marks.restless_scans, 0u);
  }
}

// What seeds have found. Each is kept: it replays the world in which it showed.
TEST(Swarm, WhatWasFoundOnceStaysMended) {
  struct Found {
    std::uint64_t seed;
    const char* what;
    Take take = {.faults = Faults::as_once};
  };
  for (const Found& found : {
           Found{35838,
                 "an insert that looked for room waited for a row that a dead client had left torn, and told nobody"},
           Found{37797, "a reader took a row for damaged that was repaired between two of its looks"},
           Found{39834, "likewise, of an extent"},
           Found{9526, "the free of a replaced block is lost with a client that ends right before it"},
           Found{1292,
                 "a new group was read before it was filled, and the old one before its slots became moving",
                 {.protocol = layout::Protocol::race, .scans = true}},
       }) {
    const Verdict verdict = run_swarm(found.seed, found.take);
    EXPECT_TRUE(verdict.wrong.empty()) << "seed " << found.seed << ", " << found.what << ": " << verdict.wrong[0];
  }
  // Not of the protocol but of its judge: who is fenced because its messages straggled for a failure timeout learns it.
  EXPECT_TRUE(run_swarm(5929).wrong.empty());
}

TEST(Swarm, ASeedIsARun) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_EQ(run_swarm(seed).trace_hash, run_swarm(seed).trace_hash) << "seed " << seed;
  EXPECT_NE(run_swarm(1).trace_hash, run_swarm(2).trace_hash);
}

TEST(Swarm, APartOfASeedIsARunToo) {
  const Verdict whole = run_swarm(3);
  Selection half;
  half.kept.assign(whole.elements, false);
  std::fill_n(half.kept.begin(), whole.elements / 2, true);
  const Verdict part = run_swarm(3, {.part = half}), told = run_swarm(3, {.part = half, .tells = true});
  EXPECT_TRUE(part.wrong.empty());
  EXPECT_LT(part.calls, whole.calls);
  EXPECT_EQ(told.trace_hash, part.trace_hash) << "telling changes nothing";
  EXPECT_TRUE(part.story.empty());
  EXPECT_NE(told.story.find("posts WRITE slot"), std::string::npos) << told.story;
  EXPECT_NE(told.story.find("is told"), std::string::npos) << told.story;
  half.salt = 1;
  EXPECT_NE(part.trace_hash, run_swarm(3, {.part = half}).trace_hash);
}

// --- Shrinking.

// Fails where these elements are kept, but not with every delay.
Selection shrink_to(std::size_t elements, const std::vector<std::size_t>& needed, const ShrinkBudget& budget,
                    std::uint64_t& runs) {
  const auto fails = [&](const Selection& part) {
    const bool all = std::all_of(needed.begin(), needed.end(), [&part](std::size_t one) { return part.has(one); });
    return all && (part.salt == 1 || std::count(part.kept.begin(), part.kept.end(), true) > 20);
  };
  return shrink(elements, fails, budget, runs);
}

// A rare event that nobody asks for could cease to happen, and nobody would notice.
TEST(RareEvents, ThatNeverHappenedAreNamedForTheProtocolThatCountsThem) {
  std::set<std::string_view> names;
  for (const index::Protocol* protocol : protocols::all()) {
    names.insert(protocol->name());
    const std::vector<std::string> never = never_reached(index::Marks(), protocol->number(), true);
    EXPECT_GE(never.size(), 5u) << protocol->name();
    index::Marks all;
    for (const base::Count<index::Marks>& count : index::kMarks) all.*count.value = 1;
    EXPECT_TRUE(never_reached(all, protocol->number(), true).empty()) << protocol->name();
  }
  for (const base::Count<index::Marks>& count : index::kMarks) {
    EXPECT_TRUE(count.owner.empty() || names.contains(count.owner)) << count.name << " of " << count.owner;
  }
  const auto names_scans = [](bool scans) {
    return std::ranges::count(never_reached(index::Marks(), layout::Protocol::rcuckoo, scans), "restless scans");
  };
  EXPECT_EQ(names_scans(true), 1);
  EXPECT_EQ(names_scans(false), 0);
  EXPECT_GE(never_reached(session::RepairMarks()).size(), 9u);
}

TEST(Shrink, LeavesWhatIsNeeded) {
  std::uint64_t runs = 0;
  EXPECT_EQ(describe(shrink_to(300, {7, 8, 211}, {}, runs)), "7-8,211/1");
  EXPECT_LT(runs, 300u);
  EXPECT_EQ(describe(shrink_to(40, {}, {}, runs)), "none/1");
  EXPECT_EQ(describe(shrink_to(0, {}, {}, runs)), "all");
}

TEST(Shrink, KeepsToItsBudget) {
  std::uint64_t runs = 0;
  const Selection part = shrink_to(300, {7, 8, 211}, {.runs = 10}, runs);
  EXPECT_EQ(runs, 10u);
  EXPECT_TRUE(part.has(7) && part.has(8) && part.has(211));
}

TEST(Selection, IsReadAsItWasWritten) {
  for (const char* text : {"all", "3", "0,3", "1-4", "2,7-9,12", "none", "2-3/1"}) {
    const auto part = parse_selection(text);
    ASSERT_TRUE(part) << text;
    EXPECT_EQ(describe(*part), text);
  }
  for (const char* bad : {"", "x", "3,", "4-2", "3-", "3/", "3/x", "3;4"}) EXPECT_FALSE(parse_selection(bad)) << bad;
}

}  // namespace
}  // namespace farpool::sim
