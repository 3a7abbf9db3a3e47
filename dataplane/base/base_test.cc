// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"
#include "base/crc64.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/result.h"

namespace farpool::base {
namespace {

TEST(Crc64, MatchesThePublishedCheckValueAndChains) {
  // CRC-64/XZ of "123456789".
  const std::string text = "123456789";
  EXPECT_EQ(crc64(bytes_of(std::string_view(text))), 0x995dc9bbdf1939faull);
  EXPECT_EQ(crc64(bytes_of(std::string_view("456789")), crc64(bytes_of(std::string_view("123")))),
            crc64(bytes_of(std::string_view(text))));
}

TEST(Hash, DependsOnBothHalvesOfTheSecret) {
  const auto key = bytes_of(std::string_view("key"));
  const auto hash = keyed_hash({1, 2}, key);
  EXPECT_EQ(hash, keyed_hash({1, 2}, key));
  EXPECT_NE(hash, keyed_hash({3, 2}, key));
  EXPECT_NE(hash, keyed_hash({1, 3}, key));
}

TEST(Random, IsAFunctionOfItsSeedAndStaysInBounds) {
  Random a(1), b(1), c(2);
  EXPECT_EQ(a.next(), b.next());
  EXPECT_NE(a.next(), c.next());
  for (int i = 0; i < 1000; ++i) EXPECT_LT(a.below(7), 7u);
}

TEST(Result, HoldsEitherAValueOrAReason) {
  Result<int> good(3);
  Result<int> bad(Status(Code::too_large, "the key has 70000 bytes; the limit is 65536"));
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(*good, 3);
  EXPECT_EQ(bad.code(), Code::too_large);
  EXPECT_EQ(name_of(bad.code()), "too large");
}

}  // namespace
}  // namespace farpool::base
