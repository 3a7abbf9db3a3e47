// SPDX-License-Identifier: Apache-2.0
// Random pools, whole: several memory nodes, clients as applications have them, an operator that publishes epochs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/geometry.h"
#include "sim/shrink.h"

namespace farpool::sim {

struct PoolVerdict : Told {
  std::uint64_t trace_hash = 0;
  // Calls by outcome: done, unknown, not done.
  std::uint64_t done = 0, unknown = 0, not_done = 0;
  std::uint64_t deaths = 0, stops = 0;               // of clients
  std::uint64_t restarts = 0, losses = 0;            // of memory nodes, with their memory and without
  std::uint64_t sources_lost = 0, targets_lost = 0;  // of these, by moves that were under way
  std::uint64_t epochs = 0;                          // published
  std::uint64_t zombies = 0;                         // clients that woke after they had been fenced everywhere
  std::uint64_t scans = 0;                           // of all keys, beside other calls, that ended
  std::uint64_t slots_repaired = 0;         // of the dead, by other clients and by memory nodes that took memory up
  std::uint64_t moves = 0, moved_away = 0;  // of parts of the hash space between memory nodes; keys
  std::uint64_t move_waits = 0;
  std::uint64_t reconnections = 0, asked_again = 0;  // of tables that outlive sessions; changes
  // Reads of keys that expire: found, and not; keys that were removed because they had expired.
  std::uint64_t expiring_found = 0, expired_missed = 0, expired_removed = 0;
  std::uint64_t evicted = 0, refused = 0;           // keys; calls, for lack of room
  std::uint64_t wishes = 0, splits_taken_over = 0;  // for so many tables, ahead of keys; from other clients
};

// Two to four memory nodes share the keys. Clients, each a client::Pool, come while others work, and some also scan the
// whole pool. Clients die after any effect, or are stopped for longer than their lease. Memory nodes are killed and
// come back, with their memory or without. Epochs reach them one by one and late; messages are lost; clocks drift. The
// judge checks every key's history since the last loss of its memory, and that every call of a living client ends. When
// faults have ended, a new client must be able to repair everything, find every key and count all keys. When all
// clients have gone, every byte is accounted for, except blocks of dead clients in segments that no client has taken
// over.
//
// In half of the pools each client also sets keys that expire, and reads and edits those of all: no read that is later
// than the bound of docs/adr/0038-expiry.md returns one, and each that is earlier does.
//
// Some pools are filled with more than they have room for, under one of the policies of eviction. A key may vanish if
// the policy allows it, but it never comes back and never has another value. When the policy is taken back in the end,
// no key vanishes any more.
//
// In many pools the operator moves parts of the hash space to other memory nodes; each move must end. When all clients
// have gone, every key lies where the map says, and nowhere else. A memory node that loses its memory meanwhile loses
// the keys that had not left it, and the keys that had arrived. If tables can be split, the operator also asks for more
// tables than the keys need; the last client makes them if no other has.
PoolVerdict run_pool(std::uint64_t seed, const Selection& part = {}, bool tells = false,
                     layout::Protocol protocol = {});
// Returns, for a failing seed, what is wrong, the shrunk story, and the command that replays it.
std::string explain_pool(std::uint64_t seed, const ShrinkBudget& budget = {}, layout::Protocol protocol = {});

void add(PoolVerdict& sum, const PoolVerdict& verdict);
std::string describe(const PoolVerdict& sum);
// Returns, for people, what may happen to a pool and never did.
std::vector<std::string> never_reached(const PoolVerdict& sum, layout::Protocol protocol = {});

}  // namespace farpool::sim
