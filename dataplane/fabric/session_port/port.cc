// SPDX-License-Identifier: Apache-2.0
#include "fabric/session_port/port.h"

#include <sys/random.h>

#include <coroutine>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "net/listener.h"
#include "net/proof.h"

namespace farpool::fabric::session_port {
namespace {

struct Dialing {
  net::Loop& loop;
  const std::string& endpoint;
  std::shared_ptr<net::Tls> tls;
  Nanos deadline;
  std::optional<base::Result<std::unique_ptr<net::Stream>>> result{};

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) {
    net::connect(loop, endpoint, tls, deadline, [this, waiter](base::Result<std::unique_ptr<net::Stream>> stream) {
      result.emplace(std::move(stream));
      waiter.resume();
    });
  }
  base::Result<std::unique_ptr<net::Stream>> await_resume() { return std::move(*result); }
};

// Waits for an envelope and its body, for the connection's end, or for the deadline.
class Reception final : public net::StreamHandler, public Timer {
 public:
  Reception(Port& port, net::Stream& stream, Nanos deadline) : port_(port), stream_(stream) { when = deadline; }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) {
    waiter_ = waiter;
    if (when != base::kNever) port_.arm(*this);
    stream_.need(kEnvelopeBytes);
    stream_.start(*this);
  }
  base::Result<Envelope> await_resume() {
    port_.disarm(*this);
    if (!status_.ok()) return status_;
    return envelope_;
  }

  void on_input() noexcept override {
    const base::MutableBytes input = stream_.input();
    const auto envelope = get_envelope(input.first(kEnvelopeBytes), kMaxAnswerBytes);
    if (!envelope || envelope->kind > 1) {
      return end({base::Code::unavailable, stream_.remote() + " does not speak as a memory node: is the port right?"});
    }
    envelope_ = *envelope;
    if (input.size() < kEnvelopeBytes + envelope->length) return stream_.need(kEnvelopeBytes + envelope->length);
    end({});
  }
  void on_closed(const base::Status& why) noexcept override {
    end(why.ok() ? base::Status(base::Code::unavailable, stream_.remote() + " closed the connection without an answer")
                 : why);
  }
  void fire() noexcept override {
    end({base::Code::timed_out, stream_.remote() + " did not answer before the deadline"});
  }

 private:
  void end(base::Status status) {
    if (!waiter_) return;
    status_ = std::move(status);
    std::exchange(waiter_, {}).resume();
  }
  Port& port_;
  net::Stream& stream_;
  std::coroutine_handle<> waiter_;
  base::Status status_;
  Envelope envelope_;
};

}  // namespace

LoopPort::LoopPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, SlabSource* registered)
    : Port(registered), loop_(loop), tls_(std::move(tls)), soon_(loop), alarm_(loop, [this] {
        alarm_at_ = base::kNever;
        timers_.fire_due(now());
        wake(timers_.next());
      }) {}

std::uint64_t LoopPort::random() {
  if (entropy_left_ == 0) {
    // At most 256 bytes at once come whole and uninterrupted; the seed has long been there.
    for (std::size_t i = 0; i < entropy_.size(); i += 32) FARPOOL_CHECK(::getrandom(&entropy_[i], 256, 0) == 256);
    entropy_left_ = entropy_.size();
  }
  return std::exchange(entropy_[--entropy_left_], 0);
}

void LoopPort::arm(Timer& timer) {
  timers_.arm(timer);
  wake(timer.when);
}

void LoopPort::disarm(Timer& timer) { timers_.disarm(timer); }

void LoopPort::fire_soon(Timer& timer) { soon_.add(timer); }

void LoopPort::Soon::add(Timer& timer) {
  timers_.push_back(&timer);
  loop_.before_turn_end(*this);
}

void LoopPort::Soon::on_turn_end() noexcept {
  std::swap(timers_, firing_);
  for (Timer* const timer : firing_) timer->fire();
  firing_.clear();
}

// If an alarm is early, it finds nothing due and is set again: that is cheaper than moving it whenever a timer goes.
void LoopPort::wake(Nanos when) {
  if (when >= alarm_at_) return;
  alarm_at_ = when;
  alarm_.set(when);
}

task::Task<base::Result<LoopPort::Answer>> LoopPort::greet(std::string endpoint, std::string node_name,
                                                           std::shared_ptr<net::Tls> tls, Greeting kind,
                                                           std::string body, Nanos deadline) {
  if (deadline <= now()) {
    co_return base::Status(base::Code::timed_out, "asking " + endpoint + ": the deadline had passed before it began");
  }
  auto dialled = co_await Dialing{loop_, endpoint, tls, deadline};
  if (!dialled.ok()) co_return dialled.status();
  Answer answer{.welcome = Welcome::refused, .body = {}, .stream = std::move(*dialled)};
  net::Stream& stream = *answer.stream;
  if (tls) {
    const net::Identity& peer = stream.peer();
    if (peer.role != net::kRoleNode || peer.pool_uid != tls->self().pool_uid) {
      co_return base::Status(base::Code::forbidden, endpoint + " is " + peer.role + " " + peer.name + " of pool " +
                                                        peer.pool_uid + ", not a memory node of this pool");
    }
    if (!node_name.empty() && peer.name != node_name) {
      co_return base::Status(base::Code::forbidden, endpoint + " is memory node " + peer.name +
                                                        " by its certificate, not " + node_name +
                                                        ", which the shard map has there");
    }
  }
  if (auto said = co_await say(answer, kind, std::move(body), deadline); !said.ok()) co_return said;
  co_return std::move(answer);
}

task::Task<base::Status> LoopPort::say(Answer& answer, Greeting kind, std::string body, Nanos deadline) {
  net::Stream& stream = *answer.stream;
  put_envelope(stream.reserve(kEnvelopeBytes),
               {.kind = static_cast<std::uint32_t>(kind), .length = static_cast<std::uint32_t>(body.size())});
  stream.write(body);
  const auto envelope = co_await Reception(*this, stream, deadline);
  if (!envelope.ok()) co_return envelope.status();
  answer.welcome = static_cast<Welcome>(envelope->kind);
  answer.body = base::text_of(stream.input().subspan(kEnvelopeBytes, envelope->length));
  stream.consume(kEnvelopeBytes + envelope->length);
  co_return base::Status();
}

task::Task<base::Result<std::string>> LoopPort::exchange_with(std::string node_name, std::string endpoint,
                                                              std::string request, Nanos deadline) {
  if (request.size() > kMaxRequestBytes) {
    co_return base::Status(
        base::Code::invalid_argument,
        "a request of " + std::to_string(request.size()) + " bytes is longer than " + std::to_string(kMaxRequestBytes));
  }
  auto answer = co_await greet(endpoint, std::move(node_name), tls_, Greeting::exchange, std::move(request), deadline);
  if (!answer.ok()) co_return answer.status();
  if (answer->welcome != Welcome::accepted) {
    co_return base::Status(base::Code::forbidden, endpoint + " refused the request: this certificate may not make it");
  }
  co_return std::move(answer->body);
}

task::Task<base::Result<LoopPort::Begun>> LoopPort::begin_lane(Greeting kind, const LaneGrant& grant,
                                                               std::string request, Nanos deadline) {
  std::string body(base::text_of(grant.token));
  body += request;
  auto answer = co_await greet(grant.endpoint, grant.node_name, tls_, kind, std::move(body), deadline);
  if (!answer.ok()) co_return answer.status();
  if (answer->welcome != Welcome::accepted) {
    co_return base::Status(
        base::Code::forbidden,
        grant.endpoint + " refused the lane: " +
            (answer->body.empty() ? "its token is unknown, spent or too old; begin a new session" : answer->body));
  }
  co_return Begun{.answer = std::move(answer->body), .stream = std::move(answer->stream)};
}

task::Task<base::Result<LoopPort::Begun>> LoopPort::begin_lane_by_proof(std::string address, const Token& token,
                                                                        Nanos deadline) {
  const net::Nonce ours = net::draw_nonce();
  std::string body(base::text_of(net::prove(token, kNameOfToken)));
  body += base::text_of(ours);
  auto answer = co_await greet(address, "", nullptr, Greeting::proof, std::move(body), deadline);
  if (!answer.ok()) co_return answer.status();
  if (answer->welcome == Welcome::accepted) {
    if (answer->body.size() != kProofBytes) {
      co_return base::Status(base::Code::forbidden, address + " answers with no proof that it is the memory node");
    }
    net::Nonce theirs;
    std::memcpy(theirs.data(), answer->body.data() + sizeof(net::Proof), theirs.size());
    if (!net::same_proof(net::prove(token, kProofOfNode, ours, theirs),
                         base::bytes_of(answer->body).first(sizeof(net::Proof)))) {
      co_return base::Status(base::Code::forbidden,
                             address + " does not know the lane's token: it is not the memory node");
    }
    std::string proof(base::text_of(net::prove(token, kProofOfClient, ours, theirs)));
    if (auto said = co_await say(*answer, Greeting::lane, std::move(proof), deadline); !said.ok()) co_return said;
  }
  if (answer->welcome != Welcome::accepted) {
    co_return base::Status(base::Code::forbidden, address + " refused the lane: it knows no such token");
  }
  co_return Begun{.answer = std::move(answer->body), .stream = std::move(answer->stream)};
}

}  // namespace farpool::fabric::session_port
