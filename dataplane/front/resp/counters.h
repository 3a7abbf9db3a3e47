// SPDX-License-Identifier: Apache-2.0
// What one worker has served. Written by its thread alone, read by any.
#pragma once

#include <array>

#include "base/counter.h"
#include "front/resp/table.h"

namespace farpool::front::resp {

using base::Counter;
using base::Latencies;

struct Counters {
  struct PerCommand {
    Counter calls;
    Counter errors;  // calls that were answered with an error
    Latencies latencies;
  };
  std::array<PerCommand, kMaxCommands> commands;
  Counter refused;  // unknown, of wrong arity, or before authentication
  Counter unknown_outcomes;
  Counter protocol_errors;
  Counter failed_authentications;
  Counter connections;  // now
  Counter connections_total;
  Counter in_flight;  // commands on the pool now
  Counter input_bytes;
  Counter output_bytes;
  Counter stalls;  // how often a connection had to wait for its own replies or pipeline
  Counter hits;    // keys that were read and found
  Counter misses;
  // Connections closed because their clients did not take replies: more than one may have; while memory was short;
  // after the end of what they sent.
  Counter cut_for_unread;
  Counter cut_for_memory;
  Counter cut_after_end;
};

}  // namespace farpool::front::resp
