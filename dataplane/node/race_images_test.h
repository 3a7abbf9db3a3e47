// SPDX-License-Identifier: Apache-2.0
// What lies in a memory node with RACE tables at moments of a busy life: long values, splits of two tables at once
// under a doubled directory, keys that leave for another memory node and keys that come from one. Clients have made it
// in the simulator, and all processes may die at each of these moments. For tests that damage it, and for the fuzzer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "directory/directory.h"
#include "index/table.h"
#include "layout/directory.h"
#include "layout/geometry.h"
#include "layout/lease.h"
#include "sim/housekeeping.h"
#include "sim/world.h"

namespace farpool::node {

// All images are of one pool and one memory: what is in one of them may stand in another.
struct RaceImage {
  std::string name;
  std::vector<std::byte> bytes;
};

class RaceLife {
 public:
  static std::vector<RaceImage> images() {
    RaceLife life;
    life.live();
    return std::move(life.images_);
  }
  static constexpr char kPool[] = "pool-of-the-simulation";  // the same in sim/world.cc
  static constexpr layout::GeometryRequest kGeometry{.memory_bytes = 2816 << 10,
                                                     .table_percent = 1,
                                                     .max_sessions = 4,
                                                     .slots_per_session = 2,
                                                     .protocol = layout::Protocol::race,
                                                     .tables = 8};

  // The fields of a slot's word; index/race/layout.h has the same.
  static constexpr std::uint64_t kStateMask = 3ull << 46, kTentative = 1ull << 46, kMoving = 2ull << 46,
                                 kLeaving = 3ull << 46;
  static constexpr std::uint64_t kBucketBytes = 64, kMoveShift = 41;

 private:
  using Client = sim::Client;

  // The other memory node.
  class Elsewhere final : public index::Arrivals {
   public:
    task::Task<base::Status> take_in(std::string_view key, std::string_view value) override {
      keys.emplace(key, value);
      co_return base::Status();
    }
    task::Task<base::Result<bool>> has(std::string_view key) override { co_return keys.contains(std::string(key)); }
    std::map<std::string, std::string> keys;
  };

  static base::Nanos soon(Client& client) { return client.port().now() + 20 * base::kSecond; }
  static base::Status go_on() { return {}; }
  static index::Move move(std::uint64_t number, std::vector<bool> leaving) {
    return {.number = number, .depth = 1, .leaving = std::move(leaving)};
  }

  static task::Task<void> put(Client* client, std::string key, std::string value) {
    fabric::Cost cost;
    const auto put = co_await client->table().put(key, value, soon(*client), cost);
    FARPOOL_CHECK(put.ok());
  }
  static task::Task<void> insert(Client* client, std::string key) {
    fabric::Cost cost;
    (void)co_await client->table().insert(key, "v", soon(*client), cost);
  }
  static task::Task<void> close(Client* client, index::Arrivals* arrivals) {
    const base::Status status = co_await client->table().movable()->close(arrivals, go_on);
    FARPOOL_CHECK(status.ok());
  }
  static task::Task<void> move_away(Client* client, Elsewhere* elsewhere) {
    (void)co_await client->table().movable()->move_away(*elsewhere, go_on);
  }
  static task::Task<void> admit(Client* client, std::string key) {
    fabric::Cost cost;
    (void)co_await client->table().movable()->admit(key, "from elsewhere", soon(*client), cost);
  }

  // --- What can be seen of it

  directory::View view() const { return {world_.region(layout::kDirectory), world_.geometry().tables}; }
  std::uint64_t splits(layout::SplitWord::Phase phase) const {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < view().tables(); ++i) {
      count += layout::SplitWord::phase(view().split(i)) == phase ? 1 : 0;
    }
    return count;
  }
  bool at_rest() const {
    const base::Bytes leases = world_.region(layout::kLeases);
    for (std::uint64_t at = 0; at < leases.size(); at += 8) {
      if (layout::LeaseWord::held(base::load<std::uint64_t>(leases.data() + at))) return false;
    }
    return splits(layout::SplitWord::none) == view().tables();
  }
  template <class Which>
  std::uint64_t words(bool headers, Which which) const {
    const base::Bytes table = world_.region(layout::kTable);
    std::uint64_t count = 0;
    for (std::uint64_t at = 0; at < table.size(); at += 8) {
      if ((at % kBucketBytes == 0) == headers && which(base::load<std::uint64_t>(table.data() + at))) ++count;
    }
    return count;
  }
  std::uint64_t slots(std::uint64_t state) const {
    return words(false, [state](std::uint64_t word) { return word != 0 && (word & kStateMask) == state; });
  }
  std::uint64_t headers_of_move(std::uint64_t number) const {
    return words(true, [number](std::uint64_t word) { return word >> kMoveShift == number; });
  }

  // --- What happens

  void keep(const std::string& name) {
    const base::Bytes memory = world_.memory();
    images_.push_back({name, {memory.begin(), memory.end()}});
  }
  void keep_when(const std::string& name, const std::function<bool()>& come) {
    const bool came = world_.run_until(come);
    if (!came) std::fprintf(stderr, "it never came to this: %s\n", name.c_str());
    FARPOOL_CHECK(came);
    keep(name);
  }
  void run(Client& client, task::Task<void> task) { FARPOOL_CHECK(world_.run(client, std::move(task))); }
  void put_all(Client& client, int from, int to) {
    for (int i = from; i < to; ++i) run(client, put(&client, "key-" + std::to_string(i), "v" + std::to_string(i)));
  }
  // Returns some key of the table, which the key tells the client of.
  std::string key_in(std::uint64_t table) const {
    for (int i = 0;; ++i) {
      std::string key = "key-" + std::to_string(i);
      const auto route = directory::route(view(), directory::hash_of(world_.pool_secret(), base::bytes_of(key)));
      if (route && route->table == table) return key;
    }
  }

  void live() {
    using layout::SplitWord;
    Client& a = world_.connect("a");
    Client& b = world_.connect("b");
    put_all(a, 0, 60);
    for (int i = 0; i < 4; ++i) run(b, put(&b, "middling-" + std::to_string(i), std::string(150, 'x')));
    for (int i = 0; i < 2; ++i) run(a, put(&a, "long-" + std::to_string(i), std::string(20'000, 'y')));
    run(a, put(&a, "longest", std::string(300'000, 'z')));
    keep("one table");
    world_.spawn(b, insert(&b, "another"));
    keep_when("an insert", [this] { return slots(kTentative) > 0; });
    FARPOOL_CHECK(world_.settle(b));

    world_.spawn(a, sim::split(a, key_in(0)));
    keep_when("a split that begins", [this] { return splits(SplitWord::moving) == 1; });
    keep_when("a split whose slots move", [this] { return slots(kMoving) >= 4; });
    keep_when("a split whose slots are cleared", [this] { return splits(SplitWord::clearing) == 1; });
    keep_when("a split that ends", [this] { return splits(SplitWord::ending) == 1; });
    keep_when("two tables", [this] { return at_rest(); });

    run(b, put(&b, key_in(1), "w"));  // which tells it of the table
    world_.spawn(a, sim::split(a, key_in(0)));
    world_.spawn(b, sim::split(b, key_in(1)));
    keep_when("two splits", [this] { return splits(SplitWord::moving) == 2; });
    keep_when("two splits whose slots move", [this] { return slots(kMoving) >= 8; });
    keep_when("four tables", [this] { return at_rest(); });

    // Half of the keys leave. The mover dies in the middle, and a table is split with keys on their way.
    Client& mover = world_.connect("mover");
    for (Client* client : {&a, &b, &mover}) client->table().movable()->follow(move(1, {true, false}));
    world_.spawn(mover, close(&mover, &elsewhere_));
    keep_when("buckets that close", [this] { return headers_of_move(1) >= 12; });
    FARPOOL_CHECK(world_.settle(mover));
    world_.spawn(mover, move_away(&mover, &elsewhere_));
    keep_when("keys that leave", [this] { return slots(kLeaving) >= 3 && elsewhere_.keys.size() >= 5; });
    mover.port().crash(fabric::sim::InFlight::lands);
    world_.spawn(a, sim::split(a, key_in(2)));
    keep_when("a split with keys that leave", [this] { return slots(kMoving) >= 2 && slots(kLeaving) >= 1; });
    run(b, move_away(&b, &elsewhere_));
    keep_when("keys that have left", [this] { return at_rest(); });

    for (Client* client : {&a, &b}) client->table().movable()->follow(move(2, {}));
    run(b, close(&b, nullptr));
    for (int i = 0; i < 10; ++i) run(b, admit(&b, "guest-" + std::to_string(i)));
    world_.spawn(b, admit(&b, "guest"));
    keep_when("keys that come", [this] { return slots(kTentative) > 0; });
    FARPOOL_CHECK(world_.settle(b));
    FARPOOL_CHECK(world_.quiesce());
    keep("five tables after two moves");
  }

  static sim::WorldOptions options() {
    sim::WorldOptions options;
    options.geometry = kGeometry;
    return options;
  }

  sim::World world_{options()};
  Elsewhere elsewhere_;
  std::vector<RaceImage> images_;
};

}  // namespace farpool::node
