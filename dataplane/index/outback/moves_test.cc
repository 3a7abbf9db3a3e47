// SPDX-License-Identifier: Apache-2.0
// Keys that leave the memory node, as its side sees it: who may ask for that, what clients are told meanwhile, and a
// process that dies after any word. The suite of index protocols has the client's side (index/contract/moves.h).
#include <string>

#include "index/outback/node_test.h"

namespace farpool::outback {
namespace {

constexpr std::uint64_t kMove = 3, kMover = TestTable::kSession, kAnother = 9;

struct Moving : TestTable {
  explicit Moving(std::uint64_t zones = 1) : TestTable(figures(16 * zones, 512 << 10, zones)) {
    lease_to(kMover);
    EXPECT_TRUE(start());
    attach();
  }
  Told step(Op op, std::string_view key = {}, std::uint64_t move = kMove, std::uint64_t session = kMover) {
    Request asked = request(op, key);
    asked.move = move;
    return ask(asked, session);
  }
  void close_all(std::uint64_t move = kMove) {
    for (std::uint64_t zone = 0;;) {
      Request asked = request(Op::close, {});
      asked.place = zone;
      asked.move = move;
      const Told told = ask(asked);
      ASSERT_EQ(told.status, Status::done) << text_of(told.status);
      if (told.number == 0) return;
      ASSERT_EQ(told.number, ++zone);
    }
  }
  Told by_map(Op op, std::string_view key, std::uint64_t move, bool leaves, std::string_view value = {}) {
    Request asked = numbered(request(op, key, value));
    asked.move = move;
    if (leaves) asked.flags |= Request::kLeaves;
    return ask(asked);
  }
};

TEST(OutbackMoves, OnlyTheHolderOfTheLeaseMovesKeys) {
  Moving table;
  ASSERT_EQ(table.change(Op::put, "key", "v").status, Status::done);
  for (const Op op : {Op::close, Op::leave, Op::left, Op::stay, Op::finish}) {
    EXPECT_EQ(table.step(op, has_key(op) ? "key" : "", kMove, kAnother).status, Status::no_lease);
  }
  Request comes = table.numbered(table.request(Op::insert, "comes", "v"), 1);
  comes.flags = Request::kByMover;
  comes.move = kMove;
  EXPECT_EQ(table.ask(comes, kAnother).status, Status::no_lease);
  table.lease_to(0);
  EXPECT_EQ(table.step(Op::finish).status, Status::no_lease);
  EXPECT_EQ(table.move_finished(), 0u);
  EXPECT_EQ(table.change(Op::put, "key", "w").status, Status::done) << "nothing was closed";
  table.lease_to(kMover);
  EXPECT_EQ(table.ask(comes).status, Status::done);
  EXPECT_EQ(table.step(Op::finish).status, Status::done);
  EXPECT_EQ(table.move_finished(), kMove);
}

TEST(OutbackMoves, AMemoryNodeWithoutMovesKnowsNoStepOfThem) {
  TestTable table(TestTable::figures(16));
  Request asked = table.request(Op::close, {});
  asked.move = kMove;
  EXPECT_EQ(table.ask(asked).status, Status::bad_op);
}

TEST(OutbackMoves, AClosedTableTellsEachClientWhatItsMapIsWorth) {
  Moving table(4);
  ASSERT_EQ(table.change(Op::put, "key", "v").status, Status::done);
  table.close_all();
  for (const bool leaves : {true, false}) {
    EXPECT_EQ(table.by_map(Op::put, "key", kMove - 1, leaves, "w").status, Status::old_map);
    EXPECT_EQ(table.by_map(Op::remove, "key", kMove - 1, leaves).status, Status::old_map);
    EXPECT_EQ(table.by_map(Op::insert, "none", kMove, leaves, "w").status, leaves ? Status::moved : Status::done);
    EXPECT_EQ(table.by_map(Op::insert, "none", kMove + 1, leaves, "w").status, leaves ? Status::done : Status::present);
    EXPECT_EQ(table.by_map(Op::put, "key", kMove, leaves, "v").status, Status::done);
    (void)table.by_map(Op::remove, "none", kMove, leaves);
  }
  const auto flags = [&](std::uint64_t move) { return table.step(Op::find, "none", move).flags; };
  EXPECT_EQ(flags(kMove - 1) & (Reply::kOldMap | Reply::kClosed), Reply::kOldMap);
  EXPECT_EQ(flags(kMove) & (Reply::kOldMap | Reply::kClosed), Reply::kClosed);
  EXPECT_EQ(flags(kMove + 1) & (Reply::kOldMap | Reply::kClosed), 0);
  EXPECT_EQ(table.step(Op::find, "key", 0).value, "v") << "what is there is the truth";
  EXPECT_EQ(table.step(Op::scan, {}, kMove - 1).status, Status::old_map);
  EXPECT_EQ(table.step(Op::scan, {}, kMove).status, Status::done);
  ASSERT_TRUE(table.start());
  EXPECT_EQ(flags(kMove) & (Reply::kOldMap | Reply::kClosed), Reply::kClosed) << "another process knows of it";
  Request back = table.request(Op::close, {});
  back.move = kMove - 1;
  EXPECT_EQ(table.ask(back).status, Status::old_map) << "the number never goes back";
  back.place = 4;
  EXPECT_EQ(table.ask(back).status, Status::bad_place);
}

TEST(OutbackMoves, AKeyThatIsLeavingIsReadAndNotChanged) {
  Moving table;
  ASSERT_EQ(table.change(Op::put, "key", "v").status, Status::done);
  EXPECT_EQ(table.step(Op::leave, "key").status, Status::bad_place) << "the table is not closed";
  table.close_all();
  EXPECT_EQ(table.step(Op::left, "key").status, Status::bad_place) << "it has not been sent";
  EXPECT_EQ(table.step(Op::leave, "none").status, Status::absent);
  for (int times = 0; times < 2; ++times) EXPECT_EQ(table.step(Op::leave, "key").value, "v");
  for (const Op op : {Op::put, Op::update, Op::remove, Op::insert, Op::append, Op::swap}) {
    EXPECT_EQ(table.by_map(op, "key", kMove, true, has_value(op) ? "w" : "").status, Status::leaving);
  }
  EXPECT_EQ(table.step(Op::find, "key").value, "v");
  ASSERT_TRUE(table.start());
  table.attach();
  EXPECT_EQ(table.by_map(Op::put, "key", kMove, true, "w").status, Status::leaving) << "another process knows of it";
  EXPECT_EQ(table.step(Op::stay, "key").status, Status::done);
  EXPECT_EQ(table.by_map(Op::put, "key", kMove, true, "w").status, Status::done);
  EXPECT_EQ(table.step(Op::leave, "key").value, "w");
  EXPECT_EQ(table.step(Op::left, "key").status, Status::done);
  EXPECT_EQ(table.step(Op::left, "key").status, Status::absent);
  EXPECT_EQ(table.by_map(Op::put, "key", kMove, true, "x").status, Status::moved);
  EXPECT_EQ(table.table().totals().keys, 0u);
}

// A mover that cannot mark a key sends others first.
TEST(OutbackMoves, MarksThatAreTakenAreGivenBack) {
  Moving table;
  const auto key = [](std::uint64_t i) { return "key" + std::to_string(i); };
  for (std::uint64_t i = 0; i <= kMostMarks; ++i) ASSERT_EQ(table.change(Op::put, key(i), "v").status, Status::done);
  table.close_all();
  for (std::uint64_t i = 0; i < kMostMarks; ++i) ASSERT_EQ(table.step(Op::leave, key(i)).status, Status::done);
  EXPECT_EQ(table.step(Op::leave, key(kMostMarks)).status, Status::full);
  EXPECT_EQ(table.by_map(Op::put, key(kMostMarks), kMove, true, "w").status, Status::done);
  EXPECT_EQ(table.step(Op::left, key(4)).status, Status::done);
  EXPECT_EQ(table.step(Op::leave, key(kMostMarks)).value, "w");
  EXPECT_EQ(table.step(Op::leave, key(0)).status, Status::done) << "it is marked already";
}

TEST(OutbackMoves, AMarkOfNoKeyIsDamage) {
  Moving table;
  ASSERT_EQ(table.change(Op::put, "key", "v").status, Status::done);
  table.close_all();
  ASSERT_EQ(table.step(Op::leave, "key").status, Status::done);
  std::string wrong;
  EXPECT_TRUE(table.content(wrong)) << wrong;
  std::byte* const mark = table.memory().data() + mark_at(table.table().cut().figures, 0, 0);
  ASSERT_NE(base::load<std::uint64_t>(mark), 0u);
  base::store(mark, base::load<std::uint64_t>(mark) ^ 1);
  EXPECT_FALSE(table.content(wrong));
  EXPECT_EQ(wrong, "a key that is said to leave for another memory node is not there");
}

// After any word the next process finds the key there and leaving, or gone with its mark; another mover ends it.
TEST(OutbackMoves, AProcessThatDiesLeavesNoKeyBehind) {
  Moving whole;
  const auto key = [](int i) { return "key" + std::to_string(i); };
  for (int i = 0; i < 40; ++i) ASSERT_EQ(whole.change(Op::put, key(i), "v").status, Status::done);
  whole.close_all();
  int gone = 0, deaths = 0;
  for (const int which : {0, 39}) {
    std::uint64_t words = 0;
    for (bool dies = true; dies; ++words, ++deaths) {
      Moving table(whole);
      table.death().after(words);
      const Told begun = table.step(Op::leave, key(which));
      if (begun.is(Status::done) && !table.death().dead()) (void)table.step(Op::left, key(which));
      dies = table.death().dead();
      table.death().after(~0ull);
      ASSERT_TRUE(table.start());
      table.attach();
      std::string wrong;
      const auto content = table.content(wrong);
      ASSERT_TRUE(content) << wrong;
      const bool there = content->contains(key(which));
      gone += there ? 0 : 1;
      EXPECT_EQ(content->size(), there ? 40u : 39u);
      const Told again = table.step(Op::leave, key(which));
      EXPECT_EQ(again.status, there ? Status::done : Status::absent);
      if (there) EXPECT_EQ(table.step(Op::left, key(which)).status, Status::done);
      EXPECT_EQ(table.by_map(Op::put, key(which), kMove, false, "w").status, Status::done) << "no mark is left";
    }
  }
  EXPECT_GT(gone, 4);
  EXPECT_GT(deaths, 20);
}

}  // namespace
}  // namespace farpool::outback
