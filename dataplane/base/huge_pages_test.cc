// SPDX-License-Identifier: Apache-2.0
// What needs no reserved pages; the laboratory has some (apps/huge_pages_lab_test.cc).
#include "base/huge_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farpool::base {
namespace {

constexpr std::uint64_t kMi = 1ull << 20;

TEST(HugePages, RefusesWhatIsNoWholeNumberOfPages) {
  for (const auto& [bytes, page] : {std::pair{3 * kMi, 2 * kMi}, {std::uint64_t{0}, 2 * kMi}, {6 * kMi, 3 * kMi}}) {
    EXPECT_EQ(map_huge_pages(bytes, page).code(), Code::invalid_argument) << bytes << " in pages of " << page;
  }
}

TEST(HugePages, SaysWhichPagesThereAreTooFewOf) {
  // More than any machine has.
  const auto memory = map_huge_pages(1ull << 46, 2 * kMi);
  EXPECT_EQ(memory.code(), Code::out_of_memory);
  EXPECT_THAT(memory.status().message(), testing::HasSubstr("hugepages-2048kB/nr_hugepages"));
}

}  // namespace
}  // namespace farpool::base
