// SPDX-License-Identifier: Apache-2.0
#include "apps/samples.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/counts.h"
#include "fabric/session_port/server.h"
#include "fabric/tcp/responder.h"
#include "fabric/verbs/responder.h"
#include "index/counts.h"
#include "session/repair.h"

namespace farpool::apps {
namespace {

// Each number of a table differs; every one must come out under its name.
template <class Counts, std::size_t kCount>
void expect_all_shown(const std::array<base::Count<Counts>, kCount>& table, bool now = false) {
  Counts counts;
  for (std::size_t i = 0; i < kCount; ++i) counts.*table[i].value = 100 + i;
  Samples samples;
  if (now) {
    samples.gauges("x_", table, counts);
  } else {
    samples.counters("x_", table, counts);
  }
  const std::vector<prometheus::MetricFamily> families = samples.take();
  ASSERT_EQ(families.size(), kCount) << "two have one name";
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(families[i].name, "x_" + std::string(table[i].name) + (now ? "" : "_total"));
    EXPECT_EQ(families[i].type, now ? prometheus::MetricType::Gauge : prometheus::MetricType::Counter);
    EXPECT_TRUE(families[i].help.ends_with(".")) << families[i].name << " has no help text";
    ASSERT_EQ(families[i].metric.size(), 1u);
    const prometheus::ClientMetric& metric = families[i].metric[0];
    EXPECT_EQ(now ? metric.gauge.value : metric.counter.value, 100.0 + static_cast<double>(i));
  }
}

TEST(Samples, ShowEveryNumberOfATable) {
  expect_all_shown(index::kMarks);
  expect_all_shown(session::kRepairMarks);
  expect_all_shown(fabric::session_port::kGauges, true);
  expect_all_shown(fabric::session_port::kCounts);
  expect_all_shown(fabric::tcp::kResponderGauges, true);
  expect_all_shown(fabric::tcp::kResponderCounts);
  expect_all_shown(fabric::verbs::kVerbsGauges, true);
  expect_all_shown(fabric::verbs::kVerbsCounts);
  expect_all_shown(fabric::verbs::kCallGauges, true);
  expect_all_shown(fabric::verbs::kCallCounts);
}

// The threads that serve CALLs for data have counts of their own.
TEST(Samples, SumsGoThroughTheTables) {
  fabric::verbs::CallStats sum;
  const fabric::verbs::CallStats one{.links = 1, .calls = 2, .held = 3, .repeated = 4, .ignored = 5};
  sum += one;
  sum += one;
  EXPECT_EQ(sum.links, 2u);
  EXPECT_EQ(sum.calls, 4u);
  EXPECT_EQ(sum.held, 6u);
  EXPECT_EQ(sum.repeated, 8u);
  EXPECT_EQ(sum.ignored, 10u);
}

}  // namespace
}  // namespace farpool::apps
