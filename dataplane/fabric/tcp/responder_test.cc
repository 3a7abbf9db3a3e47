// SPDX-License-Identifier: Apache-2.0
// What a memory node's session port does with peers that do not keep to the protocol: their connection ends, and
// nothing else.
#include "fabric/tcp/responder.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/contract/wire.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/test_loop.h"
#include "net/listener.h"
#include "net/proof.h"
#include "net/stream.h"
#include "net/throwaway_ca.h"

namespace farpool::fabric::tcp {
namespace {

using contract::TestHost;
constexpr auto kPatience = std::chrono::seconds(30);

// A peer that says what it likes.
class Raw final : public net::StreamHandler {
 public:
  Raw(LoopThread& thread, const std::string& endpoint) : thread_(thread) {
    std::promise<void> connected;
    thread_.loop.post([&] {
      net::connect(thread_.loop, endpoint, nullptr, net::Loop::now() + 30 * base::kSecond, [&](auto stream) {
        if (stream.ok()) {
          stream_ = std::move(*stream);
          stream_->start(*this);
        } else {
          closed_ = true;
        }
        connected.set_value();
      });
    });
    connected.get_future().get();
  }
  ~Raw() {
    thread_.on([this] { stream_.reset(); });
  }
  void send(const std::vector<std::byte>& bytes) {
    thread_.on([&] {
      if (stream_) stream_->write(base::Bytes(bytes));
    });
  }
  void stop_reading() {
    thread_.on([this] { stream_->pause_reading(); });
  }
  void read_on() {
    thread_.on([this] { stream_->resume_reading(); });
  }
  // Waits until the peer has closed the connection or this many bytes have come; returns them.
  std::vector<std::byte> receive(std::size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return closed_ || got_.size() >= bytes; });
    return got_;
  }
  bool ends() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return closed_; });
  }

  void on_input() noexcept override {
    const std::lock_guard lock(mutex_);
    const auto input = stream_->input();
    got_.insert(got_.end(), input.begin(), input.end());
    stream_->consume(input.size());
    changed_.notify_all();
  }
  void on_closed(const base::Status&) noexcept override {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  LoopThread& thread_;
  std::unique_ptr<net::Stream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte> got_;
  bool closed_ = false;
};

std::vector<std::byte> greeting(Greeting kind, base::Bytes body) {
  std::vector<std::byte> bytes(kHeaderBytes);
  put_envelope(bytes, {.kind = static_cast<std::uint32_t>(kind), .length = static_cast<std::uint32_t>(body.size())});
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

// Stands for another wire: notes what it is asked.
class Noting final : public LaneMaker {
 public:
  void attach(std::uint64_t lane, const LaneRights& rights, base::Bytes request, Answer answer) override {
    const std::lock_guard lock(mutex_);
    said_ += "attach " + std::to_string(lane) + " of " + std::to_string(rights.session_id) + ": " +
             std::string(base::text_of(request)) + "\n";
    if (base::text_of(request) == "wait") {
      waiting.push_back(std::move(answer));
    } else if (request.empty()) {
      answer(base::Status(base::Code::invalid_argument, "nothing was said"));
    } else {
      answer(std::string("welcome"));
    }
  }
  void detach(std::uint64_t lane) override {
    const std::lock_guard lock(mutex_);
    said_ += "detach " + std::to_string(lane) + "\n";
  }
  void fence(std::uint64_t session_id) override {
    const std::lock_guard lock(mutex_);
    said_ += "fence " + std::to_string(session_id) + "\n";
  }
  std::string said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }
  std::vector<Answer> waiting;  // control thread only

 private:
  std::mutex mutex_;
  std::string said_;
};

class Node : public testing::Test {
 protected:
  void serve() {
    options.listen = "127.0.0.1:0";
    responder = std::make_unique<TcpResponder>(control.loop, options);
    control.on([this] { ASSERT_TRUE(responder->serve(host, other.get()).ok()); });
  }
  ~Node() override {
    control.on([this] { responder.reset(); });
    EXPECT_TRUE(host.guards_whole());
  }
  LaneGrant grant(std::uint64_t session = 1) { return host.grant(session, responder->address()); }
  std::unique_ptr<Raw> open_lane() {
    auto raw = std::make_unique<Raw>(peer, responder->address());
    raw->send(greeting(Greeting::lane, grant().token));
    const auto welcome = get_envelope(raw->receive(kHeaderBytes), 0);
    EXPECT_TRUE(welcome && welcome->kind == static_cast<std::uint32_t>(Welcome::accepted));
    return raw;
  }
  template <class F>
  bool eventually(F condition) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // The memory node serves on: one lane, one chain.
  void expect_service() {
    ClientThread client(client_tls);
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
  ResponderOptions options;
  std::shared_ptr<net::Tls> client_tls;
  LoopThread control, peer;
  std::unique_ptr<Noting> other;
  std::unique_ptr<TcpResponder> responder;
};

TEST_F(Node, ClosesConnectionsThatDoNotGreetProperly) {
  serve();
  std::vector<std::vector<std::byte>> rude;
  rude.push_back(std::vector<std::byte>(64));
  const std::string http = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  rude.emplace_back(base::bytes_of(http).begin(), base::bytes_of(http).end());
  rude.push_back(greeting(static_cast<Greeting>(3), {}));
  rude.push_back(greeting(Greeting::lane, std::array<std::byte, 15>{}));
  auto lying = greeting(Greeting::exchange, {});
  base::store(lying.data() + 8, static_cast<std::uint32_t>(kMaxRequestBytes + 1));
  rude.push_back(lying);
  base::store(lying.data() + 8, ~0u);
  rude.push_back(lying);
  for (std::size_t i = 0; i < rude.size(); ++i) {
    Raw raw(peer, responder->address());
    raw.send(rude[i]);
    EXPECT_TRUE(raw.ends()) << "greeting " << i;
    EXPECT_TRUE(raw.receive(0).empty());
  }
  EXPECT_EQ(responder->stats().malformed, rude.size());
  expect_service();
}

TEST_F(Node, DoesNotWaitForeverForAGreeting) {
  options.handshake_deadline = 30 * base::kMillisecond;
  serve();
  Raw silent(peer, responder->address());
  EXPECT_TRUE(silent.ends());
  Raw slow(peer, responder->address());
  auto part = greeting(Greeting::lane, grant().token);
  part.resize(9);
  slow.send(part);
  EXPECT_TRUE(slow.ends());
}

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
    EXPECT_EQ(lane->receive(0).size(), kHeaderBytes) << "lie " << i << " was answered";
  }
  EXPECT_EQ(responder->stats().malformed, lies.size());
  EXPECT_EQ(host.word(TestHost::kSmall, 8), 0u);
  other->send(good);
  EXPECT_EQ(other->receive(kHeaderBytes + 1).size(), 2 * kHeaderBytes + 8);
  EXPECT_EQ(host.word(TestHost::kSmall, 8), 1u);
  expect_service();
}

TEST_F(Node, TakesChainsInAnyPieces) {
  serve();
  const LaneGrant grant = this->grant();
  Raw lane(peer, responder->address());
  auto bytes = greeting(Greeting::lane, grant.token);
  std::uint64_t old = 0;
  std::vector<std::byte> payload(8192, std::byte{0x42});
  std::size_t expected = kHeaderBytes;
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
  options.max_unsent = 1 << 20;
  serve();
  const LaneGrant grant = this->grant();
  Raw lane(peer, responder->address());
  lane.send(greeting(Greeting::lane, grant.token));
  lane.receive(kHeaderBytes);
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
  // It executes until its bound is reached and the sockets are full, and there it stays, while its executor serves
  // others.
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

// The client's lane keeps to the bound by itself (contract/suite.h); who does not is refused.
TEST_F(Node, RefusesCallsBeyondThoseThatALaneMayHaveInFlight) {
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
  ASSERT_EQ(got.size(), 2 * kHeaderBytes) << "the welcome, and one refusal";
  const auto refusal = get_reply_header(base::Bytes(got).subspan(kHeaderBytes));
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

TEST_F(Node, BoundsTheLanesOfASession) {
  options.max_lanes_per_session = 2;
  serve();
  const auto attempt = [&](std::uint64_t session) {
    auto raw = std::make_unique<Raw>(peer, responder->address());
    raw->send(greeting(Greeting::lane, grant(session).token));
    const auto welcome = get_envelope(raw->receive(kHeaderBytes), 0);
    return std::pair(std::move(raw), welcome && welcome->kind == static_cast<std::uint32_t>(Welcome::accepted));
  };
  auto first = attempt(1), second = attempt(1);
  EXPECT_TRUE(first.second && second.second);
  EXPECT_FALSE(attempt(1).second);
  EXPECT_TRUE(attempt(2).second);
  first.first.reset();
  ASSERT_TRUE(eventually([&] { return attempt(1).second; }));
}

std::vector<std::byte> attaching(const LaneGrant& grant, std::string_view says) {
  std::vector<std::byte> body(grant.token.begin(), grant.token.end());
  body.insert(body.end(), base::bytes_of(says).begin(), base::bytes_of(says).end());
  return greeting(Greeting::attach, body);
}
// What is answered: the verdict, and what is said besides.
std::pair<Welcome, std::string> answer(Raw& raw, std::size_t bytes) {
  const auto got = raw.receive(kHeaderBytes + bytes);
  const auto envelope = got.size() < kHeaderBytes ? std::nullopt : get_envelope(got, kMaxAnswerBytes);
  if (!envelope) return {Welcome::refused, "no answer"};
  return {static_cast<Welcome>(envelope->kind), std::string(base::text_of(base::Bytes(got).subspan(kHeaderBytes)))};
}

TEST_F(Node, BeginsAndEndsTheLanesOfAnotherWire) {
  other = std::make_unique<Noting>();
  serve();
  auto first = std::make_unique<Raw>(peer, responder->address()),
       second = std::make_unique<Raw>(peer, responder->address());
  first->send(attaching(grant(5), "hello"));
  EXPECT_EQ(answer(*first, 7), std::pair(Welcome::accepted, std::string("welcome")));
  second->send(attaching(grant(6), "hi"));
  EXPECT_EQ(answer(*second, 7).first, Welcome::accepted);
  EXPECT_TRUE(eventually([&] { return responder->stats().lanes == 2; }));

  Raw silent(peer, responder->address());
  silent.send(attaching(grant(7), ""));
  EXPECT_EQ(answer(silent, 16), std::pair(Welcome::refused, std::string("nothing was said")));
  Raw spent(peer, responder->address());
  auto twice = grant(8);
  twice.token[0] ^= std::byte{1};
  spent.send(attaching(twice, "again"));
  EXPECT_EQ(answer(spent, 0).first, Welcome::refused);
  // No processor changes what a device changes by atomics.
  Raw same(peer, responder->address());
  same.send(greeting(Greeting::lane, grant(9).token));
  EXPECT_EQ(answer(same, 1).first, Welcome::refused);

  // The end of a connection is the end of its lane, and so is a fence.
  first.reset();
  EXPECT_TRUE(eventually([&] { return other->said().ends_with("detach 1\n"); }));
  std::promise<void> fenced;
  control.on([&] { responder->fence(6, [&fenced] { fenced.set_value(); }); });
  ASSERT_EQ(fenced.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(second->ends());
  EXPECT_TRUE(eventually([&] { return responder->stats().lanes == 0; }));
  EXPECT_TRUE(other->said().starts_with("attach 1 of 5: hello\nattach 2 of 6: hi\nattach 3 of 7: \n")) << other->said();
  EXPECT_NE(other->said().find("fence 6\n"), std::string::npos);
}

// The other wire may take its time. A session that is fenced meanwhile gets no lane, whatever it answers.
TEST_F(Node, ALaneOfAnotherWireBeginsWhenItIsReady) {
  other = std::make_unique<Noting>();
  serve();
  Raw kept(peer, responder->address()), fenced(peer, responder->address());
  kept.send(attaching(grant(5), "wait"));
  EXPECT_TRUE(eventually([&] { return other->said() == "attach 1 of 5: wait\n"; }));
  fenced.send(attaching(grant(6), "wait"));
  EXPECT_TRUE(eventually([&] { return other->said().ends_with("attach 2 of 6: wait\n"); }));
  EXPECT_EQ(responder->stats().lanes, 0u);
  control.on([&] {
    responder->fence(6, [] {});
    for (auto& each : other->waiting) each(std::string("welcome"));
  });
  EXPECT_EQ(answer(kept, 7), std::pair(Welcome::accepted, std::string("welcome")));
  EXPECT_EQ(answer(fenced, 21), std::pair(Welcome::refused, std::string("its session is fenced")));
  EXPECT_TRUE(eventually([&] { return responder->stats().lanes == 1; }));
}

TEST_F(Node, RefusesTheLanesOfAWireThatItDoesNotServe) {
  serve();
  Raw raw(peer, responder->address());
  raw.send(attaching(grant(), "hello"));
  EXPECT_EQ(answer(raw, 1).first, Welcome::refused);
  EXPECT_TRUE(raw.ends());
  expect_service();
}

// A client that sends bytes on a lane of another wire loses the lane.
TEST_F(Node, EndsTheLaneOfAnotherWireThatTalks) {
  other = std::make_unique<Noting>();
  serve();
  Raw raw(peer, responder->address());
  raw.send(attaching(grant(), "hello"));
  EXPECT_EQ(answer(raw, 7).first, Welcome::accepted);
  raw.send(greeting(Greeting::exchange, {}));
  EXPECT_TRUE(raw.ends());
  EXPECT_TRUE(eventually([&] { return other->said().ends_with("detach 1\n"); }));
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

task::Task<void> try_peer(TcpPort& port, LaneGrant grant, base::Code& exchange, base::Code& lane) {
  exchange = (co_await port.exchange(grant.endpoint, "x", port.now() + 30 * base::kSecond)).code();
  lane = (co_await port.open_lane(std::move(grant), port.now() + 30 * base::kSecond)).code();
}

// Roles and pools are checked at both ends.
TEST_F(Node, OpensLanesOnlyForClientsOfItsPool) {
  net::ThrowawayCa ca, stranger;
  const auto tls = [](net::ThrowawayCa& by, const char* uri) {
    return *net::Tls::load(by.issue(uri), net::Tls::Kind::mutual);
  };
  options.tls = tls(ca, "farpool://pool/node/n0");
  serve();
  struct Case {
    std::shared_ptr<net::Tls> tls;
    base::Code exchange, lane;
  };
  for (const Case& each :
       {Case{tls(ca, "farpool://pool/client/c"), base::Code::ok, base::Code::ok},
        Case{tls(ca, "farpool://pool/operator/o"), base::Code::ok, base::Code::forbidden},
        Case{tls(ca, "farpool://pool/node/n1"), base::Code::ok, base::Code::forbidden},
        Case{tls(ca, "farpool://other/client/c"), base::Code::forbidden, base::Code::forbidden},
        Case{tls(stranger, "farpool://pool/client/c"), base::Code::forbidden, base::Code::forbidden}}) {
    base::Code exchange = base::Code::internal, lane = base::Code::internal;
    ClientThread client(each.tls);
    client.run(try_peer(*client.port, grant(), exchange, lane));
    EXPECT_EQ(exchange, each.exchange) << each.tls->self().role << " of " << each.tls->self().pool_uid;
    EXPECT_EQ(lane, each.lane) << each.tls->self().role << " of " << each.tls->self().pool_uid;
  }
  client_tls = tls(ca, "farpool://pool/client/c");
  expect_service();
}

// A directory for sockets of rings, gone with the test.
struct RingsDirectory {
  std::string path = (std::filesystem::temp_directory_path() / "farpool-rings-XXXXXX").string();
  RingsDirectory() { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~RingsDirectory() { std::filesystem::remove_all(path); }
};

// Listens where a memory node would, notes what it is told, and gives an answer to each greeting.
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
  std::vector<std::byte> whole(kHeaderBytes + bytes, std::byte{7});
  put_envelope(whole, {.kind = static_cast<std::uint32_t>(welcome), .length = static_cast<std::uint32_t>(bytes)});
  return whole;
}

// Another process has taken the place of a memory node's socket: it does not hear the token, and gets no lane. The lane
// goes over the session port, where the memory node shows a certificate.
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
    EXPECT_GE(heard.size(), kHeaderBytes);
    EXPECT_EQ(heard.find(base::text_of(granted.token)), std::string::npos);
    EXPECT_EQ(heard.size(), kHeaderBytes + kProofBytes) << "it is told no more than a greeting";
  }
  EXPECT_EQ(responder->stats().ring_lanes, 0u);
}

// A client that does not know a token gets no lane over rings, whatever it says, and the token stays unspent.
TEST_F(Node, WhoProvesNoTokenGetsNoLaneOverRings) {
  const RingsDirectory directory;
  serve();
  const LaneGrant granted = grant();
  const std::string address = rings_address(directory.path, granted.node_incarnation);
  control.on([&] { ASSERT_TRUE(responder->serve_rings(address).ok()); });
  const auto rings_greeting = [&](base::Bytes secret) {
    std::string body(base::text_of(net::prove(secret, kNameOfToken)));
    body += std::string(16, 'n');
    return greeting(Greeting::proof, base::bytes_of(body));
  };
  {
    Raw raw(peer, address);  // the token itself, which may have been overheard by a client of before
    raw.send(greeting(Greeting::lane, granted.token));
    EXPECT_TRUE(raw.ends());
  }
  {
    Raw raw(peer, address);  // the name of none
    raw.send(rings_greeting(base::bytes_of("no such token at all")));
    const auto answer = get_envelope(raw.receive(kHeaderBytes), 0);
    EXPECT_TRUE(answer && answer->kind == static_cast<std::uint32_t>(Welcome::refused));
    EXPECT_TRUE(raw.ends());
  }
  {
    Raw raw(peer, address);  // the name of one, as somebody in between may have heard it, and then an invented proof
    raw.send(rings_greeting(granted.token));
    const auto challenge = raw.receive(kHeaderBytes + kProofBytes);
    ASSERT_EQ(challenge.size(), kHeaderBytes + kProofBytes);
    EXPECT_EQ(base::text_of(challenge).find(base::text_of(granted.token)), std::string::npos);
    // What the node has proved with proves nothing of a client.
    raw.send(greeting(Greeting::lane, base::Bytes(challenge).subspan(kHeaderBytes, sizeof(net::Proof))));
    EXPECT_TRUE(raw.ends());
  }
  EXPECT_EQ(responder->stats().ring_lanes, 0u);
  ClientThread client(nullptr, directory.path);
  client.run(work(*client.port, granted));
}

TEST_F(Node, AClientLeavesAPeerThatIsNoMemoryNode) {
  net::ThrowawayCa ca;
  options.tls = *net::Tls::load(ca.issue("farpool://pool/client/impostor"), net::Tls::Kind::mutual);
  serve();
  base::Code exchange = base::Code::internal, lane = base::Code::internal;
  ClientThread client(*net::Tls::load(ca.issue("farpool://pool/client/c"), net::Tls::Kind::mutual));
  client.run(try_peer(*client.port, grant(), exchange, lane));
  EXPECT_EQ(exchange, base::Code::forbidden);
  EXPECT_EQ(lane, base::Code::forbidden);
  EXPECT_EQ(responder->stats().exchanges, 0u);
}

}  // namespace
}  // namespace farpool::fabric::tcp
