// SPDX-License-Identifier: Apache-2.0
// Every index protocol passes its suite on the verbs wire. It needs an RDMA device: `make test-verbs`. Clients that die
// after any effect, and answers that get lost, are for the simulator alone.
#include <cstdlib>

#include "index/contract/failures.h"
#include "index/contract/growth.h"
#include "index/contract/moves.h"
#include "index/contract/suite.h"
#include "index/contract/thread_bed.h"
#include "index/contract/verbs_ends.h"

namespace farpool::index::contract {
namespace {

// An emulated guest takes milliseconds for a trip. What the gate does there is a portion; FARPOOL_WHOLE asks for all.
const bool kWhole = std::getenv("FARPOOL_WHOLE") != nullptr;
const Ground kVerbs{.name = "Verbs",
                    .rounds = kWhole ? 4 : 1,
                    .portion = kWhole ? 1 : 10,
                    .make = [](const layout::GeometryRequest& table, std::uint64_t seed) {
                      return std::make_unique<ThreadBed>(table, seed, std::make_unique<VerbsEnds>());
                    }};

const auto kAll = on({kVerbs});
INSTANTIATE_TEST_SUITE_P(On, Results, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, BadInput, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, FullTable, filling_on({kVerbs}), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Concurrency, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Scans, kAll, name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Growth, growing_on({kVerbs}), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Moves, on({kVerbs}), name_of_setting);
INSTANTIATE_TEST_SUITE_P(On, Costs, kAll, name_of_setting);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Failures);

}  // namespace
}  // namespace farpool::index::contract
