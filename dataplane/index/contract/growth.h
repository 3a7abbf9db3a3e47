// SPDX-License-Identifier: Apache-2.0
// Part of the suite of index protocols (suite.h): a table is split again and again, until its memory ends, while
// clients work. Only protocols whose tables can be split have these tests. Splits whose client dies are tested in the
// room of the protocol, and by sim/crash.h.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "index/contract/suite.h"

namespace farpool::index::contract {

// The protocols whose tables can be split, on each wire.
inline auto growing_on(const std::vector<Ground>& grounds) {
  std::vector<Setting> settings;
  for (const Ground& ground : grounds) {
    for (const Sample& sample : samples()) {
      if (sample.splits != nullptr) settings.push_back({sample, ground});
    }
  }
  return ::testing::ValuesIn(settings);
}

class Growth : public Suite {
 protected:
  // So many keys that the table is split several times, and has room for them.
  static int many(const Bed& bed) { return static_cast<int>(bed.geometry().entries() / 2); }
  static std::string key(int i) { return "n" + std::to_string(i); }
  static std::string value(int i) { return "v" + std::to_string(i); }
};

TEST_P(Growth, GoesOnUntilMemoryEnds) {
  const auto bed = make(sample.grows);
  User a(*bed), other(*bed);  // which knows of one table only
  EXPECT_EQ(*other.lookup(key(0)), std::nullopt);
  int keys = 0;
  for (Status full; full.ok(); keys += full.ok() ? 1 : 0) {
    full = a.insert(key(keys), value(keys)).status();
    if (!full.ok()) EXPECT_EQ(full.code(), Code::out_of_memory) << text(full);
  }
  Status idle;
  bed->run(a.member, stop_splitting(a.member, idle));
  EXPECT_TRUE(idle.ok()) << text(idle);
  EXPECT_EQ(marked(*bed, sample.splits), bed->geometry().tables - 1);
  EXPECT_GT(keys, sample.grown * static_cast<double>(bed->geometry().entries()));
  for (int i = 0; i < keys; ++i) ASSERT_EQ(*other.lookup(key(i)), value(i)) << i;
  EXPECT_GT(other.table().marks().*sample.stale, 0u);
  EXPECT_LE(other.table().marks().*sample.stale, sample.astray) << "it has read the directory, and still goes astray";
  EXPECT_EQ(a.count()->keys, static_cast<std::uint64_t>(keys));
  expect_sound(*bed);
}

inline Task<void> insert_and_look(Member& member, std::uint64_t task, int keys) {
  for (int i = 0; i < keys; ++i) {
    Cost cost;
    const std::string key = std::to_string(task) + "/" + std::to_string(i);
    const auto added = co_await member.table().insert(key, key, member.port().now() + kPatience, cost);
    EXPECT_TRUE(added.ok() && *added) << key << ": " << text(added.status());
    const auto found = co_await member.table().lookup(key, member.port().now() + kPatience, cost);
    EXPECT_TRUE(found.ok() && *found == key) << key << ": " << text(found.status());
  }
}

TEST_P(Growth, LosesNoKeyOfClientsThatWork) {
  const auto bed = make(sample.grows);
  const int keys = many(*bed) / 6;
  all_at_once(*bed, [&](Member& member, std::uint64_t task) { return insert_and_look(member, task, keys); });
  EXPECT_GT(marked(*bed, sample.splits), 1u);
  User user(*bed);
  EXPECT_EQ(user.count()->keys, 6u * static_cast<std::uint64_t>(keys));
  for (int task = 1; task <= 6; ++task) {
    for (int i = 0; i < keys; ++i) {
      const std::string key = std::to_string(task) + "/" + std::to_string(i);
      ASSERT_EQ(*user.lookup(key), key);
    }
  }
  expect_sound(*bed);
}

// One client fills the table meanwhile, and the others ask for splits besides.
inline Task<void> fill(Member& member, int keys, std::atomic<bool>& full) {
  co_await insert_and_look(member, 9, keys);
  full = true;
}
inline Task<void> work_until(Bed& bed, Member& member, Recorder& recorder, std::uint64_t seed,
                             const std::atomic<bool>& full) {
  for (std::uint64_t round = 1; round <= 12 && !full; ++round) {
    co_await work(bed, member, recorder, 100 * round + seed, 10, 24, {3, 60});
    Status split;
    co_await split_and_wait(member, "k" + std::to_string(seed), split);
    EXPECT_TRUE(split.ok() || split.code() == Code::out_of_memory) << text(split);
  }
}

TEST_P(Growth, HistoriesThroughSplitsAreLinearizable) {
  for (int seed = 1; seed <= ground.rounds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto bed = make(sample.grows, static_cast<std::uint64_t>(seed));
    Recorder recorder;
    std::atomic<bool> full = false;
    std::vector<Bed::Job> jobs;
    for (int i = 0; i < 4; ++i) bed->connect();
    for (std::uint64_t i = 0; i < 6; ++i) {
      Member& member = *bed->members()[i / 2];
      jobs.push_back({&member, work_until(*bed, member, recorder, static_cast<std::uint64_t>(10 * seed) + i, full)});
    }
    // Splits that are asked for leave half of the keys in one table, at the worst.
    const int keys = static_cast<int>(bed->geometry().entries() / bed->geometry().tables);
    jobs.push_back({bed->members()[3], fill(*bed->members()[3], keys, full)});
    bed->run(std::move(jobs));
    recorder.judge();
    EXPECT_GT(marked(*bed, sample.splits), 1u);
    expect_sound(*bed);
  }
}

// A client that read the directory before the splits is led to tables that the keys have left.
TEST_P(Growth, ServesClientsThatKnowAnOldDirectory) {
  const auto bed = make(sample.grows);
  User reads(*bed), writes(*bed), scans(*bed), filler(*bed);
  for (User* user : {&reads, &writes, &scans}) EXPECT_EQ(*user->lookup(key(0)), std::nullopt);
  const int keys = many(*bed);
  for (int i = 0; i < keys; ++i) ASSERT_TRUE(*filler.insert(key(i), value(i)));
  ASSERT_GT(marked(*bed, sample.splits), 1u);
  for (int i = 0; i < keys; ++i) ASSERT_EQ(*reads.lookup(key(i)), value(i));
  EXPECT_GT(reads.table().marks().*sample.stale, 0u);
  for (int i = 0; i + 2 < keys; i += 3) {
    ASSERT_FALSE(*writes.insert(key(i), "twice"));
    ASSERT_TRUE(*writes.update(key(i + 1), "new"));
    ASSERT_TRUE(*writes.remove(key(i + 2)));
  }
  EXPECT_GT(writes.table().marks().*sample.stale, 0u);
  std::set<std::string> there;
  for (const auto& [key, often] : scan_all(scans, 10)) there.insert(key);
  EXPECT_EQ(there.size(), static_cast<std::size_t>(keys - keys / 3));
  for (int i = 0; i < keys / 3 * 3; ++i) {
    const auto found = *filler.lookup(key(i));
    ASSERT_EQ(found, i % 3 == 2 ? std::nullopt : std::optional(i % 3 == 1 ? "new" : value(i))) << i;
  }
  expect_sound(*bed);
}

}  // namespace farpool::index::contract
