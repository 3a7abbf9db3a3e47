// SPDX-License-Identifier: Apache-2.0
// farpool-swordbox between two SoftRoCE devices: a client's in this network namespace, a server's in another one, and the
// box in a third, on the only way between them. Sessions and the connection manager pass through it, too. A box in the
// client's namespace would do its work twice: the kernel takes packets to the client's address from every interface.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/daemon_test.h"
#include "fabric/contract/wire.h"
#include "fabric/verbs/lab_test.h"
#include "fabric/verbs/responder.h"
#include "swordbox/shell/veth_test.h"
#include "task/scope.h"

namespace farpool::apps {
namespace {

using fabric::Buffer;
using fabric::Fate;
using fabric::Lane;
using fabric::Op;
using fabric::Outcome;
using fabric::Remote;
using fabric::contract::TestHost;
using fabric::verbs::Device;
using fabric::verbs::VerbsPort;
using fabric::verbs::VerbsResponder;
using fabric::verbs::VerbsThread;
using swordbox::does;

constexpr base::Nanos kFailureTimeout = 20 * base::kSecond;
constexpr std::uint64_t kLock = 0, kSum = 8;  // offsets in the small region; the lock is the box's range
constexpr std::size_t kClients = 4;
constexpr char kBox[] = "10.78.0.2";  // alone in its namespace: any port is free
constexpr int kHttp = 9000;

Remote at(std::uint64_t offset) { return {TestHost::kSmall, offset}; }
base::Nanos soon(const fabric::Port& port) { return port.now() + 60 * base::kSecond; }

class SwordboxCable : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& command :
         {std::string("printf 'netns add far\\nnetns add box\\nlink add near type veth peer name near_box netns box\\n"
                      "link add watch type veth peer name watched netns box\\naddr add 10.77.0.1/24 dev near\\n"
                      "addr add 10.78.0.1/24 dev watch\\nlink set near up\\nlink set watch up\\n' | ip -batch -"),
          std::string(
              "printf 'link add far_box type veth peer name far netns far\\naddr add 10.78.0.2/24 dev watched\\n"
              "link set watched up\\nlink set near_box up\\nlink set far_box up\\n' | ip -n box -batch -"),
          std::string("printf 'addr add 10.77.0.2/24 dev far\\nlink set far up\\n' | ip -n far -batch -"),
          std::string("rdma link add rxe_near type rxe netdev near"),
          std::string("ip netns exec far rdma link add rxe_far type rxe netdev far")}) {
      ASSERT_TRUE(does(command)) << command;
    }
  }
  ~SwordboxCable() override {
    client.reset();
    control.on([this] { responder.reset(); });
    device.reset();
    box.reset();
    does("ip link delete near; ip link delete watch; ip netns delete far; ip netns delete box");
  }
  // An emulated machine is slow: packets live long in its queues.
  void insert_box(const std::vector<std::string>& more) {
    std::vector<std::string> command{"netns",
                                     "exec",
                                     "box",
                                     FARPOOL_SWORDBOX,
                                     "--clients-interface=near_box",
                                     "--servers-interface=far_box",
                                     "--again=50ms",
                                     "--silence=4s",
                                     "--longest-life=400ms",
                                     "--log-format=text",
                                     "--metrics-listen=" + std::string(kBox) + ":" + std::to_string(kHttp)};
    command.insert(command.end(), more.begin(), more.end());
    box.reset();  // the next box knows nothing of it
    box = std::make_unique<Daemon>("/sbin/ip", std::move(command));
    ASSERT_TRUE(comes_up(*box, kHttp, kBox));
  }
  void open_ends() {
    auto far = Device::open({.device = "rxe_far", .failure_timeout = kFailureTimeout});
    ASSERT_TRUE(far.ok()) << far.status().message();
    auto near = Device::open({.device = "rxe_near", .address = "10.77.0.1"});
    ASSERT_TRUE(near.ok()) << near.status().message();
    device = *near;
    control.on([&] {
      const int fd = ::open("/run/netns/far", O_RDONLY | O_CLOEXEC);
      EXPECT_EQ(::setns(fd, CLONE_NEWNET), 0);
      ::close(fd);
      responder = std::make_unique<VerbsResponder>(
          control.loop,
          fabric::session_port::Options{
              .listen = "10.77.0.2:0", .max_lanes_per_session = 64, .handshake_deadline = kFailureTimeout},
          std::move(*far));
      const base::Status status = responder->serve(host);
      EXPECT_TRUE(status.ok()) << status.message();
    });
    client = std::make_unique<VerbsThread>(nullptr, device);
  }
  // The word of the lock, as the flag wants it.
  std::string lock_range() {
    std::uint64_t address = 0;
    control.on([&] { address = responder->address_in_packets(host.memory_of(TestHost::kSmall)); });
    EXPECT_NE(address, 0u);
    std::array<char, 64> range{};
    std::snprintf(range.data(), range.size(), "--range=10.77.0.2@0x%llx+8", static_cast<unsigned long long>(address));
    return range.data();
  }
  double sample(const std::string& name) const { return sample_of("farpool_swordbox_" + name + "_total", kHttp, kBox); }
  std::string samples() const { return get(kHttp, "/metrics", kBox).value_or("no answer"); }

  TestHost host;
  fabric::session_port::LoopThread control;
  std::shared_ptr<Device> device;
  std::unique_ptr<VerbsResponder> responder;
  std::unique_ptr<VerbsThread> client;
  std::unique_ptr<Daemon> box;
};

task::Task<void> open_into(VerbsPort& port, fabric::LaneGrant grant, std::unique_ptr<Lane>& lane) {
  auto opened = co_await port.open_lane(std::move(grant), soon(port));
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (opened.ok()) lane = std::move(*opened);
}

// Takes the lock, adds one to a sum that nothing else protects, and gives the lock back behind the WRITE of the sum.
task::Task<void> add_under_lock(VerbsPort& port, Lane& lane, std::uint64_t self, std::uint64_t rounds,
                                std::uint64_t& attempts) {
  Buffer sum = port.buffer(8);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::uint64_t holder = 1;
    while (holder != 0) {
      ++attempts;
      const std::array take{Op::cas(at(kLock), holder, 0, self), Op::read(at(kSum), sum.span())};
      const Outcome outcome = co_await lane.post(take, soon(port));
      EXPECT_EQ(outcome.fate, Fate::done) << "client " << self << ", round " << round;
      EXPECT_NE(holder, self) << "it held the lock already";
      if (outcome.fate != Fate::done) co_return;
    }
    base::store(sum.data(), base::load<std::uint64_t>(sum.data()) + 1);
    std::uint64_t released = 0;
    const std::array give{Op::write(at(kSum), sum.span()), Op::cas(at(kLock), released, self, 0)};
    const Outcome outcome = co_await lane.post(give, soon(port));
    EXPECT_EQ(outcome.fate, Fate::done) << "client " << self << ", round " << round;
    EXPECT_EQ(released, self) << "another one had the lock";
    if (outcome.fate != Fate::done) co_return;
  }
}

task::Task<void> add_side_by_side(VerbsPort& port, std::array<std::unique_ptr<Lane>, kClients>& lanes,
                                  std::uint64_t rounds, std::uint64_t& attempts) {
  task::Scope scope;
  for (std::size_t i = 0; i < kClients; ++i) scope.spawn(add_under_lock(port, *lanes[i], i + 1, rounds, attempts));
  co_await scope.join();
}

struct Weather {
  const char* name;
  const char* netem;  // of packets to the server, and of its own
};
class SwordboxWeather : public SwordboxCable, public testing::WithParamInterface<Weather> {};

TEST_P(SwordboxWeather, ALockIsOneClientsAtATimeThoughItsAtomicsAreWrites) {
  // The memory node draws the address of its region when the first lane asks for it.
  ASSERT_NO_FATAL_FAILURE(insert_box({}));
  ASSERT_NO_FATAL_FAILURE(open_ends());
  std::array<std::unique_ptr<Lane>, kClients> lanes;
  const auto open_lane = [&](std::unique_ptr<Lane>& lane) {
    client->run(open_into(*client->port, host.grant(1, responder->address()), lane));
    ASSERT_NE(lane, nullptr);
  };
  ASSERT_NO_FATAL_FAILURE(open_lane(lanes[0]));
  ASSERT_NO_FATAL_FAILURE(insert_box({lock_range()}));
  for (std::size_t i = 1; i < kClients; ++i) ASSERT_NO_FATAL_FAILURE(open_lane(lanes[i]));
  if (const char* const netem = GetParam().netem; netem != nullptr) {
    ASSERT_TRUE(does(std::string("tc -n box qdisc add dev far_box root netem ") + netem));
    ASSERT_TRUE(does(std::string("tc -n far qdisc add dev far root netem ") + netem));
  }
  constexpr std::uint64_t kRounds = 25;
  std::uint64_t attempts = 0;
  client->run(add_side_by_side(*client->port, lanes, kRounds, attempts));
  EXPECT_EQ(host.word(TestHost::kSmall, kSum), kClients * kRounds);
  EXPECT_EQ(host.word(TestHost::kSmall, kLock), 0u);
  EXPECT_TRUE(eventually([&] {
    return sample("changes_replaced") + sample("failures_replaced") + sample("kept") >=
           static_cast<double>(attempts + kClients * kRounds);
  })) << attempts
      << " attempts";
  EXPECT_GE(sample("changes_replaced"), kClients * kRounds) << samples();
  EXPECT_EQ(sample("cut"), 0) << samples();
  EXPECT_EQ(sample("surprises"), 0);
  EXPECT_EQ(sample("refused"), 0);
  client->on([&] {
    for (auto& lane : lanes) lane.reset();
  });
}
INSTANTIATE_TEST_SUITE_P(Netem, SwordboxWeather,
                         testing::Values(Weather{"Fair", nullptr}, Weather{"Loss", "delay 1ms loss 2%"},
                                         Weather{"Reordering", "delay 2ms reorder 30% 50%"},
                                         Weather{"Duplicates", "delay 1ms duplicate 20%"}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace farpool::apps
