// SPDX-License-Identifier: Apache-2.0
// Keys that expire, in a random pool, and what their readers may be told: by a model that knows how far clocks of a
// pool may be apart (docs/adr/0038-expiry.md), and not which clock shows what.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "client/kv.h"
#include "sim/pool_world.h"
#include "sim/pools.h"
#include "task/task.h"

namespace farpool::sim {

// What the clocks that clients have shown say of all others, now and later. Times of the simulation are true.
class ExpiryJudge {
 public:
  // A second of the pool's clock takes at least 1 - `loses`, and at most 1 + `gains` true seconds. Two clients' clocks
  // are never more than `bound` milliseconds apart.
  ExpiryJudge(double loses, double gains, double bound) : slow_(1 - loses), fast_(1 + gains), bound_(bound) {}

  // A clock has shown this at some moment between `from` and `to`: a client may stand still after it has looked.
  void note(Nanos from, Nanos to, client::Millis shown) {
    const double shows = static_cast<double>(shown);
    latest_ = std::max(latest_, shows - millis(to) * slow_);
    earliest_ = std::min(earliest_, shows - millis(from) * fast_);
  }
  // Says whether every client knows at this time that it is later.
  bool is_past(client::Millis time, Nanos when) const {
    return latest_ + millis(when) * slow_ - bound_ > static_cast<double>(time);
  }
  // Says whether no client believes at this time that it is as late.
  bool is_ahead(client::Millis time, Nanos when) const {
    return earliest_ + millis(when) * fast_ + bound_ < static_cast<double>(time);
  }

 private:
  static double millis(Nanos time) { return static_cast<double>(time) / static_cast<double>(base::kMillisecond); }

  double slow_, fast_, bound_;
  double latest_ = -std::numeric_limits<double>::infinity(), earliest_ = std::numeric_limits<double>::infinity();
};

// Clients that set such keys, and read and edit those of all.
class Expiry {
 public:
  Expiry(PoolWorld& world, PoolVerdict& verdict, const PoolSetting& setting);
  Expiry(const Expiry&) = delete;

  // Does a client's part.
  task::Task<void> work(PoolClient& client, std::uint64_t seed);
  // Removes all keys, so that none is counted.
  task::Task<void> remove_all(PoolClient& client);

 private:
  struct Key {
    client::Millis expires = 0;
    std::uint64_t losses = 0;          // of memory, before it was set
    std::set<const PoolClient*> gone;  // for these clients
  };

  task::Task<bool> look_at_clock(PoolClient& client, client::Millis& shown);
  task::Task<void> set(PoolClient& client, const std::string& key, base::Random& random);
  task::Task<void> read(PoolClient& client, std::string key);
  task::Task<void> edit(PoolClient& client, std::string key);
  void judge(const PoolClient& client, const std::string& key, const Key& as, Nanos began, bool there);
  std::string any_key(base::Random& random) const;

  PoolWorld& world_;
  PoolVerdict& verdict_;
  const PoolSetting& setting_;
  ExpiryJudge clocks_;
  std::map<std::string, Key> keys_;  // that nobody edits
  std::vector<std::string> ever_;
};

}  // namespace farpool::sim
