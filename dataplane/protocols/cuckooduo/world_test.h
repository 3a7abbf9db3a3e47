// SPDX-License-Identifier: Apache-2.0
// A memory node with a small CuckooDuo table, and clients that own it one after the other, on the simulated wire.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "heap/heap.h"
#include "index/cuckooduo/inbox.h"
#include "index/cuckooduo/outbox.h"
#include "index/cuckooduo/owner.h"
#include "index/cuckooduo/replica.h"
#include "index/cuckooduo/slot.h"
#include "layout/directory.h"
#include "node/world_test.h"
#include "protocols/cuckooduo/list_test.h"

namespace farpool::cuckooduo {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::sim::InFlight;
using fabric::sim::SimPort;
using index::Edit;
using task::Task;

inline constexpr Nanos kPatience = 20 * base::kSecond;

// So few buckets that keys collide, are moved, and go to the stash.
inline constexpr Shape kSmall{
    .buckets = 4, .slots = 4, .second = 1, .print_bits = 6, .path = 2, .stash = 12, .spares = 2};
inline constexpr Shape kRoomy{.buckets = 64, .slots = 8, .second = 2, .stash = 16, .spares = 4};

inline constexpr std::uint32_t kRecords = 24;

inline std::string key_of(std::uint64_t i) { return "key-" + std::to_string(i); }
// Every third value does not fit a slot.
inline std::string value_of(std::uint64_t i) { return (i % 3 == 0 ? std::string(100, 'v') : "v") + std::to_string(i); }

using Pairs = std::map<std::string, std::string>;
using Found = Result<std::optional<std::string>>;

// What clients do with a table.
struct Doing {
  enum class Kind : std::uint8_t { put, update, insert, remove } kind = Kind::put;
  std::string key, value;

  Wish wish() const {
    switch (kind) {
      case Kind::put:
        return {.name = "a put", .if_present = Edit::Kind::put, .if_absent = Edit::Kind::put, .value = value};
      case Kind::update:
        return {.name = "an update", .if_present = Edit::Kind::put, .value = value};
      case Kind::insert:
        return {.name = "an insert", .if_absent = Edit::Kind::put, .value = value};
      case Kind::remove:
        return {.name = "a remove", .if_present = Edit::Kind::erase};
    }
    return {};
  }
  layout::KvOp op() const {
    constexpr layout::KvOp kOps[] = {layout::KvOp::put, layout::KvOp::update, layout::KvOp::insert,
                                     layout::KvOp::remove};
    return kOps[static_cast<std::size_t>(kind)];
  }
  void apply(Pairs& pairs) const {
    const bool there = pairs.contains(key);
    if (kind == Kind::remove) {
      pairs.erase(key);
    } else if (kind == Kind::put || there == (kind == Kind::update)) {
      pairs[key] = value;
    }
  }
};

// A client that may own the table. What its coroutines refer to stays if it crashes.
struct Shard {
  SimPort* port = nullptr;
  struct Body {
    std::unique_ptr<session::Session> session;
    std::unique_ptr<heap::Heap> heap;
    std::unique_ptr<Owner> owner;
    std::unique_ptr<Replica> replica;
    std::unique_ptr<Inbox> inbox;
    std::unique_ptr<Outbox> outbox;
    task::Scope scope;
    Status taken{Code::internal, "not yet"};
    Result<bool> changed{Status(Code::internal, "not yet")};
    Cost cost;
    bool over = false;
  };
  std::shared_ptr<Body> body = std::make_shared<Body>();
  bool closed = false;

  Owner& owner() { return *body->owner; }
  Nanos soon() const { return port->now() + kPatience; }
};

struct World : node::TestWorld {
  explicit World(const Shape& of, std::uint64_t seed = 1) : TestWorld(seed, 4 << 20, 8), shape(of) {
    // A client that dies is found soon: other clients look keys up meanwhile, very often.
    kill();
    options.failure_timeout = 20 * base::kMillisecond;
    served().site = site();
    begin_life();
    EXPECT_EQ(node->stand_alone().verdict, node::Verdict::adopted);
  }
  ~World() {
    for (auto& shard : shards) {
      if (shard->port->crashed()) {
        fabric::sim::bury(shard->body);
      } else if (!shard->closed) {
        leave(*shard);
      }
    }
  }

  // A client with a session.
  Shard& join() {
    shards.push_back(std::make_unique<Shard>());
    Shard& shard = *shards.back();
    shard.port = &client();
    shard.body->session = open(*shard.port);
    const layout::Geometry& cut = geometry();
    shard.body->heap =
        std::make_unique<heap::Heap>(*shard.body->session, cut.at(layout::kHeap).bytes, cut.segment_bytes);
    secret = shard.body->session->grant().table_seed;
    shard.body->owner = std::make_unique<Owner>(*shard.body->session, *shard.body->heap, site());
    shard.body->replica = std::make_unique<Replica>(*shard.body->session, site());
    shard.body->inbox = std::make_unique<Inbox>(*shard.body->session, *shard.body->owner);
    shard.body->outbox = std::make_unique<Outbox>(*shard.body->session, site(), [] {});
    return shard;
  }
  // One that owns the table.
  Shard& own() {
    Shard& shard = join();
    take(shard);
    EXPECT_TRUE(shard.body->taken.ok()) << shard.body->taken.message();
    return shard;
  }
  static bool serves(const Shard& shard) {
    return served().relay->counts().owner == shard.body->session->grant().session_id;
  }
  // One that owns the table, and serves others.
  Shard& serve() {
    Shard& shard = own();
    shard.body->inbox->open();
    EXPECT_TRUE(wait_until([&] { return serves(shard); }));
    return shard;
  }
  Site site() const {
    return {.shape = shape, .salt = 7, .secret = secret, .tables = 1, .table = 0, .records = kRecords};
  }
  void take(Shard& shard) { run(taking(shard.body.get(), shard.soon())); }
  void give_back(Shard& shard) { run(giving_back(shard.body.get(), shard.soon())); }
  void leave(Shard& shard) {
    run(leaving(shard.body.get(), shard.soon()));
    shard.closed = true;
    shard.body->inbox.reset();
    shard.body->outbox.reset();
    shard.body->owner.reset();
    shard.body->replica.reset();
    shard.body->heap.reset();
    shard.body->session.reset();
  }

  // Does it, and waits until it has been done, or the client has crashed.
  Result<bool> act(Shard& shard, const Doing& what) {
    shard.body->over = false;
    shard.body->scope.spawn(acting(shard.body.get(), what, shard.soon()));
    FARPOOL_CHECK(
        network.run_until([&] { return shard.body->over || shard.port->crashed(); }, network.now() + 2 * kPatience));
    return shard.body->changed;
  }
  Found get(Shard& shard, const std::string& key) {
    Found found = std::optional<std::string>();
    run(getting(&shard.owner(), key, shard.soon(), &found, &shard.body->cost));
    return found;
  }
  // What a client that does not own the table finds.
  Found glance(Shard& shard, const std::string& key, Nanos patience = kPatience) {
    Found found = std::optional<std::string>();
    run(getting(shard.body->replica.get(), key, shard.port->now() + patience, &found, &shard.body->cost));
    return found;
  }
  // Does it, as what the table should have says.
  void put(Shard& shard, Pairs& pairs, const std::string& key, const std::string& value) {
    const Doing what{Doing::Kind::put, key, value};
    const Result<bool> existed = act(shard, what);
    ASSERT_TRUE(existed.ok()) << existed.status().message();
    EXPECT_EQ(*existed, pairs.contains(key));
    what.apply(pairs);
  }
  // Returns what the table has of these keys.
  Pairs found(Shard& shard, const Pairs& sought) {
    Pairs all;
    for (const auto& [key, value] : sought) {
      const Found found = get(shard, key);
      EXPECT_TRUE(found.ok()) << found.status().message();
      if (found.ok() && *found) all[key] = **found;
    }
    return all;
  }
  void expect(Shard& shard, const Pairs& pairs) {
    EXPECT_EQ(found(shard, pairs), pairs);
    EXPECT_EQ(shard.owner().index().keys(), pairs.size());
    expect_slots(shard);
  }
  // Expects every slot of the vault to have what the owner's index says, and no other.
  void expect_slots(Shard& shard) {
    ASSERT_TRUE(wait_until([&] { return shard.owner().idle(); }));
    for (Place place = 0; place < shape.end(); ++place) {
      const Slot there = slot(place);
      EXPECT_NE(there.verdict, Slot::Verdict::torn) << place;
      EXPECT_EQ(there.whole(), shard.owner().index().taken(place)) << place;
    }
  }
  base::MutableBytes region(layout::RegionId id) {
    return memory.span().subspan(geometry().at(id).offset, geometry().at(id).bytes);
  }
  base::MutableBytes slot_bytes(Place place) {
    return region(layout::kTable).subspan(place * shape.slot_bytes, shape.slot_bytes);
  }
  Slot slot(Place place) { return read_slot(slot_bytes(place), place); }
  std::uint64_t owner_word() {
    return base::load<std::uint64_t>(region(layout::kDirectory).data() + layout::record_offset(1, 0) +
                                     layout::kRecordOwner);
  }

  static Task<void> taking(Shard::Body* body, Nanos deadline) { body->taken = co_await body->owner->take(deadline); }
  static Task<void> giving_back(Shard::Body* body, Nanos deadline) {
    co_await body->inbox->close(deadline);
    co_await body->owner->give_back(deadline);
  }
  static Task<void> leaving(Shard::Body* body, Nanos deadline) {
    co_await giving_back(body, deadline);
    if (body->session->alive()) co_await body->heap->release(deadline);
    co_await body->session->close(deadline);
  }
  static Task<void> acting(Shard::Body* body, Doing what, Nanos deadline) {
    body->changed = co_await body->owner->change(what.key, what.wish(), deadline, body->cost);
    body->over = true;
  }
  template <class Table>
  static Task<void> getting(Table* table, std::string key, Nanos deadline, Found* into, Cost* cost) {
    *into = co_await table->lookup(key, deadline, *cost);
  }

  const Shape shape;
  base::HashSecret secret;
  std::vector<std::unique_ptr<Shard>> shards;
};

}  // namespace farpool::cuckooduo
