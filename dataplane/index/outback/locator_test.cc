// SPDX-License-Identifier: Apache-2.0
#include "index/outback/locator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "base/crc64.h"
#include "base/random.h"
#include "index/outback/build.h"

namespace farpool::outback {
namespace {

using base::Code;
using ::testing::HasSubstr;

std::vector<std::uint64_t> random_hashes(std::uint64_t count, std::uint64_t seed) {
  base::Random random(seed);
  std::vector<std::uint64_t> hashes(count);
  for (std::uint64_t& hash : hashes) hash = random.next();
  return hashes;
}

Locator locator_of(std::uint64_t keys) {
  const auto hashes = random_hashes(keys, 1);
  return build(*LocatorShape::of(LocatorShape::buckets_for(keys, 0.85), keys), 3, 9, hashes).locator;
}

std::vector<std::uint64_t> words_of(const Locator& locator) { return {locator.words().begin(), locator.words().end()}; }

// Changes a word of the header, and makes its checksum match.
std::vector<std::uint64_t> with_header_word(std::vector<std::uint64_t> words, std::size_t word, std::uint64_t value) {
  words[word] = value;
  words[9] = base::crc64(std::as_bytes(std::span(words).first(9)));
  return words;
}

TEST(LocatorTest, ASerialisedLocatorFindsTheSame) {
  const Locator locator = locator_of(30'000);
  const auto parsed = Locator::parse(words_of(locator));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->header(), locator.header());
  EXPECT_EQ(parsed->header().generation, 3u);
  EXPECT_EQ(parsed->header().salt, 9u);
  EXPECT_EQ(parsed->header().keys, 30'000u);
  for (const std::uint64_t hash : random_hashes(50'000, 1)) ASSERT_EQ(parsed->find(hash), locator.find(hash));
}

TEST(LocatorTest, RefusesAHeaderThatCannotBe) {
  const auto words = words_of(locator_of(100));
  const auto refusal = [&words](std::size_t word, std::uint64_t value) {
    const auto changed = with_header_word(words, word, value);
    const auto header = LocatorHeader::parse(std::as_bytes(std::span(changed)));
    EXPECT_FALSE(header.ok()) << word;
    EXPECT_EQ(header.code(), Code::corrupt);
    EXPECT_FALSE(Locator::parse(changed).ok());
    return header.status().message();
  };
  EXPECT_THAT(refusal(0, 1), HasSubstr("there is no locator here"));
  EXPECT_THAT(refusal(1, 2), HasSubstr("format 2"));
  EXPECT_THAT(refusal(2, 0), HasSubstr("generation 0"));
  EXPECT_THAT(refusal(4, 1000), HasSubstr("1000 keys in"));
  EXPECT_THAT(refusal(5, 0), HasSubstr("0 partitions"));
  EXPECT_THAT(refusal(5, ~0ull), HasSubstr("partitions of"));
  EXPECT_THAT(refusal(5, 1 | 4097ull << 32), HasSubstr("4097 buckets in a partition"));
  EXPECT_THAT(refusal(6, 0), HasSubstr("arrays of 0 words"));
  EXPECT_THAT(refusal(6, 1ull << 32 | 1), HasSubstr("doubled 1 times of 0"));
  EXPECT_THAT(refusal(6, 1ull << 40 | 1ull << 32 | 1), HasSubstr("doubled 1 times of 1"));
  EXPECT_THAT(refusal(7, 5), HasSubstr("says 5 words"));
  EXPECT_THAT(LocatorHeader::parse(std::as_bytes(std::span(words)).first(79)).status().message(), HasSubstr("79"));
}

TEST(LocatorTest, RefusesFlippedBitsExceptOfSeeds) {
  const Locator locator = locator_of(300);
  const auto words = words_of(locator);
  const LocatorShape& shape = locator.header().shape;
  const std::size_t seeds = LocatorHeader::kWords + 1 + 2 * shape.array_words;
  ASSERT_EQ(shape.partitions, 1u);
  for (std::size_t word = 0; word < words.size(); ++word) {
    for (std::uint32_t bit = 0; bit < 64; ++bit) {
      auto changed = words;
      changed[word] ^= 1ull << bit;
      ASSERT_EQ(Locator::parse(std::move(changed)).ok(), word >= seeds) << "word " << word << ", bit " << bit;
    }
  }
}

TEST(LocatorTest, RefusesAnotherLength) {
  auto words = words_of(locator_of(300));
  words.push_back(0);
  EXPECT_THAT(Locator::parse(words).status().message(), HasSubstr("and there are"));
  words.resize(words.size() - 2);
  EXPECT_THAT(Locator::parse(words).status().message(), HasSubstr("and there are"));
  EXPECT_FALSE(Locator::parse({}).ok());
}

TEST(LocatorTest, AShapeSaysWhatCannotBe) {
  EXPECT_THAT(LocatorShape::of(0, 0).status().message(), HasSubstr("buckets, not 0"));
  EXPECT_THAT(LocatorShape::of(LocatorShape::kMostBuckets + 1, 0).status().message(), HasSubstr("buckets, not"));
  EXPECT_THAT(LocatorShape::of(10, 41).status().message(), HasSubstr("too small for 41 keys"));
}

// OB-15, OB-16: less than the paper's figures, at its load of 0.85.
TEST(LocatorTest, TakesFewBitsForEachKey) {
  const auto client_bytes = [](std::uint64_t keys) {
    return Locator::bytes_of(*LocatorShape::of(LocatorShape::buckets_for(keys, 0.85), keys));
  };
  EXPECT_LE(client_bytes(20'000'000), 12'500'000u);
  EXPECT_LE(client_bytes(64'000'000), 50'000'000u);
  EXPECT_LE(client_bytes(100'000'000), 60'000'000u);
}

TEST(LocatorTest, ShapesHaveTheBucketsThatAreWanted) {
  for (const std::uint64_t buckets : {1ull, 2ull, 4095ull, 4096ull, 4097ull, 10'000ull, 5'882'353ull, 1ull << 31}) {
    const LocatorShape shape = *LocatorShape::of(buckets, 0);
    EXPECT_TRUE(shape.check().ok()) << shape.check().message();
    EXPECT_GE(shape.table_buckets(), buckets);
    EXPECT_LT(shape.table_buckets(), buckets + shape.partitions);
  }
}

TEST(LocatorTest, LearnsTheNewestSeed) {
  Locator locator = locator_of(1000);
  const std::uint64_t hash = random_hashes(1, 1)[0];
  const Spot spot = locator.find(hash);
  const auto other = static_cast<std::uint8_t>(spot.seed + 1);
  EXPECT_FALSE(locator.learn(spot.bucket, {spot.seed, 4})) << "the seed is the same";
  EXPECT_TRUE(locator.learn(spot.bucket, {other, 5}));
  EXPECT_EQ(locator.find(hash), (Spot{spot.bucket, slot_of(hash, other), other}));
  EXPECT_FALSE(locator.learn(spot.bucket, {spot.seed, 4})) << "an answer that was overtaken";
  EXPECT_FALSE(locator.learn(spot.bucket, {77, 5})) << "the same version";
  EXPECT_EQ(locator.seed_of(spot.bucket), other);
  EXPECT_TRUE(locator.learn(spot.bucket, {77, 6}));
  EXPECT_FALSE(locator.learn(static_cast<std::uint32_t>(locator.header().shape.table_buckets()), {1, 1}));
  EXPECT_EQ(Locator::parse(words_of(locator))->seed_of(spot.bucket), 77) << "seeds are not in the checksum";
}

TEST(LocatorTest, ABucketThatLostItsVersionTakesAnySeed) {
  Locator locator = locator_of(1000);  // versions of 64 buckets
  EXPECT_TRUE(locator.learn(1, {static_cast<std::uint8_t>(locator.seed_of(1) + 1), 9}));
  EXPECT_TRUE(locator.learn(65, {static_cast<std::uint8_t>(locator.seed_of(65) + 1), 2}));
  EXPECT_TRUE(locator.learn(1, {static_cast<std::uint8_t>(locator.seed_of(1) + 1), 8}));
}

TEST(LocatorTest, ThreadsLearnTheNewestSeed) {
  Locator locator = locator_of(1000);
  constexpr std::uint16_t kVersions = 250;  // fewer than messages may be apart
  const auto learn = [&locator](std::uint16_t first) {
    for (std::uint32_t bucket = 0; bucket < 64; ++bucket) {
      for (std::uint16_t version = first; version <= kVersions; version = static_cast<std::uint16_t>(version + 3)) {
        locator.learn(bucket, {static_cast<std::uint8_t>(version), version});
        locator.find(version);
      }
    }
  };
  std::array<std::thread, 3> threads = {std::thread(learn, 1), std::thread(learn, 2), std::thread(learn, 3)};
  for (std::thread& thread : threads) thread.join();
  for (std::uint32_t bucket = 0; bucket < 64; ++bucket) EXPECT_EQ(locator.seed_of(bucket), kVersions) << bucket;
}

}  // namespace
}  // namespace farpool::outback
