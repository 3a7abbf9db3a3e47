// SPDX-License-Identifier: Apache-2.0
// The client's side of a session: one incarnation of one client thread at one memory node. It holds the lane, the
// operation slots, the era and the lease. One thread; runs unchanged on every wire.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "fabric/fabric.h"
#include "layout/calls.h"
#include "layout/operation_slot.h"
#include "session/clock.h"
#include "task/scope.h"

namespace farpool::session {

using base::Nanos;

// What a memory node granted; the secrets in it are never logged.
struct Grant {
  std::uint32_t protocol_version = 0;  // that both sides speak
  std::uint64_t session_id = 0;
  std::uint64_t client_incarnation = 0;
  std::uint64_t node_incarnation = 0;
  Nanos lease = 0;
  Nanos tick = 0;
  Nanos failure_timeout = 0;
  std::uint32_t slots = 0;
  std::uint64_t slots_offset = 0;  // of the session's first slot in the slots region
  std::uint64_t era = 0;           // when the session began
  base::HashSecret pool_secret;
  base::HashSecret table_seed;
  fabric::LaneGrant lane;
  std::uint32_t read_only = 0;  // a bit for each region of the lane, by layout::RegionId, that this client cannot write
};

class Session;
class Leases;

// One operation slot, held while an operation changes something. Move-only. It returns to the session when it is
// destroyed, and is cleared then if it claims something and the session lives. Counters and numbers continue from what
// the slot's last user left in the memory node.
//
// The WRITEs view the client's copy of the words: the caller edits none before the chain that carries it has completed.
class Slot {
 public:
  Slot(Slot&&) noexcept;
  Slot& operator=(Slot&&) = delete;
  ~Slot();

  // Returns the client's copy of the slot's words, in registered memory. The holder fills in state and lock words,
  // later rows, replaced, rest, keys_after, bytes_after and redo.
  layout::OperationSlot& words();
  // Returns the WRITE that goes before an attempt at the `word`th of its lock words, and must be posted before the
  // caller suspends. Takes the clear that it saves, which is charged already, back from `cost`.
  fabric::Op claim(std::uint64_t word, fabric::Cost& cost);
  // Returns the WRITE that goes before the rows.
  fabric::Op plan();
  // Returns the WRITE that goes after the rows and before the release: all rows are written, and the counters have
  // their new values.
  fabric::Op settle();
  // Clears the claim, without waiting: the WRITE leaves with those of other slots before the turn ends. The next claim
  // of this slot saves it if it comes first. Charges `cost` as background.
  void clear(fabric::Cost& cost);

 private:
  friend class Session;
  Slot(Session* session, std::uint32_t index) : session_(session), index_(index) {}
  Session* session_;
  std::uint32_t index_;
};

// Keeps every block that was reachable when it began from being reused while it lives. Every operation that follows a
// pointer holds one.
class EraPin {
 public:
  EraPin(EraPin&&) noexcept;
  EraPin& operator=(EraPin&&) = delete;
  ~EraPin();

 private:
  friend class Session;
  EraPin(Session* session, std::uint64_t era) : session_(session), era_(era) {}
  Session* session_;
  std::uint64_t era_;
};

class Session {
 public:
  // Handshakes with the memory node, opens the lane and starts ticking. The port outlives the session.
  struct Options {
    std::string endpoint;
    std::string pool_uid;
    std::string client_name;
    std::uint64_t epoch = 0;
    std::uint64_t node_incarnation = 0;
    std::uint64_t client_incarnation = 0;        // 0: drawn from the port
    std::uint64_t client_process = 0;            // of the thread; 0: no process that an operator names
    std::uint64_t previous_incarnation = 0;      // of this thread, whose session here has been given up; 0: none
    std::array<std::byte, 16> previous_token{};  // of the earlier session's lane
    std::string node_name;                       // in the memory node's certificate; empty: any
    PoolClock* clock = nullptr;                  // set by ticks, the first of which opens the session
    Nanos deadline = 0;                          // absolute
  };
  static task::Task<base::Result<std::unique_ptr<Session>>> open(fabric::Port& port, Options options);
  ~Session();  // must have been closed, or have ended, and be drained: see close()

  fabric::Port& port();
  fabric::Lane& lane();
  const Grant& grant() const;
  std::uint64_t region_bytes(std::uint32_t region) const;  // layout::RegionId; 0: not granted
  bool only_reads(std::uint32_t region) const;             // the memory node alone writes there

  // Returns false once the lane is gone, the lease may have run out, or end() was called. Nothing is posted after that.
  bool alive() const;
  // Returns why not, for people.
  base::Status why() const;
  // Says whether close() has been called and waits for background work: long tasks that others can continue should end
  // soon.
  bool leaving() const;
  // Ends this incarnation at once: severs the lane. Used after a `maybe` on a chain that takes or drops a lock, and on
  // a refusal.
  void end(base::Status why);

  // Posts a chain, waits for it, and charges it to `cost`. If the session is not alive it posts nothing (fate
  // `refused`; why() says why). A `maybe` or `refused` fate ends the session. A late posting severs the lane, so the
  // wire always gets the pool's failure timeout: a caller with a shorter deadline checks the clock between its trips.
  class Trip;
  Trip post(std::span<const fabric::Op> ops, Nanos deadline, fabric::Cost& cost);

  // Waits until a slot is free, or the deadline passes. The slots bound the changing operations in flight.
  task::Task<base::Result<Slot>> take_slot(Nanos deadline);
  EraPin pin();

  // Eras, as of the last tick. The node's era may be one ahead of era(), never more, so a reader may have begun in
  // era() + 1: a block found free when era() was e may be reused once safe_era() > e + 1.
  std::uint64_t era() const;
  std::uint64_t safe_era() const;
  // Says whether the node is short of segments, as of the last tick. If it is, heap::Heap::maintain gives back free
  // blocks.
  layout::Pressure pressure() const;
  // Returns the stretch of segments that the node is clearing for a run, as of the last tick.
  layout::Stretch cleared() const;
  // Returns how many segments of the dead no client has taken over, as of the last tick.
  std::uint64_t dead_segments() const;
  // Says whether the node chose this session, as of the last tick, to look for keys that have expired.
  bool reclaims() const;
  // Returns how many sessions at the node had ended without a goodbye, as of the last tick.
  std::uint64_t deaths() const;
  // Returns the epoch of the node's shard map at the last tick; the session's map is stale if it differs.
  std::uint64_t epoch() const;
  // Returns the node's session places as of the last tick: sessions [0, places) were admitted at some time; `dead` of
  // them have ended and left operations half done.
  std::uint64_t places() const;
  std::uint64_t dead() const;
  // Makes this session, and through the node all others, tick often for a while, so that eras advance: much of the heap
  // is in limbo.
  void hurry_eras();
  // Asks for a tick soon, because the heap is short of blocks; resumes after it, or at the deadline. Hurries eras, too.
  task::Task<void> tick_now(Nanos deadline);

  // Runs tasks of this session that no operation waits for (freeing, clearing); close() joins them.
  task::Scope& background();

  // How often sessions of the node were asked to forget which marks of rows they have set (docs/adr/0029), as of
  // the last tick. What an operation knows of marks counts for as long as this stays the same.
  std::uint64_t forgets() const;
  // Asks all sessions, this one included, to forget. Returns the era of the node when it was asked: once safe_era() is
  // greater, no operation that goes by what it knew before is under way any more. Errors: the session's, and
  // timed_out.
  task::Task<base::Result<std::uint64_t>> ask_to_forget(Nanos deadline);

  // Returns the memory node's leases, as this client has them.
  Leases& leases();

  // Says goodbye: waits for background work, clears the slots, closes the session at the node (its lease and slots are
  // free at once) and drains the lane. Also drains a session that has ended. Afterwards the session may be destroyed.
  task::Task<void> close(Nanos deadline);

 private:
  friend class Slot;
  friend class EraPin;
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  std::unique_ptr<Leases> leases_;
};

// Fills `into` from a place in a region, in as many chains as that takes. The bytes may be torn anywhere.
task::Task<fabric::Outcome> read_long(Session& session, std::uint32_t region, std::uint64_t offset,
                                      base::MutableBytes into, base::Nanos deadline, fabric::Cost& cost);

// The awaiter of Session::post: an operation's trip needs no coroutine of its own.
class [[nodiscard]] Session::Trip {
 public:
  Trip(Session& session, std::span<const fabric::Op> ops, Nanos deadline, fabric::Cost& cost)
      : session_(session), cost_(cost), posting_(session.lane(), ops, deadline) {}
  bool await_ready();
  void await_suspend(std::coroutine_handle<> handle) noexcept { posting_.await_suspend(handle); }
  fabric::Outcome await_resume();

 private:
  Session& session_;
  fabric::Cost& cost_;
  fabric::Posting posting_;
};
inline Session::Trip Session::post(std::span<const fabric::Op> ops, Nanos deadline, fabric::Cost& cost) {
  return {*this, ops, deadline, cost};
}

}  // namespace farpool::session
