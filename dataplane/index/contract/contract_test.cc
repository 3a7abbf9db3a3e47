// SPDX-License-Identifier: Apache-2.0
// Every index protocol passes its suite on every wire that needs no device.
#include "index/contract/sim_bed.h"
#include "index/contract/suite.h"

namespace farpool::index::contract {
namespace {

const Ground kSim{"Sim", 12, [](const layout::GeometryRequest& table, std::uint64_t seed) {
                    return std::make_unique<SimBed>(table, seed);
                  }};

TEST(Contract, KnowsEveryProtocol) {
  std::vector<layout::Protocol> known, all;
  for (const Sample& sample : samples()) known.push_back(sample.protocol);
  for (const Protocol* protocol : protocols::all()) all.push_back(protocol->number());
  EXPECT_EQ(known, all) << "a protocol has no entry in samples.h";
}

INSTANTIATE_TEST_SUITE_P(On, Results, on(kSim), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, BadInput, on(kSim), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, FullTable, on(kSim), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Concurrency, on(kSim), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Scans, on(kSim), name_of_setting);

}  // namespace
}  // namespace farpool::index::contract
