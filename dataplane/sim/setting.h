// SPDX-License-Identifier: Apache-2.0
// What a seed draws for a random world, and for a random pool. A protocol's dialect may change it (sim/dialect.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "fabric/sim/network.h"
#include "farpool/v1alpha1/shard_map.pb.h"
#include "layout/geometry.h"
#include "sim/world.h"

namespace farpool::sim {

struct SwarmSetting {
  std::size_t clients = 2;
  std::size_t tasks = 1;   // of each client, at once
  std::size_t calls = 20;  // of each task
  std::size_t keys = 8;
  std::uint64_t window = 4;     // rows
  double large = 0;             // share of values that need an extent
  std::size_t long_values = 0;  // letters of some values; 0: there are none such
  double reads = 0.3;
  std::uint64_t most_effects = 1500;  // of a client, before its death or stop
  std::size_t deaths = 0;             // clients that die in the middle of their work
  std::size_t zombies = 0;            // clients that are stopped for longer than the failure timeout, and go on
  double losses = 0;                  // chance that a chain's completion never comes
  std::size_t restarts = 0;           // of the memory node, with its memory
  std::size_t revocations = 0;        // sessions whose keys end in the middle of a chain
  std::size_t splits = 0;             // that clients ask for, of tables
  std::size_t scans = 0;              // of the rows that the keys lie in
  std::size_t compactions = 0;        // of a client's segments
  std::size_t clearings = 0;          // of marks of rows that have become empty
  Nanos thought = 0;                  // between two calls of a task, at most
  bool border = false;                // the rows of the window lie where one lock word ends and the next begins
  bool pauses = false;
  bool dies_in_service = false;  // the memory node dies after a word that it writes for a client
  bool crowded = false;          // rows almost full, all keys alike: most inserts move others, and readers look on
  bool drift = false;            // no two clocks are alike
  bool loses_memory = false;     // the last of the restarts comes back without
  bool new_lives = false;        // a client that has lost its session begins another
  WorldOptions world;
};

struct PoolSetting {
  std::size_t nodes = 2, clients = 2, late_comers = 0, tasks = 2, calls = 12, keys = 10;
  std::uint32_t depth = 1;           // of the directory
  std::uint64_t most_effects = 600;  // of a client, before its death or stop
  std::size_t deaths = 0, stops = 0, restarts = 0, losses = 0, epochs = 0, moves = 0, wishes = 0;
  std::size_t scans = 0;     // of the first client
  std::size_t expiring = 0;  // keys that expire, of each client
  std::size_t ballast = 0;   // keys of each client that fill the memory nodes
  v1alpha1::Eviction eviction = v1alpha1::EVICTION_NOEVICTION;
  std::size_t losses_of_some = 0;  // of memory, while parts may be on their way
  layout::GeometryRequest geometry{.table_percent = 1,
                                   .entry_bytes = 16,
                                   .entries_per_row = 2,
                                   .rows_per_lock = 2,
                                   .max_sessions = 24,
                                   .slots_per_session = 2};
  double large = 0.2, reads = 0.35, lose_reply = 0;
  Nanos failure_timeout = 40 * base::kMillisecond;
  Nanos horizon = 100 * base::kMillisecond;  // within which things happen
  fabric::sim::Options wire;
};

}  // namespace farpool::sim
