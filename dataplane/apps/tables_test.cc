// SPDX-License-Identifier: Apache-2.0
// Pools of all protocols over sockets and over rings.
#include "apps/tables_test.h"

namespace farpool::apps::tables {
namespace {

INSTANTIATE_TEST_SUITE_P(Over, Pools, testing::ValuesIn(all_over_wires({Wire::tcp, Wire::shm})), name_of_setting);
INSTANTIATE_TEST_SUITE_P(Over, Services, testing::Values(Wire::tcp, Wire::shm), name_of_wire);
INSTANTIATE_TEST_SUITE_P(Over, LongPools, testing::ValuesIn(all_over_wires({Wire::tcp, Wire::shm})), name_of_setting);
INSTANTIATE_TEST_SUITE_P(Over, LongRaceTables, testing::Values(Wire::tcp, Wire::shm), name_of_wire);

}  // namespace
}  // namespace farpool::apps::tables
