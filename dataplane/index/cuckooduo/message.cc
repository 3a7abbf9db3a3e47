// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/message.h"

#include <algorithm>

#include "base/check.h"

namespace farpool::cuckooduo {

using base::Bytes;
using base::MutableBytes;
using layout::KvOp;
using layout::KvRequest;
using layout::KvStatus;

namespace {

struct TurnHead {
  std::uint32_t table = 0;
  std::uint16_t flags = 0;
  std::uint16_t answers = 0;
  std::uint64_t term = 0;
};
static_assert(base::wire_safe<TurnHead> && sizeof(TurnHead) == kTurnHead);
constexpr std::uint16_t kClosing = 1;

struct AnswerWords {
  std::uint64_t ticket = 0;
  std::uint32_t record = 0;
  std::uint16_t status = 0;
  std::uint16_t flags = 0;
};
static_assert(base::wire_safe<AnswerWords> && sizeof(AnswerWords) == kAnswerBytes);

struct ReplyHead {
  std::uint16_t status = 0;
  std::uint16_t requests = 0;
  std::uint32_t zero = 0;
};
static_assert(base::wire_safe<ReplyHead> && sizeof(ReplyHead) == kTurnReplyHead);

struct HandedHead {
  std::uint64_t ticket = 0;
  std::uint32_t record = 0;
  std::uint32_t flags = 0;
  std::uint32_t bytes = 0;
  std::uint32_t zero = 0;
};
static_assert(base::wire_safe<HandedHead> && sizeof(HandedHead) == kHandedHead);
constexpr std::uint32_t kAgain = 1;

bool is_status(std::uint16_t status) { return status <= static_cast<std::uint16_t>(layout::kLastKvStatus); }

}  // namespace

KvStatus check_change(const KvRequest& request, std::uint64_t table) {
  if (request.table != table) return KvStatus::bad_table;
  if (request.op != KvOp::insert && request.op != KvOp::update && request.op != KvOp::put &&
      request.op != KvOp::remove) {
    return KvStatus::bad_op;
  }
  if (request.place != 0) return KvStatus::bad_place;
  const bool versioned = request.flags == KvRequest::kIfVersion;
  const bool may_be_versioned = request.op == KvOp::update || request.op == KvOp::remove;
  if ((request.flags != 0 && !(versioned && may_be_versioned)) || request.client != 0 || request.move != 0) {
    return KvStatus::malformed;
  }
  return KvStatus::done;
}

Answer Turn::answer(std::size_t i) const {
  const auto words = base::load<AnswerWords>(answers.data() + i * kAnswerBytes);
  return {words.ticket, words.record, static_cast<KvStatus>(words.status), words.flags};
}

std::size_t put_turn(const Turn& turn, std::span<const Answer> answers, MutableBytes into) {
  const std::size_t bytes = kTurnHead + answers.size() * kAnswerBytes;
  FARPOOL_CHECK(answers.size() <= kMostAnswers && bytes <= into.size());
  base::store(into.data(), TurnHead{turn.table, turn.closing ? kClosing : std::uint16_t{0},
                                    static_cast<std::uint16_t>(answers.size()), turn.term});
  for (std::size_t i = 0; i < answers.size(); ++i) {
    base::store(into.data() + kTurnHead + i * kAnswerBytes,
                AnswerWords{answers[i].ticket, answers[i].record, static_cast<std::uint16_t>(answers[i].status),
                            answers[i].flags});
  }
  return bytes;
}

std::optional<Turn> get_turn(Bytes bytes) {
  if (bytes.size() < kTurnHead) return std::nullopt;
  const auto head = base::load<TurnHead>(bytes.data());
  if (head.flags > kClosing || head.answers > kMostAnswers || bytes.size() != kTurnHead + head.answers * kAnswerBytes) {
    return std::nullopt;
  }
  const Turn turn{head.table, head.flags == kClosing, head.term, bytes.subspan(kTurnHead)};
  for (std::size_t i = 0; i < turn.count(); ++i) {
    const auto words = base::load<AnswerWords>(turn.answers.data() + i * kAnswerBytes);
    if (!is_status(words.status) || (words.flags & ~layout::KvReply::kExisted) != 0) return std::nullopt;
  }
  return turn;
}

TurnReply::TurnReply(KvStatus status, MutableBytes into) : into_(into) {
  FARPOOL_CHECK(into.size() >= kTurnReplyHead);
  base::store(into.data(), ReplyHead{static_cast<std::uint16_t>(status), 0, 0});
}

bool TurnReply::add(const Handed& handed) {
  const std::size_t padded = base::round_up(handed.request.size(), 8);
  if (requests_ == UINT16_MAX || into_.size() - bytes_ < kHandedHead + padded) return false;
  std::byte* const at = into_.data() + bytes_;
  base::store(at, HandedHead{handed.ticket, handed.record, handed.again ? kAgain : 0,
                             static_cast<std::uint32_t>(handed.request.size()), 0});
  std::fill(std::copy(handed.request.begin(), handed.request.end(), at + kHandedHead), at + kHandedHead + padded,
            std::byte{0});
  bytes_ += kHandedHead + padded;
  ++requests_;
  auto head = base::load<ReplyHead>(into_.data());
  head.requests = static_cast<std::uint16_t>(requests_);
  base::store(into_.data(), head);
  return true;
}

std::optional<TurnRequests> TurnRequests::parse(Bytes bytes) {
  if (bytes.size() < kTurnReplyHead) return std::nullopt;
  const auto head = base::load<ReplyHead>(bytes.data());
  const auto status = static_cast<KvStatus>(head.status);
  if (!is_status(head.status) || head.zero != 0 || (status != KvStatus::done && head.requests != 0)) {
    return std::nullopt;
  }
  TurnRequests all;
  all.status_ = status;
  all.left_ = head.requests;
  all.rest_ = bytes.subspan(kTurnReplyHead);
  Bytes rest = all.rest_;
  for (std::size_t i = 0; i < all.left_; ++i) {
    if (rest.size() < kHandedHead) return std::nullopt;
    const auto one = base::load<HandedHead>(rest.data());
    const std::size_t padded = base::round_up(std::size_t{one.bytes}, 8);
    if (one.flags > kAgain || one.zero != 0 || rest.size() - kHandedHead < padded) return std::nullopt;
    for (const std::byte byte : rest.subspan(kHandedHead + one.bytes, padded - one.bytes)) {
      if (byte != std::byte{0}) return std::nullopt;
    }
    rest = rest.subspan(kHandedHead + padded);
  }
  if (!rest.empty()) return std::nullopt;
  return all;
}

Handed TurnRequests::next() {
  FARPOOL_CHECK(left_ > 0);
  --left_;
  const auto head = base::load<HandedHead>(rest_.data());
  const Handed handed{head.ticket, head.record, head.flags == kAgain, rest_.subspan(kHandedHead, head.bytes)};
  rest_ = rest_.subspan(kHandedHead + base::round_up(std::size_t{head.bytes}, 8));
  return handed;
}

}  // namespace farpool::cuckooduo
