// SPDX-License-Identifier: Apache-2.0
// The small worlds of Outback: operations on one key, on keys that share a bucket, its seed and its overflow list, and on
// keys of a table that grows.
#include <array>
#include <string>
#include <vector>

#include "base/check.h"
#include "index/outback/protocol.h"
#include "sim/dialect_outback.h"
#include "sim/dialects.h"
#include "sim/explore_worlds.h"

namespace farpool::sim {

namespace {

using Kind = Call::Kind;
using Step = Plot::Step;

// A table of four buckets. Each change takes a step of growth from the sixteenth one on: then the table is doubled, and
// the third or fourth change finds its keys moving.
void growing_worlds(Catalogue& all) {
  WorldOptions options = tiny(layout::Protocol::outback);
  options.geometry.memory_bytes = 2560 << 10;
  options.geometry.table_percent = 2;
  std::vector<Plot::Before> filled;
  const auto key = [](std::size_t i) { return "g" + std::to_string(i); };
  for (std::size_t i = 0; i < 15; ++i) filled.push_back(there(i % 2, key(i), std::to_string(i)));
  std::vector<Plot::Before> more = filled;  // a locator is being built
  for (std::size_t i = 15; i < 18; ++i) more.push_back(there(i % 2, key(i), std::to_string(i)));
  const auto get = [&](std::size_t i) { return call(Kind::get, key(i)); };
  const auto put = [&](std::size_t i) { return call(Kind::put, key(i), "new"); };
  const auto add = [&](const std::string& name, const Bounds& bounds, std::vector<Plot::Before> before,
                       Plot::Steps steps) {
    all.add("outback-grows-" + name, bounds, std::move(before), std::move(steps), options);
  };
  const Bounds two{.preemptions = 2}, one{.preemptions = 1};
  add("lookup", two, more, {{put(0), put(1), put(2)}, {get(3), get(4), get(0)}});
  add("miss", two, more, {{put(0), call(Kind::remove, key(3)), put(1)}, {get(3), get(20), get(3)}});
  add("insert-remove", one, more,
      {{call(Kind::insert, key(20), "1"), call(Kind::remove, key(1))}, {call(Kind::insert, key(1), "2"), get(1)}});
  add("remove-insert", one, filled,
      {{call(Kind::remove, key(2)), put(0), call(Kind::insert, key(2), "1")}, {get(2), call(Kind::put, key(3), "x")}});
  add("modify-modify", two, more, {{call(Kind::add, key(5)), put(0)}, {call(Kind::add, key(5)), get(5)}});
  const Step scan{.call = {.key = key(0)}, .scans = World::ScanRange{.count = 64}};
  add("scan", one, more, {{put(0), call(Kind::insert, key(20), "1"), put(1)}, {scan}});
  const Bounds loses{.preemptions = 1, .losses = 1, .mortal = {0}};
  add("add-loses-add", loses, more, {{call(Kind::add, key(5)), put(0)}, {call(Kind::add, key(5)), put(1)}});
  const Bounds dies{.preemptions = 1, .crashes = 1, .mortal = {0}};
  add("put-dies-put", dies, more, {{put(5), put(0)}, {put(5), put(1), get(5)}});
}

// A table that gets another locator of as many buckets, because nine keys share its last one. The first explored change
// publishes it, and works on the other buckets: until the next change the nine lie where the locator before had them.
void rebuilt_worlds(Catalogue& all) {
  WorldOptions options = tiny(layout::Protocol::outback);
  roomy(options);
  std::vector<std::string> keys;
  std::vector<Plot::Before> before;
  {
    World world(options);
    const std::array clients{&world.connect("client-0"), &world.connect("client-1")};
    const std::uint64_t buckets = outback::figures_of(world.geometry(), world.table_seed()).partition_buckets;
    for (int i = 0; keys.size() < 9; ++i) {
      std::string key = "r" + std::to_string(i);
      if (outback_bucket(world, key) % buckets == buckets - 1) keys.push_back(std::move(key));
    }
    const auto moves = [&world] {
      const base::Bytes heap = world.region(layout::kHeap);
      return outback::stage_of(*outback::parse(heap), heap)->moving;
    };
    while (!moves()) {
      const std::size_t i = before.size();
      FARPOOL_CHECK(i < 100);
      before.push_back(i < keys.size() ? there(i % 2, keys[i], std::to_string(i))
                                       : Plot::Before{i % 2, {.kind = Kind::remove, .key = "none"}});
      FARPOOL_CHECK(world.run(*clients[i % 2], world.call(*clients[i % 2], before.back().call, base::kSecond)));
    }
    before.pop_back();
    // Only keys that move are asked for.
    const base::Bytes heap = world.region(layout::kHeap);
    const outback::Cut cut = *outback::parse(heap);
    const bool first = outback::stage_of(cut, heap)->place == 0;
    const base::Bytes place = first ? world.region(layout::kTable) : heap.subspan(cut.locator, cut.locator_bytes);
    const outback::LocatorHeader header = *outback::LocatorHeader::parse(place);
    std::erase_if(keys, [&](const std::string& key) {
      const std::uint64_t hash = outback::hash_of(world.table_seed(), header.salt, base::bytes_of(key));
      return outback::bucket_in(header.shape, place, hash) == buckets - 1;
    });
    FARPOOL_CHECK(keys.size() > 3);
  }
  const std::vector<Step> changes{call(Kind::put, keys[0], "new"), call(Kind::put, keys[1], "new")};
  std::vector<Step> gets, inserts;
  for (std::size_t i = 2; i < 4; ++i) {
    gets.push_back(call(Kind::get, keys[i]));
    inserts.push_back(call(Kind::insert, keys[i], "other"));
  }
  all.add("outback-rebuilds-lookup", 1, before, {changes, gets}, options);
  all.add("outback-rebuilds-insert", 1, before, {changes, inserts}, options);
}

}  // namespace

std::vector<SmallWorld> outback_worlds() {
  WorldOptions options = tiny(layout::Protocol::outback);
  roomy(options);
  Catalogue all(options);
  const std::vector<std::string> keys = outback_neighbours(options, 7);
  const std::string& k = keys[0];
  // The first so many of the neighbours are there. Each client knows its locator and has its lines.
  const auto first = [&](std::size_t count) {
    std::vector<Plot::Before> before;
    for (std::size_t i = 0; i < count; ++i) before.push_back(there(i % 2, keys[i], std::to_string(i)));
    for (std::size_t client = 0; client < 2; ++client)
      before.push_back({client, {.kind = Kind::remove, .key = "none"}});
    return before;
  };
  const auto get = [](const std::string& key) { return call(Kind::get, key); };
  all.add("outback-insert-insert", 3, first(0), {{call(Kind::insert, k, "1")}, {call(Kind::insert, k, "2")}});
  all.add("outback-put-remove", 3, first(1), {{call(Kind::put, k, "2")}, {call(Kind::remove, k)}});
  all.add("outback-modify-modify", 3, first(1), {{call(Kind::add, k)}, {call(Kind::add, k)}});
  all.add("outback-modify-put", 3, first(1), {{call(Kind::add, k)}, {call(Kind::put, k, "7"), call(Kind::remove, k)}});
  all.add("outback-remove-insert-lookup", 3, first(1),
          {{call(Kind::remove, k), call(Kind::insert, k, "2")}, {get(k), get(k)}});
  // The bucket gets other seeds, which the client that reads learns late.
  all.add("outback-seed-lookup", 3, first(1),
          {{call(Kind::insert, keys[1], "1"), call(Kind::insert, keys[2], "1"), call(Kind::insert, keys[3], "1")},
           {get(k), get(keys[1]), get(keys[3])}});
  // The bucket is full: keys go into overflow, and come back into a slot that is free.
  all.add("outback-overflow-lookup", 3, first(4),
          {{call(Kind::insert, keys[4], "1"), call(Kind::remove, keys[4])}, {get(k), get(keys[4]), get(keys[4])}});
  all.add("outback-overflow-pull-lookup", 3, first(5),
          {{call(Kind::remove, k), call(Kind::insert, keys[5], "1")}, {get(keys[4]), get(keys[4]), get(k)}});
  all.add("outback-overflow-overflow", 2, first(4),
          {{call(Kind::insert, keys[4], "1"), call(Kind::remove, keys[5])},
           {call(Kind::insert, keys[5], "2"), call(Kind::remove, k)},
           {get(keys[4]), get(keys[5])}});
  const Step scan{.call = {.key = k}, .scans = World::ScanRange{.count = 64}};
  all.add("outback-scan", 2, first(5), {{call(Kind::remove, k), call(Kind::insert, k, "2")}, {scan}});
  // A long value is read one-sidedly, while another takes its place.
  const std::string value(5000, 'v'), other(5001, 'w');
  all.add("outback-long-lookup", 2, {there(0, k, value)},
          {{call(Kind::put, k, other), call(Kind::put, k, "short")}, {get(k)}});
  // Answers get lost; a client dies.
  const Bounds loses{.preemptions = 1, .losses = 1, .mortal = {0}};
  all.add("outback-update-loses-update", loses, first(1), {{call(Kind::update, k, "2")}, {call(Kind::update, k, "3")}});
  all.add("outback-modify-loses-modify", loses, first(1), {{call(Kind::add, k)}, {call(Kind::add, k)}});
  const Bounds dies{.preemptions = 1, .crashes = 1, .mortal = {0}};
  all.add("outback-put-dies-put", dies, first(1), {{call(Kind::put, k, "2")}, {call(Kind::put, k, "3"), get(k)}});
  all.add("outback-overflow-dies-lookup", dies, first(4), {{call(Kind::insert, keys[4], "1")}, {get(k), get(keys[4])}});
  growing_worlds(all);
  rebuilt_worlds(all);
  return all.take();
}

}  // namespace farpool::sim
