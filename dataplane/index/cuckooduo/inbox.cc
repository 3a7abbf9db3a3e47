// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/inbox.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/time.h"
#include "layout/kv_call.h"

namespace farpool::cuckooduo {

using base::Code;
using base::Nanos;
using base::Result;
using fabric::Fate;
using fabric::Op;
using layout::KvRequest;
using layout::KvStatus;
using task::Task;

namespace {

// Returns what an error means to the client that has asked. Nothing: its outcome is not known, or the owner is none any
// more, and the next one answers.
std::optional<KvStatus> status_of(Code code) {
  switch (code) {
    case Code::ok:
      return KvStatus::done;
    case Code::stale:
      return KvStatus::version;
    case Code::out_of_memory:
      return KvStatus::full;
    case Code::timed_out:
      return KvStatus::late;
    case Code::too_large:
      return KvStatus::long_value;
    case Code::corrupt:
      return KvStatus::damaged;
    default:
      return std::nullopt;
  }
}

}  // namespace

Inbox::Inbox(session::Session& session, Owner& owner) : session_(session), owner_(owner), ended_(session.port()) {}
Inbox::~Inbox() { FARPOOL_CHECK(!open_ && scope_.running() == 0); }

void Inbox::open() {
  FARPOOL_CHECK(!open_ && owner_.owns() && owner_.site().records > 0);
  open_ = true;
  ++term_;
  closing_ = closed_ = lost_ = false;
  for (Way& way : ways_) {
    if (way.asked.size() > 0) continue;
    way.asked = session_.port().buffer(kLongestTurn);
    way.told =
        session_.port().buffer(std::min<std::uint64_t>(session_.port().caps().call_bytes, fabric::kMaxServiceBytes));
  }
  go_on();
}

Task<void> Inbox::close(Nanos deadline) {
  if (!open_) co_return;
  closing_ = true;
  go_on();
  while (scope_.running() > 0) {
    if (now() >= deadline && session_.alive()) {
      session_.end({Code::timed_out, "requests of other clients were not answered in time"});
    }
    (void)co_await ended_.wait(std::max(deadline, now() + session_.grant().failure_timeout));
  }
  answers_.clear();
  open_ = false;
}

// Begins a turn if there is something to say or to wait for. Whatever changes one or the other calls it.
void Inbox::go_on() {
  for (Way& way : ways_) {
    if (way.busy || lost_ || !session_.alive()) continue;
    const bool waits = ways_[0].busy || ways_[1].busy;
    const bool tells = !answers_.empty() || (closing_ && !closed_);
    if (tells || (!closing_ && !waits)) scope_.spawn(turn(way));
  }
}

Task<void> Inbox::turn(Way& way) {
  way.busy = true;
  const std::size_t count = std::min(answers_.size(), kMostAnswers);
  const bool closing = closing_;
  if (closing) closed_ = true;
  const std::size_t bytes = put_turn({static_cast<std::uint32_t>(owner_.site().table), closing, term_, {}},
                                     std::span(answers_).first(count), way.asked.span());
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(count));
  // It waits for as long as no client asks for anything. If the memory node has ended, so has the session.
  const std::array chain{Op::call(kTurnCall, way.asked.first(bytes), way.told.span())};
  const fabric::Outcome outcome = co_await session_.post(chain, base::kNever, cost_);
  std::optional<TurnRequests> requests;
  if (outcome.fate == Fate::done) requests = TurnRequests::parse(way.told.first(outcome.reply_bytes));
  if (!requests || requests->status() != KvStatus::done) lost_ = true;
  while (requests && requests->left() > 0) {
    const Handed handed = requests->next();
    scope_.spawn(carry_out(
        {handed.ticket, handed.record, handed.again, std::vector(handed.request.begin(), handed.request.end())}));
  }
  way.busy = false;
  go_on();
  ended_.wake_all();
}

Task<void> Inbox::carry_out(Work work) {
  Answer answer{.ticket = work.ticket, .record = work.record};
  KvRequest request;
  answer.status = get_kv_request(work.request, request);
  if (answer.status == KvStatus::done) answer.status = check_change(request, owner_.site().table);
  if (work.record >= owner_.site().records || work.ticket == 0) answer.status = KvStatus::malformed;
  bool answers = true;
  if (const auto existed = work.again ? owner_.outcome(work.record, work.ticket) : std::nullopt) {
    ++counts_.known;
    answer.flags = *existed ? layout::KvReply::kExisted : std::uint16_t{0};
  } else if (answer.status == KvStatus::done) {
    ++counts_.carried_out;
    Wish wish = wish_of(request.op, base::text_of(request.value));
    wish.if_version = request.version;
    wish.ticket = work.ticket;
    wish.record = work.record;
    const auto patience = static_cast<Nanos>(std::min<std::uint64_t>(request.generation, 3600 * base::kSecond));
    const Result<bool> existed = co_await owner_.change(base::text_of(request.key), wish, now() + patience, cost_);
    const std::optional<KvStatus> status = status_of(existed.code());
    answers = status.has_value();
    answer.status = status.value_or(KvStatus::done);
    if (existed.ok() && *existed) answer.flags = layout::KvReply::kExisted;
  }
  if (answers) answers_.push_back(answer);
  go_on();
  ended_.wake_all();
}

}  // namespace farpool::cuckooduo
