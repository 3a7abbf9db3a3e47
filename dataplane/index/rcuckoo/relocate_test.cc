// SPDX-License-Identifier: Apache-2.0
// Keys leave for another memory node while clients work. These tests cover what only RCuckoo does at the source, with a
// map in the other node's place, and at the target. index/contract/moves.h has what every table does.
#include "index/rcuckoo/relocate.h"

#include <gtest/gtest.h>

#include <map>
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
    keys.emplace(key, value);
    co_return Status();
  }
  Task<Result<bool>> has(std::string_view key) override { co_return keys.contains(std::string(key)); }

  std::map<std::string, std::string> keys;
};

// Half of the keys leave, in move 1; every third has an extent.
struct RcuckooMove : ::testing::Test {
  World world{options()};
  Client& client = world.connect("a");
  Client& ignorant = world.connect("b");  // follows an older map
  Elsewhere elsewhere;

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
  Status close() {
    return run(client, movable(client).close(&elsewhere, [] { return Status(); }));
  }
  Status move_away(Client& by) {
    return run(by, movable(by).move_away(elsewhere, [] { return Status(); }));
  }
  RowView row(std::uint64_t number) const {
    const std::uint64_t bytes = world.geometry().row_bytes();
    return {world.geometry(), world.region(layout::kTable).subspan(number * bytes, bytes)};
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
  // Leaves all leaving keys on their way, as a mover does that cannot tell whether the target has them.
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

// A row that is closed already is skipped.
TEST_F(RcuckooMove, ClosingAgainWritesNothing) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  EXPECT_EQ(closed_rows(1), world.geometry().rows);
  const std::vector<std::byte> before(world.region(layout::kTable).begin(), world.region(layout::kTable).end());
  ASSERT_TRUE(close().ok());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), world.region(layout::kTable).begin()));
}

// Cuckoo moves carry leaving entries to and fro like others.
TEST_F(RcuckooMove, ATableThatFillsUpLosesNoKeyThatIsLeaving) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  strand();
  ASSERT_GT(leaving_entries(), 4u);
  const std::uint64_t leaving = leaving_entries(), displaced = client.table().marks().displaced;
  for (int i = kKeys; client.table().marks().displaced < displaced + 200; ++i) {
    const Code code = put(client, key(i), "w").code();
    ASSERT_TRUE(code == Code::ok || code == Code::moved) << i;
  }
  EXPECT_EQ(leaving_entries(), leaving);
  ASSERT_TRUE(move_away(client).ok());
  EXPECT_EQ(leaving_entries(), 0u);
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(elsewhere.keys.contains(key(i)), leaves(key(i)));
  in_order();
}

// By an earlier map, the key may have been leaving this memory node, and its rows say no more than that.
TEST_F(RcuckooMove, AKeyThatComesIsNotChangedByAClientThatFollowsAnOlderMap) {
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
  // Puts of other clients close nothing.
  EXPECT_EQ(put(client, "another", "w").code(), Code::ok);
  EXPECT_EQ(closed_rows(2), 1u);
  in_order();
}

// A client that finishes a dead mover's plan closes the row that the key comes to, and the rows that the plan was to
// close.
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
