// SPDX-License-Identifier: Apache-2.0
// CuckooDuo passes the suite of index protocols (index/contract). Its tables are not split, and no key leaves them for
// another memory node: those families are left out.
#include <vector>

#include "index/contract/failures.h"
#include "index/contract/grounds.h"
#include "index/contract/suite.h"

namespace farpool::index::contract {
namespace {

Sample sample_of_cuckooduo() {
  constexpr layout::Protocol kProtocol{};  // the one of the list
  const layout::GeometryRequest usual{
      .table_percent = 1, .entry_bytes = 64, .entries_per_row = 8, .rows_per_lock = 1, .slots_per_session = 2};
  layout::GeometryRequest large = usual, short_rows = usual;
  large.table_percent = 4;
  short_rows.entries_per_row = 4;
  return {.protocol = kProtocol,
          .name = "CuckooDuo",
          .tables = {request(kProtocol, 16 << 20, usual), request(kProtocol, 16 << 20, large),
                     request(kProtocol, 16 << 20, short_rows)},
          .few = request(kProtocol, 8 << 20, short_rows),
          .full = 0.8,
          .full_says = "has no place",
          .scanned = request(kProtocol, 8 << 20, usual),
          .scanned_keys = 600,
          .page = 5,
          .crowd = {&Marks::torn_rows, &Marks::changed_misses},
          .moved = &Marks::displaced,
          .budget = {.lookup_hit = 2,
                     .lookup_miss = 1,
                     .insert = 1,
                     .refusal = 2,
                     .update = 3,
                     .remove = 3,
                     .scan_empty = 8,  // few keys a bucket: pages of 8, 64, 64 and 8 buckets, each read twice
                     .scan = 6,
                     .scan_messages = 50},
          .owned = true,
          .call_head = layout::kKvRequestHead + 64};
}

auto on_each(const std::vector<Ground>& grounds) {
  std::vector<Setting> settings;
  for (const Ground& ground : grounds) settings.push_back({sample_of_cuckooduo(), ground});
  return ::testing::ValuesIn(settings);
}
const auto kAll = on_each(grounds());

INSTANTIATE_TEST_SUITE_P(On, Results, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, BadInput, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, FullTable, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Concurrency, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Scans, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Costs, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Failures, on_each({sim_ground()}), name_of_setting);

}  // namespace
}  // namespace farpool::index::contract
