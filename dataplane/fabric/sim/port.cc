// SPDX-License-Identifier: Apache-2.0
// The client: its thread, and how it opens lanes.
#include <algorithm>
#include <coroutine>
#include <memory>
#include <optional>

#include "base/hash.h"
#include "fabric/sim/lane.h"
#include "fabric/sim/network.h"

namespace farpool::fabric::sim {
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

}  // namespace farpool::fabric::sim
