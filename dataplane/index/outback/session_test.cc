// SPDX-License-Identifier: Apache-2.0
// Outback over sessions: handshakes, ticks, eras and fences of a registry, where the other tests have bare lanes.
#include "session/session.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fabric/sim/network.h"
#include "index/outback/build.h"
#include "index/outback/node_table.h"
#include "index/outback/service.h"
#include "index/outback/table.h"
#include "layout/calls.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "session/registry.h"
#include "task/scope.h"

namespace farpool::outback {
namespace {

using base::kMillisecond;
using base::kSecond;
using base::Nanos;
using fabric::Cost;

constexpr base::HashSecret kTableSeed{0x1234, 0x5678};
const fabric::Peer kPeer{.pool_uid = "pool", .role = "client", .name = "test", .authenticated = true};

// A memory node's process: a registry that grants what an Outback table needs, and the table. Its regions are the table's
// own two in place of rows and heap, and little of all others.
class Process final : public fabric::Host, public session::SessionObserver, public Eras {
 public:
  static constexpr std::uint32_t kLocators = layout::kTable, kBlocks = layout::kHeap;
  static constexpr std::uint32_t kSessions = 8, kSlots = 16;

  Process(std::uint64_t incarnation, base::MutableBytes memory, base::MutableBytes locator,
          fabric::Responder& responder)
      : incarnation_(incarnation), others_(kSlotBytes / 8) {
    auto opened = NodeTable::open(memory, {.secret = kTableSeed, .eras = this}, {});
    FARPOOL_CHECK(opened.ok());
    table_ = std::move(*opened);
    service_ = std::make_unique<NodeService>(*table_);
    session::Registry::Config config{.pool_uid = "pool",
                                     .node_incarnation = incarnation,
                                     .lease = 2 * kSecond,
                                     .failure_timeout = 500 * kMillisecond,
                                     .max_sessions = kSessions,
                                     .slots_per_session = kSlots,
                                     .table_seed = kTableSeed,
                                     .service = service_.get()};
    std::vector<session::RegionSpan> regions;
    auto* const others = reinterpret_cast<std::byte*>(others_.data());
    for (std::uint32_t id = 0; id < layout::kRegions; ++id) {
      if (id == kLocators) {
        regions.push_back({id, locator.data(), locator.size(), true});
      } else if (id == kBlocks) {
        regions.push_back({id, memory.data(), memory.size(), true});
      } else {
        regions.push_back({id, others, kSlotBytes, id != layout::kSlots});
      }
    }
    registry_ = std::make_unique<session::Registry>(std::move(config), std::move(regions), responder, *this);
    v1alpha1::ShardMap map;
    map.set_pool_uid("pool");
    map.set_epoch(1);
    registry_->serve(map, {1, 2});
  }

  void on_exchange(const fabric::Peer& peer, std::string request, std::function<void(std::string)> reply) override {
    registry_->on_exchange(peer, request, std::move(reply));
  }
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>& token) override {
    return registry_->on_open_lane(token);
  }
  std::optional<std::size_t> on_call(std::uint64_t session, std::uint32_t opcode, base::Bytes request,
                                     base::MutableBytes reply) override {
    if (opcode != layout::kTick || request.size() != sizeof(layout::TickRequest) ||
        reply.size() < sizeof(layout::TickReply)) {
      return std::nullopt;
    }
    const auto told = registry_->tick(session, base::load<layout::TickRequest>(request.data()));
    if (!told) return std::nullopt;
    base::store(reply.data(), *told);
    return sizeof *told;
  }
  void on_opened(std::uint64_t, std::uint64_t, const std::string&) override {}
  void on_ended(const Ended& ended) override { ended_.push_back(ended); }
  std::uint64_t now() const override { return registry_->era(); }
  std::uint64_t safe() const override { return registry_->safe_era(); }

  std::uint64_t incarnation() const { return incarnation_; }
  NodeTable& table() { return *table_; }
  NodeService& service() { return *service_; }
  session::Registry& registry() { return *registry_; }
  const std::vector<Ended>& ended() const { return ended_; }

 private:
  static constexpr std::uint64_t kSlotBytes = kSessions * kSlots * sizeof(layout::OperationSlot);
  const std::uint64_t incarnation_;
  std::vector<std::uint64_t> others_;
  std::unique_ptr<NodeTable> table_;
  std::unique_ptr<NodeService> service_;
  std::unique_ptr<session::Registry> registry_;
  std::vector<Ended> ended_;
};

// The memory outlives the process.
struct World {
  explicit World(fabric::sim::Options options = {}, std::uint64_t memory_bytes = 8 << 20)
      : network(options), node(network.add_node("node")), memory(memory_bytes / 8) {
    const auto shape = LocatorShape::of(LocatorShape::buckets_for(200, 0.8), 0);
    const Locator empty = build(*shape, 1, 100, {}).locator;
    locator.assign(empty.words().begin(), empty.words().end());
    const Figures figures{.memory_bytes = memory_bytes,
                          .salt = empty.header().salt,
                          .partitions = empty.header().shape.partitions,
                          .partition_buckets = empty.header().shape.buckets,
                          .zones = 1,
                          .overflow = 64,
                          .clients = 4,
                          .lines = 4,
                          .chunk_bytes = 512 << 10};
    EXPECT_TRUE(format(std::as_writable_bytes(std::span(memory)), figures).ok());
    start();
  }
  void start() {
    process = std::make_unique<Process>(++incarnations, std::as_writable_bytes(std::span(memory)),
                                        std::as_writable_bytes(std::span(locator)), node);
    node.serve(*process);
  }
  void kill() {
    node.stop();
    process.reset();
  }
  Nanos soon() const { return network.now() + 20 * kSecond; }
  // How many clients the memory has lines for now.
  std::uint64_t attached() const {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < process->table().cut().figures.clients; ++i) {
      count += memory[process->table().cut().client_at(i) / 8] != 0 ? 1 : 0;
    }
    return count;
  }
  static task::Task<void> note_end(task::Task<void> task, std::size_t& ended) {
    co_await std::move(task);
    ++ended;
  }
  // Runs tasks side by side until all have ended.
  void run(std::vector<task::Task<void>> tasks) {
    std::size_t ended = 0;
    const std::size_t all = tasks.size();
    task::Scope scope;
    for (auto& task : tasks) scope.spawn(note_end(std::move(task), ended));
    FARPOOL_CHECK(network.run_until([&] { return ended == all; }, network.now() + 600 * kSecond));
  }
  void run(task::Task<void> task) {
    std::vector<task::Task<void>> tasks;
    tasks.push_back(std::move(task));
    run(std::move(tasks));
  }
  void pass(Nanos time) {
    bool over = false;
    network.at(network.now() + time, [&over] { over = true; });
    FARPOOL_CHECK(network.run_until([&] { return over; }, network.now() + 2 * time));
  }

  fabric::sim::Network network;
  fabric::sim::SimResponder& node;
  std::vector<std::uint64_t> memory, locator;
  std::uint64_t incarnations = 0;
  std::unique_ptr<Process> process;
};

// A client's sessions, one after the other.
class Client final : public Connections {
 public:
  explicit Client(World& world, std::uint64_t process = 0)
      : world_(world),
        port_(world.network.add_client(kPeer)),
        process_(process),
        table_(*this, {.secret = kTableSeed, .locator_region = Process::kLocators, .blocks_region = Process::kBlocks}) {
  }
  fabric::Port& port() override { return port_; }
  task::Task<base::Result<std::shared_ptr<Connection>>> connect(Nanos deadline) override {
    while (!world_.process) {
      if (port_.now() >= deadline) co_return base::Status(base::Code::unavailable, "the memory node does not answer");
      co_await port_.sleep_until(port_.now() + kMillisecond);
    }
    session::Session::Options options{.endpoint = "node",
                                      .pool_uid = "pool",
                                      .client_name = "test",
                                      .epoch = 1,
                                      .node_incarnation = world_.process->incarnation(),
                                      .client_process = process_,
                                      .deadline = deadline};
    if (!sessions_.empty()) {
      options.previous_incarnation = sessions_.back()->grant().client_incarnation;
      options.previous_token = sessions_.back()->grant().lane.token;
    }
    auto opened = co_await session::Session::open(port_, options);
    if (!opened.ok()) co_return base::Status(base::Code::unavailable, opened.status().message());
    sessions_.push_back(std::move(*opened));
    co_return std::make_shared<SessionConnection>(*sessions_.back());
  }
  Table& table() { return table_; }
  session::Session& session() { return *sessions_.back(); }
  std::size_t sessions() const { return sessions_.size(); }
  task::Task<void> leave() {
    co_await table_.release(world_.soon());
    for (auto& session : sessions_) co_await session->close(world_.soon());
  }

 private:
  World& world_;
  fabric::sim::SimPort& port_;
  const std::uint64_t process_;
  std::vector<std::unique_ptr<session::Session>> sessions_;
  Table table_;
};

template <class T>
T unwrap(base::Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  FARPOOL_CHECK(result.ok());
  return std::move(*result);
}

task::Task<void> use(World& world, Client& client) {
  Cost cost;
  Table& table = client.table();
  const std::string long_value(100'000, 'v');
  EXPECT_FALSE(unwrap(co_await table.put("short", "1", world.soon(), cost)));
  EXPECT_FALSE(unwrap(co_await table.put("long", long_value, world.soon(), cost)));
  EXPECT_EQ(unwrap(co_await table.change(Op::add, "short", {}, 41, world.soon(), cost)).number, 42);
  EXPECT_EQ(unwrap(co_await table.lookup("short", world.soon(), cost)), std::optional<std::string>("42"));
  EXPECT_EQ(unwrap(co_await table.lookup("long", world.soon(), cost)), std::optional(long_value));
  EXPECT_GT(table.marks().long_blocks, 0u);
  EXPECT_EQ(unwrap(co_await table.count(world.soon(), cost)).keys, 2u);
}

TEST(OutbackSession, CarriesOutOperationsAndSaysGoodbye) {
  World world;
  Client client(world);
  world.run(use(world, client));
  EXPECT_EQ(client.sessions(), 1u);
  world.pass(10 * kSecond);  // some leases
  EXPECT_TRUE(client.session().alive()) << client.session().why().message();
  EXPECT_EQ(world.attached(), 1u);
  world.run(client.leave());
  EXPECT_EQ(world.attached(), 0u) << "nothing will be asked again";
  ASSERT_EQ(world.process->ended().size(), 1u);
  EXPECT_TRUE(world.process->ended().front().clean);
}

task::Task<void> count_up(World& world, Client& client, std::uint64_t times, std::uint64_t& done) {
  for (std::uint64_t i = 0; i < times; ++i) {
    Cost cost;
    const auto changed = co_await client.table().change(Op::add, "count", {}, 1, world.soon(), cost);
    EXPECT_TRUE(changed.ok()) << changed.status().message();
    done += changed.ok() ? 1 : 0;
  }
}
task::Task<void> expect_count(World& world, Client& client, std::uint64_t count) {
  Cost cost;
  EXPECT_EQ(unwrap(co_await client.table().lookup("count", world.soon(), cost)), std::optional(std::to_string(count)));
}

TEST(OutbackSession, AChangeWhoseAnswerIsLostIsAskedAgainInAnotherSession) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    World world({.seed = seed, .lose_reply = 0.02, .lose_call = 0.02});
    Client client(world);
    std::uint64_t done = 0;
    std::vector<task::Task<void>> tasks;
    for (int i = 0; i < 3; ++i) tasks.push_back(count_up(world, client, 40, done));
    world.run(std::move(tasks));
    world.network.options().lose_reply = world.network.options().lose_call = 0;
    EXPECT_GT(client.table().marks().asked_again, 0u);
    EXPECT_GT(client.sessions(), 1u);
    EXPECT_EQ(done, 120u);
    world.run(expect_count(world, client, done));
    world.run(client.leave());
  }
}

TEST(OutbackSession, AChangeTakesEffectOnceOverProcessesOfTheMemoryNode) {
  World world({.seed = 4});
  Client client(world);
  std::uint64_t done = 0;
  world.run(count_up(world, client, 1, done));
  for (int death = 1; death <= 5; ++death) {
    const Nanos then = world.network.now() + death * 20 * base::kMicrosecond;
    world.network.at(then, [&] { world.kill(); });
    world.network.at(then + 300 * kMillisecond, [&] { world.start(); });
    world.run(count_up(world, client, 100, done));
    EXPECT_EQ(world.incarnations, static_cast<std::uint64_t>(death) + 1) << "the process did not die meanwhile";
  }
  EXPECT_EQ(done, 501u);
  EXPECT_GT(client.table().marks().asked_again, 0u);
  world.run(expect_count(world, client, done));
  world.run(client.leave());
}

// A CALL is held while another thread has the lock of its zone. Here the test has it.
task::Task<void> change_in_vain(World& world, Client& client, base::Status& status) {
  Cost cost;
  status = (co_await client.table().put("key", "after", world.network.now() + kSecond, cost)).status();
}

TEST(OutbackSession, AFenceWaitsForCallsThatAreHeldAndTheseHaveNoEffect) {
  World world;
  Client doomed(world, 7), other(world, 8);
  const auto put = [](World& in, Client& client) -> task::Task<void> {
    Cost cost;
    unwrap(co_await client.table().put("key", "before", in.soon(), cost));
  };
  world.run(put(world, doomed));
  NodeService& service = world.process->service();
  for (std::uint64_t zone = 0; zone < world.process->table().zones(); ++zone) {
    ASSERT_TRUE(world.process->table().zone(zone).try_lock());
  }
  base::Status status;
  task::Scope scope;
  scope.spawn(change_in_vain(world, doomed, status));
  ASSERT_TRUE(world.network.run_until([&] { return service.held() == 1; }, world.soon()));
  bool fenced = false;
  world.process->registry().fence_processes({7}, [&](std::uint32_t sessions) {
    EXPECT_EQ(sessions, 1u);
    fenced = true;
  });
  world.pass(10 * kMillisecond);
  EXPECT_FALSE(fenced) << "the fence is over while a CALL is held";
  for (std::uint64_t zone = 0; zone < world.process->table().zones(); ++zone) service.leave(zone);
  ASSERT_TRUE(world.network.run_until([&] { return fenced; }, world.soon()));
  ASSERT_TRUE(world.network.run_until([&] { return scope.running() == 0; }, world.network.now() + 60 * kSecond));
  EXPECT_EQ(status.code(), base::Code::unknown_outcome) << status.message();
  const auto look = [](World& in, Client& client) -> task::Task<void> {
    Cost cost;
    EXPECT_EQ(unwrap(co_await client.table().lookup("key", in.soon(), cost)), std::optional<std::string>("before"));
  };
  world.run(look(world, other));
  world.run(other.leave());
  world.run(doomed.leave());
}

// Long values are replaced all the time, in a memory that has room for few of them, while another client reads them.
task::Task<void> replace(World& world, Client& client, int times, bool& over) {
  for (int i = 0; i < times; ++i) {
    Cost cost;
    const std::string value(50'000, static_cast<char>('a' + i % 26));
    unwrap(co_await client.table().put("long", value, world.soon(), cost));
  }
  over = true;
}
task::Task<void> read_whole(World& world, Client& client, const bool& over, int& reads) {
  while (!over) {
    Cost cost;
    co_await client.port().sleep_until(world.network.now() + 5 * kMillisecond);
    const auto value = unwrap(co_await client.table().lookup("long", world.soon(), cost));
    if (!value) continue;
    EXPECT_EQ(value->find_first_not_of(value->front()), std::string::npos);
    EXPECT_EQ(value->size(), 50'000u);
    ++reads;
  }
}

TEST(OutbackSession, AChangeThatWaitsForRoomDoesNotHoldTheEraThatItWaitsFor) {
  World world({.seed = 6}, 2 << 20);
  Client writer(world), reader(world);
  bool over = false;
  int reads = 0;
  std::vector<task::Task<void>> tasks;
  tasks.push_back(replace(world, writer, 100, over));
  tasks.push_back(read_whole(world, reader, over, reads));
  world.run(std::move(tasks));
  EXPECT_GT(reads, 10);
  world.run(writer.leave());
  world.run(reader.leave());
}

}  // namespace
}  // namespace farpool::outback
