// SPDX-License-Identifier: Apache-2.0
// A memory node with an Outback table and clients of it on the simulated wire, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/sim/network.h"
#include "index/outback/build.h"
#include "index/outback/node_table.h"
#include "index/outback/service.h"
#include "index/outback/table.h"
#include "task/scope.h"

namespace farpool::outback {

inline constexpr base::HashSecret kBedSecret{0x1234, 0x5678};

// The memory node: two regions that clients may read, and the service.
class BedHost final : public fabric::Host {
 public:
  static constexpr std::uint32_t kLocators = 1, kBlocks = 2;

  // Without settings of growth, the table does not grow.
  BedHost(const Figures& figures, const Locator& locator, const std::optional<GrowthSettings>& growth = {})
      : figures_(figures),
        growth_(growth),
        words_(figures.memory_bytes / 8),
        locator_(locator.words().begin(), locator.words().end()) {
    const auto cut = format(memory(), figures);
    EXPECT_TRUE(cut.ok());
    if (growth) locator_.resize(cut->locator_bytes / 8);
    start();
  }
  base::MutableBytes memory() { return std::as_writable_bytes(std::span(words_)); }
  std::vector<std::uint64_t>& locator() { return locator_; }
  NodeTable& table() { return *table_; }
  // Another process takes the memory over.
  void start() {
    Settings settings{.secret = kBedSecret, .locator = {}, .growth = growth_.value_or(GrowthSettings{})};
    if (growth_) settings.locator = std::as_writable_bytes(std::span(locator_));
    auto opened = NodeTable::open(memory(), settings, {});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    service_.reset();
    table_ = std::move(*opened);
    service_ = std::make_unique<NodeService>(*table_);
  }
  // The memory is lost: an empty table with another locator follows.
  void lose(const Figures& figures, const Locator& locator) {
    figures_ = figures;
    words_.assign(figures.memory_bytes / 8, 0);
    locator_.assign(locator.words().begin(), locator.words().end());
    EXPECT_TRUE(format(memory(), figures).ok());
    start();
  }

  fabric::LaneGrant grant(std::string endpoint) {
    const std::uint64_t session = ++sessions_;
    fabric::LaneGrant grant{
        .endpoint = std::move(endpoint), .session_id = session, .node_incarnation = 1, .calls = true};
    base::store(grant.token.data(), session);
    for (const auto& right : rights(session)) grant.regions.push_back({right.id, right.bytes, right.key});
    return grant;
  }
  void end_session(std::uint64_t session) { service_->release(session); }

  void on_exchange(const fabric::Peer&, std::string, std::function<void(std::string)> reply) override { reply(""); }
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>& token) override {
    const auto session = base::load<std::uint64_t>(token.data());
    return fabric::LaneRights{session, rights(session), service_.get()};
  }
  std::optional<std::size_t> on_call(std::uint64_t, std::uint32_t, base::Bytes, base::MutableBytes) override {
    return std::nullopt;
  }

 private:
  std::vector<fabric::RegionRight> rights(std::uint64_t session) {
    return {{kLocators, base::mix(session), reinterpret_cast<std::byte*>(locator_.data()), locator_.size() * 8, true},
            {kBlocks, base::mix(~session), memory().data(), memory().size(), true}};
  }
  Figures figures_;
  std::optional<GrowthSettings> growth_;
  std::vector<std::uint64_t> words_, locator_;
  std::unique_ptr<NodeTable> table_;
  std::unique_ptr<NodeService> service_;
  std::uint64_t sessions_ = 0;
};

// A lane without a session's ticks.
class BedConnection final : public Connection {
 public:
  BedConnection(fabric::Port& port, std::unique_ptr<fabric::Lane> lane, fabric::LaneGrant grant)
      : port_(port), lane_(std::move(lane)), grant_(std::move(grant)) {}
  bool alive() const override { return lane_->open(); }
  base::Status why() const override { return {base::Code::unavailable, "the lane was severed"}; }
  task::Task<fabric::Outcome> post(std::span<const fabric::Op> ops, base::Nanos, fabric::Cost& cost) override {
    if (!alive()) co_return fabric::Outcome{.fate = fabric::Fate::refused};
    const fabric::Outcome outcome = co_await lane_->post(ops, port_.now() + 20 * base::kMillisecond);
    charge(ops, outcome, cost);
    if (outcome.fate != fabric::Fate::done) lane_->sever();
    co_return outcome;
  }
  std::uint64_t region_bytes(std::uint32_t region) const override {
    for (const auto& granted : grant_.regions) {
      if (granted.id == region) return granted.bytes;
    }
    return 0;
  }
  std::optional<session::EraPin> pin() override { return std::nullopt; }
  fabric::Lane& lane() { return *lane_; }

 private:
  fabric::Port& port_;
  std::unique_ptr<fabric::Lane> lane_;
  fabric::LaneGrant grant_;
};

class Bed {
 public:
  struct Options {
    std::uint64_t keys = 200;  // that the table is made for
    double load = 0.8;
    std::uint64_t overflow = 64;
    std::uint64_t memory_bytes = 16 << 20;
    std::uint64_t doublings = 0;
    std::optional<GrowthSettings> growth;
    fabric::sim::Options wire;
  };
  class Client final : public Connections {
   public:
    Client(Bed& bed, fabric::sim::SimPort& port, std::shared_ptr<Shelf> shelf)
        : bed_(bed), port_(port), table_(*this, options(bed, std::move(shelf))) {}
    fabric::Port& port() override { return port_; }
    task::Task<base::Result<std::shared_ptr<Connection>>> connect(base::Nanos deadline) override {
      if (gone_) co_return base::Status(base::Code::corrupt, "the memory is gone");
      const fabric::LaneGrant grant = bed_.host_->grant("node");
      auto lane = co_await port_.open_lane(grant, deadline);
      if (!lane.ok()) co_return lane.status();
      connections_.push_back(std::make_shared<BedConnection>(port_, std::move(*lane), grant));
      co_return connections_.back();
    }
    Table& table() { return table_; }
    void lose_memory() { gone_ = true; }
    void sever() { connections_.back()->lane().sever(); }
    std::uint64_t connections() const { return connections_.size(); }
    bool idle() const {
      return std::ranges::all_of(connections_, [](const auto& each) { return each->lane().pending() == 0; });
    }

   private:
    static Table::Options options(Bed& bed, std::shared_ptr<Shelf> shelf) {
      Table::Options options{.secret = kBedSecret,
                             .locator_region = BedHost::kLocators,
                             .blocks_region = BedHost::kBlocks,
                             .shelf = std::move(shelf)};
      if (bed.options_.growth) options.second_locator_at = bed.host().table().cut().locator;
      return options;
    }
    Bed& bed_;
    fabric::sim::SimPort& port_;
    std::vector<std::shared_ptr<BedConnection>> connections_;
    Table table_;
    bool gone_ = false;
  };

  explicit Bed(Options options)
      : options_(options), network_(options.wire), node_(network_.add_node("node")), locator_(locator_of(1)) {
    host_ = std::make_unique<BedHost>(figures(), locator_, options_.growth);
    node_.serve(*host_);
  }
  ~Bed() {
    for (auto& client : clients_) client->sever();
    EXPECT_TRUE(network_.run_until(
        [this] { return std::ranges::all_of(clients_, [](const auto& client) { return client->idle(); }); },
        network_.now() + base::kSecond));
  }

  Client& connect(std::shared_ptr<Shelf> shelf = nullptr) {
    clients_.push_back(std::make_unique<Client>(*this, network_.add_client({.role = "client"}), std::move(shelf)));
    return *clients_.back();
  }
  // Runs tasks side by side until all have ended.
  void run(std::vector<task::Task<void>> tasks) {
    task::Scope scope;
    for (auto& task : tasks) scope.spawn(std::move(task));
    if (!network_.run_until([&scope] { return scope.running() == 0; }, network_.now() + 3600 * base::kSecond)) {
      std::fprintf(stderr, "a task did not end within an hour\n");
      std::abort();  // its frame is in use
    }
  }
  void run(task::Task<void> task) {
    std::vector<task::Task<void>> tasks;
    tasks.push_back(std::move(task));
    run(std::move(tasks));
  }
  base::Nanos soon() const { return network_.now() + 10 * base::kSecond; }
  fabric::sim::Network& network() { return network_; }
  fabric::sim::SimResponder& node() { return node_; }
  BedHost& host() { return *host_; }

  // A locator without keys: each key goes to the first of its buckets.
  Locator locator_of(std::uint64_t generation) const {
    auto shape = LocatorShape::of(LocatorShape::buckets_for(options_.keys, options_.load), 0);
    EXPECT_TRUE(shape.ok());
    shape->doublings = static_cast<std::uint32_t>(options_.doublings);
    return build(*shape, generation, 99 + generation, {}).locator;
  }
  Figures figures(std::uint64_t generation = 1) const {
    const LocatorHeader header = locator_of(generation).header();
    return {.memory_bytes = options_.memory_bytes,
            .generation = generation,
            .salt = header.salt,
            .partitions = header.shape.partitions,
            .partition_buckets = header.shape.buckets,
            .zones = 1,
            .overflow = options_.overflow,
            .clients = 8,
            .lines = 4,
            .doublings = options_.doublings};
  }

 private:
  const Options options_;
  fabric::sim::Network network_;
  fabric::sim::SimResponder& node_;
  const Locator locator_;
  std::unique_ptr<BedHost> host_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace farpool::outback
