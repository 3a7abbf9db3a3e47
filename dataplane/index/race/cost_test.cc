// SPDX-License-Identifier: Apache-2.0
// What operations cost, next to the paper's figures.
#include <gtest/gtest.h>

#include <string>

#include "index/race/stage_test.h"

namespace farpool::race {
namespace {

// RA-03, RA-05 and section 6.1 of the paper's figures, with 16 bytes of key and 32 of value: 2 trips to search, 3 to
// insert, update and delete. Bytes as RoCEv2 would carry them. An insert has one CAS more than the paper's, which makes
// it exact, and what changes the count of keys has a WRITE of counters that nobody waits for.
TEST(Cost, IsThatOfThePaper) {
  constexpr std::uint64_t kReadBuckets = 2 * (74 + 62 + 128), kReadBlock = 74 + 62 + 64, kWriteBlock = 74 + 64 + 62,
                          kReadKey = 74 + 62 + 32, kCas = 86 + 70, kCount = 74 + 24 + 62;
  StageTeller teller;
  index::contract::Stage stage(teller, 1);
  const std::string key = "sixteen-byte-key";
  const auto costs = [&stage](const std::string& line) {
    (void)stage.run(line);
    const fabric::Cost& cost = stage.cost();
    return std::to_string(cost.trips) + " " + std::to_string(cost.messages) + " " + std::to_string(cost.bytes);
  };
  const auto figures = [](int trips, int messages, std::uint64_t bytes) {
    return std::to_string(trips) + " " + std::to_string(messages) + " " + std::to_string(bytes);
  };
  EXPECT_EQ(costs("lookup " + key), figures(1, 2, kReadBuckets)) << "a miss needs no second look";
  EXPECT_EQ(costs("update " + key + " *32"), figures(1, 3, kReadBuckets + kWriteBlock));
  EXPECT_EQ(costs("remove " + key), figures(1, 2, kReadBuckets));
  constexpr std::uint64_t kSetMark = kCas;  // an FAA as long as a CAS; of groups that had no slot before
  EXPECT_EQ(costs("insert " + key + " *32"),
            figures(3, 9, 2 * kReadBuckets + kWriteBlock + kSetMark + 2 * kCas + kCount));
  EXPECT_EQ(costs("lookup " + key), figures(2, 3, kReadBuckets + kReadBlock));
  EXPECT_EQ(costs("update " + key + " *32"), figures(3, 5, kReadBuckets + kWriteBlock + kReadKey + kCas));
  EXPECT_EQ(costs("put " + key + " *32"), figures(3, 5, kReadBuckets + kWriteBlock + kReadKey + kCas));
  EXPECT_EQ(costs("remove " + key), figures(3, 5, kReadBuckets + kReadKey + kCas + kCount));
  EXPECT_EQ(costs("put " + key + " *32"), figures(3, 8, 2 * kReadBuckets + kWriteBlock + 2 * kCas + kCount));
  EXPECT_EQ(costs("modify " + key + " "), figures(3, 5, kReadBuckets + kReadBlock + kWriteBlock + kCas));
}

}  // namespace
}  // namespace farpool::race
