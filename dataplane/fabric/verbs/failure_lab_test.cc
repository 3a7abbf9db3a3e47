// SPDX-License-Identifier: Apache-2.0
// What happens to a lane when its memory node, its keys or its device fail: each time it has a fate and a line in the
// log, and the port continues with another lane. The memory node of these tests misbehaves on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/contract/wire.h"
#include "fabric/session_port/server.h"
#include "fabric/verbs/call.h"
#include "fabric/verbs/lab_test.h"
#include "fabric/verbs/queue_pair.h"

namespace farpool::fabric::verbs {
namespace {

using contract::TestHost;
using ::testing::HasSubstr;

enum class Fault { none, wrong_key, no_receive, gone, in_error, long_answer, wrong_answer, no_manager };

// One lane at a time, with a queue pair and a region like a memory node's.
class FaultyNode final : public session_port::AttachedWire {
 public:
  explicit FaultyNode(const Device& device) : device_(device) {
    domain_ = std::move(*make_protection_domain(device));
    completions_.reset(::ibv_create_cq(device.context(), 16, nullptr, nullptr, 0));
    constexpr int kAccess =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    memory_ = std::move(*register_memory(domain_.get(), words.data(), sizeof words, kAccess));
  }
  std::string_view name() const override { return "verbs"; }
  void attach(std::uint64_t, const LaneRights&, base::Bytes bytes, Answer answer) override {
    const auto request = get_request(bytes);
    ASSERT_TRUE(request);
    auto pair =
        QueuePair::make(device_, domain_.get(), completions_.get(),
                        {.sends = 4, .receives = 1, .access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE}, 1, 1);
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    pair_ = std::move(*pair);
    AttachReply reply{.node = pair_->end(), .patience = {.timeout = 12, .retries = 3}, .nonce = request->nonce};
    reply.node.mtu = std::min(reply.node.mtu, request->client.mtu);
    for (const auto& key : request->keys) {
      reply.places.push_back({.region = key.region,
                              .key = memory_->rkey ^ (fault == Fault::wrong_key ? 0xffu : 0u),
                              .begin = reinterpret_cast<std::uintptr_t>(words.data())});
    }
    if (fault == Fault::no_manager && request->managed) reply.manager_port = 1;  // where nobody listens
    const base::Status status = pair_->connect(request->client, reply.node.mtu, 1, reply.patience);
    ASSERT_TRUE(status.ok()) << status.message();
    if (fault == Fault::in_error) pair_->stop();
    if (fault == Fault::gone) pair_.reset();
    if (fault == Fault::long_answer || fault == Fault::wrong_answer) receive();
    answer(put(reply));
  }
  void detach(std::uint64_t) override { pair_.reset(); }
  void fence(std::uint64_t) override { pair_.reset(); }

  // When the CALL has come: an answer that fits in no receive, or one to another CALL.
  void answer_call() {
    ibv_wc done{};
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (::ibv_poll_cq(completions_.get(), 1, &done) == 0 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    ASSERT_EQ(done.status, IBV_WC_SUCCESS);
    base::store(reinterpret_cast<std::byte*>(words.data()), AnswerHead{.number = 77});
    ibv_sge part = room(fault == Fault::long_answer ? sizeof words : sizeof(AnswerHead));
    ibv_send_wr send{}, *bad = nullptr;
    send.sg_list = &part;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    ASSERT_EQ(::ibv_post_send(pair_->raw(), &send, &bad), 0);
  }

  Fault fault = Fault::none;
  std::array<std::uint64_t, 1024> words{};

 private:
  ibv_sge room(std::size_t bytes) {
    return {.addr = reinterpret_cast<std::uintptr_t>(words.data()),
            .length = static_cast<std::uint32_t>(bytes),
            .lkey = memory_->lkey};
  }
  void receive() {
    ibv_sge part = room(kReceiveBytes);
    ibv_recv_wr wr{.wr_id = 0, .next = nullptr, .sg_list = &part, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(::ibv_post_recv(pair_->raw(), &wr, &bad), 0);
  }
  const Device& device_;
  ProtectionDomain domain_;
  Completions completions_;
  Registration memory_;
  std::unique_ptr<QueuePair> pair_;
};

Nanos soon(const Port& port) { return port.now() + 60 * base::kSecond; }

task::Task<void> open_into(VerbsPort& port, LaneGrant grant, std::unique_ptr<Lane>& lane) {
  auto opened = co_await port.open_lane(std::move(grant), soon(port));
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (opened.ok()) lane = std::move(*opened);
}
task::Task<void> write_into(VerbsPort& port, Lane& lane, Outcome& outcome) {
  Buffer buffer = port.buffer(8);
  base::store(buffer.data(), std::uint64_t{0xfeed});
  const std::array ops{Op::write({TestHost::kSmall, 0}, buffer.span())};
  outcome = co_await lane.post(ops, soon(port));
}
task::Task<void> call_into(VerbsPort& port, Lane& lane, Outcome& outcome) {
  Buffer request = port.buffer(8), reply = port.buffer(8);
  const std::array ops{Op::call(TestHost::kEcho, request.span(), reply.span())};
  outcome = co_await lane.post(ops, soon(port));
}

class Failures : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Device::open({.connection_manager = false});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    device = *opened;
    node = std::make_unique<FaultyNode>(*device);
    control.on([this] {
      server = std::make_unique<session_port::Server>(
          control.loop, session_port::Options{.listen = "127.0.0.1:0", .handshake_deadline = 30 * base::kSecond});
      const base::Status status = server->serve(host, *node);
      EXPECT_TRUE(status.ok()) << status.message();
    });
    client = std::make_unique<VerbsThread>(nullptr, device, 0, [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      said += line + "\n";
    });
  }
  ~Failures() override {
    if (client) client->on([this] { lane.reset(); });
    client.reset();
    control.on([this] { server.reset(); });
  }
  void open(Fault fault) {
    client->on([this] { lane.reset(); });
    control.on([&] { node->fault = fault; });
    client->run(open_into(*client->port, host.grant(1, server->address()), lane));
    ASSERT_NE(lane, nullptr);
  }
  Fate write() {
    Outcome outcome;
    client->run(write_into(*client->port, *lane, outcome));
    return outcome.fate;
  }
  // Expects a verb on such a lane to have this fate. The log line begins with the name of the lane.
  void expect(Fault fault, Fate fate, bool call, const std::string& why) {
    ASSERT_NO_FATAL_FAILURE(open(fault));
    Outcome outcome;
    auto ended =
        client->spawn(call ? call_into(*client->port, *lane, outcome) : write_into(*client->port, *lane, outcome));
    if (fault == Fault::long_answer || fault == Fault::wrong_answer) control.on([this] { node->answer_call(); });
    VerbsThread::wait(ended);
    EXPECT_EQ(outcome.fate, fate);
    client->on([this] { EXPECT_FALSE(lane->open()); });
    EXPECT_THAT(log(), HasSubstr("lane to " + server->address() + " by " + device->name() + " has ended: " + why));
    ASSERT_NO_FATAL_FAILURE(open(Fault::none));
    EXPECT_EQ(write(), Fate::done) << "the next lane is not what the last one was";
  }
  std::string log() {
    const std::lock_guard lock(mutex);
    return said;
  }

  TestHost host;
  session_port::LoopThread control;
  std::shared_ptr<Device> device;
  std::unique_ptr<FaultyNode> node;
  std::unique_ptr<session_port::Server> server;
  std::mutex mutex;
  std::string said;
  std::unique_ptr<VerbsThread> client;
  std::unique_ptr<Lane> lane;
};

TEST_F(Failures, AWrongKeyIsRefused) {
  expect(Fault::wrong_key, Fate::refused, false, "remote access error: the session is stale");
  EXPECT_EQ(node->words[0], 0xfeedu) << "written by the next lane alone";
}
TEST_F(Failures, APeerThatIsGoneIsAskedNoMoreOftenThanAgreed) {
  expect(Fault::gone, Fate::maybe, false, "transport retry counter exceeded: the memory node, its NIC or the path");
}
TEST_F(Failures, AQueuePairInErrorDoesNotAnswer) {
  expect(Fault::in_error, Fate::maybe, false, "transport retry counter exceeded: the memory node, its NIC or the path");
}
TEST_F(Failures, ACallThatFindsNoReceiveEnds) {
  expect(Fault::no_receive, Fate::maybe, true, "RNR retry counter exceeded: the memory node has no receive");
}
TEST_F(Failures, AnAnswerThatIsTooLongPutsOnesOwnQueuePairInError) {
  expect(Fault::long_answer, Fate::maybe, true, "local ");  // "length error", or on SoftRoCE "QP operation error"
}
TEST_F(Failures, AnAnswerToAnotherCallIsNotBelieved) { expect(Fault::wrong_answer, Fate::maybe, true, "fatal error"); }

// As where the network carries lanes, and not the messages of librdmacm.
task::Task<void> open_twice(VerbsPort& port, TestHost& host, std::string endpoint, Outcome& outcome) {
  const auto refused = co_await port.open_lane(host.grant(1, endpoint), soon(port));
  EXPECT_EQ(refused.code(), base::Code::unavailable);
  EXPECT_THAT(refused.status().message(), HasSubstr("the peer refused the connection"));
  std::unique_ptr<Lane> lane;
  co_await open_into(port, host.grant(1, endpoint), lane);
  if (lane != nullptr) co_await write_into(port, *lane, outcome);
}
TEST_F(Failures, ALaneThatLibrdmacmDoesNotConnectIsFollowedByOneWithoutIt) {
  auto managed = Device::open({});
  ASSERT_TRUE(managed.ok()) << managed.status().message();
  VerbsThread other(nullptr, *managed);
  control.on([this] { node->fault = Fault::no_manager; });
  for (int i = 0; i < 2; ++i) {
    Outcome outcome;
    other.run(open_twice(*other.port, host, server->address(), outcome));
    EXPECT_EQ(outcome.fate, Fate::done);
  }
}

// No completion would tell of these: they come as events of the device.
TEST_F(Failures, ALaneEndsWithItsDevice) {
  ASSERT_NO_FATAL_FAILURE(open(Fault::none));
  ASSERT_EQ(write(), Fate::done);
  ibv_async_event event{};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  EXPECT_TRUE(device->events().tell(event));
  client->on([] {});  // what was posted before has run
  EXPECT_EQ(write(), Fate::maybe);
  EXPECT_THAT(log(), HasSubstr("has ended: its device has failed"));
  ASSERT_NO_FATAL_FAILURE(open(Fault::none));
  EXPECT_EQ(write(), Fate::done);
}

// A queue for one completion, and two that come. Lanes subscribe to their events as this test does.
TEST_F(Failures, ACompletionQueueThatOverrunsIsToldOf) {
  ASSERT_NO_FATAL_FAILURE(open(Fault::none));
  const auto domain = std::move(*make_protection_domain(*device));
  const Completions completions(::ibv_create_cq(device->context(), 1, nullptr, nullptr, 0));
  std::unique_ptr<QueuePair> pairs[2];
  for (auto& pair : pairs) {
    pair = std::move(*QueuePair::make(*device, domain.get(), completions.get(), {.sends = 64, .receives = 1}, 1, 1));
  }
  for (int i = 0; i < 2; ++i) {
    const base::Status status = pairs[i]->connect(pairs[1 - i]->end(), IBV_MTU_1024, 1, {.timeout = 12, .retries = 3});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  std::promise<std::string> told;
  bool once = false;
  const auto subscription = device->events().subscribe({.completions = completions.get()}, [&](const std::string& why) {
    if (!std::exchange(once, true)) told.set_value(why);
  });
  // WRITEs nothing, so that no key is needed; rings of devices hold somewhat more than they were asked for.
  ibv_send_wr nothing{}, *bad = nullptr;
  nothing.opcode = IBV_WR_RDMA_WRITE;
  nothing.send_flags = IBV_SEND_SIGNALED;
  for (int i = 0; i < 64; ++i) ASSERT_EQ(::ibv_post_send(pairs[0]->raw(), &nothing, &bad), 0);
  auto why = told.get_future();
  ASSERT_EQ(why.wait_for(std::chrono::seconds(60)), std::future_status::ready) << "nobody was told";
  EXPECT_EQ(why.get(), "its completion queue has overrun");
  EXPECT_EQ(write(), Fate::done) << "another's queue";
}

}  // namespace
}  // namespace farpool::fabric::verbs
