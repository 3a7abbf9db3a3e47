// SPDX-License-Identifier: Apache-2.0
// The way in, and the tables.
#include "swordbox/box.h"

#include <algorithm>

#include "base/check.h"
#include "roce/psn.h"

namespace farpool::swordbox {

Box::Box(Settings settings, base::Nanos now)
    : settings_(std::move(settings)),
      quiet_until_(now + settings_.longest_life),
      by_server_(settings_.connections, settings_.hash_seed),
      by_client_(settings_.connections, settings_.hash_seed),
      pairs_(settings_.connections, kNone),
      connections_(settings_.connections),
      entries_(std::size_t{settings_.connections} * settings_.entries),
      slots_(std::size_t{settings_.connections} * settings_.held),
      word_keys_(settings_.words, settings_.hash_seed),
      words_(settings_.words),
      freed_(settings_.entries) {
  FARPOOL_CHECK(settings_.connections > 0 && settings_.words > 0 && settings_.entries > 0 && settings_.held > 0);
  for (const Range& range : settings_.ranges) ranges_.push_back({range});
}

bool Box::serves(const roce::Address& server) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const RangeState& r) { return r.range.server == server; });
}

Box::Way Box::way_of(const roce::Packet& packet) const {
  if (serves(packet.ip.to)) return serves(packet.ip.from) ? Way::between_servers : Way::to_server;
  return serves(packet.ip.from) ? Way::from_server : Way::elsewhere;
}

Box::RangeState* Box::range_of(const roce::Address& server, std::uint64_t address, std::uint64_t bytes) {
  for (RangeState& each : ranges_) {
    const Range& range = each.range;
    if (!(range.server == server)) continue;
    // Both ends could lie beyond the last address.
    const bool begins_before_end = address < range.first || address - range.first < range.bytes;
    const bool ends_behind_begin = address >= range.first || range.first - address < bytes;
    if (begins_before_end && ends_behind_begin) return &each;
  }
  return nullptr;
}

bool Box::touches(const roce::Packet& packet) {
  const unsigned headers = roce::headers_of(packet.bth.opcode);
  if (headers & roce::has_atomic) return range_of(packet.ip.to, packet.atomic.address, 8) != nullptr;
  if ((headers & roce::has_reth) && packet.bth.opcode != roce::Opcode::read_request) {
    const std::uint64_t bytes = std::max<std::uint64_t>(packet.reth.length, packet.payload.size());
    return bytes > 0 && range_of(packet.ip.to, packet.reth.address, bytes) != nullptr;
  }
  return false;
}

void Box::pass(base::Bytes frame, Sink& sink) {
  ++counts_.passed;
  sink.send(frame);
}

void Box::send(const roce::Packet& packet, Sink& sink) {
  const std::size_t size = roce::build_sealed(packet, out_);
  FARPOOL_CHECK(size > 0);  // no packet of the box's own is longer than an atomic with masks
  sink.send(base::Bytes(out_).first(size));
}

void Box::on_packet(base::Bytes frame, base::Nanos now, Sink& sink) {
  roce::Packet packet;
  if (roce::parse(frame, packet) != roce::Refusal::none) {
    ++counts_.not_roce;
    sink.send(frame);
    return;
  }
  on_packet(frame, packet, now, sink);
}

void Box::on_packet(base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink) {
  const bool to_server = serves(packet.ip.to), from_server = serves(packet.ip.from);
  if (!to_server && !from_server) return pass(frame, sink);
  if (!roce::sums_hold(frame, packet)) {
    ++counts_.dropped_bad_sum;
    return;
  }
  if (packet.bth.queue_pair == roce::kManagerQueuePair) manage(packet, now);
  if (to_server && roce::is_request(packet.bth.opcode)) return on_request(frame, packet, now, sink);
  if (from_server && roce::is_response(packet.bth.opcode)) return on_response(frame, packet, now, sink);
  pass(frame, sink);
}

// --- connections ---

Entry& Box::entry(const Connection& connection, std::uint32_t i) {
  const std::size_t place = (connection.first_entry + i) % settings_.entries;
  return entries_[std::size_t{index_of(connection)} * settings_.entries + place];
}

Entry* Box::find_entry(const Connection& connection, std::uint32_t psn) {
  for (std::uint32_t i = connection.entries; i-- > 0;) {
    Entry& found = entry(connection, i);
    if (found.psn == psn) return &found;
  }
  return nullptr;
}

Box::Slot& Box::slot(const Connection& connection, std::uint32_t i) {
  const std::size_t place = (connection.first_held + i) % settings_.held;
  return slots_[std::size_t{index_of(connection)} * settings_.held + place];
}

std::uint32_t Box::connection_of(const roce::Packet& packet, base::Nanos now) {
  const Key key = {packet.ip.from, packet.ip.to, packet.bth.queue_pair};
  const std::uint32_t found = by_server_.find(key);
  return found != kNone ? found : make_connection(key, now);
}

std::uint32_t Box::make_connection(const Key& key, base::Nanos now) {
  std::uint32_t at = by_server_.insert(key);
  if (at == kNone) {
    const std::uint32_t room = make_room(now);
    if (room == kNone) {
      untracked_until_ = now + settings_.idle;
      return kNone;
    }
    erase(room);
    at = by_server_.insert(key);
  }
  connections_[at] = {.live = true, .mtu = settings_.mtu, .seen = now, .next_unpaired = unpaired_};
  unpaired_ = at;
  return at;
}

// Finds a connection that may be forgotten, among the next few.
std::uint32_t Box::make_room(base::Nanos now) {
  constexpr std::uint32_t kLooks = 16;
  for (std::uint32_t i = 0; i < std::min(kLooks, by_server_.capacity()); ++i) {
    const std::uint32_t at = connection_hand_;
    connection_hand_ = (connection_hand_ + 1) % by_server_.capacity();
    const Connection& connection = connections_[at];
    const base::Nanos age = now - connection.seen;
    if (!connection.busy && connection.held == 0 &&
        age >= (connection.answered || connection.cut ? settings_.idle : settings_.embryo)) {
      return at;
    }
  }
  return kNone;
}

void Box::unlist_unpaired(std::uint32_t at) {
  std::uint32_t* link = &unpaired_;
  while (*link != kNone && *link != at) link = &connections_[*link].next_unpaired;
  if (*link == at) *link = connections_[at].next_unpaired;
}

void Box::erase(std::uint32_t at) {
  Connection& connection = connections_[at];
  const Key key = by_server_.key(at);
  if (connection.paired) {
    const std::uint32_t pair = by_client_.find({key.to, key.from, connection.client_queue_pair});
    if (pair != kNone && pairs_[pair] == at) by_client_.erase(pair);
  } else {
    unlist_unpaired(at);
  }
  connection = {};
  by_server_.erase(at);
}

// Makes the connection begin anew with its next request.
void Box::forget(std::uint32_t at, base::Nanos now) {
  Connection& connection = connections_[at];
  for (std::uint32_t i = 0; i < connection.entries; ++i) abandon(entry(connection, i), now);
  connection.entries = 0;
  drop_held(connection);
  connection.adopted = connection.proven = false;
}

void Box::cut(std::uint32_t at, base::Nanos now) {
  forget(at, now);
  connections_[at].cut = true;
  ++counts_.cut;
}

void Box::pair(std::uint32_t at, std::uint32_t client_queue_pair) {
  Connection& connection = connections_[at];
  const Key key = by_server_.key(at);
  if (connection.paired && connection.client_queue_pair != client_queue_pair) {
    const std::uint32_t former = by_client_.find({key.to, key.from, connection.client_queue_pair});
    if (former != kNone && pairs_[former] == at) by_client_.erase(former);
  }
  const Key reverse = {key.to, key.from, client_queue_pair};
  std::uint32_t found = by_client_.find(reverse);
  if (found != kNone && pairs_[found] != at) {  // that queue pair has another connection now
    Connection& other = connections_[pairs_[found]];
    other.paired = false;
    other.next_unpaired = unpaired_;
    unpaired_ = pairs_[found];
  }
  if (found == kNone) found = by_client_.insert(reverse);
  FARPOOL_CHECK(found != kNone);  // there are no more pairs than connections
  pairs_[found] = at;
  if (!connection.paired) unlist_unpaired(at);
  connection.paired = true;
  connection.client_queue_pair = client_queue_pair;
}

// Finds the connection whose request this first response may answer: none if there are several.
std::uint32_t Box::find_pair(const roce::Packet& packet) {
  std::uint32_t found = kNone;
  for (std::uint32_t at = unpaired_; at != kNone; at = connections_[at].next_unpaired) {
    const Connection& connection = connections_[at];
    const Key& key = by_server_.key(at);
    if (!connection.adopted || !(key.from == packet.ip.to) || !(key.to == packet.ip.from)) continue;
    if (roce::psn_distance(connection.executed, packet.bth.psn) < 0) continue;
    if (roce::psn_distance(packet.bth.psn, connection.forwarded) <= 0) continue;
    if (found != kNone) return kNone;
    found = at;
  }
  return found;
}

void Box::introduce(const roce::Address& client, std::uint32_t client_queue_pair, const roce::Address& server,
                    std::uint32_t server_queue_pair, std::uint32_t first_psn, std::uint32_t mtu, base::Nanos now) {
  if (!serves(server)) return;
  const Key key = {client, server, server_queue_pair};
  std::uint32_t at = by_server_.find(key);
  if (at == kNone) at = make_connection(key, now);
  if (at == kNone) return;
  Connection& connection = connections_[at];
  // Messages of a set-up may come twice.
  if (connection.proven && connection.first == first_psn && connection.paired &&
      connection.client_queue_pair == client_queue_pair) {
    return;
  }
  forget(at, now);
  pair(at, client_queue_pair);
  connection.cut = false;
  connection.adopted = connection.proven = true;
  connection.first = connection.next = connection.forwarded = connection.executed = first_psn;
  if (mtu != 0) connection.mtu = mtu;
  connection.seen = connection.progress = now;
}

void Box::manage(const roce::Packet& packet, base::Nanos now) {
  const std::optional<roce::CmMessage> message = roce::parse_cm(packet);
  if (!message) return;
  if (message->kind == roce::CmKind::request) {
    pending_[next_pending_] = {true, packet.ip.from, message->local_id, message->queue_pair, message->mtu};
    next_pending_ = (next_pending_ + 1) % pending_.size();
  }
  if (message->kind != roce::CmKind::reply) return;
  for (Pending& each : pending_) {
    if (!each.live || !(each.client == packet.ip.to) || each.id != message->remote_id) continue;
    introduce(each.client, each.queue_pair, packet.ip.from, message->queue_pair, message->receivers_psn, each.mtu, now);
    each.live = false;
  }
}

// --- words ---

std::uint32_t Box::word_of(const roce::Address& server, std::uint64_t address) {
  const Key key = {server, server, address};
  std::uint32_t at = word_keys_.find(key);
  if (at != kNone) return at;
  at = word_keys_.insert(key);
  constexpr std::uint32_t kLooks = 16;
  for (std::uint32_t i = 0; at == kNone && i < std::min(kLooks, word_keys_.capacity()); ++i) {
    const std::uint32_t candidate = word_hand_;
    word_hand_ = (word_hand_ + 1) % word_keys_.capacity();
    if (!words_[candidate].idle()) continue;
    word_keys_.erase(candidate);
    at = word_keys_.insert(key);
  }
  if (at != kNone) words_[at] = {};
  return at;
}

// Admits nobody to the word until then.
void Box::block(std::uint32_t at, base::Nanos until) {
  Word& word = words_[at];
  if (word.blocked_until == 0) {
    word.next_blocked = blocked_;
    blocked_ = at;
  }
  word.blocked_until = std::max(word.blocked_until, until);
}

// Gives up an operation that may or may not be executed.
void Box::abandon(Entry& entry, base::Nanos now) {
  if (entry.word == kNone) return;
  Word& word = words_[entry.word];
  if (entry.may_change) {
    word.changing = false;
  } else {
    --word.readers;
  }
  // Until then it may still be executed. What changes nothing has to meet the word as it was.
  if (entry.form != Form::write_of_nothing) word.known = false;
  block(entry.word, now + settings_.longest_life);
  entry.word = kNone;
}

void Box::wait_for(Connection& connection, std::uint32_t at) {
  ++counts_.waited;
  Word& word = words_[at];
  const std::uint32_t self = index_of(connection);
  connection.waits_for = at;
  connection.next_waiter = kNone;
  if (word.last_waiter != kNone) connections_[word.last_waiter].next_waiter = self;
  if (word.first_waiter == kNone) word.first_waiter = self;
  word.last_waiter = self;
}

// Drops what the connection has in the box; the client sends it again.
void Box::drop_held(Connection& connection) {
  connection.held = 0;
  connection.next = connection.forwarded;
  if (connection.waits_for == kNone) return;
  Word& word = words_[connection.waits_for];
  const std::uint32_t self = index_of(connection);
  std::uint32_t before = kNone, at = word.first_waiter;
  while (at != self) {
    before = at;
    at = connections_[at].next_waiter;
  }
  (before == kNone ? word.first_waiter : connections_[before].next_waiter) = connection.next_waiter;
  if (word.last_waiter == self) word.last_waiter = before;
  connection.waits_for = kNone;
}

// Lets connections go on that wait for a word, as far as that is possible.
void Box::run_waiters(std::uint32_t at, base::Nanos now, Sink& sink) {
  Word& word = words_[at];
  while (word.first_waiter != kNone) {
    Connection& connection = connections_[word.first_waiter];
    const base::Bytes frame = base::Bytes(slot(connection, 0).bytes).first(slot(connection, 0).size);
    roce::Packet packet;
    FARPOOL_CHECK(roce::parse(frame, packet) == roce::Refusal::none);  // as it was when it came
    const Verdict verdict = forward(connection, frame, packet, now, sink);
    if (verdict == Verdict::waits) return;
    if (verdict == Verdict::drop) {
      drop_held(connection);
      continue;
    }
    word.first_waiter = connection.next_waiter;
    if (word.first_waiter == kNone) word.last_waiter = kNone;
    connection.waits_for = kNone;
    run_held(connection, packet, now, sink);
  }
}

// Goes on behind the first held packet, which has just been forwarded.
void Box::run_held(Connection& connection, roce::Packet packet, base::Nanos now, Sink& sink) {
  while (true) {
    connection.forwarded = roce::psn_add(packet.bth.psn, psns_of(connection, packet));
    connection.first_held = (connection.first_held + 1) % settings_.held;
    if (--connection.held == 0) {
      connection.next = connection.forwarded;
      return;
    }
    const base::Bytes frame = base::Bytes(slot(connection, 0).bytes).first(slot(connection, 0).size);
    FARPOOL_CHECK(roce::parse(frame, packet) == roce::Refusal::none);
    const Verdict verdict = forward(connection, frame, packet, now, sink);
    if (verdict == Verdict::waits) return wait_for(connection, wanted_word_);
    if (verdict == Verdict::drop) return drop_held(connection);
  }
}

// --- time ---

void Box::mark_busy(Connection& connection) {
  if (connection.busy) return;
  connection.busy = true;
  connection.next_busy = busy_;
  busy_ = index_of(connection);
}

base::Nanos Box::next_time() const {
  base::Nanos next = base::kNever;
  for (std::uint32_t at = blocked_; at != kNone; at = words_[at].next_blocked) {
    next = std::min(next, words_[at].blocked_until);
  }
  for (std::uint32_t at = busy_; at != kNone; at = connections_[at].next_busy) {
    const Connection& connection = connections_[at];
    for (std::uint32_t i = 0; i < connection.entries; ++i) {
      const Entry& each = const_cast<Box*>(this)->entry(connection, i);
      if (each.word != kNone) next = std::min(next, each.sent + settings_.again);
    }
  }
  return next;
}

void Box::on_time(base::Nanos now, Sink& sink) {
  std::uint32_t* link = &busy_;
  while (*link != kNone) {
    const std::uint32_t at = *link;
    Connection& connection = connections_[at];
    bool open = false;
    base::Nanos first_sent = now;
    for (std::uint32_t i = 0; i < connection.entries; ++i) {
      const Entry& each = entry(connection, i);
      if (each.word != kNone) first_sent = std::min(first_sent, each.first_sent);
      open = open || each.word != kNone;
    }
    if (open && now - std::max(first_sent, connection.progress) >= settings_.silence) {
      cut(at, now);
      open = false;
    }
    if (!open) {
      *link = connection.next_busy;
      connection.busy = false;
      continue;
    }
    for (std::uint32_t i = 0; i < connection.entries; ++i) {
      Entry& each = entry(connection, i);
      if (each.word == kNone || now - each.sent < settings_.again) continue;
      ++counts_.sent_again;
      send_entry(connection, each, now, sink);
    }
    link = &connection.next_busy;
  }
  std::uint32_t* blocked = &blocked_;
  while (*blocked != kNone) {
    const std::uint32_t at = *blocked;
    Word& word = words_[at];
    if (now < word.blocked_until) {
      blocked = &word.next_blocked;
      continue;
    }
    *blocked = word.next_blocked;
    word.blocked_until = 0;
    run_waiters(at, now, sink);
  }
}

}  // namespace farpool::swordbox
