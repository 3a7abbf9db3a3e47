// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/finger_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "base/random.h"
#include "index/cuckooduo/filled.h"
#include "index/cuckooduo/front_cache.h"
#include "index/cuckooduo/theorems.h"

namespace farpool::cuckooduo {
namespace {

TEST(LocateTest, AlternatesLeadBothWays) {
  base::Random random(1);
  for (const std::uint32_t buckets : {1u, 2u, 3u, 1000u, Shape::kMostBuckets}) {
    const Shape shape{.buckets = buckets, .print_bits = 12};
    for (int i = 0; i < 1000; ++i) {
      const Spots spots = Spots::of(random.next(), shape, 3);
      ASSERT_LT(spots.row1, buckets);
      ASSERT_GE(spots.row2, buckets);
      ASSERT_LT(spots.row2, shape.rows());
      EXPECT_EQ(other_row(spots.row1, spots.first, shape, 3), spots.row2);
      EXPECT_EQ(other_row(spots.row2, spots.first, shape, 3), spots.row1);
      EXPECT_TRUE(spots.first > 0 && spots.first < 1u << 12 && spots.second > 0 && spots.second < 1u << 12);
    }
  }
}

TEST(LocateTest, AllPrintsOccurAndNoneIsZero) {
  for (const std::uint32_t bits : {4u, 11u, 16u}) {
    std::map<Print, int> seen;
    for (std::uint32_t i = 0; i < 1u << 16; ++i) ++seen[print_from(i, bits)];
    EXPECT_EQ(seen.size(), (1u << bits) - 1);
    EXPECT_FALSE(seen.contains(0));
  }
}

// What one knows of collisions under one secret says nothing of another.
TEST(LocateTest, CollisionsDependOnTheSecret) {
  const Shape shape{.buckets = 64, .print_bits = 8};
  const base::HashSecret known{1, 2}, other{3, 4};
  std::vector<std::string> chosen;
  const auto spots = [&](const base::HashSecret& secret, const std::string& key) {
    return Spots::of(base::keyed_hash(secret, base::bytes_of(key)), shape, 0);
  };
  for (int i = 0; chosen.size() < 200; ++i) {
    std::string key = std::to_string(i);
    if (spots(known, key).row1 == 0) chosen.push_back(std::move(key));
  }
  std::map<std::uint64_t, int> rows;
  for (const std::string& key : chosen) ++rows[spots(other, key).row1];
  for (const auto& [row, count] : rows) EXPECT_LT(count, 20) << row;
}

TEST(FingerIndexTest, PrintsAreKeptInTheirBits) {
  for (std::uint32_t bits = 4; bits <= 16; ++bits) {
    const Shape shape{.buckets = 9, .slots = 5, .second = 1, .print_bits = bits, .stash = 3, .spares = 1};
    FingerIndex index(shape, 1);
    base::Random random(bits);
    std::map<Place, std::uint64_t> model;
    for (int i = 0; i < 2000; ++i) {
      const Place place = random.below(shape.end());
      if (random.below(3) == 0) {
        index.clear(place);
        model.erase(place);
      } else {
        model[place] = random.next();
        index.put(place, model[place]);
      }
    }
    EXPECT_EQ(index.keys(), model.size());
    for (Place place = 0; place < shape.end(); ++place) {
      ASSERT_EQ(index.taken(place), model.contains(place));
      if (!model.contains(place)) continue;
      if (shape.in_stash(place)) {
        EXPECT_EQ(index.stashed_hash(place), model[place]);
      } else {
        EXPECT_EQ(index.print(place), index.spots(model[place]).at(place, shape));
      }
    }
  }
}

// CD-08 counts the prints alone: so many bits a slot, and a stash beside them.
TEST(FingerIndexTest, TakesNoMoreThanItsPrints) {
  const Shape shape{.buckets = 10'000, .print_bits = 13};
  EXPECT_LE(FingerIndex(shape, 0).bytes(), shape.stash_begin() * 13 / 8 + 5 + shape.stash * 16);
}

double sigmas(double counted, double expected) { return (counted - expected) / std::sqrt(expected); }

TEST(TheoremTest, PapersExample) {
  const Shape shape{.buckets = 3'750'000, .slots = 4};
  EXPECT_NEAR(collisions_of_one_print(shape, 0.95), 1653, 1);
  EXPECT_NEAR(collisions_of_two_prints(shape), 0.07, 0.001);
}

TEST(TheoremTest, CollisionsOfOnePrint) {  // IV.1
  const Shape shape{.buckets = 20'000, .slots = 4, .second = 0, .print_bits = 12};
  Filled table(shape, 1);
  table.fill_to(0.8);
  EXPECT_LT(std::abs(sigmas(static_cast<double>(table.collided()), collisions_of_one_print(shape, 0.8))), 4);
}

TEST(TheoremTest, CollisionsOfTwoPrints) {  // IV.2
  const Shape shape{.buckets = 20'000, .slots = 8, .second = 2, .print_bits = 10};
  Filled table(shape, 2);
  table.fill_to(0.8);
  EXPECT_GT(collisions_of_one_print(shape, 0.8), 1000);
  EXPECT_LT(sigmas(static_cast<double>(table.unresolved()), collisions_of_two_prints(shape)), 4);
}

// IV.3 takes the buckets that a search looks at for independent of each other. Here a pair is in a full bucket because
// its other bucket was no emptier, so that more searches fail.
TEST(TheoremTest, KeysWithoutAPath) {
  const Shape shape{.buckets = 20'000, .slots = 4, .second = 0, .print_bits = 16, .path = 1};
  Filled table(shape, 3);
  const double expected = table.fill_to(0.9);
  const auto counted = static_cast<double>(table.without_a_path());
  EXPECT_GT(counted, 100);
  EXPECT_GT(counted, expected);
  EXPECT_LT(counted, expected * 5);
}

base::Bytes of(const std::string& text) { return base::bytes_of(text); }

TEST(FrontCacheTest, KeepsWhatWasUsedLast) {
  FrontCache cache(8 * 200, 64);
  ASSERT_EQ(cache.pairs(), FrontCache::kWays * (8 * 200 / (8 * (24 + 40))));
  const std::uint64_t set = 5;  // all keys have one hash, and so one set
  for (int i = 0; i < 8; ++i) cache.put(set, of(std::to_string(i)), of("v"));
  ASSERT_TRUE(cache.get(set, of("0")));
  cache.put(set, of("8"), of("v8"));
  EXPECT_TRUE(cache.get(set, of("0")));
  EXPECT_FALSE(cache.get(set, of("1"))) << "it was used longest ago";
  EXPECT_EQ(base::text_of(*cache.get(set, of("8"))), "v8");
  cache.put(set, of("8"), of("w"));
  EXPECT_EQ(base::text_of(*cache.get(set, of("8"))), "w");
  cache.put(set, of("8"), of(std::string(40, 'x')));
  EXPECT_FALSE(cache.get(set, of("8"))) << "the pair that does not fit has replaced it";
  cache.forget(set, of("0"));
  EXPECT_FALSE(cache.get(set, of("0")));
}

TEST(FrontCacheTest, MayBeTooSmallForAnything) {
  FrontCache cache(100, 64);
  cache.put(1, of("k"), of("v"));
  EXPECT_FALSE(cache.get(1, of("k")));
  EXPECT_EQ(cache.pairs(), 0u);
}

}  // namespace
}  // namespace farpool::cuckooduo
