// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/random.h"
#include "index/cuckooduo/bed_test.h"

namespace farpool::cuckooduo {
namespace {

using ::testing::HasSubstr;

// A table in which prints collide all the time.
Shape crowded(std::uint32_t second = 2) {
  return {.buckets = 5,
          .slots = 4,
          .second = second,
          .print_bits = 4,
          .path = 2,
          .slot_bytes = 48,
          .stash = 8,
          .spares = 2};
}

std::string key_of(std::uint64_t i) { return (i % 5 == 0 ? "@" : "k") + std::to_string(i); }

// What changes have come to: a test that has not met one of these has shown little.
struct Met {
  std::uint64_t moved = 0, seconds = 0, stashed = 0, replaced = 0, full = 0, busy = 0;
};

TEST(PlannerTest, ATableHasWhatWasPut) {
  for (const std::uint32_t second : {0u, 1u, 2u}) {
    Bed bed(crowded(second));
    base::Random random(second + 1);
    Met met;
    for (int i = 0; i < 6000; ++i) {
      const std::string key = key_of(random.below(60));
      const bool there = bed.pairs.contains(key);
      if (random.below(3) == 0) {
        EXPECT_EQ(bed.remove(key), there ? Advice::write : Advice::absent);
      } else {
        const Advice step = bed.put(key, std::to_string(i));
        met.replaced += there ? 1 : 0;
        met.moved += step == Advice::write ? bed.scratch.moves() : 0;
        met.full += step == Advice::full ? 1 : 0;
        ASSERT_TRUE(step == Advice::write || (step == Advice::full && !there));
      }
      met.stashed += bed.index.stashed();
      for (Place place = 0; place < bed.shape.stash_begin(); ++place) {
        met.seconds += bed.shape.is_second(place) && bed.index.taken(place) ? 1 : 0;
      }
      ASSERT_TRUE(bed.planner.idle());
      bed.expect_pairs();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "second " << second << ", change " << i;
    }
    EXPECT_GT(met.moved, 0u);
    EXPECT_EQ(met.seconds > 0, second > 0);
    EXPECT_GT(met.stashed, 0u);
    EXPECT_GT(met.replaced, 0u);
    EXPECT_GT(met.full, 0u);
  }
}

TEST(PlannerTest, AnInsertWithRoomIsOneWrite) {
  Bed bed({.buckets = 1000});
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(bed.put("k" + std::to_string(i), "v"), Advice::write);
  EXPECT_EQ(bed.reads, 0u);
  ASSERT_EQ(bed.scratch.effects().size(), 1u);
  EXPECT_EQ(bed.scratch.effects()[0].kind, Effect::Kind::pair);
}

TEST(PlannerTest, AReplacementIsWholeInTheStashFirst) {
  Bed bed({.buckets = 10});
  ASSERT_EQ(bed.put("k", "v"), Advice::write);
  const Place place = bed.scratch.effects()[0].place;
  ASSERT_EQ(bed.put("k", "w"), Advice::write);
  EXPECT_EQ(bed.reads, 1u);
  ASSERT_EQ(bed.scratch.effects().size(), 3u);
  EXPECT_TRUE(bed.shape.in_stash(bed.scratch.effects()[0].place));
  EXPECT_EQ(bed.scratch.effects()[1].place, place);
  EXPECT_EQ(bed.scratch.effects()[2].kind, Effect::Kind::clear);
  bed.expect_pairs();
}

// An owner may die after any word of any effect of a change, whichever way the words of a WRITE land; and the next one
// after any word of its repairs.
TEST(PlannerTest, TheOwnerMayDieAfterAnyEffect) {
  for (const std::uint32_t second : {0u, 1u, 2u}) {
    Bed bed(crowded(second));
    base::Random random(second + 11);
    std::uint64_t deaths = 0, older = 0, torn = 0, moved = 0;
    for (int i = 0; i < 250; ++i) {
      const std::string key = key_of(random.below(56));
      const bool removes = random.below(4) == 0;
      const std::string value = std::to_string(i);
      Planned change;
      ASSERT_TRUE(bed.planner.begin(change, Bed::hash_of(key)));
      const Advice step = bed.drive(
          change, key, [&](Planned& one) { return removes ? bed.planner.remove(one) : bed.planner.put(one); });
      if (step != Advice::write) {
        bed.planner.abort(change);
        continue;
      }
      moved += change.moves();
      Pairs after = bed.pairs;
      if (removes) {
        after.erase(key);
      } else {
        after[key] = value;
      }
      for (const bool upwards : {true, false}) {
        const std::vector<Word> words = bed.words(change, key, value, upwards);
        for (std::size_t landed = 0; landed <= words.size(); ++landed) {
          std::vector<std::byte> bytes = bed.vault;
          Bed::land(bytes, std::span(words).first(landed));
          auto rebuilt = bed.rebuild_from(bytes);
          ASSERT_TRUE(rebuilt.ok()) << rebuilt.status().message();
          ++deaths;
          older += rebuilt->older;
          torn += rebuilt->torn;
          ASSERT_EQ(rebuilt->misplaced, 0u);
          const bool done = rebuilt->index.keys() == after.size() && bed.found(rebuilt->index, bytes, after) == after;
          const Pairs& expected = done ? after : bed.pairs;
          if (landed == 0 && after != bed.pairs) ASSERT_FALSE(done);
          if (landed == words.size()) ASSERT_TRUE(done);
          const std::vector<Word> repairs = bed.words(rebuilt->repairs, bytes, upwards, {});
          for (std::size_t repaired = 0; repaired <= repairs.size(); ++repaired) {
            std::vector<std::byte> mended = bytes;
            Bed::land(mended, std::span(repairs).first(repaired));
            if (repaired == repairs.size()) {
              bed.expect(rebuilt->index, mended, expected);
            } else {
              auto again = bed.rebuild_from(mended);
              ASSERT_TRUE(again.ok());
              Bed::land(mended, bed.words(again->repairs, mended, upwards, {}));
              bed.expect(again->index, mended, expected);
            }
            ASSERT_FALSE(::testing::Test::HasFailure())
                << "second " << second << ", change " << i << ", word " << landed;
          }
          EXPECT_GE(rebuilt->next_version, 1u);
        }
      }
      Bed::land(bed.vault, bed.words(change, key, value, true));
      bed.planner.commit(change);
      bed.pairs = after;
    }
    EXPECT_GT(deaths, 3000u);
    EXPECT_GT(older, 0u);
    EXPECT_GT(torn, 0u);
    EXPECT_GT(moved, 0u);
  }
}

// Several changes under way at once, a READ or a word at a time, in an order by chance.
class Crowd {
 public:
  Crowd(Bed& bed, std::uint64_t seed, std::size_t changes) : bed_(bed), random_(seed), jobs_(changes) {}

  void step() {
    Job& job = jobs_[random_.below(jobs_.size())];
    if (!job.running) {
      start(job);
    } else if (job.landed < job.words.size()) {
      Bed::land(bed_.vault, std::span(job.words).subspan(job.landed++, 1));
      if (job.landed == job.words.size()) finish(job);
    } else if (!job.change.wanted().empty()) {
      bed_.learn(job.change, job.key, job.change.wanted()[random_.below(job.change.wanted().size())]);
    } else {
      plan(job);
    }
  }
  // Expects what has been acknowledged, and either outcome of what is under way.
  void expect_after_death() const {
    auto rebuilt = bed_.rebuild_from(bed_.vault);
    ASSERT_TRUE(rebuilt.ok()) << rebuilt.status().message();
    EXPECT_EQ(rebuilt->misplaced, 0u);
    std::vector<std::byte> mended = bed_.vault;
    Bed::land(mended, bed_.words(rebuilt->repairs, bed_.vault, true, {}));
    Pairs expected = bed_.pairs;
    for (const Job& job : jobs_) {
      if (!job.running) continue;
      const auto there = bed_.get(rebuilt->index, mended, job.key);
      const auto before = expected.find(job.key);
      const bool is_before = there ? before != expected.end() && before->second == *there : before == expected.end();
      const bool is_after = there ? !job.removes && *there == job.value : job.removes;
      EXPECT_TRUE(is_before || is_after);
      if (there) {
        expected[job.key] = *there;
      } else {
        expected.erase(job.key);
      }
    }
    bed_.expect(rebuilt->index, mended, expected);
  }
  Met met;

 private:
  struct Job {
    Planned change;
    bool running = false, removes = false;
    std::string key, value;
    std::vector<Word> words;
    std::size_t landed = 0;
  };

  void start(Job& job) {
    job.key = key_of(random_.below(80));
    job.value = std::to_string(++values_);
    job.removes = random_.below(3) == 0;
    job.words.clear();
    job.landed = 0;
    job.running = bed_.planner.begin(job.change, Bed::hash_of(job.key));
    met.busy += job.running ? 0 : 1;
  }
  void plan(Job& job) {
    const Advice step = job.removes ? bed_.planner.remove(job.change) : bed_.planner.put(job.change);
    if (step == Advice::read) return;
    if (step == Advice::write) {
      met.moved += job.change.moves();
      job.words = bed_.words(job.change, job.key, job.value, random_.below(2) == 0);
      return;
    }
    met.busy += step == Advice::busy ? 1 : 0;
    met.full += step == Advice::full ? 1 : 0;
    bed_.planner.abort(job.change);
    job.running = false;
  }
  void finish(Job& job) {
    bed_.planner.commit(job.change);
    job.running = false;
    if (job.removes) {
      bed_.pairs.erase(job.key);
    } else {
      bed_.pairs[job.key] = job.value;
    }
  }

  Bed& bed_;
  base::Random random_;
  std::vector<Job> jobs_;
  std::uint64_t values_ = 0;
};

TEST(PlannerTest, ChangesAtOnceDoNotDisturbEachOther) {
  for (const std::uint32_t second : {0u, 1u, 2u}) {
    Bed bed(crowded(second));
    Crowd crowd(bed, second + 5, 4);
    for (int i = 0; i < 20'000; ++i) {
      crowd.step();
      if (i % 3 == 0) crowd.expect_after_death();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "second " << second << ", step " << i;
    }
    EXPECT_GT(crowd.met.busy, 0u);
    EXPECT_GT(crowd.met.full, 0u);
    EXPECT_GT(crowd.met.moved, 0u);
  }
}

TEST(PlannerTest, OneChangeOfAKeyAtATime) {
  Bed bed({.buckets = 10});
  Planned one, other;
  ASSERT_TRUE(bed.planner.begin(one, 5));
  EXPECT_FALSE(bed.planner.begin(other, 5));
  bed.planner.abort(one);
  EXPECT_TRUE(bed.planner.begin(other, 5));
  bed.planner.abort(other);
  EXPECT_TRUE(bed.planner.idle());
}

TEST(PlannerTest, AnotherWriterIsNoticed) {
  Bed bed({.buckets = 10});
  ASSERT_EQ(bed.put("k", "v"), Advice::write);
  Planned change;
  ASSERT_TRUE(bed.planner.begin(change, Bed::hash_of("k")));
  ASSERT_EQ(change.wanted().size(), 1u);
  const auto status = bed.planner.learn(change, change.wanted()[0], Bed::hash_of("k") + (1ull << 62), false);
  EXPECT_EQ(status.code(), base::Code::corrupt);
  EXPECT_THAT(status.message(), HasSubstr("another key at place"));
  bed.planner.abort(change);
}

// Somebody who has the secret can choose keys of one hash: they fill some of the stash and nothing else.
TEST(PlannerTest, KeysOfOneHashTakeFewPlaces) {
  Shape shape{.buckets = 10};
  FingerIndex index(shape, 7);
  Planner planner(index, 1);
  std::size_t placed = 0;
  for (;; ++placed) {
    Planned change;
    ASSERT_TRUE(planner.begin(change, 99));
    Advice step = Advice::read;
    while ((step = planner.put(change)) == Advice::read) {
      while (!change.wanted().empty()) ASSERT_TRUE(planner.learn(change, change.wanted().front(), 99, false).ok());
    }
    if (step == Advice::full) {
      planner.abort(change);
      break;
    }
    planner.commit(change);
    ASSERT_LT(placed, 10u);
  }
  EXPECT_EQ(placed, 1 + FingerIndex::kMostTwins);
  EXPECT_EQ(index.find(99).count, placed);
  EXPECT_TRUE(planner.idle());
}

}  // namespace
}  // namespace farpool::cuckooduo
