// SPDX-License-Identifier: Apache-2.0
// The seam: the only door between a protocol and a wire. A protocol is written once, as coroutines that build a short
// array of verbs, await one chain, and judge the bytes that come back; every wire (verbs, tcp, shm, sim) runs that
// code.
//
// The contract, held by one suite (fabric/contract) that every wire passes:
//  1. Order. Within a lane, and none between lanes: a WRITE before anything, and an atomic before a READ, execute in
//     posting order at the responder. READ before WRITE, atomic or CALL, and an atomic before a WRITE or CALL, only
//     with `fence` on the second. A failed CAS does not stop a chain; a refused verb ends the lane. A CALL is a chain
//     of its own. fabric/contract/ordering.md has every pair.
//  2. Words. Every offset and length is a multiple of 8. Aligned 8-byte accesses are atomic; anything longer may tear
//     at any word.
//  3. Atomics are atomic against each other within one atomic domain, and against READs. They are not against WRITEs of
//     other lanes: a WRITE that lands while an atomic changes the word is lost.
//  4. Fates. Each posting completes exactly once, never inline. A verb cannot be cancelled, only a lane severed: all
//     that is pending on it then ends `maybe`. A `maybe` is resolved by reading after the responder has fenced, never
//     by blind retry.
//  5. Fence. After the memory node has fenced a session, none of its verbs executes, whatever is still in flight.
//  6. Time, sleeping and randomness come from the port.
//  7. CALLs for data (opcodes from kFirstServiceOpcode) execute on the threads that receive them (fabric/service.h). A
//     lane may have Caps::calls_in_flight of them under way; more wait at the client, with what is posted behind them.
//     They execute and are answered in any order. A fence returns when the session's last CALL has executed, and the
//     service has given back the CALLs that it held.
//
// Threads: a port, its lanes, and every coroutine that awaits them belong to one thread.
#pragma once

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/time.h"
#include "fabric/buffer.h"
#include "fabric/timer.h"
#include "task/task.h"

namespace farpool::fabric {

using base::Nanos;

enum class Verb : std::uint8_t { read, write, cas, masked_cas, fetch_add, call };

// A place in a memory node. Never a raw pointer: a region id has a meaning only within a session, which holds its key.
struct Remote {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;  // bytes from the region's start; a multiple of 8
};

// One verb. Plain data, which the wire copies when the verb is enqueued; the memory behind `local` and `old` must
// outlive the completion.
struct Op {
  Verb verb = Verb::read;
  bool fence = false;  // start only when all earlier READs and atomics of this lane have completed
  Remote at;
  base::MutableBytes local;      // READ: filled. WRITE: sent. CALL: the request. Within buffers of the port.
  std::uint64_t* old = nullptr;  // atomics: the word before
  std::uint64_t compare = 0;     // CAS, masked CAS
  std::uint64_t swap = 0;        // CAS, masked CAS: the new bits; FAA: the addend
  std::uint64_t compare_mask = ~0ull;
  std::uint64_t swap_mask = ~0ull;
  base::MutableBytes reply;  // CALL: where the reply goes
  std::uint32_t opcode = 0;  // CALL: which handler of the memory node; from kFirstServiceOpcode on, the service's

  static Op read(Remote at, base::MutableBytes into) { return {.verb = Verb::read, .at = at, .local = into}; }
  static Op write(Remote at, base::MutableBytes from) { return {.verb = Verb::write, .at = at, .local = from}; }
  static Op cas(Remote at, std::uint64_t& old, std::uint64_t compare, std::uint64_t swap) {
    return {.verb = Verb::cas, .at = at, .old = &old, .compare = compare, .swap = swap};
  }
  // Succeeds iff (word & compare_mask) == (compare & compare_mask); then bits under swap_mask become those of swap.
  static Op masked_cas(Remote at, std::uint64_t& old, std::uint64_t compare, std::uint64_t compare_mask,
                       std::uint64_t swap, std::uint64_t swap_mask) {
    return {.verb = Verb::masked_cas,
            .at = at,
            .old = &old,
            .compare = compare,
            .swap = swap,
            .compare_mask = compare_mask,
            .swap_mask = swap_mask};
  }
  static Op fetch_add(Remote at, std::uint64_t& old, std::uint64_t addend) {
    return {.verb = Verb::fetch_add, .at = at, .old = &old, .swap = addend};
  }
  static Op call(std::uint32_t opcode, base::MutableBytes request, base::MutableBytes reply) {
    return {.verb = Verb::call, .local = request, .reply = reply, .opcode = opcode};
  }
  Op fenced() const {
    Op op = *this;
    op.fence = true;
    return op;
  }
};

// CALLs from this opcode on are for data, and go to the session's service. CALLs below it go to the Host.
inline constexpr std::uint32_t kFirstServiceOpcode = 0x100;
inline bool is_service_call(const Op& op) { return op.verb == Verb::call && op.opcode >= kFirstServiceOpcode; }

// Why a CALL was refused, if that is known. The numbers are those of the wire.
enum class Refusal : std::uint8_t {
  none = 0,            // not refused, or without a reason
  too_long = 1,        // the request, or the room for the reply
  no_service = 2,      // the memory node has no service: its tables need none
  too_many = 3,        // more CALLs in flight than a lane may have
  unknown_opcode = 4,  // the service knows no such opcode
  malformed = 5,       // the service cannot read the request
};
inline constexpr Refusal kLastRefusal = Refusal::malformed;
// For people: "the request or the room for its reply is too long".
const char* text_of(Refusal refusal);

// What the poster knows afterwards.
enum class Fate : std::uint8_t {
  done,     // every verb executed, in order
  maybe,    // the lane was severed or the deadline passed: some prefix executed, or none, or all
  refused,  // the responder rejected a key, range or alignment: some prefix executed; the session is stale; the lane
            // has ended
};

struct Outcome {
  Fate fate = Fate::maybe;
  std::uint32_t reply_bytes = 0;  // CALL: length of the reply
  std::uint8_t extra_trips = 0;   // if the wire had to cut the chain (masked CAS without hardware)
  Refusal why = Refusal::none;    // of a CALL that was refused
};

class Lane;

// The awaiter is the request: it lives in the caller's coroutine frame, and its address identifies it on the wire.
class [[nodiscard]] Posting {
 public:
  Posting(Lane& lane, std::span<const Op> ops, Nanos deadline) : lane(lane), ops(ops), deadline(deadline) {}
  Posting(const Posting&) = delete;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept;
  Outcome await_resume() const noexcept { return outcome; }

  Lane& lane;
  std::span<const Op> ops;  // the caller's array: lives as long as the awaiting expression
  Nanos deadline;           // on the port's clock; a posting that is late severs its lane
  Outcome outcome{};
  std::coroutine_handle<> waiter{};
  Posting* next = nullptr;  // for the wire's queues
  std::uint64_t tag = 0;    // for the wire
};

struct LaneStats {
  std::uint64_t chains = 0;
  std::uint64_t doorbells = 0;
  std::uint64_t messages = 0;  // verbs
  std::uint64_t bytes = 0;     // as RoCEv2 would carry them (fabric/cost.h), requests and replies
};

// One ordered stream of verbs from this thread to one memory node.
class Lane {
 public:
  virtual ~Lane() = default;

  // Posts a chain: one trip. `ops` must hold 1 to kMaxChain verbs, whose READs and WRITEs carry no more than
  // kMaxChainBytes together; a CALL must be alone. The deadline is absolute.
  Posting post(std::span<const Op> ops, Nanos deadline) { return Posting(*this, ops, deadline); }

  // Queues the posting; the port rings one doorbell for everything queued in a turn. Only Posting calls it. If the lane
  // is not open, the posting completes at the next turn: with `refused` after a refusal, otherwise with `maybe`.
  virtual void enqueue(Posting& posting) noexcept = 0;

  // Severs the lane, which is the only way to cancel: every pending posting ends `maybe` (at a later turn), and the
  // lane never opens again.
  virtual void sever() noexcept = 0;
  virtual bool open() const noexcept = 0;
  // Returns the number of postings that have not completed. A lane may be destroyed only when there are none.
  virtual std::size_t pending() const noexcept = 0;

  const LaneStats& stats() const { return stats_; }

 protected:
  LaneStats stats_;
};

inline constexpr std::size_t kMaxChain = 64;
inline constexpr std::uint64_t kMaxChainBytes = 4ull << 20;
inline constexpr std::uint64_t kMaxVerbBytes = 2ull << 20;  // of a READ or a WRITE
inline constexpr std::size_t kMaxCallBytes = 64 * 1024;     // of a control CALL, and of its reply
// The same for a CALL for data, on any wire; Caps::call_bytes is what one wire carries. It has room for a key of 64
// KiB, a value of 1 MiB, and a head.
inline constexpr std::size_t kMaxServiceBytes = (1u << 20) + 64 * 1024 + 4096;
inline constexpr std::size_t longest_call(std::uint32_t opcode) {
  return opcode < kFirstServiceOpcode ? kMaxCallBytes : kMaxServiceBytes;
}

// Says whether these verbs are a chain, as far as the poster can tell. Wires send nothing but chains.
bool is_chain(std::span<const Op> ops);
// Returns why these verbs are no chain, if there is a name for the reason.
Refusal why_no_chain(std::span<const Op> ops);

// What a wire can do. A memory node asks once when it starts, and a client once when it opens a table.
struct Caps {
  std::uint32_t max_chain = kMaxChain;
  std::uint64_t max_verb_bytes = kMaxVerbBytes;
  std::uint32_t calls_in_flight = 0;  // CALLs for data on one lane; 0: this wire has none
  std::uint64_t call_bytes = 0;       // the longest request of one, and the longest reply
  // The wire sends lost packets again within this time: a client that is silent for less may well live.
  Nanos retry_time = 0;
};

// What a memory node granted one session, as far as a wire needs it.
struct LaneGrant {
  std::string endpoint;   // host:port of the session port
  std::string node_name;  // in the certificate there; empty: any memory node's of the pool
  std::uint64_t session_id = 0;
  std::uint64_t node_incarnation = 0;
  std::array<std::byte, 16> token{};  // good for one lane
  // The memory node takes CALLs for data on this session's lanes, as it said when the session began. A wire that has to
  // prepare for them does so if this is set.
  bool calls = false;
  struct Region {
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
    std::uint64_t key = 0;
  };
  std::vector<Region> regions;
};

// One thread's access to the fabric: lanes, time, sleeping, randomness, registered buffers. No other code may read a
// clock.
class Port {
 public:
  virtual ~Port() = default;

  virtual Caps caps() const = 0;
  virtual Nanos now() const = 0;
  virtual std::uint64_t random() = 0;  // from the operating system's secure generator, or from the simulation's seed

  // Sends one request to a memory node's authenticated session port, and returns the reply. If peers show certificates
  // and `node_name` is given, the other side's certificate must have that name before anything is sent. Errors:
  // unavailable, timed_out, forbidden.
  task::Task<base::Result<std::string>> exchange(std::string endpoint, std::string request, Nanos deadline,
                                                 std::string node_name = {}) {
    return exchange_with(std::move(node_name), std::move(endpoint), std::move(request), deadline);
  }
  // Opens a lane with a token from such an exchange.
  virtual task::Task<base::Result<std::unique_ptr<Lane>>> open_lane(LaneGrant grant, Nanos deadline) = 0;

  // Returns registered memory for verbs, 64-byte aligned, from per-size free lists: no allocation in steady state.
  Buffer buffer(std::size_t bytes) { return buffers_.take(bytes); }

  // Resumes the awaiter at or after `when`; never inline.
  Sleep sleep_until(Nanos when) { return Sleep(*this, when); }
  Sleep sleep_for(Nanos duration) { return Sleep(*this, now() + duration); }

  // Timers, for wires and for Sleep.
  virtual void arm(Timer& timer) = 0;     // timer.when must be set; fires once
  virtual void disarm(Timer& timer) = 0;  // no effect if not armed
  // Fires a timer that is not armed once the caller has suspended or returned; where a thread has turns, before the
  // present one ends. It cannot be disarmed any more.
  virtual void fire_soon(Timer& timer) {
    timer.when = now();
    arm(timer);
  }

 protected:
  virtual task::Task<base::Result<std::string>> exchange_with(std::string node_name, std::string endpoint,
                                                              std::string request, Nanos deadline) = 0;
  explicit Port(SlabSource* registered = nullptr) : buffers_(registered) {}
  BufferPool buffers_;
};

}  // namespace farpool::fabric
