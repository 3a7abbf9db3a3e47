// SPDX-License-Identifier: Apache-2.0
// Pools of all protocols over verbs. It needs an RDMA device: `make test-verbs`.
#include "apps/tables_test.h"

namespace farpool::apps::tables {
namespace {

INSTANTIATE_TEST_SUITE_P(Over, Pools, testing::ValuesIn(all_over_wires({Wire::verbs})), name_of_setting);
INSTANTIATE_TEST_SUITE_P(Over, Services, testing::Values(Wire::verbs), name_of_wire);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LongPools);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LongRaceTables);

}  // namespace
}  // namespace farpool::apps::tables
