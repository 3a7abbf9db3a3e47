// SPDX-License-Identifier: Apache-2.0
// The small worlds of Outback: operations on one key, and on keys that share a bucket, its seed and its overflow list.
#include <string>
#include <vector>

#include "sim/dialect_outback.h"
#include "sim/dialects.h"
#include "sim/explore_worlds.h"

namespace farpool::sim {

namespace {

using Kind = Call::Kind;
using Step = Plot::Step;

}  // namespace

std::vector<SmallWorld> outback_worlds() {
  WorldOptions options = tiny(layout::Protocol::outback);
  options.geometry.memory_bytes = 2560 << 10;
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
  return all.take();
}

}  // namespace farpool::sim
