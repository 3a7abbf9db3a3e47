// SPDX-License-Identifier: Apache-2.0
// What verbs do at a memory node once it is their time, and the answers of their chains.
#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "base/marks.h"
#include "fabric/sim/lane.h"
#include "fabric/sim/network.h"
#include "fabric/words.h"

namespace farpool::fabric::sim {

void Network::execute_words(const Ref<Flight>& flight, std::size_t verb, std::uint64_t first, std::uint64_t last) {
  Link& link = *flight->link;
  VerbRun& run = flight->verbs[verb];
  const std::uint64_t words = last - first;
  const bool reads = run.op.verb == Verb::read;
  const bool whole = reads || (link.client->unmoved_by(words) && !is_overwritten(link, run.target + 8 * first, words));
  if (!steered_ && whole) {  // nothing can come in between
    if (!link.open || run.dropped) return;
    std::byte* const target = run.target + 8 * first;
    if (reads) {
      if (flight->posting != nullptr) read_words(target, run.op.local.subspan(8 * first, 8 * words));
    } else {
      const base::Bytes from = flight->posting != nullptr ? base::Bytes(run.op.local) : base::Bytes(run.payload);
      write_words(target, from.subspan(8 * first, 8 * words));
      link.client->effects_ += words;
    }
    trace_.note_words(run.op.at.offset + 8 * first, target, words, reads ? 1 : 2);
    run.left -= words;
    if (run.left == 0) executed(flight, verb);
    return;
  }
  for (std::uint64_t i = first; i < last; ++i) {
    if (!link.open || run.dropped) return;
    auto word = word_at(run.target + 8 * i);
    if (run.op.verb == Verb::read) {
      const std::uint64_t value = word.load(std::memory_order_relaxed);
      if (flight->posting != nullptr) base::store(run.op.local.data() + 8 * i, value);
      trace_.note(run.op.at.offset + 8 * i, value, 1);
      if (steered_) run.seen ^= base::mix(base::mix(i + 1) + value);
    } else {
      if (!link.client->may_land()) return;
      const std::byte* from = flight->posting != nullptr ? run.op.local.data() : run.payload.data();
      const auto value = base::load<std::uint64_t>(from + 8 * i);
      if (steered_) {
        changed(link, {run.op.at.region, run.op.at.offset + 8 * i}, word.load(std::memory_order_relaxed), value);
      }
      if (!is_overwritten(link, run.target + 8 * i, 1)) word.store(value, std::memory_order_relaxed);
      trace_.note(run.op.at.offset + 8 * i, value, 2);
      link.client->landed();
    }
    --run.left;
  }
  if (run.left == 0) executed(flight, verb);
}

// Says whether an atomic of another lane that changes one of the words now is to store behind this WRITE.
bool Network::is_overwritten(const Link& link, const std::byte* first, std::uint64_t words) {
  while (!changing_.empty() && changing_.front().until <= now_) changing_.pop_front();
  return std::any_of(changing_.begin(), changing_.end(), [&](const Changing& one) {
    return one.lane != &link && one.word >= first && one.word < first + 8 * words;
  });
}

void Network::execute_atomic(const Ref<Flight>& flight, std::size_t verb) {
  Link& link = *flight->link;
  VerbRun& run = flight->verbs[verb];
  if (!link.open || run.dropped || !link.client->may_land()) return;
  std::uint64_t old = 0;
  switch (run.op.verb) {
    case Verb::cas:
      old = masked_cas_word(run.target, run.op.compare, ~0ull, run.op.swap, ~0ull);
      break;
    case Verb::masked_cas:
      old = masked_cas_word(run.target, run.op.compare, run.op.compare_mask, run.op.swap, run.op.swap_mask);
      break;
    default:
      old = fetch_add_word(run.target, run.op.swap);
      break;
  }
  if (flight->posting != nullptr && run.op.old != nullptr) *run.op.old = old;
  const bool takes_time = !steered_ && times_ == nullptr && !options_.whole && options_.atomic_time > 0;
  if (takes_time && word_at(run.target).load(std::memory_order_relaxed) != old) {
    changing_.push_back({&link, run.target, now_ + options_.atomic_time});
  }
  if (steered_) {
    run.seen = base::mix(old + 1);
    changed(link, run.op.at, old, word_at(run.target).load(std::memory_order_relaxed));
  }
  trace_.note(run.op.at.offset, old, 3);
  link.client->landed();
  executed(flight, verb);
}

// It has come in, and waits for a service thread.
void Network::begin_service_call(const Ref<Flight>& flight, std::size_t verb) {
  if (!flight->link->open || flight->verbs[verb].dropped) return;
  const auto span = static_cast<std::uint64_t>(options_.max_service - options_.min_service) + 1;
  const Nanos time = options_.min_service + static_cast<Nanos>(random_.below(span));
  at(flight->link->node->occupy_thread(options_.service_threads, now_, time),
     [this, flight, verb] { execute_call(flight, verb); });
}

void Network::execute_call(const Ref<Flight>& flight, std::size_t verb) {
  Link& link = *flight->link;
  VerbRun& run = flight->verbs[verb];
  if (!link.open || run.dropped) return;
  if (is_service_call(run.op)) {
    if (link.client->may_land()) execute_service_call(flight, verb);
    return;
  }
  if (link.node->held_) {
    run.started = false;
    flight->begun = verb;
    return;
  }
  if (!link.client->may_land()) return;
  if (flight->posting != nullptr) run.payload.assign(run.op.local.begin(), run.op.local.end());
  std::vector<std::byte> reply(run.op.reply.size());
  const auto bytes = link.node->host_->on_call(link.rights.session_id, run.op.opcode, run.payload, reply);
  trace_.note(run.op.opcode, bytes.value_or(~0ull), 4);
  if (steered_) {
    const auto hash = [](base::Bytes of) { return base::keyed_hash({}, of); };
    run.seen = base::mix(hash(base::Bytes(reply).first(bytes.value_or(0))) + bytes.value_or(~0ull));
    SimResponder& node = *link.node;
    node.told_ =
        base::mix(node.told_ ^ base::mix(link.rights.session_id + run.op.opcode) ^ hash(run.payload) ^ run.seen);
  }
  link.client->landed();
  if (!link.open) return;  // the host fenced the session meanwhile
  if (!bytes) return call_refused(flight, verb, Refusal::none);
  FARPOOL_CHECK(*bytes <= reply.size());
  reply.resize(*bytes);
  call_done(flight, verb, std::move(reply));
}

// Nothing that was posted behind it executes.
void Network::call_refused(const Ref<Flight>& flight, std::size_t verb, Refusal why) {
  Link& link = *flight->link;
  bool behind = false;
  for (const auto& other : link.flights) {
    if (behind) {
      for (VerbRun& later : other->verbs) later.dropped = later.dropped || !later.executed;
    }
    behind = behind || other == flight;
  }
  link.refused = true;
  flight->refused = true;
  flight->why = why;
  flight->left = 0;
  flight->verbs[verb].dropped = true;
  if (is_service_call(flight->verbs[verb].op)) refuse(flight);  // which may stand behind CALLs that are held
  advance(flight->link);
}

void Network::call_done(const Ref<Flight>& flight, std::size_t verb, std::vector<std::byte> reply) {
  flight->reply_bytes = static_cast<std::uint32_t>(reply.size());
  flight->reply = std::move(reply);
  executed(flight, verb);
}

void Network::executed(const Ref<Flight>& flight, std::size_t verb) {
  if (!flight->link->open || flight->verbs[verb].dropped) return;
  flight->verbs[verb].executed = true;
  for (std::size_t earlier = flight->whole; earlier < verb; ++earlier) {
    if (!flight->verbs[earlier].executed) FARPOOL_MARK(sim_verbs_changed_places);
  }
  while (flight->whole < flight->verbs.size() && flight->verbs[flight->whole].executed) ++flight->whole;
  if (--flight->left == 0 && !flight->refused) this->reply(flight);
  if (!options_.whole) advance(flight->link);
}

void Network::reply(const Ref<Flight>& flight) {
  flight->answered = true;
  if (steered_ ? lose_next_ : random_.chance(options_.lose_reply)) return;
  if (times_ == nullptr) return come(flight, now_ + message_delay());
  const Picos leaves = times_->told(flight->link->clock, picos(now_));
  if (nanos(leaves) <= now_ + kAhead) return leave(flight, leaves);
  at(nanos(leaves), [this, flight, leaves] { leave(flight, leaves); });
}

void Network::leave(const Ref<Flight>& flight, Picos leaves) {
  const Link& link = *flight->link;
  come(flight, nanos(times_->answer(link.node->index_, link.client->index_, leaves, flight->answer_bytes,
                                    flight->verbs.size())));
}

void Network::come(const Ref<Flight>& flight, Nanos when) {
  at(when, [flight] {
    flight->link->client->turn([flight] {
      SimLane* lane = flight->link->lane;
      if (lane != nullptr && lane->open() && flight->posting != nullptr) lane->done(flight);
    });
  });
}

void Network::refuse(const Ref<Flight>& flight) {
  flight->answered = true;
  SimPort* client = flight->link->client;
  at(now_ + message_delay(), [client, flight] {
    client->turn([flight] {
      SimLane* lane = flight->link->lane;
      if (lane != nullptr && lane->open() && flight->posting != nullptr) lane->end(flight.get());
    });
  });
}

void Network::close(Link& link) {
  link.open = false;
  link.flights.clear();
}

// A severed lane's verbs land up to some point, which nobody knows.
void Network::cut_tail(SimLane& lane) {
  if (steered_) return;  // they wait until they are executed, or a fence drops them
  std::vector<VerbRun*> waiting;
  for (const auto& flight : lane.flights()) {
    for (VerbRun& run : flight->verbs) {
      if (!run.started && !run.executed && !run.dropped) waiting.push_back(&run);
    }
  }
  if (waiting.empty() || random_.chance(0.4)) return;
  for (std::size_t i = random_.below(waiting.size() + 1); i < waiting.size(); ++i) waiting[i]->dropped = true;
}

}  // namespace farpool::fabric::sim
