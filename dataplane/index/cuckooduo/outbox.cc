// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/outbox.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/once.h"
#include "index/operation.h"
#include "session/trips.h"

namespace farpool::cuckooduo {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using layout::KvOp;
using layout::KvRequest;
using layout::KvStatus;
using task::Task;

// A request that has no answer yet.
class Outbox::Waits {
 public:
  Waits(Outbox& outbox, std::uint64_t id, Nanos deadline)
      : id(id), since(outbox.now()), deadline(deadline), outbox_(outbox), next_(outbox.first_) {
    if (next_ != nullptr) next_->before_ = this;
    outbox.first_ = this;
    ++outbox.in_flight_;
  }
  Waits(const Waits&) = delete;
  ~Waits() {
    (before_ != nullptr ? before_->next_ : outbox_.first_) = next_;
    if (next_ != nullptr) next_->before_ = before_;
    --outbox_.in_flight_;
    outbox_.room_.wake_one();
    if (outbox_.first_ == nullptr) outbox_.over_.wake_all();
  }
  Waits* next() const { return next_; }

  const std::uint64_t id;
  const Nanos since, deadline;

 private:
  Outbox& outbox_;
  Waits* next_;
  Waits* before_ = nullptr;
};

Outbox::Outbox(session::Session& session, const Site& site, std::function<void()> on_silence)
    : session_(session),
      site_(site),
      on_silence_(std::move(on_silence)),
      over_(session.port()),
      room_(session.port()) {}
Outbox::~Outbox() { FARPOOL_CHECK(first_ == nullptr && !watching_); }

Task<Result<Outbox::Asked>> Outbox::ask(KvOp op, std::string_view key, std::string_view value, std::uint64_t version,
                                        Nanos deadline, Cost& cost) {
  if (Status status = index::check_sizes(key, value.size()); !status.ok()) co_return status;
  // One CALL more than a lane may have would keep everything behind it waiting.
  const std::uint32_t most = session_.port().caps().calls_in_flight;
  while (in_flight_ + kOtherCalls >= most) {
    if (!co_await room_.wait(deadline) && in_flight_ + kOtherCalls >= most) {
      co_return Status(Code::timed_out,
                       "the table's owner has as many requests of this client as there may be, and has "
                       "not answered in time; nothing was done");
    }
  }
  const std::uint64_t id = fabric::RequestId{0, ++last_id_}.word();
  const Nanos left = std::max<Nanos>(deadline - now(), 0);
  const KvRequest request{.op = op,
                          .flags = version != 0 ? KvRequest::kIfVersion : std::uint8_t{0},
                          .table = static_cast<std::uint32_t>(site_.table),
                          .generation = static_cast<std::uint64_t>(left),
                          .request_id = id,
                          .version = version,
                          .key = base::bytes_of(key),
                          .value = base::bytes_of(value)};
  const std::size_t length = layout::kv_request_bytes(key.size(), value.size());
  const std::uint64_t longest = session_.port().caps().call_bytes;
  if (length + kTurnReplyHead + kHandedHead > longest) {
    co_return Status(Code::too_large, "a request of " + std::to_string(length) + " bytes, where this wire carries " +
                                          std::to_string(longest) + " with all around it; nothing was done");
  }
  const fabric::Buffer bytes = session_.port().buffer(length), room = session_.port().buffer(layout::kKvReplyHead);
  std::size_t written = 0;
  FARPOOL_CHECK(put_kv_request(request, bytes.span(), written) == KvStatus::done);
  const Waits waits(*this, id, deadline);
  if (!watching_) session_.background().spawn(watch());
  // Behind the deadline the request is withdrawn. If an owner has it by then, either that owner answers or it is fenced
  // and the next one answers; a wait beyond that ends the session.
  const std::array chain{Op::call(kChangeCall, bytes.first(written), room.first(layout::kKvReplyHead))};
  const Nanos last = std::max(deadline, now()) + 16 * session_.grant().failure_timeout;
  const fabric::Outcome outcome = co_await session_.post(chain, last, cost);
  co_return judge(outcome, room.first(std::min<std::size_t>(outcome.reply_bytes, room.size())));
}

Result<Outbox::Asked> Outbox::judge(const fabric::Outcome& outcome, base::Bytes bytes) const {
  if (outcome.fate == Fate::refused) {
    return session::gone(session_, Code::unavailable, "the memory node has refused a request to the table's owner");
  }
  if (outcome.fate != Fate::done) {
    return session::gone(session_, Code::unknown_outcome,
                         "the session ended before the table's owner had answered: a change may have taken effect");
  }
  layout::KvReply reply;
  if (!get_kv_reply(bytes, reply)) {
    return Status(Code::corrupt, "the memory node replied to a change with bytes that are no reply");
  }
  const std::string why = std::string("the table's owner does not carry a change out: ") + text_of(reply.status);
  switch (reply.status) {
    case KvStatus::done:
    case KvStatus::version:
    case KvStatus::no_owner:
    case KvStatus::busy:
      return Asked{reply.status, (reply.flags & layout::KvReply::kExisted) != 0};
    case KvStatus::full:
      return Status(Code::out_of_memory, why);
    case KvStatus::late:
      return Status(Code::timed_out, why);
    case KvStatus::long_key:
    case KvStatus::long_value:
      return Status(Code::too_large, why);
    case KvStatus::damaged:
      return Status(Code::corrupt, why);
    default:
      return Status(Code::internal, why);
  }
}

// Looks after the requests that have no answer: says that the owner is silent, and withdraws those whose deadline has
// passed, until they have an answer: CALLs have no order, so that a withdrawal may come before its request.
Task<void> Outbox::watch() {
  watching_ = true;
  std::vector<std::uint64_t> overdue;
  while (first_ != nullptr && session_.alive()) {
    Nanos next = now() + patience();
    for (const Waits* one = first_; one != nullptr; one = one->next()) {
      if (one->deadline > now()) next = std::min(next, one->deadline);
    }
    (void)co_await over_.wait(next);
    bool silent = false;
    overdue.clear();
    for (const Waits* one = first_; one != nullptr; one = one->next()) {
      silent |= now() - one->since >= 2 * patience();
      if (now() >= one->deadline) overdue.push_back(one->id);
    }
    for (const std::uint64_t id : overdue) co_await withdraw(id);
    if (!silent) continue;
    ++counts_.silences;
    on_silence_();
  }
  watching_ = false;
}

Task<void> Outbox::withdraw(std::uint64_t request_id) {
  ++counts_.withdrawals;
  const fabric::Buffer bytes = session_.port().buffer(sizeof(Withdrawal)), room = session_.port().buffer(8);
  base::store(bytes.data(), Withdrawal{static_cast<std::uint32_t>(site_.table), 0, request_id});
  const std::array chain{Op::call(kWithdrawCall, bytes.first(sizeof(Withdrawal)), room.first(8))};
  Cost cost;
  (void)co_await session_.post(chain, now() + session_.grant().failure_timeout, cost);
}

}  // namespace farpool::cuckooduo
