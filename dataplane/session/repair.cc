// SPDX-License-Identifier: Apache-2.0
#include "session/repair.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "layout/calls.h"
#include "layout/lease.h"
#include "layout/regions.h"
#include "session/leases.h"
#include "session/trips.h"

namespace farpool::session {

using base::Code;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Op;
using fabric::Remote;
using layout::FenceReply;
using layout::FenceRequest;
using layout::HeldLocks;
using layout::kBarrier;
using layout::Sequence;
using task::Task;

namespace {

bool cleared_of(const layout::OperationSlot& slot, std::uint64_t offset, std::uint64_t mask) {
  return !slot.claims() || !slot.covers(offset, mask);
}

std::uint64_t bits_named(const layout::OperationSlot& slot, std::uint64_t offset) {
  std::uint64_t bits = 0;
  for (const HeldLocks& held : slot.lock_word) bits |= held.offset == offset ? held.mask : 0;
  return bits;
}

}  // namespace

// The slots of all sessions that were ever admitted. Each word is from some moment of the READ.
struct Repairer::Snapshot {
  fabric::Buffer image;
  std::uint64_t slots = 0;
  const Slot& at(std::uint64_t index) const {
    return *reinterpret_cast<const Slot*>(image.data() + index * sizeof(Slot));
  }
};

Repairer::Repairer(Session& session, Repairable& protocol)
    : session_(session), protocol_(protocol), turn_(session.port()) {}

std::uint64_t Repairer::slot_count() const { return session_.region_bytes(layout::kSlots) / sizeof(Slot); }

Remote Repairer::part_of(std::uint64_t index, layout::SlotPart part) const {
  return {layout::kSlots, index * sizeof(Slot) + part.offset};
}

Op Repairer::counters_of(std::uint64_t index, Slot& slot) const {
  constexpr layout::SlotPart kPart = layout::kSlotCounters;
  return Op::write(part_of(index, kPart), base::mutable_bytes_of(slot).subspan(kPart.offset, kPart.bytes));
}

std::string Repairer::name_slot(std::uint64_t index, const Slot& slot) const {
  char incarnation[24];
  std::snprintf(incarnation, sizeof incarnation, "%016llx", static_cast<unsigned long long>(slot.holder));
  return "client incarnation " + std::string(incarnation) + " (session place " +
         std::to_string(index / session_.grant().slots) + ", operation slot " + std::to_string(index) + ", sequence " +
         std::to_string(slot.number()) + ")";
}

Status Repairer::late(const std::string& what) const {
  return {Code::timed_out, "the deadline passed " + what + "; nothing of this operation was done"};
}

Task<Result<std::uint64_t>> Repairer::ask_node(std::uint64_t index, std::uint64_t holder, std::uint64_t says,
                                               bool only_ask, Nanos deadline, Cost& cost) {
  const Result<FenceReply> reply = co_await ask_fence(session_,
                                                      {.of = FenceRequest::kSlot,
                                                       .index = index,
                                                       .holder = holder,
                                                       .says = says,
                                                       .ask = only_ask ? std::uint64_t{1} : 0},
                                                      deadline, cost);
  if (!reply.ok()) co_return reply.status();
  if (!only_ask) ++marks_.complaints;
  co_return reply->status;
}

Task<Status> Repairer::snapshot(Nanos deadline, Cost& cost, Snapshot& into) {
  // Asks about itself, to learn the number of places. It asks before it reads the slots, so that clients admitted later
  // have claimed nothing yet.
  const Result<FenceReply> reply = co_await ask_fence(session_,
                                                      {.of = FenceRequest::kSlot,
                                                       .index = session_.grant().slots_offset / sizeof(Slot),
                                                       .holder = session_.grant().client_incarnation,
                                                       .ask = 1},
                                                      deadline, cost);
  if (!reply.ok()) co_return reply.status();
  into.slots = std::min(slot_count(), reply->places * std::uint64_t{session_.grant().slots});
  const std::uint64_t bytes = into.slots * sizeof(Slot);
  if (into.image.size() < bytes) into.image = session_.port().buffer(bytes);
  co_return co_await read_bytes(session_, layout::kSlots, 0, into.image.first(bytes), deadline, cost);
}

Task<Result<Repairer::Slot>> Repairer::read_slot(std::uint64_t index, Nanos deadline, Cost& cost) {
  fabric::Buffer buffer = session_.port().buffer(sizeof(Slot));
  const Status status =
      co_await read_bytes(session_, layout::kSlots, index * sizeof(Slot), buffer.first(sizeof(Slot)), deadline, cost);
  if (!status.ok()) co_return status;
  co_return base::load<Slot>(buffer.data());
}

// Says whether the holder of a slot, as it was read, has ended.
Task<Result<bool>> Repairer::ended(std::uint64_t index, const Slot& slot, Nanos deadline, Cost& cost) {
  for (;;) {
    const Result<std::uint64_t> status = co_await ask_node(index, slot.holder, slot.sequence, false, deadline, cost);
    if (!status.ok()) co_return status.status();
    if (*status != FenceReply::kEnding) co_return *status == FenceReply::kEnded;
    if (session_.port().now() >= deadline) co_return late("before a client that had stopped was fenced");
    co_await breathe(session_, deadline);
  }
}

// --- Suspects

Task<Result<Repairer::Suspects>> Repairer::accuse(std::uint64_t offset, std::uint64_t mask, Nanos deadline,
                                                  Cost& cost) {
  Snapshot now;
  if (Status status = co_await snapshot(deadline, cost, now); !status.ok()) co_return status;
  // The repairer that barred the word was repairing a slot that names some lock of it.
  const std::uint64_t named = (mask & kBarrier) != 0 ? ~0ull : mask;
  Suspects suspects;
  for (std::uint64_t i = 0; i < now.slots; ++i) {
    const Slot& slot = now.at(i);
    if (slot.holder == session_.grant().client_incarnation || cleared_of(slot, offset, named)) continue;
    if (Status status = co_await accuse_one(i, slot, suspects, deadline, cost); !status.ok()) co_return status;
  }
  co_return suspects;
}

Task<Result<Repairer::Suspects>> Repairer::accuse_again(std::vector<Suspects::Unmoved> before, Nanos deadline,
                                                        Cost& cost) {
  Suspects suspects;
  for (const Suspects::Unmoved& one : before) {
    const Result<Slot> slot = co_await read_slot(one.slot, deadline, cost);
    if (!slot.ok()) co_return slot.status();
    if (slot->holder != one.holder || slot->sequence != one.sequence) continue;
    if (Status status = co_await accuse_one(one.slot, *slot, suspects, deadline, cost); !status.ok()) co_return status;
  }
  co_return suspects;
}

Task<Status> Repairer::accuse_one(std::uint64_t index, const Slot& slot, Suspects& suspects, Nanos deadline,
                                  Cost& cost) {
  const Result<std::uint64_t> status = co_await ask_node(index, slot.holder, slot.sequence, false, deadline, cost);
  if (!status.ok()) co_return status.status();
  if (*status == FenceReply::kEnded || *status == FenceReply::kEnding) {
    if (slot.quarantined()) {
      suspects.quarantined += (suspects.quarantined.empty() ? "" : ", ") + name_slot(index, slot);
    } else {
      suspects.ended.push_back(index);
    }
  } else {
    suspects.living += (suspects.living.empty() ? "" : ", ") + name_slot(index, slot);
    if (*status != FenceReply::kMoved) suspects.unmoved.push_back({index, slot.holder, slot.sequence});
  }
  co_return Status();
}

// --- Repair

Task<Status> Repairer::repair(std::vector<std::uint64_t> slots, Nanos deadline, Cost& cost) {
  while (busy_) {
    if (!co_await turn_.wait(deadline)) co_return late("while another operation of this client repaired");
  }
  busy_ = true;
  Status status;
  for (const std::uint64_t index : slots) {
    status = co_await repair_one(index, deadline, cost);
    if (!status.ok()) break;
  }
  busy_ = false;
  turn_.wake_one();
  co_return status;
}

Task<Result<Repairer::Swept>> Repairer::sweep(Nanos deadline, Cost& cost) {
  Swept swept;
  Snapshot now;
  if (Status status = co_await snapshot(deadline, cost, now); !status.ok()) co_return status;
  std::map<std::uint64_t, bool> ended{{session_.grant().client_incarnation, false}};  // by holder: asks about each once
  for (std::uint64_t i = 0; i < now.slots; ++i) {
    const Slot& slot = now.at(i);
    if (slot.holder == 0) continue;
    if (!ended.contains(slot.holder)) {
      const Result<std::uint64_t> holder = co_await ask_node(i, slot.holder, slot.sequence, true, deadline, cost);
      if (!holder.ok()) co_return holder.status();
      ended[slot.holder] = *holder == FenceReply::kEnded;
    }
    if (!ended[slot.holder]) continue;
    std::vector<std::uint64_t> one(1, i);
    Status status = co_await repair(std::move(one), deadline, cost);
    if (status.ok()) {
      ++swept.repaired;
      continue;
    }
    if (!session_.alive()) co_return status;
    ++swept.left;
    swept.trouble = status.message();
  }
  // A repairer that died after its last step left only its lease.
  if (Status status = co_await session_.leases().sweep(deadline, cost); !status.ok()) co_return status;
  co_return swept;
}

Task<Status> Repairer::repair_one(std::uint64_t index, Nanos deadline, Cost& cost) {
  if (index >= slot_count())
    co_return Status(Code::invalid_argument, "there is no operation slot " + std::to_string(index));
  Result<Slot> found = co_await read_slot(index, deadline, cost);
  if (!found.ok()) co_return found.status();
  const std::uint64_t holder = found->holder;
  if (holder == 0) co_return Status();
  // Fences first: afterwards the words of its client stand still.
  const Result<bool> over = co_await ended(index, *found, deadline, cost);
  if (!over.ok()) co_return over.status();
  if (!*over) co_return Status();
  found = co_await read_slot(index, deadline, cost);
  if (!found.ok()) co_return found.status();
  const Slot& slot = *found;
  if (slot.holder != holder) co_return Status();

  std::vector<std::uint64_t> wanted;
  if (slot.claims()) {
    const std::uint64_t lock_bytes = session_.region_bytes(layout::kLocks);
    for (const HeldLocks& named : slot.lock_word) {
      if (named.mask == 0) continue;
      if (named.offset % 8 != 0 || named.offset >= lock_bytes) {
        co_return Status(Code::corrupt,
                         "operation slot " + std::to_string(index) + " names a lock word that is not there");
      }
      wanted.push_back(layout::lease_of(named.offset, lock_bytes));
    }
  }
  if (wanted.empty()) wanted.push_back(0);
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());

  std::vector<Lease> leases;
  Status status;
  for (const std::uint64_t lease : wanted) {
    status = co_await session_.leases().take(lease, leases, deadline, cost);
    if (!status.ok()) break;
  }
  if (status.ok()) status = co_await repair_under_leases(index, holder, leases, deadline, cost);
  co_await session_.leases().give_back(leases, deadline, cost);
  co_return status;
}

Task<Status> Repairer::repair_under_leases(std::uint64_t index, std::uint64_t holder, std::vector<Lease>& leases,
                                           Nanos deadline, Cost& cost) {
  fabric::Buffer buffer = session_.port().buffer(sizeof(Slot));
  if (Status status = co_await read_bytes(session_, layout::kSlots, index * sizeof(Slot), buffer.first(sizeof(Slot)),
                                          deadline, cost);
      !status.ok()) {
    co_return status;
  }
  Slot& slot = *reinterpret_cast<Slot*>(buffer.data());
  if (slot.holder != holder) co_return Status();  // another repairer was here
  if (slot.quarantined()) {
    co_return Status(Code::locked, "what " + name_slot(index, slot) + " left is quarantined: no crash explains it");
  }
  if (slot.writing()) {
    Result<std::optional<std::string>> finished = co_await protocol_.finish(slot, deadline, cost);
    if (!finished.ok()) co_return finished.status();
    if (*finished) {
      ++marks_.quarantined;
      slot.done = Slot::kQuarantined;
      std::vector<Op> mark(1, Op::write(part_of(index, {offsetof(Slot, done), 8}), base::mutable_bytes_of(slot.done)));
      const std::string name = name_slot(index, slot);
      if (Status status = co_await post_chain(session_, std::move(mark), deadline, cost); !status.ok())
        co_return status;
      co_return Status(Code::locked, "what " + name + " left is quarantined: " + **finished);
    }
    ++marks_.finished;
    // From here on the locks may be released in part, so `done` comes first.
    slot.settle();
    if (Status status = co_await release_certain(index, slot, deadline, cost); !status.ok()) co_return status;
  } else if (slot.claims()) {
    if (slot.planned()) {  // `done` may have landed without the counters beside it
      slot.settle();
      std::vector<Op> counters(1, counters_of(index, slot));
      if (Status status = co_await post_chain(session_, std::move(counters), deadline, cost); !status.ok())
        co_return status;
    }
    for (const HeldLocks& named : slot.lock_word) {
      if (named.mask == 0) continue;
      if (Status status = co_await release_word(index, named, leases, deadline, cost); !status.ok()) co_return status;
    }
  } else {
    ++marks_.unmade;  // a client takes locks only after its whole claim has landed
  }
  slot.holder = 0;
  std::vector<Op> clear(1, Op::write(part_of(index, layout::kSlotHolder), base::mutable_bytes_of(slot.holder)));
  if (Status status = co_await post_chain(session_, std::move(clear), deadline, cost); !status.ok()) co_return status;
  ++marks_.repaired;
  co_return Status();
}

// Writes the counters and `done`, then releases all locks: WRITE before atomic, in one chain.
Task<Status> Repairer::release_certain(std::uint64_t index, Slot& slot, Nanos deadline, Cost& cost) {
  std::array<std::uint64_t, Slot::kLockWords> before{};
  std::vector<Op> chain;
  chain.push_back(counters_of(index, slot));
  for (std::size_t i = 0; i < before.size(); ++i) {
    const HeldLocks& named = slot.lock_word[i];
    if (named.mask == 0) continue;
    chain.push_back(Op::masked_cas({layout::kLocks, named.offset}, before[i], named.mask, named.mask, 0, named.mask));
  }
  if (Status status = co_await post_chain(session_, std::move(chain), deadline, cost); !status.ok()) co_return status;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::uint64_t mask = slot.lock_word[i].mask;
    if ((before[i] & mask) != mask) {
      session_.end({Code::corrupt, "lock word " + std::to_string(slot.lock_word[i].offset / 8) +
                                       " was not held by the slot that was writing under it"});
      co_return gone(session_, Code::unavailable, "a lock was not released");
    }
    marks_.bits_released += static_cast<std::uint64_t>(std::popcount(mask));
  }
  co_return Status();
}

// Finds out which locks of one word the dead client holds, and releases them.
Task<Status> Repairer::release_word(std::uint64_t index, const HeldLocks& named, std::vector<Lease>& leases,
                                    Nanos deadline, Cost& cost) {
  const Remote word{layout::kLocks, named.offset};
  const Result<std::uint64_t> before = co_await cas_word(session_, word, 0, kBarrier, kBarrier, deadline, cost);
  if (!before.ok()) co_return before.status();
  if ((*before & kBarrier) != 0) ++marks_.barriers_found;

  Uncertain bits{named.offset, *before & named.mask};
  const Status status = co_await outwait(index, bits, leases, deadline, cost);
  if (!status.ok() && !session_.alive()) co_return status;
  // The barrier is lowered in any case: other clients wait for that.
  const Status lowered = co_await lower_barrier(named, status.ok() ? bits.mask : 0, deadline, cost);
  co_return status.ok() ? lowered : status;
}

// Waits until no living client can hold one of the bits. Behind the barrier no lock of the word is taken: a living
// client that names one of the bits holds it already, or never will. So one look that finds it without the bit is
// enough.
Task<Status> Repairer::outwait(std::uint64_t index, Uncertain& bits, std::vector<Lease>& leases, Nanos deadline,
                               Cost& cost) {
  if (bits.mask == 0) co_return Status();
  Snapshot now;
  if (Status status = co_await snapshot(deadline, cost, now); !status.ok()) co_return status;
  std::vector<Witness> witnesses;
  for (std::uint64_t i = 0; i < now.slots; ++i) {
    if (i == index || cleared_of(now.at(i), bits.offset, bits.mask)) continue;
    witnesses.push_back({i, now.at(i).holder, now.at(i).number()});
  }
  while (!witnesses.empty()) {
    for (std::size_t i = 0; i < witnesses.size();) {
      const Result<bool> over = co_await moved_on(witnesses[i], bits, deadline, cost);
      if (!over.ok()) co_return over.status();
      if (*over) {
        witnesses[i] = witnesses.back();
        witnesses.pop_back();
        continue;
      }
      if (!std::exchange(witnesses[i].waited, true)) ++marks_.waited_for;
      ++i;
    }
    if (witnesses.empty()) break;
    if (session_.port().now() >= deadline) co_return late("before clients that wait for the same lock had moved on");
    if (Status status = co_await session_.leases().renew(leases, deadline, cost); !status.ok()) co_return status;
    co_await breathe(session_, deadline);
  }
  co_return Status();
}

// Says whether the witness holds none of the bits. Takes away bits that a dead witness holds.
Task<Result<bool>> Repairer::moved_on(const Witness& witness, Uncertain& bits, Nanos deadline, Cost& cost) {
  Result<Slot> slot = co_await read_slot(witness.index, deadline, cost);
  if (!slot.ok()) co_return slot.status();
  if (slot->holder != witness.holder || cleared_of(*slot, bits.offset, bits.mask)) co_return true;
  // It has given the word back, or has not reached it and tries in vain since the word was barred.
  std::size_t place = 0;
  while (place < Slot::kLockWords && slot->lock_word[place].offset != bits.offset) ++place;
  if (slot->number() > witness.number && Sequence::word(slot->sequence) <= place) co_return true;
  if (slot->holder == session_.grant().client_incarnation) co_return false;
  const Result<bool> dead = co_await ended(witness.index, *slot, deadline, cost);
  if (!dead.ok() || !*dead) co_return dead;
  // The witness is dead and its words stand still. If it was in the middle of writing rows, or is quarantined, it holds
  // what it names, and its own repair releases that. Otherwise it is as uncertain as this slot, and has no row left to
  // write either: a bit that no living client holds is held by one of the dead.
  slot = co_await read_slot(witness.index, deadline, cost);
  if (!slot.ok()) co_return slot.status();
  if (slot->holder == witness.holder && slot->claims() && (slot->writing() || slot->quarantined())) {
    bits.mask &= ~bits_named(*slot, bits.offset);
  }
  co_return true;
}

// Releases the bits of `mask` that are still set in the word, and lowers its barrier, in one step.
Task<Status> Repairer::lower_barrier(const HeldLocks& named, std::uint64_t mask, Nanos deadline, Cost& cost) {
  const Remote word{layout::kLocks, named.offset};
  std::uint64_t held = 0;
  Status status;
  if (mask != 0) {
    fabric::Buffer buffer = session_.port().buffer(8);
    status = co_await read_bytes(session_, word.region, word.offset, buffer.first(8), deadline, cost);
    if (status.ok()) held = base::load<std::uint64_t>(buffer.data()) & mask;
  }
  const Result<std::uint64_t> after =
      co_await cas_word(session_, word, kBarrier | held, 0, kBarrier | held, deadline, cost);
  if (!after.ok()) co_return status.ok() ? after.status() : status;
  if ((*after & (kBarrier | held)) != (kBarrier | held)) {
    session_.end({Code::corrupt, "lock word " + std::to_string(named.offset / 8) + " changed while it was barred"});
    co_return gone(session_, Code::unavailable, "a lock was not released");
  }
  marks_.bits_released += static_cast<std::uint64_t>(std::popcount(held));
  marks_.bits_spared += static_cast<std::uint64_t>(std::popcount(named.mask & ~held));
  co_return status;
}

RepairMarks marks_of(Session& session, const Repairer* repairer) {
  RepairMarks marks = repairer == nullptr ? RepairMarks() : repairer->marks();
  const LeaseMarks& leases = session.leases().marks();
  marks.complaints += leases.complaints;
  marks.leases_stolen += leases.stolen;
  marks.lease_waits += leases.waits;
  return marks;
}

// --- Suspicion

void Suspicion::blocked(std::uint64_t offset, std::uint64_t mask) {
  if (offset == offset_ && (mask & mask_) != 0) {
    mask_ &= mask;
    return;
  }
  offset_ = offset;
  mask_ = mask;
  since_ = session_.port().now();
  looked_at_ = 0;
  unmoved_.clear();
}

Task<Result<bool>> Suspicion::judge(Nanos deadline, Cost& cost) {
  if (mask_ == 0) co_return false;
  const Nanos timeout = session_.grant().failure_timeout;
  const Nanos now = session_.port().now();
  // Contention is over long before that; a pool with known deaths suspects earlier.
  const Nanos patience = session_.dead() > 0 ? timeout / 64 : timeout / 8;
  const bool ends = now + timeout / 64 >= deadline;
  if (now - since_ < patience) co_return false;
  if (looked_at_ != 0 && now - looked_at_ < timeout / 8 && !ends) co_return false;
  looked_at_ = now;
  // Looks again at the client that held the place at the last look and has stood still since; if all of them have
  // moved, another client may hold it.
  Result<Repairer::Suspects> suspects = co_await repairer_.accuse_again(unmoved_, deadline, cost);
  if (suspects.ok() && suspects->ended.empty() && suspects->quarantined.empty() && suspects->unmoved.empty()) {
    suspects = co_await repairer_.accuse(offset_, mask_, deadline, cost);
  }
  if (!suspects.ok()) co_return suspects.status();
  unmoved_ = std::move(suspects->unmoved);
  const std::string where = "lock word " + std::to_string(offset_ / 8) + " has been taken for " +
                            std::to_string((now - since_) / base::kMillisecond) + " ms";
  if (!suspects->ended.empty()) {
    ended_ = std::move(suspects->ended);
    co_return true;
  }
  if (!suspects->quarantined.empty()) {
    co_return Status(Code::locked, where + " by " + suspects->quarantined +
                                       ", which has ended, and what it left is quarantined: no crash explains it, a "
                                       "person has to look (docs/operations.md)");
  }
  if (ends) {
    co_return Status(Code::timed_out,
                     where + (suspects->living.empty() ? ", and no operation slot names a holder"
                                                       : " by one of " + suspects->living + ", which may still live"));
  }
  co_return false;
}

Task<Status> Suspicion::repair(Nanos deadline, Cost& cost) {
  mask_ = 0;
  unmoved_.clear();
  co_return co_await repairer_.repair(std::exchange(ended_, {}), deadline, cost);
}

}  // namespace farpool::session
