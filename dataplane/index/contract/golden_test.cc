// SPDX-License-Identifier: Apache-2.0
// Every protocol's golden verb traces (stage_test.h) are in its room, in testdata. FARPOOL_REWRITE=1 writes the files
// anew; the difference is the review.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "index/contract/stage_test.h"
#include "index/outback/stage_test.h"
#include "index/race/stage_test.h"
#include "index/rcuckoo/stage_test.h"
#include "protocols/protocols.h"

namespace farpool::index::contract {
namespace {

struct Stories {
  layout::Protocol protocol{};
  std::string name;  // in names of tests
  std::string directory;
  std::unique_ptr<Teller> (*make)();
  std::vector<std::string> files;
};
void PrintTo(const Stories& stories, std::ostream* to) { *to << stories.name; }

template <class Its>
std::unique_ptr<Teller> make() {
  return std::make_unique<Its>();
}

std::vector<Stories> all_stories() {
  return {{.protocol = layout::Protocol::rcuckoo,
           .name = "Rcuckoo",
           .directory = "../rcuckoo/testdata",
           .make = make<rcuckoo::StageTeller>,
           .files = {"insert", "lookup", "modify", "put", "remove", "update"}},
          {.protocol = layout::Protocol::race,
           .name = "Race",
           .directory = "../race/testdata",
           .make = make<race::StageTeller>,
           .files = {"change", "motion", "move", "read", "scan", "split", "stale"}},
          {.protocol = layout::Protocol::outback,
           .name = "Outback",
           .directory = "../outback/testdata",
           .make = make<outback::StageTeller>,
           .files = {"change", "first", "overflow", "read", "scan"}}};
}

class Golden : public ::testing::TestWithParam<Stories> {};

TEST_P(Golden, TracesAreAsTheFilesSay) {
  for (const std::string& name : GetParam().files) {
    const std::string path = GetParam().directory + "/" + name + ".txt";
    std::ifstream in(path);
    ASSERT_TRUE(in.good()) << path << " cannot be read: the test runs in dataplane/index/contract";
    const std::string wanted{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const std::string got = replay(wanted, GetParam().make);
    if (std::getenv("FARPOOL_REWRITE") != nullptr) {
      std::ofstream(path) << got;
    } else {
      EXPECT_EQ(got, wanted) << path << ": run with FARPOOL_REWRITE=1 and read the difference";
    }
  }
}

TEST(Goldens, AreOfEveryProtocolAndAllArePlayed) {
  std::vector<layout::Protocol> known, all;
  for (const Stories& stories : all_stories()) {
    known.push_back(stories.protocol);
    std::size_t there = 0;
    for (const auto& file : std::filesystem::directory_iterator(stories.directory)) {
      there += file.path().extension() == ".txt" ? 1 : 0;
    }
    EXPECT_EQ(there, stories.files.size()) << stories.directory << " has files that are not in the list above";
  }
  for (const Protocol* protocol : protocols::all()) all.push_back(protocol->number());
  EXPECT_EQ(known, all) << "a protocol has no golden traces";
}

INSTANTIATE_TEST_SUITE_P(Of, Golden, ::testing::ValuesIn(all_stories()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace farpool::index::contract
