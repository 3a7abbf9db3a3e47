// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/relay.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/marks.h"
#include "fabric/words.h"
#include "index/cuckooduo/record.h"
#include "layout/lease.h"

namespace farpool::cuckooduo {

using base::Bytes;
using base::MutableBytes;
using fabric::Served;
using fabric::Ticket;
using layout::KvRequest;
using layout::KvStatus;

namespace {

Served reply(fabric::Call& call, KvStatus status) {
  return Served::done(layout::put_kv_reply({.status = status}, call.reply));
}

}  // namespace

class Relay::Outgoing {
 public:
  ~Outgoing() {
    for (auto& [ticket, status, flags] : replies_) {
      std::array<std::byte, layout::kKvReplyHead> bytes{};
      const std::size_t length = layout::put_kv_reply({.status = status, .flags = flags}, bytes);
      ticket.answer(Bytes(bytes).first(length));
    }
    if (turn_) turn_.answer(Bytes(bytes_));
  }
  void add(Ticket ticket, KvStatus status, std::uint16_t flags = 0) {
    if (ticket) replies_.push_back({std::move(ticket), status, flags});
  }
  // Destroys it when the lock is free.
  void drop(Ticket ticket) { dropped_.push_back(std::move(ticket)); }
  void answer_turn(Ticket turn, Bytes bytes) {
    turn_ = std::move(turn);
    bytes_.assign(bytes.begin(), bytes.end());
  }

 private:
  struct Reply {
    Ticket ticket;
    KvStatus status = KvStatus::done;
    std::uint16_t flags = 0;
  };
  std::vector<Reply> replies_;
  std::vector<Ticket> dropped_;
  Ticket turn_;
  std::vector<std::byte> bytes_;
};

class Relay::Locked {
 public:
  explicit Locked(const Relay& relay) : relay_(relay) {
    while (relay_.taken_.exchange(true, std::memory_order_acquire)) {
    }
  }
  Locked(const Locked&) = delete;
  ~Locked() { relay_.taken_.store(false, std::memory_order_release); }

 private:
  const Relay& relay_;
};

Relay::Relay(const Settings& settings)
    : table_(settings.table), lease_(settings.lease), places_(settings.records.size() / Record::kBytes) {
  line_.reserve(places_.size());
  for (auto place = static_cast<std::uint32_t>(places_.size()); place > 0; --place) {
    free_.push_back(place - 1);
    const Bytes bytes = settings.records.subspan((place - 1) * Record::kBytes, Record::kBytes);
    if (const auto record = read_record(bytes, place - 1)) last_ticket_ = std::max(last_ticket_, record->ticket);
  }
}
Relay::~Relay() = default;

Relay::Counts Relay::counts() const {
  const Locked locked(*this);
  Counts counts = counts_;
  counts.waiting = line_.size();
  counts.owner = owner_;
  return counts;
}

Served Relay::serve(fabric::Call& call) noexcept {
  switch (call.opcode) {
    case kChangeCall:
      return take(call);
    case kTurnCall:
      return turn(call);
    case kWithdrawCall:
      return withdraw(call);
    default:
      return Served::refused(fabric::Refusal::unknown_opcode);
  }
}

// --- Requests of clients

Served Relay::take(fabric::Call& call) {
  if (call.reply.size() < layout::kKvReplyHead) return Served::refused(fabric::Refusal::malformed);
  KvRequest request;
  KvStatus status = get_kv_request(call.request, request);
  if (status == KvStatus::done) status = check_change(request, table_);
  if (status != KvStatus::done) return reply(call, status);
  Outgoing out;
  const Locked locked(*this);
  if (owner_ == 0) return reply(call, KvStatus::no_owner);
  // The reply to the owner has to have room for it.
  if (call.request.size() > room_.size() - kTurnReplyHead - kHandedHead) return reply(call, KvStatus::long_value);
  if (free_.empty()) return reply(call, KvStatus::busy);
  const std::uint32_t at = free_.back();
  free_.pop_back();
  Place& place = places_[at];
  place.state = State::waiting;
  place.session = call.session_id;
  place.request_id = request.request_id;
  place.ticket = ++last_ticket_;
  place.request.assign(call.request.begin(), call.request.end());
  place.reply = call.hold();
  line_.push_back(at);
  deliver(out);
  return Served::held();
}

Served Relay::withdraw(fabric::Call& call) {
  if (call.request.size() != sizeof(Withdrawal)) return Served::refused(fabric::Refusal::malformed);
  const auto which = base::load<Withdrawal>(call.request.data());
  if (which.table != table_ || which.zero != 0) return Served::refused(fabric::Refusal::malformed);
  Outgoing out;
  const Locked locked(*this);
  for (std::size_t i = 0; i < line_.size(); ++i) {
    Place& place = places_[line_[i]];
    // What an owner was handed before may have been carried out.
    if (place.session != call.session_id || place.request_id != which.request_id || place.again) continue;
    out.add(std::move(place.reply), KvStatus::late);
    free(place);
    line_.erase(line_.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  return Served::done(0);
}

void Relay::free(Place& place) {
  place.state = State::free;
  place.again = false;
  place.owner = 0;
  free_.push_back(static_cast<std::uint32_t>(&place - places_.data()));
}

// --- Turns of owners

bool Relay::holds_lease(std::uint64_t session) const {
  const std::uint64_t word = fabric::word_at(lease_).load(std::memory_order_acquire);
  return layout::LeaseWord::held(word) &&
         layout::LeaseWord::Session::get(word) == layout::LeaseWord::Session::get(session);
}

Served Relay::turn(fabric::Call& call) {
  if (call.reply.size() < kLeastTurnReply) return Served::refused(fabric::Refusal::malformed);
  const std::optional<Turn> turn = get_turn(call.request);
  if (!turn) return Served::refused(fabric::Refusal::malformed);
  const auto judged = [&call](KvStatus status) { return Served::done(TurnReply(status, call.reply).bytes()); };
  if (turn->table != table_) return judged(KvStatus::bad_table);
  Outgoing out;
  const Locked locked(*this);
  // The lease decides: a session that does not hold it has been fenced, or is no owner.
  if (!holds_lease(call.session_id)) {
    ++counts_.refused;
    return judged(KvStatus::no_lease);
  }
  const bool closed = call.session_id == closed_session_ && turn->term <= closed_term_;
  if (owner_ != call.session_id && !turn->closing && !closed) begin(call.session_id);
  accept(*turn, call.session_id, out);
  if (closed) return judged(KvStatus::done);
  if (turn->closing) {
    if (owner_ == call.session_id) owner_ = 0;
    closed_session_ = call.session_id;
    closed_term_ = turn->term;
    if (turn_) out.answer_turn(std::move(turn_), Bytes(room_).first(TurnReply(KvStatus::done, room_).bytes()));
    refuse_waiting(out);
    return judged(KvStatus::done);
  }
  room_.resize(std::max(room_.size(), call.reply.size()));
  if (!line_.empty()) return Served::done(fill(call.reply, out));
  // The turn before has waited for nothing: its answers are here.
  if (turn_) out.answer_turn(std::move(turn_), Bytes(room_).first(TurnReply(KvStatus::done, room_).bytes()));
  turn_ = call.hold();
  return Served::held();
}

// Another owner begins. The one before has been fenced, or has given the lease back: it carries nothing out any more.
void Relay::begin(std::uint64_t session) {
  owner_ = session;
  for (std::uint32_t at = 0; at < places_.size(); ++at) {
    Place& place = places_[at];
    if (place.state != State::handed) continue;
    FARPOOL_MARK(cuckooduo_request_handed_again);
    ++counts_.again;
    place.state = State::waiting;
    place.again = true;
    line_.push_back(at);
  }
  std::sort(line_.begin(), line_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return places_[a].ticket < places_[b].ticket; });
}

void Relay::accept(const Turn& turn, std::uint64_t session, Outgoing& out) {
  for (std::size_t i = 0; i < turn.count(); ++i) {
    const Answer answer = turn.answer(i);
    Place* const place = answer.record < places_.size() ? &places_[answer.record] : nullptr;
    if (place == nullptr || place->state != State::handed || place->ticket != answer.ticket ||
        place->owner != session) {
      ++counts_.strays;
      continue;
    }
    ++counts_.relayed;
    out.add(std::move(place->reply), answer.status, answer.flags);
    free(*place);
  }
}

// There is no owner: clients that wait are to find one. What an owner was handed before keeps waiting for the next one.
void Relay::refuse_waiting(Outgoing& out) {
  std::erase_if(line_, [&](std::uint32_t at) {
    if (places_[at].again) return false;
    out.add(std::move(places_[at].reply), KvStatus::no_owner);
    free(places_[at]);
    return true;
  });
}

void Relay::deliver(Outgoing& out) {
  if (!turn_ || line_.empty()) return;
  const std::size_t bytes = fill(MutableBytes(room_).first(turn_.room()), out);
  out.answer_turn(std::move(turn_), Bytes(room_).first(bytes));
}

// Hands over as many requests as there is room for, the earliest first.
std::size_t Relay::fill(MutableBytes into, Outgoing& out) {
  TurnReply reply(KvStatus::done, into);
  std::size_t count = 0;
  for (; count < line_.size(); ++count) {
    Place& place = places_[line_[count]];
    if (!reply.add({place.ticket, line_[count], place.again, place.request})) {
      if (reply.requests() > 0) break;
      // This owner has less room than the one before, and never gets it. Its outcome may be unknown: then the client
      // learns nothing.
      out.add(place.again ? Ticket() : std::move(place.reply), KvStatus::long_value);
      out.drop(std::move(place.reply));
      free(place);
      continue;
    }
    place.state = State::handed;
    place.again = false;
    place.owner = owner_;
  }
  line_.erase(line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(count));
  return reply.bytes();
}

// --- The end of a session

// Requests of an owner that has been handed them wait for the next owner. What this session has asked for itself stays
// where an owner has it.
void Relay::release(std::uint64_t session_id) noexcept {
  Outgoing out;
  const Locked locked(*this);
  if (owner_ == session_id) {
    owner_ = 0;
    out.drop(std::move(turn_));
    refuse_waiting(out);
  }
  for (Place& place : places_) {
    if (place.state != State::free && place.session == session_id) out.drop(std::move(place.reply));
  }
  std::erase_if(line_, [&](std::uint32_t at) {
    if (places_[at].session != session_id || places_[at].again) return false;
    free(places_[at]);
    return true;
  });
}

}  // namespace farpool::cuckooduo
