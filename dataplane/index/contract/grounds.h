// SPDX-License-Identifier: Apache-2.0
// The wires of the suite that need no device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "index/contract/bed.h"
#include "index/contract/sim_bed.h"
#include "index/contract/tcp_ends.h"
#include "index/contract/thread_bed.h"

namespace farpool::index::contract {

inline Ground sim_ground() {
  return {.name = "Sim",
          .rounds = 12,
          .simulated = true,
          .make = [](const layout::GeometryRequest& table, std::uint64_t seed) {
            return std::make_unique<SimBed>(table, seed);
          }};
}

inline std::vector<Ground> grounds() {
  using Lanes = TcpEnds::Lanes;
  const auto threads = [](Lanes lanes) {
    return [lanes](const layout::GeometryRequest& table, std::uint64_t seed) {
      return std::make_unique<ThreadBed>(table, seed, std::make_unique<TcpEnds>(lanes));
    };
  };
  return {sim_ground(),
          {.name = "Tcp", .rounds = 4, .make = threads(Lanes::sockets)},
          {.name = "Shm", .rounds = 4, .make = threads(Lanes::rings)}};
}

}  // namespace farpool::index::contract
