// SPDX-License-Identifier: Apache-2.0
// A run in which somebody decides what happens next, instead of chance.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "fabric/sim/lane.h"
#include "fabric/sim/network.h"
#include "fabric/words.h"

namespace farpool::fabric::sim {

void Network::changed(const Link& link, Remote at, std::uint64_t before, std::uint64_t after) {
  const std::uint64_t place = base::mix((link.node->index_ << 60) ^ (std::uint64_t{at.region} << 48) ^ at.offset);
  memory_ ^= base::mix(place + before) ^ base::mix(place + after);
}

void Network::steer() {
  for (const auto& link : links_) FARPOOL_CHECK(link->flights.empty() || !link->open);
  steered_ = true;
  moment_ = now_;
  settle();
}

void Network::let_go() {
  FARPOOL_CHECK(waiting_.empty());
  pass_until(moment_);  // moments go on
  steered_ = false;
}

// False: the session has no lane that anything could come from.
bool Network::fence_waits(SimResponder& node, std::uint64_t session_id, const std::function<void()>& done) {
  for (const auto& link : links_) {
    if (link->node != &node || link->rights.session_id != session_id || !link->open) continue;
    Waiting waiting{
        .client = link->client->index(), .node = node.index_, .lane = link->number, .chain = ~0u, .last = 1};
    waiting.fence = [this, &node, session_id, life = node.life_, done] {
      if (life != node.life_) return;
      for (const auto& one : links_) {
        if (one->node == &node && one->rights.session_id == session_id && one->open) node.cut(one);
      }
      node.drain(session_id, done);
    };
    waiting_.push_back(std::move(waiting));
    return true;
  }
  return false;
}

void Network::settle() {
  for (;;) {
    for (const auto& client : clients_) client->ring();
    if (events_.empty() || events_.next() > now_) break;
    step();
  }
  std::erase_if(waiting_, [](const Waiting& one) {
    if (one.flight == nullptr) return one.fence == nullptr;
    const VerbRun& run = one.flight->verbs[one.verb];
    return run.executed || run.dropped || !one.flight->link->open;
  });
  for (Waiting& one : waiting_) one.ends = one.flight != nullptr && one.flight->left == 1;
}

void Network::execute(std::size_t which, std::uint64_t first, std::uint64_t last, bool lose) {
  ++moment_;
  lose_next_ = lose;
  Waiting& one = waiting_[which];
  if (one.fence) {
    lose_next_ = false;
    const std::function<void()> fence = std::exchange(one.fence, nullptr);
    fence();
    return settle();
  }
  const Ref<Flight> flight = one.flight;
  const std::size_t verb = one.verb;
  FARPOOL_CHECK(first >= one.first && last <= one.last && (first == one.first || last == one.last));
  one.torn = last - first < one.last - one.first;
  (first == one.first ? one.first : one.last) = first == one.first ? last : first;
  switch (one.op.verb) {
    case Verb::read:
    case Verb::write:
      execute_words(flight, verb, first, last);
      break;
    case Verb::call:
      execute_call(flight, verb);
      break;
    default:
      execute_atomic(flight, verb);
      break;
  }
  lose_next_ = false;
  settle();
}

bool Network::differs(std::size_t which, std::uint64_t word) const {
  if (waiting_[which].flight == nullptr) return true;
  const Flight& flight = *waiting_[which].flight;
  const VerbRun& run = flight.verbs[waiting_[which].verb];
  const std::byte* from = flight.posting != nullptr ? run.op.local.data() : run.payload.data();
  return base::load<std::uint64_t>(from + 8 * word) != word_at(run.target + 8 * word).load(std::memory_order_relaxed);
}

bool Network::pass_until(Nanos when) {
  if (when == base::kNever) return false;
  ++moment_;
  while (!events_.empty() && events_.next() <= when) step();
  now_ = std::max(now_, when);
  settle();
  return true;
}

Nanos Network::next_timer(std::size_t client) const {
  const SimPort& port = *clients_[client];
  return port.timers_.next() == base::kNever ? base::kNever : std::max(now_, port.clock_.when(port.timers_.next()));
}

bool Network::pass() { return pass_until(events_.empty() ? base::kNever : events_.next()); }

std::uint64_t Network::fingerprint() const {
  std::uint64_t hash = base::mix(memory_ ^ static_cast<std::uint64_t>(now_));
  for (const auto& node : nodes_) hash = base::mix(hash ^ node->told_);
  for (const auto& client : clients_) {
    hash = base::mix(hash ^ client->told_) + static_cast<std::uint64_t>(client->state_);
  }
  for (const auto& link : links_) {
    hash = base::mix(hash) + (link->open ? 1 : 0);
    for (const auto& flight : link->flights) hash = base::mix(hash ^ flight->seen());
  }
  return hash;
}

}  // namespace farpool::fabric::sim
