// SPDX-License-Identifier: Apache-2.0
// How a memory node treats peers whose frames break the protocol: it ends their connection, and nothing else.
#include "fabric/tcp/responder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/contract/wire.h"
#include "fabric/session_port/greeting.h"
#include "fabric/session_port/peer_test.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/test_loop.h"
#include "net/listener.h"
#include "net/stream.h"

namespace farpool::fabric::tcp {
namespace {

using contract::TestHost;
using session_port::eventually;
using session_port::greeting;
using session_port::Greeting;
using session_port::kEnvelopeBytes;
using session_port::kProofBytes;
using session_port::LoopThread;
using session_port::RawPeer;
using session_port::RingsDirectory;
using session_port::Welcome;

class Node : public testing::Test {
 protected:
  void serve() {
    options.listen = "127.0.0.1:0";
    responder = std::make_unique<TcpResponder>(control.loop, options, max_unsent);
    control.on([this] { ASSERT_TRUE(responder->serve(host).ok()); });
  }
  ~Node() override {
    control.on([this] { responder.reset(); });
    EXPECT_TRUE(host.guards_whole());
  }
  LaneGrant grant(std::uint64_t session = 1) { return host.grant(session, responder->address()); }
  std::unique_ptr<RawPeer> open_lane() {
    auto raw = std::make_unique<RawPeer>(peer, responder->address());
    raw->send(greeting(Greeting::lane, grant().token));
    EXPECT_EQ(raw->welcome(), Welcome::accepted);
    return raw;
  }
  // Checks that the memory node still serves: one lane, one chain.
  void expect_service() {
    ClientThread client(nullptr);
    client.run(work(*client.port, grant(77)));
  }
  static task::Task<void> work(TcpPort& port, LaneGrant grant) {
    auto lane = co_await port.open_lane(std::move(grant), port.now() + 30 * base::kSecond);
    EXPECT_TRUE(lane.ok()) << lane.status().message();
    if (!lane.ok()) co_return;
    std::uint64_t old = 0;
    const std::array chain{Op::fetch_add({TestHost::kSmall, 0}, old, 1)};
    EXPECT_EQ((co_await (*lane)->post(chain, port.now() + 30 * base::kSecond)).fate, Fate::done);
  }

  TestHost host;
  session_port::Options options;
  std::size_t max_unsent = 4u << 20;
  LoopThread control, peer;
  std::unique_ptr<TcpResponder> responder;
};

TEST_F(Node, ClosesALaneWhoseFramesLieAndNothingElse) {
  serve();
  std::uint64_t old = 0;
  const std::array ops{Op::fetch_add({TestHost::kSmall, 8}, old, 1)};
  std::vector<std::byte> good(chain_length(ops));
  put_chain(good, 1, ops, grant().regions);
  const auto with = [&](std::size_t at, auto value) {
    auto frame = good;
    base::store(frame.data() + at, value);
    return frame;
  };
  const std::vector<std::vector<std::byte>> lies{with(0, std::uint32_t{0}),
                                                 with(0, ~std::uint32_t{0}),
                                                 with(0, std::uint32_t{20}),
                                                 with(0, static_cast<std::uint32_t>(kMaxFrameBytes + 8)),
                                                 with(0, static_cast<std::uint32_t>(good.size() - 8)),
                                                 with(4, std::uint16_t{0}),
                                                 with(4, std::uint16_t{2}),
                                                 with(6, std::uint16_t{1}),
                                                 with(8, std::uint64_t{2}),
                                                 with(16, std::uint8_t{6}),
                                                 with(17, std::uint8_t{2}),
                                                 with(18, std::uint16_t{1})};
  auto other = open_lane();
  for (std::size_t i = 0; i < lies.size(); ++i) {
    auto lane = open_lane();
    lane->send(lies[i]);
    EXPECT_TRUE(lane->ends()) << "lie " << i;
    EXPECT_EQ(lane->receive(0).size(), kEnvelopeBytes) << "lie " << i << " was answered";
  }
  EXPECT_EQ(responder->stats().malformed, lies.size());
  EXPECT_EQ(host.word(TestHost::kSmall, 8), 0u);
  other->send(good);
  EXPECT_EQ(other->receive(kEnvelopeBytes + 1).size(), kEnvelopeBytes + kHeaderBytes + 8);
  EXPECT_EQ(host.word(TestHost::kSmall, 8), 1u);
  expect_service();
}

TEST_F(Node, TakesChainsInAnyPieces) {
  serve();
  const LaneGrant grant = this->grant();
  RawPeer lane(peer, responder->address());
  auto bytes = greeting(Greeting::lane, grant.token);
  std::uint64_t old = 0;
  std::vector<std::byte> payload(8192, std::byte{0x42});
  std::size_t expected = kEnvelopeBytes;
  for (std::uint64_t id = 1; id <= 50; ++id) {
    const std::vector<Op> ops{Op::fetch_add({TestHost::kSmall, 8}, old, 1), Op::write({TestHost::kLarge, 0}, payload)};
    std::vector<std::byte> frame(chain_length(ops));
    put_chain(frame, id, ops, grant.regions);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    expected += kHeaderBytes + 8;
  }
  base::Random random(5);
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min(bytes.size() - at, 1 + random.below(random.chance(0.5) ? 16 : 40'000));
    lane.send(
        {bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + static_cast<std::ptrdiff_t>(at + piece)});
    at += piece;
  }
  EXPECT_EQ(lane.receive(expected).size(), expected);
  EXPECT_EQ(host.word(TestHost::kSmall, 8), 50u);
  EXPECT_EQ(responder->stats().verbs[static_cast<std::size_t>(Verb::fetch_add)], 50u);
}

TEST_F(Node, DoesNotReadALaneThatDoesNotTakeItsReplies) {
  max_unsent = 1 << 20;
  serve();
  const LaneGrant grant = this->grant();
  RawPeer lane(peer, responder->address());
  lane.send(greeting(Greeting::lane, grant.token));
  lane.receive(kEnvelopeBytes);
  lane.stop_reading();
  std::vector<std::byte> room(kMaxVerbBytes);
  constexpr std::uint64_t kChains = 40;
  std::vector<std::byte> bytes;
  for (std::uint64_t id = 1; id <= kChains; ++id) {
    const std::vector<Op> ops{Op::read({TestHost::kLarge, 0}, room)};
    std::vector<std::byte> frame(chain_length(ops));
    put_chain(frame, id, ops, grant.regions);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  lane.send(bytes);
  // It executes until it reaches its bound and the sockets are full, and stays there while its executor serves others.
  std::uint64_t before = 0, others = 0;
  ASSERT_TRUE(eventually([&] {
    const std::uint64_t chains = responder->stats().chains - others;
    expect_service();
    ++others;
    return chains > 0 && std::exchange(before, chains) == chains;
  }));
  EXPECT_LT(before, kChains / 2) << "80 MB of replies were made for a peer that takes none";
  lane.read_on();
  EXPECT_TRUE(eventually([&] { return responder->stats().chains - others == kChains; }));
}

// The client's lane keeps to the bound by itself (contract/suite.h); a client that ignores it is refused.
TEST_F(Node, RefusesMoreCallsThanALaneMayHaveInFlight) {
  serve();
  auto lane = open_lane();
  std::array<std::byte, 8> word{};
  const std::array ops{Op::call(contract::TestService::kHold, word, word)};
  std::vector<std::byte> bytes;
  for (std::uint64_t id = 1; id <= kCallsInFlight + 2; ++id) {
    std::vector<std::byte> frame(chain_length(ops));
    put_chain(frame, id, ops, {});
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  lane->send(bytes);
  EXPECT_TRUE(lane->ends());
  const auto got = lane->receive(0);
  ASSERT_EQ(got.size(), kEnvelopeBytes + kHeaderBytes) << "the welcome, and one refusal";
  const auto refusal = get_reply_header(base::Bytes(got).subspan(kEnvelopeBytes));
  ASSERT_TRUE(refusal && refusal->refused);
  EXPECT_EQ(refusal->why, Refusal::too_many);
  EXPECT_EQ(refusal->id, kCallsInFlight + 1);
  EXPECT_EQ(host.service().served(), kCallsInFlight);
  EXPECT_EQ(responder->stats().held, kCallsInFlight);
  host.service().answer_held();
  EXPECT_TRUE(eventually([&] { return responder->stats().held == 0; }));
  expect_service();
}

// Tickets may outlive the lane, its executor and the responder.
TEST_F(Node, IsGoneWhileCallsAreHeld) {
  serve();
  auto lane = open_lane();
  std::array<std::byte, 8> word{};
  const std::array ops{Op::call(contract::TestService::kHold, word, word)};
  std::vector<std::byte> frame(chain_length(ops));
  put_chain(frame, 1, ops, {});
  lane->send(frame);
  ASSERT_TRUE(eventually([&] { return host.service().held() == 1; }));
  control.on([this] { responder.reset(); });
  EXPECT_TRUE(lane->ends());
  host.service().answer_held();
}

TEST_F(Node, CountsWhatItDoes) {
  serve();
  expect_service();
  EXPECT_TRUE(eventually([&] { return responder->stats().lanes == 0 && responder->stats().connections == 0; }));
  const ResponderStats stats = responder->stats();
  EXPECT_EQ(stats.chains, 1u);
  EXPECT_EQ(stats.verbs[static_cast<std::size_t>(Verb::fetch_add)], 1u);
  EXPECT_EQ(stats.bytes_in, kHeaderBytes + 24 + 8);
  EXPECT_EQ(stats.bytes_out, kHeaderBytes + 8);
  EXPECT_EQ(stats.refusals, 0u);
}

// Listens in a memory node's place, notes what it hears, and answers each greeting.
class Impostor final : public net::StreamHandler {
 public:
  Impostor(LoopThread& thread, const std::string& address, std::vector<std::byte> answer)
      : thread_(thread), answer_(std::move(answer)) {
    thread_.on([&] {
      auto opened =
          net::Listener::open(thread_.loop, {.address = address}, [this](std::unique_ptr<net::Stream> stream) {
            stream_ = std::move(stream);
            stream_->start(*this);
          });
      EXPECT_TRUE(opened.ok()) << opened.status().message();
      listener_ = std::move(*opened);
    });
  }
  ~Impostor() {
    thread_.on([this] {
      stream_.reset();
      listener_.reset();
    });
  }
  std::string heard() {
    std::string text;
    thread_.on([&] { text = heard_; });
    return text;
  }

  void on_input() noexcept override {
    heard_ += base::text_of(stream_->input());
    stream_->consume(stream_->input().size());
    if (!answer_.empty()) stream_->write(base::Bytes(answer_));
  }
  void on_closed(const base::Status&) noexcept override {}

 private:
  LoopThread& thread_;
  const std::vector<std::byte> answer_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<net::Stream> stream_;
  std::string heard_;
};

std::vector<std::byte> reply(Welcome welcome, std::size_t bytes) {
  std::vector<std::byte> whole(kEnvelopeBytes + bytes, std::byte{7});
  session_port::put_envelope(
      whole, {.kind = static_cast<std::uint32_t>(welcome), .length = static_cast<std::uint32_t>(bytes)});
  return whole;
}

// Another process has taken the place of a memory node's socket: it does not receive the token, and gets no lane. The
// lane goes over the session port, where the memory node shows a certificate.
TEST_F(Node, AnImpostorOnItsSocketOfRingsHearsNoToken) {
  serve();
  for (const auto& answer :
       {reply(Welcome::accepted, kProofBytes), reply(Welcome::accepted, 0), reply(Welcome::refused, 0)}) {
    const RingsDirectory directory;
    const LaneGrant granted = grant();
    Impostor impostor(peer, rings_address(directory.path, granted.node_incarnation), answer);
    ClientThread client(nullptr, directory.path);
    client.run(work(*client.port, granted));
    const std::string heard = impostor.heard();
    EXPECT_GE(heard.size(), kEnvelopeBytes);
    EXPECT_EQ(heard.find(base::text_of(granted.token)), std::string::npos);
    EXPECT_EQ(heard.size(), kEnvelopeBytes + kProofBytes) << "it is told no more than a greeting";
  }
  EXPECT_EQ(responder->stats().ring_lanes, 0u);
}

}  // namespace
}  // namespace farpool::fabric::tcp
