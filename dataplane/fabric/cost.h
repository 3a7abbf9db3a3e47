// SPDX-License-Identifier: Apache-2.0
// What an operation costs, counted and never timed: exact on any machine.
#pragma once

#include <cstdint>
#include <span>

#include "fabric/fabric.h"

namespace farpool::fabric {

// Returns the bytes on a RoCEv2 wire without the frame check sequence, request and reply together. Every packet has
// Ethernet 14, IPv4 20, UDP 8, BTH 12 and ICRC 4; then RETH 16 (READ, WRITE), AETH 4 (replies), AtomicETH 28, and for a
// masked CAS 16 more for the two masks. `mtu` splits longer payloads into packets.
std::uint64_t wire_bytes(const Op& op, std::uint64_t mtu = 4096);
// Return its two directions: towards the memory node, and back.
std::uint64_t request_bytes(const Op& op, std::uint64_t mtu = 4096);
std::uint64_t reply_bytes(const Op& op, std::uint64_t mtu = 4096);

struct Cost {
  std::uint32_t trips = 0;
  std::uint32_t chains = 0;
  std::uint32_t messages = 0;
  std::uint64_t bytes = 0;

  // Counts a chain that the operation waits for.
  void charge(std::span<const Op> ops) {
    ++trips;
    charge_background(ops);
  }
  // Counts a chain that no operation waits for (it clears a slot, or frees a block).
  void charge_background(std::span<const Op> ops) {
    ++chains;
    messages += static_cast<std::uint32_t>(ops.size());
    for (const Op& op : ops) bytes += wire_bytes(op);
  }
  // Takes back what another operation's cost has of a chain that was then not posted. The sum of all costs is right.
  void take_back(std::span<const Op> ops) {
    --chains;
    messages -= static_cast<std::uint32_t>(ops.size());
    for (const Op& op : ops) bytes -= wire_bytes(op);
  }
  void operator+=(const Cost& other) {
    trips += other.trips;
    chains += other.chains;
    messages += other.messages;
    bytes += other.bytes;
  }
};

}  // namespace farpool::fabric
