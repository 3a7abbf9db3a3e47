// SPDX-License-Identifier: Apache-2.0
// CALLs for data on the verbs wire, beyond the contract suite: clients that break the protocol, and datagrams that come
// again or get lost.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/contract/wire.h"
#include "fabric/once.h"
#include "fabric/verbs/arena.h"
#include "fabric/verbs/call_link.h"
#include "fabric/verbs/call_server.h"
#include "fabric/verbs/data_call.h"
#include "fabric/verbs/datagrams.h"
#include "fabric/verbs/lab_test.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/responder.h"

namespace farpool::fabric::verbs {
namespace {

using contract::TestHost;
using contract::TestService;

constexpr Nanos kPatience = 60 * base::kSecond;

task::Task<void> attach(session_port::LoopPort& port, LaneGrant grant, AttachRequest request,
                        std::unique_ptr<net::Stream>& stream, std::optional<AttachReply>& reply) {
  auto begun = co_await port.begin_lane(session_port::Greeting::attach, grant, put(request), port.now() + kPatience);
  EXPECT_TRUE(begun.ok()) << begun.status().message();
  if (!begun.ok()) co_return;
  reply = get_reply(base::bytes_of(begun->answer));
  stream = std::move(begun->stream);
}

// A client that sends arbitrary messages on the queue pair for its lane's CALLs.
class WilfulClient {
 public:
  WilfulClient(const Device& device, const LaneGrant& grant, CallForm form) : form_(form) {
    domain_ = std::move(*make_protection_domain(device));
    completions_.reset(::ibv_create_cq(device.context(), 256, nullptr, nullptr, 0));
    registration_ = std::move(*register_memory(domain_.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE));
    lane_ = std::move(*QueuePair::make(device, domain_.get(), completions_.get(), {.sends = 1, .receives = 1}, 1, 1));
    AttachRequest request{.client = lane_->end(), .nonce = 7, .keys = {}};
    request.calls = CallEnd{.form = form, .window = 2, .bytes = 256};
    if (form == CallForm::connected) {
      pair_ =
          std::move(*QueuePair::make(device, domain_.get(), completions_.get(), {.sends = 64, .receives = 64}, 1, 1));
      request.calls->queue_pair = pair_->end().queue_pair;
      request.calls->sequence = pair_->end().sequence;
    } else {
      datagrams_ = std::move(*Datagrams::make(device, domain_.get(), completions_.get(), 64, 64, 0, 5));
      request.calls->queue_pair = datagrams_->number();
      request.calls->sequence = datagrams_->key();
    }
    thread_.run(attach(*thread_.port, grant, request, stream_, reply_));
    if (!reply_ || !reply_->calls) {
      ADD_FAILURE() << "no CALLs were granted";
      return;
    }
    for (std::uint32_t i = 0; i < kReceives; ++i) post_receive(i);
    if (form == CallForm::connected) {
      const End peer{.queue_pair = reply_->calls->queue_pair,
                     .sequence = reply_->calls->sequence,
                     .mtu = reply_->node.mtu,
                     .depth = 1,
                     .gid = reply_->node.gid};
      EXPECT_TRUE(pair_->connect(peer, reply_->node.mtu, 1, reply_->patience).ok());
    } else {
      address_ = std::move(*datagrams_->address_of(reply_->node.gid));
    }
  }
  ~WilfulClient() {
    thread_.on([this] { stream_.reset(); });
  }
  std::uint64_t cookie() const { return reply_->calls->cookie; }
  const CallEnd& granted() const { return *reply_->calls; }

  void send(base::Bytes message) {
    std::byte* at = memory_.data() + kReceives * kStride + sent_++ % kReceives * kStride;
    std::memcpy(at, message.data(), message.size());
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(at),
                 .length = static_cast<std::uint32_t>(message.size()),
                 .lkey = registration_->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (datagrams_ != nullptr) {
      wr.wr.ud = {.ah = address_.get(), .remote_qpn = granted().queue_pair, .remote_qkey = granted().sequence};
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(::ibv_post_send(raw(), &wr, &bad), 0);
  }
  void send(DataRequest request, std::string_view body) {
    request.body = base::bytes_of(body);
    std::vector<std::byte> message(kDataHeadBytes + body.size());
    put_head(message, request);
    if (!body.empty()) std::memcpy(message.data() + kDataHeadBytes, body.data(), body.size());
    send(message);
  }
  // Returns the next answer; nothing once the queue pair has ended, or after a while.
  std::optional<DataAnswer> receive() {
    const Nanos limit = net::Loop::now() + kPatience;
    while (net::Loop::now() < limit) {
      ibv_wc done{};
      if (::ibv_poll_cq(completions_.get(), 1, &done) <= 0) continue;
      if (done.status != IBV_WC_SUCCESS) return std::nullopt;
      if (done.opcode != IBV_WC_RECV) continue;
      const std::size_t before = form_ == CallForm::datagrams ? kGlobalHeaderBytes : 0;
      return get_data_answer({memory_.data() + done.wr_id * kStride + before, done.byte_len - before});
    }
    ADD_FAILURE() << "no answer, and no end";
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kReceives = 32, kStride = 8192;
  ibv_qp* raw() const { return pair_ != nullptr ? pair_->raw() : datagrams_->raw(); }
  void post_receive(std::uint32_t slot) {
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(memory_.data() + slot * kStride),
                 .length = kStride,
                 .lkey = registration_->lkey};
    ibv_recv_wr wr{.wr_id = slot, .next = nullptr, .sg_list = &part, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(::ibv_post_recv(raw(), &wr, &bad), 0);
  }
  const CallForm form_;
  session_port::BareThread thread_{nullptr};
  std::vector<std::byte> memory_ = std::vector<std::byte>(2 * kReceives * kStride);
  ProtectionDomain domain_;
  Completions completions_;
  Registration registration_;
  std::unique_ptr<QueuePair> lane_, pair_;
  std::unique_ptr<Datagrams> datagrams_;
  Address address_;
  std::unique_ptr<net::Stream> stream_;
  std::optional<AttachReply> reply_;
  std::size_t sent_ = 0;
};

class Calls : public ::testing::TestWithParam<CallForm> {
 protected:
  void SetUp() override {
    auto opened = Device::open({.connection_manager = false, .failure_timeout = 20 * base::kSecond});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    device = *opened;
    control.on([this] {
      responder = std::make_unique<VerbsResponder>(
          control.loop, session_port::Options{.listen = "127.0.0.1:0", .handshake_deadline = kPatience}, device);
      EXPECT_TRUE(responder->serve(host).ok());
    });
  }
  ~Calls() override {
    control.on([this] { responder.reset(); });
    EXPECT_TRUE(host.guards_whole());
  }
  // Sends one request. Expects that it is refused for this reason or, if there is no reason, that the lane ends. The
  // service has not run since.
  void expect_refused(const std::function<void(WilfulClient&)>& send, std::optional<Refusal> why) {
    WilfulClient caller(*device, host.grant(1, responder->address()), GetParam());
    const std::uint64_t served = host.service().served();
    send(caller);
    const auto answer = caller.receive();
    if (why && answer) {
      EXPECT_TRUE(answer->refused);
      EXPECT_EQ(answer->why, *why) << text_of(answer->why);
      // Nothing of this client executes any more.
      caller.send({.cookie = caller.cookie(), .id = id_of(1, 1), .opcode = TestService::kEcho, .room = 8}, "more");
    } else {
      EXPECT_TRUE(why.has_value() == answer.has_value());
    }
    EXPECT_EQ(host.service().served(), served);
  }
  Gid own_gid() const {
    Gid gid;
    std::memcpy(gid.data(), device->find_gid()->gid.raw, gid.size());
    return gid;
  }
  static std::uint64_t id_of(std::uint32_t line, std::uint64_t number) { return RequestId{line, number}.word(); }

  TestHost host;
  session_port::LoopThread control;
  std::shared_ptr<Device> device;
  std::unique_ptr<VerbsResponder> responder;
};

TEST_P(Calls, AnHonestClientIsAnswered) {
  WilfulClient caller(*device, host.grant(1, responder->address()), GetParam());
  EXPECT_EQ(caller.granted().window, 2u);
  EXPECT_EQ(caller.granted().bytes, 256u);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    caller.send({.cookie = caller.cookie(), .id = id_of(1, number), .opcode = TestService::kEcho, .room = 8}, "echo");
    const auto answer = caller.receive();
    ASSERT_TRUE(answer);
    EXPECT_FALSE(answer->refused);
    EXPECT_EQ(answer->id, id_of(1, number));
    EXPECT_EQ(base::text_of(answer->body), "echo");
  }
  EXPECT_EQ(responder->stats().data.links, 1u);
  EXPECT_EQ(responder->stats().data.calls, 3u);
}

TEST_P(Calls, RequestsThatMayNotBeAreRefused) {
  const auto echo = [](WilfulClient& caller, std::uint64_t id) {
    return DataRequest{.cookie = caller.cookie(), .id = id, .opcode = TestService::kEcho, .room = 8};
  };
  expect_refused([&](auto& caller) { caller.send(echo(caller, id_of(0, 1)), std::string(257, 'x')); },
                 Refusal::too_long);
  expect_refused(
      [&](auto& caller) {
        DataRequest request = echo(caller, id_of(0, 1));
        request.room = 257;
        caller.send(request, "x");
      },
      Refusal::too_long);
  expect_refused([&](auto& caller) { caller.send(echo(caller, id_of(2, 1)), "x"); }, Refusal::too_many);
  expect_refused(
      [&](auto& caller) {
        DataRequest request = echo(caller, id_of(0, 1));
        request.opcode = TestService::kUnknown;
        caller.send(request, "x");
      },
      Refusal::unknown_opcode);
}

TEST_P(Calls, MessagesThatAreNoneEndTheLaneOrAreIgnored) {
  // A connected client learns of its mistake. A datagram may come from anybody.
  const auto why = GetParam() == CallForm::connected ? std::optional(Refusal::malformed) : std::nullopt;
  const auto spoil = [](std::size_t at, std::uint32_t word) {
    return [at, word](WilfulClient& caller) {
      std::array<std::byte, kDataHeadBytes> message{};
      put_head(message, DataRequest{.cookie = caller.cookie(), .id = id_of(0, 1), .opcode = TestService::kEcho});
      base::store(message.data() + at, word);
      caller.send(message);
      if (caller.granted().form == CallForm::connected) return;
      // An ignored request has no answer; the next request has one.
      caller.send({.cookie = caller.cookie(), .id = id_of(0, 1), .opcode = TestService::kUnknown}, {});
    };
  };
  const auto expected = why ? why : std::optional(Refusal::unknown_opcode);
  expect_refused(spoil(24, 1), expected);                        // a length that is not so
  expect_refused(spoil(16, kFirstServiceOpcode - 1), expected);  // the host's opcode
  expect_refused(spoil(28, 1), expected);
  expect_refused(spoil(0, 12345), expected);  // another's cookie
}

INSTANTIATE_TEST_SUITE_P(Forms, Calls, ::testing::Values(CallForm::connected, CallForm::datagrams),
                         [](const auto& form) {
                           return std::string(form.param == CallForm::connected ? "Connected" : "Datagrams");
                         });

// One call server, whose links nobody uses.
TEST_P(Calls, ALaneMoreThanACallServerTakesIsRefusedUntilOneIsGone) {
  const auto domain = std::move(*make_protection_domain(*device));
  TestService service(nullptr, 0);
  auto server = CallServer::make(device, domain.get(), 0, [](std::uint64_t, const std::string&) {});
  ASSERT_TRUE(server.ok()) << server.status().message();
  std::vector<std::shared_ptr<CallServer::Link>> links;
  const auto admit = [&] {
    auto link = (*server)->admit({.lane = 1 + links.size(),
                                  .session_id = 1,
                                  .service = &service,
                                  .client = {.form = GetParam(), .queue_pair = 5, .window = 16, .bytes = 4096},
                                  .lane_of_client = {.gid = own_gid()},
                                  .sequence = 1,
                                  .cookie = 1 + links.size()});
    if (link.ok()) links.push_back(std::move(*link));
    return link.status();
  };
  for (std::size_t i = 0; i < 256; ++i) {
    const base::Status status = admit();
    ASSERT_TRUE(status.ok()) << "lane " << i << ": " << status.message();
  }
  const base::Status status = admit();
  EXPECT_EQ(status.code(), base::Code::unavailable);
  EXPECT_NE(status.message().find("256 lanes with CALLs for data"), std::string::npos) << status.message();
  (*server)->close(std::move(links.back()));
  links.pop_back();
  EXPECT_TRUE(admit().ok());
  for (auto& link : links) (*server)->close(std::move(link));
}

class DatagramCalls : public Calls {};

TEST_P(DatagramCalls, ARequestThatComesAgainExecutesOnceAndIsAnsweredAgain) {
  WilfulClient caller(*device, host.grant(1, responder->address()), GetParam());
  const DataRequest bump{.cookie = caller.cookie(), .id = id_of(1, 1), .opcode = TestService::kBump, .room = 8};
  const std::string place(8, '\0');
  for (int times = 0; times < 3; ++times) {
    caller.send(bump, place);
    const auto answer = caller.receive();
    ASSERT_TRUE(answer && !answer->refused);
    EXPECT_EQ(base::load<std::uint64_t>(answer->body.data()), 0u) << "the word before the first";
  }
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 1u);
  // The line has gone on: a late message is not even answered.
  DataRequest next = bump;
  next.id = id_of(1, 2);
  caller.send(next, place);
  ASSERT_TRUE(caller.receive());
  caller.send(bump, place);
  next.id = id_of(1, 3);
  caller.send(next, place);
  const auto last = caller.receive();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->id, id_of(1, 3));
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 3u);
  EXPECT_EQ(responder->stats().data.repeated, 3u);
}

// Posts nothing: a CallLink takes the postings of any lane.
class NoLane final : public Lane {
 public:
  void enqueue(Posting&) noexcept override {}
  void sever() noexcept override {}
  bool open() const noexcept override { return true; }
  std::size_t pending() const noexcept override { return 0; }
};

// The device reads a request that is too long to be copied when it is sent some time later. Until then the line takes
// no other CALL, though it has its answer: half of the next request might leave in place of this one.
TEST_P(DatagramCalls, ALineTakesNoOtherCallBeforeWhatWasSentAgainHasLeft) {
  const auto domain = std::move(*make_protection_domain(*device));
  const Completions node_queue(::ibv_create_cq(device->context(), 16, nullptr, nullptr, 0));
  const Completions queue(::ibv_create_cq(device->context(), 128, nullptr, nullptr, 0));
  const auto node = std::move(*Datagrams::make(*device, domain.get(), node_queue.get(), 4, 4, 0, 5));
  const auto arena = std::move(*Arena::make(domain.get()));
  BufferPool pool(arena.get());
  const auto address = std::move(*node->address_of(own_gid()));
  Buffer memory = pool.take(CallLink::kMemoryBytes);
  const std::uint32_t key = arena->key_of(memory.data());
  auto link =
      std::move(*CallLink::make(*device, domain.get(), queue.get(), CallForm::datagrams, std::move(memory), key, 77));
  constexpr std::uint64_t kCookie = 9;
  ASSERT_TRUE(link->connect({.form = CallForm::datagrams,
                             .queue_pair = node->number(),
                             .sequence = node->key(),
                             .window = 1,
                             .bytes = 512,
                             .cookie = kCookie},
                            {.gid = own_gid()}, nullptr, device->mtu(), {})
                  .ok());
  Buffer request = pool.take(512), reply = pool.take(8), answer = pool.take(kDataHeadBytes);
  const std::array ops{Op::call(TestService::kEcho, request.first(512), reply.first(8))};
  NoLane lane;
  Posting posting(lane, ops, base::kNever);
  bool rang = false;
  link->stage(posting, 0);
  ASSERT_TRUE(link->flush(rang) && rang);
  EXPECT_EQ(link->send_again(CallLink::kFirstPatience), 3 * CallLink::kFirstPatience);
  ASSERT_TRUE(link->flush(rang) && rang) << "nothing was sent again";
  EXPECT_FALSE(link->room());

  put_head(answer.span(), DataAnswer{.cookie = kCookie, .id = id_of(0, 1), .body = {}});
  ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(answer.data()),
               .length = kDataHeadBytes,
               .lkey = arena->key_of(answer.data())};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &part;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.wr.ud = {.ah = address.get(), .remote_qpn = link->wanted().queue_pair, .remote_qkey = link->wanted().sequence};
  ASSERT_EQ(::ibv_post_send(node->raw(), &wr, &bad), 0);

  // The reports come in some order; the answer is taken first.
  std::vector<ibv_wc> sent;
  std::optional<ibv_wc> received;
  for (const Nanos limit = net::Loop::now() + kPatience; net::Loop::now() < limit && (sent.size() < 2 || !received);) {
    ibv_wc done{};
    if (::ibv_poll_cq(queue.get(), 1, &done) <= 0) continue;
    ASSERT_EQ(done.status, IBV_WC_SUCCESS);
    done.opcode == IBV_WC_RECV ? void(received = done) : sent.push_back(done);
  }
  ASSERT_TRUE(received && sent.size() == 2);
  EXPECT_EQ(link->take_received(*received).posting, &posting);
  EXPECT_FALSE(link->room()) << "what was sent again may still be read";
  link->take_sent(sent[0]);
  EXPECT_FALSE(link->room());
  link->take_sent(sent[1]);
  EXPECT_TRUE(link->room());
  EXPECT_EQ(link->out(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Forms, DatagramCalls, ::testing::Values(CallForm::datagrams),
                         [](const auto&) { return std::string("Datagrams"); });

}  // namespace
}  // namespace farpool::fabric::verbs
