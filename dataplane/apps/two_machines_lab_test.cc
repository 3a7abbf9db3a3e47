// SPDX-License-Identifier: Apache-2.0
// A compute shard on this machine and a memory node on another, with a cable between them: `make test-machines`. The
// other machine runs hack/lab/memory-machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "apps/daemon_test.h"
#include "apps/redis_test.h"

namespace farpool::apps {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// As hack/lab/memory-machine has them.
constexpr int kNodePort = 7400, kNodeHttp = 7402, kPowerPort = 7777;

// One after the other: the last leaves no other machine.
class TwoMachines : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(std::getenv("FARPOOL_LAB_PEER"), nullptr) << "there is no other machine: run `make test-machines`";
    peer = std::getenv("FARPOOL_LAB_PEER");
    ASSERT_TRUE(eventually([this] { return get(kNodeHttp, "/readyz", peer).value_or("").find(" 200 ") < 20; }))
        << "no memory node on the other machine";
    shard = std::make_unique<Daemon>(
        FARPOOL_COMPUTE_SHARD,
        std::vector<std::string>{"--name=s0", "--pool-uid=pool-1", "--insecure-plaintext", "--agent-listen=none",
                                 "--log-format=text", "--metrics-listen=127.0.0.1:" + std::to_string(http),
                                 "--bootstrap=" + peer + ":" + std::to_string(kNodePort), "--wire=verbs",
                                 "--operation-deadline=20s", "--listen=127.0.0.1:" + std::to_string(resp)});
    ASSERT_TRUE(comes_up(*shard, http));
    redis = std::make_unique<Redis>(resp);
  }
  double sample(const std::string& name) const { return sample_of(name, kNodeHttp, peer); }

  std::string peer;
  int http = free_port(), resp = free_port();
  std::unique_ptr<Daemon> shard;
  std::unique_ptr<Redis> redis;
};

TEST_F(TwoMachines, WhatOneHoldsTheOtherReadsAndWritesByRdma) {
  constexpr int kKeys = 100;
  const std::string value(1000, 'x');
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(redis->ask("SET key" + std::to_string(i) + " " + value + std::to_string(i)), "+OK") << shard->output();
  }
  for (int i = 0; i < kKeys; ++i) ASSERT_EQ(redis->ask("GET key" + std::to_string(i)), value + std::to_string(i));
  EXPECT_EQ(sample("farpool_node_keys"), kKeys);
  EXPECT_GE(sample("farpool_verbs_lanes"), 1);
  EXPECT_EQ(sample("farpool_verbs_managed_lanes"), sample("farpool_verbs_lanes")) << "not connected by librdmacm";
  EXPECT_EQ(sample("farpool_wire_chains_total"), 0) << "verbs went over the tcp wire";
}

TEST_F(TwoMachines, ACableThatIsCutAndMendedLosesNothing) {
  ASSERT_EQ(redis->ask("SET cut before"), "+OK") << shard->output();
  ASSERT_EQ(std::system("ip link set eth0 down"), 0);
  EXPECT_THAT(redis->ask("GET cut"), StartsWith("-")) << "an answer without a cable";
  EXPECT_THAT(shard->output(), HasSubstr("rxe0 has lost its link on port 1"));
  EXPECT_THAT(shard->output(), HasSubstr("lane to " + peer + ":" + std::to_string(kNodePort) + " by rxe0 has ended"));
  ASSERT_EQ(std::system("ip link set eth0 up"), 0);
  EXPECT_TRUE(eventually([this] { return redis->ask("GET cut") == "before"; })) << shard->output();
  EXPECT_EQ(redis->ask("SET cut after"), "+OK") << shard->output();
  EXPECT_EQ(redis->ask("GET cut"), "after");
}

TEST_F(TwoMachines, AMachineThatIsGoneIsSaidToBe) {
  ASSERT_EQ(redis->ask("SET power on"), "+OK") << shard->output();
  EXPECT_EQ(Redis(kPowerPort, peer).ask("LPUSH power off"), ":1");
  EXPECT_TRUE(eventually([this] { return redis->ask("GET power").starts_with("-"); })) << "an answer from nobody";
  EXPECT_THAT(shard->output(), HasSubstr("lost the session with memory node m0"));
}

}  // namespace
}  // namespace farpool::apps
