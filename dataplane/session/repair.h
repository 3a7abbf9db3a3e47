// SPDX-License-Identifier: Apache-2.0
// What dead clients left under locks is found, fenced and repaired by the clients that live (RCuckoo section 4.2, with
// its holes closed).
//
//  - Suspects of a lock bit that stands are the operation slots that name it. The memory node decides which of their
//    clients have ended, and fences one whose slot does not move for the failure timeout. Nothing is written before.
//  - A repairer holds the leases of all lock words that a dead slot names. One that stands still is fenced like any
//    client, and its lease stolen: each step can be done again from what is there.
//  - A slot that says `writing` holds all its locks: the protocol finishes its rows from the plan. Any other slot has
//    no row left to write, and may hold each of its locks or not. To find out, the repairer bars the lock word, so that
//    no lock of it is taken any more, and waits until every slot of the living that names one of these bits has moved
//    on: bits that are still set then are held by the dead.
//  - The release and the lowering of the barrier are one masked CAS. Only then the slot claims nothing any more.
//
// A client that repairs, or waits for another to repair, claims nothing itself: its own slots would stand still.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "fabric/cost.h"
#include "layout/operation_slot.h"
#include "session/session.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::session {

// The part of repair that only the index protocol knows.
class Repairable {
 public:
  virtual ~Repairable() = default;
  // Writes what the plan of a slot of the dead leaves to be written; may be done again at any point. The dead hold all
  // locks of the slot, and the caller their leases. A text: what is there is nothing that a crash can leave, and
  // nothing was written.
  virtual task::Task<base::Result<std::optional<std::string>>> finish(const layout::OperationSlot& slot, Nanos deadline,
                                                                      fabric::Cost& cost) = 0;
};

// Counts of one client's repairs, for metrics and for tests that want to see that it happened.
struct RepairMarks {
  std::uint64_t complaints = 0;      // clients that the memory node was told of
  std::uint64_t repaired = 0;        // slots
  std::uint64_t finished = 0;        // of them in the middle of writing rows
  std::uint64_t unmade = 0;          // of them whose claim was torn
  std::uint64_t bits_released = 0;   // locks of the dead
  std::uint64_t bits_spared = 0;     // named by the dead, and found free or held by others
  std::uint64_t leases_stolen = 0;   // of repairers that had ended
  std::uint64_t lease_waits = 0;     // looks at a lease that another repairer held
  std::uint64_t barriers_found = 0;  // left by repairers that had ended
  std::uint64_t waited_for = 0;      // living clients whose slots had to move on first
  std::uint64_t quarantined = 0;     // slots that no crash explains

  void operator+=(const RepairMarks& more) {
    complaints += more.complaints;
    repaired += more.repaired;
    finished += more.finished;
    unmade += more.unmade;
    bits_released += more.bits_released;
    bits_spared += more.bits_spared;
    leases_stolen += more.leases_stolen;
    lease_waits += more.lease_waits;
    barriers_found += more.barriers_found;
    waited_for += more.waited_for;
    quarantined += more.quarantined;
  }
};

class Repairer {
 public:
  // Both outlive the repairer.
  Repairer(Session& session, Repairable& protocol);
  Repairer(const Repairer&) = delete;

  // Who names any bit of `mask` in the lock word at `offset`, or has barred it. Tells the memory node of them.
  struct Suspects {
    std::vector<std::uint64_t> ended;  // operation slots of clients that have ended
    std::string quarantined;           // for people: who of them is; others wait for a person
    std::string living;                // for people: who has not ended, as far as is known
    struct Standing {
      std::uint64_t slot = 0;
      std::uint64_t holder = 0;
      std::uint64_t sequence = 0;
    };
    std::vector<Standing> standing;  // slots of the living that had not moved when the memory node looked
  };
  task::Task<base::Result<Suspects>> accuse(std::uint64_t offset, std::uint64_t mask, Nanos deadline,
                                            fabric::Cost& cost);
  // The same of some of them alone, which spares the READ of all slots: whose slot has moved is left out.
  task::Task<base::Result<Suspects>> accuse_again(std::vector<Suspects::Standing> before, Nanos deadline,
                                                  fabric::Cost& cost);

  // Repairs the slots, unless others have by then. The calling operation claims nothing. Errors:
  // timed_out, the session's, and locked: quarantined, see there.
  task::Task<base::Status> repair(std::vector<std::uint64_t> slots, Nanos deadline, fabric::Cost& cost);

  // Repairs every slot of a client that has ended, and gives back the leases of repairers that have.
  struct Swept {
    std::uint64_t repaired = 0;
    std::uint64_t left = 0;  // quarantined, or `trouble` came first
    std::string trouble;
  };
  task::Task<base::Result<Swept>> sweep(Nanos deadline, fabric::Cost& cost);

  const RepairMarks& marks() const { return marks_; }

  // The leases themselves, for clients that change something that a client after them can finish: what needs a holder
  // that is one, and fenced before there is another.
  struct Lease {
    std::uint64_t index = 0;
    std::uint64_t word = 0;
    Nanos at = 0;
  };
  // Adds it to `leases`, which are renewed meanwhile. A holder that stands still is fenced, and the lease stolen. Of
  // one client, one task at a time has a lease: from here on until it is given back.
  task::Task<base::Status> take_lease(std::uint64_t index, std::vector<Lease>& leases, Nanos deadline,
                                      fabric::Cost& cost);
  // The same for a client that has other things to do. False: the holder has not ended, as far as is known; the memory
  // node has been told, and ends one that still says the same when it is told again after the failure timeout.
  task::Task<base::Result<bool>> try_lease(std::uint64_t index, std::vector<Lease>& leases, Nanos deadline,
                                           fabric::Cost& cost);
  // Whether another task of this client has tried to take the lease in vain since it was asked last. Who takes a lease
  // again and again leaves it alone for a while then.
  bool wanted(std::uint64_t index) { return wanted_.erase(index) > 0; }
  // As often as the holder does something that takes time. An error: it was lost, and the session has ended.
  task::Task<base::Status> renew(std::vector<Lease>& leases, Nanos deadline, fabric::Cost& cost);
  // To be called for all that were taken, whatever came of it.
  task::Task<void> give_back(std::vector<Lease>& leases, Nanos deadline, fabric::Cost& cost);

 private:
  using Slot = layout::OperationSlot;
  struct Snapshot;

  task::Task<base::Status> snapshot(Nanos deadline, fabric::Cost& cost, Snapshot& into);
  task::Task<base::Status> read(std::uint32_t region, std::uint64_t offset, base::MutableBytes into, Nanos deadline,
                                fabric::Cost& cost);
  task::Task<base::Status> post(std::vector<fabric::Op> chain, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Result<std::uint64_t>> cas(fabric::Remote at, std::uint64_t compare, std::uint64_t swap,
                                              std::uint64_t mask, Nanos deadline, fabric::Cost& cost);
  // Status of a slot's holder, or of the holder of a lease: FenceReply.
  task::Task<base::Result<std::uint64_t>> ask_node(std::uint64_t of, std::uint64_t index, std::uint64_t holder,
                                                   std::uint64_t says, bool only_ask, Nanos deadline,
                                                   fabric::Cost& cost);
  task::Task<base::Result<bool>> ended(std::uint64_t index, const Slot& slot, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> accuse_one(std::uint64_t index, const Slot& slot, Suspects& suspects, Nanos deadline,
                                      fabric::Cost& cost);

  task::Task<base::Result<bool>> contend(std::uint64_t index, bool waits, std::vector<Lease>& leases, Nanos deadline,
                                         fabric::Cost& cost);
  task::Task<base::Result<bool>> contend_with_others(std::uint64_t index, bool waits, std::vector<Lease>& leases,
                                                     Nanos deadline, fabric::Cost& cost);
  void put_down(std::uint64_t index);
  task::Task<base::Status> repair_one(std::uint64_t index, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> repair_under_leases(std::uint64_t index, std::uint64_t holder, std::vector<Lease>& leases,
                                               Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> release_certain(std::uint64_t index, Slot& slot, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> release_word(std::uint64_t index, const layout::HeldLocks& named, std::vector<Lease>& leases,
                                        Nanos deadline, fabric::Cost& cost);
  task::Task<void> breathe(Nanos deadline);

  std::uint64_t slot_count() const;
  fabric::Remote part_of(std::uint64_t index, layout::SlotPart part) const;
  fabric::Op counters_of(std::uint64_t index, Slot& slot) const;
  std::string name_slot(std::uint64_t index, const Slot& slot) const;
  base::Status gone(const std::string& what) const;
  base::Status late(const std::string& what) const;

  Session& session_;
  Repairable& protocol_;
  RepairMarks marks_;
  bool busy_ = false;
  WaitQueue turn_;
  std::set<std::uint64_t> in_hand_;  // leases that a task of this client has, or contends for
  WaitQueue put_down_;
  std::set<std::uint64_t> wanted_;  // of these, by tasks that did not wait
};

// What tells a lock that stands from one that is merely contended: for one operation, the place that it waits for.
class Suspicion {
 public:
  explicit Suspicion(Session& session, Repairer& repairer) : session_(session), repairer_(repairer) {}

  // The place was seen blocked now. Bits that came free in between start it anew.
  void blocked(std::uint64_t offset, std::uint64_t mask);
  // The lock word at `offset` was taken.
  void came_free(std::uint64_t offset) {
    if (offset == offset_) mask_ = 0;
  }

  // True: somebody who may hold the place has ended. The caller gives back what it holds, claims nothing, calls
  // repair() and begins anew. False: go on trying. Errors: locked, which names who holds it, when the deadline is near
  // or a person has to look.
  task::Task<base::Result<bool>> judge(Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> repair(Nanos deadline, fabric::Cost& cost);

 private:
  Session& session_;
  Repairer& repairer_;
  std::uint64_t offset_ = 0;
  std::uint64_t mask_ = 0;
  Nanos since_ = 0;
  Nanos looked_at_ = 0;
  std::vector<Repairer::Suspects::Standing> standing_;  // those whom the last look found, and who had not ended
  std::vector<std::uint64_t> ended_;
};

}  // namespace farpool::session
