// SPDX-License-Identifier: Apache-2.0
// Every index protocol passes its suite on every wire that needs no device.
#include "index/contract/failures.h"
#include "index/contract/growth.h"
#include "index/contract/moves.h"
#include "index/contract/sim_bed.h"
#include "index/contract/suite.h"
#include "index/contract/tcp_ends.h"
#include "index/contract/thread_bed.h"

namespace farpool::index::contract {
namespace {

TEST(Contract, KnowsEveryProtocol) {
  std::vector<layout::Protocol> known, all;
  for (const Sample& sample : samples()) known.push_back(sample.protocol);
  for (const Protocol* protocol : protocols::all()) all.push_back(protocol->number());
  EXPECT_EQ(known, all) << "a protocol has no entry in samples.h";
}

using Lanes = TcpEnds::Lanes;
const Ground kSim{.name = "Sim",
                  .rounds = 12,
                  .simulated = true,
                  .make = [](const layout::GeometryRequest& table, std::uint64_t seed) {
                    return std::make_unique<SimBed>(table, seed);
                  }};
const Ground kTcp{.name = "Tcp", .rounds = 4, .make = [](const layout::GeometryRequest& table, std::uint64_t seed) {
                    return std::make_unique<ThreadBed>(table, seed, std::make_unique<TcpEnds>(Lanes::sockets));
                  }};
const Ground kShm{.name = "Shm", .rounds = 4, .make = [](const layout::GeometryRequest& table, std::uint64_t seed) {
                    return std::make_unique<ThreadBed>(table, seed, std::make_unique<TcpEnds>(Lanes::rings));
                  }};

const auto kAll = on({kSim, kTcp, kShm});
INSTANTIATE_TEST_SUITE_P(On, Results, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, BadInput, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, FullTable, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Concurrency, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Scans, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Growth, growing_on({kSim, kTcp, kShm}), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Moves, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Costs, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Failures, on({kSim}), name_of_setting);

}  // namespace
}  // namespace farpool::index::contract
