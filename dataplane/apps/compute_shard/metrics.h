// SPDX-License-Identifier: Apache-2.0
// The metrics of farpool-compute-shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "apps/compute_shard/shard.h"
#include "apps/samples.h"
#include "fabric/verbs/device.h"
#include "front/resp/server.h"
#include "net/listener.h"

namespace farpool::apps {

// What the metrics show besides what the workers count.
struct ShardView {
  bool ready = false;                             // every worker
  std::uint64_t epoch = 0;                        // the oldest of the workers'
  std::size_t connections = 0;                    // open
  net::Listener::Stats listening;                 // zeros where nothing listens
  const fabric::verbs::Device* device = nullptr;  // none on tcp
  std::uint64_t held_bytes = 0;                   // requests and replies of all clients
};

// Adds the sums over all workers. Any thread.
void collect(Samples& s, const std::vector<std::unique_ptr<Shard>>& shards, const ShardView& view);

}  // namespace farpool::apps
