// SPDX-License-Identifier: Apache-2.0
// What the contract suite cannot see: wrong guesses of masked CAS, CALLs of very many lanes, and what the device itself
// refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabric/contract/wire.h"
#include "fabric/verbs/inbox.h"
#include "fabric/verbs/lab_test.h"
#include "fabric/verbs/lane.h"
#include "fabric/verbs/manager.h"
#include "fabric/verbs/responder.h"
#include "task/scope.h"

namespace farpool::fabric::verbs {
namespace {

using contract::TestHost;

class Laboratory : public ::testing::Test {
 protected:
  struct Shape {
    bool windows = true;
    std::size_t connections = 4096;
    bool managed = true;  // the memory node has a connection manager
    std::uint8_t traffic_class = 0;
  };
  void start(Nanos failure_timeout) { start(failure_timeout, Shape()); }
  void start(Nanos failure_timeout, Shape shape) {
    auto opened = Device::open({.traffic_class = shape.traffic_class,
                                .memory_windows = shape.windows,
                                .connection_manager = shape.managed,
                                .failure_timeout = failure_timeout});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    device = *opened;
    serve(host, shape);
    client = std::make_unique<VerbsThread>(nullptr, device);
  }
  void serve(Host& served, Shape shape) {
    control.on([&] {
      responder = std::make_unique<VerbsResponder>(control.loop,
                                                   session_port::Options{.listen = "127.0.0.1:0",
                                                                         .max_connections = shape.connections,
                                                                         .max_lanes_per_session = 64,
                                                                         .handshake_deadline = 30 * base::kSecond},
                                                   device, [this](const std::string& line) { said += line + "\n"; });
      const base::Status status = responder->serve(served);
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }
  void stop() {
    client.reset();
    control.on([this] { responder.reset(); });
  }
  ~Laboratory() override { stop(); }
  // Without CALLs for data, which fewer lanes may have: call_lab_test.cc.
  LaneGrant grant(std::uint64_t session) {
    LaneGrant granted = host.grant(session, responder->address());
    granted.calls = false;
    return granted;
  }

  TestHost host;
  session_port::LoopThread control;
  std::shared_ptr<Device> device;
  std::string said;  // by the responder: control thread
  std::unique_ptr<VerbsResponder> responder;
  std::unique_ptr<VerbsThread> client;
};

Remote at(std::uint64_t offset) { return {TestHost::kSmall, offset}; }
Nanos soon(const Port& port) { return port.now() + 30 * base::kSecond; }

// ---- guesses

task::Task<void> into(Lane& lane, std::vector<Op> ops, Nanos deadline, Outcome& outcome) {
  outcome = co_await lane.post(ops, deadline);
}

// The word changes behind the lane's back before every chain, in bits that the masks leave out.
task::Task<void> guess_wrong(TestHost& host, VerbsPort& port, LaneGrant grant, bool one_chain) {
  auto opened = co_await port.open_lane(std::move(grant), soon(port));
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) co_return;
  Lane& lane = **opened;
  Buffer seen = port.buffer(8), flag = port.buffer(8);
  for (std::uint64_t round = 1; round <= 40; ++round) {
    const std::uint64_t others = round << 32;
    host.set_word(TestHost::kSmall, 0, others);
    host.set_word(TestHost::kSmall, 64, 0);
    base::store(flag.data(), round);
    std::uint64_t old = 0;
    const Op take = Op::masked_cas(at(0), old, 0, 1, 1, 1), look = Op::read(at(0), seen.span());
    // Fenced: must not be there before the bit is, whatever guesses come between.
    const Op tell = Op::write(at(64), flag.span()).fenced();
    Outcome first, second, third;
    {
      task::Scope scope;
      if (one_chain) {
        scope.spawn(into(lane, {take, look, tell}, soon(port), first));
      } else {
        scope.spawn(into(lane, {take}, soon(port), first));
        scope.spawn(into(lane, {look}, soon(port), second));
        scope.spawn(into(lane, {tell}, soon(port), third));
      }
      co_await scope.join();
    }
    EXPECT_EQ(first.fate, Fate::done);
    EXPECT_EQ(first.extra_trips, 1) << "round " << round;
    EXPECT_EQ(old, others);
    EXPECT_EQ(base::load<std::uint64_t>(seen.data()), others | 1) << "a READ behind a masked CAS went before it";
    EXPECT_EQ(host.word(TestHost::kSmall, 0), others | 1);
    EXPECT_EQ(host.word(TestHost::kSmall, 64), round);
    // A right guess costs nothing, and neither does a guess of a word that does not match.
    const std::array drop{Op::masked_cas(at(0), old, 1, 1, 0, 1)}, miss{Op::masked_cas(at(0), old, 1, 1, 0, 1)};
    EXPECT_EQ((co_await lane.post(drop, soon(port))).extra_trips, 0);
    EXPECT_EQ(old, others | 1);
    EXPECT_EQ((co_await lane.post(miss, soon(port))).extra_trips, 0);
    EXPECT_EQ(old, others);
    EXPECT_EQ(host.word(TestHost::kSmall, 0), others);
  }
}
TEST_F(Laboratory, AWrongGuessCostsATripAndNoOrder) {
  ASSERT_NO_FATAL_FAILURE(start(20 * base::kSecond));
  for (bool one_chain : {true, false}) client->run(guess_wrong(host, *client->port, grant(1), one_chain));
}

// Several masked CASes in one chain, all guesses wrong, with READs between and behind them.
task::Task<void> guess_many_wrong(TestHost& host, VerbsPort& port, LaneGrant grant) {
  auto opened = co_await port.open_lane(std::move(grant), soon(port));
  EXPECT_TRUE(opened.ok());
  if (!opened.ok()) co_return;
  Lane& lane = **opened;
  constexpr std::size_t kLocks = 6;
  Buffer seen = port.buffer(2 * 8 * kLocks);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    std::array<std::uint64_t, kLocks> old{};
    std::vector<Op> ops;
    for (std::size_t i = 0; i < kLocks; ++i) {
      host.set_word(TestHost::kSmall, 8 * i, (round * 100 + i) << 8);
      ops.push_back(Op::masked_cas(at(8 * i), old[i], 0, 1, 1, 1));
      ops.push_back(Op::read(at(8 * i), seen.span().subspan(8 * i, 8)));
    }
    ops.push_back(Op::read(at(0), seen.span().subspan(8 * kLocks, 8 * kLocks)));
    EXPECT_EQ((co_await lane.post(ops, soon(port))).fate, Fate::done);
    for (std::size_t i = 0; i < kLocks; ++i) {
      const std::uint64_t word = (round * 100 + i) << 8;
      EXPECT_EQ(old[i], word);
      EXPECT_EQ(base::load<std::uint64_t>(seen.data() + 8 * i), word | 1);
      EXPECT_EQ(base::load<std::uint64_t>(seen.data() + 8 * (kLocks + i)), word | 1);
    }
  }
}
TEST_F(Laboratory, ManyWrongGuessesOfOneChainAreAllMadeAgain) {
  ASSERT_NO_FATAL_FAILURE(start(20 * base::kSecond));
  client->run(guess_many_wrong(host, *client->port, grant(1)));
}

// SoftRoCE has no masked CAS, and takes one for an ordinary CAS: a device that does not do what it says.
TEST_F(Laboratory, AMaskedCasThatIsNoneIsFoundOutBeforeALaneReliesOnIt) {
  ASSERT_NO_FATAL_FAILURE(start(20 * base::kSecond));
  client.reset();
  auto opened = Device::open({.masked_cas = true, .failure_timeout = 20 * base::kSecond});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  if (::mlx5dv_is_supported((*opened)->context()->device)) GTEST_SKIP() << "this device has one of its own";
  std::vector<std::string> said;
  client =
      std::make_unique<VerbsThread>(nullptr, *opened, 0, [&said](const std::string& line) { said.push_back(line); });
  EXPECT_TRUE((*opened)->masked_cas());
  for (bool one_chain : {true, false}) client->run(guess_wrong(host, *client->port, grant(1), one_chain));
  EXPECT_FALSE((*opened)->masked_cas());
  client.reset();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("has no masked CAS to rely on"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("of its trial"), std::string::npos) << said[0];
}

// ---- CALLs

// Returns how often this machine's SoftRoCE has told a peer, or learned from one, that a receiver was not ready.
std::uint64_t times_not_ready(const Device& device) {
  std::uint64_t sum = 0;
  for (const char* counter : {"send_rnr_err", "rcvd_rnr_err"}) {
    std::uint64_t count = 0;
    std::ifstream("/sys/class/infiniband/" + device.name() + "/ports/1/hw_counters/" + counter) >> count;
    sum += count;
  }
  return sum;
}

task::Task<void> call(Lane& lane, Buffer& request, Buffer& reply, std::size_t bytes, Nanos deadline, bool& right) {
  const std::array echo{Op::call(TestHost::kEcho, request.span().first(bytes), reply.span())};
  const Outcome outcome = co_await lane.post(echo, deadline);
  right = outcome.fate == Fate::done && outcome.reply_bytes == bytes &&
          std::equal(request.data(), request.data() + bytes, reply.data());
}

// Every lane calls at the same time, in each round with a request of another length. The rounds are repeated, at most a
// hundred times, until they are enough.
task::Task<void> call_all_at_once(
    TestHost& host, VerbsPort& port, std::string endpoint, std::size_t lanes, std::vector<std::size_t> lengths,
    std::function<bool()> enough = [] { return true; }) {
  struct Caller {
    std::unique_ptr<Lane> lane;
    Buffer request, reply;
    bool right = false;
  };
  const std::size_t longest = std::max<std::size_t>(*std::max_element(lengths.begin(), lengths.end()), 8);
  std::vector<Caller> callers(lanes);
  for (std::size_t i = 0; i < lanes; ++i) {
    LaneGrant grant = host.grant(1 + i / 64, endpoint);
    grant.calls = false;  // of lanes with CALLs for data there may be fewer
    auto opened = co_await port.open_lane(std::move(grant), soon(port));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (!opened.ok()) co_return;
    callers[i].lane = std::move(*opened);
    callers[i].request = port.buffer(longest);
    callers[i].reply = port.buffer(longest);
    for (std::size_t at = 0; at + 8 <= longest; at += 8) base::store(callers[i].request.data() + at, (i << 32) + at);
  }
  for (int times = 0; times < 100 && (times == 0 || !enough()); ++times) {
    for (const std::size_t bytes : lengths) {
      {
        task::Scope scope;
        for (Caller& each : callers) {
          scope.spawn(call(*each.lane, each.request, each.reply, bytes, soon(port), each.right));
        }
        co_await scope.join();
      }
      for (std::size_t i = 0; i < lanes; ++i)
        EXPECT_TRUE(callers[i].right) << "lane " << i << ", " << bytes << " bytes";
    }
  }
}

// As many lanes as there are receives: with one receive less for each, some would find none.
TEST_F(Laboratory, CallsOfAllLanesAtOnceFindAReceive) {
  constexpr std::size_t kLanes = 64;
  ASSERT_NO_FATAL_FAILURE(start(20 * base::kSecond, {.connections = kLanes}));
  const std::uint64_t before = times_not_ready(*device);
  client->run(call_all_at_once(host, *client->port, responder->address(), kLanes, {8, 8, 0, kNearBytes, 8}));
  EXPECT_EQ(times_not_ready(*device), before);
  EXPECT_EQ(responder->stats().broken, 0u);
}

// Large requests wait at their clients, because a memory node has room for few at a time.
TEST_F(Laboratory, LargeCallsOfManyLanesTakeTurns) {
  constexpr std::size_t kLanes = Inbox::kRooms + 8;
  ASSERT_NO_FATAL_FAILURE(start(20 * base::kSecond, {.connections = kLanes}));
  const std::uint64_t before = times_not_ready(*device);
  // A slow device may bring the requests one after the other, so that each finds a room.
  client->run(call_all_at_once(host, *client->port, responder->address(), kLanes,
                               {kNearBytes + 1, kMaxCallBytes, 8, kMaxCallBytes},
                               [this] { return responder->stats().waits > 0; }));
  EXPECT_EQ(times_not_ready(*device), before);
  EXPECT_EQ(responder->stats().broken, 0u);
  EXPECT_GT(responder->stats().waits, 0u) << "the test shows nothing: nobody had to wait";
}

// ---- connections

task::Task<void> write_a_word(VerbsPort& port, LaneGrant grant, std::uint64_t word, std::unique_ptr<Lane>& lane) {
  auto opened = co_await port.open_lane(std::move(grant), soon(port));
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) co_return;
  lane = std::move(*opened);
  Buffer buffer = port.buffer(8);
  base::store(buffer.data(), word);
  const std::array ops{Op::write(at(0), buffer.span())};
  EXPECT_EQ((co_await lane->post(ops, soon(port))).fate, Fate::done);
}

TEST_F(Laboratory, LanesAreConnectedByLibrdmacmWhereBothSidesHaveIt) {
  for (const bool node : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(start(20 * base::kSecond, {.managed = node}));
    for (const bool own : {true, false}) {
      auto opened = Device::open({.connection_manager = own});
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      VerbsThread other(nullptr, *opened);
      std::unique_ptr<Lane> lane;
      const std::uint64_t word = 2 * (node ? 1 : 0) + (own ? 1 : 0) + 1;
      other.run(write_a_word(*other.port, grant(1), word, lane));
      EXPECT_EQ(host.word(TestHost::kSmall, 0), word);
      EXPECT_EQ(responder->stats().lanes, 1u);
      EXPECT_EQ(responder->stats().managed, node && own ? 1u : 0u) << node << own;
      other.on([&lane] { lane.reset(); });
      control.on([this] { EXPECT_EQ(said, "") << "the device's address is one that librdmacm can use"; });
    }
    stop();
  }
}

// ---- the end of a memory node

// Runs something on the control thread, at the turn after a lane's making has begun.
struct Interrupting final : Host {
  Interrupting(TestHost& host, std::function<void()> interrupt) : host(host), interrupt(std::move(interrupt)) {}
  void on_exchange(const Peer& peer, std::string request, std::function<void(std::string)> reply) override {
    host.on_exchange(peer, std::move(request), std::move(reply));
  }
  std::optional<LaneRights> on_open_lane(const std::array<std::byte, 16>& token) override {
    interrupt();
    return host.on_open_lane(token);
  }
  std::optional<std::size_t> on_call(std::uint64_t session_id, std::uint32_t opcode, base::Bytes request,
                                     base::MutableBytes reply) override {
    return host.on_call(session_id, opcode, request, reply);
  }
  TestHost& host;
  const std::function<void()> interrupt;
};

task::Task<void> open_in_vain(VerbsPort& port, LaneGrant grant) {
  const auto opened = co_await port.open_lane(std::move(grant), soon(port));
  EXPECT_FALSE(opened.ok());
  EXPECT_EQ(opened.code(), base::Code::unavailable) << opened.status().message();
}

TEST_F(Laboratory, ALaneThatIsBeingMadeEndsWithItsMemoryNode) {
  ASSERT_NO_FATAL_FAILURE(start(20 * base::kSecond));
  if (device->largest_window() == 0) GTEST_SKIP() << "lanes of " << device->name() << " begin at once";
  VerbsStats last;
  Interrupting interrupting(host, [&] {
    control.loop.post([&] {
      last = responder->stats();
      responder.reset();
    });
  });
  serve(interrupting, {});
  client->run(open_in_vain(*client->port, grant(1)));
  EXPECT_EQ(last.lanes, 1u);
  EXPECT_EQ(last.windows, 0u) << "the test shows nothing: the lane had begun";
}

// ---- the device's own refusals

// A client that does not learn that its session is fenced: a queue pair, and all keys.
struct Zombie final : net::StreamHandler {
  void on_input() noexcept override {}
  void on_closed(const base::Status&) noexcept override {}
  Completions completions;
  Connection connection;
  std::unique_ptr<QueuePair> pair;
  AttachRequest request;
  AttachReply reply;
  std::unique_ptr<net::Stream> stream;
};

task::Task<void> attach(const Device& device, ibv_pd* domain, session_port::LoopPort& port, LaneGrant grant,
                        Zombie& zombie, bool managed = false) {
  zombie.completions.reset(::ibv_create_cq(device.context(), 16, nullptr, nullptr, 0));
  auto pair = QueuePair::make(device, domain, zombie.completions.get(), {.sends = 8, .receives = 1},
                              static_cast<std::uint32_t>(port.random()), 4);
  EXPECT_TRUE(pair.ok()) << pair.status().message();
  if (!pair.ok()) co_return;
  zombie.pair = std::move(*pair);
  AttachRequest& request = zombie.request;
  request = {.client = zombie.pair->end(), .nonce = port.random(), .managed = managed, .keys = {}};
  for (const auto& region : grant.regions) request.keys.push_back({.region = region.id, .key = region.key});
  auto begun = co_await port.begin_lane(session_port::Greeting::attach, grant, put(request), soon(port));
  EXPECT_TRUE(begun.ok()) << begun.status().message();
  if (!begun.ok()) co_return;
  const auto reply = get_reply(base::bytes_of(begun->answer));
  EXPECT_TRUE(reply);
  if (!reply) co_return;
  zombie.reply = *reply;
  zombie.stream = std::move(begun->stream);
  zombie.stream->start(zombie);
  EXPECT_EQ(reply->manager_port != 0, managed);
  if (managed) co_return;
  const base::Status status = zombie.pair->connect(reply->node, reply->node.mtu, reply->node.depth, reply->patience);
  EXPECT_TRUE(status.ok()) << status.message();
}

void post_write(Zombie& zombie, ibv_mr* memory, const AttachReply::Place& place, std::uint64_t offset) {
  ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(memory->addr), .length = 8, .lkey = memory->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &part;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {.remote_addr = place.begin + offset, .rkey = place.key};
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(::ibv_post_send(zombie.pair->raw(), &wr, &bad), 0);
}
void post_write(Zombie& zombie, ibv_mr* memory, std::size_t place, std::uint64_t offset) {
  post_write(zombie, memory, zombie.reply.places[place], offset);
}
void post_send(Zombie& zombie, ibv_mr* memory, std::uint32_t bytes) {
  ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(memory->addr), .length = bytes, .lkey = memory->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &part;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(::ibv_post_send(zombie.pair->raw(), &wr, &bad), 0);
}
ibv_wc_status await_completion(Zombie& zombie) {
  ibv_wc done{};
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (::ibv_poll_cq(zombie.completions.get(), 1, &done) == 0) {
    if (std::chrono::steady_clock::now() > limit) {
      ADD_FAILURE() << "a WRITE did not end";
      return IBV_WC_GENERAL_ERR;
    }
    std::this_thread::yield();
  }
  return done.status;
}

class Zombies : public Laboratory {
 protected:
  // The device has refused. It says so once, and answers nothing afterwards: a refusal that a busy machine loses looks
  // like a peer that is gone (Wire::loses_refusals()), which is accepted once.
  void expect_refused(Zombie& zombie, const char* why) {
    const ibv_wc_status status = await_completion(zombie);
    if (status == IBV_WC_RETRY_EXC_ERR && !lost_a_refusal) {
      lost_a_refusal = true;
    } else {
      EXPECT_EQ(status, IBV_WC_REM_ACCESS_ERR) << why;
    }
  }
  void start_with(std::size_t count, Shape shape) {
    ASSERT_NO_FATAL_FAILURE(start(base::kSecond, shape));
    domain = std::move(*make_protection_domain(*device));
    memory = std::move(*register_memory(domain.get(), words.data(), sizeof words, IBV_ACCESS_LOCAL_WRITE));
    asker = std::make_unique<session_port::BareThread>(nullptr);
    for (std::size_t i = 0; i < count; ++i) add_zombie(1);
  }
  void start_with(std::size_t count) { start_with(count, Shape()); }
  Zombie& add_zombie(std::uint64_t session) {
    zombies.push_back(std::make_unique<Zombie>());
    asker->run(attach(*device, domain.get(), *asker->port, grant(session), *zombies.back()));
    return *zombies.back();
  }
  void fence(std::uint64_t session) {
    std::promise<void> fenced;
    control.on([&] { responder->fence(session, [&fenced] { fenced.set_value(); }); });
    ASSERT_EQ(fenced.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  }
  static bool eventually(const std::function<bool()>& condition) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::yield();
    }
    return true;
  }
  ~Zombies() override {
    if (asker) asker->on([this] { zombies.clear(); });
    asker.reset();
  }
  ProtectionDomain domain;
  alignas(64) std::array<std::uint64_t, 8> words{0xbad, 0xbad};
  Registration memory;
  std::vector<std::unique_ptr<Zombie>> zombies;
  bool lost_a_refusal = false;
  std::unique_ptr<session_port::BareThread> asker;
};

TEST_F(Zombies, ALateWriteOfAFencedSessionIsRefusedByTheDevice) {
  constexpr std::size_t kLanes = 32;
  ASSERT_NO_FATAL_FAILURE(start_with(kLanes));
  for (std::size_t i = 0; i < kLanes; ++i) {
    post_write(*zombies[i], memory.get(), 0, 8 * i);
    ASSERT_EQ(await_completion(*zombies[i]), IBV_WC_SUCCESS) << "a session that is not fenced may write";
    ASSERT_EQ(host.word(TestHost::kSmall, 8 * i), 0xbadu);
  }
  EXPECT_EQ(responder->stats().windows, 3 * kLanes) << "this device has no memory windows, or they are not used";
  ASSERT_NO_FATAL_FAILURE(fence(1));
  EXPECT_EQ(responder->stats().lanes, 0u);
  EXPECT_EQ(responder->stats().windows, 0u);
  for (std::size_t i = 0; i < kLanes; ++i) host.set_word(TestHost::kSmall, 8 * i, 0x600d);
  for (const auto& zombie : zombies) {
    for (int again = 0; again < 4; ++again) post_write(*zombie, memory.get(), 0, 0);
  }
  for (std::size_t i = 0; i < kLanes; ++i) EXPECT_NE(await_completion(*zombies[i]), IBV_WC_SUCCESS);
  std::size_t landed = 0;
  for (std::size_t i = 0; i < kLanes; ++i) landed += host.word(TestHost::kSmall, 8 * i) != 0x600d ? 1 : 0;
  EXPECT_EQ(landed, 0u);
  std::printf("late WRITEs after a fence that landed: %zu of %zu\n", landed, 4 * kLanes);
}

// ---- claims: what a connection has to bring, and from where

struct Managed final {
  Managed(const Device& device, session_port::BareThread& asker) : asker(asker) {
    asker.on([&] {
      auto opened = ConnectionManager::open(device);
      EXPECT_TRUE(opened.ok()) << opened.status().message();
      manager = std::move(*opened);
      watch = std::make_unique<net::Watch>(asker.loop, manager->descriptor(), [this] { manager->take_events(); });
    });
  }
  ~Managed() {
    asker.on([this] {
      watch.reset();
      manager.reset();
    });
  }
  session_port::BareThread& asker;
  std::unique_ptr<ConnectionManager> manager;
  std::unique_ptr<net::Watch> watch;
};

task::Task<void> claim(session_port::LoopPort& port, ConnectionManager& manager, Zombie& zombie, base::Status& status) {
  Connecting connecting(port, manager);
  auto connection = co_await connecting.run(zombie.request, zombie.reply, *zombie.pair, soon(port));
  status = connection.status();
  if (connection.ok()) zombie.connection = std::move(*connection);
}

TEST_F(Zombies, OnlyTheLanesOwnQueuePairClaimsItAndOnlyOnce) {
  constexpr std::uint8_t kTrafficClass = 104;
  ASSERT_NO_FATAL_FAILURE(start_with(0, {.traffic_class = kTrafficClass}));
  Managed managed(*device, *asker);
  const auto add = [this] {
    zombies.push_back(std::make_unique<Zombie>());
    asker->run(attach(*device, domain.get(), *asker->port, grant(1), *zombies.back(), true));
    return zombies.back().get();
  };
  const auto claimed = [&](Zombie& zombie) {
    base::Status status;
    asker->run(claim(*asker->port, *managed.manager, zombie, status));
    return status;
  };
  const auto refused = [&](Zombie& zombie) {
    const base::Status status = claimed(zombie);
    return !status.ok() && status.message().find("refused the connection") != std::string::npos;
  };
  Zombie& first = *add();
  Zombie& second = *add();

  Zombie& guesser = *add();
  guesser.request.nonce ^= 1;
  EXPECT_TRUE(refused(guesser)) << "a nonce that nobody was told of";
  std::swap(first.pair, second.pair);
  EXPECT_TRUE(refused(first)) << "another queue pair than its client told of";
  std::swap(first.pair, second.pair);
  EXPECT_EQ(responder->stats().managed, 0u);

  const base::Status status = claimed(first);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(responder->stats().managed, 1u);
  post_write(first, memory.get(), 0, 0);
  EXPECT_EQ(await_completion(first), IBV_WC_SUCCESS);
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 0xbadu);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr made{};
  ASSERT_EQ(::ibv_query_qp(first.pair->raw(), &attributes,
                           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY, &made),
            0);
  EXPECT_EQ(attributes.ah_attr.grh.traffic_class, kTrafficClass);
  EXPECT_EQ(attributes.ah_attr.grh.sgid_index, device->find_gid()->gid_index);
  EXPECT_EQ(attributes.path_mtu, device->mtu());
  EXPECT_EQ(attributes.timeout, first.reply.patience.timeout);
  EXPECT_EQ(attributes.retry_cnt, first.reply.patience.retries);
  EXPECT_LT(attributes.rnr_retry, 7) << "seven is for ever";

  Connection kept = std::move(first.connection);
  EXPECT_TRUE(refused(first)) << "the same claim again";
  asker->on([&kept] { kept.reset(); });

  // What a client learned of an ended lane is worthless.
  asker->on([&] { second.stream.reset(); });
  ASSERT_TRUE(eventually([this] { return responder->stats().lanes == 2; }));
  EXPECT_TRUE(refused(second)) << "its lane has ended";
  ASSERT_NO_FATAL_FAILURE(fence(1));
  EXPECT_TRUE(refused(guesser)) << "its session is fenced";
  asker->on([this] { zombies.clear(); });
}

// Windows: a lane's keys are worthless on another lane, even of its own session, and everywhere after a fence.
TEST_F(Zombies, AKeyIsGoodOnItsOwnLaneAlone) {
  ASSERT_NO_FATAL_FAILURE(start_with(2));
  if (device->largest_window() == 0) GTEST_SKIP() << device->name() << " has no memory windows";
  const AttachReply::Place leaked = zombies[1]->reply.places[0];
  EXPECT_NE(zombies[0]->reply.places[0].key, leaked.key);
  post_write(*zombies[0], memory.get(), leaked, 0);
  expect_refused(*zombies[0], "a key of another lane");
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 0u);
  post_write(*zombies[1], memory.get(), leaked, 0);
  EXPECT_EQ(await_completion(*zombies[1]), IBV_WC_SUCCESS) << "the key's own lane";
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 0xbadu);

  Zombie& other = add_zombie(2);
  ASSERT_NO_FATAL_FAILURE(fence(1));
  host.set_word(TestHost::kSmall, 0, 0x600d);
  post_write(other, memory.get(), leaked, 0);
  expect_refused(other, "a key of a fenced session");
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 0x600du);
  EXPECT_EQ(responder->stats().lanes_without_windows, 0u);
  control.on([this] { EXPECT_EQ(said.find("windows"), std::string::npos) << said; });
}

TEST_F(Zombies, WithoutWindowsAKeyIsGoodOnEveryLaneAndTheNodeSaysSo) {
  ASSERT_NO_FATAL_FAILURE(start_with(2, {.windows = false}));
  post_write(*zombies[0], memory.get(), zombies[1]->reply.places[0], 0);
  EXPECT_EQ(await_completion(*zombies[0]), IBV_WC_SUCCESS);
  EXPECT_EQ(responder->stats().windows, 0u);
  EXPECT_EQ(responder->stats().lanes_without_windows, 2u);
  control.on([this] {
    EXPECT_NE(said.find("without memory windows: keys of regions are good on every lane"), std::string::npos) << said;
  });
  ASSERT_NO_FATAL_FAILURE(fence(1));
  post_write(*zombies[1], memory.get(), 0, 0);
  EXPECT_NE(await_completion(*zombies[1]), IBV_WC_SUCCESS);
  EXPECT_EQ(responder->stats().lanes_without_windows, 0u);
}

// CALLs out of turn, and messages that no receive can hold, end their lane and occupy no other lane's receive.
TEST_F(Zombies, AClientThatCallsOutOfTurnHarmsItselfAlone) {
  constexpr std::size_t kConnections = 8;
  ASSERT_NO_FATAL_FAILURE(start_with(0, {.connections = kConnections}));
  std::vector<std::byte> message(8192);
  const CallHead first{.opcode = TestHost::kNothing, .room = 0, .number = 1};
  base::store(message.data(), first);
  const Registration registered =
      std::move(*register_memory(domain.get(), message.data(), message.size(), IBV_ACCESS_LOCAL_WRITE));
  for (std::size_t i = 0; i < 4 * kConnections; ++i) {
    Zombie& zombie = add_zombie(1);
    if (i % 2 == 0) {
      post_send(zombie, registered.get(), kCallHeadBytes);
      post_send(zombie, registered.get(), kCallHeadBytes);  // the same number again
    } else {
      post_send(zombie, registered.get(), static_cast<std::uint32_t>(message.size()));
    }
    ASSERT_TRUE(eventually([this] { return responder->stats().lanes == 0; })) << "round " << i;
    asker->on([this] { zombies.clear(); });
    ASSERT_TRUE(eventually([this] { return responder->session_port_stats().connections == 0; }));
  }
  const std::uint64_t before = times_not_ready(*device);
  client->run(call_all_at_once(host, *client->port, responder->address(), kConnections - 1, {8, 8, 8}));
  EXPECT_EQ(times_not_ready(*device), before);
}

// Requests that a client could only make by going round its own lane.
TEST_F(Zombies, TheDeviceKnowsTheBoundsAndRightsOfRegions) {
  struct Case {
    const char* why;
    std::size_t place;
    std::uint64_t offset;
  };
  const std::array cases{Case{"behind the end", 0, TestHost::kSmallBytes}, Case{"before the beginning", 0, ~0ull - 7},
                         Case{"across the end", 0, TestHost::kSmallBytes - 4}, Case{"read-only", 2, 0}};
  ASSERT_NO_FATAL_FAILURE(start_with(cases.size()));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    post_write(*zombies[i], memory.get(), cases[i].place, cases[i].offset);
    expect_refused(*zombies[i], cases[i].why);
  }
  EXPECT_TRUE(host.guards_whole());
  EXPECT_EQ(host.word(TestHost::kFixed, 0), TestHost::kGuard);
}

// Regions begin where nobody can guess from the process's addresses, and lanes have numbers of their own.
TEST_F(Zombies, WhatAClientIsToldSaysNothingOfTheProcess) {
  ASSERT_NO_FATAL_FAILURE(start_with(2));
  const AttachReply& first = zombies[0]->reply;
  const AttachReply& second = zombies[1]->reply;
  EXPECT_NE(first.node.sequence, second.node.sequence);
  EXPECT_NE(first.node.queue_pair, second.node.queue_pair);
  const auto here = reinterpret_cast<std::uintptr_t>(this);
  for (std::size_t i = 0; i < first.places.size(); ++i) {
    EXPECT_NE(first.places[i].begin >> 40, here >> 40) << "a region is named by its address in the process";
  }
}

}  // namespace
}  // namespace farpool::fabric::verbs
