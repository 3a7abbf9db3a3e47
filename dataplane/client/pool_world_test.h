// SPDX-License-Identifier: Apache-2.0
// A pool of two memory nodes in virtual time, and its clients, for the tests of the client library.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/signature.h"
#include "client/pool.h"
#include "fabric/sim/network.h"
#include "index/race/layout.h"
#include "layout/directory.h"
#include "layout/geometry.h"
#include "layout/operation_slot.h"
#include "map/shard_map.h"
#include "node/audit.h"
#include "node/memory_node.h"
#include "task/scope.h"

namespace farpool::client {

using base::Code;
using fabric::sim::Network;
using fabric::sim::SimPort;
using fabric::sim::SimResponder;
using task::Task;

inline constexpr std::uint64_t kMemory = 4 << 20;
inline constexpr base::HashSecret kSecret{11, 22};
inline constexpr char kUid[] = "pool-1";
inline constexpr layout::GeometryRequest kGeometry{.table_percent = 10, .max_sessions = 8, .slots_per_session = 4};

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Appends to a value, and remembers what it was asked.
class Appender final : public Editor {
 public:
  explicit Appender(std::string tail) : tail_(std::move(tail)) {}
  Edit edit(std::optional<std::string_view> value) override {
    return Edit::put(std::string(value.value_or("")) + tail_);
  }

 private:
  std::string tail_;
};

class Increment final : public Editor {
 public:
  Edit edit(std::optional<std::string_view> value) override {
    sum = (value ? std::stoll(std::string(*value)) : 0) + 1;
    return Edit::put(std::to_string(sum));
  }
  long long sum = 0;
};

class PoolTest : public ::testing::Test {
 protected:
  explicit PoolTest(Nanos retry_time = 0, layout::GeometryRequest geometry = kGeometry,
                    Nanos failure_timeout = 40 * base::kMillisecond, std::uint64_t memory_bytes = kMemory)
      : geometry_(geometry),
        failure_timeout_(failure_timeout),
        memory_bytes_(memory_bytes),
        network_(fabric::sim::Options{.seed = 7, .retry_time = retry_time}) {
    for (int i = 0; i < 2; ++i) {
      responders_.push_back(&network_.add_node("node-" + std::to_string(i) + ":7400"));
      nodes_.push_back(nullptr);
      begin_life(static_cast<std::size_t>(i));
    }
  }
  ~PoolTest() override {
    for (auto& client : clients_) {
      if (client->pool) finish(*client);
    }
  }

  // A new incarnation of a memory node, with empty memory.
  void begin_life(std::size_t i, std::string name = {}) {
    if (name.empty()) name = "mn-" + std::to_string(i);
    std::byte* memory = static_cast<std::byte*>(std::aligned_alloc(4096, memory_bytes_));
    std::memset(memory, 0, memory_bytes_);
    memory_.emplace_back(memory);
    auto node = node::MemoryNode::create({.name = std::move(name),
                                          .pool_uid = kUid,
                                          .endpoint = responders_[i]->endpoint(),
                                          .version = "test",
                                          .geometry = geometry_,
                                          .lease = std::max(2 * base::kSecond, 4 * failure_timeout_),
                                          .failure_timeout = failure_timeout_,
                                          .wall = [this, i] { return wall(i); },
                                          .log = [](bool, const std::string&) {},
                                          .on_change = [] {}},
                                         {memory, memory_bytes_}, *responders_[i]);
    ASSERT_TRUE(node.ok()) << node.status().message();
    lives_.push_back(std::move(*node));
    nodes_[i] = lives_.back().get();
    responders_[i]->serve(*nodes_[i]);
  }

  // Adds up a counter of all clients that have not finished.
  std::uint64_t sum_of(base::Counter PoolCounters::*counter) const {
    std::uint64_t sum = 0;
    for (const auto& client : clients_) sum += client->pool ? (client->pool->counters().*counter).get() : 0;
    return sum;
  }

  // Returns the clock of a memory node's host.
  std::uint64_t wall(std::size_t i) {
    const HostClock& clock = host_clocks_[i];
    const auto since = static_cast<std::int64_t>(network_.now() - clock.at);
    return clock.shows + static_cast<std::uint64_t>(since + since * clock.ppm / 1'000'000);
  }

  v1alpha1::ShardMap map_of(std::uint64_t epoch) {
    v1alpha1::ShardMap map;
    map.set_pool_uid(kUid);
    map.set_epoch(epoch);
    map.set_directory_depth(1);
    map.set_directory_version(1);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      *map.add_nodes() = nodes_[i]->entry();
      map.mutable_nodes(static_cast<int>(i))->set_state(v1alpha1::MemoryNodeEntry::STATE_SERVING);
      auto* table = map.add_tables();
      table->set_id(i);
      table->set_node(i);
      map.add_directory(i);
    }
    return map;
  }
  void publish(const v1alpha1::ShardMap& map) {
    for (node::MemoryNode* node : nodes_) {
      const auto published = node->publish(map, kSecret);
      ASSERT_EQ(published.verdict, node::MemoryNode::Verdict::adopted) << published.message;
    }
  }

  struct Client {
    SimPort* port = nullptr;
    std::unique_ptr<Pool> pool;
    task::Scope scope;
    std::vector<std::string> log;
    int changes = 0;
    PoolState told;  // with the last of them
  };
  Client& connect(std::vector<std::string> bootstrap = {"node-0:7400", "node-1:7400"},
                  Nanos deadline = 5 * base::kSecond, std::shared_ptr<Accesses> accesses = nullptr) {
    clients_.push_back(std::make_unique<Client>());
    Client& client = *clients_.back();
    client.port = &network_.add_client({.pool_uid = kUid, .role = "client", .name = "c", .authenticated = true});
    client.pool = std::make_unique<Pool>(
        *client.port, Pool::Options{.pool_uid = kUid,
                                    .client_name = "c",
                                    .bootstrap = std::move(bootstrap),
                                    .map_key = map_key_,
                                    .operation_deadline = deadline,
                                    .reclaims = reclaims_,
                                    .accesses = std::move(accesses),
                                    .on_change =
                                        [&client](const PoolState& state) {
                                          ++client.changes;
                                          client.told = state;
                                        },
                                    .log = [&client](bool, const std::string& line) { client.log.push_back(line); }});
    client.pool->start();
    return client;
  }
  bool run_until(const std::function<bool()>& done, Nanos within = 60 * base::kSecond) {
    return network_.run_until(done, network_.now() + within);
  }
  // Lets time pass while everything continues.
  void pass(Nanos time) {
    bool over = false;
    network_.at(network_.now() + time, [&over] { over = true; });
    ASSERT_TRUE(run_until([&over] { return over; }, 2 * time));
  }
  void run(Client& client, Task<void> task) {
    client.scope.spawn(std::move(task));
    ASSERT_TRUE(run_until([&client] { return client.scope.running() == 0; })) << "an operation did not end";
  }
  static Task<void> close(Client& client) { co_await client.pool->close(client.port->now() + 5 * base::kSecond); }
  void finish(Client& client) {
    run(client, close(client));
    client.pool.reset();
  }

  // Runs operations, each with its expected result.
  static Task<void> put_all(Client& client, int from, int to, std::string value) {
    for (int i = from; i < to; ++i) {
      const base::Status status = co_await client.pool->put("key-" + std::to_string(i), value + std::to_string(i));
      EXPECT_TRUE(status.ok()) << i << ": " << status.message();
    }
  }
  // Like put_all, for a client that may be stopped in the middle. `there` receives the keys that are there for certain.
  static Task<void> put_known(Client& client, int from, int to, std::string value, std::set<int>& there) {
    for (int i = from; i < to; ++i) {
      const base::Status status = co_await client.pool->put("key-" + std::to_string(i), value + std::to_string(i));
      EXPECT_TRUE(status.ok() || status.code() == base::Code::unknown_outcome) << i << ": " << status.message();
      if (status.ok()) there.insert(i);
    }
  }
  static Task<void> expect_all(Client& client, int from, int to, std::string value) {
    for (int i = from; i < to; ++i) {
      const auto got = co_await client.pool->get("key-" + std::to_string(i));
      EXPECT_TRUE(got.ok()) << got.status().message();
      if (got.ok()) EXPECT_EQ(got->value_or("nothing"), value + std::to_string(i));
    }
  }
  static Task<void> count_into(Client& client, base::Result<std::uint64_t>& into) {
    into = co_await client.pool->count();
  }
  // Takes one step of a scan, or all steps from there on. Counts how often each key came.
  static Task<void> scan_into(Client& client, std::uint64_t count, bool whole, std::uint64_t& cursor,
                              std::map<std::string, int>& times) {
    do {
      const auto page = co_await client.pool->scan(cursor, count);
      EXPECT_TRUE(page.ok()) << page.status().message();
      if (!page.ok()) co_return;
      for (const std::string& key : page->keys) ++times[key];
      // Gives the cursor back like a client that holds numbers as doubles.
      cursor = static_cast<std::uint64_t>(static_cast<double>(page->next));
      EXPECT_EQ(cursor, page->next);
    } while (whole && cursor != 0);
  }
  static Task<void> scan_once(Client& client, std::uint64_t cursor, base::Result<Page>& into) {
    into = co_await client.pool->scan(cursor, 10);
  }
  static Task<void> any_into(Client& client, std::optional<std::string>& into) {
    const auto key = co_await client.pool->any_key();
    EXPECT_TRUE(key.ok()) << key.status().message();
    if (key.ok()) into = *key;
  }
  static Task<void> no_key(Client& client, Code& why) { why = (co_await client.pool->any_key()).code(); }
  static Task<void> erase_into(Client& client, std::string key, base::Result<bool>& into) {
    into = co_await client.pool->erase(key);
  }
  static Task<void> read_into(Client& client, std::string key, base::Status& into) {
    into = (co_await client.pool->get(key)).status();
  }
  static Task<void> append_to(Client& client, std::string key) {
    Appender editor("tail");
    const base::Status status = co_await client.pool->modify(key, editor);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  static Task<void> any_status(Client& client, base::Status& into) {
    into = (co_await client.pool->any_key()).status();
  }
  static Task<void> append_into(Client& client, std::string key, base::Status& into) {
    Appender editor("tail");
    into = co_await client.pool->modify(key, editor);
  }
  static Task<void> put_into(Client& client, std::string key, base::Status& into) {
    into = co_await client.pool->put(key, "v");
  }
  static Task<void> increment(Client& client, int times) {
    for (int i = 0; i < times; ++i) {
      Increment editor;
      const base::Status status = co_await client.pool->modify("sum", editor);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  base::Result<std::uint64_t> count(Client& client) {
    base::Result<std::uint64_t> keys{0ull};
    run(client, count_into(client, keys));
    return keys;
  }
  base::Status put(Client& client, const std::string& key) {
    base::Status status;
    run(client, put_into(client, key, status));
    return status;
  }
  std::uint32_t node_of(std::string_view key) {
    return map::Map::from(map_of(1))->table_of(map::directory_hash(kSecret, base::bytes_of(key))).node();
  }
  static std::uint64_t retries(const Client& client, Operation operation) {
    return client.pool->counters().operations[static_cast<std::size_t>(operation)].retries.get();
  }
  bool run_until_ready(const Client& client) {
    return run_until([&client] { return client.pool->state().ready; }, 10 * base::kSecond);
  }
  // Returns how many operation slots of a memory node name a client.
  std::uint64_t claimed_slots(std::size_t i) const {
    const layout::Span& all = nodes_[i]->geometry().at(layout::kSlots);
    std::uint64_t slots = 0;
    for (std::uint64_t at = 0; at < all.bytes; at += sizeof(layout::OperationSlot)) {
      slots += base::load<layout::OperationSlot>(memory_[i].get() + all.offset + at).holder != 0 ? 1 : 0;
    }
    return slots;
  }
  // Returns a key that the given node serves.
  std::string key_on(std::uint32_t node) {
    for (int i = 0;; ++i) {
      std::string key = "at-" + std::to_string(i);
      if (node_of(key) == node) return key;
    }
  }

  struct HostClock {
    std::uint64_t shows = 1'700'000'000ull * base::kSecond;
    Nanos at = 0;          // when it shows that
    std::int64_t ppm = 0;  // that it gains
  };
  std::array<HostClock, 8> host_clocks_;  // of as many memory nodes as tests have
  bool reclaims_ = true;                  // clients that connect
  const layout::GeometryRequest geometry_;
  const Nanos failure_timeout_;
  const std::uint64_t memory_bytes_;
  Network network_;
  std::vector<SimResponder*> responders_;
  std::vector<std::unique_ptr<std::byte, FreeMemory>> memory_;
  std::vector<std::unique_ptr<node::MemoryNode>> lives_;
  std::vector<node::MemoryNode*> nodes_;
  std::shared_ptr<const base::SignatureCheck> map_key_;  // of clients
  std::vector<std::unique_ptr<Client>> clients_;
};

// Stands for a key: a signature is a digest of the text under a secret.
struct Seal final : base::SignatureCheck {
  static std::string of(std::string_view text) {
    return std::to_string(base::keyed_hash({3, 4}, base::bytes_of(text))) + std::string(64, 's');
  }
  static v1alpha1::ShardMap sealed(v1alpha1::ShardMap map) {
    map.set_signature(of(map::signed_text(map)).substr(0, 64));
    return map;
  }
  bool holds(std::string_view text, std::string_view signature) const override {
    return signature == of(text).substr(0, 64);
  }
};

inline std::ptrdiff_t lines_with(const std::vector<std::string>& log, const std::string& text) {
  return std::ranges::count_if(log, [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

class PoolOfManyTablesTest : public PoolTest {
 protected:
  static constexpr layout::GeometryRequest kManyTables{
      .table_percent = 10, .max_sessions = 8, .slots_per_session = 4, .protocol = layout::Protocol::race, .tables = 64};
  PoolOfManyTablesTest() : PoolTest(0, kManyTables) {}
  // Returns how many tables of a memory node are being split.
  std::uint64_t splitting(std::size_t i) const {
    const layout::Span& directory = nodes_[i]->geometry().at(layout::kDirectory);
    std::uint64_t count = 0;
    for (std::uint64_t table = 0; table < kManyTables.tables; ++table) {
      const std::uint64_t record = layout::record_offset(kManyTables.tables, table) + layout::kRecordSplit;
      count += base::load<std::uint64_t>(memory_[i].get() + directory.offset + record) != 0 ? 1 : 0;
    }
    return count;
  }
  static Task<void> repair(Client& client, std::vector<Pool::Repair>& into) {
    into = co_await client.pool->repair(client.port->now() + 10 * base::kSecond);
  }
  // Puts keys until the first table of the first memory node is being split.
  void put_until_split(Client& client, std::set<int>& there) {
    for (int keys = 0; splitting(0) == 0; keys += 50) {
      client.scope.spawn(put_known(client, keys, keys + 50, "v", there));
      run_until([&] { return splitting(0) > 0 || client.scope.running() == 0; });
    }
  }
  // The header of the last bucket of that table: a split comes to it last.
  std::byte* last_header() const {
    const layout::Geometry& geometry = nodes_[0]->geometry();
    return memory_[0].get() + geometry.at(layout::kTable).offset + geometry.rows_per_table() * geometry.row_bytes() -
           race::kBucketBytes;
  }
};

// Two nodes, four parts of the hash space; node 0 is drained into node 1.
class PoolMoveTest : public PoolTest {
 protected:
  static layout::GeometryRequest small(layout::Protocol protocol) {
    layout::GeometryRequest request{.table_percent = 2, .max_sessions = 12, .slots_per_session = 4};
    request.protocol = protocol;
    if (protocol == layout::Protocol::race) {
      request.tables = 4;
    } else if (protocol == layout::Protocol::rcuckoo) {
      // Few rows, so that a dead mover has not too many effects.
      request.entry_bytes = 64;
      request.entries_per_row = 16;
    }
    return request;
  }
  explicit PoolMoveTest(layout::Protocol protocol = layout::Protocol::race) : PoolTest(0, small(protocol)) {}

  // Epoch 1: as ever. 2: under way. 3: finished.
  v1alpha1::ShardMap drain(std::uint64_t epoch, std::uint32_t from = 0) {
    v1alpha1::ShardMap map = map_of(epoch);
    map.set_directory_depth(2);
    map.clear_directory();
    for (std::uint32_t part = 0; part < 4; ++part) map.add_directory(epoch == 1 ? part % 2 : 1 - from);
    map.set_move(epoch == 1 ? 0 : 1);
    for (std::uint32_t part : {from, from + 2}) {
      if (epoch != 2) continue;
      auto* departure = map.add_departures();
      departure->set_part(part);
      departure->set_from(from);
    }
    return map;
  }
  static bool drained(const Client& client) { return drained(client.pool->state()); }
  static bool drained(const PoolState& state) {
    return state.epoch >= 2 && state.ready &&
           std::none_of(state.nodes.begin(), state.nodes.end(), [](const auto& node) { return node.leaving; });
  }
  // Returns the keys that lie at a node.
  std::set<std::string> keys_at(std::size_t i) {
    std::set<std::string> keys;
    const auto found =
        node::audit_memory({memory_[i].get(), memory_bytes_},
                           {.visit = [&keys](const index::Sighting& at) { keys.insert(std::string(at.key)); }});
    EXPECT_TRUE(found.ok()) << found.status().message();
    if (found.ok()) {
      for (const node::Finding& finding : found->audit.findings) {
        EXPECT_FALSE(node::kind_of(finding.wrong).damage) << finding.what;
      }
    }
    return keys;
  }
  // Calls visit(header, word) for every word of a node's tables: the header of a bucket, or a slot.
  template <class Visit>
  void each_word(std::size_t i, const Visit& visit) const {
    const layout::Geometry& geometry = nodes_[i]->geometry();
    const std::uint64_t table = geometry.at(layout::kTable).offset;
    for (std::uint64_t at = 0; at < geometry.rows * geometry.row_bytes(); at += 8) {
      visit(at % race::kBucketBytes == 0, base::load<std::uint64_t>(memory_[i].get() + table + at));
    }
  }
  std::size_t slots_at(std::size_t i) const {
    std::size_t taken = 0;
    each_word(i, [&taken](bool header, std::uint64_t word) { taken += !header && word != 0 ? 1 : 0; });
    return taken;
  }
  static Task<void> erase_all(Client& client, int from, int to) {
    for (int i = from; i < to; ++i) EXPECT_TRUE((co_await client.pool->erase("key-" + std::to_string(i))).value()) << i;
  }
  struct Reader {
    Client* client;
    std::map<std::string, int> times;
    std::uint64_t cursor = 0;
  };
};

}  // namespace farpool::client
