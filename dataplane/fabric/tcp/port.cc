// SPDX-License-Identifier: Apache-2.0
#include "fabric/tcp/port.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <coroutine>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "fabric/cost.h"
#include "fabric/tcp/frame.h"
#include "net/listener.h"
#include "net/proof.h"
#include "net/stream.h"

namespace farpool::fabric::tcp {

class TcpLane final : public Lane, private net::StreamHandler, private Timer {
 public:
  TcpLane(TcpPort& port, LaneGrant grant, std::unique_ptr<net::Stream> stream)
      : port_(port), regions_(std::move(grant.regions)), stream_(std::move(stream)) {
    stream_->need(kHeaderBytes);
    stream_->start(*this);
  }
  ~TcpLane() override {
    FARPOOL_CHECK(pending_ == 0);
    port_.disarm(*this);
  }

  void enqueue(Posting& posting) noexcept override {
    ++pending_;
    posting.next = nullptr;
    posting.outcome = {};
    if (!open_) {
      finish(posting, refused_ ? Fate::refused : Fate::maybe);
      port_.resume_soon();
      return;
    }
    if (posting.deadline <= port_.now()) {
      sever();
      finish(posting, Fate::maybe);
      port_.resume_soon();
      return;
    }
    const std::size_t length = is_chain(posting.ops) ? chain_length(posting.ops) : 0;
    if (length == 0) {
      // What can have been sent so far may still execute.
      end(true);
      posting.outcome.why = why_no_chain(posting.ops);
      finish(posting, Fate::refused);
      port_.resume_soon();
      return;
    }
    ++stats_.chains;
    stats_.messages += posting.ops.size();
    for (const Op& op : posting.ops) stats_.bytes += wire_bytes(op);
    (newest_ != nullptr ? newest_->next : oldest_) = &posting;
    newest_ = &posting;
    if (waiting_ == nullptr) waiting_ = &posting;
    send_waiting();
    if (posting.deadline < Timer::when) watch(posting.deadline);
  }

  void sever() noexcept override { end(false); }
  bool open() const noexcept override { return open_; }
  std::size_t pending() const noexcept override { return pending_; }

 private:
  friend class TcpPort;

  void on_flush() noexcept override {
    if (!std::exchange(rung_, true)) ++stats_.doorbells;
  }

  void on_input() noexcept override {
    // Waiters resume after the last reply has been taken: one may end this lane, or destroy it.
    TcpPort& port = port_;
    take_replies();
    port.resume_completed();
  }
  void on_closed(const base::Status&) noexcept override { end(false); }

  // What may go, in the order of posting: a CALL for data that finds too many under way waits, and all behind it.
  void send_waiting() {
    for (; waiting_ != nullptr; waiting_ = waiting_->next) {
      if (is_service_call(waiting_->ops[0])) {
        if (calls_ == kCallsInFlight) return;
        ++calls_;
      }
      waiting_->tag = ++last_id_;
      put_chain(stream_->reserve(chain_length(waiting_->ops)), waiting_->tag, waiting_->ops, regions_);
      rung_ = false;
    }
  }

  // Takes the posting of a reply off the waiting postings. Null if no reply may come to it now: only CALLs for data are
  // overtaken.
  Posting* take_posting(std::uint64_t id) {
    Posting* before = nullptr;
    Posting* posting = oldest_;
    while (posting != waiting_ && posting->tag != id) {
      if (!is_service_call(posting->ops[0])) return nullptr;
      before = std::exchange(posting, posting->next);
    }
    if (posting == waiting_) return nullptr;
    (before != nullptr ? before->next : oldest_) = posting->next;
    if (newest_ == posting) newest_ = before;
    if (is_service_call(posting->ops[0])) --calls_;
    return posting;
  }

  void take_replies() {
    while (open_) {
      const base::MutableBytes input = stream_->input();
      if (input.size() < kHeaderBytes) return stream_->need(kHeaderBytes);
      const std::size_t length = frame_length(input);
      if (length == 0) return end(false);
      if (input.size() < length) return stream_->need(length);
      const auto header = get_reply_header(input.first(length));
      Posting* posting = header ? take_posting(header->id) : nullptr;
      if (posting == nullptr) return end(false);
      if (header->refused) {
        end(true);
        posting->outcome.why = header->why;
        return finish(*posting, Fate::refused);
      }
      if (!take_reply(input.first(length), posting->ops, posting->outcome.reply_bytes)) {
        end(false);
        return finish(*posting, Fate::maybe);
      }
      stream_->consume(length);
      finish(*posting, Fate::done);
      send_waiting();
    }
  }

  // Nothing is sent or taken from here on; what is pending may have executed.
  void end(bool refused) {
    if (!std::exchange(open_, false)) return;
    refused_ = refused;
    stream_.reset();
    port_.disarm(*this);
    newest_ = waiting_ = nullptr;
    for (Posting* posting = std::exchange(oldest_, nullptr); posting != nullptr;) {
      Posting* next = posting->next;
      finish(*posting, Fate::maybe);
      posting = next;
    }
    port_.resume_soon();
  }
  void finish(Posting& posting, Fate fate) {
    posting.outcome.fate = fate;
    port_.complete(posting);
  }

  // One timer serves all that is pending: it is set for the earliest deadline seen, and looks again when it fires.
  void watch(Nanos when) {
    port_.disarm(*this);
    Timer::when = when;
    if (when != base::kNever) port_.arm(*this);
  }
  void fire() noexcept override {
    Nanos earliest = base::kNever;
    for (const Posting* posting = oldest_; posting != nullptr; posting = posting->next) {
      earliest = std::min(earliest, posting->deadline);
    }
    if (earliest <= port_.now()) return sever();
    Timer::when = base::kNever;
    watch(earliest);
  }

  TcpPort& port_;
  const std::vector<LaneGrant::Region> regions_;
  std::unique_ptr<net::Stream> stream_;
  Posting* oldest_ = nullptr;  // sent or to be sent, in order
  Posting* newest_ = nullptr;
  Posting* waiting_ = nullptr;  // the first of them that is not sent
  std::uint32_t calls_ = 0;     // for data, sent
  std::uint64_t last_id_ = 0;
  std::size_t pending_ = 0;
  bool open_ = true;
  bool refused_ = false;
  bool rung_ = true;  // no chain is queued that has not left
};

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
    stream_.need(kHeaderBytes);
    stream_.start(*this);
  }
  base::Result<Envelope> await_resume() {
    port_.disarm(*this);
    if (!status_.ok()) return status_;
    return envelope_;
  }

  void on_input() noexcept override {
    const base::MutableBytes input = stream_.input();
    const auto envelope = get_envelope(input.first(kHeaderBytes), kMaxAnswerBytes);
    if (!envelope || envelope->kind > 1) {
      return end({base::Code::unavailable, stream_.remote() + " does not speak as a memory node: is the port right?"});
    }
    envelope_ = *envelope;
    if (input.size() < kHeaderBytes + envelope->length) return stream_.need(kHeaderBytes + envelope->length);
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

std::string rings_address(const std::string& directory, std::uint64_t node_incarnation) {
  std::array<char, 17> name{};
  std::snprintf(name.data(), name.size(), "%016llx", static_cast<unsigned long long>(node_incarnation));
  return "shm:" + directory + "/" + name.data() + ".lanes";
}

TcpPort::TcpPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, std::string rings)
    : loop_(loop),
      tls_(std::move(tls)),
      rings_(std::move(rings)),
      alarm_(loop,
             [this] {
               alarm_at_ = base::kNever;
               timers_.fire_due(now());
               wake(timers_.next());
             }),
      self_(std::make_shared<TcpPort*>(this)) {}

TcpPort::~TcpPort() {
  FARPOOL_CHECK(first_completed_ == nullptr);
  *self_ = nullptr;
}

Caps wire_caps() {
  return {.masked_cas = true,
          .max_chain = kMaxChain,
          .max_verb_bytes = kMaxVerbBytes,
          .calls_in_flight = kCallsInFlight,
          .call_bytes = kMaxServiceBytes,
          .retry_time = kRetryTime};
}

std::uint64_t TcpPort::random() {
  if (entropy_left_ == 0) {
    // At most 256 bytes at once come whole and uninterrupted; the seed has long been there.
    for (std::size_t i = 0; i < entropy_.size(); i += 32) FARPOOL_CHECK(::getrandom(&entropy_[i], 256, 0) == 256);
    entropy_left_ = entropy_.size();
  }
  return std::exchange(entropy_[--entropy_left_], 0);
}

task::Task<base::Result<TcpPort::Answer>> TcpPort::greet(std::string endpoint, std::string node_name,
                                                         std::shared_ptr<net::Tls> tls, Greeting kind, std::string body,
                                                         Nanos deadline) {
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

task::Task<base::Status> TcpPort::say(Answer& answer, Greeting kind, std::string body, Nanos deadline) {
  net::Stream& stream = *answer.stream;
  put_envelope(stream.reserve(kHeaderBytes),
               {.kind = static_cast<std::uint32_t>(kind), .length = static_cast<std::uint32_t>(body.size())});
  stream.write(body);
  const auto envelope = co_await Reception(*this, stream, deadline);
  if (!envelope.ok()) co_return envelope.status();
  answer.welcome = static_cast<Welcome>(envelope->kind);
  answer.body = base::text_of(stream.input().subspan(kHeaderBytes, envelope->length));
  stream.consume(kHeaderBytes + envelope->length);
  co_return base::Status();
}

task::Task<base::Result<std::string>> TcpPort::exchange_with(std::string node_name, std::string endpoint,
                                                             std::string request, Nanos deadline) {
  if (request.size() > kMaxRequestBytes) {
    co_return base::Status(
        base::Code::invalid_argument,
        "a request of " + std::to_string(request.size()) + " bytes is longer than " + std::to_string(kMaxRequestBytes));
  }
  auto answer = co_await ask(endpoint, std::move(node_name), Greeting::exchange, std::move(request), deadline);
  if (!answer.ok()) co_return answer.status();
  if (answer->welcome != Welcome::accepted) {
    co_return base::Status(base::Code::forbidden, endpoint + " refused the request: this certificate may not make it");
  }
  co_return std::move(answer->body);
}

task::Task<base::Result<std::unique_ptr<Lane>>> TcpPort::open_lane(LaneGrant grant, Nanos deadline) {
  base::Result<Answer> answer = base::Status(base::Code::unavailable, "no rings");
  // Half of the time is left for the session port, should the owner of the rings' socket say nothing.
  if (!rings_.empty()) answer = co_await open_over_rings(grant, now() + (deadline - now()) / 2);
  // Nobody there: the memory node is on another host, or offers no rings. Or somebody who does not know the token: who
  // does is on the session port, and shows a certificate. The token is unspent, unless the answer to the client's proof
  // was lost.
  if (!answer.ok() || answer->welcome != Welcome::accepted) {
    if (answer.ok()) answer->stream.reset();  // nobody listens to it from here on
    answer = co_await ask(grant.endpoint, grant.node_name, Greeting::lane, std::string(base::text_of(grant.token)),
                          deadline);
  }
  if (!answer.ok()) co_return answer.status();
  if (answer->welcome != Welcome::accepted) {
    co_return base::Status(
        base::Code::forbidden,
        grant.endpoint + " refused the lane: " +
            (answer->body.empty() ? "its token is unknown, spent or too old; begin a new session" : answer->body));
  }
  std::unique_ptr<Lane> lane = std::make_unique<TcpLane>(*this, std::move(grant), std::move(answer->stream));
  co_return std::move(lane);
}

// The token itself is never sent: the listener there has shown no certificate, and might use the token.
task::Task<base::Result<TcpPort::Answer>> TcpPort::open_over_rings(const LaneGrant& grant, Nanos deadline) {
  const std::string rings = rings_address(rings_, grant.node_incarnation);
  const base::Bytes token(grant.token);
  const net::Nonce ours = net::draw_nonce();
  std::string body(base::text_of(net::prove(token, kNameOfToken)));
  body += base::text_of(ours);
  auto answer = co_await greet(rings, "", nullptr, Greeting::proof, std::move(body), deadline);
  if (!answer.ok() || answer->welcome != Welcome::accepted) co_return std::move(answer);
  if (answer->body.size() != kProofBytes) {
    co_return base::Status(base::Code::forbidden, rings + " answers with no proof that it is the memory node");
  }
  net::Nonce theirs;
  std::memcpy(theirs.data(), answer->body.data() + sizeof(net::Proof), theirs.size());
  if (!net::same_proof(net::prove(token, kProofOfNode, ours, theirs),
                       base::bytes_of(answer->body).first(sizeof(net::Proof)))) {
    co_return base::Status(base::Code::forbidden, rings + " does not know the lane's token: it is not the memory node");
  }
  std::string proof(base::text_of(net::prove(token, kProofOfClient, ours, theirs)));
  if (auto said = co_await say(*answer, Greeting::lane, std::move(proof), deadline); !said.ok()) co_return said;
  co_return std::move(answer);
}

void TcpPort::arm(Timer& timer) {
  timers_.arm(timer);
  wake(timer.when);
}

void TcpPort::disarm(Timer& timer) { timers_.disarm(timer); }

// An alarm that is early finds nothing due and is set again: cheaper than moving it with every timer that goes.
void TcpPort::wake(Nanos when) {
  if (when >= alarm_at_) return;
  alarm_at_ = when;
  alarm_.set(when);
}

void TcpPort::complete(Posting& posting) {
  posting.next = nullptr;
  (last_completed_ != nullptr ? last_completed_->next : first_completed_) = &posting;
  last_completed_ = &posting;
}

void TcpPort::resume_soon() {
  if (std::exchange(resume_posted_, true)) return;
  loop_.post([self = self_] {
    if (*self == nullptr) return;
    (*self)->resume_posted_ = false;
    (*self)->resume_completed();
  });
}

// Only what has completed by now: what a waiter posts to a lane that has ended waits for the next turn.
void TcpPort::resume_completed() {
  last_completed_ = nullptr;
  for (Posting* posting = std::exchange(first_completed_, nullptr); posting != nullptr;) {
    Posting* next = posting->next;
    --static_cast<TcpLane&>(posting->lane).pending_;
    posting->waiter.resume();  // the posting may be gone
    posting = next;
  }
}

}  // namespace farpool::fabric::tcp
