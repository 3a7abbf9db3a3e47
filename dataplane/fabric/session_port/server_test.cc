// SPDX-License-Identifier: Apache-2.0
// Both halves of the session port, with wires that do next to nothing, and peers that break the protocol: it ends their
// connection, and nothing else.
#include "fabric/session_port/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fabric/contract/wire.h"
#include "fabric/session_port/greeting.h"
#include "fabric/session_port/peer_test.h"
#include "fabric/session_port/test_loop.h"
#include "net/proof.h"
#include "net/stream.h"
#include "net/throwaway_ca.h"

namespace farpool::fabric::session_port {
namespace {

using contract::TestHost;

// A lane that echoes what comes, or does what the text says.
class Echo final : public StreamLane {
 public:
  explicit Echo(LaneConnection& connection) : connection_(connection) {
    connection_.stream().start(*this);
    connection_.stream().resume_reading();
    if (!connection_.stream().input().empty()) on_input();
  }
  void on_input() noexcept override {
    net::Stream& stream = connection_.stream();
    const std::string text(base::text_of(stream.input()));
    stream.consume(text.size());
    if (text == "be malformed") return connection_.malformed();
    if (text == "call the host") return connection_.call_host(7, TestHost::kEcho, text, 64);
    if (text == "call nobody") return connection_.call_host(8, TestHost::kRefuse, text, 64);
    stream.write(text);
    if (text == "refuse") connection_.refuse();
  }
  void on_closed(const base::Status&) noexcept override { connection_.close(); }
  void on_reply(std::uint64_t call, const std::optional<std::string>& reply) override {
    connection_.stream().write(std::to_string(call) + ": " + reply.value_or("refused"));
  }

 private:
  LaneConnection& connection_;
};

// A wire whose lanes are their connections.
class Echoes final : public StreamWire {
 public:
  std::string_view name() const override { return "echo"; }
  std::unique_ptr<StreamLane> begin(LaneConnection& connection, LaneRights) override {
    return std::make_unique<Echo>(connection);
  }
  void drain(std::size_t executor, std::uint64_t, std::function<void()> then) override {
    const std::lock_guard lock(mutex_);
    if (!slow_) return then();
    draining_.emplace_back(executor, std::move(then));
  }
  void be_slow() {
    const std::lock_guard lock(mutex_);
    slow_ = true;
  }
  // Returns the executors that drain, and what each has to call.
  std::vector<std::pair<std::size_t, std::function<void()>>> draining() {
    const std::lock_guard lock(mutex_);
    return draining_;
  }

 private:
  std::mutex mutex_;
  bool slow_ = false;
  std::vector<std::pair<std::size_t, std::function<void()>>> draining_;
};

// A wire whose lanes have connections of their own: it notes its calls.
class Noting final : public AttachedWire {
 public:
  std::string_view name() const override { return "other"; }
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
    server = std::make_unique<Server>(control.loop, options);
    control.on([this] {
      const base::Status status = other != nullptr ? server->serve(host, *other) : server->serve(host, echoes);
      ASSERT_TRUE(status.ok()) << status.message();
    });
  }
  ~Node() override {
    control.on([this] { server.reset(); });
  }
  LaneGrant grant(std::uint64_t session = 1) { return host.grant(session, server->address()); }
  std::unique_ptr<RawPeer> open_lane(std::uint64_t session = 1) {
    auto raw = std::make_unique<RawPeer>(peer, server->address());
    raw->send(greeting(Greeting::lane, grant(session).token));
    EXPECT_EQ(raw->welcome(), Welcome::accepted);
    return raw;
  }
  static void say(RawPeer& lane, std::string_view text) { lane.send(base::bytes_of(text)); }
  // Returns what has come on a lane after its welcome.
  static std::string heard(RawPeer& lane, std::size_t bytes) {
    const auto got = lane.receive(kEnvelopeBytes + bytes);
    return std::string(base::text_of(base::Bytes(got).subspan(std::min(got.size(), kEnvelopeBytes))));
  }
  // Checks that the memory node still serves: an exchange, and a lane.
  void expect_service() {
    BareThread client(client_tls);
    client.run(work(*client.port, grant(77)));
  }
  static task::Task<void> work(LoopPort& port, LaneGrant grant) {
    const auto reply = co_await port.exchange(grant.endpoint, "x", port.now() + 30 * base::kSecond);
    EXPECT_TRUE(reply.ok() && *reply == "echo:x") << reply.status().message();
    const auto begun = co_await port.begin_lane(Greeting::lane, grant, {}, port.now() + 30 * base::kSecond);
    EXPECT_TRUE(begun.ok()) << begun.status().message();
  }

  TestHost host;
  Options options;
  std::shared_ptr<net::Tls> client_tls;
  LoopThread control, peer;
  Echoes echoes;
  std::unique_ptr<Noting> other;  // serves instead of the echoes, if there is one
  std::unique_ptr<Server> server;
};

TEST_F(Node, GivesALanesConnectionToItsWire) {
  serve();
  RawPeer early(peer, server->address());
  auto bytes = greeting(Greeting::lane, grant().token);
  const base::Bytes more = base::bytes_of(std::string_view("behind the greeting"));
  bytes.insert(bytes.end(), more.begin(), more.end());
  early.send(bytes);
  EXPECT_EQ(heard(early, more.size()), "behind the greeting");
  auto lane = open_lane();
  say(*lane, "hello");
  EXPECT_EQ(heard(*lane, 5), "hello");
  EXPECT_EQ(server->stats().lanes, 2u);
  say(*lane, "refuse");
  EXPECT_EQ(heard(*lane, 11), "hellorefuse") << "what has been written still comes";
  EXPECT_TRUE(lane->ends());
  say(early, "be malformed");
  EXPECT_TRUE(early.ends());
  EXPECT_TRUE(eventually([&] { return server->stats().lanes == 0; }));
  EXPECT_EQ(server->stats().refusals, 1u);
  EXPECT_EQ(server->stats().malformed, 1u);
}

TEST_F(Node, TakesALanesControlCallsToTheHost) {
  serve();
  auto lane = open_lane();
  say(*lane, "call the host");
  EXPECT_EQ(heard(*lane, 16), "7: call the host");
  say(*lane, "call nobody");
  EXPECT_EQ(heard(*lane, 26), "7: call the host8: refused");
}

// Executors cut a fenced session's lanes, and no others. Each of them drains the wire before the fence returns.
TEST_F(Node, AFenceCutsTheSessionsLanesAndWaitsForTheWire) {
  options.executors = 2;
  echoes.be_slow();
  serve();
  std::vector<std::unique_ptr<RawPeer>> fenced;
  for (int i = 0; i < 3; ++i) fenced.push_back(open_lane(5));
  auto kept = open_lane(6);
  std::promise<void> done;
  auto over = done.get_future();
  control.on([&] { server->fence(5, [&done] { done.set_value(); }); });
  for (const auto& each : fenced) EXPECT_TRUE(each->ends());
  ASSERT_TRUE(eventually([&] { return echoes.draining().size() == 2; }));
  EXPECT_EQ(over.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  for (const auto& [executor, then] : echoes.draining()) server->post(executor, then);
  EXPECT_EQ(over.wait_for(kPatience), std::future_status::ready);
  say(*kept, "hello");
  EXPECT_EQ(heard(*kept, 5), "hello");
  EXPECT_EQ(server->stats().fences, 1u);
}

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
    RawPeer raw(peer, server->address());
    raw.send(rude[i]);
    EXPECT_TRUE(raw.ends()) << "greeting " << i;
    EXPECT_TRUE(raw.receive(0).empty());
  }
  EXPECT_EQ(server->stats().malformed, rude.size());
  expect_service();
}

TEST_F(Node, DoesNotWaitForeverForAGreeting) {
  options.handshake_deadline = 30 * base::kMillisecond;
  serve();
  RawPeer silent(peer, server->address());
  EXPECT_TRUE(silent.ends());
  RawPeer slow(peer, server->address());
  auto part = greeting(Greeting::lane, grant().token);
  part.resize(9);
  slow.send(part);
  EXPECT_TRUE(slow.ends());
}

TEST_F(Node, BoundsTheLanesOfASession) {
  options.max_lanes_per_session = 2;
  serve();
  const auto attempt = [&](std::uint64_t session) {
    auto raw = std::make_unique<RawPeer>(peer, server->address());
    raw->send(greeting(Greeting::lane, grant(session).token));
    const bool accepted = raw->welcome() == Welcome::accepted;
    return std::pair(std::move(raw), accepted);
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
// Returns the answer: the verdict, and its text.
std::pair<Welcome, std::string> answer(RawPeer& raw, std::size_t bytes) {
  const auto got = raw.receive(kEnvelopeBytes + bytes);
  const auto envelope = got.size() < kEnvelopeBytes ? std::nullopt : get_envelope(got, kMaxAnswerBytes);
  if (!envelope) return {Welcome::refused, "no answer"};
  return {static_cast<Welcome>(envelope->kind), std::string(base::text_of(base::Bytes(got).subspan(kEnvelopeBytes)))};
}

TEST_F(Node, BeginsAndEndsTheLanesOfAnotherWire) {
  other = std::make_unique<Noting>();
  serve();
  auto first = std::make_unique<RawPeer>(peer, server->address()),
       second = std::make_unique<RawPeer>(peer, server->address());
  first->send(attaching(grant(5), "hello"));
  EXPECT_EQ(answer(*first, 7), std::pair(Welcome::accepted, std::string("welcome")));
  second->send(attaching(grant(6), "hi"));
  EXPECT_EQ(answer(*second, 7).first, Welcome::accepted);
  EXPECT_TRUE(eventually([&] { return server->stats().lanes == 2; }));

  RawPeer silent(peer, server->address());
  silent.send(attaching(grant(7), ""));
  EXPECT_EQ(answer(silent, 16), std::pair(Welcome::refused, std::string("nothing was said")));
  RawPeer spent(peer, server->address());
  auto twice = grant(8);
  twice.token[0] ^= std::byte{1};
  spent.send(attaching(twice, "again"));
  EXPECT_EQ(answer(spent, 0).first, Welcome::refused);
  // No processor may change what a device changes by atomics.
  RawPeer same(peer, server->address());
  same.send(greeting(Greeting::lane, grant(9).token));
  const std::string why = "this memory node serves the other wire; ask for --wire other";
  EXPECT_EQ(answer(same, why.size()), std::pair(Welcome::refused, why));

  // The end of a connection ends its lane, and so does a fence.
  first.reset();
  EXPECT_TRUE(eventually([&] { return other->said().ends_with("detach 1\n"); }));
  std::promise<void> fenced;
  control.on([&] { server->fence(6, [&fenced] { fenced.set_value(); }); });
  ASSERT_EQ(fenced.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(second->ends());
  EXPECT_TRUE(eventually([&] { return server->stats().lanes == 0; }));
  EXPECT_TRUE(other->said().starts_with("attach 1 of 5: hello\nattach 2 of 6: hi\nattach 3 of 7: \n")) << other->said();
  EXPECT_NE(other->said().find("fence 6\n"), std::string::npos);
}

// The other wire may take its time. A session that is fenced meanwhile gets no lane, whatever the wire answers.
TEST_F(Node, ALaneOfAnotherWireBeginsWhenItIsReady) {
  other = std::make_unique<Noting>();
  serve();
  RawPeer kept(peer, server->address()), fenced(peer, server->address());
  kept.send(attaching(grant(5), "wait"));
  EXPECT_TRUE(eventually([&] { return other->said() == "attach 1 of 5: wait\n"; }));
  fenced.send(attaching(grant(6), "wait"));
  EXPECT_TRUE(eventually([&] { return other->said().ends_with("attach 2 of 6: wait\n"); }));
  EXPECT_EQ(server->stats().lanes, 0u);
  control.on([&] {
    server->fence(6, [] {});
    for (auto& each : other->waiting) each(std::string("welcome"));
  });
  EXPECT_EQ(answer(kept, 7), std::pair(Welcome::accepted, std::string("welcome")));
  EXPECT_EQ(answer(fenced, 21), std::pair(Welcome::refused, std::string("its session is fenced")));
  EXPECT_TRUE(eventually([&] { return server->stats().lanes == 1; }));
}

TEST_F(Node, RefusesTheLanesOfAWireThatItDoesNotServe) {
  serve();
  RawPeer raw(peer, server->address());
  raw.send(attaching(grant(), "hello"));
  const std::string why = "this memory node serves the echo wire; ask for --wire echo";
  EXPECT_EQ(answer(raw, why.size()), std::pair(Welcome::refused, why));
  EXPECT_TRUE(raw.ends());
  expect_service();
}

// A client that sends bytes on a lane of another wire loses the lane.
TEST_F(Node, EndsTheLaneOfAnotherWireThatTalks) {
  other = std::make_unique<Noting>();
  serve();
  RawPeer raw(peer, server->address());
  raw.send(attaching(grant(), "hello"));
  EXPECT_EQ(answer(raw, 7).first, Welcome::accepted);
  raw.send(greeting(Greeting::exchange, {}));
  EXPECT_TRUE(raw.ends());
  EXPECT_TRUE(eventually([&] { return other->said().ends_with("detach 1\n"); }));
}

task::Task<void> try_peer(LoopPort& port, LaneGrant grant, base::Code& exchange, base::Code& lane) {
  exchange = (co_await port.exchange(grant.endpoint, "x", port.now() + 30 * base::kSecond)).code();
  lane = (co_await port.begin_lane(Greeting::lane, grant, {}, port.now() + 30 * base::kSecond)).code();
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
    BareThread client(each.tls);
    client.run(try_peer(*client.port, grant(), exchange, lane));
    EXPECT_EQ(exchange, each.exchange) << each.tls->self().role << " of " << each.tls->self().pool_uid;
    EXPECT_EQ(lane, each.lane) << each.tls->self().role << " of " << each.tls->self().pool_uid;
  }
  client_tls = tls(ca, "farpool://pool/client/c");
  expect_service();
}

task::Task<void> prove(LoopPort& port, std::string address, LaneGrant grant) {
  auto begun = co_await port.begin_lane_by_proof(std::move(address), grant.token, port.now() + 30 * base::kSecond);
  EXPECT_TRUE(begun.ok()) << begun.status().message();
}

// A client that does not know a token gets no lane over rings, whatever it says, and the token stays unspent.
TEST_F(Node, WhoProvesNoTokenGetsNoLaneOverRings) {
  const RingsDirectory directory;
  serve();
  const LaneGrant granted = grant();
  const std::string address = "shm:" + directory.path + "/1.lanes";
  control.on([&] { ASSERT_TRUE(server->serve_rings(address).ok()); });
  const auto rings_greeting = [&](base::Bytes secret) {
    std::string body(base::text_of(net::prove(secret, kNameOfToken)));
    body += std::string(16, 'n');
    return greeting(Greeting::proof, base::bytes_of(body));
  };
  {
    RawPeer raw(peer, address);  // the token itself, which may have been overheard by a client of before
    raw.send(greeting(Greeting::lane, granted.token));
    EXPECT_TRUE(raw.ends());
  }
  {
    RawPeer raw(peer, address);  // the name of none
    raw.send(rings_greeting(base::bytes_of("no such token at all")));
    EXPECT_EQ(raw.welcome(), Welcome::refused);
    EXPECT_TRUE(raw.ends());
  }
  {
    RawPeer raw(peer,
                address);  // the name of one, as somebody in between may have heard it, and then an invented proof
    raw.send(rings_greeting(granted.token));
    const auto challenge = raw.receive(kEnvelopeBytes + kProofBytes);
    ASSERT_EQ(challenge.size(), kEnvelopeBytes + kProofBytes);
    EXPECT_EQ(base::text_of(challenge).find(base::text_of(granted.token)), std::string::npos);
    // A client cannot use the node's own proof.
    raw.send(greeting(Greeting::lane, base::Bytes(challenge).subspan(kEnvelopeBytes, sizeof(net::Proof))));
    EXPECT_TRUE(raw.ends());
  }
  EXPECT_EQ(server->stats().ring_lanes, 0u);
  BareThread client(nullptr);
  client.run(prove(*client.port, address, granted));
  EXPECT_TRUE(eventually([&] { return server->stats().lanes == 0; })) << "the client has left its lane";
}

TEST_F(Node, AClientLeavesAPeerThatIsNoMemoryNode) {
  net::ThrowawayCa ca;
  options.tls = *net::Tls::load(ca.issue("farpool://pool/client/impostor"), net::Tls::Kind::mutual);
  serve();
  base::Code exchange = base::Code::internal, lane = base::Code::internal;
  BareThread client(*net::Tls::load(ca.issue("farpool://pool/client/c"), net::Tls::Kind::mutual));
  client.run(try_peer(*client.port, grant(), exchange, lane));
  EXPECT_EQ(exchange, base::Code::forbidden);
  EXPECT_EQ(lane, base::Code::forbidden);
  EXPECT_EQ(server->stats().exchanges, 0u);
}

}  // namespace
}  // namespace farpool::fabric::session_port
