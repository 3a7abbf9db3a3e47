// SPDX-License-Identifier: Apache-2.0
#include "index/outback/lines.h"

#include <utility>

#include "base/check.h"

namespace farpool::outback {

Lines::Lines(const Cut& cut, base::MutableBytes memory)
    : cut_(cut),
      memory_(memory),
      lines_(std::make_unique<Line[]>(cut.figures.clients * cut.figures.lines)),
      clients_(std::make_unique<Client[]>(cut.figures.clients)) {
  for (std::uint64_t i = 0; i < cut.figures.clients * cut.figures.lines; ++i) {
    const auto state = base::load<std::uint64_t>(memory.data() + cut.lines + i * kLineBytes);
    const std::uint64_t number = LineState::Number::get(state);
    lines_[i].recorded = LineState::Phase::get(state) != LineState::kBegun;
    // A request that had begun has had no effect. What the line remembered before it is forgotten.
    lines_[i].last = lines_[i].recorded || number == 0 ? number : number - 1;
    lines_[i].outcome.status = Status::forgotten;
  }
}

Lines::Turn Lines::begin(std::uint64_t session, std::uint16_t client, fabric::RequestId id, Reply& reply) {
  if (id.number == 0 || id.line >= cut_.figures.lines) return Turn::bad;
  if (client >= cut_.figures.clients) return Turn::not_attached;
  Line& line = line_of(client, id.line);
  if (line.busy.exchange(true, std::memory_order_acquire)) return Turn::running;
  // Asked while the line is ours: who takes a client's lines away waits for that.
  if (session == 0 || clients_[client].session.load(std::memory_order_acquire) != session) {
    release(client, id);
    return Turn::not_attached;
  }
  if (id.number > line.last) return Turn::first;
  if (id.number == line.last && line.recorded) return Turn::recorded;
  const bool same = id.number == line.last;
  if (same) reply = line.outcome;
  release(client, id);
  return same ? Turn::again : Turn::old;
}

void Lines::finish(std::uint16_t client, fabric::RequestId id, const Reply& reply, bool changed) {
  Line& line = line_of(client, id.line);
  line.last = id.number;
  line.recorded = changed;
  line.outcome = {.status = reply.status, .flags = reply.flags, .version = reply.version, .number = reply.number};
  release(client, id);
}

void Lines::release(std::uint16_t client, fabric::RequestId id) {
  line_of(client, id.line).busy.store(false, std::memory_order_release);
}

// Makes the lines of a client empty. False: one of them is being used.
bool Lines::clear(std::uint64_t client, fabric::Hand hand, std::vector<std::uint64_t>& dropped) {
  std::uint64_t taken = 0;
  const auto line = [&](std::uint64_t i) -> Line& {
    return line_of(static_cast<std::uint16_t>(client), static_cast<std::uint32_t>(i));
  };
  while (taken < cut_.figures.lines && !line(taken).busy.exchange(true, std::memory_order_acquire)) ++taken;
  if (taken == cut_.figures.lines) {
    for (std::uint64_t i = 0; i < taken; ++i) {
      std::byte* record = memory_.data() + cut_.line_at(client, i);
      const auto was = base::load<LineRecord>(record);
      if (was.state != 0) hand.write(record, 0);
      if (was.held() != 0) dropped.push_back(was.held());
      line(i).last = 0;
      line(i).recorded = true;
    }
  }
  for (std::uint64_t i = 0; i < taken; ++i) line(i).busy.store(false, std::memory_order_release);
  return taken == cut_.figures.lines;
}

// The place that has the token, one that is free, or that of the client that has been gone for the longest time.
std::optional<std::uint64_t> Lines::place_for(std::uint64_t wanted) const {
  std::optional<std::uint64_t> found;
  for (std::uint64_t i = 0; i < cut_.figures.clients; ++i) {
    const std::uint64_t has = token(i);
    if (has == wanted) return i;
    if (has != 0 && clients_[i].session.load(std::memory_order_acquire) != 0) continue;
    const bool free_before = found && token(*found) == 0;
    if (!found || (!free_before && (has == 0 || clients_[i].left < clients_[*found].left))) found = i;
  }
  return found;
}

Lines::Attached Lines::attach(std::uint64_t session, std::uint64_t wanted, fabric::Hand hand) {
  if (wanted == 0 || session == 0) return {.status = Status::malformed};
  if (attaching_.exchange(true, std::memory_order_acquire)) return {.status = Status::running};
  Attached attached;
  const auto place = place_for(wanted);
  if (!place) attached.status = Status::no_client;
  if (place && token(*place) != wanted) {
    // First the lines are empty, then they are this client's.
    if (clear(*place, hand, attached.dropped)) {
      hand.write(memory_.data() + cut_.client_at(*place), wanted);
      attached.fresh = true;
    } else {
      attached.status = Status::running;
    }
  }
  if (attached.status == Status::done) {
    attached.client = static_cast<std::uint16_t>(*place);
    clients_[*place].session.store(session, std::memory_order_release);
  }
  attaching_.store(false, std::memory_order_release);
  return attached;
}

Lines::Attached Lines::detach(std::uint64_t session, std::uint16_t client, fabric::Hand hand) {
  if (client >= cut_.figures.clients || clients_[client].session.load(std::memory_order_acquire) != session) {
    return {.status = Status::not_attached};
  }
  if (attaching_.exchange(true, std::memory_order_acquire)) return {.status = Status::running};
  Attached attached;
  if (clear(client, hand, attached.dropped)) {
    hand.write(memory_.data() + cut_.client_at(client), 0);
    clients_[client].session.store(0, std::memory_order_release);
  } else {
    attached.status = Status::running;
  }
  attaching_.store(false, std::memory_order_release);
  return attached;
}

void Lines::forget_session(std::uint64_t session) {
  // Bounded in practice by one attach on another thread: what it does is short.
  while (attaching_.exchange(true, std::memory_order_acquire)) {
  }
  for (std::uint64_t i = 0; i < cut_.figures.clients; ++i) {
    if (clients_[i].session.load(std::memory_order_acquire) != session) continue;
    clients_[i].left = ++leaves_;
    clients_[i].session.store(0, std::memory_order_release);
  }
  attaching_.store(false, std::memory_order_release);
}

}  // namespace farpool::outback
