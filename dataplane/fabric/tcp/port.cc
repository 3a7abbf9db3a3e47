// SPDX-License-Identifier: Apache-2.0
#include "fabric/tcp/port.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/cost.h"
#include "fabric/tcp/frame.h"
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
    send_waiting(length);
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

  // Sends what may go, in the order of posting: a CALL for data that finds too many under way waits, and all behind it.
  // `newest_length`: of the newest chain, if the caller knows it.
  void send_waiting(std::size_t newest_length = 0) {
    for (; waiting_ != nullptr; waiting_ = waiting_->next) {
      if (is_service_call(waiting_->ops[0])) {
        if (calls_ == kCallsInFlight) return;
        ++calls_;
      }
      waiting_->tag = ++last_id_;
      const bool known = waiting_ == newest_ && newest_length != 0;
      put_chain(stream_->reserve(known ? newest_length : chain_length(waiting_->ops)), waiting_->tag, waiting_->ops,
                regions_);
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

std::string rings_address(const std::string& directory, std::uint64_t node_incarnation) {
  std::array<char, 17> name{};
  std::snprintf(name.data(), name.size(), "%016llx", static_cast<unsigned long long>(node_incarnation));
  return "shm:" + directory + "/" + name.data() + ".lanes";
}

TcpPort::TcpPort(net::Loop& loop, std::shared_ptr<net::Tls> tls, std::string rings)
    : LoopPort(loop, std::move(tls)), rings_(std::move(rings)), self_(std::make_shared<TcpPort*>(this)) {}

TcpPort::~TcpPort() {
  FARPOOL_CHECK(first_completed_ == nullptr);
  *self_ = nullptr;
}

Caps wire_caps() {
  return {.max_chain = kMaxChain,
          .max_verb_bytes = kMaxVerbBytes,
          .calls_in_flight = kCallsInFlight,
          .call_bytes = kMaxServiceBytes,
          .retry_time = kRetryTime};
}

task::Task<base::Result<std::unique_ptr<Lane>>> TcpPort::open_lane(LaneGrant grant, Nanos deadline) {
  base::Result<Begun> begun = base::Status(base::Code::unavailable, "no rings");
  // Half of the time is left for the session port, should the owner of the rings' socket say nothing.
  if (!rings_.empty()) {
    begun = co_await begin_lane_by_proof(rings_address(rings_, grant.node_incarnation), grant.token,
                                         now() + (deadline - now()) / 2);
  }
  // Nobody there: the memory node is on another host, or offers no rings. Or somebody who does not know the token: who
  // does is on the session port, and shows a certificate. The token is unspent, unless the answer to the client's proof
  // was lost.
  if (!begun.ok()) begun = co_await begin_lane(session_port::Greeting::lane, grant, {}, deadline);
  if (!begun.ok()) co_return begun.status();
  std::unique_ptr<Lane> lane = std::make_unique<TcpLane>(*this, std::move(grant), std::move(begun->stream));
  co_return std::move(lane);
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
