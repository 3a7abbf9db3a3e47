// SPDX-License-Identifier: Apache-2.0
// What only this table does, over the simulated wire, which is weak, seeded, and set to tear. index/contract has what
// every table does.
#include "index/rcuckoo/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/verify.h"
#include "sim/world.h"

namespace farpool::rcuckoo {
namespace {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using sim::Client;
using sim::World;
using sim::WorldOptions;
using task::Task;

constexpr Nanos kPatience = 5 * base::kSecond;

// About `rows` rows of 8 entries, and a heap of 12 MiB and more.
WorldOptions options_of(std::uint64_t rows, std::uint64_t seed = 1, std::uint64_t entry_bytes = 16) {
  WorldOptions options;
  options.wire.seed = seed;
  options.geometry = {.memory_bytes = 16 << 20,
                      .entry_bytes = entry_bytes,
                      .entries_per_row = 8,
                      .rows_per_lock = 16,
                      .max_sessions = 8,
                      .slots_per_session = 4};
  // The table's share is in percent: rounds down by making the memory large enough.
  const std::uint64_t table = rows * (entry_bytes * 8 + kRowTrailer);
  options.geometry.table_percent = std::max<std::uint64_t>(1, table * 100 / options.geometry.memory_bytes);
  return options;
}

std::string text(const Status& status) { return std::string(base::name_of(status.code())) + ": " + status.message(); }

// Runs one operation of one client to its end.
template <class T>
Task<void> keep(Task<Result<T>> task, std::optional<Result<T>>* into) {
  into->emplace(co_await std::move(task));
}
template <class T>
Result<T> run(World& world, Client& client, Task<Result<T>> task) {
  std::optional<Result<T>> result;
  EXPECT_TRUE(world.run(client, keep(std::move(task), &result)));
  if (!result) return Status(Code::internal, "the operation did not end");
  return *std::move(result);
}

// One client's operations, awaited.
struct User {
  World& world;
  Client& client;
  Cost cost{};
  Nanos patience = kPatience;

  Nanos deadline() { return client.port().now() + patience; }
  Result<std::optional<std::string>> lookup(std::string_view key) {
    return run(world, client, client.table().lookup(key, deadline(), cost));
  }
  Result<bool> insert(std::string_view key, std::string_view value) {
    return run(world, client, client.table().insert(key, value, deadline(), cost));
  }
  Result<bool> update(std::string_view key, std::string_view value) {
    return run(world, client, client.table().update(key, value, deadline(), cost));
  }
  Result<bool> remove(std::string_view key) { return run(world, client, client.table().remove(key, deadline(), cost)); }
  Result<bool> put(std::string_view key, std::string_view value) {
    return run(world, client, client.table().put(key, value, deadline(), cost));
  }
  Result<bool> modify(std::string_view key, Editor& editor) {
    return run(world, client, client.table().modify(key, editor, deadline(), cost));
  }
  Result<index::Totals> count() { return run(world, client, client.table().count(deadline(), cost)); }
};

Report image_of(World& world) {
  return verify(world.geometry(), world.region(layout::kTable), world.region(layout::kHeap), world.table_seed());
}
std::uint64_t bits_set(const World& world) {
  std::uint64_t bits = 0;
  const base::Bytes locks = world.region(layout::kLocks);
  for (std::size_t i = 0; i < locks.size(); i += 8) {
    bits += static_cast<std::uint64_t>(std::popcount(base::load<std::uint64_t>(locks.data() + i)));
  }
  return bits;
}
// Expects whole rows, no held lock, and right counters.
void expect_sound(World& world, User& user) {
  const Report report = image_of(world);
  for (const Defect& defect : report.defects) ADD_FAILURE() << defect.what;
  EXPECT_EQ(bits_set(world), 0u);
  const auto totals = user.count();
  ASSERT_TRUE(totals.ok()) << text(totals.status());
  EXPECT_EQ(totals->keys, report.keys);
  EXPECT_EQ(totals->bytes, report.bytes);
}

class Appender final : public Editor {
 public:
  explicit Appender(std::string more) : more_(std::move(more)) {}
  Edit edit(std::optional<std::string_view> value) override {
    ++runs;
    return {.kind = Edit::Kind::put, .value = std::string(value.value_or("")) + more_};
  }
  int runs = 0;

 private:
  std::string more_;
};

Task<void> turn_over(fabric::Port& port) { co_await port.sleep_for(1); }

bool idle(World& world) {
  for (const auto& client : world.clients()) {
    if (!world.settle(*client) || !world.run(*client, turn_over(client->port()))) return false;
  }
  for (const auto& client : world.clients()) {  // also what nobody waits for
    if (!world.network().drain(client->port(), world.network().now() + base::kSecond)) return false;
  }
  return true;
}

// Moves the key's entry to its other row, at once.
void teleport(World& world, std::string_view key) {
  const Geometry& g = world.geometry();
  const Places places = locate(base::keyed_hash(world.table_seed(), base::bytes_of(key)), g.rows);
  const auto row = [&](std::uint64_t number) {
    const base::Bytes bytes = world.region(layout::kTable).subspan(number * g.row_bytes(), g.row_bytes());
    return base::MutableBytes(const_cast<std::byte*>(bytes.data()), bytes.size());
  };
  for (const auto& [from, to] : {std::pair(places.first, places.second), std::pair(places.second, places.first)}) {
    for (std::uint64_t slot = 0; slot < g.entries_per_row; ++slot) {
      const Entry entry = RowView(g, row(from)).entry(slot);
      if (entry.empty() || base::text_of(entry.key()) != key) continue;
      edit_row(g, row(to), to, static_cast<std::uint64_t>(RowView(g, row(to)).empty_slot()), entry);
      edit_row(g, row(from), from, slot, Entry());
      return;
    }
  }
  ADD_FAILURE() << "the key is nowhere";
}

// Does the same exhaustively: one move after every number of events of a lookup.
TEST(Table, AKeyThatMovesAtAnyMomentOfALookupIsFound) {
  World world(options_of(1000));
  User a{world, world.connect("a")};
  std::string key;
  for (int i = 0;; ++i) {
    key = "k" + std::to_string(i);
    const Places p =
        locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view(key))), world.geometry().rows);
    if (std::max(p.first, p.second) - std::min(p.first, p.second) > 1) break;  // two READs
  }
  ASSERT_TRUE(*a.insert(key, "here"));
  for (int after = 0; after < 160; ++after) {
    world.network().options().tear = after < 100;  // rows that are torn, and rows read whole one after the other
    std::optional<Result<std::optional<std::string>>> found;
    world.spawn(a.client, keep(a.client.table().lookup(key, a.deadline(), a.cost), &found));
    for (int i = 0; i < after % 100 / (after < 100 ? 1 : 4); ++i) world.network().step();
    teleport(world, key);
    ASSERT_TRUE(world.settle(a.client));
    ASSERT_TRUE(found && found->ok() && (*found)->has_value()) << "a move after " << after << " events";
    EXPECT_EQ(***found, "here");
  }
  EXPECT_GT(a.client.table().marks().changed_misses, 0u) << "a single reading would have missed it";
  EXPECT_GT(a.client.table().marks().torn_rows, 0u);
}

// --- Failures

// Lets a client die with its locks held, after `effects` words of a put.
void die_in_put(World& world, Client& victim, const std::string& key, const std::string& value, std::uint64_t effects) {
  Cost cost;
  std::optional<Result<bool>> result;
  victim.port().crash_after(effects, fabric::sim::InFlight::cut);
  world.run(victim, keep(victim.table().put(key, value, victim.port().now() + kPatience, cost), &result));
  EXPECT_TRUE(victim.crashed());
  world.network().drain(victim.port(), world.network().now() + base::kSecond);
}

std::string hex(std::uint64_t word) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
  return digits;
}

constexpr std::uint64_t kClaimWords = layout::kSlotClaim.bytes / 8, kPlanWords = layout::kSlotPlan.bytes / 8;

// Expects that dead clients left nothing: no lock, barrier, lease or claim.
void expect_repaired(const World& world) {
  EXPECT_EQ(bits_set(world), 0u);
  const base::Bytes slots = world.region(layout::kSlots);
  for (std::size_t at = 0; at < slots.size(); at += sizeof(layout::OperationSlot)) {
    EXPECT_EQ(base::load<layout::OperationSlot>(slots.data() + at).holder, 0u);
  }
  for (std::uint64_t i = 0; i < layout::kLeaseWords; ++i) {
    EXPECT_FALSE(layout::LeaseWord::held(base::load<std::uint64_t>(world.region(layout::kLeases).data() + i * 8)));
  }
}

TEST(Table, AWriteThatMeetsTheLockOfTheDeadRepairsIt) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1);  // the claim, then the lock
  ASSERT_GT(bits_set(world), 0u);

  const Nanos before = world.network().now();
  EXPECT_EQ(**b.lookup("apple"), "red") << "readers are in nobody's way";
  EXPECT_LT(world.network().now() - before, base::kMillisecond);
  const auto put = b.put("apple", "brown");
  EXPECT_TRUE(put.ok()) << text(put.status());
  const Nanos took = world.network().now() - before;
  EXPECT_GE(took, 40 * base::kMillisecond) << "nobody is taken for dead before the failure timeout";
  EXPECT_LT(took, 60 * base::kMillisecond);
  EXPECT_EQ(**b.lookup("apple"), "brown");
  const session::RepairMarks marks = session::marks_of(b.client.session(), b.client.table().repairer());
  EXPECT_EQ(marks.repaired, 1u);
  EXPECT_EQ(marks.finished, 0u);
  ASSERT_TRUE(idle(world));
  expect_repaired(world);
  expect_sound(world, b);
}

Task<void> put_and_note(Client& client, Nanos patience, std::vector<Status>* into) {
  Cost cost;
  const auto put = co_await client.table().put("apple", "brown", client.port().now() + patience, cost);
  into->push_back(put.status());
}

TEST(Table, ClientsThatWaitForALockOfTheDeadRepairItOnce) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  Client& c = world.connect("another");
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1);
  std::vector<Status> statuses;
  for (int i = 0; i < 2; ++i) world.spawn(b.client, put_and_note(b.client, 200 * base::kMillisecond, &statuses));
  for (int i = 0; i < 2; ++i) world.spawn(c, put_and_note(c, 200 * base::kMillisecond, &statuses));
  ASSERT_TRUE(world.settle(b.client) && world.settle(c));
  ASSERT_EQ(statuses.size(), 4u);
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << text(status);
  EXPECT_EQ(b.client.table().repairer()->marks().repaired + c.table().repairer()->marks().repaired, 1u);
  ASSERT_TRUE(idle(world));
  expect_repaired(world);
}

TEST(Table, AShortDeadlineNamesTheSuspect) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1);
  b.patience = 20 * base::kMillisecond;  // half the failure timeout
  const Nanos before = world.network().now();
  const auto refused = b.put("apple", "brown");
  EXPECT_EQ(refused.code(), Code::timed_out) << text(refused.status());
  EXPECT_NE(refused.status().message().find(hex(victim.incarnation())), std::string::npos)
      << refused.status().message();
  EXPECT_LT(world.network().now() - before, 21 * base::kMillisecond);
  b.patience = 2 * base::kMillisecond;
  EXPECT_EQ(b.put("apple", "brown").code(), Code::timed_out);
}

TEST(Table, ARowLeftHalfWrittenIsFinished) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  // The claim, the lock, the plan, and one word of the row: even a client that only reads finishes it.
  std::uint64_t row_words = 1;
  die_in_put(world, victim, "apple", "green", kClaimWords + 1 + kPlanWords + row_words);
  const bool torn = !image_of(world).defects.empty();
  const auto found = b.lookup("apple");
  ASSERT_TRUE(found.ok()) << text(found.status());
  EXPECT_EQ(**found, torn ? "green" : "red") << "the word that landed may have been the same before";
  ASSERT_TRUE(b.put("pear", "x").ok());
  ASSERT_TRUE(b.update("apple", "brown").ok());
  EXPECT_EQ(b.client.table().repairer()->marks().finished, 1u);
  ASSERT_TRUE(idle(world));
  expect_repaired(world);
  expect_sound(world, b);
}

TEST(Table, WhatNoCrashExplainsIsQuarantined) {
  World world(options_of(1000));
  Client& victim = world.connect("victim");
  User b{world, world.connect("survivor")};
  ASSERT_FALSE(*b.put("apple", "red"));
  die_in_put(world, victim, "apple", "green", kClaimWords + 1 + kPlanWords);
  // The row changes under the dead client's lock: damage.
  const Places places =
      locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view("apple"))), world.geometry().rows);
  std::uint64_t at = 0;
  for (const std::uint64_t row : {places.first, places.second}) {
    const RowView view(
        world.geometry(),
        world.region(layout::kTable).subspan(row * world.geometry().row_bytes(), world.geometry().row_bytes()));
    if (!view.empty(0)) at = row;
  }
  auto* bytes = const_cast<std::byte*>(world.region(layout::kTable).data()) + at * world.geometry().row_bytes();
  const std::vector<std::byte> damaged = [&] {
    bytes[world.geometry().row_bytes() - 20] ^= std::byte{1};
    return std::vector<std::byte>(bytes, bytes + world.geometry().row_bytes());
  }();
  for (int i = 0; i < 2; ++i) {
    const auto refused = b.put("apple", "brown");
    EXPECT_EQ(refused.code(), Code::locked) << text(refused.status());
    EXPECT_NE(refused.status().message().find("quarantined"), std::string::npos) << refused.status().message();
    EXPECT_NE(refused.status().message().find(hex(victim.incarnation())), std::string::npos);
  }
  EXPECT_TRUE(std::equal(damaged.begin(), damaged.end(), bytes)) << "nothing is guessed";
  EXPECT_GT(bits_set(world), 0u);
  EXPECT_EQ(b.client.table().repairer()->marks().quarantined, 1u);
  EXPECT_TRUE(b.client.session().alive());
}

// Fills the heap with whole extents that no entry points to.
Task<void> hoard(Client& client, std::uint64_t value_bytes, std::uint64_t& count) {
  Cost cost;
  const std::string value(value_bytes, 'x');
  for (;; ++count) {
    const std::string key = "hoarded" + std::to_string(count);
    const std::uint64_t bytes = layout::extent_bytes(key.size(), value.size());
    auto block = co_await client.heap()->allocate(bytes, heap::Purpose::addition,
                                                  client.port().now() + 60 * base::kSecond, cost);
    if (!block.ok()) co_return;
    fabric::Buffer buffer = client.port().buffer(bytes);
    layout::write_extent(buffer.first(bytes), block->units, base::bytes_of(key), base::bytes_of(value));
    const std::array chain{fabric::Op::write({layout::kHeap, layout::block_offset(block->units)}, buffer.first(bytes))};
    (void)co_await client.session().post(chain, client.port().now() + base::kSecond, cost);
  }
}
Task<void> append_to(Client& client, std::string key, std::string more, Result<bool>& into) {
  Cost cost;
  Appender append(more);
  into = co_await client.table().modify(key, append, client.port().now() + 600 * base::kSecond, cost);
}

// Operations that wait for memory hold all slots, and the heap has to ask the index to find some, which takes a slot.
TEST(Table, AWaiterForMemoryHoldsNoSlotThatFindingItNeeds) {
  World world(options_of(1000));
  Client& hoarder = world.connect("hoarder");
  constexpr std::uint64_t kBytes = 200'000;
  std::uint64_t hoarded = 0;
  ASSERT_TRUE(world.run(hoarder, hoard(hoarder, kBytes, hoarded), 3600 * base::kSecond));
  ASSERT_GT(hoarded, world.geometry().slots_per_session);
  hoarder.port().crash(fabric::sim::InFlight::cut);
  const Nanos lease_over = world.network().now() + 3 * base::kSecond;
  ASSERT_TRUE(world.run_until([&] { return world.network().now() >= lease_over; }));
  Client& heir = world.connect("heir");
  std::vector<Result<bool>> done(world.geometry().slots_per_session, Result<bool>(Status(Code::internal, "never")));
  for (std::size_t i = 0; i < done.size(); ++i) {
    world.spawn(heir, append_to(heir, "key" + std::to_string(i), std::string(kBytes, 'y'), done[i]));
  }
  ASSERT_TRUE(world.settle(heir, 3600 * base::kSecond));
  for (const Result<bool>& one : done) EXPECT_TRUE(one.ok()) << text(one.status());
}

// Damage that no client's death explains.
TEST(Table, ADamagedRowIsNamed) {
  World world(options_of(1000));
  User a{world, world.connect("a")};
  ASSERT_FALSE(*a.put("apple", "red"));
  const Places places =
      locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view("apple"))), world.geometry().rows);
  const auto at = world.region(layout::kTable).subspan(places.first * world.geometry().row_bytes());
  auto* byte = const_cast<std::byte*>(at.data());
  *byte ^= std::byte{4};
  const auto found = a.lookup("apple");
  EXPECT_EQ(found.code(), Code::corrupt) << text(found.status());
  EXPECT_NE(found.status().message().find("row " + std::to_string(places.first)), std::string::npos)
      << found.status().message();
  const auto put = a.put("apple", "green");
  EXPECT_EQ(put.code(), Code::corrupt) << text(put.status());
  EXPECT_EQ(bits_set(world), 0u);
  *byte ^= std::byte{4};
  EXPECT_EQ(**a.lookup("apple"), "red");
}

Task<void> hold_lock(Client& client, std::uint64_t offset, std::uint64_t mask, Nanos until) {
  Cost cost;
  std::uint64_t old = 0;
  auto slot = co_await client.session().take_slot(client.port().now() + kPatience);
  slot->words().lock_word[0] = {offset, mask};
  const std::array take = {slot->claim(0, cost),
                           fabric::Op::masked_cas({layout::kLocks, offset}, old, 0, mask, mask, mask)};
  (void)co_await client.session().post(take, client.port().now() + kPatience, cost);
  EXPECT_EQ(old & mask, 0u);
  co_await client.port().sleep_until(until);
  const std::array drop = {fabric::Op::masked_cas({layout::kLocks, offset}, old, mask, mask, 0, mask)};
  (void)co_await client.session().post(drop, client.port().now() + kPatience, cost);
}

// A slow but living client holds the later word: the earlier one must not stay taken meanwhile.
TEST(Table, LocksOfSeveralWordsAreTakenInOrderAndGivenBack) {
  WorldOptions options = options_of(4000);
  options.geometry.rows_per_lock = 1;
  World world(options);
  Client& holder = world.connect("holder");
  User a{world, world.connect("a")};
  const Geometry& g = world.geometry();
  std::string key;
  LockBit low, high;
  for (int i = 0;; ++i) {
    key = "spread" + std::to_string(i);
    const Places p = locate(base::keyed_hash(world.table_seed(), base::bytes_of(std::string_view(key))), g.rows);
    low = lock_bit(g, lock_of(g, std::min(p.first, p.second)));
    high = lock_bit(g, lock_of(g, std::max(p.first, p.second)));
    if (low.offset != high.offset) break;
  }
  Cost before = a.cost;
  ASSERT_TRUE(a.put(key, "x").ok());
  EXPECT_EQ(a.cost.trips - before.trips, 3u) << "one more for the second word";
  EXPECT_EQ(a.client.table().marks().multi_word_locks, 1u);
  world.spawn(holder, hold_lock(holder, high.offset, high.mask, world.network().now() + 10 * base::kMillisecond));
  world.run_until([&] { return bits_set(world) == 1; });
  ASSERT_TRUE(a.put(key, "y").ok());
  EXPECT_GT(a.client.table().marks().lock_restarts, 0u);
  EXPECT_GT(a.client.table().marks().lock_conflicts, 8u);
  ASSERT_TRUE(idle(world));
  expect_sound(world, a);
}

TEST(Table, TheSuperblockTellsTheGeometry) {
  World world(options_of(1000));
  Client& client = world.connect("a");
  EXPECT_EQ(client.table().geometry(), world.geometry());
  auto* byte = const_cast<std::byte*>(world.memory().data()) + 100;
  *byte ^= std::byte{1};
  Cost cost;
  const auto refused =
      run(world, client, index::read_superblock(client.session(), client.port().now() + kPatience, cost));
  EXPECT_EQ(refused.code(), Code::corrupt) << text(refused.status());
  EXPECT_EQ(cost.trips, 1u);
}

}  // namespace
}  // namespace farpool::rcuckoo
