// SPDX-License-Identifier: Apache-2.0
// The compute shard's daemon as its users see it: RESP on both families, its password, signals.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "apps/daemon_test.h"
#include "farpool/v1alpha1/agent.grpc.pb.h"
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
  int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
    ::close(fd);
    fd = -1;
  }
  ::freeaddrinfo(found);
  return fd;
}

// A connection that sends bytes and receives what comes until the other side closes.
class Line {
 public:
  // Takes over a connected socket.
  explicit Line(int descriptor) : fd_(descriptor) {
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    EXPECT_EQ(::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0) << "not connected";
  }
  Line(Line&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Line() {
    if (fd_ >= 0) ::close(fd_);
  }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  // Returns one line, or nothing when the other side has closed.
  std::string hear() {
    std::string line;
    for (char c; !line.ends_with("\r\n") && ::read(fd_, &c, 1) == 1;) line.push_back(c);
    return line.ends_with("\r\n") ? line : "";
  }
  std::string ask(const std::string& command) {
    send(command + "\r\n");
    return hear();
  }
  std::string rest() {
    std::string all;
    std::array<char, 65536> piece{};
    for (ssize_t got; (got = ::read(fd_, piece.data(), piece.size())) > 0;)
      all.append(piece.data(), static_cast<std::size_t>(got));
    return all;
  }

 private:
  int fd_;
};

// Returns one command's reply, or the reason why there is none.
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

  std::vector<std::string> tls(const std::string& identity, const std::string& unit = "") {
    const net::TlsFiles files = ca.issue("farpool://pool-1/" + identity, unit);
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
    flags.insert(flags.end(),
                 {"--name=s0", "--bootstrap=" + bootstrap, "--listen=[::]:" + std::to_string(resp),
                  "--agent-listen=[::]:0", "--metrics-listen=127.0.0.1:" + std::to_string(http), "--drain=0s"});
    return flags;
  }
  // Replaces the file at once, as a projected volume does.
  void write_password(const std::string& password, const std::string& file = "/password") {
    std::ofstream(directory + "/new") << password;
    std::filesystem::rename(directory + "/new", directory + file);
  }

  net::ThrowawayCa ca;
  std::string directory;
  int session = free_port(), node_http = free_port(), resp = free_port(), http = free_port();
};

TEST_F(ComputeShardDaemon, ServesAPoolThatHasIpv6Alone) {
  const std::string port = std::to_string(session);
  // The address in the form of a pod's: without brackets.
  Daemon node(FARPOOL_MEMORY_NODE, node_flags("[::1]:" + port, "::1:" + port));
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags("[::1]:" + port));
  ASSERT_TRUE(comes_up(shard, http));
  EXPECT_EQ(ask("::1", resp, "SET greeting hello"), "+OK\r\n");
  EXPECT_EQ(ask("127.0.0.1", resp, "STRLEN greeting"), ":5\r\n");
  shard.signal(SIGTERM);
  EXPECT_EQ(shard.wait(), 0) << shard.output();
}

// A page of metrics says where the memory node's heap is held.
class HeapMetrics {
 public:
  explicit HeapMetrics(const std::string& page) : page_(page) {}
  double value(const std::string& series) const {
    const std::size_t at = page_.find("\n" + series + " ");
    return at == std::string::npos ? 0 : std::stod(page_.substr(at + series.size() + 2));
  }
  double bytes(const std::string& state) const { return value("farpool_node_heap_bytes{state=\"" + state + "\"}"); }
  // Returns the segments of one size of block, of all owners and none.
  double segments(const std::string& block_bytes) const {
    double sum = 0;
    for (const char* state : {"owned", "orphaned", "dead"}) {
      sum += value("farpool_node_size_class_segments{block_bytes=\"" + block_bytes + "\",state=\"" + state + "\"}");
    }
    return sum;
  }
  double all_segments() const {
    double sum = 0;
    for (const char* state : {"free", "owned", "orphaned", "dead", "resting", "damaged"})
      sum += value("farpool_node_segments{state=\"" + std::string(state) + "\"}");
    return sum;
  }
  double segment_bytes() const { return value("farpool_node_segment_bytes"); }

 private:
  std::string page_;
};

TEST_F(ComputeShardDaemon, MetricsOfTheMemoryNodeSayWhereItsHeapIsHeld) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  Daemon node(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags(endpoint));
  ASSERT_TRUE(comes_up(shard, http));
  Line line(dial("127.0.0.1", resp));
  constexpr int kKeys = 3000, kLeft = 30;  // one in a hundred
  const auto name = [](int key) { return "key-" + std::to_string(1000 + key); };
  const auto set = [&](int key, std::size_t bytes) {
    line.send("*3\r\n$3\r\nSET\r\n$8\r\n" + name(key) + "\r\n$" + std::to_string(bytes) + "\r\n" +
              std::string(bytes, 'v') + "\r\n");
    return line.hear();
  };
  const auto metrics = [&] { return HeapMetrics(get(node_http, "/metrics").value_or("")); };
  const HeapMetrics before = metrics();
  const double heap = before.bytes("free");
  EXPECT_EQ(heap, before.all_segments() * before.segment_bytes());
  EXPECT_EQ(before.bytes("live"), 0);

  // Key, value and 16 bytes are 1,024.
  for (int key = 0; key < kKeys; ++key) ASSERT_EQ(set(key, 1000), "+OK\r\n");
  ASSERT_TRUE(eventually([&] { return metrics().bytes("live") == kKeys * 1024; })) << metrics().bytes("live");
  const HeapMetrics full = metrics();
  const double in_a_segment = full.segment_bytes() / 1024;
  EXPECT_GE(full.segments("1024"), kKeys / in_a_segment);
  EXPECT_LE(full.segments("1024"), kKeys / in_a_segment + 2 * 2) << "two for each thread of the shard";
  EXPECT_EQ(full.bytes("live") + full.bytes("reclaimable") + full.bytes("free"), heap);
  EXPECT_EQ(full.bytes("free"), full.value("farpool_node_segments{state=\"free\"}") * full.segment_bytes());

  // Deleted values are free within segments until other values need that room.
  for (int key = 0; key < kKeys; ++key) {
    if (key % 100 != 0) ASSERT_EQ(line.ask("DEL " + name(key)), ":1\r\n");
  }
  ASSERT_TRUE(eventually([&] { return metrics().bytes("live") == kLeft * 1024; })) << metrics().bytes("live");
  const HeapMetrics sparse = metrics();
  EXPECT_EQ(sparse.bytes("live") + sparse.bytes("reclaimable") + sparse.bytes("free"), heap);
  EXPECT_EQ(sparse.bytes("reclaimable"),
            (sparse.all_segments() * sparse.segment_bytes()) - sparse.bytes("free") - sparse.bytes("live"));

  // Values that take segments of their own.
  for (int key = 0; key < 4; ++key) ASSERT_EQ(set(key, 300'000), "+OK\r\n");
  const double in_a_run = 300'000 / sparse.segment_bytes() + 1;
  ASSERT_TRUE(eventually([&] { return metrics().segments("run") >= 4 * static_cast<int>(in_a_run); }))
      << metrics().segments("run");
  line.send("FLUSHALL\r\n");
  EXPECT_EQ(line.hear(), "+OK\r\n");
  ASSERT_TRUE(eventually([&] { return metrics().bytes("live") == 0; })) << metrics().bytes("live");
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
  // Its socket goes with it; the socket of a killed node is left to its successors.
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

TEST_F(ComputeShardDaemon, OpensItsSocketToWhomItIsTold) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  Daemon node(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
  ASSERT_TRUE(comes_up(node, node_http));
  auto flags = shard_flags(endpoint);
  flags.insert(flags.end(), {"--unix-socket=" + directory + "/s", "--unix-socket-mode=0666"});
  Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
  ASSERT_TRUE(comes_up(shard, http));
  EXPECT_EQ(std::filesystem::status(directory + "/s").permissions(), std::filesystem::perms{0666});
}

TEST_F(ComputeShardDaemon, RefusesModesOfItsSocketThatNobodyMeans) {
  for (const std::string bad : {"0777", "666", "0222", "u=rw"}) {
    auto flags = shard_flags("127.0.0.1:" + std::to_string(session));
    flags.insert(flags.end(), {"--unix-socket=" + directory + "/s", "--unix-socket-mode=" + bad});
    Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
    EXPECT_NE(shard.wait(), 0);
    EXPECT_NE(shard.output().find("--unix-socket-mode"), std::string::npos) << shard.output();
    EXPECT_NE(shard.output().find("0600"), std::string::npos) << "what to set it to: " << shard.output();
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
  // Waits until both workers answer so.
  const auto answers = [&](const std::string& command, const std::string& begin) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    for (int times = 0; times < 4 && std::chrono::steady_clock::now() < limit;) {
      times = ask("127.0.0.1", resp, command).starts_with(begin) ? times + 1 : 0;
      if (times == 4) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  };
  write_password("two\n");
  ASSERT_TRUE(answers("AUTH two", "+OK")) << shard.output();
  EXPECT_TRUE(answers("AUTH one", "+OK")) << "the one before counts while applications change";
  write_password("three\n", "/password.also");
  ASSERT_TRUE(answers("AUTH three", "+OK")) << shard.output();
  EXPECT_TRUE(answers("AUTH two", "+OK")) << shard.output();
  EXPECT_TRUE(answers("AUTH one", "-WRONGPASS")) << "people say which other one counts";
  write_password("", "/password.also");
  ASSERT_TRUE(answers("AUTH three", "-WRONGPASS")) << shard.output();
  EXPECT_TRUE(answers("AUTH two", "+OK")) << shard.output();
  EXPECT_EQ(shard.output().find("two"), std::string::npos) << "a password in the log";
}

TEST_F(ComputeShardDaemon, WantsAPasswordInItsPasswordFile) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  write_password("\n");
  auto flags = shard_flags(endpoint);
  flags.push_back("--password-file=" + directory + "/password");
  {
    Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
    EXPECT_EQ(shard.wait(), 2);
    EXPECT_NE(shard.output().find("--allow-empty-password"), std::string::npos) << shard.output();
  }
  Daemon node(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
  ASSERT_TRUE(comes_up(node, node_http));
  flags.push_back("--allow-empty-password");
  Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
  ASSERT_TRUE(comes_up(shard, http));
  EXPECT_EQ(ask("127.0.0.1", resp, "PING"), "+PONG\r\n");
}

// Like a file of commands from `nc -N`.
TEST_F(ComputeShardDaemon, RunsAndAnswersAllThatCameBeforeAHalfClose) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  Daemon node(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
  ASSERT_TRUE(comes_up(node, node_http));
  Daemon shard(FARPOOL_COMPUTE_SHARD, shard_flags(endpoint));
  ASSERT_TRUE(comes_up(shard, http));
  constexpr int kSets = 2000;
  std::string sets, oks;
  for (int i = 0; i < kSets; ++i) {
    sets += "SET k" + std::to_string(i) + " v\r\n";
    oks += "+OK\r\n";
  }
  Line line(dial("127.0.0.1", resp));
  line.send(sets + "SET half");
  line.half_close();
  EXPECT_EQ(line.rest(), oks);
  EXPECT_EQ(ask("127.0.0.1", resp, "DBSIZE"), ":" + std::to_string(kSets) + "\r\n");
  EXPECT_EQ(ask("127.0.0.1", resp, "FLUSHALL"), "+OK\r\n");
  // The commands of a client that closes at once run, though it gets no replies.
  {
    Line hasty(dial("127.0.0.1", resp));
    hasty.send(sets);
  }
  EXPECT_TRUE(eventually([&] { return ask("127.0.0.1", resp, "DBSIZE") == ":" + std::to_string(kSets) + "\r\n"; }));
}

// The kubelet's probes and the lanes to memory nodes do not depend on how many clients there are.
TEST_F(ComputeShardDaemon, KeepsDescriptorsForAllButClients) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  auto of_node = node_flags(endpoint, endpoint);
  of_node.push_back("--memory-path=" + directory);
  auto node = std::make_unique<Daemon>(FARPOOL_MEMORY_NODE, of_node);
  ASSERT_TRUE(comes_up(*node, node_http));
  std::vector<std::string> command{"-c", "ulimit -S -n 100 && ulimit -H -n 400 && exec \"$0\" \"$@\"",
                                   FARPOOL_COMPUTE_SHARD};
  for (std::string& flag : shard_flags(endpoint)) command.push_back(std::move(flag));
  Daemon shard("/bin/sh", command);
  ASSERT_TRUE(comes_up(shard, http));
  Line first(dial("127.0.0.1", resp));
  first.send("CONFIG GET maxclients\r\n");
  std::string told;
  for (int i = 0; i < 5; ++i) told = first.hear();
  const int most = std::stoi(told);
  EXPECT_GT(most, 100) << "the limit was not raised";
  EXPECT_LT(most, 300) << "nothing is kept for others";
  std::vector<Line> clients;
  while (static_cast<int>(clients.size()) < most - 1) {
    clients.emplace_back(dial("127.0.0.1", resp));
    ASSERT_EQ(clients.back().ask("PING"), "+PONG\r\n") << clients.size();
  }
  for (int i = 0; i < 50; ++i) {
    Line beyond(dial("127.0.0.1", resp));
    EXPECT_EQ(beyond.rest(), "-ERR max number of clients reached\r\n");
  }
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    EXPECT_NE(get(http, path).value_or("").find(" 200 "), std::string::npos) << path;
  }
  EXPECT_GE(sample_of("farpool_resp_connections_refused_total", http), 50);
  // A session that is lost now can be opened again.
  EXPECT_EQ(first.ask("SET a 1"), "+OK\r\n");
  node->signal(SIGKILL);
  node->wait();
  node = std::make_unique<Daemon>(FARPOOL_MEMORY_NODE, of_node);
  ASSERT_TRUE(comes_up(*node, node_http));
  EXPECT_TRUE(eventually([&] { return first.ask("STRLEN a") == ":1\r\n"; }));
  clients.clear();
  EXPECT_TRUE(eventually([&] { return ask("127.0.0.1", resp, "PING") == "+PONG\r\n"; }));
  shard.signal(SIGTERM);
  EXPECT_EQ(shard.wait(), 0);
  EXPECT_NE(shard.output().find("max-connections is lowered from 10000 to " + std::to_string(most)), std::string::npos)
      << shard.output();
}

// A rollout ends shards while endpoints still name them and clients are in the middle of commands: every accepted
// command is answered, and none runs without an answer.
TEST_F(ComputeShardDaemon, LosesNoCommandWhenItIsToldToEnd) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(session);
  Daemon node(FARPOOL_MEMORY_NODE, node_flags(endpoint, endpoint));
  ASSERT_TRUE(comes_up(node, node_http));
  auto flags = shard_flags(endpoint);
  std::erase(flags, "--drain=0s");
  std::erase(flags, "--drain=0s");
  flags.push_back("--threads=2");
  Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
  ASSERT_TRUE(comes_up(shard, http));
  constexpr int kClients = 8;
  std::array<long, kClients> answered{};
  std::atomic<bool> refused = false, leaving = false;
  std::atomic<int> begun = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      // Half of the clients keep a connection; the others connect anew for each command, as long as the shard lets them
      // in.
      std::optional<Line> line;
      for (const auto limit = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < limit;) {
        if (!line || i % 2 == 0) {
          line.reset();
          const int fd = dial("127.0.0.1", resp);
          if (fd < 0) {
            refused = refused || !leaving;
            return;
          }
          line.emplace(fd);
        }
        const std::string reply = line->ask("INCR c" + std::to_string(i));
        if (reply.empty()) return;
        ++answered[static_cast<std::size_t>(i)];
        if (answered[static_cast<std::size_t>(i)] == 1) ++begun;
      }
    });
  }
  ASSERT_TRUE(eventually([&] { return begun == kClients; }));
  Line idle(dial("127.0.0.1", resp));
  EXPECT_EQ(idle.ask("PING"), "+PONG\r\n");
  shard.signal(SIGTERM);
  EXPECT_TRUE(eventually([&] { return get(http, "/readyz").value_or("").find(" 503 ") != std::string::npos; }));
  EXPECT_EQ(ask("127.0.0.1", resp, "PING"), "+PONG\r\n") << "it takes no connections though endpoints name it";
  EXPECT_EQ(idle.ask("PING"), "+PONG\r\n");
  leaving = true;
  EXPECT_EQ(idle.rest(), "");
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(shard.wait(), 0) << shard.output();
  EXPECT_FALSE(refused) << shard.output();
  Daemon next(FARPOOL_COMPUTE_SHARD, shard_flags(endpoint));
  ASSERT_TRUE(comes_up(next, http));
  Line after(dial("127.0.0.1", resp));
  for (int i = 0; i < kClients; ++i) {
    after.send("GET c" + std::to_string(i) + "\r\n");
    after.hear();
    EXPECT_EQ(after.hear(), std::to_string(answered[static_cast<std::size_t>(i)]) + "\r\n") << "client " << i;
  }
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

// Asks an agent, and returns whether it answered.
template <class Method, class Request, class Response>
bool ask_agent(int port, Method method, Request request, Response& response) {
  const auto stub = v1alpha1::Agent::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  request.set_pool_uid("pool-1");
  const grpc::Status status = ((*stub).*method)(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return status.ok();
}

// The certificate of a namespace's sidecars may be used by any number of processes, and says how many sessions they may
// have together.
TEST_F(ComputeShardDaemon, OneNamespacesCertificateLeavesRoomForThePoolsOwnShards) {
  const std::string at = "127.0.0.1:" + std::to_string(session);
  std::vector<std::string> lends = node_flags(at, at);
  lends.push_back("--max-sessions=2");
  Daemon node(FARPOOL_MEMORY_NODE, lends);
  ASSERT_TRUE(comes_up(node, node_http));
  const auto sidecar = [&](const std::string& name, int http_port) {
    std::vector<std::string> flags = tls("client/shop.sidecars", "farpool-sessions:1");
    flags.insert(flags.end(), {"--name=shop.sidecars-" + name, "--bootstrap=" + at, "--threads=1", "--listen=none",
                               "--unix-socket=" + directory + "/" + name, "--agent-listen=none",
                               "--metrics-listen=127.0.0.1:" + std::to_string(http_port), "--drain=0s"});
    return std::make_unique<Daemon>(FARPOOL_COMPUTE_SHARD, flags);
  };
  const int first_http = free_port(), second_http = free_port();
  std::unique_ptr<Daemon> first = sidecar("web-1", first_http);
  ASSERT_TRUE(comes_up(*first, first_http));
  const std::unique_ptr<Daemon> second = sidecar("web-2", second_http);
  const char* kWhy = "over quota: clients with a certificate of the name shop.sidecars have all of the 1 sessions";
  ASSERT_TRUE(eventually([&] { return get(second_http, "/readyz").value_or("").find(kWhy) != std::string::npos; }))
      << get(second_http, "/readyz").value_or("") << second->output();
  EXPECT_NE(second->output().find(kWhy), std::string::npos) << second->output();
  EXPECT_TRUE(eventually([&] { return sample_of("farpool_node_sessions_over_quota_total", node_http) >= 1; }));

  std::vector<std::string> flags = shard_flags(at);
  flags.push_back("--threads=1");
  Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
  ASSERT_TRUE(comes_up(shard, http)) << shard.output();
  EXPECT_EQ(ask("127.0.0.1", resp, "SET greeting hello"), "+OK\r\n");

  first->signal(SIGTERM);
  EXPECT_EQ(first->wait(), 0);
  EXPECT_TRUE(comes_up(*second, second_http)) << "its namespace has room again";
}

// Nothing would ever serve it again: a supervisor starts the next process, which is another one to memory nodes.
TEST_F(ComputeShardDaemon, EndsWhenTheOperatorHasFencedItsProcess) {
  const int node_agent = free_port(), shard_agent = free_port();
  const auto agent_on = [](int port) { return "--agent-listen=127.0.0.1:" + std::to_string(port); };
  const std::string at = "127.0.0.1:" + std::to_string(session);
  Daemon node(FARPOOL_MEMORY_NODE, {"--name=m0", "--pool-uid=pool-1", "--insecure-plaintext", "--memory=32Mi",
                                    "--standalone", "--listen=" + at, "--advertise=" + at, agent_on(node_agent),
                                    "--metrics-listen=127.0.0.1:" + std::to_string(node_http)});
  ASSERT_TRUE(comes_up(node, node_http));
  const std::vector<std::string> flags{"--name=s0",
                                       "--pool-uid=pool-1",
                                       "--insecure-plaintext",
                                       "--bootstrap=" + at,
                                       "--threads=2",
                                       "--listen=127.0.0.1:" + std::to_string(resp),
                                       agent_on(shard_agent),
                                       "--metrics-listen=127.0.0.1:" + std::to_string(http)};
  Daemon shard(FARPOOL_COMPUTE_SHARD, flags);
  ASSERT_TRUE(comes_up(shard, http));
  EXPECT_EQ(ask("127.0.0.1", resp, "SET greeting hello"), "+OK\r\n");
  v1alpha1::Facts facts;
  ASSERT_TRUE(ask_agent(shard_agent, &v1alpha1::Agent::Stub::Describe, v1alpha1::DescribeRequest(), facts));
  v1alpha1::FenceRequest fence;
  fence.add_processes(facts.incarnation());
  v1alpha1::FenceResponse fenced;
  ASSERT_TRUE(ask_agent(node_agent, &v1alpha1::Agent::Stub::Fence, fence, fenced));
  EXPECT_EQ(fenced.sessions(), 2u);
  EXPECT_EQ(shard.wait(), EXIT_FAILURE) << "0 would say that it left in order";
  EXPECT_NE(shard.output().find("fenced for good"), std::string::npos) << shard.output();
  Daemon next(FARPOOL_COMPUTE_SHARD, flags);
  ASSERT_TRUE(comes_up(next, http));
  EXPECT_EQ(ask("127.0.0.1", resp, "STRLEN greeting"), ":5\r\n");
}

}  // namespace
}  // namespace farpool::apps
