// SPDX-License-Identifier: Apache-2.0
// What clients of a table say to each other over the memory node (relay.h). A client that does not own the table asks
// for a change by a request of layout/kv_call.h. The owner's turns bring answers, and take requests back. Pure, and
// strict with what came from outside.
//
// A request's generation is how long its client waits, in nanoseconds; place, argument and move are 0.
//
// OFFSET SIZE  turn
//      0    4  table
//      4    2  flags    1: the owner takes no more requests
//      6    2  answers  how many follow
//      8    8  term     goes up each time that the client becomes the owner: turns have no order
//     16  16*n each: ticket (8), record (4), status (2, KvStatus), flags (2, of KvReply)
//
// OFFSET SIZE  its reply
//      0    2  status   KvStatus; a refusal has no requests
//      2    2  requests how many follow
//      4    4  zero
//      8       each: ticket (8), record (4), flags (4; 1: handed to an owner before), bytes (4), zero (4), the request
//
// OFFSET SIZE  withdrawal: the client waits no longer; its reply is empty
//      0    4  table
//      4    4  zero
//      8    8  request id
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "fabric/fabric.h"
#include "layout/kv_call.h"

namespace farpool::cuckooduo {

inline constexpr std::uint32_t kChangeCall = fabric::kFirstServiceOpcode;
inline constexpr std::uint32_t kTurnCall = kChangeCall + 1;
inline constexpr std::uint32_t kWithdrawCall = kChangeCall + 2;

// Says why a request is none that a table's owner carries out, or done.
layout::KvStatus check_change(const layout::KvRequest& request, std::uint64_t table);

struct Answer {
  std::uint64_t ticket = 0;  // names a request that the owner was handed
  std::uint32_t record = 0;
  layout::KvStatus status = layout::KvStatus::done;
  std::uint16_t flags = 0;
  friend bool operator==(const Answer&, const Answer&) = default;
};
inline constexpr std::size_t kTurnHead = 16, kAnswerBytes = 16;
inline constexpr std::size_t kMostAnswers = 64;  // of a turn
inline constexpr std::size_t kLongestTurn = kTurnHead + kMostAnswers * kAnswerBytes;

struct Turn {
  std::uint32_t table = 0;
  bool closing = false;
  std::uint64_t term = 0;
  base::Bytes answers;

  std::size_t count() const { return answers.size() / kAnswerBytes; }
  Answer answer(std::size_t i) const;
};
// Writes a turn with these answers, kMostAnswers at most, and returns its length: `into` has room for it.
std::size_t put_turn(const Turn& turn, std::span<const Answer> answers, base::MutableBytes into);
// Returns nothing if these bytes are no turn.
std::optional<Turn> get_turn(base::Bytes bytes);

// A request that an owner is handed.
struct Handed {
  std::uint64_t ticket = 0;
  std::uint32_t record = 0;
  bool again = false;  // another owner was handed it before
  base::Bytes request;
};
inline constexpr std::size_t kTurnReplyHead = 8, kHandedHead = 24;
// The room that a turn gives for its reply, at the least.
inline constexpr std::size_t kLeastTurnReply = kTurnReplyHead + kHandedHead + layout::kv_request_bytes(256, 256);

// Writes the reply to a turn.
class TurnReply {
 public:
  // `into` has room for the head.
  TurnReply(layout::KvStatus status, base::MutableBytes into);
  // Returns false if there is no room for the request.
  bool add(const Handed& handed);
  std::size_t bytes() const { return bytes_; }
  std::size_t requests() const { return requests_; }

 private:
  const base::MutableBytes into_;
  std::size_t bytes_ = kTurnReplyHead, requests_ = 0;
};
// Takes the requests off a reply, one after the other.
class TurnRequests {
 public:
  // Returns nothing if these bytes are no reply to a turn.
  static std::optional<TurnRequests> parse(base::Bytes bytes);
  layout::KvStatus status() const { return status_; }
  std::size_t left() const { return left_; }
  // There must be one left.
  Handed next();

 private:
  layout::KvStatus status_ = layout::KvStatus::done;
  std::size_t left_ = 0;
  base::Bytes rest_;
};

struct Withdrawal {
  std::uint32_t table = 0;
  std::uint32_t zero = 0;
  std::uint64_t request_id = 0;
};
static_assert(base::wire_safe<Withdrawal> && sizeof(Withdrawal) == 16);

}  // namespace farpool::cuckooduo
