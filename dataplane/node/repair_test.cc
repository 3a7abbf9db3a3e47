// SPDX-License-Identifier: Apache-2.0
// What clients repair that have slots of the dead before them, as the test writes them.
#include "session/repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout/lease.h"
#include "layout/regions.h"
#include "node/world_test.h"

namespace farpool::node {
namespace {

using base::Code;
using base::kMicrosecond;
using base::Result;
using base::Status;
using fabric::Cost;
using layout::HeldLocks;
using layout::kBarrier;
using layout::LeaseWord;
using layout::OperationSlot;
using layout::Sequence;
using session::Repairer;
using task::Task;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Suspects = Repairer::Suspects;

// A protocol that notes what it shall finish.
struct Rows final : session::Repairable {
  Task<Result<std::optional<std::string>>> finish(const OperationSlot& slot, Nanos, Cost&) override {
    numbers.push_back(slot.number());
    if (go != nullptr) co_await *go;
    if (!trouble.ok()) co_return trouble;
    co_return wrong;
  }
  std::vector<std::uint64_t> numbers;
  std::optional<std::string> wrong;
  Status trouble;
  task::Event* go = nullptr;
};

struct Client {
  SimPort* port = nullptr;
  std::unique_ptr<Session> session;
  Rows rows;
  std::unique_ptr<Repairer> repairer;
  Cost cost;

  std::uint64_t incarnation() const { return session->grant().client_incarnation; }
  std::uint64_t first_slot() const { return session->grant().slots_offset / sizeof(OperationSlot); }
  const session::RepairMarks& marks() const { return repairer->marks(); }
};

Task<void> repairing(Client& client, std::vector<std::uint64_t> slots, Nanos deadline, std::optional<Status>& answer) {
  answer = co_await client.repairer->repair(std::move(slots), deadline, client.cost);
}
Task<void> accusing(Client& client, HeldLocks locks, Nanos deadline, std::optional<Result<Suspects>>& answer) {
  answer = co_await client.repairer->accuse(locks.offset, locks.mask, deadline, client.cost);
}
Task<void> accusing_again(Client& client, std::vector<Suspects::Unmoved> before, Nanos deadline,
                          std::optional<Result<Suspects>>& answer) {
  answer = co_await client.repairer->accuse_again(std::move(before), deadline, client.cost);
}
Task<void> judging(session::Suspicion& suspicion, Nanos deadline, Cost& cost, std::optional<Result<bool>>& answer) {
  answer = co_await suspicion.judge(deadline, cost);
}
Task<void> sweeping(Client& client, Nanos deadline, std::optional<Result<Repairer::Swept>>& answer) {
  answer = co_await client.repairer->sweep(deadline, client.cost);
}

struct RepairWorld : TestWorld {
  // With several lock words.
  explicit RepairWorld(std::uint64_t seed = 1) : TestWorld(seed, 16 << 20) { node->stand_alone(); }
  ~RepairWorld() {
    for (Client& client : clients) {
      client.port->resume();
      close(std::exchange(client.session, nullptr));
    }
  }

  Client& add() {
    Client& added = clients.emplace_back();
    added.port = &this->client();
    added.session = open(*added.port);
    added.repairer = std::make_unique<Repairer>(*added.session, added.rows);
    return added;
  }
  // A client that stands still from now on, until the memory node has fenced it. What it leaves is written before.
  void end(Client& client) {
    const std::uint64_t before = node->stats().sessions_fenced;
    client.port->pause();
    ASSERT_TRUE(wait_until([&] { return node->stats().sessions_fenced > before; }));
  }

  template <class T>
  T& at(layout::RegionId region, std::uint64_t offset) {
    return *reinterpret_cast<T*>(memory.span().data() + geometry().at(region).offset + offset);
  }
  OperationSlot& words(std::uint64_t index) { return at<OperationSlot>(layout::kSlots, index * sizeof(OperationSlot)); }
  std::uint64_t& lock(std::uint64_t offset) { return at<std::uint64_t>(layout::kLocks, offset); }
  bool leases_are_free() {
    for (std::uint64_t i = 0; i < layout::kLeaseWords; ++i) {
      if (LeaseWord::held(at<std::uint64_t>(layout::kLeases, i * 8))) return false;
    }
    return true;
  }

  // Has the n-th slot of a client name locks, before any row is written. Returns the slot's index.
  std::uint64_t claim(const Client& client, std::vector<HeldLocks> locks, std::uint64_t n = 0) {
    const std::uint64_t index = client.first_slot() + n;
    OperationSlot& slot = words(index);
    slot.holder = client.incarnation();
    slot.sequence = Sequence::of(slot.number() + 1, Sequence::word(slot.sequence));
    slot.lock_word = {};
    std::copy(locks.begin(), locks.end(), slot.lock_word.begin());
    slot.seal_claim();
    return index;
  }
  // The same, in the middle of writing rows: with all its locks.
  std::uint64_t write(const Client& client, const std::vector<HeldLocks>& locks, std::uint64_t n = 0) {
    const std::uint64_t index = claim(client, locks, n);
    OperationSlot& slot = words(index);
    slot.keys_after = slot.keys + 3;
    slot.bytes_after = slot.bytes + 50;
    slot.seal_plan();
    for (const HeldLocks& held : locks) {
      if (held.mask != 0) lock(held.offset) |= held.mask;
    }
    return index;
  }

  Nanos in(Nanos time) { return network.now() + time; }
  Nanos timeout() const { return options.failure_timeout; }
  Status repair(Client& client, std::vector<std::uint64_t> slots, Nanos within = 20 * kSecond) {
    std::optional<Status> answer;
    run(repairing(client, std::move(slots), in(within), answer));
    return *answer;
  }
  Suspects accuse(Client& client, HeldLocks locks) {
    std::optional<Result<Suspects>> answer;
    run(accusing(client, locks, in(kSecond), answer));
    EXPECT_TRUE(answer->ok()) << answer->status().message();
    return answer->ok() ? **answer : Suspects();
  }
  Suspects accuse_again(Client& client, std::vector<Suspects::Unmoved> before) {
    std::optional<Result<Suspects>> answer;
    run(accusing_again(client, std::move(before), in(kSecond), answer));
    EXPECT_TRUE(answer->ok()) << answer->status().message();
    return answer->ok() ? **answer : Suspects();
  }
  Repairer::Swept sweep(Client& client) {
    std::optional<Result<Repairer::Swept>> answer;
    run(sweeping(client, in(20 * kSecond), answer));
    EXPECT_TRUE(answer->ok()) << answer->status().message();
    return answer->ok() ? **answer : Repairer::Swept();
  }

  std::deque<Client> clients;
};

// Lock words with leases of their own.
constexpr HeldLocks kFirst{16, 0b110}, kThird{0, 0b1}, kSame{8, 0b1000};

TEST(Repair, AnOperationThatWroteRowsIsFinished) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.write(dead, {kFirst, kThird, kSame});
  world.lock(kFirst.offset) |= 0b1000;  // somebody else's
  world.end(dead);
  EXPECT_EQ(std::ranges::count_if(
                world.log,
                [](const std::string& line) { return line.find("left an operation half done") != std::string::npos; }),
            1);
  ASSERT_TRUE(world.repair(living, {index}).ok());
  EXPECT_THAT(living.rows.numbers, ElementsAre(1u));
  EXPECT_EQ(world.words(index).holder, 0u);
  EXPECT_EQ(world.words(index).keys, 3u);
  EXPECT_EQ(world.words(index).bytes, 50u);
  EXPECT_EQ(world.words(index).done, 1u);
  EXPECT_EQ(world.lock(kFirst.offset), 0b1000u);
  EXPECT_EQ(world.lock(kThird.offset) | world.lock(kSame.offset), 0u);
  EXPECT_TRUE(world.leases_are_free());
  EXPECT_EQ(living.marks().finished, 1u);
  EXPECT_EQ(living.marks().repaired, 1u);
  EXPECT_EQ(living.marks().bits_released, 4u);
  EXPECT_EQ(living.marks().complaints, 1u);
  EXPECT_EQ(session::marks_of(*living.session, living.repairer.get()).complaints, 1u);
  EXPECT_EQ(session::marks_of(*living.session, nullptr).repaired, 0u);
  // Nothing is left to do.
  ASSERT_TRUE(world.repair(living, {index}).ok());
  EXPECT_THAT(living.rows.numbers, SizeIs(1));
  EXPECT_EQ(living.marks().repaired, 1u);
}

TEST(Repair, AnOperationThatIsDoneKeepsItsCounters) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.write(dead, {kFirst});
  world.words(index).done = 1;  // has landed, and the words beside it have not
  world.end(dead);
  ASSERT_TRUE(world.repair(living, {index}).ok());
  EXPECT_THAT(living.rows.numbers, IsEmpty());
  EXPECT_EQ(world.words(index).keys, 3u);
  EXPECT_EQ(world.lock(kFirst.offset), 0u);
  EXPECT_EQ(living.marks().finished, 0u);
}

TEST(Repair, OfLocksThatAreNamedThoseAreReleasedThatTheDeadHold) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.claim(dead, {kFirst, kSame});
  world.words(index).keys_after = 7;            // of an operation before
  world.lock(kFirst.offset) = 0b10 | kBarrier;  // a repairer that has ended left the barrier
  world.end(dead);
  ASSERT_TRUE(world.repair(living, {index}).ok());
  EXPECT_EQ(world.lock(kFirst.offset) | world.lock(kSame.offset), 0u);
  EXPECT_EQ(world.words(index).holder, 0u);
  EXPECT_EQ(world.words(index).keys, 0u);
  EXPECT_EQ(living.marks().barriers_found, 1u);
  EXPECT_EQ(living.marks().bits_released, 1u);
  EXPECT_EQ(living.marks().bits_spared, 2u);
  EXPECT_EQ(living.marks().waited_for, 0u);
  EXPECT_TRUE(world.leases_are_free());
}

TEST(Repair, AClaimThatIsTornHoldsNothing) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.claim(dead, {kFirst, {12, 1}});
  world.words(index).claim ^= 1;
  world.lock(kFirst.offset) = kFirst.mask;  // of others
  world.end(dead);
  ASSERT_TRUE(world.repair(living, {index}).ok());
  EXPECT_EQ(world.lock(kFirst.offset), kFirst.mask);
  EXPECT_EQ(world.words(index).holder, 0u);
  EXPECT_EQ(living.marks().unmade, 1u);
  EXPECT_EQ(living.marks().repaired, 1u);
}

TEST(Repair, AWordOfWhichNoLockIsNamedNeedNotBeThere) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const HeldLocks none{13, 0};
  const std::uint64_t claimed = world.claim(dead, {none, kFirst});
  const std::uint64_t written = world.write(dead, {none, kSame}, 1);
  world.lock(kFirst.offset) = kFirst.mask;
  world.end(dead);
  const Status status = world.repair(living, {claimed, written});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(world.lock(kFirst.offset) | world.lock(kSame.offset), 0u);
  EXPECT_EQ(world.words(claimed).holder | world.words(written).holder, 0u);
}

TEST(Repair, WhatNamesNoLockOrNoSlotIsSaid) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t odd = world.claim(dead, {{12, 1}});
  const std::uint64_t beyond = world.claim(dead, {{living.session->region_bytes(layout::kLocks), 1}}, 1);
  const std::uint64_t good = world.claim(dead, {kFirst}, 2);
  world.end(dead);
  for (const std::uint64_t bad : {odd, beyond}) {
    const Status status = world.repair(living, {bad, good});
    EXPECT_EQ(status.code(), Code::corrupt);
    EXPECT_THAT(status.message(), HasSubstr("operation slot " + std::to_string(bad) + " names a lock word"));
    EXPECT_EQ(world.words(good).holder, dead.incarnation()) << "the first trouble ends a repair";
  }
  const std::uint64_t slots = living.session->region_bytes(layout::kSlots) / sizeof(OperationSlot);
  EXPECT_EQ(world.repair(living, {slots}).code(), Code::invalid_argument);
  EXPECT_TRUE(living.session->alive());
}

TEST(Repair, NothingOfALivingClientIsTouched) {
  RepairWorld world;
  Client& other = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.write(other, {kFirst});
  ASSERT_TRUE(world.repair(living, {index, living.first_slot()}).ok());
  EXPECT_EQ(world.words(index).holder, other.incarnation());
  EXPECT_EQ(world.lock(kFirst.offset), kFirst.mask);
  EXPECT_EQ(living.marks().repaired, 0u);
  EXPECT_THAT(living.rows.numbers, IsEmpty());
}

TEST(Repair, WhatNoCrashExplainsIsQuarantined) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.write(dead, {kFirst});
  world.end(dead);
  living.rows.trouble = {Code::corrupt, "cannot be told yet"};
  EXPECT_THAT(world.repair(living, {index}).message(), HasSubstr("cannot be told yet"));
  EXPECT_EQ(world.words(index).done, 0u);
  EXPECT_TRUE(world.leases_are_free());
  living.rows.trouble = {};
  living.rows.wrong = "a row of a third kind";
  for (int round = 0; round < 2; ++round) {
    const Status status = world.repair(living, {index});
    EXPECT_EQ(status.code(), Code::locked);
    EXPECT_THAT(status.message(), HasSubstr("operation slot " + std::to_string(index)));
    EXPECT_THAT(status.message(), HasSubstr(round == 0 ? "a row of a third kind" : "is quarantined: no crash"));
    EXPECT_TRUE(world.words(index).quarantined());
    EXPECT_EQ(world.words(index).holder, dead.incarnation());
    EXPECT_EQ(world.lock(kFirst.offset), kFirst.mask);
    EXPECT_TRUE(world.leases_are_free());
  }
  EXPECT_THAT(living.rows.numbers, SizeIs(2));
  EXPECT_EQ(living.marks().quarantined, 1u);
  const Suspects suspects = world.accuse(living, kFirst);
  EXPECT_THAT(suspects.quarantined, HasSubstr("operation slot " + std::to_string(index)));
  EXPECT_THAT(suspects.ended, IsEmpty());
  const Repairer::Swept swept = world.sweep(living);
  EXPECT_EQ(swept.left, 1u);
  EXPECT_EQ(swept.repaired, 0u);
  EXPECT_THAT(swept.trouble, HasSubstr("quarantined"));
}

TEST(Repair, AWriterWithoutItsLockEndsTheSession) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.write(dead, {kFirst});
  world.lock(kFirst.offset) = 0b10;
  world.end(dead);
  EXPECT_FALSE(world.repair(living, {index}).ok());
  EXPECT_FALSE(living.session->alive());
  EXPECT_EQ(living.session->why().code(), Code::corrupt);
  EXPECT_THAT(living.session->why().message(), HasSubstr("lock word 2 was not held"));
}

// A living client names the lock that a dead one names: one of them holds it.
struct TwoNames : RepairWorld {
  TwoNames() : dead(add()), other(add()), living(add()) {
    index = claim(dead, {kFirst});
    witness = claim(other, {kSame, kFirst});
    lock(kFirst.offset) = kFirst.mask;
    end(dead);
  }
  void begin(Nanos within = 20 * kSecond) {
    scope.spawn(repairing(living, {index}, in(within), answer));
    pass(2 * kMillisecond);
    EXPECT_FALSE(answer);
    EXPECT_EQ(lock(kFirst.offset), kFirst.mask | kBarrier);
  }
  bool ends(Nanos within) {
    return wait_until([&] { return answer.has_value(); }, within);
  }

  Client& dead;
  Client& other;
  Client& living;
  std::uint64_t index = 0, witness = 0;
  std::optional<Status> answer;
  task::Scope scope;
};

TEST(Repair, AWitnessThatGivesTheLockBackIsWaitedFor) {
  TwoNames world;
  world.begin();
  world.pass(world.timeout() / 4);
  EXPECT_FALSE(world.answer);
  EXPECT_EQ(world.living.marks().waited_for, 1u);
  world.lock(kFirst.offset) &= ~0b10ull;  // the other bit is of the dead
  world.words(world.witness).holder = 0;
  ASSERT_TRUE(world.ends(10 * kMillisecond));
  EXPECT_TRUE(world.answer->ok()) << world.answer->message();
  EXPECT_EQ(world.lock(kFirst.offset), 0u);
  EXPECT_EQ(world.living.marks().bits_released, 1u);
  EXPECT_EQ(world.living.marks().bits_spared, 1u);
  EXPECT_TRUE(world.leases_are_free());
}

TEST(Repair, AWitnessThatTriesAgainHasNoLockFromThatWordOn) {
  TwoNames world;
  world.begin();
  OperationSlot& slot = world.words(world.witness);
  slot.sequence = Sequence::of(slot.number() + 1, 2);  // it waits for a word behind, and keeps this one
  world.pass(10 * kMillisecond);
  EXPECT_FALSE(world.answer);
  world.lock(kFirst.offset) &= ~0b10ull;
  slot.sequence = Sequence::of(slot.number() + 1, 1);
  ASSERT_TRUE(world.ends(10 * kMillisecond));
  EXPECT_TRUE(world.answer->ok()) << world.answer->message();
  EXPECT_EQ(world.lock(kFirst.offset), 0u);
}

TEST(Repair, AWitnessThatNeverMovesIsNotWaitedForBeyondTheDeadline) {
  TwoNames world;
  world.begin(world.timeout() / 2);
  ASSERT_TRUE(world.ends(world.timeout()));
  EXPECT_EQ(world.answer->code(), Code::timed_out);
  EXPECT_THAT(world.answer->message(), HasSubstr("before clients that wait for the same lock had moved on"));
  EXPECT_EQ(world.lock(kFirst.offset), kFirst.mask) << "the barrier is lowered, and nothing is released";
  EXPECT_EQ(world.words(world.index).holder, world.dead.incarnation());
  EXPECT_TRUE(world.leases_are_free());
  EXPECT_TRUE(world.living.session->alive());
}

TEST(Repair, AWitnessThatNeverMovesIsFenced) {
  TwoNames world;
  world.begin();
  ASSERT_TRUE(world.ends(2 * world.timeout()));
  EXPECT_TRUE(world.answer->ok()) << world.answer->message();
  EXPECT_FALSE(world.other.session->alive());
  EXPECT_EQ(world.lock(kFirst.offset), 0u) << "neither has a row to write";
  EXPECT_EQ(world.words(world.witness).holder, world.other.incarnation()) << "its own repair is another";
}

TEST(Repair, EachWitnessIsWaitedFor) {
  TwoNames world;
  const std::uint64_t second = world.claim(world.other, {kFirst}, 1);
  world.begin();
  world.words(world.witness).holder = 0;
  world.pass(10 * kMillisecond);
  EXPECT_FALSE(world.answer);
  EXPECT_EQ(world.living.marks().waited_for, 2u);
  world.words(second).holder = 0;
  ASSERT_TRUE(world.ends(10 * kMillisecond));
  EXPECT_TRUE(world.answer->ok()) << world.answer->message();
}

// Its last verbs land until the memory node says that it has ended.
TEST(Repair, AWitnessIsLookedAtAgainWhenItHasEnded) {
  TwoNames world;
  world.begin();
  ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions_fenced == 2; }));
  world.words(world.witness).seal_plan();
  ASSERT_TRUE(world.ends(10 * kMillisecond));
  EXPECT_TRUE(world.answer->ok()) << world.answer->message();
  EXPECT_EQ(world.lock(kFirst.offset), kFirst.mask) << "the witness writes rows under it";
}

TEST(Repair, ADeadWitnessThatWroteRowsKeepsItsLocks) {
  for (const bool quarantined : {false, true}) {
    TwoNames world;
    world.write(world.other, {kSame, {kFirst.offset, 0b10}});
    if (quarantined) world.words(world.witness).done = OperationSlot::kQuarantined;
    world.end(world.other);
    ASSERT_TRUE(world.repair(world.living, {world.index}).ok());
    EXPECT_EQ(world.lock(kFirst.offset), 0b10u);
    EXPECT_EQ(world.lock(kSame.offset), kSame.mask);
    EXPECT_EQ(world.words(world.index).holder, 0u);
    const Status status = world.repair(world.living, {world.witness});
    EXPECT_EQ(status.ok(), !quarantined) << status.message();
    EXPECT_EQ(world.lock(kFirst.offset), quarantined ? 0b10u : 0u);
  }
}

// A client never reports itself.
TEST(Repair, AWitnessMayBeOfTheRepairerItself) {
  TwoNames world;
  world.words(world.witness).holder = 0;
  const std::uint64_t own = world.claim(world.living, {kFirst});
  world.begin();
  world.pass(2 * world.timeout());
  EXPECT_FALSE(world.answer);
  EXPECT_TRUE(world.living.session->alive());
  EXPECT_EQ(world.living.marks().complaints, 1u);
  world.words(own).holder = 0;
  ASSERT_TRUE(world.ends(10 * kMillisecond));
  EXPECT_TRUE(world.answer->ok()) << world.answer->message();
}

TEST(Repair, AWordThatChangesBehindItsBarrierEndsTheSession) {
  TwoNames world;
  world.begin();
  world.lock(kFirst.offset) = 0;
  world.words(world.witness).holder = 0;
  ASSERT_TRUE(world.ends(10 * kMillisecond));
  EXPECT_FALSE(world.living.session->alive());
  EXPECT_EQ(world.living.session->why().code(), Code::corrupt);
  EXPECT_THAT(world.living.session->why().message(), HasSubstr("lock word 2 changed while it was barred"));
}

TEST(Repair, SuspectsAreTheSlotsThatNameTheLock) {
  RepairWorld world;
  Client& dead = world.add();
  Client& other = world.add();
  Client& living = world.add();
  const std::uint64_t ended = world.claim(dead, {{kFirst.offset, 0b10}});
  world.claim(dead, {kSame}, 1);
  const std::uint64_t suspect = world.claim(other, {{kFirst.offset, 0b100}});
  world.claim(living, {kFirst});  // its own
  world.end(dead);
  Suspects found = world.accuse(living, kFirst);
  EXPECT_THAT(found.ended, ElementsAre(ended));
  EXPECT_THAT(found.quarantined, IsEmpty());
  EXPECT_THAT(found.living, HasSubstr("operation slot " + std::to_string(suspect)));
  ASSERT_THAT(found.unmoved, SizeIs(1));
  EXPECT_EQ(found.unmoved[0].slot, suspect);
  EXPECT_EQ(found.unmoved[0].holder, other.incarnation());
  EXPECT_THAT(world.accuse(living, {kFirst.offset, 0b10}).living, IsEmpty());
  EXPECT_THAT(world.accuse(living, {kFirst.offset, 0b1000}).ended, IsEmpty());
  // A repairer that has barred the word repairs a slot that names some lock of it.
  EXPECT_THAT(world.accuse(living, {kFirst.offset, kBarrier}).ended, ElementsAre(ended));

  const std::vector<Suspects::Unmoved> before = found.unmoved;
  world.pass(world.timeout());
  OperationSlot& slot = world.words(suspect);
  for (const bool other_holder : {false, true}) {
    const OperationSlot as_it_was = slot;
    (other_holder ? slot.holder : slot.sequence) += 1 << 8;
    found = world.accuse_again(living, before);
    EXPECT_THAT(found.living, IsEmpty());
    EXPECT_THAT(found.unmoved, IsEmpty());
    EXPECT_THAT(found.ended, IsEmpty());
    slot = as_it_was;
  }
  EXPECT_TRUE(other.session->alive());
  found = world.accuse_again(living, before);
  EXPECT_THAT(found.ended, ElementsAre(suspect)) << "it stood still for the failure timeout";
  EXPECT_TRUE(world.wait_until([&] { return !other.session->alive(); }));
}

TEST(Repair, ASweepRepairsAllThatTheDeadLeft) {
  RepairWorld world;
  Client& dead = world.add();
  Client& other = world.add();
  Client& living = world.add();
  const std::uint64_t first = world.write(dead, {kFirst});
  const std::uint64_t second = world.claim(dead, {kSame}, 2);
  const std::uint64_t lives = world.claim(other, {kThird});
  const std::uint64_t own = world.claim(living, {kThird});
  world.lock(kSame.offset) = kSame.mask;
  std::optional<Status> stops;
  world.end(dead);
  // A repairer that ends after its last step leaves its lease.
  std::uint64_t& lease = world.at<std::uint64_t>(layout::kLeases, 3 * 8);
  lease = LeaseWord::held_by(lease, dead.session->grant().session_id);
  const Repairer::Swept swept = world.sweep(living);
  EXPECT_EQ(swept.repaired, 2u);
  EXPECT_EQ(swept.left, 0u);
  EXPECT_EQ(swept.trouble, "");
  EXPECT_EQ(world.words(first).holder | world.words(second).holder, 0u);
  EXPECT_EQ(world.lock(kFirst.offset) | world.lock(kSame.offset), 0u);
  EXPECT_EQ(world.words(lives).holder, other.incarnation());
  EXPECT_EQ(world.words(own).holder, living.incarnation());
  EXPECT_TRUE(world.leases_are_free());
  EXPECT_EQ(living.marks().complaints, 2u) << "a sweep asks, and reports nobody that lives";
  EXPECT_EQ(session::marks_of(*living.session, living.repairer.get()).leases_stolen, 1u);
}

TEST(Repair, OperationsOfOneClientRepairOneAfterTheOther) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t one = world.write(dead, {kFirst});
  const std::uint64_t two = world.write(dead, {kSame}, 1);
  world.end(dead);
  task::Event go;
  living.rows.go = &go;
  std::optional<Status> first, second, third;
  task::Scope scope;
  scope.spawn(repairing(living, {one}, world.in(20 * kSecond), first));
  ASSERT_TRUE(world.wait_until([&] { return living.rows.numbers.size() == 1; }));
  scope.spawn(repairing(living, {two}, world.in(kMillisecond), second));
  scope.spawn(repairing(living, {two}, world.in(20 * kSecond), third));
  ASSERT_TRUE(world.wait_until([&] { return second.has_value(); }, 2 * kMillisecond));
  EXPECT_EQ(second->code(), Code::timed_out);
  EXPECT_THAT(second->message(), HasSubstr("while another operation of this client repaired"));
  EXPECT_THAT(living.rows.numbers, SizeIs(1));
  EXPECT_FALSE(third);
  go.set();
  ASSERT_TRUE(world.wait_until([&] { return first && third; }, kSecond));
  EXPECT_TRUE(first->ok() && third->ok());
  EXPECT_EQ(living.marks().finished, 2u);
}

// At whatever moments they meet.
TEST(Repair, SeveralClientsRepairASlotOnce) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    RepairWorld world(seed);
    Client& dead = world.add();
    Client& one = world.add();
    Client& other = world.add();
    const bool writes = seed % 3 == 0, torn = seed % 3 == 1;
    const std::uint64_t index = writes ? world.write(dead, {kFirst, kThird}) : world.claim(dead, {kFirst, kThird});
    if (torn) world.words(index).claim ^= 1;
    world.lock(kFirst.offset) = torn ? 0 : kFirst.mask;
    world.end(dead);
    std::optional<Status> first, second;
    task::Scope scope;
    scope.spawn(repairing(one, {index}, world.in(20 * kSecond), first));
    world.pass(static_cast<Nanos>(seed) * kMicrosecond);
    scope.spawn(repairing(other, {index}, world.in(20 * kSecond), second));
    ASSERT_TRUE(world.wait_until([&] { return first && second; }));
    EXPECT_TRUE(first->ok()) << first->message();
    EXPECT_TRUE(second->ok()) << second->message();
    EXPECT_EQ(one.marks().repaired + other.marks().repaired, 1u) << seed;
    EXPECT_EQ(one.marks().finished + other.marks().finished, writes ? 1u : 0u);
    EXPECT_EQ(one.marks().unmade + other.marks().unmade, torn ? 1u : 0u);
    EXPECT_EQ(world.lock(kFirst.offset) | world.lock(kThird.offset), 0u);
    EXPECT_EQ(world.words(index).holder, 0u);
    EXPECT_TRUE(world.leases_are_free());
  }
}

TEST(Repair, RepairersOfDifferentSlotsDoNotWaitForEachOtherForEver) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    RepairWorld world(seed);
    Client& dead = world.add();
    Client& one = world.add();
    Client& other = world.add();
    const std::uint64_t forth = world.claim(dead, {kThird, kFirst}), back = world.claim(dead, {kFirst, kThird}, 1);
    world.end(dead);
    std::optional<Status> first, second;
    task::Scope scope;
    scope.spawn(repairing(one, {forth}, world.in(20 * kSecond), first));
    scope.spawn(repairing(other, {back}, world.in(20 * kSecond), second));
    ASSERT_TRUE(world.wait_until([&] { return first && second; }));
    EXPECT_TRUE(first->ok() && second->ok()) << first->message() << second->message();
    EXPECT_EQ(one.marks().repaired + other.marks().repaired, 2u);
  }
}

TEST(Repair, ARepairHasTheLeasesOfAllWordsOrBeginsNothing) {
  RepairWorld world;
  Client& dead = world.add();
  Client& other = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.write(dead, {kFirst, kThird, kSame});
  world.end(dead);
  task::Event go;
  living.rows.go = &go;
  std::optional<Status> answer;
  const auto lease = [&](const HeldLocks& held) -> std::uint64_t& {
    return world.at<std::uint64_t>(layout::kLeases,
                                   8 * layout::lease_of(held.offset, world.geometry().at(layout::kLocks).bytes));
  };
  // Another repairer has one of them.
  lease(kSame) = LeaseWord::held_by(lease(kSame), other.session->grant().session_id);
  EXPECT_EQ(world.repair(living, {index}, 10 * kMillisecond).code(), Code::timed_out);
  EXPECT_THAT(living.rows.numbers, IsEmpty());
  EXPECT_FALSE(LeaseWord::held(lease(kThird)));
  EXPECT_EQ(world.words(index).holder, dead.incarnation());
  const session::RepairMarks marks = session::marks_of(*living.session, living.repairer.get());
  EXPECT_EQ(marks.complaints, living.marks().complaints + living.session->leases().marks().complaints);
  EXPECT_GT(marks.complaints, living.marks().complaints);
  EXPECT_GT(marks.lease_waits, 0u);
  lease(kSame) = LeaseWord::released(lease(kSame));

  task::Scope scope;
  scope.spawn(repairing(living, {index}, world.in(20 * kSecond), answer));
  ASSERT_TRUE(world.wait_until([&] { return !living.rows.numbers.empty(); }));
  for (const HeldLocks& held : {kFirst, kThird, kSame}) EXPECT_TRUE(LeaseWord::held(lease(held))) << held.offset;
  go.set();
  ASSERT_TRUE(world.wait_until([&] { return answer.has_value(); }));
  EXPECT_TRUE(answer->ok()) << answer->message();
  EXPECT_TRUE(world.leases_are_free());
}

TEST(Repair, WordsThatShareALeaseNeedItOnce) {
  RepairWorld world;
  world.kill();
  world.options.geometry.table_percent = 50;
  world.options.geometry.rows_per_lock = 1;
  world.memory = std::move(*Memory::anonymous(16 << 20));
  world.begin_life();
  world.node->stand_alone();
  ASSERT_EQ(layout::lease_of(0, world.geometry().at(layout::kLocks).bytes),
            layout::lease_of(8, world.geometry().at(layout::kLocks).bytes));
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t index = world.claim(dead, {kThird, kSame});
  world.end(dead);
  const Status status = world.repair(living, {index}, kSecond);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(living.marks().repaired, 1u);
}

// Verbs of its holder land until the memory node says that it has ended.
TEST(Repair, AClientThatIsBeingEndedIsWaitedFor) {
  for (const bool in_time : {true, false}) {
    RepairWorld world;
    Client& other = world.add();
    Client& living = world.add();
    const std::uint64_t index = world.claim(other, {kFirst});
    other.port->pause();
    ASSERT_TRUE(world.repair(living, {index}).ok());
    EXPECT_EQ(living.marks().repaired, 0u) << "it may live";
    world.pass(world.timeout());
    task::Event go;
    living.rows.go = &go;
    std::optional<Status> answer;
    task::Scope scope;
    scope.spawn(repairing(living, {index}, in_time ? world.in(20 * kSecond) : world.in(kMicrosecond), answer));
    ASSERT_TRUE(world.wait_until([&] { return world.node->stats().sessions_fenced == 1; }));
    world.write(other, {kSame});
    if (!in_time) {
      ASSERT_TRUE(world.wait_until([&] { return answer.has_value(); }, 10 * kMillisecond));
      EXPECT_EQ(answer->code(), Code::timed_out);
      EXPECT_THAT(answer->message(), HasSubstr("before a client that had stopped was fenced"));
      continue;
    }
    ASSERT_TRUE(world.wait_until([&] { return !living.rows.numbers.empty(); }));
    EXPECT_TRUE(LeaseWord::held(world.at<std::uint64_t>(
        layout::kLeases, 8 * layout::lease_of(kSame.offset, world.geometry().at(layout::kLocks).bytes))));
    go.set();
    ASSERT_TRUE(world.wait_until([&] { return answer.has_value(); }));
    EXPECT_TRUE(answer->ok()) << answer->message();
    EXPECT_EQ(world.words(index).holder, 0u);
    EXPECT_EQ(world.lock(kSame.offset), 0u);
  }
}

TEST(Repair, AllSlotsAreRepairedThatWereNamed) {
  RepairWorld world;
  Client& dead = world.add();
  Client& living = world.add();
  const std::uint64_t one = world.claim(dead, {kFirst}), other = world.claim(dead, {kFirst}, 2);
  world.end(dead);
  ASSERT_TRUE(world.repair(living, {one, other}).ok());
  EXPECT_EQ(living.marks().repaired, 2u);
}

// Whatever step its session ends at, an operation says so soon.
TEST(Repair, EndsWithItsSession) {
  enum class What { claimed, written, done, quarantined, sweep, accuse, judge, judge_again };
  for (const What what : {What::claimed, What::written, What::done, What::quarantined, What::sweep, What::accuse,
                          What::judge, What::judge_again}) {
    int ended = 0;
    const bool repairs = what <= What::quarantined;
    for (Nanos at = 1; at < (repairs || what == What::sweep ? 240 : 60) * kMicrosecond; at += 2 * kMicrosecond) {
      TwoNames world;
      session::Suspicion suspicion(*world.living.session, *world.living.repairer);
      suspicion.blocked(kFirst.offset, kFirst.mask);
      OperationSlot& slot = world.words(world.index);
      if (repairs && what != What::claimed) slot.seal_plan();
      if (repairs ? what != What::claimed : what == What::sweep) world.words(world.witness).holder = 0;
      if (what == What::done) slot.done = slot.number();
      if (what == What::quarantined) world.living.rows.wrong = "a row of a third kind";
      if (what == What::claimed && ended % 2 == 0) world.end(world.other);
      world.pass(world.timeout() / 8);
      const Nanos deadline = world.in(20 * kSecond);
      std::optional<Result<Repairer::Swept>> swept;
      std::optional<Result<Suspects>> accused;
      std::optional<Result<bool>> judged;
      if (what == What::judge_again) {
        slot.holder = 0;
        world.run(judging(suspicion, deadline, world.living.cost, judged));
        EXPECT_FALSE(**judged);
        judged.reset();
        world.pass(world.timeout() / 8);
      }
      const auto told = [&]() -> std::optional<Status> {
        if (swept) return swept->status();
        if (accused) return accused->status();
        if (judged) return judged->status();
        return world.answer;
      };
      world.scope.spawn(repairs                ? repairing(world.living, {world.index}, deadline, world.answer)
                        : what == What::sweep  ? sweeping(world.living, deadline, swept)
                        : what == What::accuse ? accusing(world.living, kFirst, deadline, accused)
                                               : judging(suspicion, deadline, world.living.cost, judged));
      world.pass(at);
      if (told()) continue;
      const bool done = repairs && (slot.holder == 0 || slot.quarantined());  // only its leases are left
      world.living.session->end({Code::stale, "the test ends it"});
      ASSERT_TRUE(world.wait_until([&] { return told().has_value(); }, 3 * kMillisecond)) << at;
      if (done) continue;
      EXPECT_EQ(told()->code(), Code::stale) << at;
      EXPECT_THAT(told()->message(), HasSubstr("the test ends it")) << at;
      ++ended;
    }
    EXPECT_GE(ended, 3) << static_cast<int>(what);
  }
}

Task<void> repairing_suspects(session::Suspicion& suspicion, Nanos deadline, Cost& cost,
                              std::optional<Status>& answer) {
  answer = co_await suspicion.repair(deadline, cost);
}

struct Judge : RepairWorld {
  Result<bool> judge(Nanos within = 100 * kSecond) {
    std::optional<Result<bool>> answer;
    run(judging(suspicion, in(within), living.cost, answer));
    return *answer;
  }

  Client& dead = add();
  Client& living = add();
  session::Suspicion suspicion{*living.session, *living.repairer};
};

TEST(Suspicion, ComesWhenAPlaceStaysTaken) {
  Judge world;
  EXPECT_FALSE(*world.judge(0)) << "nothing is blocked";
  const std::uint64_t index = world.claim(world.dead, {kFirst});
  world.lock(kFirst.offset) = kFirst.mask;
  const Nanos begun = world.network.now();
  const auto complaints = [&] { return world.living.marks().complaints; };
  bool over = false;
  while (!over && world.network.now() < begun + 4 * world.timeout()) {
    world.suspicion.blocked(kFirst.offset, kFirst.mask);
    const Result<bool> judged = world.judge();
    ASSERT_TRUE(judged.ok()) << judged.status().message();
    over = *judged;
    if (world.network.now() < begun + world.timeout() / 8) EXPECT_EQ(complaints(), 0u) << "it may be contention";
    world.pass(kMillisecond);
  }
  ASSERT_TRUE(over);
  EXPECT_GE(world.network.now() - begun, world.timeout());
  EXPECT_LE(complaints(), 10u) << "it looks eight times in the failure timeout";
  EXPECT_FALSE(world.dead.session->alive());
  std::optional<Status> repaired;
  world.run(repairing_suspects(world.suspicion, world.in(kSecond), world.living.cost, repaired));
  EXPECT_TRUE(repaired->ok()) << repaired->message();
  EXPECT_EQ(world.words(index).holder, 0u);
  EXPECT_EQ(world.lock(kFirst.offset), 0u);
  EXPECT_FALSE(*world.judge(0)) << "it begins anew";
}

TEST(Suspicion, BeginsAnewWhenBitsComeFreeOrAnotherPlaceIsBlocked) {
  Judge world;
  world.claim(world.dead, {kFirst, kSame});
  const auto complaints = [&] { return world.living.marks().complaints; };
  const std::function<void()> changes[] = {
      [&] { world.suspicion.blocked(kSame.offset, kSame.mask); },
      [&] { world.suspicion.blocked(kFirst.offset, 0b100); },
      [&] {
        world.suspicion.came_free(kFirst.offset);
        world.suspicion.blocked(kFirst.offset, 0b10);
      },
  };
  for (const auto& change : changes) {
    world.suspicion.came_free(kFirst.offset);
    world.suspicion.came_free(kSame.offset);
    world.suspicion.blocked(kFirst.offset, 0b10);
    world.pass(world.timeout() / 8);
    change();
    EXPECT_FALSE(*world.judge());
    EXPECT_EQ(complaints(), 0u);
  }
  // A bit that stays is the one.
  for (const bool names_it : {false, true}) {
    world.claim(world.dead, {{kFirst.offset, names_it ? 0b100u : 0b010u}});
    world.suspicion.came_free(kFirst.offset);
    world.suspicion.blocked(kFirst.offset, 0b110);
    world.pass(world.timeout() / 8);
    world.suspicion.blocked(kFirst.offset, 0b100);
    EXPECT_FALSE(*world.judge());
    EXPECT_EQ(complaints(), names_it ? 1u : 0u);
  }
}

TEST(Suspicion, OfAnotherPlaceIsOfItsHolder) {
  Judge world;
  Client& other = world.add();
  world.claim(world.dead, {kFirst});
  const std::uint64_t suspect = world.claim(other, {kSame});
  for (const HeldLocks& place : {kFirst, kSame}) {
    world.suspicion.blocked(place.offset, place.mask);
    world.pass(world.timeout() / 8);
    EXPECT_FALSE(*world.judge());
  }
  world.pass(world.timeout());
  EXPECT_THAT(world.accuse(world.living, kSame).ended, ElementsAre(suspect)) << "it was reported then";
}

TEST(Suspicion, SaysWhoMayHoldThePlaceWhenTheDeadlineIsNear) {
  Judge world;
  const std::uint64_t index = world.claim(world.dead, {kFirst});
  world.suspicion.blocked(kFirst.offset, kFirst.mask);
  world.suspicion.came_free(kSame.offset);
  world.pass(world.timeout() / 8);
  Result<bool> judged = world.judge(world.timeout() / 128);
  EXPECT_EQ(judged.code(), Code::timed_out);
  EXPECT_THAT(judged.status().message(), HasSubstr("lock word 2 has been taken for 62 ms by one of client"));
  EXPECT_THAT(judged.status().message(), HasSubstr("operation slot " + std::to_string(index)));
  world.words(index).holder = 0;
  judged = world.judge(world.timeout() / 128);
  EXPECT_THAT(judged.status().message(), HasSubstr("and no operation slot names a holder"));
}

TEST(Suspicion, SaysThatAPersonHasToLook) {
  Judge world;
  const std::uint64_t index = world.claim(world.dead, {kFirst});
  world.words(index).done = OperationSlot::kQuarantined;
  world.end(world.dead);
  world.pass(5 * kSecond);
  EXPECT_GT(world.living.session->dead(), 0u);
  world.suspicion.blocked(kFirst.offset, kFirst.mask);
  world.pass(world.timeout() / 64);  // of a pool with known deaths
  const Result<bool> judged = world.judge();
  EXPECT_EQ(judged.code(), Code::locked);
  EXPECT_THAT(judged.status().message(), HasSubstr("a person has to look"));
}

}  // namespace
}  // namespace farpool::node
