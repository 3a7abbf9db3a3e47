// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "base/bytes.h"
#include "base/crc64.h"
#include "base/hash.h"
#include "base/queue.h"
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

TEST(Queue, IsADeque) {
  Random random(7);
  Queue<std::string> queue;
  std::deque<std::string> model;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t what = random.below(20);
    if (what < 11 && model.size() < 100) {
      queue.push_back(std::to_string(i));
      model.push_back(std::to_string(i));
    } else if (what == 11) {
      const auto is_gone = [](const std::string& one) { return one.back() < '3'; };
      queue.erase_if(is_gone);
      std::erase_if(model, is_gone);
    } else if (what > 11 && !model.empty()) {
      ASSERT_EQ(queue.front(), model.front());
      ASSERT_EQ(queue.back(), model.back());
      what < 18 ? queue.pop_front() : queue.pop_back();
      what < 18 ? model.pop_front() : model.pop_back();
    }
    ASSERT_EQ(queue.size(), model.size());
    for (std::size_t at = 0; at < model.size(); ++at) ASSERT_EQ(queue[at], model[at]);
  }
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
