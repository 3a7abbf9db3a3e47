// SPDX-License-Identifier: Apache-2.0
// The network around the box, and what happens in it.
#pragma once

#include "base/random.h"
#include "swordbox/endpoints_test.h"

namespace farpool::swordbox {

struct WorldSetting {
  Settings box;
  // How often each may still happen.
  int losses = 0, repeats = 0, delays = 0, silences = 0, deaths = 0, fences = 0, restarts = 0;
  bool all_introduced = true;
  std::uint64_t steps = 200'000;
};

class World : private Sink {
 public:
  World(WorldSetting setting, std::function<std::uint32_t(std::uint32_t)> choose) : setting_(std::move(setting)) {
    ground.choose = std::move(choose);
    ground.send = [this](const roce::Packet& packet, bool from_client) {
      std::vector<std::byte> frame(600);
      frame.resize(roce::build_sealed(packet, frame));
      in_flight_.push_back({std::move(frame), from_client ? Leg::client_to_box : Leg::server_to_box, ground.now});
    };
    box = std::make_unique<Box>(setting_.box, ground.now);
    ground.now += setting_.box.longest_life;
  }

  Client& add(std::uint32_t first_psn, bool introduced) {
    const auto id = static_cast<std::uint32_t>(clients.size());
    clients.push_back(std::make_unique<Client>(ground, id, first_psn));
    server.add(*clients.back());
    if (introduced) {
      box->introduce(clients.back()->address(), clients.back()->client_queue_pair(), kServer,
                     clients.back()->server_queue_pair(), first_psn, kMtu, ground.now);
    }
    return *clients.back();
  }

  // Runs until nothing is left to do. Returns the first broken rule.
  std::string run() {
    std::uint64_t step_count = 0;
    while (ground.wrong.empty() && !settled()) {
      if (++step_count > setting_.steps) {
        ground.fail("the world does not come to its end");
        break;
      }
      step();
    }
    if (ground.wrong.empty()) judge_end();
    return ground.wrong;
  }

  const WorldSetting& setting() const { return setting_; }
  // Says whether a fault has hit the client itself.
  bool is_disturbed(const Client& client) {
    return client.dead || server.has_fenced(client) || silent_ == client.server_queue_pair();
  }
  Counts sum() const {
    Counts all = counted;
    base::add_counts(kBoxCounts, all, box->counts());
    return all;
  }

  Ground ground;
  Server server{ground};
  std::vector<std::unique_ptr<Client>> clients;
  std::unique_ptr<Box> box;
  Counts counted;  // by boxes that are gone
  bool restarted = false;

 private:
  enum class Leg { client_to_box, box_to_server, server_to_box, box_to_client };
  struct Flying {
    std::vector<std::byte> frame;
    Leg leg;
    base::Nanos since;
    bool silent = false;
  };
  static constexpr base::Nanos kTimeout = 2 * base::kMillisecond;

  void send(base::Bytes frame) override {
    roce::Packet packet;
    if (roce::parse(frame, packet) != roce::Refusal::none || !roce::sums_hold(frame, packet)) {
      return ground.fail("the box has sent a packet that nobody understands");
    }
    const Leg leg = packet.ip.to == kServer ? Leg::box_to_server : Leg::box_to_client;
    if (leg == Leg::box_to_server && silent_ == packet.bth.queue_pair) {
      // Only the last one comes, as late as can be.
      std::erase_if(delayed_, [](const Flying& each) { return each.silent; });
      delayed_.push_back({{frame.begin(), frame.end()}, leg, ground.now, true});
      return;
    }
    in_flight_.push_back({{frame.begin(), frame.end()}, leg, ground.now});
  }

  bool settled() const {
    return in_flight_.empty() && delayed_.empty() && box->next_time() == base::kNever &&
           std::all_of(clients.begin(), clients.end(), [](const auto& each) { return each->settled(); });
  }

  // How long a delayed packet may stay away.
  base::Nanos deadline(const Flying& each) const {
    return each.since + (each.leg == Leg::box_to_server || each.leg == Leg::server_to_box
                             ? setting_.box.longest_life - base::kMicrosecond
                             : 7 * base::kMillisecond);
  }

  void deliver(std::size_t i) {
    const Flying flying = std::move(in_flight_[i]);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    arrive(flying);
  }

  void arrive(const Flying& flying) {
    if (flying.leg == Leg::client_to_box || flying.leg == Leg::server_to_box) {
      return box->on_packet(flying.frame, ground.now, *this);
    }
    roce::Packet packet;
    if (roce::parse(flying.frame, packet) != roce::Refusal::none) return ground.fail("a packet that cannot be read");
    if (flying.leg == Leg::box_to_server) return server.receive(packet);
    for (const auto& each : clients) {
      if (each->client_queue_pair() == packet.bth.queue_pair) each->receive(packet);
    }
  }

  void pass_time() {
    ground.now += base::kMicrosecond;
    // No packet outlives its time between box and server.
    std::erase_if(in_flight_, [&](const Flying& each) {
      return each.leg == Leg::box_to_server && ground.now - each.since >= setting_.box.longest_life;
    });
    for (std::size_t i = 0; i < delayed_.size();) {
      if (ground.now < deadline(delayed_[i])) {
        ++i;
        continue;
      }
      const Flying flying = std::move(delayed_[i]);
      delayed_.erase(delayed_.begin() + static_cast<std::ptrdiff_t>(i));
      arrive(flying);
    }
    for (const auto& each : clients) {
      if (each->works() && !each->outstanding.empty() && ground.now - each->patience >= kTimeout) each->retransmit();
    }
    if (box->next_time() <= ground.now) box->on_time(ground.now, *this);
  }

  void jump() {
    base::Nanos next = box->next_time();
    for (const auto& each : clients) {
      if (each->works() && !each->outstanding.empty()) next = std::min(next, each->patience + kTimeout);
    }
    // Just before: what is delayed comes at the last moment, ahead of what else is due then.
    for (const Flying& each : delayed_) next = std::min(next, deadline(each) - base::kMicrosecond);
    if (next == base::kNever) {
      if (!settled()) ground.fail("somebody waits for ever");
      return;
    }
    ground.now = std::max(ground.now, next);
  }

  void step() {
    pass_time();
    std::vector<std::function<void()>> actions;
    for (const auto& each : clients) {
      if (each->may_post()) actions.emplace_back([&each] { each->post(); });
    }
    const std::size_t near = std::min<std::size_t>(in_flight_.size(), 4);
    for (std::size_t i = 0; i < near; ++i) actions.emplace_back([this, i] { deliver(i); });
    if (actions.empty()) return jump();
    add_faults(actions);
    actions[ground.choose(static_cast<std::uint32_t>(actions.size()))]();
  }

  void add_faults(std::vector<std::function<void()>>& actions) {
    if (!in_flight_.empty() && setting_.losses > 0) {
      actions.emplace_back([this] {
        --setting_.losses;
        in_flight_.pop_front();
      });
    }
    if (!in_flight_.empty() && setting_.repeats > 0) {
      actions.emplace_back([this] {
        --setting_.repeats;
        in_flight_.push_back(in_flight_.front());
      });
    }
    if (!in_flight_.empty() && setting_.delays > 0) {
      actions.emplace_back([this] {
        --setting_.delays;
        delayed_.push_back(in_flight_.front());
        in_flight_.pop_front();
      });
    }
    for (const auto& each : clients) {
      if (!each->works() || each->all.empty()) continue;
      if (setting_.deaths > 0) {
        actions.emplace_back([this, &each] {
          --setting_.deaths;
          each->dead = true;
        });
      }
      if (setting_.silences > 0) {
        actions.emplace_back([this, &each] {
          --setting_.silences;
          silent_ = each->server_queue_pair();
        });
      }
      if (setting_.fences > 0 && !server.has_fenced(*each)) {
        actions.emplace_back([this, &each] {
          --setting_.fences;
          server.destroy(*each);
        });
      }
    }
    if (setting_.restarts > 0) {
      actions.emplace_back([this] {
        --setting_.restarts;
        restarted = true;
        base::add_counts(kBoxCounts, counted, box->counts());
        box = std::make_unique<Box>(setting_.box, ground.now);
      });
    }
  }

  void judge_end() {
    const Counts all = sum();
    if (all.surprises > 0 && !restarted) ground.fail("the box was surprised by what a word holds");
    for (const auto& each : clients) {
      if (is_disturbed(*each)) continue;
      if (each->failed && clients.size() <= setting_.box.connections && all.cut == 0 && all.refused == 0 && !restarted)
        ground.fail("a connection has ended without a fault");
    }
  }

  WorldSetting setting_;
  std::deque<Flying> in_flight_;
  std::vector<Flying> delayed_;
  std::uint32_t silent_ = 0;  // the queue pair whose packets the network delays and loses
};

}  // namespace farpool::swordbox
