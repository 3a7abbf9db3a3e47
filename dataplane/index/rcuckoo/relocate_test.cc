// SPDX-License-Identifier: Apache-2.0
// Keys leave for another memory node while clients work: the source's side, with a map in the other's place, and what
// of the target's is this table's.
#include "index/rcuckoo/relocate.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "index/rcuckoo/repair.h"
#include "index/rcuckoo/table.h"
#include "sim/survey.h"
#include "sim/world.h"

namespace farpool::rcuckoo {
namespace {

using sim::Client;
using sim::World;

constexpr Nanos kPatience = base::kSecond;
constexpr int kKeys = 120;

sim::WorldOptions options() {
  sim::WorldOptions options;
  options.geometry = {.memory_bytes = 4 << 20,
                      .table_percent = 1,
                      .entry_bytes = 16,
                      .entries_per_row = 4,
                      .rows_per_lock = 4,
                      .max_sessions = 8,
                      .slots_per_session = 4};
  return options;
}

class Elsewhere final : public index::Arrivals {
 public:
  Task<Status> take_in(std::string_view key, std::string_view value) override {
    if (full) co_return Status(Code::out_of_memory, "there is no room");
    keys.emplace(key, value);
    co_return Status();
  }
  Task<Result<bool>> has(std::string_view key) override { co_return keys.contains(std::string(key)); }

  std::map<std::string, std::string> keys;
  bool full = false;
};

// Half of the keys leave, in move 1; every third has an extent.
struct RcuckooMove : ::testing::Test {
  World world{options()};
  Client& client = world.connect("a");
  Client& ignorant = world.connect("b");  // follows an older map
  Elsewhere elsewhere;
  Status work;  // may be made an error

  static std::string key(int i) { return "key-" + std::to_string(i); }
  static std::string value(int i) { return i % 3 == 0 ? std::string(100, 'v') : "v"; }
  bool leaves(const std::string& key) const {
    return (base::keyed_hash(world.pool_secret(), base::bytes_of(key)) & 1) == 0;
  }
  void SetUp() override {
    for (int i = 0; i < kKeys; ++i) ASSERT_EQ(put(client, key(i), value(i)).code(), Code::ok);
  }
  static index::Move move(std::uint64_t number = 1) { return {.number = number, .depth = 1, .leaving = {true, false}}; }
  static index::Movable& movable(Client& of) { return *of.table().movable(); }

  template <class T>
  static Task<void> into(Task<T> task, T* result) {
    *result = co_await std::move(task);
  }
  template <class T>
  T run(Client& who, Task<T> task) {
    T result = Status(Code::internal, "it did not come to an end");
    EXPECT_TRUE(world.run(who, into(std::move(task), &result)));
    return result;
  }
  Nanos deadline(Client& of) const { return of.port().now() + kPatience; }
  Result<bool> put(Client& who, const std::string& key, const std::string& value) {
    Cost cost;
    return run(who, who.table().put(key, value, deadline(who), cost));
  }
  Result<bool> remove(Client& who, const std::string& key) {
    Cost cost;
    return run(who, who.table().remove(key, deadline(who), cost));
  }
  Result<std::optional<std::string>> get(Client& who, const std::string& key) {
    Cost cost;
    return run(who, who.table().lookup(key, deadline(who), cost));
  }
  Result<bool> admit(Client& who, const std::string& key) {
    Cost cost;
    return run(who, movable(who).admit(key, "v", deadline(who), cost));
  }
  Result<std::set<std::string>> scan(Client& who) {
    std::set<std::string> told;
    std::uint64_t position = 0;
    do {
      Cost cost;
      const auto page = run(who, who.table().scan(position, 100, deadline(who), cost));
      if (!page.ok()) return page.status();
      told.insert(page->keys.begin(), page->keys.end());
      position = page->next;
    } while (position != 0);
    return told;
  }
  Status close() {
    return run(client, movable(client).close(&elsewhere, [this] { return work; }));
  }
  Status move_away(Client& by) {
    return run(by, movable(by).move_away(elsewhere, [this] { return work; }));
  }
  RowView row(std::uint64_t number) const {
    const std::uint64_t bytes = world.geometry().row_bytes();
    return {world.geometry(), world.region(layout::kTable).subspan(number * bytes, bytes)};
  }
  Places places(const std::string& key) const {
    return locate(base::keyed_hash(world.table_seed(), base::bytes_of(key)), world.geometry().rows);
  }
  std::uint64_t closed_rows(std::uint64_t move) const {
    std::uint64_t closed = 0;
    for (std::uint64_t i = 0; i < world.geometry().rows; ++i) closed += row(i).move() >= move ? 1 : 0;
    return closed;
  }
  std::uint64_t leaving_entries() const {
    std::uint64_t leaving = 0;
    for (std::uint64_t i = 0; i < world.geometry().rows; ++i) {
      for (std::uint64_t slot = 0; slot < world.geometry().entries_per_row; ++slot) {
        leaving += row(i).entry(slot).leaving() ? 1 : 0;
      }
    }
    return leaving;
  }
  // All keys that leave are left on their way, as by a mover that cannot tell whether the target has them.
  void strand() {
    class Unsure final : public index::Arrivals {
     public:
      Task<Status> take_in(std::string_view, std::string_view) override {
        co_return Status(Code::unknown_outcome, "nobody knows");
      }
      Task<Result<bool>> has(std::string_view) override { co_return Status(Code::unavailable, "nobody knows"); }
    } unsure;
    EXPECT_EQ(run(client, movable(client).move_away(unsure, [] { return Status(); })).code(), Code::unknown_outcome);
  }
  std::string first_key(bool that_leaves) const {
    int i = 0;
    while (leaves(key(i)) != that_leaves) ++i;
    return key(i);
  }
  void in_order() {
    ASSERT_TRUE(world.quiesce());
    EXPECT_EQ(sim::survey(world).report(), "");
  }
};

TEST_F(RcuckooMove, ClosedRowsTakeNoKeyThatLeaves) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  EXPECT_EQ(closed_rows(1), world.geometry().rows);
  for (int i = 0; i < 2 * kKeys; ++i) {
    const bool there = i < kKeys, may_be_elsewhere = leaves(key(i)) && !there;
    EXPECT_EQ(get(client, key(i)).code(), may_be_elsewhere ? Code::moved : Code::ok) << i;
    EXPECT_EQ(put(client, key(i), "w").code(), may_be_elsewhere ? Code::moved : Code::ok) << i;
    EXPECT_EQ(remove(client, key(i)).code(), may_be_elsewhere ? Code::moved : Code::ok) << i;
  }
  in_order();
}

// A row that is closed already is passed over.
TEST_F(RcuckooMove, ClosingAgainWritesNothing) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  const std::vector<std::byte> before(world.region(layout::kTable).begin(), world.region(layout::kTable).end());
  ASSERT_TRUE(close().ok());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), world.region(layout::kTable).begin()));
}

// It can read what is there, because that is the truth; it may change nothing, and believes no miss.
TEST_F(RcuckooMove, WhoDoesNotKnowOfTheMoveReadsTheMapFirst) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  EXPECT_EQ(*get(ignorant, key(1)), "v");
  EXPECT_EQ(put(ignorant, key(1), "w").code(), Code::stale);
  EXPECT_EQ(remove(ignorant, key(1)).code(), Code::stale);
  EXPECT_EQ(get(ignorant, "none").code(), Code::stale);
  EXPECT_EQ(put(ignorant, "none", "w").code(), Code::stale);
  EXPECT_EQ(scan(ignorant).code(), Code::stale);
  movable(ignorant).follow(move());
  EXPECT_EQ(put(ignorant, key(1), "w").code(), Code::ok);
  in_order();
}

TEST_F(RcuckooMove, KeysThatLeaveAreElsewhereAndOthersAreNot) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  ASSERT_TRUE(move_away(client).ok());
  std::uint64_t stay = 0;
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(elsewhere.keys.contains(key(i)), leaves(key(i)));
    if (leaves(key(i))) EXPECT_EQ(elsewhere.keys.at(key(i)), value(i));
    EXPECT_EQ(get(client, key(i)).code(), leaves(key(i)) ? Code::moved : Code::ok);
    stay += leaves(key(i)) ? 0 : 1;
  }
  EXPECT_EQ(run(client, movable(client).standing())->finished, 1u);
  EXPECT_EQ(client.table().marks().moved_away, kKeys - stay);
  Cost cost;
  EXPECT_EQ(run(client, client.table().count(deadline(client), cost))->keys, stay);
  in_order();
}

// Nobody changes it; everybody reads it, and a scan tells of it.
TEST_F(RcuckooMove, AKeyThatIsLeavingIsWaitedFor) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  strand();
  EXPECT_GT(leaving_entries(), 4u);
  std::string gone;
  for (int i = 0; i < kKeys; ++i) {
    EXPECT_EQ(*get(client, key(i)), value(i));
    const std::uint64_t waits = client.table().marks().move_waits;
    if (put(client, key(i), "w").code() == Code::ok) {
      EXPECT_EQ(put(client, key(i), value(i)).code(), Code::ok);
      continue;
    }
    EXPECT_GT(client.table().marks().move_waits, waits + 1);
    gone = key(i);
  }
  ASSERT_NE(gone, "");
  EXPECT_TRUE(leaves(gone));
  EXPECT_EQ(remove(client, gone).code(), Code::timed_out);
  EXPECT_EQ(scan(client)->size(), std::size_t{kKeys});
  ASSERT_TRUE(move_away(client).ok());
  EXPECT_EQ(leaving_entries(), 0u);
  EXPECT_NE(elsewhere.keys.at(gone), "w");
  EXPECT_EQ(put(client, gone, "w").code(), Code::moved);
  in_order();
}

// The mover may be of the same client, whose operations on one lock take turns.
TEST_F(RcuckooMove, WhoeverWaitsForAKeyLetsItsMoverWork) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  strand();
  std::vector<std::string> gone;
  for (int i = 0; i < kKeys; ++i) {
    if (leaves(key(i))) gone.push_back(key(i));
  }
  Cost cost;
  std::vector<Result<bool>> done(gone.size(), Status(Code::internal, "it did not come to an end"));
  for (std::size_t i = 0; i < gone.size(); ++i) {
    world.spawn(client, into(client.table().put(gone[i], "w", deadline(client), cost), &done[i]));
  }
  ASSERT_TRUE(move_away(client).ok());
  for (const Result<bool>& one : done) EXPECT_TRUE(one.ok() || one.code() == Code::moved) << one.status().message();
  EXPECT_EQ(leaving_entries(), 0u);
  EXPECT_GT(client.table().marks().move_waits, 0u);
}

// Cuckoo moves carry what is leaving to and fro like anything else.
TEST_F(RcuckooMove, ATableThatFillsUpLosesNoKeyThatIsLeaving) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  strand();
  const std::uint64_t leaving = leaving_entries(), displaced = client.table().marks().displaced;
  for (int i = kKeys; client.table().marks().displaced < displaced + 200; ++i) {
    const Code code = put(client, key(i), "w").code();
    ASSERT_TRUE(code == Code::ok || code == Code::moved) << i;
  }
  EXPECT_EQ(leaving_entries(), leaving);
  ASSERT_TRUE(move_away(client).ok());
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(elsewhere.keys.contains(key(i)), leaves(key(i)));
  in_order();
}

// What counts is the map by which the key was looked for here.
TEST_F(RcuckooMove, AMoveThatIsLearntOfInTheMiddleOfAnOperationDoesNotCount) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  ASSERT_TRUE(move_away(client).ok());
  Cost cost;
  const std::string gone = first_key(true);
  auto put = client.table().put(gone, "w", deadline(client), cost);
  Result<bool> done = Status(Code::internal, "it did not come to an end");
  world.spawn(client, into(std::move(put), &done));
  movable(client).follow({.number = 2, .depth = 1, .leaving = {}});
  ASSERT_TRUE(world.run_until([&done] { return done.code() != Code::internal; }));
  EXPECT_EQ(done.code(), Code::moved) << done.status().message();
}

TEST_F(RcuckooMove, WhereThereIsNoRoomKeysStayAndCanBeChanged) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  elsewhere.full = true;
  EXPECT_EQ(move_away(client).code(), Code::out_of_memory);
  EXPECT_EQ(run(client, movable(client).standing())->finished, 0u);
  EXPECT_EQ(leaving_entries(), 0u);
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(put(client, key(i), "w").code(), Code::ok);
  elsewhere.full = false;
  ASSERT_TRUE(move_away(client).ok());
  for (const auto& [key, value] : elsewhere.keys) EXPECT_TRUE(leaves(key) && value == "w");
  in_order();
}

// A key that did get there, as far as anybody can tell, is not given free here.
TEST_F(RcuckooMove, AKeyThatMayBeAtBothEndsStaysOnItsWay) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  for (int i = 0; i < kKeys; ++i) elsewhere.keys.emplace(key(i), value(i));
  elsewhere.full = true;
  EXPECT_EQ(move_away(client).code(), Code::out_of_memory);
  EXPECT_GT(leaving_entries(), 0u);
}

TEST_F(RcuckooMove, EndsWhenItIsNotWantedAnyMore) {
  movable(client).follow(move());
  work = Status(Code::unavailable, "not wanted");
  EXPECT_EQ(close().code(), Code::unavailable);
  work = Status();
  EXPECT_TRUE(close().ok());
  in_order();
}

// By a map of before the key may have been leaving this memory node, and its rows say no more than that.
TEST_F(RcuckooMove, AKeyThatComesIsNotChangedByWhoFollowsAnOlderMap) {
  movable(client).follow(move());
  movable(ignorant).follow(move());
  ASSERT_TRUE(close().ok());
  ASSERT_TRUE(move_away(client).ok());
  const std::string back = first_key(true);
  movable(client).follow({.number = 2, .depth = 1, .leaving = {}});
  EXPECT_TRUE(*admit(client, back));
  EXPECT_FALSE(*admit(client, back));
  EXPECT_EQ(*get(ignorant, back), "v");
  EXPECT_EQ(put(ignorant, back, "w").code(), Code::stale);
  EXPECT_EQ(remove(ignorant, back).code(), Code::stale);
  EXPECT_EQ(closed_rows(2), 1u);
  // What others put closes nothing.
  EXPECT_EQ(put(client, "another", "w").code(), Code::ok);
  EXPECT_EQ(closed_rows(2), 1u);
  in_order();
}

// A client that finishes what a dead mover had planned closes the row that the key comes to; and the rows that were to
// be closed.
TEST(RcuckooMoveRepair, APlanOfAMoverIsFinishedWithItsNumber) {
  const auto geometry = layout::plan_geometry(options().geometry).value();
  std::vector<std::byte> table(geometry.at(layout::kTable).bytes);
  format_table(geometry, table);
  const auto row = [&](std::uint64_t i) {
    return base::MutableBytes(table).subspan(i * geometry.row_bytes(), geometry.row_bytes());
  };
  layout::OperationSlot says;
  says.state = SlotState::Move::put(7);
  says.row[0] = SlotRow::of(3, 1);
  says.rest = rest_of(geometry, row(3), 1);
  const Entry entry = Entry::in_place(base::bytes_of(std::string_view("k")), base::bytes_of(std::string_view("v")));
  says.redo = entry.words();
  EXPECT_EQ(finish_rows(geometry, says, std::vector{row(3)}).first, 0u);
  EXPECT_EQ(RowView(geometry, row(3)).move(), 7u);
  EXPECT_EQ(RowView(geometry, row(3)).entry(1), entry);

  says = {};
  says.state = SlotState::Kind::put(static_cast<std::uint64_t>(Operation::close)) | SlotState::Move::put(8);
  for (std::uint64_t i = 0; i < 3; ++i) {
    says.row[i] = SlotRow::of(2 + i, 0);
    says.redo[i] = entries_of(row(2 + i));
  }
  seal_row(row(2), 2, 8);
  row(3)[geometry.row_bytes() - 1] ^= std::byte{1};  // in the middle of its WRITE
  EXPECT_EQ(finish_rows(geometry, says, std::vector{row(2), row(3), row(4)}).first, 1u);
  for (std::uint64_t i = 2; i < 5; ++i) {
    EXPECT_TRUE(RowView(geometry, row(i)).whole(i));
    EXPECT_EQ(RowView(geometry, row(i)).move(), 8u);
  }
  EXPECT_EQ(RowView(geometry, row(3)).entry(1), entry);
  row(4)[0] ^= std::byte{1};
  EXPECT_NE(finish_rows(geometry, says, std::vector{row(2), row(3), row(4)}).unexplained, "");
}

}  // namespace
}  // namespace farpool::rcuckoo
