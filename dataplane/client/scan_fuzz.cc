// SPDX-License-Identifier: Apache-2.0
// Cursors come from outside, and any number is one. For each, a step of a scan ends, returns existing keys, each once,
// and a cursor below 2^53, which a double holds exactly. From a cursor that the pool itself returned, scans only go
// forward; from 0 they come to every key. The input chooses a pool of either protocol, before or after a move of keys
// between its two memory nodes, and makes cursors. Nothing changes what the pools hold: only their clocks advance from
// input to input.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "client/pool.h"
#include "fabric/sim/network.h"
#include "node/memory_node.h"
#include "task/scope.h"

namespace {

using namespace farpool;
using client::Page;
using task::Task;

constexpr char kUid[] = "pool-1";
constexpr base::HashSecret kSecret{11, 22};
constexpr std::uint64_t kMemory = 2560 << 10;
constexpr int kNodes = 2, kKeys = 120;

class World {
 public:
  World(layout::Protocol protocol, bool moves) : protocol_(protocol) {
    for (int i = 0; i < kNodes; ++i) begin(i);
    publish(1);
    auto& port = network_.add_client({.pool_uid = kUid, .role = "client", .name = "c", .authenticated = true});
    pool_ = std::make_unique<client::Pool>(
        port, client::Pool::Options{
                  .pool_uid = kUid, .client_name = "c", .bootstrap = {"node-0:7400", "node-1:7400"}, .log = {}});
    pool_->start();
    run(put_all(*pool_, keys_));
    if (!moves) return;
    publish(2);
    run_until([this] {
      const client::PoolState state = pool_->state();
      return state.epoch == 2 && state.ready &&
             std::none_of(state.nodes.begin(), state.nodes.end(), [](const auto& node) { return node.leaving; });
    });
  }

  const std::set<std::string>& keys() const { return keys_; }
  // Asks for any number of keys.
  Page scan(std::uint64_t cursor, std::uint64_t count) {
    base::Result<Page> page = Page();
    run(scan_into(*pool_, cursor, count, page));
    FARPOOL_CHECK(page.ok());
    FARPOOL_CHECK(static_cast<std::uint64_t>(static_cast<double>(page->next)) == page->next && page->next >> 53 == 0);
    std::set<std::string_view> told;
    for (const std::string& key : page->keys) FARPOOL_CHECK(keys_.contains(key) && told.insert(key).second);
    return std::move(*page);
  }

 private:
  void begin(int i) {
    const std::string endpoint = "node-" + std::to_string(i) + ":7400";
    fabric::sim::SimResponder& responder = network_.add_node(endpoint);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(layout::kPage, kMemory));
    FARPOOL_CHECK(memory != nullptr);
    std::memset(memory, 0, kMemory);
    layout::GeometryRequest geometry{.table_percent = 1, .max_sessions = 4, .slots_per_session = 4};
    geometry.protocol = protocol_;
    if (protocol_ == layout::Protocol::race) geometry.tables = 4;
    auto node = node::MemoryNode::create({.name = "mn-" + std::to_string(i),
                                          .pool_uid = kUid,
                                          .endpoint = endpoint,
                                          .version = "test",
                                          .geometry = geometry,
                                          .failure_timeout = 40 * base::kMillisecond},
                                         {memory, kMemory}, responder);
    FARPOOL_CHECK(node.ok());
    memory_.emplace_back(memory);
    nodes_.push_back(std::move(*node));
    responder.serve(*nodes_.back());
  }
  // Shares the parts out; from epoch 2 on, half of node 1's parts have left for node 0.
  void publish(std::uint64_t epoch) {
    v1alpha1::ShardMap map;
    map.set_pool_uid(kUid);
    map.set_epoch(epoch);
    map.set_directory_depth(2);
    map.set_directory_version(epoch);
    map.set_move(epoch - 1);
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      *map.add_nodes() = nodes_[i]->entry();
      auto* table = map.add_tables();
      table->set_id(7 * i);
      table->set_node(i);
    }
    for (std::uint32_t part = 0; part < 4; ++part) map.add_directory(epoch > 1 && part == 3 ? 0 : 7 * (part % 2));
    if (epoch > 1) {
      auto* departure = map.add_departures();
      departure->set_part(3);
      departure->set_from(7);
    }
    for (auto& node : nodes_) {
      const auto published = node->publish(map, kSecret);
      if (published.verdict != node::MemoryNode::Verdict::adopted)
        std::fprintf(stderr, "%s\n", published.message.c_str());
      FARPOOL_CHECK(published.verdict == node::MemoryNode::Verdict::adopted);
    }
  }

  static Task<void> put_all(client::Pool& pool, std::set<std::string>& keys) {
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = std::string(i % 25 == 0 ? 300 : 1, 'k') + std::to_string(i);
      const base::Status status = co_await pool.put(key, i % 7 == 0 ? std::string(100, 'v') : "v");
      FARPOOL_CHECK(status.ok());
      keys.insert(key);
    }
  }
  static Task<void> scan_into(client::Pool& pool, std::uint64_t cursor, std::uint64_t count, base::Result<Page>& into) {
    into = co_await pool.scan(cursor, count);
  }
  // Runs within virtual time and a bounded number of events: an endless loop fails here.
  void run_until(const std::function<bool()>& done) {
    FARPOOL_CHECK(network_.run_until(done, network_.now() + 60 * base::kSecond));
  }
  void run(Task<void> task) {
    scope_.spawn(std::move(task));
    run_until([this] { return scope_.running() == 0; });
  }

  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const layout::Protocol protocol_;
  fabric::sim::Network network_{fabric::sim::Options{.seed = 7}};
  std::vector<std::unique_ptr<std::byte, FreeMemory>> memory_;
  std::vector<std::unique_ptr<node::MemoryNode>> nodes_;
  std::unique_ptr<client::Pool> pool_;
  task::Scope scope_;
  std::set<std::string> keys_;
};

// Keeps the worlds for the whole process: pools must say goodbye before they end, and nobody waits for that.
World& world(std::size_t which) {
  static auto* const kWorlds = new std::vector<std::unique_ptr<World>>(4);
  std::unique_ptr<World>& world = (*kWorlds)[which % 4];
  if (!world) {
    world = std::make_unique<World>(which % 2 == 0 ? layout::Protocol::rcuckoo : layout::Protocol::race, which % 4 > 1);
  }
  return *world;
}

std::uint64_t take(const std::uint8_t*& data, std::size_t& size, std::size_t bytes) {
  std::uint64_t word = 0;
  bytes = std::min(bytes, size);
  if (bytes > 0) std::memcpy(&word, data, bytes);
  data += bytes;
  size -= bytes;
  return word;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  World& pool = world(take(data, size, 1));
  std::vector<std::uint64_t> given{0};
  for (int steps = 0; size > 0 && steps < 8; ++steps) {
    const std::uint64_t what = take(data, size, 1), known = given[what / 8 % given.size()];
    std::uint64_t cursor = known, count = 1;
    bool whole = false;
    switch (what % 8) {
      case 0:  // any
        cursor = take(data, size, 8);
        count = take(data, size, 8);
        break;
      case 1:  // a known one with another part
        cursor ^= take(data, size, 1) << (take(data, size, 1) % 64);
        break;
      case 2:
        cursor += take(data, size, 2) - 0x8000;
        break;
      case 3:  // made of fields: position, table, pass, move
        cursor = take(data, size, 2);
        cursor |= take(data, size, 1) % 16 << 35;
        cursor |= take(data, size, 1) % 2 << 45;
        cursor |= take(data, size, 1) % 128 << 46;
        break;
      case 4:
        count = take(data, size, 8);
        break;
      case 5:  // to the end
        whole = true;
        count = take(data, size, 2);
        break;
      default:
        count = take(data, size, 1);
    }
    const bool from_pool = cursor == known;
    std::set<std::string> told;
    for (bool go_on = from_pool;; go_on = true) {
      Page page = pool.scan(cursor, count);
      if (go_on) FARPOOL_CHECK(page.next == 0 || page.next > cursor);
      for (std::string& key : page.keys) told.insert(std::move(key));
      cursor = page.next;
      if (cursor != 0 && given.size() < 32) given.push_back(cursor);
      if (!whole || cursor == 0) break;
    }
    if (whole && known == 0) FARPOOL_CHECK(told == pool.keys());
  }
  return 0;
}
