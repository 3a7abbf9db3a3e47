// SPDX-License-Identifier: Apache-2.0
#include "control/web.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "net/kernel_test.h"

namespace farpool::control {
namespace {

using Clock = std::chrono::steady_clock;

// How long the kubelet waits for a probe.
constexpr auto kSoon = std::chrono::seconds(1);

constexpr const char* kGet = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

// A connection to a port of this machine.
class Client {
 public:
  explicit Client(const std::string& address, const std::string& host = "127.0.0.1") {
    const auto port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    const bool is_v4 = inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
    v4.sin_family = AF_INET;
    v4.sin_port = port;
    v6.sin6_family = AF_INET6;
    v6.sin6_port = port;
    if (!is_v4) {
      EXPECT_EQ(inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr), 1) << host;
    }
    fd_ = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ = (is_v4 ? connect(fd_, reinterpret_cast<sockaddr*>(&v4), sizeof v4)
                        : connect(fd_, reinterpret_cast<sockaddr*>(&v6), sizeof v6)) == 0;
  }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  ~Client() {
    if (fd_ >= 0) close(fd_);
  }
  bool connected() const { return connected_; }
  bool say(const std::string& text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  void end_of_request() const { shutdown(fd_, SHUT_WR); }
  // Returns all that the server says until it closes the connection, or nothing after 20 s.
  std::string hear() const {
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<std::size_t>(n));
    return answer;
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
};

std::string ask(const std::string& address, const std::string& request, const std::string& host = "127.0.0.1") {
  const Client client(address, host);
  if (!client.connected()) return "nobody listens";
  EXPECT_TRUE(client.say(request));
  return client.hear();
}
std::string get(const std::string& address, const std::string& path, const std::string& host = "127.0.0.1") {
  return ask(address, "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n", host);
}

std::unique_ptr<Web> serve(const std::string& listen) {
  auto web = Web::start({.listen = listen, .metrics = {}, .alive = {}, .ready = {}});
  EXPECT_TRUE(web.ok()) << web.status().message();
  return web.ok() ? std::move(*web) : nullptr;
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

TEST(Web, ShowsMetricsAndProbesAndNothingElse) {
  auto registry = std::make_shared<prometheus::Registry>();
  prometheus::BuildCounter()
      .Name("farpool_test_total")
      .Help("Counts.")
      .Register(*registry)
      .Add({{"kind", "a"}})
      .Increment(3);
  std::atomic<bool> ready = false;
  auto web = Web::start({.listen = "127.0.0.1:0", .metrics = {registry}, .alive = {}, .ready = [&] {
                           return ready ? std::string() : std::string("holds no session yet");
                         }});
  ASSERT_TRUE(web.ok()) << web.status().message();
  const std::string& address = (*web)->address();
  const std::string metrics = get(address, "/metrics");
  EXPECT_NE(metrics.find("farpool_test_total{kind=\"a\"} 3"), std::string::npos);
  EXPECT_NE(metrics.find("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("\r\nConnection: close\r\n"), std::string::npos) << metrics;
  EXPECT_TRUE(get(address, "/healthz").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get(address, "/healthz?verbose").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get(address, "/readyz").starts_with("HTTP/1.1 503"));
  EXPECT_NE(get(address, "/readyz").find("holds no session yet"), std::string::npos);
  ready = true;
  EXPECT_TRUE(get(address, "/readyz").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get(address, "/").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(get(address, "/metrics/../etc/passwd").starts_with("HTTP/1.1 404"));
  const std::string head = ask(address, "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  EXPECT_TRUE(
      ask(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(
      ask(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello").starts_with("HTTP/1.1 405"));

  auto second = Web::start({.listen = address, .metrics = {}, .alive = {}, .ready = {}});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(address), std::string::npos);
}

TEST(Web, ListensOnBothFamiliesOrOnTheOneThatIsNamed) {
  const auto both = serve("[::]:0");
  ASSERT_NE(both, nullptr);
  EXPECT_TRUE(both->address().starts_with("[::]:")) << both->address();
  EXPECT_TRUE(get(both->address(), "/healthz", "::1").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get(both->address(), "/healthz", "127.0.0.1").starts_with("HTTP/1.1 200"));
  const auto v6 = serve("[::1]:0");
  ASSERT_NE(v6, nullptr);
  EXPECT_TRUE(get(v6->address(), "/healthz", "::1").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(get(v6->address(), "/healthz", "127.0.0.1"), "nobody listens");
  const auto v4 = serve("0.0.0.0:0");
  ASSERT_NE(v4, nullptr);
  EXPECT_TRUE(get(v4->address(), "/healthz", "127.0.0.1").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(get(v4->address(), "/healthz", "::1"), "nobody listens");
  const auto named = serve("localhost:0");
  ASSERT_NE(named, nullptr);
  EXPECT_TRUE(named->address().starts_with("localhost:")) << named->address();
}

TEST(Web, RefusesWhatIsNoAddress) {
  for (const char* listen :
       {"", "7402", "[::]", "unix:/tmp/web", "no.such.host.invalid:0", "127.0.0.1:http", "192.0.2.1:0"}) {
    const auto web = Web::start({.listen = listen, .metrics = {}, .alive = {}, .ready = {}});
    ASSERT_FALSE(web.ok()) << listen;
    EXPECT_NE(web.status().message().find("metrics port"), std::string::npos) << web.status().message();
  }
  const auto local = Web::start({.listen = "unix:/tmp/web", .metrics = {}, .alive = {}, .ready = {}});
  EXPECT_NE(local.status().message().find("it takes a host and a port"), std::string::npos) << local.status().message();
}

TEST(Web, ServesIpv4AloneWhereTheKernelHasNoOther) {
  // Runs in a process of its own: under the thread sanitizer, a process that threads have forked starts no threads.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        net::lose_ipv6();
        const auto web = Web::start({.listen = "[::]:0", .metrics = {}, .alive = {}, .ready = {}});
        const std::string address = web.ok() ? (*web)->address() : web.status().message();
        std::cerr << address << "\n";
        const bool answers = web.ok() && get(address, "/healthz").starts_with("HTTP/1.1 200");
        std::_Exit(answers && address.starts_with("0.0.0.0:") ? 0 : 1);
      },
      testing::ExitedWithCode(0), "0.0.0.0:");
}

TEST(Web, AnswersClientsThatHaveClosedTheirHalf) {
  const auto web = serve("[::]:0");
  ASSERT_NE(web, nullptr);
  for (int i = 0; i < 20; ++i) {
    const Client client(web->address());
    ASSERT_TRUE(client.say(kGet));
    client.end_of_request();
    const std::string answer = client.hear();
    ASSERT_TRUE(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n")) << answer;
  }
}

// Failing probes restart the container.
TEST(Web, KeepsNoProbeWaitingForConnectionsThatAreIdleOrSlow) {
  const auto web = serve("[::]:0");
  ASSERT_NE(web, nullptr);
  const std::size_t before = open_descriptors();
  std::vector<Client> others;
  for (int i = 0; i < 300; ++i) {
    others.emplace_back(web->address());
    ASSERT_TRUE(others.back().connected());
    if (i % 3 == 1) others.back().say("GET /met");
    if (i % 3 == 2) others.back().say("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  }
  for (int i = 0; i < 100; ++i) {
    const auto asked = Clock::now();
    ASSERT_TRUE(get(web->address(), "/healthz").starts_with("HTTP/1.1 200")) << "probe " << i;
    ASSERT_LT(Clock::now() - asked, kSoon) << "probe " << i;
  }
  // The process keeps few descriptors for this port.
  EXPECT_LE(open_descriptors(), before + others.size() + 24);
}

TEST(Web, ReadsNoRequestThatIsLongerThanProbesAre) {
  const auto web = serve("[::]:0");
  ASSERT_NE(web, nullptr);
  for (const std::string& request :
       {"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + std::string(1 << 20, 'x') + "\r\n\r\n",
        "GET /" + std::string(1 << 20, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n", std::string(1 << 20, 'x')}) {
    const Client client(web->address());
    client.say(request);
    EXPECT_FALSE(client.hear().starts_with("HTTP/1.1 200"));
  }
  EXPECT_TRUE(get(web->address(), "/healthz").starts_with("HTTP/1.1 200"));
}

TEST(Web, EndsAtOnce) {
  const std::size_t before = open_descriptors();
  auto web = serve("[::]:0");
  ASSERT_NE(web, nullptr);
  const Client idle(web->address());
  EXPECT_NE(get(web->address(), "/metrics"), "");
  const auto told = Clock::now();
  web.reset();
  EXPECT_LT(Clock::now() - told, kSoon);
  EXPECT_LE(open_descriptors(), before + 1) << "it still listens";  // the client's is open
}

}  // namespace
}  // namespace farpool::control
