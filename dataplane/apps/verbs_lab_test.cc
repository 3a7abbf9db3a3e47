// SPDX-License-Identifier: Apache-2.0
// The daemons over verbs, on the first RDMA device of this machine: `make test-verbs`.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "apps/daemon_test.h"
#include "apps/redis_test.h"
#include "fabric/session_port/server.h"
#include "fabric/verbs/call_server.h"
#include "fabric/verbs/responder.h"
#include "net/throwaway_ca.h"

namespace farpool::apps {
namespace {

class VerbsDaemons : public testing::Test {
 protected:
  std::vector<std::string> flags(const std::string& identity, int http, std::vector<std::string> more) {
    const net::TlsFiles files = ca.issue("farpool://pool-1/" + identity);
    more.insert(more.end(),
                {"--pool-uid=pool-1", "--tls-ca=" + files.ca, "--tls-cert=" + files.cert, "--tls-key=" + files.key,
                 "--agent-listen=none", "--log-format=text", "--metrics-listen=127.0.0.1:" + std::to_string(http)});
    return more;
  }
  // Laboratories are slow: a client is dead when it has been silent for much longer than elsewhere.
  std::vector<std::string> node_flags() {
    return flags("node/m0", node_http,
                 {"--name=m0", "--memory=32Mi", "--standalone", "--wire=verbs", "--failure-timeout=4s", "--lease=8s",
                  "--listen=" + endpoint, "--advertise=" + endpoint});
  }
  std::vector<std::string> shard_flags(const std::string& wire) {
    return flags("client/s0", http,
                 {"--name=s0", "--bootstrap=" + endpoint, "--wire=" + wire, "--operation-deadline=30s",
                  "--listen=127.0.0.1:" + std::to_string(resp)});
  }
  double sample(const std::string& name) const { return sample_of(name, node_http); }

  net::ThrowawayCa ca;
  int node_http = free_port(), http = free_port(), resp = free_port();
  std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
};

TEST_F(VerbsDaemons, WhatIsWrittenIsReadAndNoneOfItGoesOverTcp) {
  Daemon node(FARPOOL_MEMORY_NODE, node_flags());
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags("verbs"));
  ASSERT_TRUE(comes_up(shard, http));
  Redis redis(resp);
  constexpr int kKeys = 200;
  const std::string long_value(1000, 'x');
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = "key" + std::to_string(i);
    ASSERT_EQ(redis.ask("SET " + key + " " + long_value + std::to_string(i)), "+OK") << shard.output();
  }
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(redis.ask("GET key" + std::to_string(i)), long_value + std::to_string(i)) << shard.output();
  }
  EXPECT_EQ(redis.ask("GET nobody"), "$-1");
  EXPECT_GE(sample("farpool_verbs_lanes"), 1);
  EXPECT_EQ(sample("farpool_verbs_managed_lanes"), sample("farpool_verbs_lanes"));
  EXPECT_GE(sample("farpool_verbs_calls_total"), 1);
  EXPECT_EQ(sample("farpool_wire_chains_total"), 0) << "verbs went over the tcp wire";
  EXPECT_GE(sample("farpool_wire_exchanges_total"), 1);
  expect_gauges("farpool_wire_", fabric::session_port::kGauges, node_http);
  expect_counters("farpool_wire_", fabric::session_port::kCounts, node_http);
  expect_gauges("farpool_verbs_", fabric::verbs::kVerbsGauges, node_http);
  expect_counters("farpool_verbs_", fabric::verbs::kVerbsCounts, node_http);
  expect_gauges("farpool_verbs_data_", fabric::verbs::kCallGauges, node_http);
  expect_counters("farpool_verbs_data_", fabric::verbs::kCallCounts, node_http);
  EXPECT_EQ(sample("farpool_node_keys"), kKeys);
  shard.signal(SIGTERM);
  EXPECT_EQ(shard.wait(), 0) << shard.output();
  EXPECT_TRUE(eventually([&] { return sample("farpool_verbs_lanes") == 0; })) << "a queue pair outlived its client";
}

TEST_F(VerbsDaemons, AShardThatStoodStillIsFencedAndBeginsAnew) {
  Daemon node(FARPOOL_MEMORY_NODE, node_flags());
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags("verbs"));
  ASSERT_TRUE(comes_up(shard, http));
  Redis redis(resp);
  ASSERT_EQ(redis.ask("SET a before"), "+OK");
  shard.signal(SIGSTOP);
  EXPECT_TRUE(eventually([&] { return sample("farpool_node_sessions_fenced_total") >= 1; }));
  // While it stands still: it could not have closed them itself.
  EXPECT_TRUE(eventually([&] { return sample("farpool_verbs_lanes") == 0; }));
  shard.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return redis.ask("SET a after") == "+OK"; })) << shard.output();
  EXPECT_EQ(redis.ask("GET a"), "after");
}

TEST_F(VerbsDaemons, AShardOfAnotherWireIsToldSo) {
  Daemon node(FARPOOL_MEMORY_NODE, node_flags());
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags("tcp"));
  EXPECT_TRUE(eventually([&] { return shard.output().find("ask for --wire verbs") != std::string::npos; }))
      << shard.output();
}

}  // namespace
}  // namespace farpool::apps
