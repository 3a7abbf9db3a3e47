// SPDX-License-Identifier: Apache-2.0
// What a seed draws for a random pool: its setting, the calls of its clients, and the faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "fabric/sim/network.h"
#include "layout/geometry.h"
#include "sim/history.h"
#include "sim/setting.h"
#include "sim/shrink.h"

namespace farpool::sim {

inline constexpr Nanos kPoolLease = 2 * base::kSecond;

// Draws a setting; the protocol's dialect may change it.
PoolSetting draw_pool(std::uint64_t seed, layout::Protocol protocol);
// Returns the setting in words, for people.
std::string describe(const PoolSetting& setting);

std::string key_named(std::size_t index);
// Returns the names of all keys that clients write, except the keys that only sim/expiry.h knows.
std::vector<std::string> keys_of(const PoolSetting& setting);

// What a seed's pool does, one element after the other; any element may be left out.
struct TimedCall {
  Call call;
  Nanos rest = 0;  // after it
};
using PoolTasks = std::vector<std::vector<TimedCall>>;  // of one client

struct PoolFault {
  enum class Kind : std::uint8_t { death, stop, restart, loss, epoch, arrival, move, wish } kind = Kind::epoch;
  std::size_t whom = 0;       // a client, or a memory node
  Nanos when = 0;             // of a stop: the client continues
  std::uint64_t effects = 0;  // after which a death or a stop strikes; which parts move; tables
  fabric::sim::InFlight posted = fabric::sim::InFlight::lands;
  PoolTasks tasks;  // of a client that comes
};

struct PoolPlay {
  std::vector<PoolTasks> clients;
  std::vector<PoolFault> faults;
};

PoolPlay draw_pool_play(const PoolSetting& setting, std::uint64_t seed);
// Removes what `part` leaves out. Returns how many elements there were.
std::size_t leave_out(PoolPlay& play, const Selection& part);

}  // namespace farpool::sim
