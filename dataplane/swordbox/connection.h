// SPDX-License-Identifier: Apache-2.0
// A connection from a client's queue pair to a server's, as the box sees it.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "roce/packet.h"
#include "swordbox/table.h"

namespace farpool::swordbox {

// What an operation on a word looks like behind the box.
enum class Form : std::uint8_t { as_it_is, write_of_value, write_of_nothing };

// An operation on a word that the box has forwarded. It stays after its execution, because the client may send it again.
struct Entry {
  std::uint32_t psn = 0;
  roce::Opcode opcode = roce::Opcode::compare_swap;
  Form form = Form::as_it_is;
  bool may_change = false;
  bool executed = false;
  bool wanted = true;  // the client has had no answer since it last sent the operation
  bool from_proven = false;
  std::uint32_t word = kNone;  // which it holds until it is executed
  roce::Atomic atomic;         // a WRITE's value is its swap_or_add
  std::uint64_t prior = 0;
  std::uint64_t value = 0;  // afterwards, if the prior value is known
  base::Nanos first_sent = 0, sent = 0;
};

struct Connection {
  bool live = false;      // the place in the table is taken
  bool adopted = false;   // `next` is known
  bool proven = false;    // the server has executed nothing that the box has not forwarded
  bool paired = false;    // the client's queue pair is known
  bool answered = false;  // there has been a response
  bool cut = false;
  std::uint32_t client_queue_pair = 0;
  std::uint32_t first = 0;      // PSN
  std::uint32_t next = 0;       // PSN that the client has not sent yet
  std::uint32_t forwarded = 0;  // PSN that the box has not forwarded yet: `next`, unless packets are held
  std::uint32_t executed = 0;   // PSN that no response has covered yet
  std::uint32_t mtu = 0;
  std::uint32_t out_of_place = 0;  // requests since the last one that was `next`
  // The last READ of several packets: its length in PSNs is a guess until a response tells the MTU.
  std::uint32_t read_psn = 0, read_bytes = 0;
  std::uint8_t syndrome = roce::kAckWithoutCredits;
  std::uint32_t msn = 0;
  base::Nanos seen = 0;
  base::Nanos adopted_at = 0;
  base::Nanos in_place = 0;  // when a request was last `next`
  base::Nanos progress = 0;  // of the server, when responses last said so
  roce::Packet shape;        // headers of the last request, for what the box itself sends

  std::uint32_t first_entry = 0, entries = 0;  // in the ring
  std::uint32_t first_held = 0, held = 0;
  std::uint32_t waits_for = kNone;  // word
  std::uint32_t next_waiter = kNone;
  // Lists: connections with operations that no response has covered, and connections without a client's queue pair.
  std::uint32_t next_busy = kNone, next_unpaired = kNone;
  bool busy = false;
};

}  // namespace farpool::swordbox
