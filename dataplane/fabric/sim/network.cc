// SPDX-License-Identifier: Apache-2.0
#include "fabric/sim/network.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/marks.h"
#include "fabric/sim/lane.h"

namespace farpool::fabric::sim {
namespace {

constexpr std::uint64_t kFetched = 512;  // bytes of a verb that are fetched ahead
constexpr std::uint64_t kPieces = 64;    // longer verbs tear into this many runs of words at most

bool is_atomic(Verb verb) { return verb == Verb::cas || verb == Verb::masked_cas || verb == Verb::fetch_add; }

// Says whether the contract orders `first` before `second`, which was posted later on the same lane.
bool ordered(const Op& first, const Op& second) {
  if (first.verb == Verb::write) return true;
  if (is_atomic(first.verb)) return second.verb == Verb::read || second.fence;
  if (first.verb == Verb::read) return second.fence;
  return false;
}

}  // namespace

// ---- clocks ---------------------------------------------------------------------------------------------------------

namespace {
constexpr std::int64_t kMillion = 1'000'000;
constexpr Nanos kFarAway = 1ll << 56;  // two years; no product below overflows before it
}  // namespace

Clock::Clock(Nanos offset, std::int64_t drift_ppm) : offset_(offset), drift_ppm_(drift_ppm) {
  FARPOOL_CHECK(offset >= 0 && drift_ppm >= -990'000 && drift_ppm < kMillion);
}

Nanos Clock::at(Nanos time) const {
  if (drift_ppm_ == 0) return offset_ + time;
  return offset_ + time + time / kMillion * drift_ppm_ + time % kMillion * drift_ppm_ / kMillion;
}

Nanos Clock::when(Nanos shown) const {
  if (shown >= kFarAway) return base::kNever;
  const Nanos run = std::max<Nanos>(shown - offset_, 0);
  if (drift_ppm_ == 0) return run;
  const std::int64_t pace = kMillion + drift_ppm_;
  Nanos time = run / pace * kMillion + run % pace * kMillion / pace;
  while (at(time) < shown) ++time;
  while (time > 0 && at(time - 1) >= shown) --time;
  return time;
}

// ---- the network ----------------------------------------------------------------------------------------------------

namespace {

Caps caps_of(const Options& options) {
  return {.calls_in_flight = options.calls_in_flight,
          .call_bytes = options.calls_in_flight > 0 ? kMaxServiceBytes : 0,
          .retry_time = options.retry_time};
}

}  // namespace

Caps SimPort::caps() const { return caps_of(network_->options()); }

Caps SimResponder::caps() const { return caps_of(network_.options()); }

void bury(std::shared_ptr<void> what) {
  static auto* graves = new std::vector<std::shared_ptr<void>>;
  graves->push_back(std::move(what));
}

Network::Network(Options options) : options_(options), random_(options.seed), trace_(options.keep_chains) {
  if (options.timing.nic != nullptr) times_ = std::make_unique<TimeModel>(options.timing, base::mix(options.seed + 1));
}

Network::~Network() {
  // A crashed client's frames are still suspended on its port and on its flights.
  for (auto& client : clients_) {
    if (client->crashed()) bury(std::shared_ptr<SimPort>(std::move(client)));
  }
  for (auto& link : links_) {
    link->flights.clear();
    if (link->lane != nullptr) bury(std::make_shared<Ref<Link>>(link));
  }
}

SimResponder& Network::add_node(std::string endpoint) {
  const Clock clock = draw_clock(2 * nodes_.size());
  nodes_.push_back(std::unique_ptr<SimResponder>(
      new SimResponder(*this, nodes_.size(), std::move(endpoint), random_.next(), clock)));
  return *nodes_.back();
}

SimPort& Network::add_client(Peer peer) {
  const Clock clock = draw_clock(2 * clients_.size() + 1);
  clients_.push_back(
      std::unique_ptr<SimPort>(new SimPort(*this, clients_.size(), std::move(peer), random_.next(), clock)));
  return *clients_.back();
}

// From a stream of its own, so that a run without drift is the same run.
Clock Network::draw_clock(std::uint64_t machine) const {
  base::Random random(base::mix(options_.seed) + machine);
  const auto within = [&random](std::int64_t span) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(span) + 1));
  };
  const Nanos offset = within(options_.max_offset);
  return {offset, within(2 * options_.max_drift_ppm) - options_.max_drift_ppm};
}

SimResponder* Network::node(const std::string& endpoint) {
  for (const auto& node : nodes_) {
    if (node->endpoint_ == endpoint && node->host_ != nullptr) return node.get();
  }
  return nullptr;
}

bool Network::step() {
  if (unrung_ > 0) {  // what was spawned from outside
    for (std::size_t i = 0; i < clients_.size(); ++i) clients_[i]->ring();
  }
  if (events_.empty()) return false;
  now_ = events_.next();
  events_.run();
  return true;
}

bool Network::run_until(const std::function<bool()>& done, Nanos limit) {
  for (std::uint64_t steps = 0; !done(); ++steps) {
    if (now_ > limit || steps == kMostSteps || !step()) return false;
  }
  return true;
}

bool Network::drain(SimPort& client, Nanos limit) {
  return run_until([&client] { return client.in_flight() == 0; }, limit);
}

Nanos Network::message_delay() {
  if (steered_) return 0;
  if (times_ != nullptr) return nanos(times_->control());
  const auto within = [this](Nanos span) {
    return static_cast<Nanos>(random_.below(static_cast<std::uint64_t>(span) + 1));
  };
  Nanos delay = options_.min_delay + within(options_.max_delay - options_.min_delay);
  if (random_.chance(options_.straggle)) delay += within(options_.straggle_delay);
  return delay;
}

Nanos Network::execution_delay() {
  if (steered_) return 0;
  if (times_ != nullptr) return nanos(times_->fence());
  const auto within = [this](Nanos span) {
    return static_cast<Nanos>(random_.below(static_cast<std::uint64_t>(span) + 1));
  };
  Nanos delay = within(options_.spread);
  if (random_.chance(options_.straggle)) delay += within(options_.straggle_delay);
  return delay;
}

// A chain reaches the memory node. Rights are looked at here, in posting order: nothing behind a refused verb executes.
void Network::arrive(const Ref<Flight>& flight) {
  Link& link = *flight->link;
  flight->arrived = true;
  for (std::size_t i = 0; i < flight->verbs.size(); ++i) {
    VerbRun& run = flight->verbs[i];
    if (times_ != nullptr) run.there = times_->arrive(link.node->index_, picos(now_), run.op);
    if (!link.open || link.refused) run.dropped = true;
    if (run.dropped) continue;
    bool fits = true;
    switch (run.op.verb) {
      case Verb::read:
      case Verb::write:
        run.left = run.op.local.size() / 8;
        run.target = link.resolve(run.op.verb, run.op.at, run.op.local.size());
        fits = run.target != nullptr && run.op.local.size() <= Caps{}.max_verb_bytes;
        break;
      case Verb::cas:
      case Verb::masked_cas:
      case Verb::fetch_add:
        run.target = link.resolve(run.op.verb, run.op.at, 8);
        fits = run.target != nullptr;
        break;
      case Verb::call:
        if (!is_service_call(run.op)) break;
        if (link.rights.service == nullptr) {
          fits = false;
          flight->why = Refusal::no_service;
        } else if (!steered_ && random_.chance(options_.lose_call)) {
          FARPOOL_MARK(sim_request_lost);
          run.dropped = true;
        }
        break;
    }
    if (fits) {
      // It executes some events from now: until then its words come out of memory.
      const std::uint64_t near = run.target == nullptr ? 0 : std::clamp<std::uint64_t>(8 * run.left, 8, kFetched);
      for (std::uint64_t i = 0; i < near; i += 64) __builtin_prefetch(run.target + i);
      continue;
    }
    link.refused = true;
    flight->refused = true;
    flight->left = i;
    run.dropped = true;
  }
  advance(flight->link);
}

// Starts every verb whose order allows it, and takes leave of chains that are over.
void Network::advance(const Ref<Link>& link) {
  if (times_ != nullptr) {
    begin_in_time(link);
  } else if (options_.whole) {
    execute_whole(link);
  } else {
    start_ready(link);
  }
  // A chain is done with when nothing of it is left; a refusal is told when all that stood before it has executed.
  while (!link->flights.empty()) {
    const Ref<Flight>& flight = link->flights.front();
    if (!flight->arrived) break;
    if (flight->refused && flight->left == 0 && !flight->answered) refuse(flight);
    const bool over = std::all_of(flight->verbs.begin(), flight->verbs.end(),
                                  [](const VerbRun& run) { return run.executed || run.dropped; });
    if (!over) break;
    link->flights.pop_front();
  }
}

void Network::execute_whole(const Ref<Link>& link) {
  for (std::size_t i = 0; i < link->flights.size(); ++i) {  // a CALL may close the lane
    const Ref<Flight> flight = link->flights[i];
    if (!flight->arrived) return;
    for (std::size_t verb = 0; verb < flight->verbs.size() && link->open; ++verb) {
      VerbRun& run = flight->verbs[verb];
      if (run.executed || run.dropped) continue;
      switch (run.op.verb) {
        case Verb::read:
        case Verb::write:
          execute_words(flight, verb, 0, run.left);
          break;
        case Verb::cas:
        case Verb::masked_cas:
        case Verb::fetch_add:
          execute_atomic(flight, verb);
          break;
        case Verb::call:
          if (run.started) break;  // its service holds it
          if (link->node->held_ && !is_service_call(run.op)) return;
          execute_call(flight, verb);
          break;
      }
    }
  }
}

void Network::start_ready(const Ref<Link>& link) {
  std::vector<const Op*> before;  // earlier verbs that have not executed
  std::vector<std::pair<Ref<Flight>, std::size_t>> ready;
  for (const auto& flight : link->flights) {
    if (!flight->arrived) break;
    for (std::size_t i = 0; i < flight->verbs.size(); ++i) {
      VerbRun& run = flight->verbs[i];
      if (run.executed || run.dropped) continue;
      const bool waits =
          std::any_of(before.begin(), before.end(), [&run](const Op* earlier) { return ordered(*earlier, run.op); });
      const bool held = run.op.verb == Verb::call && link->node->held_ && !is_service_call(run.op);
      if (!run.started && !waits && !held) ready.emplace_back(flight, i);
      before.push_back(&run.op);
    }
  }
  for (const auto& [flight, verb] : ready) start(flight, verb);
}

// Verbs begin in posting order, and execute in it. An atomic or a CALL begins when it is its time, and not before:
// others compete with it.
void Network::begin_in_time(const Ref<Link>& link) {
  if (link->waits) return;
  for (const auto& flight : link->flights) {
    if (!flight->arrived) return;
    for (; flight->begun < flight->verbs.size(); ++flight->begun) {
      const std::size_t verb = flight->begun;
      VerbRun& run = flight->verbs[verb];
      if (run.dropped) continue;
      if (run.op.verb == Verb::call && link->node->held_ && !is_service_call(run.op)) return;
      const bool words = run.op.verb == Verb::read || run.op.verb == Verb::write;
      const Picos begin = times_->earliest(link->clock, run.there, run.op);
      if (nanos(begin) > now_ + (words ? kAhead : 0)) {
        link->waits = true;
        at(nanos(begin), [this, link] {
          link->waits = false;
          begin_in_time(link);
        });
        return;
      }
      run.started = true;
      if (is_service_call(run.op)) {
        const Nanos ready = nanos(std::max(begin, link->clock.executed));  // behind the WRITEs of its lane
        at(ready, [this, flight, verb] { begin_service_call(flight, verb); });
        continue;
      }
      const Nanos when = nanos(times_->begin(link->node->index_, link->clock, begin, run.op));
      if (words && run.left > 0) {
        at(when, [this, flight, verb] { execute_words(flight, verb, 0, flight->verbs[verb].left); });
      } else if (words) {
        at(when, [this, flight, verb] { executed(flight, verb); });
      } else if (run.op.verb == Verb::call) {
        at(when, [this, flight, verb] { execute_call(flight, verb); });
      } else {
        at(when, [this, flight, verb] { execute_atomic(flight, verb); });
      }
    }
  }
}

void Network::start(const Ref<Flight>& flight, std::size_t verb) {
  VerbRun& run = flight->verbs[verb];
  run.started = true;
  if (steered_) {
    const bool words = run.op.verb == Verb::read || run.op.verb == Verb::write;
    Waiting waiting{.client = flight->link->client->index(),
                    .node = flight->link->node->index_,
                    .lane = flight->link->number,
                    .chain = flight->number,
                    .verb = verb,
                    .op = run.op,
                    .last = words ? run.left : 1};
    waiting.flight = flight;
    waiting_.push_back(std::move(waiting));
    return;
  }
  // A fence is the requester's: it costs the trip that it waits for.
  const Nanos begin = now_ + (run.op.fence ? message_delay() + message_delay() : 0) + execution_delay();
  switch (run.op.verb) {
    case Verb::read:
    case Verb::write: {
      if (run.left == 0) {
        at(begin, [this, flight, verb] { executed(flight, verb); });
        return;
      }
      const std::uint64_t words = run.left;
      const std::uint64_t pieces = options_.tear ? std::min(words, kPieces) : 1;
      for (std::uint64_t piece = 0; piece < pieces; ++piece) {
        const std::uint64_t first = words * piece / pieces, last = words * (piece + 1) / pieces;
        at(begin + (pieces > 1 ? execution_delay() : 0),
           [this, flight, verb, first, last] { execute_words(flight, verb, first, last); });
      }
      return;
    }
    case Verb::cas:
    case Verb::masked_cas:
    case Verb::fetch_add:
      at(begin, [this, flight, verb] { execute_atomic(flight, verb); });
      return;
    case Verb::call:
      if (is_service_call(run.op)) return at(begin, [this, flight, verb] { begin_service_call(flight, verb); });
      at(begin, [this, flight, verb] { execute_call(flight, verb); });
      return;
  }
}

}  // namespace farpool::fabric::sim
