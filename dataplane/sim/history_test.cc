// SPDX-License-Identifier: Apache-2.0
#include "sim/history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/marks.h"
#include "base/random.h"

namespace farpool::sim {
namespace {

using Kind = Call::Kind;

Call call(Kind kind, Nanos asked, Nanos answered, std::string value, std::optional<std::string> found = {}) {
  return {.kind = kind,
          .key = "k",
          .value = std::move(value),
          .found = std::move(found),
          .asked = asked,
          .answered = answered};
}
Call unknown(Kind kind, Nanos asked, std::string value) {
  Call result = call(kind, asked, std::numeric_limits<Nanos>::max(), std::move(value));
  result.known = false;
  return result;
}

TEST(History, OneAfterAnother) {
  EXPECT_TRUE(linearizable({}));
  EXPECT_TRUE(linearizable({call(Kind::get, 0, 1, ""), call(Kind::put, 2, 3, "a"), call(Kind::get, 4, 5, "", "a")}));
  EXPECT_FALSE(linearizable({call(Kind::put, 0, 1, "a"), call(Kind::get, 2, 3, "")})) << "a lost write";
  EXPECT_FALSE(linearizable({call(Kind::put, 0, 1, "a"), call(Kind::put, 2, 3, "b"), call(Kind::get, 4, 5, "", "a")}))
      << "a stale read";
}

TEST(History, WhatOverlapsMayComeInAnyOrder) {
  EXPECT_TRUE(linearizable({call(Kind::put, 0, 10, "a"), call(Kind::get, 1, 2, ""), call(Kind::get, 3, 4, "", "a")}));
  EXPECT_FALSE(linearizable({call(Kind::put, 0, 10, "a"), call(Kind::get, 1, 2, "", "a"), call(Kind::get, 3, 4, "")}))
      << "what was seen is gone again";
}

TEST(History, OnlyOneInsertWins) {
  EXPECT_TRUE(linearizable({call(Kind::insert, 0, 10, "a"), call(Kind::insert, 0, 10, "b", "there")}));
  EXPECT_FALSE(linearizable({call(Kind::insert, 0, 10, "a"), call(Kind::insert, 0, 10, "b")}));
  EXPECT_FALSE(linearizable({call(Kind::insert, 0, 10, "a", "there")})) << "nobody was there";
  EXPECT_FALSE(linearizable(
      {call(Kind::put, 0, 1, "a"), call(Kind::remove, 2, 9, "", "there"), call(Kind::remove, 2, 9, "", "there")}));
}

TEST(History, EverySumIsToldOnce) {
  EXPECT_TRUE(linearizable({call(Kind::add, 0, 9, "", "2"), call(Kind::add, 0, 9, "", "1")}));
  EXPECT_FALSE(linearizable({call(Kind::add, 0, 9, "", "1"), call(Kind::add, 0, 9, "", "1")})) << "a lost increment";
}

// As when a memory node that may have had the key lost its memory: either the key was gone from then on, or it is still
// there.
TEST(History, AnUnknownCallHappenedInTimeOrNot) {
  Call lost = unknown(Kind::remove, 4, "");
  lost.answered = 4;
  const Call put = call(Kind::put, 0, 1, "a");
  EXPECT_TRUE(linearizable({put, lost, call(Kind::get, 5, 6, "", "a"), call(Kind::get, 7, 8, "", "a")}));
  EXPECT_TRUE(linearizable({put, lost, call(Kind::get, 5, 6, ""), call(Kind::get, 7, 8, "")}));
  EXPECT_FALSE(linearizable({put, lost, call(Kind::get, 5, 6, "", "a"), call(Kind::get, 7, 8, "")})) << "it went later";
  EXPECT_FALSE(linearizable({put, lost, call(Kind::get, 5, 6, ""), call(Kind::get, 7, 8, "", "a")})) << "it came back";
  EXPECT_TRUE(linearizable({put, lost, call(Kind::get, 3, 6, "", "a"), call(Kind::get, 7, 8, "")})) << "asked before";
}

TEST(History, AnUnknownCallHappenedOrNot) {
  EXPECT_TRUE(linearizable({unknown(Kind::put, 0, "a"), call(Kind::get, 5, 6, "")}));
  EXPECT_TRUE(linearizable({unknown(Kind::put, 0, "a"), call(Kind::get, 5, 6, "", "a")}));
  EXPECT_TRUE(linearizable({unknown(Kind::put, 0, "a"), call(Kind::get, 5, 6, ""), call(Kind::get, 7, 8, "", "a")}))
      << "it may be late";
  EXPECT_FALSE(linearizable({unknown(Kind::put, 0, "a"), call(Kind::get, 5, 6, "", "a"), call(Kind::get, 7, 8, "")}));
  EXPECT_FALSE(linearizable({unknown(Kind::put, 9, "a"), call(Kind::get, 5, 6, "", "a")})) << "before it was asked";
}

TEST(History, APoolMayLoseWhatItsPolicyAllows) {
  constexpr Evicts kAll{Evicts::Which::all}, kExpiring{Evicts::Which::expiring};
  Call expiring = call(Kind::put, 0, 1, "a");
  expiring.expires = true;
  const Call put = call(Kind::put, 0, 1, "a"), gone = call(Kind::get, 2, 3, ""), there = call(Kind::get, 4, 5, "", "a");
  EXPECT_TRUE(linearizable({put, gone}, kAll));
  EXPECT_FALSE(linearizable({put, gone}, kExpiring)) << "it does not expire";
  EXPECT_TRUE(linearizable({expiring, gone}, kExpiring));
  EXPECT_FALSE(linearizable({expiring, gone}, {}));
  EXPECT_FALSE(linearizable({put, gone, there}, kAll)) << "it came back";
  EXPECT_FALSE(linearizable({put, call(Kind::get, 2, 3, "", "b")}, kAll)) << "it has changed";
  EXPECT_FALSE(linearizable({expiring, call(Kind::put, 2, 3, "b"), call(Kind::get, 4, 5, "")}, kExpiring))
      << "what was put since does not expire";
  EXPECT_TRUE(linearizable({expiring, call(Kind::update, 2, 3, "b", "there"), call(Kind::get, 4, 5, "")}, kExpiring));
  EXPECT_FALSE(linearizable({expiring, call(Kind::insert, 2, 3, "b"), call(Kind::get, 4, 5, "")}, kExpiring));
  EXPECT_TRUE(linearizable({call(Kind::put, 0, 1, "7"), call(Kind::add, 2, 3, "", "1")}, kAll)) << "from nothing on";
  EXPECT_TRUE(linearizable({put, gone}, {.which = Evicts::Which::all, .until = 2}));
  EXPECT_FALSE(linearizable({put, call(Kind::get, 2, 3, "", "a"), call(Kind::get, 4, 5, "")},
                            {.which = Evicts::Which::all, .until = 1}))
      << "nothing is evicted any more";
}

// Every order, tried one by one.
bool by_force(const std::vector<Call>& calls) {
  std::vector<std::size_t> order(calls.size());
  std::iota(order.begin(), order.end(), 0u);
  do {
    // A call may come before another only if it was not asked after the other's answer.
    bool in_time = true;
    for (std::size_t i = 0; i < order.size() && in_time; ++i) {
      for (std::size_t j = i + 1; j < order.size(); ++j)
        in_time = in_time && calls[order[j]].answered >= calls[order[i]].asked;
    }
    if (!in_time) continue;
    std::vector<Call> sequence;
    Nanos now = 0;
    for (std::size_t i : order) {
      sequence.push_back(calls[i]);
      sequence.back().asked = now++;
      sequence.back().answered = now++;
    }
    if (linearizable(sequence)) return true;  // no two of them overlap
  } while (std::next_permutation(order.begin(), order.end()));
  return false;
}

TEST(History, AgreesWithTryingEveryOrder) {
  base::Random random(1);
  int good = 0;
  for (int round = 0; round < 1500; ++round) {
    std::vector<Call> calls;
    const std::uint64_t length = 2 + random.below(4);
    for (std::uint64_t i = 0; i < length; ++i) {
      const auto kind = static_cast<Kind>(random.below(5));
      const Nanos asked = static_cast<Nanos>(random.below(10));
      std::optional<std::string> found;
      if (random.chance(0.5)) found = random.chance(0.5) ? "a" : "b";
      calls.push_back(
          call(kind, asked, asked + 1 + static_cast<Nanos>(random.below(8)), random.chance(0.5) ? "a" : "b", found));
    }
    const bool result = linearizable(calls);
    good += result ? 1 : 0;
    ASSERT_EQ(result, by_force(calls)) << "round " << round << "\n" << describe(calls);
  }
  EXPECT_GT(good, 100);
  EXPECT_LT(good, 1400);
}

TEST(History, JudgesEachKeyByItself) {
  History history;
  const std::size_t a = history.ask({.kind = Kind::put, .key = "x", .value = "1", .asked = 1});
  history.answer(a, 2, {});
  const std::size_t b = history.ask({.kind = Kind::get, .key = "y", .asked = 3});
  history.answer(b, 4, {});
  const std::size_t failed = history.ask({.kind = Kind::put, .key = "x", .value = "2", .asked = 5});
  history.forget(failed);
  EXPECT_EQ(history.judge(), std::nullopt);
  const std::size_t c = history.ask({.kind = Kind::get, .key = "x", .asked = 6});
  history.answer(c, 7, "2");
  ASSERT_TRUE(history.judge().has_value()) << "a call that failed had an effect";
  EXPECT_NE(history.judge()->find("key x"), std::string::npos);
}

void reach() { FARPOOL_MARK(test_mark); }
TEST(Marks, AreCounted) {
  const std::uint64_t before = base::Mark::hits("test_mark");
  reach();
  reach();
  EXPECT_EQ(base::Mark::hits("test_mark"), before + 2);
  EXPECT_EQ(base::Mark::of_this_thread()["test_mark"], before + 2);
}

}  // namespace
}  // namespace farpool::sim
