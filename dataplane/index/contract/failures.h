// SPDX-License-Identifier: Apache-2.0
// Part of the suite of index protocols (suite.h): what operations cost, and, where a wire has Faults, clients that die
// after any effect of an operation and answers that get lost. Every branch of every protocol, and every way to die:
// sim/crash.h.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "index/contract/suite.h"

namespace farpool::index::contract {

// ---- costs ----------------------------------------------------------------------------------------------------------

class Costs : public Suite {};

TEST_P(Costs, AreWithinTheBudget) {
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  const std::vector<std::size_t> sizes{1, 100};
  for (const std::size_t bytes : sizes) {  // blocks are fetched once in a while; that is not what this is about
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(a.put("warm", std::string(bytes, 'w')).ok());
      ASSERT_TRUE(*a.remove("warm"));
    }
  }
  const Budget& budget = sample.budget;
  std::uint64_t known = 0;
  const auto within = [&](std::uint32_t trips, const char* what, std::size_t bytes) {
    EXPECT_GE(a.cost.trips, 1u) << what;
    // Some keys are known to cost more, and counted.
    const std::uint64_t now = sample.one_more == nullptr ? 0 : marked(*bed, sample.one_more);
    const std::uint64_t more = now - std::exchange(known, now);
    EXPECT_LE(a.cost.trips, trips + more) << what << " of " << bytes << " bytes";
  };
  for (int i = 0; i < 20; ++i) {
    const std::size_t bytes = sizes[static_cast<std::size_t>(i) % sizes.size()];
    const std::string key = "key" + std::to_string(i), value(bytes, 'v');
    EXPECT_EQ(*a.lookup(key), std::nullopt);
    within(budget.lookup_miss, "a lookup that finds nothing", bytes);
    EXPECT_FALSE(*a.update(key, value));
    within(budget.refusal, "an update of an absent key", bytes);
    EXPECT_FALSE(*a.remove(key));
    within(budget.refusal, "a remove of an absent key", bytes);
    EXPECT_TRUE(*a.insert(key, value));
    within(budget.insert, "an insert", bytes);
    EXPECT_FALSE(*a.insert(key, value));
    within(budget.refusal, "an insert of a present key", bytes);
    EXPECT_EQ(*a.lookup(key), value);
    within(budget.lookup_hit, "a lookup", bytes);
    EXPECT_TRUE(*a.update(key, value));
    within(budget.update, "an update", bytes);
    EXPECT_TRUE(*a.put(key, value));
    within(budget.update, "a put", bytes);
    Appender nothing("");
    EXPECT_TRUE(*a.modify(key, nothing));
    within(budget.modify != 0 ? budget.modify : budget.update, "a modify", bytes);
    EXPECT_TRUE(*a.remove(key));
    within(budget.remove, "a remove", bytes);
  }
  expect_sound(*bed);
}

// ---- deaths and lost answers ----------------------------------------------------------------------------------------

class Failures : public Suite {};

// An operation on one key, and what the key has before and after it.
struct Doomed {
  const char* name;
  std::optional<std::string> before, after;
  Result<bool> (*begin)(User& user);
};
inline const std::string& large() {
  static const std::string value(100, 'L');
  return value;
}
inline Result<bool> append_x(User& user) {
  Appender append("x");
  return user.modify("k", append);
}
inline std::vector<Doomed> doomed() {
  return {
      {"insert", std::nullopt, "new", [](User& u) { return u.insert("k", "new"); }},
      {"insert with a block", std::nullopt, large(), [](User& u) { return u.insert("k", large()); }},
      {"update", "old", "new", [](User& u) { return u.update("k", "new"); }},
      {"update to a block", "old", large(), [](User& u) { return u.update("k", large()); }},
      {"update from a block", large(), "new", [](User& u) { return u.update("k", "new"); }},
      {"put", "old", "new", [](User& u) { return u.put("k", "new"); }},
      {"put of an absent key", std::nullopt, large(), [](User& u) { return u.put("k", large()); }},
      {"remove", "old", std::nullopt, [](User& u) { return u.remove("k"); }},
      {"remove with a block", large(), std::nullopt, [](User& u) { return u.remove("k"); }},
      {"modify", "old", "oldx", append_x},
      {"modify of an absent key", std::nullopt, "x", append_x},
  };
}

inline Task<void> sweep_and_keep_house(Member& member, std::string& trouble) {
  Cost cost;
  const auto swept = co_await member.table().sweep(member.port().now() + kPatience, cost);
  if (!swept.ok()) trouble = text(swept.status());
  if (swept.ok() && swept->left > 0) trouble = swept->trouble;
  for (int i = 0; i < 12; ++i) {
    co_await member.table().maintain(member.port().now() + base::kSecond);
    if (member.table().heap() != nullptr) co_await member.table().heap()->maintain(member.port().now() + base::kSecond);
    co_await member.port().sleep_for(member.session().grant().tick);
  }
}

// Nothing of the dead is left but memory.
inline void expect_repaired(Bed& bed, Member& by) {
  bed.quiesce();
  const auto& grant = by.session().grant();
  const node::Audit audit = node::audit_regions(bed.geometry(), bed.memory(), grant.table_seed, grant.pool_secret);
  const std::uint64_t owned = leases_of_owners(bed, audit);
  EXPECT_LE(owned, 1u);
  for (const node::Finding& finding : audit.findings) {
    // Keys of the dead that nobody has counted, and blocks that nobody has looked for yet.
    if (finding.wrong == node::Wrong::counters_off || finding.wrong == node::Wrong::blocks_lost) continue;
    if (finding.wrong == node::Wrong::lease_held && owned > 0) continue;
    ADD_FAILURE() << finding.what;
  }
  EXPECT_EQ(audit.damage(), 0u);
  EXPECT_EQ(audit.lock_bits + audit.barriers + audit.leases.size() + audit.half_done.slots.size(), owned);
  if (const session::Repairer* repairer = by.table().repairer()) EXPECT_EQ(repairer->marks().quarantined, 0u);
}

TEST_P(Failures, AfterADeathAtAnyEffectOthersSeeTheKeyAsBeforeOrAfter) {
  for (const Doomed& operation : doomed()) {
    SCOPED_TRACE(operation.name);
    std::uint64_t effects = 0, as_before = 0;
    for (bool died = true; died; ++effects) {
      SCOPED_TRACE("after " + std::to_string(effects) + " effects");
      ASSERT_LT(effects, 1000u) << "it has no end";
      const auto bed = make(sample.few, effects + 1);
      User a(*bed), b(*bed), victim(*bed);
      for (const std::size_t bytes : {1u, 100u})
        ASSERT_FALSE(*victim.put("warm" + std::to_string(bytes), std::string(bytes, 'w')));
      if (operation.before) ASSERT_FALSE(*a.put("k", *operation.before));
      bed->quiesce();
      bed->faults()->crash_after(victim.member, effects);
      const auto done = operation.begin(victim);
      if (victim.member.lives()) bed->quiesce();
      died = !victim.member.lives();
      if (!died) bed->faults()->crash_after(victim.member, ~0ull >> 1);
      if (!died) EXPECT_TRUE(done.ok()) << text(done.status());
      // What the dead had planned may take effect at any time, when somebody finishes it, but only once.
      bool over = !died;
      const auto see = [&](User& user) {
        const auto found = user.lookup("k");
        ASSERT_TRUE(found.ok()) << text(found.status());
        EXPECT_TRUE(*found == operation.after || (!over && *found == operation.before)) << found->value_or("nothing");
        over = over || *found == operation.after;
        as_before += over ? 0 : 1;
      };
      ASSERT_NO_FATAL_FAILURE(see(b));
      ASSERT_NO_FATAL_FAILURE(see(a));
      EXPECT_EQ(*a.lookup("warm100"), std::string(100, 'w'));
      const auto put = a.put("k", "mine");
      ASSERT_TRUE(put.ok()) << text(put.status());
      EXPECT_TRUE(*put == operation.after.has_value() || (!over && *put == operation.before.has_value()));
      EXPECT_EQ(*b.lookup("k"), "mine");
      if (!died) {
        expect_sound(*bed);
        break;
      }
      ASSERT_TRUE(bed->faults()->death_is_noticed());
      std::string trouble;
      bed->run(a.member, sweep_and_keep_house(a.member, trouble));
      EXPECT_EQ(trouble, "");
      expect_repaired(*bed, a.member);
      EXPECT_EQ(*b.lookup("k"), "mine");
      if (HasFailure()) return;
    }
    EXPECT_GT(effects, 1u) << "it has no effects";
    EXPECT_GT(as_before, 0u);
  }
}

TEST_P(Failures, ALostReplyIsUnknownOnlyWhereTheWriteMayHaveLanded) {
  int unknown = 0, unavailable = 0, succeeded = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto bed = make(sample.tables[0], seed);
    User a(*bed);
    ASSERT_FALSE(*a.put("apple", "red"));
    bed->faults()->lose_replies(0.3);
    const auto put = a.put("apple", "green");
    bed->faults()->lose_replies(0);
    bed->faults()->land(a.member);
    User b(*bed);
    const auto found = b.lookup("apple");
    ASSERT_TRUE(found.ok()) << text(found.status());
    switch (put.code()) {
      case Code::ok:
        ++succeeded;
        EXPECT_EQ(*found, "green");
        break;
      case Code::unavailable:
        ++unavailable;
        EXPECT_EQ(*found, "red") << "it said that nothing was done";
        break;
      default:
        EXPECT_EQ(put.code(), Code::unknown_outcome) << text(put.status());
        EXPECT_TRUE(*found == "red" || *found == "green");
        ++unknown;
    }
    if (put.ok()) continue;
    EXPECT_FALSE(a.member.session().alive()) << "nobody knows what it holds: this life has ended";
    EXPECT_EQ(a.put("pear", "x").code(), Code::unavailable);
    EXPECT_EQ(a.lookup("pear").code(), Code::unavailable);
  }
  EXPECT_GT(unknown, 0);
  if (sample.budget.update > 1) EXPECT_GT(unavailable, 0);  // no trip came before the one that changes something
  EXPECT_GT(succeeded, 0);
}

}  // namespace farpool::index::contract
