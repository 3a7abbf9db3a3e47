// SPDX-License-Identifier: Apache-2.0
// What stories of golden traces (index/contract/stage_test.h) say of RCuckoo: keys by how far their rows and locks are
// from each other, rows, and locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "index/contract/stage_test.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"

namespace farpool::rcuckoo {

class StageTeller final : public index::contract::Teller {
 public:
  using Words = index::contract::Words;
  using Stage = index::contract::Stage;

  sim::WorldOptions options(std::uint64_t /*tables*/) const override {
    sim::WorldOptions options;
    options.wire.keep_chains = true;
    options.wire.tear = false;
    options.wire.straggle = 0;
    options.geometry = {.memory_bytes = 32 << 20, .table_percent = 3, .max_sessions = 4, .slots_per_session = 4};
    return options;
  }
  std::vector<int> warm(std::uint64_t /*tables*/) const override { return {30, 60, 200, 400}; }
  void enter(sim::World& world) override { world_ = &world; }

  // The name begins with where the key's rows lie: `adjacent`, `apart` (under one lock), `two-locks` (of one word),
  // `two-words`. All other names are keys that lie anywhere.
  std::string key_of(const std::string& name) override {
    if (name == "warm") return name;  // of every stage: see Stage
    std::string& key = keys_[name];
    for (int i = 0; key.empty(); ++i) {
      const std::string candidate = std::string(1, static_cast<char>('a' + keys_.size())) + std::to_string(i);
      const Places p = places(candidate);
      const std::uint64_t low = std::min(p.first, p.second), high = std::max(p.first, p.second);
      const std::uint64_t locks = lock_of(world_->geometry(), high) - lock_of(world_->geometry(), low);
      const bool one_word = word(low) == word(high);
      const bool fits = name.starts_with("adjacent")    ? high - low == 1 && locks == 0
                        : name.starts_with("apart")     ? high - low > 1 && locks == 0
                        : name.starts_with("two-locks") ? locks > 1 && one_word
                        : name.starts_with("two-words") ? !one_word && locks > 1 && p.first < p.second
                                                        : true;
      if (fits) key = candidate;
    }
    return key;
  }
  std::string name_of_key(const std::string& key) const override {
    for (const auto& [name, of] : keys_) {
      if (of == key) return name;
    }
    return key;
  }

  //  crowd k   both rows of the key get full of other keys, by way of the client
  //  hold k    the client takes the lock of the key's first row, and drops it a little later
  std::optional<std::string> arrange(Stage& /*stage*/, sim::Client& client, const Words& words) override {
    if (words[0] == "crowd") return crowd(client, places(key_of(words.at(1))));
    if (words[0] != "hold") return {};
    const std::uint64_t row = places(key_of(words.at(1))).first;
    bool held = false;
    world_->spawn(client, hold_for(client, lock_bit(world_->geometry(), lock_of(world_->geometry(), row)), &held));
    world_->run_until([&held] { return held; });
    return "= holds the lock for 10 us\n";
  }

  const char* name_of(fabric::Verb verb) const override {
    return verb == fabric::Verb::masked_cas ? "MCAS" : fabric::sim::name_of(verb);
  }
  std::string describe(const fabric::sim::VerbRecord& verb) const override {
    char text[64];
    if (verb.verb == fabric::Verb::masked_cas) {
      std::snprintf(text, sizeof text, "%s bits %llx", verb.swap != 0 ? "take" : "drop",
                    static_cast<unsigned long long>(verb.swap_mask));
    } else if (verb.verb == fabric::Verb::fetch_add) {
      std::snprintf(text, sizeof text, "+%llx", static_cast<unsigned long long>(verb.swap));
    } else {
      std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(verb.bytes));
    }
    return std::string(text) + (verb.fence ? ", fenced" : "");
  }

 private:
  Places places(const std::string& key) const {
    return locate(base::keyed_hash(world_->table_seed(), base::bytes_of(key)), world_->geometry().rows);
  }
  std::uint64_t word(std::uint64_t row) const {
    return lock_bit(world_->geometry(), lock_of(world_->geometry(), row)).offset;
  }
  bool full(std::uint64_t row) const {
    const layout::Geometry& g = world_->geometry();
    return RowView(g, world_->region(layout::kTable).subspan(row * g.row_bytes(), g.row_bytes())).empty_slot() < 0;
  }

  static task::Task<void> put(sim::Client& client, std::string key) {
    fabric::Cost cost;
    const auto put = co_await client.table().put(key, "x", client.port().now() + 5 * base::kSecond, cost);
    EXPECT_TRUE(put.ok()) << put.status().message();
    co_await client.port().sleep_for(1);  // what leaves before the turn ends
  }
  std::string crowd(sim::Client& client, const Places& p) {
    int added = 0;
    for (int i = 0; !full(p.first) || !full(p.second); ++i) {
      const std::string other = "fill" + std::to_string(i);
      const Places q = places(other);
      const bool first = q.first == p.first && !full(p.first);
      const bool second = q.first == p.second && !full(p.second);
      // Its other row must not be the key's: then nothing could be moved out of the way.
      if ((!first && !second) || q.second == p.first || q.second == p.second) continue;
      world_->run(client, put(client, other));
      world_->network().drain(client.port(), world_->network().now() + base::kSecond);
      ++added;
    }
    return "= " + std::to_string(added) + " keys fill both rows\n";
  }
  static task::Task<void> hold_for(sim::Client& client, LockBit bit, bool* held) {
    fabric::Cost cost;
    std::uint64_t old = 0;
    const base::Nanos deadline = client.port().now() + base::kSecond;
    auto slot = co_await client.session().take_slot(deadline);
    slot->words().lock_word[0] = {bit.offset, bit.mask};
    const std::array take = {slot->claim(0, cost), fabric::Op::masked_cas({layout::kLocks, bit.offset}, old, 0,
                                                                          bit.mask, bit.mask, bit.mask)};
    (void)co_await client.session().post(take, deadline, cost);
    *held = true;
    co_await client.port().sleep_for(10 * base::kMicrosecond);
    const std::array drop = {
        fabric::Op::masked_cas({layout::kLocks, bit.offset}, old, bit.mask, bit.mask, 0, bit.mask)};
    (void)co_await client.session().post(drop, deadline, cost);
  }

  sim::World* world_ = nullptr;
  std::map<std::string, std::string> keys_;
};

}  // namespace farpool::rcuckoo
