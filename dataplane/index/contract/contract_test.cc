// SPDX-License-Identifier: Apache-2.0
// Every index protocol passes its suite on every wire that needs no device.
#include "index/contract/failures.h"
#include "index/contract/grounds.h"
#include "index/contract/growth.h"
#include "index/contract/moves.h"
#include "index/contract/suite.h"

namespace farpool::index::contract {
namespace {

TEST(Contract, KnowsEveryProtocol) {
  std::vector<layout::Protocol> known, all;
  for (const Sample& sample : samples()) known.push_back(sample.protocol);
  for (const Protocol* protocol : protocols::all()) all.push_back(protocol->number());
  EXPECT_EQ(known, all) << "a protocol has no entry in samples.h";
}

const auto kAll = on(grounds());
INSTANTIATE_TEST_SUITE_P(On, Results, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, BadInput, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, FullTable, filling_on(grounds()), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Concurrency, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Scans, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Growth, growing_on(grounds()), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Moves, on(grounds()), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Costs, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Failures, on({sim_ground()}), name_of_setting);

}  // namespace
}  // namespace farpool::index::contract
