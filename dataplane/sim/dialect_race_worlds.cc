// SPDX-License-Identifier: Apache-2.0
// The small worlds of RACE: tables of a few groups, operations on one key, and splits beside them.
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "directory/directory.h"
#include "layout/directory.h"
#include "sim/dialects.h"
#include "sim/explore_worlds.h"

namespace farpool::sim {
namespace {

using Kind = Call::Kind;
using Step = Plot::Step;

// A key that a split of its table moves, or one that stays.
std::string on_side(const WorldOptions& options, bool moves) {
  World world(options);
  world.connect("client-0");
  for (std::uint64_t i = 0;; ++i) {
    std::string key = "k" + std::to_string(i);
    if (((directory::hash_of(world.pool_secret(), base::bytes_of(key)) & 1) != 0) == moves) return key;
  }
}

}  // namespace

std::vector<SmallWorld> race_worlds() {
  WorldOptions options = tiny(layout::Protocol::race);
  options.geometry.tables = 8;
  Catalogue all(options);
  const std::string k = on_side(options, true), stays = on_side(options, false);
  const Step split{.call = {.key = k}, .splits = true};
  all.add("race-insert-insert", 3, {}, {{call(Kind::insert, k, "1")}, {call(Kind::insert, k, "2")}});
  all.add("race-put-remove", 3, {there(0, k, "1")}, {{call(Kind::put, k, "2")}, {call(Kind::remove, k)}});
  all.add("race-modify-modify", 3, {there(0, k, "1")}, {{call(Kind::add, k)}, {call(Kind::add, k)}});
  all.add("race-remove-insert-lookup", 3, {there(0, k, "1")},
          {{call(Kind::remove, k), call(Kind::insert, k, "2")}, {call(Kind::get, k), call(Kind::get, k)}});
  WorldOptions patient = options;
  patient.failure_timeout = 10 * base::kSecond;
  const Step wait{.wait = 2 * base::kSecond, .call = {}};
  all.add("race-reuse-lookup", 3, {there(0, k, "1")},
          {{wait, call(Kind::update, k, "2"), wait, call(Kind::put, k, "3")}, {call(Kind::get, k)}}, patient);
  // The mark of groups that have become empty is cleared while a slot comes, by a client that knows the mark.
  const std::vector<Plot::Before> emptied{there(0, k, "1"), {0, {.kind = Kind::remove, .key = k}}};
  const Step whole{.call = {.key = k}, .scans = World::ScanRange{.count = 16}};
  const Step clear{.call = {}, .clears = true};
  all.add("race-clear-insert", 3, emptied, {{call(Kind::insert, k, "2")}, {whole, clear}}, patient);
  // Among three clients, the one that clears may ask in an era that another client has brought about, and in which the
  // one that inserts has begun.
  const Step two_ticks{.wait = 200 * base::kMillisecond, .call = {}},
      a_tick{.wait = 100 * base::kMillisecond, .call = {}};
  all.add("race-clear-insert-of-three", 3, emptied, {{call(Kind::insert, k, "2")}, {two_ticks, whole, clear}, {a_tick}},
          patient);
  all.add("race-clear-insert-scan", 2, emptied, {{call(Kind::insert, k, "2")}, {whole, clear, whole}}, patient);
  all.add("race-clear-insert-dies", Bounds{.preemptions = 1, .crashes = 1, .mortal = {0}}, emptied,
          {{call(Kind::insert, k, "2")}, {whole, clear, whole}}, patient);
  // A split beside each operation on a key that it moves.
  all.add("split-lookup", 2, {there(0, k, "1"), there(0, stays, "1")}, {{split}, {call(Kind::get, k)}});
  all.add("split-update", 1, {there(0, k, "1")}, {{split}, {call(Kind::update, k, "2")}});
  all.add("split-insert", 1, {there(0, stays, "1")}, {{split}, {call(Kind::insert, k, "1")}});
  all.add("split-remove", 1, {there(0, k, "1")}, {{split}, {call(Kind::remove, k)}});
  const std::vector<Plot::Before> both{there(0, k, "1"), there(1, stays, "1")};
  all.add("split-modify", 2, both, {{split}, {call(Kind::add, k)}}, patient);
  all.add("split-split", Bounds{.preemptions = 2, .few = 1}, both, {{split}, {split}}, patient);
  // Splits twice, while another client's directory is still the old one.
  all.add("split-split-lookup", 2, both, {{split, split}, {call(Kind::get, k), call(Kind::get, k)}}, patient);
  // The group that the key lies in is split, at once and in steps.
  const std::vector<Plot::Before> one{there(0, k, "1")};
  const std::uint64_t group = look_ahead(options, one).rows.at(k);
  const std::uint64_t bits = layout::most_depth(options.geometry.tables);
  const auto scan = [&](std::uint64_t count) {
    const World::ScanRange part{.first = group << bits, .end = (group + 1) << bits, .count = count};
    return Step{.call = {}, .scans = part};
  };
  const Bounds few{.preemptions = 1, .few = 8};  // a splitter has eight groups under way at once
  all.add("split-scan", few, one, {{split}, {scan(16)}}, patient);
  all.add("split-scan-in-steps", few, one, {{split}, {scan(1)}}, patient);
  all.add("split-insert-insert", 1, {there(0, stays, "1")},
          {{split}, {call(Kind::insert, k, "1")}, {call(Kind::insert, k, "2")}}, patient);
  all.add("split-put-remove", 1, both, {{split}, {call(Kind::put, k, "2")}, {call(Kind::remove, k)}}, patient);
  // The splitter dies, and the client that meets its split continues it.
  WorldOptions mortal = options;
  mortal.failure_timeout = 200 * base::kMillisecond;
  const Bounds dies{.preemptions = 1, .crashes = 1, .mortal = {0}, .few = 1};
  all.add("split-dies-lookup", dies, both, {{split}, {call(Kind::get, k), call(Kind::get, k)}}, mortal);
  all.add("split-dies-update", dies, both, {{split}, {call(Kind::update, k, "2")}}, mortal);
  all.add("split-dies-insert", dies, {there(0, stays, "1")}, {{split}, {call(Kind::insert, k, "1")}}, mortal);
  // It stops, is fenced, and goes on.
  const Bounds stalls{.preemptions = 1, .stalls = 1, .mortal = {0}, .few = 1};
  all.add("split-stalls-update", stalls, both, {{split}, {call(Kind::update, k, "2")}}, mortal);
  const Bounds loses{.preemptions = 1, .losses = 1, .mortal = {0}};
  all.add("race-update-loses-update", loses, {there(0, k, "1")},
          {{call(Kind::update, k, "2")}, {call(Kind::update, k, "3")}});
  all.add("race-modify-loses-modify", loses, {there(0, k, "1")}, {{call(Kind::add, k)}, {call(Kind::add, k)}});
  return all.take();
}

}  // namespace farpool::sim
