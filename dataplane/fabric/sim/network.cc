// SPDX-License-Identifier: Apache-2.0
#include "fabric/sim/network.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/marks.h"
#include "fabric/cost.h"
#include "fabric/words.h"

namespace farpool::fabric::sim {
namespace {

constexpr Picos kPicosPerNano = 1000;
Picos picos(Nanos nanos) { return nanos * kPicosPerNano; }
Nanos nanos(Picos picos) { return (picos + kPicosPerNano - 1) / kPicosPerNano; }

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

template <class What>
void SimPort::turn(const What& what) {
  if (state_ == State::crashed) return;
  if (state_ == State::paused) {
    FARPOOL_MARK(sim_turn_of_a_stopped_thread);
    deferred_.push_back(what);
    return;
  }
  what();
  ring();
}

class SimLane final : public Lane {
 public:
  SimLane(SimPort& port, Ref<Link> link) : port_(port), link_(std::move(link)), late_(*this) { link_->lane = this; }
  ~SimLane() override {
    FARPOOL_CHECK(pending_ == 0);
    port_.disarm(late_);
    link_->lane = nullptr;
    if (open_) port_.network_->close(*link_);
    port_.network_->unrung_ -= std::erase(port_.dirty_, this);
  }

  void enqueue(Posting& posting) noexcept override {
    ++pending_;
    if (!open_) {
      complete_soon({&posting}, refused_ ? Fate::refused : Fate::maybe);
      return;
    }
    queued_.push_back(&posting);
    if (queued_.size() == 1) ring_soon();
    watch(posting.deadline);
  }
  void sever() noexcept override { end(nullptr); }
  bool open() const noexcept override { return open_; }
  std::size_t pending() const noexcept override { return pending_; }

  // One doorbell for all that was queued in this turn.
  void ring() {
    if (queued_.empty() || must_wait(*queued_.front())) return;
    ++stats_.doorbells;
    Network& network = *port_.network_;
    std::vector<Posting*> postings = std::exchange(queued_, std::move(spare_));
    for (std::size_t i = 0; i < postings.size(); ++i) {
      Posting& posting = *postings[i];
      if (must_wait(posting)) {  // and so must all that is behind it
        queued_.assign(postings.begin() + static_cast<std::ptrdiff_t>(i), postings.end());
        break;
      }
      if (!posting.ops.empty() && is_service_call(posting.ops[0])) ++calls_;
      ++stats_.chains;
      stats_.messages += posting.ops.size();
      const Ref<Flight> flight = network.flights_.take();
      for (const Op& op : posting.ops) {
        flight->request_bytes += request_bytes(op);
        flight->answer_bytes += reply_bytes(op);
      }
      stats_.bytes += flight->request_bytes + flight->answer_bytes;
      flight->link = link_;
      flight->posting = &posting;
      flight->record = network.trace().post(port_.index_, link_->number, network.now(), posting.ops);
      flight->left = posting.ops.size();
      flight->number = link_->sent++;
      flight->verbs.reserve(posting.ops.size());
      for (const Op& op : posting.ops) flight->verbs.push_back({.op = op});
      flights_.push_back(flight);
      if (!is_chain(posting.ops)) {
        for (; i < postings.size(); ++i) {
          if (postings[i] != &posting) orphans_.push_back(postings[i]);
        }
        flight->why = why_no_chain(posting.ops);
        end(flight.get());
        return;
      }
      link_->flights.push_back(flight);
      const Nanos arrival = network.times_ == nullptr
                                ? network.now() + network.message_delay()
                                : nanos(network.times_->depart(port_.index_, picos(network.now()),
                                                               flight->request_bytes, posting.ops.size()));
      link_->last_arrival = std::max(link_->last_arrival, arrival);
      network.at(link_->last_arrival, [&network, flight] { network.arrive(flight); });
    }
    postings.clear();
    spare_ = std::move(postings);
  }

  // The answer of a chain that executed whole.
  void done(const Ref<Flight>& flight) {
    Posting& posting = *flight->posting;
    if (!flight->reply.empty()) std::copy(flight->reply.begin(), flight->reply.end(), posting.ops[0].reply.begin());
    posting.outcome = {.fate = Fate::done, .reply_bytes = flight->reply_bytes};
    port_.told_ = base::mix(port_.told_ ^ flight->seen());
    flight->posting = nullptr;
    std::erase(flights_, flight);
    if (is_service_call(posting.ops[0])) {
      --calls_;
      if (!queued_.empty()) ring_soon();
    }
    port_.network_->trace().end(flight->record, port_.network_->now(), Fate::done);
    --pending_;
    posting.waiter.resume();  // may destroy this lane
  }

  // The lane ends: `refused` ends so, all else ends `maybe`. Completions come in a later turn, so that sever() resumes
  // nobody.
  void end(Flight* refused) {
    if (!open_) return;
    open_ = false;
    refused_ = refused != nullptr;
    port_.disarm(late_);
    port_.network_->cut_tail(*this);
    std::vector<Posting*> others;
    for (const auto& flight : flights_) {
      if (flight.get() != refused) others.push_back(flight->posting);
    }
    others.insert(others.end(), orphans_.begin(), orphans_.end());
    others.insert(others.end(), queued_.begin(), queued_.end());
    orphans_.clear();
    queued_.clear();
    if (refused != nullptr) complete_soon({refused->posting}, Fate::refused, refused->why);
    complete_soon(std::move(others), Fate::maybe);
  }

  const std::vector<Ref<Flight>>& flights() const { return flights_; }

 private:
  struct Late final : Timer {
    explicit Late(SimLane& lane) : lane(lane) {}
    void fire() noexcept override { lane.look_for_late(); }
    SimLane& lane;
  };

  void watch(Nanos deadline) {
    if (deadline == base::kNever || deadline >= watched_) return;
    watched_ = deadline;
    port_.disarm(late_);
    late_.when = deadline;
    port_.arm(late_);
  }
  void look_for_late() {
    watched_ = base::kNever;
    Nanos next = base::kNever;
    for (const auto& flight : flights_) next = std::min(next, flight->posting->deadline);
    for (const Posting* posting : queued_) next = std::min(next, posting->deadline);
    if (next <= port_.now()) {
      end(nullptr);
    } else {
      watch(next);
    }
  }

  bool must_wait(const Posting& posting) const {
    return !posting.ops.empty() && is_service_call(posting.ops[0]) &&
           calls_ == port_.network_->options().calls_in_flight;
  }
  void ring_soon() {
    if (std::find(port_.dirty_.begin(), port_.dirty_.end(), this) != port_.dirty_.end()) return;
    port_.dirty_.push_back(this);
    ++port_.network_->unrung_;
  }

  void complete_soon(std::vector<Posting*> postings, Fate fate, Refusal why = Refusal::none) {
    if (postings.empty()) return;
    Network& network = *port_.network_;
    network.at(network.now(), [this, &port = port_, postings = std::move(postings), fate, why] {
      port.turn([this, postings, fate, why] { complete(postings, fate, why); });
    });
  }
  void complete(const std::vector<Posting*>& postings, Fate fate, Refusal why) {
    for (Posting* posting : postings) release(posting, fate);
    for (Posting* posting : postings) {
      port_.told_ = base::mix(port_.told_ ^ (0xfa7e + static_cast<std::uint64_t>(fate)));
      posting->outcome = {.fate = fate, .why = why};
      --pending_;
      posting->waiter.resume();  // the last one may destroy this lane
    }
  }
  // The client's memory belongs to the client again: what WRITEs still need is copied, what READs were to fill is
  // garbage.
  void release(Posting* posting, Fate fate) {
    const auto found =
        std::find_if(flights_.begin(), flights_.end(), [&](const auto& flight) { return flight->posting == posting; });
    if (found == flights_.end()) return;
    const Ref<Flight> flight = std::move(*found);
    flights_.erase(found);
    Network& network = *port_.network_;
    for (VerbRun& run : flight->verbs) {
      if (run.op.verb == Verb::write || run.op.verb == Verb::call) {
        run.payload.assign(run.op.local.begin(), run.op.local.end());
      } else if (run.op.verb == Verb::read) {
        const std::uint64_t garbage = network.random().next();
        for (std::size_t i = 0; i + 8 <= run.op.local.size(); i += 8) base::store(run.op.local.data() + i, garbage + i);
      } else if (run.op.old != nullptr) {
        *run.op.old = network.random().next();
      }
    }
    flight->posting = nullptr;
    network.trace().end(flight->record, network.now(), fate);
  }

  friend class Network;
  SimPort& port_;
  Ref<Link> link_;
  bool open_ = true;
  bool refused_ = false;
  std::size_t pending_ = 0;
  std::uint32_t calls_ = 0;        // for data, sent and not done
  std::vector<Posting*> queued_;   // until the doorbell rings
  std::vector<Posting*> spare_;    // room for the next ones
  std::vector<Posting*> orphans_;  // behind a chain that could not be sent
  std::vector<Ref<Flight>> flights_;
  Late late_;
  Nanos watched_ = base::kNever;
};

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

// ---- the client -----------------------------------------------------------------------------------------------------

namespace {

// Waits for an answer of the session port, or for the deadline. It lives in a coroutine frame; messages hold the slot.
template <class T>
class Answer final : public Timer {
 public:
  struct Slot {
    Answer* answer = nullptr;
  };
  Answer(Port& port, Nanos deadline) : port_(port), slot_(std::make_shared<Slot>(Slot{this})) {
    when = deadline;
    port_.arm(*this);
  }
  Answer(const Answer&) = delete;
  ~Answer() {
    slot_->answer = nullptr;
    port_.disarm(*this);
  }
  std::shared_ptr<Slot> slot() const { return slot_; }

  static void give(const std::shared_ptr<Slot>& slot, T value) {
    if (slot->answer == nullptr || slot->answer->over_) return;
    slot->answer->value_.emplace(std::move(value));
    slot->answer->finish();
  }
  void fire() noexcept override { finish(); }

  bool await_ready() const noexcept { return over_; }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { waiter_ = waiter; }
  std::optional<T> await_resume() { return std::move(value_); }

 private:
  void finish() noexcept {
    if (over_) return;
    over_ = true;
    if (waiter_) waiter_.resume();
  }
  Port& port_;
  std::shared_ptr<Slot> slot_;
  std::optional<T> value_;
  std::coroutine_handle<> waiter_;
  bool over_ = false;
};

using Reply = base::Result<std::string>;
using Opened = base::Result<Ref<Link>>;

base::Status nobody_at(const std::string& endpoint) {
  return {base::Code::unavailable, "nobody listens at " + endpoint + ": check the endpoint of the memory node"};
}

}  // namespace

SimPort::SimPort(Network& network, std::size_t index, Peer peer, std::uint64_t seed, Clock clock)
    : network_(&network), index_(index), peer_(std::move(peer)), random_(seed), clock_(clock) {}

SimPort::~SimPort() = default;

namespace {

Caps caps_of(const Options& options) {
  return {.calls_in_flight = options.calls_in_flight,
          .call_bytes = options.calls_in_flight > 0 ? kMaxServiceBytes : 0,
          .retry_time = options.retry_time};
}

}  // namespace

Caps SimPort::caps() const { return caps_of(network_->options()); }

Nanos SimPort::now() const { return clock_.at(network_->now()); }

void SimPort::arm(Timer& timer) {
  timers_.arm(timer);
  wake();
}

// Ensures that there is an event at the time of the first timer, or before. It remembers events: a timer that is far
// ahead gets one event, however many fire until then.
void SimPort::wake() {
  if (timers_.next() == base::kNever) return;
  const Nanos next = std::max(clock_.when(timers_.next()), network_->now());
  if (!wakes_.empty() && wakes_.back() <= next) return;
  wakes_.push_back(next);
  network_->at(next, [this] {
    wakes_.pop_back();  // the first of them
    turn([this] {
      if (timers_.next() > now()) return wake();
      told_ = base::mix(told_ ^ static_cast<std::uint64_t>(now()));
      timers_.fire_due(now());
      wake();
    });
  });
}

void SimPort::ring() {
  if (state_ != State::running) return;
  while (!dirty_.empty()) {
    SimLane* lane = dirty_.back();
    dirty_.pop_back();
    --network_->unrung_;
    lane->ring();
  }
}

void SimPort::pause() {
  if (state_ == State::running) state_ = State::paused;
}

void SimPort::resume() {
  if (state_ != State::paused) return;
  state_ = State::running;
  pause_at_ = ~0ull;
  while (!deferred_.empty() && state_ == State::running) {
    const std::function<void()> what = std::move(deferred_.front());
    deferred_.pop_front();
    what();
    ring();
  }
}

void SimPort::crash_after(std::uint64_t effects, InFlight posted) {
  crash_at_ = effects_ + effects;
  posted_ = posted;
}

void SimPort::pause_after(std::uint64_t effects) { pause_at_ = effects_ + effects; }

void SimPort::crash(InFlight posted) {
  if (state_ == State::crashed) return;
  state_ = State::crashed;
  network_->trace_.note(index_, effects_, 0xdead);
  if (posted == InFlight::lands) return;
  for (const auto& link : network_->links_) {
    if (link->client == this) network_->close(*link);
  }
}

void SimPort::revive() {
  if (state_ != State::crashed) return;
  state_ = State::running;
  crash_at_ = ~0ull;
  for (const auto& link : network_->links_) {
    if (link->client != this) continue;
    network_->close(*link);
    if (link->lane != nullptr) link->lane->end(nullptr);
  }
  wake();
}

bool SimPort::may_land() {
  if (effects_ == pause_at_) pause();
  if (effects_ == crash_at_ && state_ != State::crashed) crash(posted_);
  return !(state_ == State::crashed && posted_ == InFlight::cut && effects_ >= crash_at_);
}

void SimPort::landed() {
  ++effects_;
  if (effects_ == pause_at_) pause();
  if (effects_ == crash_at_) crash(posted_);
}

std::size_t SimPort::in_flight() const {
  std::size_t count = 0;
  for (const auto& link : network_->links_) {
    if (link->client != this || !link->open) continue;
    for (const auto& flight : link->flights) {
      for (const VerbRun& run : flight->verbs) count += run.executed || run.dropped ? 0 : 1;
    }
  }
  return count;
}

bool SimPort::cut_off() const {
  return std::none_of(network_->links_.begin(), network_->links_.end(),
                      [this](const auto& link) { return link->client == this && link->open; });
}

task::Task<base::Result<std::string>> SimPort::exchange_with(std::string, std::string endpoint, std::string request,
                                                             Nanos deadline) {
  Network& network = *network_;
  Answer<Reply> answer(*this, deadline);
  const auto slot = answer.slot();
  SimResponder* node = network.node(endpoint);
  const bool lost = network.random_.chance(network.options_.lose_exchange);
  if (node == nullptr) {
    network.at(network.now() + network.message_delay(),
               [this, slot, endpoint] { turn([=] { Answer<Reply>::give(slot, nobody_at(endpoint)); }); });
  } else if (!lost) {
    network.at(network.now() + network.message_delay(), [this, &network, slot, node, request] {
      if (node->host_ == nullptr) return;  // stopped meanwhile
      node->host_->on_exchange(peer_, request, [this, &network, slot](std::string reply) {
        if (network.random_.chance(network.options_.lose_exchange)) return;
        network.at(network.now() + network.message_delay(),
                   [this, slot, reply] { turn([=] { Answer<Reply>::give(slot, Reply(reply)); }); });
      });
    });
  }
  std::optional<Reply> reply = co_await answer;
  if (!reply) co_return base::Status(base::Code::timed_out, "no answer from " + endpoint + " before the deadline");
  co_return std::move(*reply);
}

task::Task<base::Result<std::unique_ptr<Lane>>> SimPort::open_lane(LaneGrant grant, Nanos deadline) {
  Network& network = *network_;
  Answer<Opened> answer(*this, deadline);
  const auto slot = answer.slot();
  const std::string endpoint = grant.endpoint;
  SimResponder* node = network.node(endpoint);
  const bool lost = network.random_.chance(network.options_.lose_exchange);
  if (node == nullptr) {
    network.at(network.now() + network.message_delay(),
               [this, slot, endpoint] { turn([=] { Answer<Opened>::give(slot, nobody_at(endpoint)); }); });
  } else if (!lost) {
    const Nanos connected =
        network.times_ == nullptr ? network.now() : nanos(network.times_->connect(node->index_, picos(network.now())));
    network.at(connected + network.message_delay(), [this, &network, slot, node, grant] {
      if (node->host_ == nullptr) return;  // stopped meanwhile
      auto rights = node->host_->on_open_lane(grant.token);
      Ref<Link> link;
      if (rights) {
        link = Ref<Link>(new Link);
        link->node = node;
        link->client = this;
        link->rights = std::move(*rights);
        for (RegionRight& right : link->rights.regions) {
          if (right.base == node->placed_) right.base = reinterpret_cast<std::byte*>(node->device_.data());
        }
        link->claims = grant.regions;
        link->number = ++network.lanes_opened_;
        network.links_.push_back(link);
      }
      if (network.random_.chance(network.options_.lose_exchange)) return;
      network.at(network.now() + network.message_delay(), [this, slot, link, node] {
        turn([=] {
          Answer<Opened>::give(
              slot, link == nullptr
                        ? Opened(base::Status(base::Code::forbidden, node->endpoint_ + " knows no such lane token"))
                    : link->open
                        ? Opened(link)
                        : Opened(base::Status(base::Code::unavailable, node->endpoint_ + " cut the lane at once")));
        });
      });
    });
  }
  std::optional<Opened> opened = co_await answer;
  if (!opened) co_return base::Status(base::Code::timed_out, "no lane at " + endpoint + " before the deadline");
  if (!opened->ok()) co_return opened->status();
  co_return std::unique_ptr<Lane>(std::make_unique<SimLane>(*this, std::move(**opened)));
}

// ---- the memory node ------------------------------------------------------------------------------------------------

Nanos SimResponder::now() const { return clock_.at(network_.now()); }

void SimResponder::after(Nanos delay, std::function<void()> what) {
  network_.at(clock_.when(now() + std::max<Nanos>(delay, 0)), [this, life = life_, what = std::move(what)] {
    if (life == life_) what();
  });
}

void SimResponder::cut(const Ref<Link>& link) {
  network_.close(*link);
  SimPort* client = link->client;
  network_.at(network_.now() + network_.message_delay(), [client, link] {
    client->turn([link] {
      if (link->lane != nullptr) link->lane->end(nullptr);
    });
  });
}

// What is in flight may land until the lanes are closed, and `done` comes later still.
void SimResponder::fence(std::uint64_t session_id, std::function<void()> done) {
  if (network_.steered_ && network_.fence_waits(*this, session_id, done)) return;
  network_.at(network_.now() + network_.execution_delay(), [this, session_id, life = life_, done = std::move(done)] {
    if (life != life_) return;
    for (const auto& link : network_.links_) {
      if (link->node == this && link->rights.session_id == session_id && link->open) cut(link);
    }
    drain(session_id, [this, life, done] {
      network_.at(network_.now() + network_.execution_delay(), [this, life, done] {
        if (life == life_) done();
      });
    });
  });
}

void SimResponder::stop() {
  ++life_;
  host_ = nullptr;
  held_ = false;
  die_at_ = ~0ull;
  close_desk();
  network_.trace_.note(life_, 0, 0x5709);
  for (const auto& link : network_.links_) {
    if (link->node == this && link->open) cut(link);
  }
  placed_ = nullptr;
  device_.clear();
}

Caps SimResponder::caps() const { return caps_of(network_.options()); }

base::Status SimResponder::place_in_device(base::Bytes region) {
  FARPOOL_CHECK(placed_ == nullptr && region.size() % 8 == 0);
  if (region.size() > device_bytes_) {
    return {base::Code::unavailable,
            "the NIC has " + std::to_string(device_bytes_) + " bytes of its own, not " + std::to_string(region.size())};
  }
  placed_ = region.data();
  device_.resize(region.size() / 8);
  std::memcpy(device_.data(), region.data(), region.size());
  return {};
}

// ---- CALLs for data

// Where one life of a memory node takes the answers of CALLs that its services held. Tickets may outlive it.
class SimResponder::HeldDesk final : public Desk {
 public:
  explicit HeldDesk(SimResponder& node) : node_(&node) {}
  void settle(std::uint64_t, std::uint64_t number, std::optional<base::Bytes> reply) noexcept override {
    if (node_ == nullptr) return;
    std::optional<std::vector<std::byte>> copy;
    if (reply) copy.emplace(reply->begin(), reply->end());
    SimResponder& node = *node_;
    node.network_.at(node.network_.now(), [&node, life = node.life_, number, copy = std::move(copy)] {
      if (life == node.life_) node.settled(number, copy);
    });
  }
  void close() { node_ = nullptr; }

 private:
  SimResponder* node_;
};

class SimResponder::ServedCall final : public Call {
 public:
  ServedCall(SimResponder& node, const Ref<Flight>& flight, std::size_t verb, base::MutableBytes reply)
      : Call(flight->link->rights.session_id, flight->verbs[verb].op.opcode, flight->verbs[verb].payload, reply,
             Hand(&node)),
        node_(node),
        flight_(flight),
        verb_(verb) {}
  Ticket hold() override {
    FARPOOL_CHECK(number_ == 0);
    if (node_.desk_ == nullptr) node_.desk_ = std::make_shared<HeldDesk>(node_);
    number_ = ++node_.last_held_;
    // One that is dead by now holds nothing.
    if (node_.alive()) node_.holding_[number_] = {flight_, verb_, flight_->link->rights.service};
    return {node_.desk_, 0, number_, reply.size()};
  }
  bool taken() const { return number_ != 0; }

 private:
  SimResponder& node_;
  const Ref<Flight>& flight_;
  const std::size_t verb_;
  std::uint64_t number_ = 0;
};

SimResponder::~SimResponder() { close_desk(); }

void SimResponder::close_desk() {
  if (desk_ != nullptr) desk_->close();
  desk_ = nullptr;
  holding_.clear();
  drains_.clear();
  threads_.clear();
}

bool SimResponder::may_write() noexcept {
  die_if_due();
  if (!alive()) return false;
  ++effects_;
  return true;
}

void SimResponder::die_if_due() {
  if (effects_ != die_at_ || !alive()) return;
  FARPOOL_MARK(sim_memory_node_died_in_a_service);
  stop();
}

bool SimResponder::holds(std::uint64_t session_id) const {
  return std::any_of(holding_.begin(), holding_.end(), [session_id](const auto& each) {
    return each.second.flight->link->rights.session_id == session_id;
  });
}

void SimResponder::drain(std::uint64_t session_id, std::function<void()> then) {
  if (!holds(session_id)) return then();
  drains_.push_back({session_id, std::move(then)});
  std::vector<Service*> services;
  for (const auto& [number, held] : holding_) {
    const bool known = std::find(services.begin(), services.end(), held.service) != services.end();
    if (held.flight->link->rights.session_id == session_id && !known) services.push_back(held.service);
  }
  for (Service* service : services) service->release(session_id);
}

void SimResponder::settled(std::uint64_t number, const std::optional<std::vector<std::byte>>& reply) {
  const auto found = holding_.find(number);
  const Held held = found->second;
  holding_.erase(found);
  const Ref<Link> link = held.flight->link;
  if (link->open && reply) {
    network_.call_done(held.flight, held.verb, *reply);
  } else if (link->open) {
    cut(link);
  }
  std::vector<Drain> over;
  for (auto drain = drains_.begin(); drain != drains_.end();) {
    if (holds(drain->session_id)) {
      ++drain;
    } else {
      over.push_back(std::move(*drain));
      drain = drains_.erase(drain);
    }
  }
  for (const Drain& each : over) each.then();
}

Nanos SimResponder::occupy_thread(std::size_t threads, Nanos now, Nanos time) {
  threads_.resize(std::max<std::size_t>(threads, 1));
  Nanos& free = *std::min_element(threads_.begin(), threads_.end());
  return free = std::max(free, now) + time;
}

void SimResponder::hold_calls(bool held) {
  held_ = held;
  if (held) return;
  for (const auto& link : std::vector(network_.links_)) {
    if (link->node == this) network_.advance(link);
  }
}

void bury(std::shared_ptr<void> what) {
  static auto* graves = new std::vector<std::shared_ptr<void>>;
  graves->push_back(std::move(what));
}

// ---- the network ----------------------------------------------------------------------------------------------------

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

void Network::execute_service_call(const Ref<Flight>& flight, std::size_t verb) {
  const Ref<Link> link = flight->link;
  SimResponder& node = *link->node;
  VerbRun& run = flight->verbs[verb];
  run.started = true;
  if (flight->posting != nullptr) run.payload.assign(run.op.local.begin(), run.op.local.end());
  std::vector<std::byte> reply(run.op.reply.size());
  SimResponder::ServedCall call(node, flight, verb, reply);
  const Served served = link->rights.service->serve(call);
  FARPOOL_CHECK(call.taken() == (served.kind() == Served::Kind::held) && served.bytes() <= reply.size());
  node.die_if_due();
  trace_.note(run.op.opcode, served.bytes(), 4);
  reply.resize(served.bytes());
  if (steered_) {
    const auto hash = [](base::Bytes of) { return base::keyed_hash({}, of); };
    run.seen = base::mix(hash(reply) + static_cast<std::uint64_t>(served.kind()));
    node.told_ = base::mix(node.told_ ^ base::mix(link->rights.session_id + run.op.opcode) ^ hash(run.payload) ^
                           run.seen ^ node.effects_);
  }
  link->client->landed();
  if (!link->open) return;  // the memory node has died
  if (served.kind() == Served::Kind::refused) return call_refused(flight, verb, served.why());
  if (served.kind() == Served::Kind::done) call_done(flight, verb, std::move(reply));
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

// ---- steering -------------------------------------------------------------------------------------------------------

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
