// SPDX-License-Identifier: Apache-2.0
// Requests: from clients to servers with ranges.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "roce/psn.h"
#include "swordbox/box.h"

namespace farpool::swordbox {

void Box::adopt(Connection& connection, std::uint32_t psn, base::Nanos now) {
  connection.adopted_at = now;
  connection.adopted = true;
  connection.first = connection.next = connection.forwarded = connection.executed = psn;
}

std::uint32_t Box::psns_of(Connection& connection, const roce::Packet& packet) {
  const roce::Opcode opcode = packet.bth.opcode;
  if (opcode == roce::Opcode::write_first || opcode == roce::Opcode::send_first) {
    const std::size_t bytes = packet.payload.size();
    if (std::has_single_bit(bytes) && bytes >= 256) connection.mtu = static_cast<std::uint32_t>(bytes);
  }
  if (opcode != roce::Opcode::read_request) return 1;
  connection.read_psn = packet.bth.psn;
  connection.read_bytes = packet.reth.length;
  return roce::psns_of(packet.reth.length, connection.mtu);
}

void Box::on_request(base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink) {
  const bool touching = touches(packet);
  if (touching && now < quiet_until_) {
    ++counts_.dropped_at_start;
    return;
  }
  const std::uint32_t at = connection_of(packet, now);
  if (at == kNone) {
    if (!touching) return pass(frame, sink);
    ++counts_.dropped_no_room;
    return;
  }
  Connection& connection = connections_[at];
  connection.seen = now;
  if (connection.cut) {
    ++counts_.dropped_cut;
    return;
  }
  if (!connection.adopted) adopt(connection, packet.bth.psn, now);
  const std::int32_t ahead = roce::psn_distance(connection.next, packet.bth.psn);
  if (ahead == 0) return on_fresh(connection, frame, packet, now, sink);
  if (ahead < 0) return on_retransmission(connection, frame, packet, now, sink);
  if (has_lost_its_place(connection, now)) return begin_anew(connection, frame, packet, now, sink);
  // Unpredictable: between box and server it could overtake what is missing, and be executed behind the box's back.
  ++counts_.dropped_out_of_order;
}

// Says whether nothing that comes fits to what the box knows of the connection. It may have taken an old packet for a new
// one where it came in the middle, or the queue pair is another one with the same number, whose set-up it has not seen.
bool Box::has_lost_its_place(Connection& connection, base::Nanos now) {
  constexpr std::uint32_t kOften = 8;
  if (connection.held > 0 || ++connection.out_of_place < kOften) return false;
  if (connection.proven && now - connection.in_place < settings_.embryo) return false;
  for (std::uint32_t i = 0; i < connection.entries; ++i) {
    if (entry(connection, i).word != kNone) return false;
  }
  return true;
}

// Follows the connection from this packet on. Everything passes as it is, so that the server tells old from new.
void Box::begin_anew(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now,
                     Sink& sink) {
  forget(index_of(connection), now);
  adopt(connection, packet.bth.psn, now);
  on_fresh(connection, frame, packet, now, sink);
}

void Box::on_retransmission(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now,
                            Sink& sink) {
  const std::uint32_t psn = packet.bth.psn;
  if (!roce::psn_before(psn, connection.forwarded)) return;  // it waits in the box already
  if (!touches(packet)) return pass(frame, sink);
  if (Entry* const known = find_entry(connection, psn)) {
    const std::uint64_t address = roce::is_atomic(packet.bth.opcode) ? packet.atomic.address : packet.reth.address;
    if (known->opcode != packet.bth.opcode || known->atomic.address != address) {
      ++counts_.dropped_unsupported;
      return;
    }
    ++counts_.retransmissions;
    known->wanted = true;
    return send_entry(connection, *known, now, sink);
  }
  if (!connection.proven && roce::psn_before(psn, connection.first)) {
    // The server has executed it, before the box came: it repeats the answer, and no more.
    if (connection.executed != connection.first) return pass(frame, sink);
    return begin_anew(connection, frame, packet, now, sink);
  }
  if (has_lost_its_place(connection, now)) return begin_anew(connection, frame, packet, now, sink);
  ++counts_.dropped_too_old;
}

void Box::on_fresh(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink) {
  connection.out_of_place = 0;
  connection.in_place = now;
  const bool waiting = connection.held > 0;
  const Verdict verdict = waiting ? Verdict::waits : forward(connection, frame, packet, now, sink);
  if (verdict == Verdict::drop) return;
  if (verdict == Verdict::waits && !hold(connection, frame)) {
    ++counts_.dropped_no_room;
    return;
  }
  connection.next = roce::psn_add(packet.bth.psn, psns_of(connection, packet));
  if (verdict == Verdict::sent) connection.forwarded = connection.next;
  if (verdict == Verdict::waits && !waiting) wait_for(connection, wanted_word_);
}

bool Box::hold(Connection& connection, base::Bytes frame) {
  if (connection.held == settings_.held) return false;
  Slot& place = slot(connection, connection.held);
  if (frame.size() > place.bytes.size()) return false;
  std::copy(frame.begin(), frame.end(), place.bytes.begin());
  place.size = static_cast<std::uint32_t>(frame.size());
  ++connection.held;
  return true;
}

// Sends a request on, if nothing is in its way.
Box::Verdict Box::forward(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now,
                          Sink& sink) {
  if (touches(packet)) return admit(connection, packet, now, sink);
  pass(frame, sink);
  return Verdict::sent;
}

// Decides what an operation on a word comes to, and sends it in its form.
Box::Verdict Box::admit(Connection& connection, const roce::Packet& packet, base::Nanos now, Sink& sink) {
  const roce::Opcode opcode = packet.bth.opcode;
  const bool is_set = opcode == roce::Opcode::write_only && packet.reth.length == 8 && packet.payload.size() == 8;
  Entry entry = {.psn = packet.bth.psn, .opcode = opcode, .from_proven = connection.proven, .atomic = packet.atomic};
  if (is_set) {
    entry.atomic = {.address = packet.reth.address,
                    .key = packet.reth.key,
                    .swap_or_add = base::load<std::uint64_t>(packet.payload.data())};
  }
  if ((!is_set && !roce::is_atomic(opcode)) || entry.atomic.address % 8 != 0) {
    ++counts_.dropped_unsupported;
    return Verdict::drop;
  }
  entry.word = word_of(packet.ip.to, entry.atomic.address);
  if (entry.word == kNone) {
    ++counts_.dropped_no_room;
    return Verdict::drop;
  }
  Word& word = words_[entry.word];
  wanted_word_ = entry.word;
  const bool others_first = word.first_waiter != kNone && word.first_waiter != index_of(connection);
  if (others_first || word.changing || word.blocked_until != 0) return Verdict::waits;
  entry.may_change = is_set || !word.known;
  if (!entry.may_change) {
    entry.prior = word.value;
    entry.value = outcome(opcode, entry.atomic, word.value);
    entry.may_change = entry.value != entry.prior;
    const bool replaceable = opcode != roce::Opcode::fetch_add || settings_.replace_fetch_add;
    if (replaceable && connection.proven && !range_of(packet.ip.to, entry.atomic.address, 8)->refused) {
      entry.form = entry.may_change ? Form::write_of_value : Form::write_of_nothing;
    }
  }
  if (entry.may_change && word.readers > 0) return Verdict::waits;
  entry.first_sent = now;
  if (!make_entry(connection, entry)) {
    ++counts_.dropped_no_room;
    return Verdict::drop;
  }
  word.changing = entry.may_change;
  if (!entry.may_change) ++word.readers;
  ++(entry.form == Form::write_of_value     ? counts_.changes_replaced
     : entry.form == Form::write_of_nothing ? counts_.failures_replaced
                                            : counts_.kept);
  connection.shape = packet;
  connection.shape.payload = connection.shape.tail = {};
  send_entry(connection, this->entry(connection, connection.entries - 1), now, sink);
  return Verdict::sent;
}

// Returns false if the ring is full of operations that have not been executed.
bool Box::make_entry(Connection& connection, const Entry& fresh) {
  if (connection.entries == settings_.entries) {
    if (entry(connection, 0).word != kNone) return false;
    connection.first_entry = (connection.first_entry + 1) % settings_.entries;
    --connection.entries;
  }
  entry(connection, connection.entries++) = fresh;
  mark_busy(connection);
  return true;
}

// Sends an operation in its form: for the first time, or again.
void Box::send_entry(Connection& connection, Entry& entry, base::Nanos now, Sink& sink) {
  roce::Packet packet = connection.shape;
  packet.bth.psn = entry.psn;
  packet.bth.pad = 0;
  packet.bth.ack_request = true;
  packet.bth.opcode = entry.opcode;
  packet.atomic = entry.atomic;
  const bool writes = entry.form == Form::write_of_value || entry.opcode == roce::Opcode::write_only;
  const std::uint64_t value = entry.form == Form::write_of_value ? entry.value : entry.atomic.swap_or_add;
  if (writes || entry.form == Form::write_of_nothing) {
    packet.bth.opcode = roce::Opcode::write_only;
    // What the server has executed it only acknowledges. If it should ever do more, there is nothing to do.
    const bool empty = entry.form == Form::write_of_nothing || entry.executed;
    packet.reth = {.address = entry.atomic.address, .key = entry.atomic.key, .length = empty ? 0u : 8u};
    if (!empty) packet.payload = base::bytes_of(value);  // memory of servers is little-endian
  }
  entry.sent = now;
  send(packet, sink);
}

}  // namespace farpool::swordbox
