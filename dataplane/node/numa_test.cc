// SPDX-License-Identifier: Apache-2.0
#include "node/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

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

TEST(Numa, WordsThatAreNoNumbersCountForNothing) {
  std::istringstream file(
      "zz default N0=1 kernelpagesize_kB=4\n"
      "7f00 default Nx=2 N1=x N2=3y N1 5 =6 N3=7 kernelpagesize_kB=4\n"
      "7f01 default N4=7\n");
  EXPECT_EQ(parse_numa_maps(file, 0, ~std::uintptr_t{0}), (BytesOfNumaNode{{3, 7 << 12}, {4, 7 << 12}}));
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

// Holds the mode and the first nodes. Asking for a policy directly shows whether a container forbids it, as seccomp may.
using Policy = std::pair<int, unsigned long>;

Policy policy_of_this_thread() {
  int mode = -1;
  std::array<unsigned long, 16> nodes{};
  EXPECT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes.data(), nodes.size() * 64, nullptr, 0), 0);
  return {mode, nodes[0]};
}
bool set_policy(int mode) {
  const std::array<unsigned long, 16> first{1};
  return ::syscall(SYS_set_mempolicy, mode, mode == MPOL_DEFAULT ? nullptr : first.data(), 1024) == 0;
}

TEST(Numa, APreferenceLastsAsLongAsItsObject) {
  const bool allowed = set_policy(MPOL_DEFAULT);
  const Policy none{MPOL_DEFAULT, 0}, first{MPOL_PREFERRED, 1};
  {
    const NumaPreference here(0);
    if (allowed) EXPECT_EQ(policy_of_this_thread(), first);
  }
  if (allowed) EXPECT_EQ(policy_of_this_thread(), none);
  // What is no node is not preferred, and leaves what the thread had before.
  const Policy before{allowed && set_policy(MPOL_BIND) ? Policy{MPOL_BIND, 1} : none};
  for (const std::optional<int> node : {std::optional<int>(), std::optional(-1), std::optional(1024)}) {
    const NumaPreference nowhere(node);
    if (allowed) EXPECT_EQ(policy_of_this_thread(), before);
  }
  if (allowed) EXPECT_EQ(policy_of_this_thread(), before);
  (void)set_policy(MPOL_DEFAULT);
}

// The kernel cannot write to a mapping that is read only.
TEST(Numa, MemoryThatCannotBeTouchedIsSaid) {
  constexpr std::size_t kBytes = 1 << 16;
  void* const mapping = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  const base::Status status = check_numa({static_cast<std::byte*>(mapping), kBytes}, std::nullopt);
  const bool numa = std::ifstream("/proc/self/numa_maps").good();
  EXPECT_EQ(status.code(), numa ? base::Code::out_of_memory : base::Code::ok);
  if (numa) EXPECT_THAT(status.message(), HasSubstr("cannot be had all at once"));
  ::munmap(mapping, kBytes);
}

}  // namespace
}  // namespace farpool::node
