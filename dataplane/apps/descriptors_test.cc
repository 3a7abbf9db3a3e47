// SPDX-License-Identifier: Apache-2.0
#include "apps/descriptors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>

namespace farpool::apps {
namespace {

bool raises_to_the_hard_limit() {
  rlimit limit{.rlim_cur = 100, .rlim_max = 300};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || raise_descriptor_limit() != 300) return false;
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 300;
}

TEST(Descriptors, AreRaisedToTheHardLimit) {
  EXPECT_EXIT(std::_Exit(raises_to_the_hard_limit() ? 0 : 1), testing::ExitedWithCode(0), "");
}

TEST(Descriptors, LeaveRoomForClients) {
  EXPECT_EQ(*fitting_connections(10'000, 1'048'576, 200), 10'000u);
  EXPECT_EQ(*fitting_connections(10'000, 1024, 200), 824u);
  EXPECT_EQ(*fitting_connections(1, 201, 200), 1u);
  EXPECT_EQ(fitting_connections(1, 200, 200).code(), base::Code::invalid_argument);
  EXPECT_NE(fitting_connections(1, 64, 200).status().message().find("ulimit"), std::string::npos);
}

}  // namespace
}  // namespace farpool::apps
