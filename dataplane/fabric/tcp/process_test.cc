// SPDX-License-Identifier: Apache-2.0
// Responder and client in different processes: the test executes itself again as the memory node.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "fabric/contract/wire.h"
#include "fabric/tcp/responder.h"
#include "fabric/tcp/test_loop.h"

namespace farpool::fabric::tcp {
namespace {

using contract::TestHost;
constexpr int kGrants = 4;

// The grants of the two processes agree because a TestHost draws them in order.
int serve() {
  TestHost host;
  for (int i = 0; i < kGrants; ++i) host.grant(1, "");
  net::Loop control;
  TcpResponder responder(control, {.listen = "127.0.0.1:0"});
  if (const base::Status status = responder.serve(host); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("%s\n", responder.address().c_str());
  std::fflush(stdout);
  control.run();  // until it is killed
  return 0;
}

struct Node {
  Node() {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    pid = ::fork();
    if (pid == 0) {
      ::dup2(pipe[1], STDOUT_FILENO);
      ::execl("/proc/self/exe", "fabric_tcp_test", "--serve", nullptr);
      ::_exit(127);
    }
    ::close(pipe[1]);
    for (char c = 0; ::read(pipe[0], &c, 1) == 1 && c != '\n';) endpoint.push_back(c);
    ::close(pipe[0]);
  }
  ~Node() { kill(); }
  void kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = -1;
  }
  pid_t pid = -1;
  std::string endpoint;
};

task::Task<void> use_and_lose(TcpPort& port, Node& node) {
  TestHost twin;
  const auto soon = [&port] { return port.now() + 30 * base::kSecond; };
  auto opened = co_await port.open_lane(twin.grant(1, node.endpoint), soon());
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) co_return;
  Lane& lane = **opened;
  Buffer buffer = port.buffer(64);
  std::uint64_t old = 0;
  for (std::uint64_t round = 0; round < 500; ++round) {
    base::store(buffer.data(), round);
    const std::array chain{Op::write({TestHost::kSmall, 0}, buffer.first(64)),
                           Op::fetch_add({TestHost::kSmall, 64}, old, 1),
                           Op::read({TestHost::kSmall, 0}, buffer.first(64))};
    const Outcome outcome = co_await lane.post(chain, soon());
    EXPECT_EQ(outcome.fate, Fate::done);
    EXPECT_EQ(old, round);
    EXPECT_EQ(base::load<std::uint64_t>(buffer.data()), round);
  }
  auto reply = co_await port.exchange(node.endpoint, "hello", soon());
  EXPECT_TRUE(reply.ok() && *reply == "echo:hello");

  node.kill();
  const std::array chain{Op::fetch_add({TestHost::kSmall, 64}, old, 1)};
  const Outcome outcome = co_await lane.post(chain, soon());
  EXPECT_EQ(outcome.fate, Fate::maybe);
  EXPECT_FALSE(lane.open());
  auto again = co_await port.open_lane(twin.grant(1, node.endpoint), soon());
  EXPECT_EQ(again.code(), base::Code::unavailable);
}

TEST(Process, AMemoryNodeInAnotherProcessServesAndItsDeathIsSeen) {
  Node node;
  ASSERT_FALSE(node.endpoint.empty()) << "the memory node did not begin";
  ClientThread client(nullptr);
  client.run(use_and_lose(*client.port, node));
}

}  // namespace
}  // namespace farpool::fabric::tcp

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--serve") return farpool::fabric::tcp::serve();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
