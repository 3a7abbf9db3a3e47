// SPDX-License-Identifier: Apache-2.0
// Keys leave for another memory node while clients work. These tests cover what only RACE does at the source, with a
// map in the other node's place. index/contract/moves.h has what every table does.
#include "index/race/relocate.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "directory/directory.h"
#include "index/race/table.h"
#include "layout/extent.h"
#include "sim/survey.h"
#include "sim/world.h"

namespace farpool::race {
namespace {

using sim::Client;
using sim::World;

constexpr Nanos kPatience = 2 * base::kSecond;
constexpr int kKeys = 120;

sim::WorldOptions options() {
  sim::WorldOptions options;
  options.geometry = {.memory_bytes = 4 << 20,
                      .table_percent = 1,
                      .max_sessions = 8,
                      .slots_per_session = 2,
                      .protocol = layout::Protocol::race,
                      .tables = 4};
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

// Half of the keys leave, in move 1.
struct RaceMove : ::testing::Test {
  World world{options()};
  Client& client = world.connect("a");
  Client& ignorant = world.connect("b");  // follows an older map
  Elsewhere elsewhere;

  static std::string key(int i) { return "key-" + std::to_string(i); }
  bool leaves(const std::string& key) const {
    return (base::keyed_hash(world.pool_secret(), base::bytes_of(key)) & 1) == 0;
  }
  void SetUp() override {
    for (int i = 0; i < kKeys; ++i) ASSERT_EQ(put(client, key(i), "v").code(), Code::ok);
  }
  static index::Move move() { return {.number = 1, .depth = 1, .leaving = {true, false}}; }
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
  Result<bool> put(Client& who, const std::string& key, const std::string& value) {
    Cost cost;
    return run(who, who.table().put(key, value, who.port().now() + kPatience, cost));
  }
  Status close() {
    return run(client, movable(client).close(&elsewhere, [] { return Status(); }));
  }
  Status move_away(Client& by) {
    return run(by, movable(by).move_away(elsewhere, [] { return Status(); }));
  }
  // Returns the first slot in that state of a key that leaves, or stays.
  std::optional<std::uint64_t> find(Slot::State state, const std::string& wanted) {
    const base::Bytes table = world.region(layout::kTable);
    for (std::uint64_t at = 0; at < table.size(); at += 8) {
      if (at % kBucketBytes == 0) continue;
      const Slot slot(base::load<std::uint64_t>(table.data() + at));
      if (slot.empty() || slot != slot.as(state)) continue;
      const base::Bytes block = world.region(layout::kHeap).subspan(layout::block_offset(slot.block()), 64);
      const auto key_bytes = layout::ExtentLengths::key(base::load<std::uint64_t>(block.data()));
      if (base::text_of(block.subspan(layout::kExtentHeader, key_bytes)) == wanted) return at;
    }
    return std::nullopt;
  }
  static Task<void> cas(Client* by, std::uint64_t offset, std::uint64_t from, std::uint64_t to) {
    Cost cost;
    std::uint64_t before = 0;
    const std::array chain{Op::cas({layout::kTable, offset}, before, from, to)};
    (void)co_await by->session().post(chain, by->port().now() + kPatience, cost);
    EXPECT_EQ(before, from);
  }
  void set(const std::string& key, Slot::State from, Slot::State to) {
    const auto at = find(from, key);
    ASSERT_TRUE(at);
    const Slot slot(base::load<std::uint64_t>(world.region(layout::kTable).data() + *at));
    ASSERT_TRUE(world.run(client, cas(&client, *at, slot.word(), slot.as(to).word())));
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

// The words of a READ come in any order, so a header may be younger than the slots beside it. A client that takes a
// change elsewhere has seen twice that the key is not here. Readers may have looked before it came.
TEST_F(RaceMove, AWriterBelievesNoMissUnderAHeaderThatItSeesClosedForTheFirstTime) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  int absent = kKeys;
  while (!leaves(key(absent))) ++absent;
  Cost looked, changed;
  const Nanos deadline = client.port().now() + kPatience;
  EXPECT_EQ(run(client, client.table().lookup(key(absent), deadline, looked)).code(), Code::moved);
  EXPECT_EQ(looked.trips, 1u);
  EXPECT_EQ(run(client, client.table().remove(key(absent), deadline, changed)).code(), Code::moved);
  EXPECT_EQ(changed.trips, 2u);
}

// Its inserter, which has seen open headers, would commit it.
TEST_F(RaceMove, AWriterTakesAwayWhatIsTentativeBeforeItGoesElsewhere) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  const std::string gone = first_key(true);
  set(gone, Slot::State::committed, Slot::State::tentative);
  EXPECT_EQ(put(client, gone, "w").code(), Code::moved);
  EXPECT_FALSE(find(Slot::State::tentative, gone));
}

// A client that has read an old header may still read a new slot.
TEST_F(RaceMove, NoKeyLeavesBeforeOperationsHaveEndedThatMayNotKnow) {
  movable(client).follow(move());
  const index::Movable::GoOn go_on = [] { return Status(); };
  Status closed(Code::internal, "it did not come to an end");
  const auto over = [&closed] { return closed.code() != Code::internal; };
  {
    const session::EraPin pin = ignorant.session().pin();
    world.spawn(client, into(movable(client).close(&elsewhere, go_on), &closed));
    EXPECT_FALSE(world.run_until(over, base::kSecond));
  }
  ASSERT_TRUE(world.run_until(over));
  EXPECT_TRUE(closed.ok()) << closed.message();
}

// The new table's headers have the number, and what was on its way when its mover died is not lost.
TEST_F(RaceMove, SplitsAndMovesTakeTurns) {
  movable(client).follow(move());
  ASSERT_TRUE(close().ok());
  const std::string gone = first_key(true);
  set(gone, Slot::State::committed, Slot::State::leaving);
  Cost cost;
  auto& table = dynamic_cast<Table&>(client.table());
  ASSERT_TRUE(run(client, table.split(gone, client.port().now() + kPatience, cost)).ok());
  const Status idle = run(client, table.idle(client.port().now() + kPatience));
  ASSERT_TRUE(idle.ok()) << idle.message();
  ASSERT_TRUE(move_away(client).ok());
  const directory::View view(world.region(layout::kDirectory), world.geometry().tables);
  EXPECT_NE(view.home(1), 0u);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(view.split(i), 0u);
  for (int i = 0; i < kKeys; ++i) {
    EXPECT_EQ(elsewhere.keys.contains(key(i)), leaves(key(i)));
    EXPECT_EQ(put(ignorant, key(i), "w").code(), Code::stale) << i;
    EXPECT_EQ(put(client, key(i), "w").code(), leaves(key(i)) ? Code::moved : Code::ok) << i;
  }
  in_order();
}

}  // namespace
}  // namespace farpool::race
