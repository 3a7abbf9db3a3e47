// SPDX-License-Identifier: Apache-2.0
// What a box is told, and what it counts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/counts.h"
#include "base/time.h"
#include "roce/format.h"

namespace farpool::swordbox {

// Memory of a server whose 8-byte words clients change only by atomics and by WRITEs of one word, all through the box.
struct Range {
  roce::Address server;
  std::uint64_t first = 0;
  std::uint64_t bytes = 0;
};

struct Settings {
  std::vector<Range> ranges;  // none: everything passes unchanged
  // Bounds. What does not fit is dropped, or passes unchanged where that is safe.
  std::uint32_t connections = 1024;
  std::uint32_t words = 4096;
  std::uint32_t entries = 64;  // operations on words, for each connection, that may be retransmitted
  std::uint32_t held = 8;      // packets, for each connection, behind an operation that waits for its word
  // FAAs become WRITEs, too: see the ADR for when that pays.
  bool replace_fetch_add = false;
  std::uint32_t mtu = 1024;  // of connections whose set-up was not seen, until their packets tell

  base::Nanos again = 500 * base::kMicrosecond;   // after which the box itself sends what no response has covered
  base::Nanos silence = 5 * base::kMillisecond;   // of a queue pair, after which the box cuts the connection
  base::Nanos longest_life = base::kMillisecond;  // of a packet between box and server
  base::Nanos embryo = base::kSecond;             // after which a connection without any response may be forgotten
  base::Nanos idle = 600 * base::kSecond;         // and any other
  std::uint64_t hash_seed = 0;
};

struct Counts {
  std::uint64_t passed = 0;
  std::uint64_t changes_replaced = 0;
  std::uint64_t failures_replaced = 0;
  std::uint64_t learned = 0;
  std::uint64_t kept = 0;
  std::uint64_t waited = 0;
  std::uint64_t retransmissions = 0;
  std::uint64_t answered = 0;
  std::uint64_t swallowed = 0;
  std::uint64_t sent_again = 0;
  std::uint64_t cut = 0;
  std::uint64_t refused = 0;
  std::uint64_t surprises = 0;
  std::uint64_t bypassed = 0;
  std::uint64_t dropped_bad_sum = 0;
  std::uint64_t dropped_cut = 0;
  std::uint64_t dropped_out_of_order = 0;
  std::uint64_t dropped_no_room = 0;
  std::uint64_t dropped_unsupported = 0;
  std::uint64_t dropped_too_old = 0;
  std::uint64_t dropped_at_start = 0;
  std::uint64_t not_roce = 0;
};

inline constexpr auto kBoxCounts = std::to_array<base::Count<Counts>>({
    {&Counts::passed, "passed", "Packets that passed unchanged."},
    {&Counts::changes_replaced, "changes_replaced", "Atomics that became a WRITE of the new value."},
    {&Counts::failures_replaced, "failures_replaced", "Atomics that change nothing, and became a WRITE of no bytes."},
    {&Counts::learned, "learned", "Words whose value a response told."},
    {&Counts::kept, "kept", "Operations on words of ranges that passed as they are."},
    {&Counts::waited, "waited", "Operations that waited in the box for their word."},
    {&Counts::retransmissions, "retransmissions", "Operations on words that clients sent again."},
    {&Counts::answered, "answered", "Atomic acknowledgements that the box made of others."},
    {&Counts::swallowed, "swallowed", "Acknowledgements in whose place the client got an atomic one."},
    {&Counts::sent_again, "sent_again", "Operations that the box itself sent again."},
    {&Counts::cut, "cut", "Connections cut because their queue pair was silent."},
    {&Counts::refused, "refused", "Replaced operations that the server refused."},
    {&Counts::surprises, "surprises", "Responses that contradict what the box knew of a word: something bypasses it."},
    {&Counts::bypassed, "bypassed", "Responses to requests that the box has not seen."},
    {&Counts::dropped_bad_sum, "dropped_bad_sum", "Packets dropped because a checksum was wrong."},
    {&Counts::dropped_cut, "dropped_cut", "Packets of cut connections dropped."},
    {&Counts::dropped_out_of_order, "dropped_out_of_order", "Requests dropped because one before them is missing."},
    {&Counts::dropped_no_room, "dropped_no_room", "Requests dropped because a table or ring was full."},
    {&Counts::dropped_unsupported, "dropped_unsupported",
     "Requests dropped because they change a range in another way."},
    {&Counts::dropped_too_old, "dropped_too_old", "Retransmissions dropped because the box has forgotten the request."},
    {&Counts::dropped_at_start, "dropped_at_start", "Requests to words dropped while a box that begins waits."},
    {&Counts::not_roce, "not_roce", "Frames that are no RoCEv2 packet, and passed unchanged."},
});

}  // namespace farpool::swordbox
