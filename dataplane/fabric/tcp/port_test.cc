// SPDX-License-Identifier: Apache-2.0
// What a lane does with a memory node that does not keep to the protocol: it ends, and believes nothing of it.
#include "fabric/tcp/port.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/session_port/greeting.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/frame.h"
#include "fabric/tcp/test_loop.h"
#include "net/listener.h"
#include "net/stream.h"

namespace farpool::fabric::tcp {
namespace {

using session_port::kEnvelopeBytes;
using session_port::kTokenBytes;
using session_port::LoopThread;

// A memory node that admits a lane, takes some chains, and answers them by their ids in an order of its own: a CALL
// with no bytes, and a READ with one word.
class WilfulNode final : public net::StreamHandler {
 public:
  explicit WilfulNode(std::vector<std::uint64_t> order) : order_(std::move(order)) {
    thread_.on([this] {
      auto listener = net::Listener::open(thread_.loop, {.address = "127.0.0.1:0"}, [this](auto stream) {
        stream_ = std::move(stream);
        stream_->need(kEnvelopeBytes + kTokenBytes);
        stream_->start(*this);
      });
      EXPECT_TRUE(listener.ok());
      listener_ = std::move(*listener);
    });
  }
  ~WilfulNode() {
    thread_.on([this] {
      stream_.reset();
      listener_.reset();
    });
  }
  std::string address() const { return listener_->address(); }

  void on_input() noexcept override {
    if (!std::exchange(greeted_, true)) {
      session_port::put_envelope(stream_->reserve(kEnvelopeBytes),
                                 {.kind = static_cast<std::uint32_t>(session_port::Welcome::accepted)});
      stream_->consume(kEnvelopeBytes + kTokenBytes);
      stream_->need(kHeaderBytes);
    }
    for (;;) {
      const base::MutableBytes input = stream_->input();
      if (input.size() < kHeaderBytes || input.size() < frame_length(input)) return;
      ChainView chain;
      ASSERT_TRUE(get_chain(input.first(frame_length(input)), chain));
      calls_.push_back(chain.verbs[0].verb == Verb::call);
      stream_->consume(frame_length(input));
      if (calls_.size() == order_.size()) return answer();
    }
  }
  void on_closed(const base::Status&) noexcept override {}

 private:
  void answer() {
    for (const std::uint64_t id : order_) {
      const std::size_t bytes = calls_[id - 1] ? call_reply_length(0) : kHeaderBytes + 8;
      const base::MutableBytes into = stream_->reserve(bytes);
      std::memset(into.data(), 0, into.size());
      if (calls_[id - 1]) {
        put_call_reply(into, id, 0);
      } else {
        put_reply_header(into, {.length = static_cast<std::uint32_t>(bytes), .id = id});
      }
    }
  }
  LoopThread thread_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<net::Stream> stream_;
  const std::vector<std::uint64_t> order_;
  std::vector<bool> calls_;  // of the chains that came: whether each is a CALL
  bool greeted_ = false;
};

task::Task<void> post_one(Port& port, Lane& lane, Op op, Outcome& outcome) {
  const std::array ops{op};
  outcome = co_await lane.post(ops, port.now() + 30 * base::kSecond);
}

// What became of chains that were posted together, if the memory node answers them in this order.
task::Task<void> post_all(Port& port, std::string endpoint, std::vector<Op> ops, std::vector<Fate>& fates, bool& open) {
  auto lane = co_await port.open_lane({.endpoint = std::move(endpoint), .regions = {{.id = 1, .bytes = 8, .key = 1}}},
                                      port.now() + 30 * base::kSecond);
  EXPECT_TRUE(lane.ok()) << lane.status().message();
  if (!lane.ok()) co_return;
  std::vector<Outcome> outcomes(ops.size());
  {
    task::Scope scope;
    for (std::size_t i = 0; i < ops.size(); ++i) scope.spawn(post_one(port, **lane, ops[i], outcomes[i]));
    co_await scope.join();
  }
  for (const Outcome& outcome : outcomes) fates.push_back(outcome.fate);
  open = (*lane)->open();
}

class ReplyOrder : public testing::Test {
 protected:
  void post(std::vector<Op> ops, std::vector<std::uint64_t> order) {
    const WilfulNode node(std::move(order));
    ClientThread client(nullptr);
    client.run(post_all(*client.port, node.address(), std::move(ops), fates_, open_));
  }
  std::array<std::byte, 8> word_{};
  const Op read_ = Op::read({1, 0}, word_);
  const Op call_ = Op::call(kFirstServiceOpcode, {}, {});
  const Op control_ = Op::call(1, {}, {});
  std::vector<Fate> fates_;
  bool open_ = false;
};

TEST_F(ReplyOrder, CallsForDataAreOvertaken) {
  post({call_, read_, call_}, {2, 3, 1});
  EXPECT_EQ(fates_, (std::vector{Fate::done, Fate::done, Fate::done}));
  EXPECT_TRUE(open_);
}
TEST_F(ReplyOrder, AReplyThatOvertakesAnotherChainEndsTheLane) {
  post({read_, call_}, {2, 1});
  EXPECT_EQ(fates_, (std::vector{Fate::maybe, Fate::maybe}));
  EXPECT_FALSE(open_);
}
TEST_F(ReplyOrder, AReplyThatOvertakesAControlCallEndsTheLane) {
  post({call_, control_, call_}, {1, 3, 2});
  EXPECT_EQ(fates_, (std::vector{Fate::done, Fate::maybe, Fate::maybe}));
  EXPECT_FALSE(open_);
}
TEST_F(ReplyOrder, AReplyToNothingEndsTheLane) {
  post({call_, read_}, {1, 1});
  EXPECT_EQ(fates_, (std::vector{Fate::done, Fate::maybe}));
  EXPECT_FALSE(open_);
}

}  // namespace
}  // namespace farpool::fabric::tcp
