// SPDX-License-Identifier: Apache-2.0
#include "index/outback/seed.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <bit>
#include <span>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace farpool::outback {
namespace {

bool suits(std::span<const std::uint64_t> hashes, std::uint32_t seed) {
  std::uint32_t taken = 0;
  for (const std::uint64_t hash : hashes) taken |= 1u << slot_of(hash, static_cast<std::uint8_t>(seed));
  return static_cast<std::size_t>(std::popcount(taken)) == hashes.size();
}

RC_GTEST_PROP(SeedTest, FindsTheFirstSeedThatSuits, (std::uint64_t word, std::uint8_t first)) {
  base::Random random(word);
  std::vector<std::uint64_t> hashes(random.below(kBucketSlots + 1));
  for (std::uint64_t& hash : hashes) hash = random.next();
  std::uint32_t expected = first;
  while (expected < kSeeds && !suits(hashes, expected)) ++expected;
  const auto found = find_seed(hashes, first);
  RC_ASSERT(found.has_value() == (expected < kSeeds));
  if (found) RC_ASSERT(*found == expected);
}

TEST(SeedTest, NoSeedSuitsTwoEqualHashes) {
  EXPECT_EQ(find_seed(std::array<std::uint64_t, 2>{7, 7}), std::nullopt);
  EXPECT_EQ(find_seed(std::array<std::uint64_t, 4>{1, 2, 3, 1}), std::nullopt);
}

// 4! of 4^4 mappings are one to one. So a bucket needs 10.7 seeds on average, and one bucket in 10^11 has none.
TEST(SeedTest, SeedsSuitFourKeysAsOftenAsRandomMappings) {
  base::Random random(1);
  std::uint64_t suiting = 0;
  constexpr std::uint64_t kBuckets = 10000;
  std::array<std::uint64_t, kBucketSlots> in_slot{};
  for (std::uint64_t i = 0; i < kBuckets; ++i) {
    std::array<std::uint64_t, kBucketSlots> hashes{};
    for (std::uint64_t& hash : hashes) hash = random.next();
    for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
      suiting += suits(hashes, seed) ? 1 : 0;
      ++in_slot[slot_of(hashes[0], static_cast<std::uint8_t>(seed))];
    }
  }
  EXPECT_NEAR(static_cast<double>(suiting) / (kBuckets * kSeeds), 24.0 / 256, 0.001);
  for (const std::uint64_t count : in_slot) EXPECT_NEAR(static_cast<double>(count) / (kBuckets * kSeeds), 0.25, 0.001);
}

// Neighbouring hashes are no harder than others: bits that hashes share do not show in their slots.
TEST(SeedTest, SeedsSuitHashesThatDifferInOneBit) {
  std::uint64_t suiting = 0, all = 0;
  for (std::uint32_t a = 0; a < 64; ++a) {
    for (std::uint32_t b = 0; b < a; ++b) {
      const std::array<std::uint64_t, kBucketSlots> hashes = {0, 1ull << a, 1ull << b, 1ull << a | 1ull << b};
      for (std::uint32_t seed = 0; seed < kSeeds; ++seed, ++all) suiting += suits(hashes, seed) ? 1 : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(suiting) / static_cast<double>(all), 24.0 / 256, 0.005);
}

TEST(SeedTest, TheNewestVersionWins) {
  EXPECT_TRUE(newer(1, 0));
  EXPECT_FALSE(newer(0, 0));
  EXPECT_FALSE(newer(0, 1));
  EXPECT_TRUE(newer(0, 65535)) << "versions wrap";
  EXPECT_FALSE(newer(65535, 0));
  EXPECT_FALSE(newer(0, kOvertaken - 1)) << "a message that others overtook";
  EXPECT_TRUE(newer(0, kOvertaken)) << "the bucket has had very many seeds since";
}

TEST(SeedTest, AnotherSaltOrSecretHashesOtherwise) {
  const base::HashSecret secret{1, 2};
  const base::Bytes key = base::bytes_of(std::string_view("key"));
  EXPECT_EQ(hash_of(secret, 5, key), hash_of(secret, 5, key));
  EXPECT_NE(hash_of(secret, 5, key), hash_of(secret, 6, key));
  EXPECT_NE(hash_of(secret, 5, key), hash_of({1, 3}, 5, key));
  EXPECT_NE(hash_of(secret, 5, key), hash_of(secret, 5, base::bytes_of(std::string_view("kez"))));
}

}  // namespace
}  // namespace farpool::outback
