// SPDX-License-Identifier: Apache-2.0
// Worlds of Outback: a few buckets, whose slots, seeds and overflow lists the keys share. The memory node executes each
// operation as one, so nothing is ever half done by a client. A table begins with a 256th of its rows, and grows.
#include "sim/dialect_outback.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "index/outback/protocol.h"
#include "sim/dialects.h"

namespace farpool::sim {

using base::Random;
using Kind = Call::Kind;

std::uint64_t outback_bucket(const World& world, std::string_view key) {
  const auto cut = outback::cut(outback::figures_of(world.geometry(), world.table_seed()));
  FARPOOL_CHECK(cut.ok());
  const outback::LocatorShape shape = cut->shape(cut->figures.doublings);
  const std::uint64_t hash = outback::hash_of(world.table_seed(), cut->figures.salt, base::bytes_of(key));
  const outback::Candidates places = outback::Candidates::of(hash, shape);
  return std::uint64_t{places.partition} * shape.buckets + places.buckets[0];
}

void roomy(WorldOptions& options) {
  options.geometry.memory_bytes = 3 << 20;
  options.geometry.table_percent = 8;
}

std::vector<std::string> outback_neighbours(const WorldOptions& options, std::size_t count) {
  World world(options);
  world.connect("client-0");
  std::map<std::uint64_t, std::vector<std::string>> by_bucket;
  for (std::uint64_t i = 0;; ++i) {
    std::string key = "k" + std::to_string(i);
    auto& keys = by_bucket[outback_bucket(world, key)];
    keys.push_back(std::move(key));
    if (keys.size() == count) return std::move(keys);
  }
}

namespace {

constexpr std::size_t kLong = 5000;  // no reply has room for such a value

class Outback final : public Dialect {
 public:
  std::string title() const override { return "Outback"; }

  bool scans_by_rows() const override { return false; }
  bool compacts() const override { return false; }
  bool clears() const override { return false; }
  // Each session has a table of its own there, and memory is never short.
  bool comes_to(std::uint64_t index::Marks::*mark) const override {
    return mark != &index::Marks::reconnections && mark != &index::Marks::asked_again &&
           mark != &index::Marks::room_waits;
  }

  // Crowds the keys into a few buckets: half of them full, or with as many keys in overflow as in slots. Some tables
  // begin with eight slots, so that they are doubled again and again; others have room for all keys.
  void adapt(SwarmSetting& s, std::uint64_t seed) const override {
    Random random(seed ^ 0x0b);
    s.window = 2 + random.below(3);
    s.border = false;
    s.world.geometry.table_percent = 1 + random.below(8);
    s.world.geometry.memory_bytes = 3 << 20;
    s.keys = std::max<std::size_t>(3, s.window * (2 + random.below(6)));
    if (s.crowded) s.calls = 600 / (s.clients * s.tasks);
    if (random.chance(0.3)) s.long_values = kLong;
    s.dies_in_service = true;
    s.most_effects = 200;  // an operation is one
    // What is read one-sidedly waits for eras.
    if (random.chance(0.3)) s.thought = static_cast<Nanos>(random.below(2) == 0 ? 50 : 1000) * base::kMicrosecond;
  }

  void adapt(PoolSetting& s, std::uint64_t seed) const override {
    Random random(base::mix(seed) ^ 0x0b);
    s.geometry = {.table_percent = 1, .max_sessions = 24, .protocol = layout::Protocol::outback};
    s.keys += random.below(60);
    // As many keys as sixteen times the first slots have room for.
    if (random.chance(0.3)) {
      s.keys += 120 * s.nodes;
      s.calls *= 12;
      s.reads = 0.1;
    }
    s.wishes = 0;
    s.moves = random.chance(0.25) ? 0 : 1 + random.below(3);
    s.most_effects = 100;
    s.wire.lose_call = random.chance(0.3) ? 0.003 : 0;
  }

  bool within(const World& world, std::string_view key, std::uint64_t first, std::uint64_t rows) const override {
    const std::uint64_t bucket = outback_bucket(world, key);
    return bucket >= first && bucket < first + rows;
  }

  // An edit is a read, and a change on condition that nobody else has changed the entry since.
  std::optional<std::uint32_t> trips(const layout::Geometry&, const Call& call,
                                     const std::optional<std::string>&) const override {
    return call.kind == Kind::add ? std::nullopt : std::optional<std::uint32_t>(1);
  }

  bool hinders(const World&) const override { return false; }

  std::vector<SmallWorld> small_worlds() const override { return outback_worlds(); }

  std::vector<Scenario> scenarios(std::uint64_t seed) const override {
    WorldOptions options = crash_options(seed, layout::Protocol::outback);
    roomy(options);
    const std::vector<std::string> keys = outback_neighbours(options, 7);
    const auto inserted = [](std::string key) {
      return Scenario::Before{.call = {.kind = Kind::insert, .key = std::move(key), .value = "1"}};
    };
    const auto make = [&](std::string name, std::size_t there, Call doomed) {
      Scenario scenario{.name = std::move(name), .options = options, .doomed = std::move(doomed)};
      for (std::size_t i = 0; i < there; ++i) scenario.before.push_back(inserted(keys[i]));
      return scenario;
    };
    const std::string value(kLong, 'l'), other(kLong + 1, 'm');
    std::vector<Scenario> all{
        make("insert, another seed", 3, {.kind = Kind::insert, .key = keys[3], .value = "2"}),
        make("insert, into overflow", 5, {.kind = Kind::insert, .key = keys[5], .value = "2"}),
        make("update, of a key in overflow", 6, {.kind = Kind::update, .key = keys[5], .value = value}),
        make("remove, of a key in overflow", 6, {.kind = Kind::remove, .key = keys[5]}),
        make("remove, whose slot a key takes from overflow", 6, {.kind = Kind::remove, .key = keys[0]}),
        make("modify, of a key in overflow", 6, {.kind = Kind::add, .key = keys[5]}),
        make("put, a long value", 1, {.kind = Kind::put, .key = keys[0], .value = value}),
    };
    Scenario longer = make("put, a long value for another", 0, {.kind = Kind::put, .key = keys[0], .value = other});
    longer.before.push_back({.call = {.kind = Kind::insert, .key = keys[0], .value = value}});
    all.push_back(std::move(longer));
    return all;
  }

  std::string name_row(const layout::Geometry&, std::uint64_t offset, std::uint64_t bytes) const override {
    if (offset != 0) return "locator +" + std::to_string(offset);
    return bytes == outback::LocatorHeader::kBytes ? "locator's header" : "locator";
  }
};

}  // namespace

const Dialect& outback_dialect() {
  static const Outback outback;
  return outback;
}

}  // namespace farpool::sim
