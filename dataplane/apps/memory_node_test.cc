// SPDX-License-Identifier: Apache-2.0
// The memory node's daemon as its users see it: flags and file, session port, probes and metrics, signals.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fabric/tcp/test_loop.h"
#include "farpool/v1alpha1/session.pb.h"
#include "net/throwaway_ca.h"

namespace farpool::apps {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

// Status line and body, or nothing when nobody listens.
std::optional<std::string> get(int port, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::optional<std::string> text;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    text.emplace();
    std::array<char, 4096> piece{};
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      for (ssize_t got; (got = ::read(fd, piece.data(), piece.size())) > 0;) {
        text->append(piece.data(), static_cast<std::size_t>(got));
      }
    }
  }
  ::close(fd);
  return text;
}

// A child process; its output goes to a file that is read when it has ended.
class Daemon {
 public:
  explicit Daemon(std::vector<std::string> arguments) {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-daemon-XXXXXX").string();
    const int out = ::mkstemp(pattern.data());
    EXPECT_GE(out, 0);
    output_ = pattern;
    std::vector<char*> argv{const_cast<char*>(FARPOOL_MEMORY_NODE)};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out, STDOUT_FILENO);
      ::dup2(out, STDERR_FILENO);
      ::execv(FARPOOL_MEMORY_NODE, argv.data());
      ::_exit(127);
    }
    ::close(out);
  }
  ~Daemon() {
    if (!status_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove(output_);
  }
  void signal(int number) { ::kill(pid_, number); }
  bool running() {
    int status = 0;
    if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return !status_;
  }
  // Exit status, or minus the signal that ended it; -1000 if it did not end.
  int wait() {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (running() && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!status_) return -1000;
    return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : -WTERMSIG(*status_);
  }
  std::string output() const {
    std::ifstream file(output_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  pid_t pid_ = -1;
  std::optional<int> status_;
  std::string output_;
};

class MemoryNodeDaemon : public testing::Test {
 protected:
  // Flags of a node that works, on free ports.
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
  bool comes_up(Daemon& daemon) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (daemon.running() && std::chrono::steady_clock::now() < limit) {
      const auto answer = get(http_port, "/readyz");
      if (answer && answer->find(" 200 ") != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ADD_FAILURE() << "it did not become ready:\n" << daemon.output();
    return false;
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
  v1alpha1::SessionRequest request;
  request.set_protocol_version(1);
  request.set_pool_uid(pool);
  request.mutable_read_map();
  const auto answer = co_await port.exchange(endpoint, request.SerializeAsString(), port.now() + 30 * base::kSecond);
  EXPECT_TRUE(answer.ok()) << answer.status().message();
  if (answer.ok()) EXPECT_TRUE(reply.ParseFromString(*answer));
}

TEST_F(MemoryNodeDaemon, ServesItsMapProbesAndMetricsAndEndsOnATerm) {
  Daemon daemon(flags());
  ASSERT_TRUE(comes_up(daemon));
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

  EXPECT_NE(get(http_port, "/healthz")->find(" 200 "), std::string::npos);
  EXPECT_NE(get(http_port, "/nothing")->find(" 404 "), std::string::npos);
  EXPECT_EQ(metric("farpool_node_serving"), "1");
  EXPECT_EQ(metric("farpool_node_era_lag"), "0");
  EXPECT_EQ(metric("farpool_node_memory_fresh"), "1");
  EXPECT_EQ(metric("farpool_wire_malformed_total"), "0");

  // Bytes that are no TLS, on the session port, end that connection alone.
  EXPECT_TRUE(get(session_port, "/").has_value());
  EXPECT_EQ(metric("farpool_wire_handshakes_failed_total"), "1");
  EXPECT_TRUE(daemon.running());

  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
  EXPECT_NE(daemon.output().find("signal 15"), std::string::npos) << daemon.output();
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
  Daemon daemon({"--config=" + path, "--log-format=text"});
  ASSERT_TRUE(comes_up(daemon));
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
           {{"--lease=5"}, "5"},
           {{"--lease=1s"}, "--lease"},
           {{"--failure-timeout=1ms"}, "--failure-timeout"},
           {{"--threads=0"}, "--threads"},
           {{"--advertise=0.0.0.0:7400"}, "--advertise"},
           {{"--listen=nonsense"}, "nonsense"},
           {{"--memory-path=/nowhere/at/all"}, "/nowhere/at/all"},
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
    Daemon daemon(arguments);
    const int status = daemon.wait();
    EXPECT_GT(status, 0) << each.change[0] << ": " << daemon.output();
    EXPECT_FALSE(daemon.output().empty()) << each.change[0];
    EXPECT_NE(daemon.output().find(each.says), std::string::npos) << each.change[0] << ": " << daemon.output();
    EXPECT_EQ(daemon.output().find("Sanitizer"), std::string::npos) << daemon.output();
  }
}

TEST_F(MemoryNodeDaemon, SaysThatItsPortIsTaken) {
  Daemon first(flags());
  ASSERT_TRUE(comes_up(first));
  Daemon second(flags());
  EXPECT_GT(second.wait(), 0);
  EXPECT_NE(second.output().find(std::to_string(session_port)), std::string::npos) << second.output();
  EXPECT_TRUE(first.running());
}

}  // namespace
}  // namespace farpool::apps
