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
#include <string>

namespace farpool::control {
namespace {

// One request over a socket of its own; the whole answer.
std::string ask(const std::string& address, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  EXPECT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<std::size_t>(n));
  close(fd);
  return answer;
}
std::string get(const std::string& address, const std::string& path) {
  return ask(address, "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
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
  EXPECT_NE(get(address, "/metrics").find("farpool_test_total{kind=\"a\"} 3"), std::string::npos);
  EXPECT_TRUE(get(address, "/healthz").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get(address, "/readyz").starts_with("HTTP/1.1 503"));
  EXPECT_NE(get(address, "/readyz").find("holds no session yet"), std::string::npos);
  ready = true;
  EXPECT_TRUE(get(address, "/readyz").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get(address, "/").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(get(address, "/metrics/../etc/passwd").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(
      ask(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 405"));

  auto second = Web::start({.listen = address, .metrics = {}, .alive = {}, .ready = {}});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(address), std::string::npos);
}

}  // namespace
}  // namespace farpool::control
