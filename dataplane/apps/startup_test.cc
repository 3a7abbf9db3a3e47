// SPDX-License-Identifier: Apache-2.0
#include "apps/startup.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farpool::apps {
namespace {

constexpr std::uint64_t kGibibyte = 1 << 30;

struct Slow {
  base::Nanos now = 0;
  std::vector<std::string> log;
  Startup startup{[this] { return now; }, [this](const std::string& line) { log.push_back(line); }};
};

// A start that takes an hour and goes on all the time is never taken for stuck.
TEST(Startup, IsAliveAsLongAsItProgresses) {
  Slow slow;
  for (std::uint64_t done = 0; done < 360; ++done) {
    slow.startup.progress("looks through the memory that it found", done, 360);
    slow.now += 10 * base::kSecond;
    ASSERT_EQ(slow.startup.stuck(), "");
    ASSERT_FALSE(slow.startup.finished());
  }
  EXPECT_EQ(slow.startup.message(), "starts: looks through the memory that it found, 95 % of 360 bytes");
  EXPECT_GT(slow.startup.ratio(), 0.99);
  EXPECT_GE(slow.log.size(), 350u);
  slow.startup.finish();
  EXPECT_EQ(slow.startup.message(), "");
  EXPECT_EQ(slow.startup.ratio(), 1);
  slow.now += 3600 * base::kSecond;
  EXPECT_EQ(slow.startup.stuck(), "");
}

TEST(Startup, IsStuckWhenNothingIsHeardOfIt) {
  Slow slow;
  EXPECT_EQ(slow.startup.message(), "starts: begins");
  slow.startup.progress("takes its memory from the kernel", 3, 4);
  slow.now += 30 * base::kSecond;
  EXPECT_EQ(slow.startup.stuck(), "");
  slow.now += 1;
  EXPECT_NE(slow.startup.stuck().find("takes its memory from the kernel, 75 % of 4 bytes"), std::string::npos);
  EXPECT_NE(slow.startup.stuck().find("for 30 s"), std::string::npos);
  slow.startup.progress("takes its memory from the kernel", 4, 4);
  EXPECT_EQ(slow.startup.stuck(), "");
}

// A step that is one call of the kernel says nothing until it is through.
TEST(Startup, WaitsForALargeStepThatSaysNothing) {
  Slow slow;
  slow.startup.progress("registers its memory with the RDMA device", 0, 16 * kGibibyte);
  slow.now += 255 * base::kSecond;
  EXPECT_EQ(slow.startup.stuck(), "");
  slow.now += 2 * base::kSecond;
  EXPECT_NE(slow.startup.stuck(), "");
}

TEST(Startup, LogsALineEveryFewSeconds) {
  Slow slow;
  for (int i = 0; i < 100; ++i) {
    slow.startup.progress("formats its table", static_cast<std::uint64_t>(i), 100);
    slow.now += 100 * base::kMillisecond;
  }
  EXPECT_EQ(slow.log, (std::vector<std::string>{"starts: formats its table, 50 % of 100 bytes"}));
}

}  // namespace
}  // namespace farpool::apps
