// SPDX-License-Identifier: Apache-2.0
// The memory node: fences, its death, and the CALLs that its services hold.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/hash.h"
#include "base/marks.h"
#include "fabric/sim/lane.h"
#include "fabric/sim/network.h"

namespace farpool::fabric::sim {

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

}  // namespace farpool::fabric::sim
