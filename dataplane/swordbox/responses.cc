// SPDX-License-Identifier: Apache-2.0
// Responses: from servers with ranges to clients.
#include <bit>

#include "roce/psn.h"
#include "swordbox/box.h"

namespace farpool::swordbox {
namespace {

using roce::AckKind;
using roce::Opcode;

bool is_ack(const roce::Packet& packet, AckKind kind) {
  return packet.bth.opcode == Opcode::acknowledge && roce::ack_kind(packet.aeth.syndrome) == kind;
}

// Returns the first PSN of which the response does not say that it has been executed.
std::uint32_t covered(const roce::Packet& packet) {
  const std::uint32_t psn = packet.bth.psn;
  switch (packet.bth.opcode) {
    case Opcode::acknowledge:  // a negative one names the request that was not executed
      return is_ack(packet, AckKind::ack) ? roce::psn_add(psn, 1) : psn;
    case Opcode::atomic_acknowledge:
    case Opcode::read_response_last:
    case Opcode::read_response_only:
      return roce::psn_add(psn, 1);
    default:  // a READ has been begun, behind all that stands before it
      return psn;
  }
}

}  // namespace

std::uint32_t Box::connection_of_response(const roce::Packet& packet, base::Nanos now) {
  const std::uint32_t found = by_client_.find({packet.ip.from, packet.ip.to, packet.bth.queue_pair});
  if (found != kNone) return pairs_[found];
  if (now < untracked_until_) return kNone;
  const std::uint32_t at = find_pair(packet);
  if (at != kNone) pair(at, packet.bth.queue_pair);
  return at;
}

void Box::on_response(base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink) {
  const std::uint32_t at = connection_of_response(packet, now);
  if (at == kNone) return pass(frame, sink);
  Connection& connection = connections_[at];
  connection.seen = now;
  connection.answered = true;
  if (connection.cut) {
    ++counts_.dropped_cut;
    return;
  }
  if (!connection.adopted) return pass(frame, sink);
  learn_mtu(connection, packet);
  const std::uint32_t through = covered(packet);
  if (roce::psn_before(connection.forwarded, through)) {
    ++counts_.bypassed;
    bool unanswered = false;
    for (std::uint32_t i = 0; i < connection.entries; ++i) {
      const Entry& each = entry(connection, i);
      unanswered = unanswered || (each.wanted && each.form != Form::as_it_is);
    }
    if (unanswered) return cut(at, now);  // nobody could tell the client what came of these
    forget(at, now);
    return pass(frame, sink);
  }
  if (roce::psn_before(connection.executed, through)) {
    connection.executed = through;
    connection.progress = now;
  }
  if (is_ack(packet, AckKind::rnr)) connection.progress = now;
  if (roce::headers_of(packet.bth.opcode) & roce::has_aeth) {
    connection.msn = packet.aeth.msn;
    if (roce::ack_kind(packet.aeth.syndrome) == AckKind::ack) connection.syndrome = packet.aeth.syndrome;
  }
  // An ACK of an atomic's own PSN tells the client nothing: it gets the Atomic ACK in its place, a second time if need be.
  Entry* const own = is_ack(packet, AckKind::ack) ? find_entry(connection, packet.bth.psn) : nullptr;
  const bool replaced = own != nullptr && own->form != Form::as_it_is;
  if (replaced) own->wanted = true;
  execute_through(connection, through, packet, sink);
  // A server that has executed more would acknowledge more. An ACK from before the box followed the connection is too old.
  const bool is_new = now - connection.adopted_at >= settings_.longest_life;
  if (is_ack(packet, AckKind::ack) && through == connection.forwarded && is_new) connection.proven = true;
  if (is_ack(packet, AckKind::nak)) note_nak(connection, packet);
  if (replaced) {
    ++counts_.swallowed;
  } else {
    pass(frame, sink);
  }
  run_freed(now, sink);
}

// A NAK ends the connection with a request that the server has not executed, except for one of a sequence.
void Box::note_nak(const Connection& connection, const roce::Packet& packet) {
  if (packet.aeth.syndrome == roce::kNakSequence) return;
  Entry* const found = find_entry(connection, packet.bth.psn);
  if (found != nullptr && found->word != kNone) refuse(connection, *found);
}

// The packets of a READ's answer tell how many PSNs it takes.
void Box::learn_mtu(Connection& connection, const roce::Packet& packet) {
  std::uint32_t mtu = connection.mtu;
  const auto bytes = static_cast<std::uint32_t>(packet.payload.size());
  if (packet.bth.opcode == Opcode::read_response_first && std::has_single_bit(bytes) && bytes >= 256) mtu = bytes;
  if (packet.bth.opcode == Opcode::read_response_only && bytes > mtu) mtu = std::bit_ceil(bytes);
  if (mtu == connection.mtu) return;
  const auto behind = [&](std::uint32_t size) {
    return roce::psn_add(connection.read_psn, roce::psns_of(connection.read_bytes, size));
  };
  if (connection.held == 0 && connection.next == behind(connection.mtu)) {
    connection.next = connection.forwarded = behind(mtu);
  }
  connection.mtu = mtu;
}

// Takes note that the server has executed all before `through`, and answers what the client still waits for.
void Box::execute_through(Connection& connection, std::uint32_t through, const roce::Packet& packet, Sink& sink) {
  freed_count_ = 0;
  for (std::uint32_t i = 0; i < connection.entries; ++i) {
    Entry& each = entry(connection, i);
    if (!roce::psn_before(each.psn, through)) break;
    const bool is_answer = packet.bth.opcode == Opcode::atomic_acknowledge && packet.bth.psn == each.psn;
    if (each.word != kNone) {
      freed_[freed_count_++] = each.word;
      finish(each, is_answer ? &packet : nullptr);
    }
    each.executed = true;
    if (each.wanted && each.form != Form::as_it_is) answer(connection, each, packet, sink);
    if (is_answer) each.wanted = false;
  }
}

// Gives back the word of an operation that has been executed.
void Box::finish(Entry& entry, const roce::Packet* answer) {
  Word& word = words_[entry.word];
  entry.word = kNone;
  if (entry.may_change) {
    word.changing = false;
  } else {
    --word.readers;
  }
  if (entry.form == Form::write_of_value) word.value = entry.value;
  if (entry.form != Form::as_it_is) return;
  if (entry.opcode == Opcode::write_only) {
    word.known = entry.from_proven;
    word.value = entry.atomic.swap_or_add;
    return;
  }
  // The answer of a server that has executed more than the box has forwarded may be an old one.
  const bool tells = answer != nullptr && entry.from_proven;
  if (tells && word.known && answer->prior != entry.prior) ++counts_.surprises;
  if (entry.may_change) {
    if (tells && !word.known) ++counts_.learned;
    word.known = tells;
    if (tells) word.value = outcome(entry.opcode, entry.atomic, answer->prior);
  } else if (tells && answer->prior != entry.prior) {
    word.known = false;
  }
}

void Box::answer(const Connection& connection, Entry& entry, const roce::Packet& response, Sink& sink) {
  roce::Packet packet = response;
  packet.bth.opcode = Opcode::atomic_acknowledge;
  packet.bth.psn = entry.psn;
  packet.bth.pad = 0;
  packet.bth.solicited = packet.bth.ack_request = false;
  packet.aeth = {.syndrome = connection.syndrome, .msn = connection.msn};
  packet.prior = entry.prior;
  packet.payload = packet.tail = {};
  entry.wanted = false;
  ++counts_.answered;
  send(packet, sink);
}

// The server has not executed the operation, and the connection is at its end.
void Box::refuse(const Connection& connection, Entry& entry) {
  const Key& key = by_server_.key(index_of(connection));
  if (entry.form != Form::as_it_is) {
    ++counts_.refused;
    range_of(key.to, entry.atomic.address, 8)->refused = true;
  }
  Word& word = words_[entry.word];
  if (entry.may_change) {
    word.changing = false;
  } else {
    --word.readers;
  }
  freed_[freed_count_++] = entry.word;
  entry.word = kNone;
}

void Box::run_freed(base::Nanos now, Sink& sink) {
  for (std::size_t i = 0; i < freed_count_; ++i) run_waiters(freed_[i], now, sink);
  freed_count_ = 0;
}

}  // namespace farpool::swordbox
