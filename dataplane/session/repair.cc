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

namespace farpool::session {

using base::Code;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using fabric::Remote;
using layout::FenceReply;
using layout::FenceRequest;
using layout::HeldLocks;
using layout::kBarrier;
using layout::LeaseWord;
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

// All slots of sessions that were ever admitted. Each word is of some moment of the READ.
struct Repairer::Snapshot {
  fabric::Buffer image;
  std::uint64_t slots = 0;
  const Slot& at(std::uint64_t index) const {
    return *reinterpret_cast<const Slot*>(image.data() + index * sizeof(Slot));
  }
};

Repairer::Repairer(Session& session, Repairable& protocol)
    : session_(session), protocol_(protocol), turn_(session.port()), put_down_(session.port()) {}

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

Status Repairer::gone(const std::string& what) const {
  const Status why = session_.why();
  return {why.ok() ? Code::unavailable : why.code(), what + (why.ok() ? std::string() : ": " + why.message())};
}

Status Repairer::late(const std::string& what) const {
  return {Code::timed_out, "the deadline passed " + what + "; nothing of this operation was done"};
}

Task<void> Repairer::breathe(Nanos deadline) {
  fabric::Port& port = session_.port();
  const Nanos most = std::max<Nanos>(session_.grant().failure_timeout / 500, base::kMicrosecond);
  const Nanos until = port.now() + most / 2 + static_cast<Nanos>(port.random() % static_cast<std::uint64_t>(most));
  co_await port.sleep_until(std::max(port.now(), std::min(until, deadline)));
}

// --- Verbs

Task<Status> Repairer::post(std::vector<Op> chain, Nanos deadline, Cost& cost) {
  const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
  if (outcome.fate != Fate::done) co_return gone("the session ended in the middle of a repair");
  co_return Status();
}

Task<Status> Repairer::read(std::uint32_t region, std::uint64_t offset, base::MutableBytes into, Nanos deadline,
                            Cost& cost) {
  const fabric::Outcome outcome = co_await read_long(session_, region, offset, into, deadline, cost);
  if (outcome.fate != Fate::done) co_return gone("the session ended in the middle of a repair");
  co_return Status();
}

// The word before.
Task<Result<std::uint64_t>> Repairer::cas(Remote at, std::uint64_t compare, std::uint64_t swap, std::uint64_t mask,
                                          Nanos deadline, Cost& cost) {
  std::uint64_t before = 0;
  std::vector<Op> chain(1, Op::masked_cas(at, before, compare, mask, swap, mask));
  if (Status status = co_await post(std::move(chain), deadline, cost); !status.ok()) co_return status;
  co_return before;
}

Task<Result<std::uint64_t>> Repairer::ask_node(std::uint64_t of, std::uint64_t index, std::uint64_t holder,
                                               std::uint64_t says, bool only_ask, Nanos deadline, Cost& cost) {
  fabric::Buffer request = session_.port().buffer(sizeof(FenceRequest));
  fabric::Buffer reply = session_.port().buffer(sizeof(FenceReply));
  base::store(
      request.data(),
      FenceRequest{.of = of, .index = index, .holder = holder, .says = says, .ask = only_ask ? std::uint64_t{1} : 0});
  const std::array chain{
      Op::call(layout::kFence, request.first(sizeof(FenceRequest)), reply.first(sizeof(FenceReply)))};
  const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
  if (outcome.fate != Fate::done || outcome.reply_bytes != sizeof(FenceReply)) {
    co_return gone("the memory node did not say whether a client has ended");
  }
  if (!only_ask) ++marks_.complaints;
  co_return base::load<FenceReply>(reply.data()).status;
}

Task<Status> Repairer::snapshot(Nanos deadline, Cost& cost, Snapshot& into) {
  // Of itself, for the number of places: asked first, so that clients that are admitted later have claimed nothing
  // before.
  fabric::Buffer request = session_.port().buffer(sizeof(FenceRequest));
  fabric::Buffer reply = session_.port().buffer(sizeof(FenceReply));
  base::store(request.data(), FenceRequest{.of = FenceRequest::kSlot,
                                           .index = session_.grant().slots_offset / sizeof(Slot),
                                           .holder = session_.grant().client_incarnation,
                                           .ask = 1});
  const std::array chain{
      Op::call(layout::kFence, request.first(sizeof(FenceRequest)), reply.first(sizeof(FenceReply)))};
  const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
  if (outcome.fate != Fate::done || outcome.reply_bytes != sizeof(FenceReply)) {
    co_return gone("the memory node did not say how many sessions it has admitted");
  }
  into.slots =
      std::min(slot_count(), base::load<FenceReply>(reply.data()).places * std::uint64_t{session_.grant().slots});
  const std::uint64_t bytes = into.slots * sizeof(Slot);
  if (into.image.size() < bytes) into.image = session_.port().buffer(bytes);
  co_return co_await read(layout::kSlots, 0, into.image.first(bytes), deadline, cost);
}

// Whether the holder of a slot, as it was read, has ended.
Task<Result<bool>> Repairer::ended(std::uint64_t index, const Slot& slot, Nanos deadline, Cost& cost) {
  for (;;) {
    const Result<std::uint64_t> status =
        co_await ask_node(FenceRequest::kSlot, index, slot.holder, slot.sequence, false, deadline, cost);
    if (!status.ok()) co_return status.status();
    if (*status != FenceReply::kEnding) co_return *status == FenceReply::kEnded;
    if (session_.port().now() >= deadline) co_return late("before a client that had stopped was fenced");
    co_await breathe(deadline);
  }
}

// --- Suspects

Task<Result<Repairer::Suspects>> Repairer::accuse(std::uint64_t offset, std::uint64_t mask, Nanos deadline,
                                                  Cost& cost) {
  Snapshot now;
  if (Status status = co_await snapshot(deadline, cost, now); !status.ok()) co_return status;
  // The repairer that barred the word was at a slot that names some lock of it.
  const std::uint64_t named = (mask & kBarrier) != 0 ? ~0ull : mask;
  Suspects suspects;
  for (std::uint64_t i = 0; i < now.slots; ++i) {
    const Slot& slot = now.at(i);
    if (slot.holder == session_.grant().client_incarnation || cleared_of(slot, offset, named)) continue;
    if (Status status = co_await accuse_one(i, slot, suspects, deadline, cost); !status.ok()) co_return status;
  }
  co_return suspects;
}

Task<Result<Repairer::Suspects>> Repairer::accuse_again(std::vector<Suspects::Standing> before, Nanos deadline,
                                                        Cost& cost) {
  Suspects suspects;
  fabric::Buffer buffer = session_.port().buffer(sizeof(Slot));
  for (const Suspects::Standing& one : before) {
    Status status = co_await read(layout::kSlots, one.slot * sizeof(Slot), buffer.first(sizeof(Slot)), deadline, cost);
    if (!status.ok()) co_return status;
    const Slot slot = base::load<Slot>(buffer.data());
    if (slot.holder != one.holder || slot.sequence != one.sequence) continue;
    status = co_await accuse_one(one.slot, slot, suspects, deadline, cost);
    if (!status.ok()) co_return status;
  }
  co_return suspects;
}

Task<Status> Repairer::accuse_one(std::uint64_t index, const Slot& slot, Suspects& suspects, Nanos deadline,
                                  Cost& cost) {
  const Result<std::uint64_t> status =
      co_await ask_node(FenceRequest::kSlot, index, slot.holder, slot.sequence, false, deadline, cost);
  if (!status.ok()) co_return status.status();
  if (*status == FenceReply::kEnded || *status == FenceReply::kEnding) {
    if (slot.quarantined()) {
      suspects.quarantined += (suspects.quarantined.empty() ? "" : ", ") + name_slot(index, slot);
    } else {
      suspects.ended.push_back(index);
    }
  } else {
    suspects.living += (suspects.living.empty() ? "" : ", ") + name_slot(index, slot);
    if (*status != FenceReply::kMoved) suspects.standing.push_back({index, slot.holder, slot.sequence});
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
  std::map<std::uint64_t, bool> ended{
      {session_.grant().client_incarnation, false}};  // by holder: each is asked for once
  for (std::uint64_t i = 0; i < now.slots; ++i) {
    const Slot& slot = now.at(i);
    if (slot.holder == 0) continue;
    if (!ended.contains(slot.holder)) {
      const Result<std::uint64_t> holder =
          co_await ask_node(FenceRequest::kSlot, i, slot.holder, slot.sequence, true, deadline, cost);
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
  // A repairer that died behind its last step left nothing but its lease.
  fabric::Buffer words = session_.port().buffer(layout::kLeaseWords * 8);
  Status status = co_await read(layout::kLeases, 0, words.first(layout::kLeaseWords * 8), deadline, cost);
  for (std::uint64_t i = 0; i < layout::kLeaseWords && status.ok(); ++i) {
    const auto says = base::load<std::uint64_t>(words.data() + i * 8);
    if (!LeaseWord::held(says)) continue;
    const Result<std::uint64_t> holder = co_await ask_node(FenceRequest::kLease, i, 0, says, true, deadline, cost);
    if (!holder.ok()) co_return holder.status();
    if (*holder != FenceReply::kEnded) continue;
    const Result<std::uint64_t> before =
        co_await cas({layout::kLeases, i * 8}, says, LeaseWord::released(says), ~0ull, deadline, cost);
    if (!before.ok()) co_return before.status();
    if (*before == says) ++marks_.leases_stolen;
  }
  if (!status.ok()) co_return status;
  co_return swept;
}

Task<Status> Repairer::repair_one(std::uint64_t index, Nanos deadline, Cost& cost) {
  if (index >= slot_count())
    co_return Status(Code::invalid_argument, "there is no operation slot " + std::to_string(index));
  fabric::Buffer buffer = session_.port().buffer(sizeof(Slot));
  const base::MutableBytes bytes = buffer.first(sizeof(Slot));
  if (Status status = co_await read(layout::kSlots, index * sizeof(Slot), bytes, deadline, cost); !status.ok()) {
    co_return status;
  }
  const std::uint64_t holder = base::load<Slot>(buffer.data()).holder;
  if (holder == 0) co_return Status();
  // Fence first. Afterwards its words stand still.
  const Result<bool> over = co_await ended(index, base::load<Slot>(buffer.data()), deadline, cost);
  if (!over.ok()) co_return over.status();
  if (!*over) co_return Status();
  if (Status status = co_await read(layout::kSlots, index * sizeof(Slot), bytes, deadline, cost); !status.ok()) {
    co_return status;
  }
  const Slot slot = base::load<Slot>(buffer.data());
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
    status = co_await take_lease(lease, leases, deadline, cost);
    if (!status.ok()) break;
  }
  if (status.ok()) status = co_await repair_under_leases(index, holder, leases, deadline, cost);
  co_await give_back(leases, deadline, cost);
  co_return status;
}

Task<Status> Repairer::repair_under_leases(std::uint64_t index, std::uint64_t holder, std::vector<Lease>& leases,
                                           Nanos deadline, Cost& cost) {
  fabric::Buffer buffer = session_.port().buffer(sizeof(Slot));
  if (Status status = co_await read(layout::kSlots, index * sizeof(Slot), buffer.first(sizeof(Slot)), deadline, cost);
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
      if (Status status = co_await post(std::move(mark), deadline, cost); !status.ok()) co_return status;
      co_return Status(Code::locked, "what " + name + " left is quarantined: " + **finished);
    }
    ++marks_.finished;
    // From here on the locks may be released in part: `done` comes first.
    slot.settle();
    if (Status status = co_await release_certain(index, slot, deadline, cost); !status.ok()) co_return status;
  } else if (slot.claims()) {
    if (slot.planned()) {  // `done` may have landed without the counters beside it
      slot.settle();
      std::vector<Op> counters(1, counters_of(index, slot));
      if (Status status = co_await post(std::move(counters), deadline, cost); !status.ok()) co_return status;
    }
    for (const HeldLocks& named : slot.lock_word) {
      if (named.mask == 0) continue;
      if (Status status = co_await release_word(index, named, leases, deadline, cost); !status.ok()) co_return status;
    }
  } else {
    ++marks_.unmade;  // no lock was taken behind a claim that has not landed whole
  }
  slot.holder = 0;
  std::vector<Op> clear(1, Op::write(part_of(index, layout::kSlotHolder), base::mutable_bytes_of(slot.holder)));
  if (Status status = co_await post(std::move(clear), deadline, cost); !status.ok()) co_return status;
  ++marks_.repaired;
  co_return Status();
}

// The counters and `done`, then all locks: WRITE before atomic, in one chain.
Task<Status> Repairer::release_certain(std::uint64_t index, Slot& slot, Nanos deadline, Cost& cost) {
  std::array<std::uint64_t, Slot::kLockWords> before{};
  std::vector<Op> chain;
  chain.push_back(counters_of(index, slot));
  for (std::size_t i = 0; i < before.size(); ++i) {
    const HeldLocks& named = slot.lock_word[i];
    if (named.mask == 0) continue;
    chain.push_back(Op::masked_cas({layout::kLocks, named.offset}, before[i], named.mask, named.mask, 0, named.mask));
  }
  if (Status status = co_await post(std::move(chain), deadline, cost); !status.ok()) co_return status;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::uint64_t mask = slot.lock_word[i].mask;
    if ((before[i] & mask) != mask) {
      session_.end({Code::corrupt, "lock word " + std::to_string(slot.lock_word[i].offset / 8) +
                                       " was not held by the slot that was writing under it"});
      co_return gone("a lock was not released");
    }
    marks_.bits_released += static_cast<std::uint64_t>(std::popcount(mask));
  }
  co_return Status();
}

Task<Status> Repairer::take_lease(std::uint64_t index, std::vector<Lease>& leases, Nanos deadline, Cost& cost) {
  co_return (co_await contend(index, true, leases, deadline, cost)).status();
}

Task<Result<bool>> Repairer::try_lease(std::uint64_t index, std::vector<Lease>& leases, Nanos deadline, Cost& cost) {
  return contend(index, false, leases, deadline, cost);
}

// False: `waits` is, and the holder lives, or is another task of this client: a word tells clients apart, and no tasks.
Task<Result<bool>> Repairer::contend(std::uint64_t index, bool waits, std::vector<Lease>& leases, Nanos deadline,
                                     Cost& cost) {
  while (in_hand_.contains(index)) {
    if (!waits) {
      wanted_.insert(index);
      co_return false;
    }
    const Nanos now = session_.port().now();
    if (now >= deadline) co_return late("while another operation of this client held the lease");
    (void)co_await put_down_.wait(std::min(deadline, now + session_.grant().failure_timeout / 16));
    if (Status status = co_await renew(leases, deadline, cost); !status.ok()) co_return status;
  }
  in_hand_.insert(index);
  Result<bool> taken = co_await contend_with_others(index, waits, leases, deadline, cost);
  if (!taken.ok() || !*taken) put_down(index);
  co_return taken;
}

void Repairer::put_down(std::uint64_t index) {
  in_hand_.erase(index);
  put_down_.wake_all();
}

// What the word says that is this session's own was taken by a task that was never told so.
Task<Result<bool>> Repairer::contend_with_others(std::uint64_t index, bool waits, std::vector<Lease>& leases,
                                                 Nanos deadline, Cost& cost) {
  const Remote at{layout::kLeases, index * 8};
  fabric::Buffer word = session_.port().buffer(8);
  if (Status status = co_await read(at.region, at.offset, word.first(8), deadline, cost); !status.ok()) {
    co_return status;
  }
  std::uint64_t says = base::load<std::uint64_t>(word.data());
  Nanos complained = 0;
  for (;;) {
    const bool own = LeaseWord::Session::get(says) == LeaseWord::Session::get(session_.grant().session_id);
    bool free = !LeaseWord::held(says) || own, stolen = false;
    const Nanos now = session_.port().now();
    if (!free && now - complained >= session_.grant().failure_timeout / 16) {
      complained = now;
      const Result<std::uint64_t> status =
          co_await ask_node(FenceRequest::kLease, index, 0, says, false, deadline, cost);
      if (!status.ok()) co_return status.status();
      free = stolen = *status == FenceReply::kEnded;
      if (*status == FenceReply::kEnding) {
        complained = 0;
      } else if (!free && !waits) {
        co_return false;
      }
    }
    if (free) {
      const std::uint64_t mine = LeaseWord::held_by(says, session_.grant().session_id);
      const Result<std::uint64_t> before = co_await cas(at, says, mine, ~0ull, deadline, cost);
      if (!before.ok()) co_return before.status();
      if (*before == says) {
        if (stolen) ++marks_.leases_stolen;
        leases.push_back({index, mine, session_.port().now()});
        co_return true;
      }
      if (!waits) co_return false;
      says = *before;
      continue;
    }
    if (session_.port().now() >= deadline) co_return late("before another client had finished its repair");
    ++marks_.lease_waits;
    if (Status status = co_await renew(leases, deadline, cost); !status.ok()) co_return status;
    co_await breathe(deadline);
    if (Status status = co_await read(at.region, at.offset, word.first(8), deadline, cost); !status.ok()) {
      co_return status;
    }
    says = base::load<std::uint64_t>(word.data());
  }
}

// A lease that does not change for the failure timeout is stolen.
Task<Status> Repairer::renew(std::vector<Lease>& leases, Nanos deadline, Cost& cost) {
  for (Lease& lease : leases) {
    if (session_.port().now() - lease.at < session_.grant().failure_timeout / 8) continue;
    const std::uint64_t mine = LeaseWord::held_by(lease.word, session_.grant().session_id);
    const Result<std::uint64_t> before =
        co_await cas({layout::kLeases, lease.index * 8}, lease.word, mine, ~0ull, deadline, cost);
    if (!before.ok()) co_return before.status();
    if (*before != lease.word) {
      session_.end({Code::stale, "repair lease " + std::to_string(lease.index) + " was taken away"});
      co_return gone("the repair was given up");
    }
    lease = {lease.index, mine, session_.port().now()};
  }
  co_return Status();
}

Task<void> Repairer::give_back(std::vector<Lease>& leases, Nanos deadline, Cost& cost) {
  for (const Lease& lease : leases) {
    if (!session_.alive()) {  // the next client that needs it steals it
      put_down(lease.index);
      continue;
    }
    const Result<std::uint64_t> before = co_await cas({layout::kLeases, lease.index * 8}, lease.word,
                                                      LeaseWord::released(lease.word), ~0ull, deadline, cost);
    if (before.ok() && *before != lease.word) {
      session_.end({Code::stale, "repair lease " + std::to_string(lease.index) + " was taken away"});
    }
    put_down(lease.index);
  }
}

// Finds out which locks of one word the dead hold, and releases them.
Task<Status> Repairer::release_word(std::uint64_t index, const HeldLocks& named, std::vector<Lease>& leases,
                                    Nanos deadline, Cost& cost) {
  const Remote word{layout::kLocks, named.offset};
  const Result<std::uint64_t> before = co_await cas(word, 0, kBarrier, kBarrier, deadline, cost);
  if (!before.ok()) co_return before.status();
  if ((*before & kBarrier) != 0) ++marks_.barriers_found;

  // From here on no lock of this word is taken. A living client that names one of these either holds it already or
  // never will; each has to be seen once not to.
  std::uint64_t mask = *before & named.mask;
  struct Witness {
    std::uint64_t index = 0;
    std::uint64_t holder = 0;
    std::uint64_t number = 0;
    bool waited = false;
  };
  std::vector<Witness> witnesses;
  Status status;
  Snapshot now;
  if (mask != 0) {
    status = co_await snapshot(deadline, cost, now);
    for (std::uint64_t i = 0; status.ok() && i < now.slots; ++i) {
      if (i == index || cleared_of(now.at(i), named.offset, mask)) continue;
      witnesses.push_back({i, now.at(i).holder, now.at(i).number()});
    }
  }
  fabric::Buffer buffer = session_.port().buffer(sizeof(Slot));
  while (status.ok() && !witnesses.empty()) {
    for (std::size_t i = 0; i < witnesses.size() && status.ok();) {
      Witness& witness = witnesses[i];
      status = co_await read(layout::kSlots, witness.index * sizeof(Slot), buffer.first(sizeof(Slot)), deadline, cost);
      if (!status.ok()) break;
      const Slot slot = base::load<Slot>(buffer.data());
      bool over = slot.holder != witness.holder || cleared_of(slot, named.offset, mask);
      if (!over) {
        // It gave the word back, or has not come to it, and tries in vain since the word was barred.
        std::size_t place = 0;
        while (place < Slot::kLockWords && slot.lock_word[place].offset != named.offset) ++place;
        over = slot.number() > witness.number && Sequence::word(slot.sequence) <= place;
      }
      if (!over && slot.holder != session_.grant().client_incarnation) {
        const Result<bool> dead = co_await ended(witness.index, slot, deadline, cost);
        if (!dead.ok()) {
          status = dead.status();
          break;
        }
        if (*dead) {
          // Its words stand still now. In the middle of writing rows, or quarantined, it holds what it names, and its
          // own repair releases it. Else it is as uncertain as this one, with no row left to write either: if nobody
          // who lives holds a bit, one of the dead does.
          status =
              co_await read(layout::kSlots, witness.index * sizeof(Slot), buffer.first(sizeof(Slot)), deadline, cost);
          if (!status.ok()) break;
          const Slot still = base::load<Slot>(buffer.data());
          if (still.holder == witness.holder && still.claims() && (still.writing() || still.quarantined())) {
            mask &= ~bits_named(still, named.offset);
          }
          over = true;
        }
      }
      if (over) {
        witness = witnesses.back();
        witnesses.pop_back();
        continue;
      }
      if (!std::exchange(witness.waited, true)) ++marks_.waited_for;
      ++i;
    }
    if (!status.ok() || witnesses.empty()) break;
    if (session_.port().now() >= deadline) status = late("before those who wait for the same lock had moved on");
    if (status.ok()) status = co_await renew(leases, deadline, cost);
    if (status.ok()) co_await breathe(deadline);
  }

  if (!status.ok() && !session_.alive()) co_return status;
  std::uint64_t held = 0;
  if (status.ok() && mask != 0) {
    status = co_await read(word.region, word.offset, buffer.first(8), deadline, cost);
    if (status.ok()) held = base::load<std::uint64_t>(buffer.data()) & mask;
  }
  const Result<std::uint64_t> after = co_await cas(word, kBarrier | held, 0, kBarrier | held, deadline, cost);
  if (!after.ok()) co_return status.ok() ? after.status() : status;
  if ((*after & (kBarrier | held)) != (kBarrier | held)) {
    session_.end({Code::corrupt, "lock word " + std::to_string(named.offset / 8) + " changed while it was barred"});
    co_return gone("a lock was not released");
  }
  marks_.bits_released += static_cast<std::uint64_t>(std::popcount(held));
  marks_.bits_spared += static_cast<std::uint64_t>(std::popcount(named.mask & ~held));
  co_return status;
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
  standing_.clear();
}

Task<Result<bool>> Suspicion::judge(Nanos deadline, Cost& cost) {
  if (mask_ == 0) co_return false;
  const Nanos timeout = session_.grant().failure_timeout;
  const Nanos now = session_.port().now();
  // Contention is over long before; where clients are known to have died, it is likelier that one of them is met.
  const Nanos patience = session_.dead() > 0 ? timeout / 64 : timeout / 8;
  const bool ends = now + timeout / 64 >= deadline;
  if (now - since_ < patience) co_return false;
  if (looked_at_ != 0 && now - looked_at_ < timeout / 8 && !ends) co_return false;
  looked_at_ = now;
  // The client that held the place at the last look and has stood still since is looked at again; if all have moved, it
  // may be somebody else.
  Result<Repairer::Suspects> suspects = co_await repairer_.accuse_again(standing_, deadline, cost);
  if (suspects.ok() && suspects->ended.empty() && suspects->quarantined.empty() && suspects->standing.empty()) {
    suspects = co_await repairer_.accuse(offset_, mask_, deadline, cost);
  }
  if (!suspects.ok()) co_return suspects.status();
  standing_ = std::move(suspects->standing);
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
  standing_.clear();
  co_return co_await repairer_.repair(std::exchange(ended_, {}), deadline, cost);
}

}  // namespace farpool::session
