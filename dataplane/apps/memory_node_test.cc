// SPDX-License-Identifier: Apache-2.0
// The memory node's daemon as its users see it: flags and file, session port, probes and metrics, signals.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/daemon_test.h"
#include "apps/files.h"
#include "fabric/session_port/server.h"
#include "fabric/tcp/responder.h"
#include "fabric/tcp/test_loop.h"
#include "farpool/v1alpha1/session.pb.h"
#include "farpool/v1alpha1/shard_map.pb.h"
#include "net/throwaway_ca.h"
#include "session/handshake.h"

namespace farpool::apps {
namespace {

class MemoryNodeDaemon : public testing::Test {
 protected:
  // Returns the flags of a working node, on free ports.
  std::vector<std::string> flags() {
    const net::TlsFiles files = ca.issue("farpool://pool-1/node/m0");
    return {"--name=m0",
            "--pool-uid=pool-1",
            "--memory=32Mi",
            "--standalone",
            "--listen=127.0.0.1:" + std::to_string(session_port),
            "--advertise=127.0.0.1:" + std::to_string(session_port),
            "--agent-listen=127.0.0.1:0",
            "--metrics-listen=127.0.0.1:" + std::to_string(http_port),
            "--tls-ca=" + files.ca,
            "--tls-cert=" + files.cert,
            "--tls-key=" + files.key};
  }
  std::string metric(const std::string& name) {
    const std::string page = get(http_port, "/metrics").value_or("");
    const std::size_t at = page.find("\n" + name + " ");
    if (at == std::string::npos) return "";
    const std::size_t begin = at + name.size() + 2;
    return page.substr(begin, page.find('\n', begin) - begin);
  }

  net::ThrowawayCa ca;
  int session_port = free_port(), http_port = free_port();
};

task::Task<void> read_map(fabric::Port& port, std::string endpoint, std::string pool, v1alpha1::SessionReply& reply) {
  v1alpha1::SessionRequest request = session::begin_request(pool);
  request.mutable_read_map();
  const auto answer = co_await port.exchange(endpoint, request.SerializeAsString(), port.now() + 30 * base::kSecond);
  EXPECT_TRUE(answer.ok()) << answer.status().message();
  if (answer.ok()) EXPECT_TRUE(reply.ParseFromString(*answer));
}

TEST_F(MemoryNodeDaemon, ServesItsMapProbesAndMetricsAndEndsOnATerm) {
  Daemon daemon(FARPOOL_MEMORY_NODE, flags());
  ASSERT_TRUE(comes_up(daemon, http_port));
  const std::string endpoint = "127.0.0.1:" + std::to_string(session_port);
  v1alpha1::SessionReply reply;
  {
    fabric::tcp::ClientThread client(*net::Tls::load(ca.issue("farpool://pool-1/client/c"), net::Tls::Kind::mutual));
    client.run(read_map(*client.port, endpoint, "pool-1", reply));
  }
  EXPECT_EQ(reply.code(), v1alpha1::SessionReply::CODE_OK) << reply.message();
  ASSERT_EQ(reply.map().nodes_size(), 1);
  EXPECT_EQ(reply.map().nodes(0).name(), "m0");
  EXPECT_EQ(reply.map().nodes(0).endpoint(), endpoint);
  EXPECT_EQ(reply.map().nodes(0).memory_bytes(), 32u << 20);

  EXPECT_NE(get(http_port, "/healthz").value_or("").find(" 200 "), std::string::npos);
  EXPECT_NE(get(http_port, "/nothing").value_or("").find(" 404 "), std::string::npos);
  EXPECT_EQ(metric("farpool_node_serving"), "1");
  EXPECT_EQ(metric("farpool_node_evicts"), "0");
  EXPECT_EQ(metric("farpool_node_era_lag"), "0");
  EXPECT_EQ(metric("farpool_node_memory_fresh"), "1");
  EXPECT_EQ(metric("farpool_wire_malformed_total"), "0");
  EXPECT_EQ(metric("farpool_wire_exchanges_total"), "1");
  expect_gauges("farpool_wire_", fabric::session_port::kGauges, http_port);
  expect_counters("farpool_wire_", fabric::session_port::kCounts, http_port);
  expect_gauges("farpool_wire_", fabric::tcp::kResponderGauges, http_port);
  expect_counters("farpool_wire_", fabric::tcp::kResponderCounts, http_port);

  // Bytes that are no TLS, on the session port, end only that connection.
  EXPECT_TRUE(get(session_port, "/").has_value());
  EXPECT_EQ(metric("farpool_wire_handshakes_failed_total"), "1");
  EXPECT_TRUE(daemon.running());

  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_NE(daemon.output().find("signal 15"), std::string::npos) << daemon.output();
}

// The next process has the map beside the memory, whether or not anyone else knows it.
TEST_F(MemoryNodeDaemon, KeepsItsMapForTheNextProcess) {
  const std::string directory = std::filesystem::path(ca.issue("farpool://pool-1/node/m0").cert).parent_path();
  auto arguments = flags();
  arguments.push_back("--memory-path=" + directory);
  v1alpha1::ShardMap kept;
  for (std::uint64_t epoch = 0, life = 0; life < 2; ++life) {
    Daemon daemon(FARPOOL_MEMORY_NODE, arguments);
    ASSERT_TRUE(comes_up(daemon, http_port));
    EXPECT_TRUE(kept.ParseFromString(read_file(directory + "/m0.map")));
    EXPECT_GT(kept.epoch(), epoch);
    epoch = kept.epoch();
    daemon.signal(SIGKILL);
    EXPECT_EQ(daemon.wait(), -SIGKILL);
  }
}

// The process is alive while it starts, and says how far it is. What it waits for here is a map that it reads before it
// takes its memory: a pipe that nobody has written to yet.
TEST_F(MemoryNodeDaemon, AnswersProbesWhileItStarts) {
  const std::string directory = std::filesystem::path(ca.issue("farpool://pool-1/node/m0").cert).parent_path();
  const std::string pipe = directory + "/m0.map";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  auto arguments = flags();
  arguments.push_back("--memory-path=" + directory);
  Daemon daemon(FARPOOL_MEMORY_NODE, arguments);
  ASSERT_TRUE(eventually([&] { return get(http_port, "/healthz").value_or("").find(" 200 ") != std::string::npos; }))
      << daemon.output();
  const std::string ready = get(http_port, "/readyz").value_or("");
  EXPECT_NE(ready.find(" 503 "), std::string::npos) << ready;
  EXPECT_NE(ready.find("starts: "), std::string::npos) << ready;
  EXPECT_EQ(metric("farpool_node_start_ratio"), "0");
  EXPECT_EQ(metric("farpool_node_serving"), "");
  { const std::ofstream nothing(pipe); }
  ASSERT_TRUE(comes_up(daemon, http_port));
  EXPECT_EQ(metric("farpool_node_start_ratio"), "1");
  EXPECT_EQ(metric("farpool_node_serving"), "1");
}

// An edited flag is no reason to give up what the memory holds, for a cache or for a store.
TEST_F(MemoryNodeDaemon, DoesNotBeginEmptyBecauseOfAFlag) {
  const std::string directory = std::filesystem::path(ca.issue("farpool://pool-1/node/m0").cert).parent_path();
  auto arguments = flags();
  arguments.push_back("--memory-path=" + directory);
  {
    Daemon daemon(FARPOOL_MEMORY_NODE, arguments);
    ASSERT_TRUE(comes_up(daemon, http_port));
    daemon.signal(SIGKILL);
    EXPECT_EQ(daemon.wait(), -SIGKILL);
  }
  for (const std::string& flag : {std::string("--max-sessions=512"), std::string("--memory=64Mi")}) {
    auto edited = arguments;
    std::erase_if(
        edited, [&](const std::string& argument) { return argument.starts_with(flag.substr(0, flag.find('=') + 1)); });
    edited.push_back(flag);
    Daemon daemon(FARPOOL_MEMORY_NODE, edited);
    EXPECT_EQ(daemon.wait(), 2);
    EXPECT_NE(daemon.output().find(flag.substr(0, flag.find('=')) + " was "), std::string::npos) << daemon.output();
  }
  Daemon daemon(FARPOOL_MEMORY_NODE, arguments);
  ASSERT_TRUE(comes_up(daemon, http_port));
  EXPECT_EQ(metric("farpool_node_memory_fresh"), "0");
}

TEST_F(MemoryNodeDaemon, ReadsItsFlagsFromAFileToo) {
  const std::string directory = std::filesystem::path(ca.issue("farpool://pool-1/node/m0").cert).parent_path();
  const std::string path = directory + "/farpool.toml";
  std::ofstream file(path);
  for (const std::string& flag : flags()) {
    const std::size_t equals = flag.find('=');
    if (equals == std::string::npos) {
      file << flag.substr(2) << " = true\n";
    } else {
      file << flag.substr(2, equals - 2) << " = \"" << flag.substr(equals + 1) << "\"\n";
    }
  }
  file.close();
  Daemon daemon(FARPOOL_MEMORY_NODE, {"--config=" + path, "--log-format=text"});
  ASSERT_TRUE(comes_up(daemon, http_port));
  daemon.signal(SIGINT);
  EXPECT_EQ(daemon.wait(), 0);
}

TEST_F(MemoryNodeDaemon, SaysWhatIsWrongWithItsFlags) {
  struct Case {
    std::vector<std::string> change;  // appended: the last of a flag wins; empty value removes nothing
    std::string says;
  };
  const net::TlsFiles other = ca.issue("farpool://pool-1/node/other");
  for (const Case& each : std::vector<Case>{
           {{"--memory=32Mb"}, "32Mb"},
           {{"--memory=1000001"}, "4096"},
           {{"--memory=64Ki"}, ""},
           {{"--entry-bytes=20"}, "20"},
           {{"--rows-per-lock=3"}, ""},
           {{"--table-percent=0"}, ""},
           {{"--table-percent=101"}, ""},
           {{"--protocol=race", "--tables=3"}, "power of two"},
           {{"--tables=2"}, "2 tables are not possible"},
           {{"--protocol=race", "--tables=4", "--initial-tables=8"}, "8 initial tables are not possible"},
           {{"--lease=5"}, "5"},
           {{"--lease=1s"}, "--lease"},
           {{"--failure-timeout=1ms"}, "--failure-timeout of 1ms"},
           {{"--failure-timeout=499ms"}, "at least 500ms"},
           {{"--threads=0"}, "--threads"},
           {{"--advertise=0.0.0.0:7400"}, "--advertise"},
           {{"--advertise=:::7400"}, "--advertise"},
           {{"--advertise=host:0"}, "--advertise"},
           {{"--advertise=host"}, "--advertise"},
           {{"--listen=nonsense"}, "nonsense"},
           {{"--memory-path=/nowhere/at/all"}, "/nowhere/at/all"},
           {{"--huge-pages=3Mi"}, "whole number"},
           {{"--huge-pages=2Mi", "--memory-path=/tmp"}, "--huge-pages asks for huge pages of 2048 KiB"},
           {{"--rdma-address=10.0.0.1", "--rdma-interface=eth0"}, "exclude each other"},
           {{"--wire=verbs", "--rdma-interface=nowhere0"}, "there is no interface nowhere0"},
           {{"--log-level=chatty"}, "chatty"},
           {{"--insecure-plaintext"}, "--insecure-plaintext"},
           {{"--tls-key=" + other.key}, other.key},
           {{"--tls-cert=/nowhere"}, "/nowhere"},
           {{"--no-such-flag"}, "no-such-flag"},
       }) {
    auto arguments = flags();
    for (const std::string& change : each.change) {
      const std::string flag = change.substr(0, change.find('=') + 1);
      std::erase_if(arguments,
                    [&](const std::string& argument) { return flag.size() > 1 && argument.starts_with(flag); });
      arguments.push_back(change);
    }
    Daemon daemon(FARPOOL_MEMORY_NODE, arguments);
    const int status = daemon.wait();
    EXPECT_GT(status, 0) << each.change[0] << ": " << daemon.output();
    EXPECT_FALSE(daemon.output().empty()) << each.change[0];
    EXPECT_NE(daemon.output().find(each.says), std::string::npos) << each.change[0] << ": " << daemon.output();
    EXPECT_EQ(daemon.output().find("Sanitizer"), std::string::npos) << daemon.output();
  }
}

TEST_F(MemoryNodeDaemon, SaysThatItsPortIsTaken) {
  Daemon first(FARPOOL_MEMORY_NODE, flags());
  ASSERT_TRUE(comes_up(first, http_port));
  // The process takes the port of the probes first, and the session port when the memory is ready.
  auto arguments = flags();
  for (const int port : {http_port, session_port}) {
    Daemon second(FARPOOL_MEMORY_NODE, arguments);
    EXPECT_GT(second.wait(), 0);
    EXPECT_NE(second.output().find(std::to_string(port)), std::string::npos) << second.output();
    std::erase_if(arguments, [](const std::string& argument) { return argument.starts_with("--metrics-listen="); });
    arguments.push_back("--metrics-listen=127.0.0.1:0");
  }
  EXPECT_TRUE(first.running());
}

}  // namespace
}  // namespace farpool::apps
