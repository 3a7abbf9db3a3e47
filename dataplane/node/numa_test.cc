// SPDX-License-Identifier: Apache-2.0
#include "node/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "node/memory.h"

namespace farpool::node {
namespace {

using testing::HasSubstr;

// As a machine with two nodes writes it.
constexpr char kMaps[] =
    "7f0000000000 default file=/var/lib/farpool/m0.memory huge dirty=512 mapmax=1 N0=500 N1=12 kernelpagesize_kB=2048\n"
    "7f0080000000 prefer:1 anon=256 dirty=256 active=0 N1=256 kernelpagesize_kB=4\n"
    "7f0090000000 default file=/usr/lib/libNUMA.so mapped=3 N0=3 kernelpagesize_kB=4\n"
    "7f00a0000000 default\n";

TEST(Numa, BytesAreCountedByNodeAndPageSize) {
  std::istringstream first(kMaps), second(kMaps), none(kMaps);
  EXPECT_EQ(parse_numa_maps(first, 0x7f0000000000, 0x7f0040000000),
            (BytesOfNumaNode{{0, 500ull << 21}, {1, 12ull << 21}}));
  EXPECT_EQ(parse_numa_maps(second, 0x7f0080000000, 0x7f0090000000), (BytesOfNumaNode{{1, 1ull << 20}}));
  EXPECT_EQ(parse_numa_maps(none, 0x7f00a0000000, 0x7f00b0000000), BytesOfNumaNode{});
}

TEST(Numa, OneNodeIsWantedOrACertainOne) {
  EXPECT_TRUE(judge_numa({{1, 4096}}, std::nullopt).ok());
  EXPECT_TRUE(judge_numa({{1, 4096}}, 1).ok());
  EXPECT_THAT(judge_numa({{1, 4 << 20}}, 0).message(), HasSubstr("NUMA node 0, that of the RDMA device"));
  EXPECT_THAT(judge_numa({{0, 1 << 20}, {1, 3 << 20}}, std::nullopt).message(),
              HasSubstr("1 MiB on NUMA node 0, 3 MiB on NUMA node 1"));
  EXPECT_THAT(judge_numa({}, std::nullopt).message(), HasSubstr("the kernel does not say where"));
  EXPECT_THAT(judge_numa({{0, 1}, {1, 1}}, 1).message(), HasSubstr("topologyManagerPolicy"));
}

// Test machines usually have one node; a thread that has asked for it gets memory there.
TEST(Numa, MemoryThatWasAskedForLiesThere) {
  const NumaPreference here(0);
  const auto memory = Memory::anonymous(1 << 20);
  ASSERT_TRUE(memory.ok());
  const base::Status status = check_numa(memory->span(), std::nullopt);
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace farpool::node
