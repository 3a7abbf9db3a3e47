// SPDX-License-Identifier: Apache-2.0
// Outback passes the suite of index protocols, but for three families. Its tables are not full before the memory is,
// because keys without a slot go into overflow. They do not grow yet, and keys do not move to other memory nodes yet.
#include "index/contract/failures.h"
#include "index/contract/grounds.h"
#include "index/contract/growth.h"
#include "index/contract/moves.h"
#include "index/contract/suite.h"

namespace farpool::index::contract {
namespace {

Sample sample_of_outback() {
  constexpr auto kProtocol = layout::Protocol::outback;
  const layout::GeometryRequest usual{.table_percent = 1};
  layout::GeometryRequest many = usual;
  many.table_percent = 5;
  return {.protocol = kProtocol,
          .name = "Outback",
          .tables = {request(kProtocol, 16 << 20, usual), request(kProtocol, 64 << 20, many)},
          .few = request(kProtocol, 2560 << 10, usual),
          .full = 0.88,
          .scanned = request(kProtocol, 4 << 20, usual),
          .scanned_keys = 300,
          .page = 8,
          .budget = {.lookup_hit = 1,
                     .lookup_miss = 1,
                     .insert = 1,
                     .refusal = 1,
                     .update = 1,
                     .modify = 2,
                     .remove = 1,
                     .scan_empty = 5,  // four of them read the locator
                     .scan = 1,
                     .scan_messages = 4}};
}

std::vector<Setting> over(const std::vector<Ground>& grounds) {
  std::vector<Setting> settings;
  for (const Ground& ground : grounds) settings.push_back({sample_of_outback(), ground});
  return settings;
}

const auto kAll = ::testing::ValuesIn(over(grounds()));
INSTANTIATE_TEST_SUITE_P(On, Results, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, BadInput, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Concurrency, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Scans, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Costs, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Failures, ::testing::ValuesIn(over({sim_ground()})), name_of_setting);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullTable);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Growth);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Moves);

}  // namespace
}  // namespace farpool::index::contract
