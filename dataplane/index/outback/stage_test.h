// SPDX-License-Identifier: Apache-2.0
// What stories of golden traces (index/contract/stage_test.h) say of Outback: keys by whether they share a bucket, and
// what a request asks for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "index/contract/stage_test.h"
#include "index/outback/locator.h"
#include "layout/kv_call.h"

namespace farpool::outback {

class StageTeller final : public index::contract::Teller {
 public:
  using Words = index::contract::Words;
  using Stage = index::contract::Stage;

  sim::WorldOptions options(std::uint64_t /*tables*/) const override {
    sim::WorldOptions options;
    options.wire.keep_chains = true;
    options.wire.tear = false;
    options.wire.straggle = 0;
    options.geometry = {
        .memory_bytes = 8 << 20, .table_percent = 10, .max_sessions = 4, .protocol = layout::Protocol::outback};
    return options;
  }
  // Both clients know the locator and have their lines; but for `pool 2`, where neither has asked for anything.
  std::vector<int> warm(std::uint64_t tables) const override {
    return tables == 1 ? std::vector{1} : std::vector<int>();
  }
  void enter(sim::World& world) override { world_ = &world; }

  // Names that begin alike up to a number are keys of one bucket: n1, n2, n3. Other names are keys of other buckets.
  std::string key_of(const std::string& name) override {
    if (name == "warm") return name;  // of every stage: see Stage
    std::string& key = keys_[name];
    if (!key.empty()) return key;
    const std::string of = name.substr(0, name.find_first_of("0123456789"));
    const auto bucket = buckets_.find(of);
    for (int i = 0; key.empty(); ++i) {
      const std::string candidate =
          name.substr(0, 1) + std::to_string(1000 * keys_.size() + static_cast<std::size_t>(i));
      if (std::any_of(keys_.begin(), keys_.end(), [&](const auto& one) { return one.second == candidate; })) continue;
      const std::uint64_t its = bucket_of(candidate);
      if (bucket != buckets_.end() ? its == bucket->second : !taken(its)) key = candidate;
    }
    buckets_.emplace(of, bucket_of(key));
    return key;
  }
  std::string name_of_key(const std::string& key) const override {
    for (const auto& [name, of] : keys_) {
      if (of == key) return name;
    }
    return key;
  }
  std::optional<std::string> arrange(Stage&, sim::Client&, const Words&) override { return {}; }

  std::string describe(const fabric::sim::VerbRecord& verb) const override {
    if (verb.verb != fabric::Verb::call) return std::to_string(verb.bytes) + " B";
    static constexpr const char* kOps[] = {"?",         "get",  "find",   "insert",  "update", "put",
                                           "remove",    "add",  "append", "overlay", "swap",   "take",
                                           "add_float", "scan", "count",  "attach",  "detach"};
    const std::uint64_t op = verb.head & 0xff, flags = verb.head >> 8 & 0xff;
    return std::string(op < std::size(kOps) ? kOps[op] : "?") +
           ((flags & layout::KvRequest::kIfVersion) != 0 ? ", if the version is the same" : "") + ", " +
           std::to_string(verb.bytes) + " B";
  }

 private:
  std::uint64_t bucket_of(const std::string& key) const {
    const auto header = LocatorHeader::parse(world_->region(layout::kTable));
    FARPOOL_CHECK(header.ok());
    const std::uint64_t hash = hash_of(world_->table_seed(), header->salt, base::bytes_of(key));
    return Candidates::of(hash, header->shape).buckets[0];
  }
  bool taken(std::uint64_t bucket) const {
    return std::any_of(buckets_.begin(), buckets_.end(), [&](const auto& one) { return one.second == bucket; });
  }

  sim::World* world_ = nullptr;
  std::map<std::string, std::string> keys_;
  std::map<std::string, std::uint64_t> buckets_;  // by the name without its number
};

}  // namespace farpool::outback
