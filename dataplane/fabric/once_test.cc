// SPDX-License-Identifier: Apache-2.0
#include "fabric/once.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace farpool::fabric {
namespace {

using Turn = Once::Turn;
using namespace std::literals;

struct Asked {
  Turn turn;
  std::string outcome;
  std::size_t bytes;
};
Asked ask(Once& once, RequestId id) {
  std::array<std::byte, 64> room{};
  std::size_t bytes = 0;
  const Turn turn = once.begin(id, room, bytes);
  return {turn, std::string(base::text_of(base::Bytes(room).first(std::min(bytes, room.size())))), bytes};
}

TEST(Once, AWordNamesALineAndANumber) {
  const RequestId id{.line = 4095, .number = (1ull << 52) - 1};
  EXPECT_EQ(id.word(), ~0ull);
  EXPECT_EQ(RequestId::of(id.word()).line, id.line);
  EXPECT_EQ(RequestId::of(id.word()).number, id.number);
  EXPECT_EQ(RequestId::of(0x5003).line, 3u);
  EXPECT_EQ(RequestId::of(0x5003).number, 5u);
}

TEST(Once, WhoAsksAgainGetsTheRecordedOutcome) {
  Once once(2, 20);
  EXPECT_EQ(ask(once, {0, 1}).turn, Turn::first);
  EXPECT_EQ(ask(once, {0, 1}).turn, Turn::running);
  EXPECT_EQ(ask(once, {0, 2}).turn, Turn::running) << "the line's last request has no outcome yet";
  EXPECT_EQ(ask(once, {1, 7}).turn, Turn::first) << "lines are apart";
  EXPECT_TRUE(once.finish({0, 1}, base::bytes_of("hello world"sv)));
  for (int i = 0; i < 3; ++i) {
    const Asked again = ask(once, {0, 1});
    EXPECT_EQ(again.turn, Turn::again);
    EXPECT_EQ(again.outcome, "hello world");
  }
  EXPECT_EQ(ask(once, {0, 9}).turn, Turn::first) << "numbers may be left out";
  EXPECT_TRUE(once.finish({0, 9}, {}));
  EXPECT_EQ(ask(once, {0, 9}).bytes, 0u);
  EXPECT_EQ(ask(once, {0, 1}).turn, Turn::old);
  EXPECT_EQ(ask(once, {0, 8}).turn, Turn::old) << "a request that was left out and comes late";
}

TEST(Once, BadRequestsHaveNoTurn) {
  Once once(2, 8);
  EXPECT_EQ(ask(once, {2, 1}).turn, Turn::bad);
  EXPECT_EQ(ask(once, {RequestId::kMostLines - 1, 1}).turn, Turn::bad);
  EXPECT_EQ(ask(once, {0, 0}).turn, Turn::bad);
}

TEST(Once, AnOutcomeIsAsLongAsItMayBe) {
  Once once(1, 20);  // 24, by words
  EXPECT_EQ(ask(once, {0, 1}).turn, Turn::first);
  EXPECT_FALSE(once.finish({0, 1}, base::bytes_of(std::string(25, 'x'))));
  EXPECT_EQ(ask(once, {0, 1}).turn, Turn::running);
  EXPECT_TRUE(once.finish({0, 1}, base::bytes_of(std::string(24, 'y'))));
  std::array<std::byte, 8> small{};
  std::size_t bytes = 0;
  EXPECT_EQ(once.begin({0, 1}, base::MutableBytes(small).first(3), bytes), Turn::again);
  EXPECT_EQ(bytes, 24u);
  EXPECT_EQ(small[2], std::byte{'y'});
  EXPECT_EQ(small[3], std::byte{0}) << "beyond the room";
}

TEST(Once, WhatHadNoEffectIsForgotten) {
  Once once(1, 8);
  EXPECT_EQ(ask(once, {0, 1}).turn, Turn::first);
  EXPECT_TRUE(once.finish({0, 1}, base::bytes_of("one"sv)));
  EXPECT_EQ(ask(once, {0, 2}).turn, Turn::first);
  once.abandon({0, 2});
  EXPECT_EQ(ask(once, {0, 1}).outcome, "one") << "its outcome is still there";
  EXPECT_EQ(ask(once, {0, 2}).turn, Turn::first);
}

TEST(Once, RemembersWhatAnEarlierLifeWroteDown) {
  Once once(2, 8);
  EXPECT_TRUE(once.restore({0, 4}, base::bytes_of("four"sv)));
  EXPECT_TRUE(once.restore({0, 6}, base::bytes_of("six"sv)));
  EXPECT_TRUE(once.restore({0, 5}, base::bytes_of("five"sv)));  // an earlier one, read later
  EXPECT_FALSE(once.restore({7, 1}, {}));
  EXPECT_FALSE(once.restore({1, 1}, base::bytes_of("too long by far"sv)));
  EXPECT_EQ(ask(once, {0, 6}).outcome, "six");
  EXPECT_EQ(ask(once, {0, 5}).turn, Turn::old);
  EXPECT_EQ(ask(once, {0, 7}).turn, Turn::first);
  EXPECT_EQ(ask(once, {1, 1}).turn, Turn::first);
}

// Two threads ask for the same requests all the time: each request is carried out once, and both threads learn its
// outcome.
TEST(Once, ARequestHasItsEffectOnceAmongThreads) {
  constexpr std::uint64_t kRequests = 20'000;
  Once once(1, 16);
  std::vector<std::uint64_t> effects(kRequests + 1);
  std::atomic<std::uint64_t> wrong{0};
  std::array<std::atomic<std::uint64_t>, 2> at{};
  const auto client = [&](std::size_t self) {
    for (std::uint64_t number = 1; number <= kRequests; ++number) {
      at[self] = number;
      for (;;) {
        std::array<std::uint64_t, 2> outcome{};
        std::size_t bytes = 0;
        const Turn turn = once.begin({0, number}, std::as_writable_bytes(std::span(outcome)), bytes);
        if (turn == Turn::first) {
          ++effects[number];
          outcome = {number, ~number};
          if (!once.finish({0, number}, std::as_bytes(std::span(outcome)))) ++wrong;
          break;
        }
        if (turn == Turn::again) {
          if (bytes != 16 || outcome[0] != number || outcome[1] != ~number) ++wrong;
          break;
        }
        if (turn == Turn::old && at[1 - self] > number) break;  // the other one went on
        if (turn == Turn::bad || turn == Turn::old) {
          ++wrong;
          break;
        }
        std::this_thread::yield();
      }
    }
  };
  std::thread other(client, 1);
  client(0);
  other.join();
  EXPECT_EQ(wrong, 0u);
  for (std::uint64_t number = 1; number <= kRequests; ++number) ASSERT_EQ(effects[number], 1u) << number;
}

}  // namespace
}  // namespace farpool::fabric
