// SPDX-License-Identifier: Apache-2.0
// Living clients find what dead clients left under locks, ask the memory node to fence these, and repair it (RCuckoo
// section 4.2, with its holes closed).
//
//  - The suspects of a set lock bit are the operation slots that name it. The memory node decides which of their
//    clients have ended, and fences a client whose slot stands still for the failure timeout. Repairers write only
//    after that.
//  - A repairer holds the leases of all lock words that a dead slot names. A repairer that stands still is fenced like
//    any client, and another client steals its leases: each step can be done again from what is there.
//  - A slot that says `writing` holds all its locks: the protocol finishes its rows from the plan. Any other slot has
//    no row left to write, and may or may not hold each of its locks. To find out, the repairer bars the lock word, so
//    that no client takes a lock of it any more, and waits until every slot of a living client that names one of these
//    bits has moved on: the dead hold the bits that are still set then.
//  - One masked CAS releases the locks and lowers the barrier. Only after it the slot claims nothing any more.
//
// A client that repairs, or waits for another to repair, claims nothing itself: otherwise its own slots would stand
// still.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/counts.h"
#include "base/result.h"
#include "fabric/cost.h"
#include "layout/operation_slot.h"
#include "session/leases.h"
#include "session/session.h"
#include "session/wait.h"
#include "task/task.h"

namespace farpool::session {

// The part of repair that only the index protocol knows.
class Repairable {
 public:
  virtual ~Repairable() = default;
  // Writes what a dead client's plan says and its rows do not have yet; may run again at any point. The dead client
  // holds all locks of the slot, and the caller holds their leases. Returns a text, and writes nothing, if no crash can
  // have left what is there.
  virtual task::Task<base::Result<std::optional<std::string>>> finish(const layout::OperationSlot& slot, Nanos deadline,
                                                                      fabric::Cost& cost) = 0;
};

// Counts of one client's repairs and leases: see kRepairMarks.
struct RepairMarks {
  std::uint64_t complaints = 0;
  std::uint64_t repaired = 0;
  std::uint64_t finished = 0;
  std::uint64_t unmade = 0;
  std::uint64_t bits_released = 0;
  std::uint64_t bits_spared = 0;
  std::uint64_t leases_stolen = 0;
  std::uint64_t lease_waits = 0;
  std::uint64_t barriers_found = 0;
  std::uint64_t waited_for = 0;
  std::uint64_t quarantined = 0;
};

inline constexpr auto kRepairMarks = std::to_array<base::Count<RepairMarks>>({
    {&RepairMarks::complaints, "complaints",
     "Clients that stood still with a lock and were reported to their memory node."},
    {&RepairMarks::repaired, "slots", "Operation slots of ended clients that were repaired."},
    {&RepairMarks::finished, "slots_finished",
     "Operation slots of ended clients that were in the middle of writing rows."},
    {&RepairMarks::unmade, "torn_claims", "Operation slots of ended clients whose claim was torn."},
    {&RepairMarks::bits_released, "locks", "Locks released that ended clients had left."},
    {&RepairMarks::bits_spared, "locks_spared",
     "Locks that ended clients named, and that were free or held by others."},
    {&RepairMarks::leases_stolen, "leases_stolen", "Leases taken over from clients that had ended."},
    {&RepairMarks::lease_waits, "lease_waits",
     "Looks at a lease that another client held: more dead than leases, or many that repair one."},
    {&RepairMarks::barriers_found, "barriers_found", "Lock words found barred by repairers that had ended."},
    {&RepairMarks::waited_for, "living_waited_for",
     "Living clients whose operation slots had to move on before a repair."},
    {&RepairMarks::quarantined, "quarantined", "Operation slots found in a state that no crash explains."},
});
static_assert(sizeof(RepairMarks) == kRepairMarks.size() * sizeof(std::uint64_t));

inline void operator+=(RepairMarks& sum, const RepairMarks& more) { base::add_counts(kRepairMarks, sum, more); }

class Repairer {
 public:
  // Both outlive the repairer.
  Repairer(Session& session, Repairable& protocol);
  Repairer(const Repairer&) = delete;

  // Finds the slots that name a bit of `mask` in the lock word at `offset`, or have barred it, and reports them to the
  // memory node.
  struct Suspects {
    std::vector<std::uint64_t> ended;  // operation slots of clients that have ended
    std::string quarantined;           // for people: which of these are quarantined and wait for a person
    std::string living;                // for people: which clients may still live
    struct Unmoved {
      std::uint64_t slot = 0;
      std::uint64_t holder = 0;
      std::uint64_t sequence = 0;
    };
    std::vector<Unmoved> unmoved;  // living clients' slots that had not moved when the memory node looked
  };
  task::Task<base::Result<Suspects>> accuse(std::uint64_t offset, std::uint64_t mask, Nanos deadline,
                                            fabric::Cost& cost);
  // Does the same for some of them alone, without the READ of all slots. Leaves out clients whose slots have moved.
  task::Task<base::Result<Suspects>> accuse_again(std::vector<Suspects::Unmoved> before, Nanos deadline,
                                                  fabric::Cost& cost);

  // Repairs the slots, unless other clients have done it. The calling operation claims nothing. Errors: timed_out, the
  // session's, and locked: quarantined, see Suspects.
  task::Task<base::Status> repair(std::vector<std::uint64_t> slots, Nanos deadline, fabric::Cost& cost);

  // Repairs every slot of a client that has ended, and gives back the leases of repairers that have ended.
  struct Swept {
    std::uint64_t repaired = 0;
    std::uint64_t left = 0;  // quarantined, or `trouble` came first
    std::string trouble;
  };
  task::Task<base::Result<Swept>> sweep(Nanos deadline, fabric::Cost& cost);

  // Returns the counts without those of the session's leases: see marks_of.
  const RepairMarks& marks() const { return marks_; }

 private:
  using Slot = layout::OperationSlot;
  struct Snapshot;
  // Bits of one barred lock word that a dead client may hold.
  struct Uncertain {
    std::uint64_t offset = 0;
    std::uint64_t mask = 0;
  };
  // A slot that named one of these bits when the word was barred.
  struct Witness {
    std::uint64_t index = 0;
    std::uint64_t holder = 0;
    std::uint64_t number = 0;
    bool waited = false;
  };

  task::Task<base::Status> snapshot(Nanos deadline, fabric::Cost& cost, Snapshot& into);
  // Asks the memory node about a slot's holder. Returns FenceReply's status.
  task::Task<base::Result<std::uint64_t>> ask_node(std::uint64_t index, std::uint64_t holder, std::uint64_t says,
                                                   bool only_ask, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Result<bool>> ended(std::uint64_t index, const Slot& slot, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> accuse_one(std::uint64_t index, const Slot& slot, Suspects& suspects, Nanos deadline,
                                      fabric::Cost& cost);

  task::Task<base::Status> repair_one(std::uint64_t index, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> repair_under_leases(std::uint64_t index, std::uint64_t holder, std::vector<Lease>& leases,
                                               Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> release_certain(std::uint64_t index, Slot& slot, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> release_word(std::uint64_t index, const layout::HeldLocks& named, std::vector<Lease>& leases,
                                        Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> outwait(std::uint64_t index, Uncertain& bits, std::vector<Lease>& leases, Nanos deadline,
                                   fabric::Cost& cost);
  task::Task<base::Result<bool>> moved_on(const Witness& witness, Uncertain& bits, Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> lower_barrier(const layout::HeldLocks& named, std::uint64_t mask, Nanos deadline,
                                         fabric::Cost& cost);
  task::Task<base::Result<Slot>> read_slot(std::uint64_t index, Nanos deadline, fabric::Cost& cost);

  std::uint64_t slot_count() const;
  fabric::Remote part_of(std::uint64_t index, layout::SlotPart part) const;
  fabric::Op counters_of(std::uint64_t index, Slot& slot) const;
  std::string name_slot(std::uint64_t index, const Slot& slot) const;
  base::Status late(const std::string& what) const;

  Session& session_;
  Repairable& protocol_;
  RepairMarks marks_;
  bool busy_ = false;
  WaitQueue turn_;
};

// Returns what a client counted in its repairs and in its leases at one memory node. `repairer` may be nullptr.
RepairMarks marks_of(Session& session, const Repairer* repairer);

// For one operation and the place that it waits for: tells a lock with a dead holder from contention.
class Suspicion {
 public:
  explicit Suspicion(Session& session, Repairer& repairer) : session_(session), repairer_(repairer) {}

  // Notes that the place is blocked now. If bits came free in between, suspicion starts anew.
  void blocked(std::uint64_t offset, std::uint64_t mask);
  // Notes that the lock word at `offset` was taken.
  void came_free(std::uint64_t offset) {
    if (offset == offset_) mask_ = 0;
  }

  // Returns true if a client that may hold the place has ended: the caller gives back what it holds, claims nothing,
  // calls repair() and begins anew. Returns false if the caller should continue to try. Errors: locked, which names the
  // holder, when the deadline is near or a person has to look.
  task::Task<base::Result<bool>> judge(Nanos deadline, fabric::Cost& cost);
  task::Task<base::Status> repair(Nanos deadline, fabric::Cost& cost);

 private:
  Session& session_;
  Repairer& repairer_;
  std::uint64_t offset_ = 0;
  std::uint64_t mask_ = 0;
  Nanos since_ = 0;
  Nanos looked_at_ = 0;
  std::vector<Repairer::Suspects::Unmoved> unmoved_;  // clients that the last look found alive
  std::vector<std::uint64_t> ended_;
};

}  // namespace farpool::session
