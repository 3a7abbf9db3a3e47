// SPDX-License-Identifier: Apache-2.0
// The simulated wire for the suite of index protocols: a world of sim/world.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "index/contract/bed.h"
#include "node/memory_node.h"
#include "sim/world.h"

namespace farpool::index::contract {

class SimBed final : public Bed, private Faults {
 public:
  SimBed(const layout::GeometryRequest& table, std::uint64_t seed) : world_(options_of(table, seed)) {}

  Member& connect() override {
    clients_.push_back(
        std::make_unique<SimMember>(world_.connect(std::string(1, static_cast<char>('a' + clients_.size())))));
    members_.push_back(clients_.back().get());
    return *clients_.back();
  }
  void run(std::vector<Job> jobs) override {
    for (Job& job : jobs) world_.spawn(client_of(*job.by), std::move(job.task));
    for (const Job& job : jobs) {
      // What is stuck holds frames that are in use, so nothing can go on then.
      if (!world_.settle(client_of(*job.by), 3600 * base::kSecond)) give_up("a task did not end within an hour");
    }
  }
  base::Nanos moment() override { return world_.network().moment(); }
  void quiesce() override {
    if (!(owned ? settles() : world_.quiesce())) give_up("verbs are under way for ever");
  }
  const layout::Geometry& geometry() const override { return world_.geometry(); }
  base::Bytes memory() override { return world_.memory(); }
  Faults* faults() override { return this; }

 private:
  struct SimMember final : Member {
    explicit SimMember(sim::Client& client) : client(client) {}
    fabric::Port& port() override { return client.port(); }
    session::Session& session() override { return client.session(); }
    Table& table() override { return client.table(); }
    bool lives() const override { return !client.crashed(); }
    sim::Client& client;
  };
  static sim::WorldOptions options_of(const layout::GeometryRequest& table, std::uint64_t seed) {
    sim::WorldOptions options;
    options.wire.seed = seed;
    options.geometry = table;
    return options;
  }
  static sim::Client& client_of(Member& member) { return static_cast<SimMember&>(member).client; }
  [[noreturn]] static void give_up(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::abort();
  }

  // A CALL of the owner waits at the memory node all the time. So all has been executed once no client has had more than
  // one posting for a while, which is longer than one takes.
  bool settles() {
    constexpr base::Nanos kWhile = 100 * base::kMicrosecond;
    std::optional<base::Nanos> quiet_since;
    bool rested = false;
    return world_.run_until([&] {
      const base::Nanos now = world_.network().now();
      rested = rested || (quiet_since && now - *quiet_since >= kWhile);
      const bool quiet = std::ranges::all_of(clients_, [](const auto& client) {
        if (client->client.crashed() || !client->client.connected()) return true;
        return client->session().lane().pending() <= 1;
      });
      if (!quiet) quiet_since.reset();
      if (quiet && !quiet_since) quiet_since = now;
      return quiet && rested;
    });
  }

  // Faults
  void crash_after(Member& member, std::uint64_t effects) override {
    client_of(member).port().crash_after(effects, fabric::sim::InFlight::cut);
  }
  bool death_is_noticed() override {
    return world_.run_until([this] { return world_.node().stats().sessions_fenced > 0; });
  }
  void land(Member& member) override {
    const bool landed =
        owned ? settles() : world_.network().drain(client_of(member).port(), world_.network().now() + base::kSecond);
    if (!landed) give_up("verbs are under way for ever");
  }
  void lose_replies(double chance) override { world_.network().options().lose_reply = chance; }

  sim::World world_;
  std::vector<std::unique_ptr<SimMember>> clients_;
};

}  // namespace farpool::index::contract
