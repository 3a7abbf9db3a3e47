// SPDX-License-Identifier: Apache-2.0
// What operations cost, next to the arithmetic of facts.h.
#include <gtest/gtest.h>

#include <string>

#include "index/rcuckoo/facts.h"
#include "index/rcuckoo/stage_test.h"
#include "layout/extent.h"

namespace farpool::rcuckoo {
namespace {

// What the code posts is what the arithmetic says.
TEST(Facts, HoldForEveryOperation) {
  StageTeller teller;
  index::contract::Stage stage(teller, 1);
  const facts::Shape ours{.row_bytes = 8 * 16 + 16, .rows_per_lock = 16, .slots = true};
  const auto costs = [&stage](const std::string& line) {
    (void)stage.run(line);
    return facts::Figures{stage.cost().trips, stage.cost().messages, stage.cost().bytes};
  };
  const auto print = [](const facts::Figures& f) {
    return std::to_string(f.trips) + " " + std::to_string(f.messages) + " " + std::to_string(f.bytes);
  };
#define EXPECT_COSTS(line, figures) EXPECT_EQ(print(costs(line)), print(figures)) << line
  using facts::Rows;
  const facts::Figures mark{0, 1, facts::kFetchAdd};  // of rows that had no entry before
  for (const auto& [name, rows] : {std::pair("adjacent", Rows::adjacent), std::pair("apart", Rows::apart)}) {
    const std::string key = name;
    EXPECT_COSTS("lookup " + key, facts::lookup_miss(ours, rows));
    EXPECT_COSTS("update " + key + " x", facts::change_nothing(ours, rows));
    EXPECT_COSTS("remove " + key, facts::change_nothing(ours, rows));
    EXPECT_COSTS("insert " + key + " x", facts::change(ours, rows) + mark);
    EXPECT_COSTS("lookup " + key, facts::lookup_hit(ours, rows));
    EXPECT_COSTS("update " + key + " y", facts::change(ours, rows));
    EXPECT_COSTS("put " + key + " z", facts::change(ours, rows));
    EXPECT_COSTS("modify " + key + " z", facts::change(ours, rows));
    EXPECT_COSTS("remove " + key, facts::change(ours, rows));
    EXPECT_COSTS("put " + key + " new", facts::change(ours, rows));
    EXPECT_EQ(print(costs("put " + key + " *30")),
              print(facts::change(ours, rows) +
                    facts::Figures{0, 1, facts::write(layout::extent_bytes(teller.key_of(key).size(), 30))}))
        << "in place before, an extent now";
    EXPECT_COSTS("lookup " + key, facts::lookup_hit(ours, rows, 64));
    // The block that is freed is the client's own: no verb. Another client's costs one FAA.
    const std::uint64_t key_bytes = teller.key_of(key).size(), extent = layout::extent_bytes(key_bytes, 200);
    EXPECT_COSTS("update " + key + " *200", facts::change_extent(ours, rows, key_bytes, 64, extent, true));
    EXPECT_COSTS("remove " + key, facts::change_extent(ours, rows, key_bytes, 256, 0, true));
  }
  EXPECT_COSTS("put two-words x", facts::change(ours, Rows::apart, 2) + mark);
  EXPECT_COSTS("remove two-words", facts::change(ours, Rows::apart, 2));
#undef EXPECT_COSTS
}

}  // namespace
}  // namespace farpool::rcuckoo
