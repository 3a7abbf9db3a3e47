// SPDX-License-Identifier: Apache-2.0
// The compute shard's daemon as its users see it: RESP on both families, its password, signals.
#include <gtest/gtest.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/daemon_test.h"
#include "net/throwaway_ca.h"

namespace farpool::apps {
namespace {

// A connection to a number of either family, or -1.
int dial(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
  int fd = ::socket(found->ai_family, SOCK_STREAM, 0);
  if (::connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
    ::close(fd);
    fd = -1;
  }
  ::freeaddrinfo(found);
  return fd;
}

// One command's reply, or what came of it.
std::string ask(const std::string& host, int port, const std::string& command) {
  const int fd = dial(host, port);
  if (fd < 0) return "not connected";
  std::string reply;
  const std::string request = command + "\r\n";
  if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    for (char c; !reply.ends_with("\r\n") && ::read(fd, &c, 1) == 1;) reply.push_back(c);
  }
  ::close(fd);
  return reply;
}

class ComputeShardDaemon : public testing::Test {
 protected:
  ComputeShardDaemon() {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-shard-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory = pattern;
  }
  ~ComputeShardDaemon() override { std::filesystem::remove_all(directory); }

  std::vector<std::string> tls(const std::string& identity) {
    const net::TlsFiles files = ca.issue("farpool://pool-1/" + identity);
    return {"--pool-uid=pool-1", "--tls-ca=" + files.ca, "--tls-cert=" + files.cert, "--tls-key=" + files.key};
  }
  std::vector<std::string> node_flags(const std::string& listen, const std::string& advertise) {
    std::vector<std::string> flags = tls("node/m0");
    flags.insert(flags.end(),
                 {"--name=m0", "--memory=32Mi", "--standalone", "--listen=" + listen, "--advertise=" + advertise,
                  "--agent-listen=none", "--metrics-listen=127.0.0.1:" + std::to_string(node_http)});
    return flags;
  }
  std::vector<std::string> shard_flags(const std::string& bootstrap) {
    std::vector<std::string> flags = tls("client/s0");
    flags.insert(flags.end(), {"--name=s0", "--bootstrap=" + bootstrap, "--listen=[::]:" + std::to_string(resp),
                               "--agent-listen=[::]:0", "--metrics-listen=127.0.0.1:" + std::to_string(http)});
    return flags;
  }
  // At once, as a projected volume changes.
  void write_password(const std::string& password) {
    std::ofstream(directory + "/new") << password;
    std::filesystem::rename(directory + "/new", directory + "/password");
  }

  net::ThrowawayCa ca;
  std::string directory;
  int session = free_port(), node_http = free_port(), resp = free_port(), http = free_port();
};

TEST_F(ComputeShardDaemon, ServesAPoolThatHasIpv6Alone) {
  const std::string port = std::to_string(session);
  // As a pod gives its address: without brackets.
  Daemon node(FARPOOL_MEMORY_NODE, node_flags("[::1]:" + port, "::1:" + port));
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags("[::1]:" + port));
  ASSERT_TRUE(comes_up(shard, http));
  EXPECT_EQ(ask("::1", resp, "SET greeting hello"), "+OK\r\n");
  EXPECT_EQ(ask("127.0.0.1", resp, "STRLEN greeting"), ":5\r\n");
  shard.signal(SIGTERM);
  EXPECT_EQ(shard.wait(), 0) << shard.output();
}

// The shard follows a memory node that comes back empty, and needs no restart of its own.
TEST_F(ComputeShardDaemon, FollowsAStandaloneMemoryNodeThatComesBackWithoutItsMemory) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  auto node = std::make_unique<Daemon>(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
  ASSERT_TRUE(comes_up(*node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags(endpoint));
  ASSERT_TRUE(comes_up(shard, http));
  for (int life = 0; life < 3; ++life) {
    EXPECT_EQ(ask("127.0.0.1", resp, "SET greeting hello"), "+OK\r\n");
    node->signal(SIGKILL);
    EXPECT_EQ(node->wait(), -SIGKILL);
    node = std::make_unique<Daemon>(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
    ASSERT_TRUE(comes_up(*node, node_http));
    ASSERT_TRUE(eventually([&] { return ask("127.0.0.1", resp, "STRLEN greeting") == ":0\r\n"; }))
        << ask("127.0.0.1", resp, "STRLEN greeting") << shard.output();
    EXPECT_TRUE(comes_up(shard, http));
  }
}

TEST_F(ComputeShardDaemon, ReachesAMemoryNodeOfItsHostOverRings) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  auto of_node = node_flags(endpoint, endpoint);
  auto of_shard = shard_flags(endpoint);
  for (auto* flags : {&of_node, &of_shard})
    flags->insert(flags->end(), {"--shm-directory=" + directory, "--spin=20us"});
  Daemon node(FARPOOL_MEMORY_NODE, of_node);
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, of_shard);
  ASSERT_TRUE(comes_up(shard, http));
  EXPECT_EQ(ask("127.0.0.1", resp, "SET greeting hello"), "+OK\r\n");
  EXPECT_EQ(ask("127.0.0.1", resp, "STRLEN greeting"), ":5\r\n");
  const std::string page = get(node_http, "/metrics").value_or("");
  EXPECT_NE(page.find("\nfarpool_wire_ring_lanes 1"), std::string::npos) << page;
  EXPECT_NE(page.find("\nfarpool_wire_lanes 1"), std::string::npos) << "a lane over TCP";
  // Its socket goes with it, and one that was killed leaves it to its successors.
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), 0) << node.output();
  for (const auto& left : std::filesystem::directory_iterator(directory)) EXPECT_NE(left.path().extension(), ".lanes");
}

TEST_F(ComputeShardDaemon, RefusesADirectoryForRingsThatCannotBe) {
  for (const std::string& bad : {std::string("relative"), directory + "/missing", "/" + std::string(120, 'x')}) {
    auto flags = shard_flags("127.0.0.1:" + std::to_string(session));
    flags.push_back("--shm-directory=" + bad);
    Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
    EXPECT_EQ(shard.wait(), 2);
    EXPECT_NE(shard.output().find("--shm-directory"), std::string::npos) << shard.output();
  }
}

TEST_F(ComputeShardDaemon, FollowsItsPasswordFile) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  Daemon node(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
  ASSERT_TRUE(comes_up(node, node_http));
  write_password("one\n");
  auto flags = shard_flags(endpoint);
  flags.insert(flags.end(), {"--password-file=" + directory + "/password", "--threads=2"});
  Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
  ASSERT_TRUE(comes_up(shard, http));
  // Both workers: connections are dealt in turn.
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ask("127.0.0.1", resp, "AUTH one"), "+OK\r\n");
    EXPECT_TRUE(ask("127.0.0.1", resp, "GET a").starts_with("-NOAUTH"));
  }
  write_password("two\n");
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  for (int taken = 0; taken < 4;) {
    taken = ask("127.0.0.1", resp, "AUTH two") == "+OK\r\n" ? taken + 1 : 0;
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << shard.output();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ask("127.0.0.1", resp, "AUTH one").starts_with("-WRONGPASS"));
  EXPECT_EQ(shard.output().find("two"), std::string::npos) << "a password in the log";
}

// A supervisor may end a process as soon as it can see it.
TEST_F(ComputeShardDaemon, EndsInOrderOnASignalThatComesAtOnce) {
  for (int i = 0; i < 5; ++i) {
    Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags("127.0.0.1:" + std::to_string(session)));
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    int fd = -1;
    while ((fd = dial("127.0.0.1", resp)) < 0 && shard.running())
      ASSERT_LT(std::chrono::steady_clock::now(), limit) << shard.output();
    shard.signal(SIGTERM);
    ::close(fd);
    ASSERT_EQ(shard.wait(), 0) << shard.output();
  }
}

}  // namespace
}  // namespace farpool::apps
