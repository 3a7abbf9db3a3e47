// SPDX-License-Identifier: Apache-2.0
// What a network does to lanes: two SoftRoCE devices with a cable between them, which is slow, loses packets, is cut
// and is plugged in again. Sessions begin on the loopback interface, which stays whole, so that only verbs suffer. It
// needs the laboratory's guest, or another machine that may make network namespaces and SoftRoCE devices.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "fabric/contract/wire.h"
#include "fabric/verbs/data_call.h"
#include "fabric/verbs/lab_test.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/responder.h"
#include "task/scope.h"

namespace farpool::fabric::verbs {
namespace {

using contract::TestHost;

bool succeeds(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// The far end's interface is in a namespace of its own: two devices of one namespace would not use the cable.
class Cable : public ::testing::Test {
 protected:
  static constexpr Nanos kFailureTimeout = 10 * base::kSecond;

  // If a memory node's own network namespace is the far end's, librdmacm can reach it. Then everything goes over the
  // cable, sessions too.
  enum class Node : std::uint8_t { near, far };
  void plug(int mtu, Node where = Node::near) {
    const std::string bytes = std::to_string(mtu);
    // Few commands: in an emulated guest, starting one costs more than its work.
    for (const std::string& command :
         {"printf 'netns add far\nlink add near mtu " + bytes + " type veth peer name far netns far mtu " + bytes +
              "\naddr add 10.77.0.1/24 dev near\nlink set near up\n' | ip -batch -",
          std::string("printf 'addr add 10.77.0.2/24 dev far\nlink set far up\n' | ip -n far -batch -"),
          std::string("rdma link add rxe_near type rxe netdev near"),
          std::string("ip netns exec far rdma link add rxe_far type rxe netdev far")}) {
      ASSERT_EQ(std::system(command.c_str()), 0) << command;
    }
    auto far = Device::open({.device = "rxe_far", .failure_timeout = kFailureTimeout});
    ASSERT_TRUE(far.ok()) << far.status().message();
    auto near = Device::open({.device = "rxe_near", .address = "10.77.0.1"});
    ASSERT_TRUE(near.ok()) << near.status().message();
    device = *near;
    control.on([&] {
      if (where == Node::far) enter("/run/netns/far");
      responder = std::make_unique<VerbsResponder>(
          control.loop,
          session_port::Options{.listen = where == Node::far ? "10.77.0.2:0" : "127.0.0.1:0",
                                .max_lanes_per_session = 64,
                                .handshake_deadline = kFailureTimeout},
          std::move(*far));
      const base::Status status = responder->serve(host);
      EXPECT_TRUE(status.ok()) << status.message();
    });
    const auto log = [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      said += line + "\n";
    };
    client = std::make_unique<VerbsThread>(nullptr, device, 0, log, calls);
  }
  // An open device cannot be removed.
  ~Cable() override {
    client.reset();
    control.on([this] { responder.reset(); });
    device.reset();
    succeeds("ip link delete near && ip netns delete far");  // and what is on them
  }
  // Moves this thread, and no other, into the namespace.
  static void enter(const char* network_namespace) {
    const int fd = ::open(network_namespace, O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(::setns(fd, CLONE_NEWNET), 0) << network_namespace;
    ::close(fd);
  }
  void connect(std::unique_ptr<Lane>& lane, std::uint64_t word);
  LaneGrant grant() { return host.grant(1, responder->address()); }
  std::string log() {
    const std::lock_guard lock(mutex);
    return said;
  }

  TestHost host;
  session_port::LoopThread control;
  std::shared_ptr<Device> device;
  CallForm calls = CallForm::connected;  // of the client, from when it is plugged in
  std::mutex mutex;
  std::string said;
  std::unique_ptr<VerbsResponder> responder;
  std::unique_ptr<VerbsThread> client;
};

Remote at(std::uint64_t offset) { return {TestHost::kSmall, offset}; }
Nanos soon(const Port& port) { return port.now() + 60 * base::kSecond; }

task::Task<void> open_into(VerbsPort& port, LaneGrant grant, std::unique_ptr<Lane>& lane, base::Status& status) {
  auto opened = co_await port.open_lane(std::move(grant), soon(port));
  status = opened.ok() ? base::Status() : opened.status();
  if (opened.ok()) lane = std::move(*opened);
}

task::Task<void> write_into(VerbsPort& port, Lane& lane, std::uint64_t word, Outcome& outcome) {
  Buffer buffer = port.buffer(8);
  base::store(buffer.data(), word);
  const std::array ops{Op::write(at(0), buffer.span())};
  outcome = co_await lane.post(ops, soon(port));
}

// Opens a lane and writes with it, repeatedly, until what was known of the far end before a cut has been learned again.
void Cable::connect(std::unique_ptr<Lane>& lane, std::uint64_t word) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  base::Status status;
  Outcome outcome{.fate = Fate::maybe};
  while (outcome.fate != Fate::done && std::chrono::steady_clock::now() < limit) {
    client->on([&] { lane.reset(); });
    client->run(open_into(*client->port, grant(), lane, status));
    if (status.ok()) client->run(write_into(*client->port, *lane, word, outcome));
  }
  ASSERT_EQ(outcome.fate, Fate::done) << status.message();
}

// A READ sees the WRITE before it, and every FAA happens once. The FAA is sent after the WRITE has been reported:
// SoftRoCE acknowledges a repeated WRITE with the number of the last request that it executed, and its other end takes
// that for the answer to an FAA behind the WRITE. It then reports the FAA as done without the old word.
task::Task<void> write_read_add(VerbsPort& port, Lane& lane, std::uint64_t rounds) {
  Buffer out = port.buffer(4096), in = port.buffer(4096);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < out.size(); i += 8) base::store(out.data() + i, round * 1000 + i);
    std::uint64_t old = 0;
    const std::array copy{Op::write(at(4096), out.span()), Op::read(at(4096), in.span())};
    const std::array add{Op::fetch_add(at(8), old, 1)};
    for (const std::span<const Op> ops : {std::span<const Op>(copy), std::span<const Op>(add)}) {
      const Outcome outcome = co_await lane.post(ops, soon(port));
      EXPECT_EQ(outcome.fate, Fate::done) << "round " << round;
      if (outcome.fate != Fate::done) co_return;
    }
    EXPECT_EQ(old, round);
    EXPECT_TRUE(std::equal(out.data(), out.data() + out.size(), in.data())) << "round " << round;
  }
}

struct Weather {
  const char* name;
  const char* netem;
};
class BadWeather : public Cable, public ::testing::WithParamInterface<Weather> {};

TEST_P(BadWeather, CostsTimeAndNothingElse) {
  ASSERT_NO_FATAL_FAILURE(plug(1500));
  const std::string weather = std::string("tc qdisc add dev near root netem ") + GetParam().netem;
  ASSERT_TRUE(succeeds(weather)) << weather;
  // What asks for the far end's address may be lost, too, and the kernel gives up after a second.
  std::unique_ptr<Lane> lane;
  ASSERT_NO_FATAL_FAILURE(connect(lane, 0));
  host.set_word(TestHost::kSmall, 8, 0);
  constexpr std::uint64_t kRounds = 40;
  client->run(write_read_add(*client->port, *lane, kRounds));
  EXPECT_EQ(host.word(TestHost::kSmall, 8), kRounds);
  client->on([&] { lane.reset(); });
  EXPECT_EQ(log(), "");
}
INSTANTIATE_TEST_SUITE_P(Netem, BadWeather,
                         ::testing::Values(Weather{"LossAndDelay", "delay 2ms 1ms loss 2%"},
                                           // Most packets wait, and the others overtake them.
                                           Weather{"Reordering", "delay 3ms reorder 30% 50%"},
                                           Weather{"Duplicates", "delay 1ms duplicate 20%"}),
                         [](const auto& tested) { return tested.param.name; });

// ---- CALLs for data, as datagrams

// Counts a word of its own up, and echoes long bodies in between: every answer must belong to its CALL.
task::Task<void> count_up(VerbsPort& port, Lane& lane, std::uint64_t which, std::uint64_t rounds, std::uint64_t& done) {
  constexpr std::size_t kMuch = 800;  // more than a device copies when it is sent
  Buffer place = port.buffer(8), old = port.buffer(8), out = port.buffer(kMuch), in = port.buffer(kMuch);
  base::store(place.data(), 8 * which);
  const std::array bump{Op::call(contract::TestService::kBump, place.first(8), old.first(8))};
  const std::array echo{Op::call(contract::TestService::kEcho, out.first(kMuch), in.first(kMuch))};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Outcome outcome = co_await lane.post(bump, soon(port));
    EXPECT_EQ(outcome.fate, Fate::done) << "caller " << which << ", round " << round;
    if (outcome.fate != Fate::done) co_return;
    EXPECT_EQ(base::load<std::uint64_t>(old.data()), round) << "caller " << which << ": a CALL has executed twice";
    ++done;
    for (std::size_t i = 0; i < kMuch; i += 8) base::store(out.data() + i, which << 32 | round << 16 | i);
    outcome = co_await lane.post(echo, soon(port));
    EXPECT_EQ(outcome.fate, Fate::done) << "caller " << which << ", round " << round;
    if (outcome.fate != Fate::done) co_return;
    EXPECT_EQ(outcome.reply_bytes, kMuch);
    EXPECT_TRUE(std::equal(out.data(), out.data() + kMuch, in.data())) << "caller " << which << ", round " << round;
    ++done;
  }
}
task::Task<void> count_up_side_by_side(VerbsPort& port, Lane& lane, std::uint64_t callers, std::uint64_t rounds,
                                       std::uint64_t& done) {
  task::Scope scope;
  for (std::uint64_t which = 0; which < callers; ++which) scope.spawn(count_up(port, lane, which, rounds, done));
  co_await scope.join();
}

// In which direction packets are damaged: requests leave the near end, answers the far one.
constexpr const char* kRequests = "tc qdisc add dev near root netem ";
constexpr const char* kAnswers = "tc -n far qdisc add dev far root netem ";

class LostDatagrams : public Cable {
 protected:
  static constexpr std::uint64_t kCallers = kMostDataCalls + 4;  // more than a lane has lines

  void SetUp() override {
    calls = CallForm::datagrams;
    ASSERT_NO_FATAL_FAILURE(plug(1500));
    base::Status status;
    client->run(open_into(*client->port, grant(), lane, status));
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::uint64_t which = 0; which < kCallers; ++which) host.set_word(TestHost::kSmall, 8 * which, 0);
    // Before the weather: the ends know each other's address.
    client->run(count_up_side_by_side(*client->port, *lane, 1, 1, done));
    host.set_word(TestHost::kSmall, 0, 0);
    ASSERT_EQ(std::exchange(done, 0), 2u);
    executed = responder->stats().data.calls;
  }
  ~LostDatagrams() override {
    if (client != nullptr) client->on([this] { lane.reset(); });
  }
  // Since the last time, or the weather began.
  void expect_each_once(std::uint64_t rounds) {
    for (std::uint64_t which = 0; which < kCallers; ++which) {
      EXPECT_EQ(host.word(TestHost::kSmall, 8 * which), rounds);
      host.set_word(TestHost::kSmall, 8 * which, 0);
    }
    EXPECT_EQ(std::exchange(done, 0), 2 * kCallers * rounds) << "some were not answered";
    const std::uint64_t calls = responder->stats().data.calls;
    EXPECT_EQ(calls - std::exchange(executed, calls), 2 * kCallers * rounds);
    EXPECT_EQ(log(), "");
  }

  std::unique_ptr<Lane> lane;
  std::uint64_t done = 0;      // CALLs; the client's thread
  std::uint64_t executed = 0;  // until then
};

// Returns how many packets a qdisc has dropped.
std::uint64_t dropped(const char* show) {
  std::uint64_t count = 0;
  if (FILE* pipe = ::popen(show, "r"); pipe != nullptr) {
    std::array<char, 4096> bytes{};
    const std::string_view text(bytes.data(), std::fread(bytes.data(), 1, bytes.size(), pipe));
    ::pclose(pipe);
    constexpr std::string_view kBefore = "dropped ";
    if (const auto at = text.find(kBefore); at != text.npos) {
      std::from_chars(text.data() + at + kBefore.size(), text.data() + text.size(), count);
    }
  }
  return count;
}

// One direction loses everything, until as much was lost as could be sent the first time and again.
TEST_F(LostDatagrams, AreSentAgainUntilACutIsMended) {
  struct Cut {
    const char* cut;
    const char* show;
    const char* mend;
    bool requests;
  };
  for (const Cut& cut :
       {Cut{kRequests, "tc -s qdisc show dev near", "tc qdisc delete dev near root", true},
        Cut{kAnswers, "tc -n far -s qdisc show dev far", "tc -n far qdisc delete dev far root", false}}) {
    const CallStats before = responder->stats().data;
    ASSERT_TRUE(succeeds(cut.cut + std::string("loss 100%")));
    auto ended = client->spawn(count_up_side_by_side(*client->port, *lane, kCallers, 1, done));
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (dropped(cut.show) < 3 * kMostDataCalls && std::chrono::steady_clock::now() < limit)
      std::this_thread::yield();
    EXPECT_GE(dropped(cut.show), 3 * kMostDataCalls) << "what had no answer was not sent again";
    const CallStats during = responder->stats().data;
    EXPECT_EQ(during.calls - before.calls, cut.requests ? 0 : kMostDataCalls);
    // Before the cut a busy machine may have sent some again, which come now: that says nothing of lost requests.
    if (!cut.requests) EXPECT_GT(during.repeated, before.repeated);
    ASSERT_TRUE(succeeds(cut.mend));
    VerbsThread::wait(ended);
    expect_each_once(1);
  }
}

struct Storm {
  const char* name;
  const char* requests;
  const char* answers;
};
class Storms : public LostDatagrams, public ::testing::WithParamInterface<Storm> {};

TEST_P(Storms, EachCallExecutesOnceAndIsAnswered) {
  if (GetParam().requests != nullptr) ASSERT_TRUE(succeeds(std::string(kRequests) + GetParam().requests));
  if (GetParam().answers != nullptr) ASSERT_TRUE(succeeds(std::string(kAnswers) + GetParam().answers));
  constexpr std::uint64_t kRounds = 5;
  client->run(count_up_side_by_side(*client->port, *lane, kCallers, kRounds, done));
  expect_each_once(kRounds);
}
INSTANTIATE_TEST_SUITE_P(
    Netem, Storms,
    ::testing::Values(Storm{"LosesRequests", "loss 30%", nullptr}, Storm{"LosesAnswers", nullptr, "loss 30%"},
                      Storm{"LosesBoth", "loss 20%", "loss 20%"},
                      // What comes again overtakes what came first, and is late for its line.
                      Storm{"RepeatsAndDelays", "delay 15ms 15ms duplicate 30%", "delay 15ms 15ms duplicate 30%"}),
    [](const auto& tested) { return tested.param.name; });

TEST_F(Cable, ACutEndsALaneInTimeAndSaysSoAndANewOneWorksOnceItIsMended) {
  ASSERT_NO_FATAL_FAILURE(plug(1500));
  struct Cut {
    const char* cut;
    const char* mend;
  };
  for (const Cut& cut : {Cut{"ip -n far link set far down", "ip -n far link set far up"},
                         Cut{"tc qdisc add dev near root netem loss 100%", "tc qdisc delete dev near root"}}) {
    std::unique_ptr<Lane> lane;
    ASSERT_NO_FATAL_FAILURE(connect(lane, 1)) << cut.cut;
    {
      const std::lock_guard lock(mutex);
      said.clear();
    }

    ASSERT_TRUE(succeeds(cut.cut));
    Outcome outcome;
    const auto begun = std::chrono::steady_clock::now();
    client->run(write_into(*client->port, *lane, 2, outcome));
    const auto took = std::chrono::steady_clock::now() - begun;
    EXPECT_EQ(outcome.fate, Fate::maybe) << cut.cut;
    EXPECT_LT(took, std::chrono::nanoseconds(kFailureTimeout)) << "its client would pass for dead first";
    EXPECT_NE(log().find("lane to " + responder->address() + " by rxe_near"), std::string::npos) << log();
    EXPECT_NE(log().find("retry"), std::string::npos) << log();
    EXPECT_EQ(host.word(TestHost::kSmall, 0), 1u) << "what was written on a cut cable came later";
    client->on([&] {
      EXPECT_FALSE(lane->open());
      lane.reset();
    });
    ASSERT_TRUE(succeeds(cut.mend));
  }
  std::unique_ptr<Lane> lane;
  ASSERT_NO_FATAL_FAILURE(connect(lane, 3));
  client->on([&] { lane.reset(); });
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 3u);
}

// librdmacm makes the path: both ends have their addresses where it looks for them.
TEST_F(Cable, AManagedLaneEndsWithACutAndTheNextIsConnectedOnceItIsMended) {
  ASSERT_NO_FATAL_FAILURE(plug(1500, Node::far));
  std::unique_ptr<Lane> lane;
  ASSERT_NO_FATAL_FAILURE(connect(lane, 1));
  EXPECT_EQ(responder->stats().managed, 1u);
  host.set_word(TestHost::kSmall, 8, 0);
  client->run(write_read_add(*client->port, *lane, 3));

  ASSERT_TRUE(succeeds("ip -n far link set far down"));
  Outcome outcome;
  const auto begun = std::chrono::steady_clock::now();
  client->run(write_into(*client->port, *lane, 2, outcome));
  EXPECT_EQ(outcome.fate, Fate::maybe);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::nanoseconds(kFailureTimeout));
  EXPECT_NE(log().find("retry"), std::string::npos) << log();
  client->on([&] { lane.reset(); });
  ASSERT_TRUE(succeeds("ip -n far link set far up"));
  ASSERT_NO_FATAL_FAILURE(connect(lane, 3));
  client->on([&] { lane.reset(); });
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 3u);
}

// An address that goes and comes back has another place in the device's table.
TEST_F(Cable, ANewLaneFindsTheAddressWhereverItStandsNow) {
  ASSERT_NO_FATAL_FAILURE(plug(1500));
  const auto index = device->find_gid()->gid_index;
  ASSERT_TRUE(succeeds("ip addr delete 10.77.0.1/24 dev near"));
  ASSERT_TRUE(succeeds("ip addr add 10.77.0.9/24 dev near"));
  ASSERT_TRUE(succeeds("ip addr add 10.77.0.1/24 dev near"));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!device->find_gid().ok() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  ASSERT_TRUE(device->find_gid().ok()) << device->find_gid().status().message();
  EXPECT_NE(device->find_gid()->gid_index, index) << "the test shows nothing: the address has its old place";
  std::unique_ptr<Lane> lane;
  base::Status status;
  client->run(open_into(*client->port, grant(), lane, status));
  ASSERT_TRUE(status.ok()) << status.message();
  Outcome outcome;
  client->run(write_into(*client->port, *lane, 7, outcome));
  EXPECT_EQ(outcome.fate, Fate::done);
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 7u);
  client->on([&] { lane.reset(); });
}

task::Task<void> move_much(VerbsPort& port, Lane& lane) {
  constexpr std::size_t kBytes = 1u << 20;
  Buffer out = port.buffer(kBytes), in = port.buffer(kBytes);
  for (std::size_t i = 0; i < kBytes; i += 8) base::store(out.data() + i, i * 0x9e3779b97f4a7c15);
  const std::array ops{Op::write({TestHost::kLarge, 8}, out.span()), Op::read({TestHost::kLarge, 8}, in.span())};
  EXPECT_EQ((co_await lane.post(ops, soon(port))).fate, Fate::done);
  EXPECT_TRUE(std::equal(out.data(), out.data() + kBytes, in.data()));
}

class Packets : public Cable, public ::testing::WithParamInterface<std::pair<int, ibv_mtu>> {};

TEST_P(Packets, AreAsLargeAsTheInterfaceLets) {
  ASSERT_NO_FATAL_FAILURE(plug(GetParam().first));
  EXPECT_EQ(device->mtu(), GetParam().second);
  std::unique_ptr<Lane> lane;
  base::Status status;
  client->run(open_into(*client->port, grant(), lane, status));
  ASSERT_TRUE(status.ok()) << status.message();
  client->run(move_much(*client->port, *lane));
  client->on([&] { lane.reset(); });
}
INSTANTIATE_TEST_SUITE_P(Mtu, Packets, ::testing::Values(std::pair{1500, IBV_MTU_1024}, std::pair{4300, IBV_MTU_4096}),
                         [](const auto& tested) { return std::to_string(tested.param.first); });

// Nobody waits for ever for a peer that posts no receive: the device ends the queue pair.
TEST_F(Cable, AReceiverThatIsNeverReadyIsAnError) {
  ASSERT_NO_FATAL_FAILURE(plug(1500));
  auto far = Device::open({.device = "rxe_far"});
  ASSERT_TRUE(far.ok());
  struct Side {
    ProtectionDomain domain;
    Completions completions;
    std::unique_ptr<QueuePair> pair;
  } sides[2];
  const Device* devices[] = {device.get(), far->get()};
  for (int i = 0; i < 2; ++i) {
    sides[i].domain = std::move(*make_protection_domain(*devices[i]));
    sides[i].completions.reset(::ibv_create_cq(devices[i]->context(), 8, nullptr, nullptr, 0));
    auto pair = QueuePair::make(*devices[i], sides[i].domain.get(), sides[i].completions.get(),
                                {.sends = 4, .receives = 1}, 1, 1);
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    sides[i].pair = std::move(*pair);
  }
  for (int i = 0; i < 2; ++i) {
    const base::Status status =
        sides[i].pair->connect(sides[1 - i].pair->end(), IBV_MTU_1024, 1, patience_within(kFailureTimeout));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  ibv_send_wr send{}, *bad = nullptr;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ASSERT_EQ(::ibv_post_send(sides[0].pair->raw(), &send, &bad), 0);
  ibv_wc done{};
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (::ibv_poll_cq(sides[0].completions.get(), 1, &done) == 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(done.status, IBV_WC_RNR_RETRY_EXC_ERR) << ::ibv_wc_status_str(done.status);
}

}  // namespace
}  // namespace farpool::fabric::verbs
