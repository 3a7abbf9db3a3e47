// SPDX-License-Identifier: Apache-2.0
#include "index/outback/node_table.h"

#include <rapidcheck.h>
#include <algorithm>
#include <set>
#include <string>

#include "base/random.h"
#include "index/outback/node_test.h"

namespace farpool::outback {
namespace {

using namespace std::literals;

// --- the three cases of an insert, and what becomes of them

TEST(NodeTable, ServesAGetFromOneSlot) {
  TestTable table(TestTable::figures(2));
  const Told put = table.change(Op::put, "apple", "red");
  ASSERT_EQ(put.status, Status::done);
  Request get = table.request(Op::get, "");
  get.place = table.bucket_of("apple");
  get.argument = slot_of(hash_of(TestTable::kSecret, 99, base::bytes_of("apple"sv)), put.seed.value);
  const Told told = table.ask(get);
  EXPECT_EQ(told.key, "apple");
  EXPECT_EQ(told.value, "red");
  EXPECT_EQ(told.version, put.version);
  EXPECT_EQ(told.seed, put.seed);
  get.argument = (get.argument + 1) % kBucketSlots;
  EXPECT_EQ(table.ask(get).flags & Reply::kEmpty, Reply::kEmpty);
}

TEST(NodeTable, ReseedsABucketWithAFreeSlotAndPutsWhatHasNoneIntoOverflow) {
  TestTable table(TestTable::figures(1));
  std::set<int> versions;
  Told told;
  for (int i = 0; i < 4; ++i) {
    told = table.change(Op::insert, "k" + std::to_string(i), "v");
    ASSERT_EQ(told.status, Status::done);
    EXPECT_EQ(told.flags & kCached, 0);
  }
  EXPECT_EQ(told.seed.version, table.table().totals().marks.reseeds);
  EXPECT_EQ(table.table().totals().marks.overflow_keys, 0u);
  for (int i = 4; i < 9; ++i) {
    told = table.change(Op::insert, "k" + std::to_string(i), "v");
    ASSERT_EQ(told.status, Status::done);
    EXPECT_EQ(told.flags & kCached, kCached);
  }
  EXPECT_EQ(table.table().totals().marks.overflow_keys, 5u);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(table.value_of("k" + std::to_string(i)), "v");
  EXPECT_EQ(table.value_of("k9"), std::nullopt);
  // As slots become free, keys leave the overflow list, and the cache bit goes with the last one.
  for (int i = 0; i < 9; ++i) {
    told = table.change(Op::remove, "k" + std::to_string(i));
    ASSERT_EQ(told.status, Status::done);
    std::string wrong;
    EXPECT_EQ(table.content(wrong).value_or(TestTable::Model{}).size(), 8u - static_cast<unsigned>(i)) << wrong;
    for (int k = i + 1; k < 9; ++k) EXPECT_EQ(table.value_of("k" + std::to_string(k)), "v");
  }
  EXPECT_GT(table.table().totals().marks.pulled, 0u);
  EXPECT_EQ(told.flags & kCached, 0);
}

TEST(NodeTable, TellsKeysApartThatHaveOnePrintAndOneSlot) {
  TestTable table(TestTable::figures(1));
  const std::string first = "k0";
  const std::uint64_t hash = hash_of(TestTable::kSecret, 99, base::bytes_of(std::string_view(first)));
  const std::uint8_t seed = table.change(Op::put, first, "v").seed.value;
  std::string other;
  for (int i = 1; other.empty(); ++i) {
    const std::string key = "k" + std::to_string(i);
    const std::uint64_t its = hash_of(TestTable::kSecret, 99, base::bytes_of(std::string_view(key)));
    if (print_of(its) == print_of(hash) && slot_of(its, seed) == slot_of(hash, seed)) other = key;
  }
  EXPECT_EQ(table.value_of(other), std::nullopt);
  EXPECT_EQ(table.change(Op::remove, other).status, Status::absent);
  EXPECT_EQ(table.change(Op::insert, other, "w").status, Status::done);
  EXPECT_EQ(table.value_of(first), "v");
  EXPECT_EQ(table.value_of(other), "w");
}

TEST(NodeTable, LooksAtTheLineBeforeTheGeneration) {
  TestTable table(TestTable::figures(2));
  for (const bool restart : {false, true}) {
    const std::string value = restart ? "x1" : "x0";
    const Request swap = table.numbered(table.request(Op::swap, "a", value));
    const Told first = table.ask(swap);
    Request old = swap;
    old.generation = 0;
    if (restart) {
      ASSERT_TRUE(table.start());
      table.attach();
    }
    const Told again = table.ask(old);
    EXPECT_EQ(again.status, first.status) << "the change has taken effect, whatever has become of the locator";
    EXPECT_EQ(again.value, first.value);
    EXPECT_NE(again.flags & Reply::kAgain, 0);
  }
  Request refused = table.numbered(table.request(Op::insert, "a", "z"));
  EXPECT_EQ(table.ask(refused).status, Status::present);
  refused.generation = 0;
  EXPECT_EQ(table.ask(refused).status, Status::present);
  // A change that has not been carried out is not, and its id is not used up.
  Request late = table.numbered(table.request(Op::insert, "b", "z"));
  late.generation = 0;
  EXPECT_EQ(table.ask(late).status, Status::stale);
  EXPECT_EQ(table.value_of("b"), std::nullopt);
  late.generation = 1;
  EXPECT_EQ(table.ask(late).status, Status::done);
}

// --- operations as Redis has them

TEST(NodeTable, ChangesValuesAsRedisDoes) {
  TestTable table(TestTable::figures(8));
  Request add = table.request(Op::add, "n");
  add.argument = static_cast<std::uint64_t>(-5);
  EXPECT_EQ(static_cast<std::int64_t>(table.ask(table.numbered(add)).number), -5);
  EXPECT_EQ(table.value_of("n"), "-5");
  add.argument = static_cast<std::uint64_t>(INT64_MIN);
  EXPECT_EQ(table.ask(table.numbered(add)).status, Status::beyond_integer);
  EXPECT_EQ(table.change(Op::append, "s", "ab").number, 2u);
  EXPECT_EQ(table.change(Op::append, "s", "cd").number, 4u);
  add = table.request(Op::add, "s");
  EXPECT_EQ(table.ask(table.numbered(add)).status, Status::not_integer);
  Request overlay = table.request(Op::overlay, "s", "XY");
  overlay.argument = 6;
  EXPECT_EQ(table.ask(table.numbered(overlay)).number, 8u);
  EXPECT_EQ(table.value_of("s"), "abcd\0\0XY"s);
  overlay.argument = layout::kMaxValueBytes;
  EXPECT_EQ(table.ask(table.numbered(overlay)).status, Status::beyond_value);
  EXPECT_EQ(table.change(Op::swap, "s", "z").value, "abcd\0\0XY"s);
  EXPECT_EQ(table.change(Op::take, "s").value, "z");
  EXPECT_EQ(table.change(Op::take, "s").status, Status::absent);
  EXPECT_EQ(table.change(Op::add_float, "f", "0.1").value, "0.1");
  EXPECT_EQ(table.change(Op::add_float, "f", "0.2").value, "0.3");
  EXPECT_EQ(table.change(Op::add_float, "f", "x").status, Status::not_float);
  EXPECT_EQ(table.change(Op::add_float, "f", "inf").status, Status::not_finite);
  EXPECT_EQ(table.change(Op::insert, "f", "1").status, Status::present);
  EXPECT_EQ(table.change(Op::update, "g", "1").status, Status::absent);
  EXPECT_EQ(table.change(Op::remove, "g").status, Status::absent);
  const Told count = table.ask({.op = Op::count});
  EXPECT_EQ(count.number, 2u);
  EXPECT_EQ(count.version, 2u + 2 + 3);
}

TEST(NodeTable, ChangesAnEntryOnlyIfItHasTheVersion) {
  TestTable table(TestTable::figures(2));
  const Told first = table.change(Op::put, "a", "1");
  Request update = table.request(Op::update, "a", "2");
  update.flags = Request::kIfVersion;
  update.version = first.version;
  const Told second = table.ask(table.numbered(update));
  EXPECT_EQ(second.status, Status::done);
  EXPECT_NE(second.version, first.version);
  const Told third = table.ask(table.numbered(update));
  EXPECT_EQ(third.status, Status::version);
  EXPECT_EQ(third.version, second.version);
  ASSERT_EQ(table.change(Op::remove, "a").status, Status::done);
  ASSERT_TRUE(table.start());
  table.attach();
  std::set<std::uint64_t> versions{first.version, second.version};
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(versions.insert(table.change(Op::put, "a", "3").version).second) << "another life, other versions";
  }
  update.version = second.version;
  EXPECT_EQ(table.ask(table.numbered(update)).status, Status::version);
}

// --- bad input

TEST(NodeTable, RefusesWhatCannotBeAndChangesNothing) {
  TestTable table(TestTable::figures(16));
  ASSERT_EQ(table.change(Op::put, "a", "1").status, Status::done);
  const std::uint64_t written = table.death().written();
  const auto refused = [&](const char* what, Status expected, const std::function<void(Request&)>& spoil,
                           std::uint64_t session = TestTable::kSession) {
    Request request = table.numbered(table.request(Op::put, "a", "2"), 3);
    spoil(request);
    EXPECT_EQ(table.ask(request, session).status, expected) << what;
  };
  refused("an old locator", Status::stale, [](Request& r) { r.generation = 0; });
  refused("a table that is not there", Status::bad_table, [](Request& r) { r.table = 1; });
  refused("a bucket that is not there", Status::bad_place, [](Request& r) { r.place = 16; });
  refused("a bucket of other keys", Status::bad_place, [&](Request& r) {
    const Candidates at = Candidates::of(hash_of(TestTable::kSecret, 99, r.key), {.partitions = 1, .buckets = 16});
    while (r.place == at.buckets[0] || r.place == at.buckets[1]) r.place = (r.place + 1) % 16;
  });
  refused(
      "another session", Status::not_attached, [](Request&) {}, 8);
  refused("no such client", Status::not_attached, [](Request& r) { r.client = 9; });
  refused("no such line", Status::bad_request_id, [](Request& r) { r.request_id = fabric::RequestId{4, 1}.word(); });
  refused("no request id", Status::bad_request_id, [](Request& r) { r.request_id = 0; });
  Request get = table.request(Op::get, "");
  get.argument = 4;
  EXPECT_EQ(table.ask(get).status, Status::bad_place);
  EXPECT_EQ(table.death().written(), written);
  EXPECT_EQ(table.value_of("a"), "1");
}

TEST(NodeTable, RefusesWhatHasNoRoomAndGoesOn) {
  TestTable table(TestTable::figures(64, 256 * 1024));
  const std::string value(10'000, 'v');
  int added = 0;
  Told told;
  while ((told = table.change(Op::insert, "k" + std::to_string(added), value)).status == Status::done) ++added;
  EXPECT_EQ(told.status, Status::full);
  EXPECT_GT(added, 5);
  EXPECT_EQ(table.change(Op::remove, "k0").status, Status::done);
  EXPECT_EQ(table.change(Op::insert, "again", value).status, Status::done);
  std::string wrong;
  EXPECT_TRUE(table.content(wrong).has_value()) << wrong;
}

// --- request lines

TEST(NodeTable, TellsTheOutcomeAgainAndForgetsOldRequests) {
  TestTable table(TestTable::figures(4));
  const std::string value(500, 'v');
  ASSERT_EQ(table.change(Op::put, "a", value).status, Status::done);
  const Request take = table.numbered(table.request(Op::take, "a"));
  EXPECT_EQ(table.ask(take).value, value);
  const Told again = table.ask(take);
  EXPECT_EQ(again.value, value);
  EXPECT_EQ(again.flags & Reply::kAgain, Reply::kAgain);
  const Request insert = table.numbered(table.request(Op::insert, "a", "2"));
  EXPECT_EQ(table.ask(insert).status, Status::done);
  EXPECT_EQ(table.ask(insert).status, Status::done) << "not present: it is its own";
  EXPECT_EQ(table.ask(take).status, Status::forgotten);
  const Request lost = table.numbered(table.request(Op::insert, "a", "3"));
  EXPECT_EQ(table.ask(lost).status, Status::present);
  ASSERT_EQ(table.change(Op::remove, "a", "", 1).status, Status::done);
  EXPECT_EQ(table.ask(lost).status, Status::present) << "it has been told so before";
  EXPECT_EQ(table.value_of("a"), std::nullopt);
}

TEST(NodeTable, GivesTheLinesOfTheClientThatLeftFirstToAnother) {
  TestTable table(TestTable::figures(4));
  table.attach(8, 1);
  EXPECT_EQ(table.ask({.op = Op::attach, .argument = 2}, 9).status, Status::no_client);
  table.table().forget_session(8);
  table.table().forget_session(TestTable::kSession);
  const Told told = table.ask({.op = Op::attach, .argument = 2}, 9);
  EXPECT_EQ(told.status, Status::done);
  EXPECT_EQ(told.flags & Reply::kFresh, Reply::kFresh);
  EXPECT_EQ(table.ask({.op = Op::attach, .argument = TestTable::kToken}, 10).flags & Reply::kFresh, 0);
  table.table().forget_session(9);
  EXPECT_EQ(table.ask({.op = Op::attach, .argument = 1}, 11).flags & Reply::kFresh, Reply::kFresh);
}

TEST(NodeTable, KeepsNoMoreBlocksForLinesThanThereAreLines) {
  TestTable table(TestTable::figures(4));
  const std::string value(500, 'v');
  for (std::uint32_t i = 0; i < 100; ++i) ASSERT_EQ(table.change(Op::swap, "a", value, i % 4).status, Status::done);
  EXPECT_LE(table.table().zone(0).usage().live, 7 * block_bytes(1, 500));
}

// What a line of a client that has left remembered was freed when it left, and is another key's by now.
TEST(NodeTable, FreesWhatALineRememberedOnce) {
  for (const bool detaches : {true, false}) {
    TestTable table(TestTable::figures(4));
    const std::string value(500, 'v');
    for (std::uint32_t line = 0; line < 4; ++line) {
      ASSERT_EQ(table.change(Op::put, "a", value, line).status, Status::done);
      ASSERT_EQ(table.change(Op::take, "a", "", line).value, value);
    }
    if (detaches) {
      Request request = table.request(Op::detach, "");
      ASSERT_EQ(table.ask(request).status, Status::done);
    } else {
      table.attach(8, 1);
      table.table().forget_session(TestTable::kSession);
    }
    table.attach(9, 2);
    TestTable::Model model;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::string key = "k" + std::to_string(i);
      ASSERT_EQ(table.ask(table.numbered(table.request(Op::put, key, value), i % 4), 9).status, Status::done);
      model.emplace(key, value);
    }
    EXPECT_EQ(table.table().zone(0).usage().live, 8 * block_bytes(2, 500));
    std::string wrong;
    EXPECT_EQ(table.content(wrong), model) << wrong;
  }
}

TEST(NodeTable, LetsValuesChangeTheirLengthWhenThereIsNoRoomForAnotherKey) {
  for (const bool restart : {false, true}) {
    for (const std::size_t bytes : {60u, 700u, 3000u}) {
      TestTable table(TestTable::figures(16, 256 * 1024));
      const auto insert = [&](int i) {
        return table.change(Op::insert, "k" + std::to_string(i), std::string(bytes, 'v'));
      };
      int keys = 0;
      while (insert(keys).status == Status::done) ++keys;
      ASSERT_GT(keys, 10);
      if (restart) {
        ASSERT_TRUE(table.start());
        table.attach();
      }
      for (int round = 0; round < 100; ++round) {
        const std::string key = "k" + std::to_string(round % keys), other(bytes + (round < keys ? 300 : 0), 'w');
        const Told told = table.change(Op::update, key, other);
        if (told.status != Status::done) EXPECT_EQ(told.status, Status::done) << bytes << " bytes, update " << round;
        ASSERT_EQ(table.change(Op::update, key, std::string(bytes, 'v')).status, Status::done) << round;
      }
      // New keys are refused until keys have gone.
      EXPECT_EQ(insert(keys).status, Status::full);
      for (int i = 0; i < keys; ++i) ASSERT_EQ(table.change(Op::remove, "k" + std::to_string(i)).status, Status::done);
      for (int i = 0; i < keys; ++i) ASSERT_EQ(insert(i).status, Status::done) << i << " of " << keys;
    }
  }
}

// --- long blocks, which clients read one-sidedly

TEST(NodeTable, NamesABlockThatHasNoRoomAndKeepsItForAnEra) {
  TestEras eras;
  Figures figures = TestTable::figures(4, 2 << 20);
  TestTable table(figures, {.secret = TestTable::kSecret, .inline_bytes = 4096, .eras = &eras});
  const std::string value(9000, 'v');
  ASSERT_EQ(table.change(Op::put, "a", value).status, Status::done);
  const Told told = table.ask(table.request(Op::find, "a"), TestTable::kSession, 4096);
  ASSERT_EQ(told.flags & Reply::kElsewhere, Reply::kElsewhere);
  EXPECT_EQ(told.value_bytes, value.size());
  const base::Bytes there = base::Bytes(table.memory()).subspan(told.number, block_bytes(1, value.size()));
  const std::vector<std::byte> copy(there.begin(), there.end());
  EXPECT_EQ(base::text_of(read_block(copy, told.number)->value), value);
  // As many updates as would go round the memory: while the era lasts, the block stays as it is.
  for (int i = 0; i < 20; ++i) ASSERT_EQ(table.change(Op::put, "a", std::string(9000, 'w')).status, Status::done);
  EXPECT_TRUE(std::ranges::equal(there, copy));
  eras.now_ = 2;
  eras.safe_ = 2;
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(table.change(Op::put, "a", std::string(9000, 'x')).status, Status::done);
    eras.safe_ = ++eras.now_;
  }
  EXPECT_LE(table.table().zone(0).waiting_for_eras(), 2u);
  for (int i = 0; table.change(Op::insert, "b" + std::to_string(i), std::string(9000, 'y')).status == Status::done;)
    ++i;
  EXPECT_FALSE(std::ranges::equal(there, copy));
}

TEST(NodeTable, KeepsEachBlockThatMayHaveNoRoomInAReplyForAnEra) {
  TestEras eras;
  TestTable table(TestTable::figures(4), {.secret = TestTable::kSecret, .eras = &eras});
  const std::string value(4049, 'v');  // the shortest that, with a key of a byte, has no room beside a head
  ASSERT_GT(layout::kv_reply_bytes(1, value.size()), kReplyRoom);
  const Told put = table.change(Op::put, "a", value);
  ASSERT_EQ(put.status, Status::done);
  Request get{.op = Op::get, .place = table.bucket_of("a"), .generation = 1};
  get.argument = slot_of(hash_of(TestTable::kSecret, 99, base::bytes_of("a"sv)), put.seed.value);
  const Told told = table.ask(get, TestTable::kSession, kReplyRoom);
  ASSERT_EQ(told.flags & Reply::kElsewhere, Reply::kElsewhere);
  const base::Bytes there = base::Bytes(table.memory()).subspan(told.number, block_bytes(1, value.size()));
  const std::vector<std::byte> copy(there.begin(), there.end());
  for (int i = 0; i < 20; ++i) ASSERT_EQ(table.change(Op::put, "a", std::string(4049, 'w')).status, Status::done);
  EXPECT_TRUE(std::ranges::equal(there, copy));
}

TEST(NodeTable, SaysThatRoomWaitsForAnEra) {
  TestEras eras;
  TestTable table(TestTable::figures(4, 256 * 1024),
                  {.secret = TestTable::kSecret, .inline_bytes = 1024, .eras = &eras});
  Told told;
  while ((told = table.change(Op::put, "a", std::string(20'000, 'v'))).status == Status::done) {
  }
  EXPECT_EQ(told.status, Status::full);
  EXPECT_EQ(told.flags & Reply::kWaits, Reply::kWaits);
  eras.now_ = eras.safe_ = 2;
  EXPECT_EQ(table.change(Op::put, "a", std::string(20'000, 'v')).status, Status::done);
}

TEST(NodeTable, CarriesTheLongestKeysAndValues) {
  Figures figures = TestTable::figures(4, 8 << 20);
  figures.chunk_bytes = 2 << 20;
  TestTable table(figures);
  const std::string key(layout::kMaxKeyBytes, 'k'), value(layout::kMaxValueBytes, 'v');
  ASSERT_EQ(table.change(Op::put, key, value).status, Status::done);
  EXPECT_EQ(table.value_of(key), value);
  EXPECT_EQ(table.change(Op::append, key, "x").status, Status::beyond_value);
  ASSERT_TRUE(table.start());
  EXPECT_EQ(table.value_of(key), value);
}

// --- scans

TestTable::Model scanned(TestTable& table, std::size_t room) {
  TestTable::Model keys;
  std::uint64_t position = 0;
  do {
    Request scan{.op = Op::scan, .place = position, .generation = 1, .argument = 3};
    const Told told = table.ask(scan, TestTable::kSession, room);
    EXPECT_EQ(told.status, Status::done);
    base::Bytes rest = base::bytes_of(std::string_view(told.value));
    ScanKey key;
    bool bad = false;
    while (next_scan_key(rest, key, bad)) {
      std::string text(base::text_of(key.key));
      if (key.address != 0) {
        const auto block = view_block(table.table().cut(), table.memory(), key.address);
        text = base::text_of(block.value().key);
      }
      EXPECT_TRUE(keys.emplace(text, "").second);
    }
    EXPECT_FALSE(bad);
    position = told.number;
  } while (position != 0);
  return keys;
}
TEST(NodeTable, ScansEveryKeyOnceWhateverTheRoom) {
  TestTable table(TestTable::figures(8, 1 << 20, 2));
  TestTable::Model all;
  for (int i = 0; i < 60; ++i) {
    const std::string key = "k" + std::to_string(i) + (i % 7 == 0 ? std::string(300, 'x') : "");
    ASSERT_EQ(table.change(Op::put, key, "v").status, Status::done);
    all[key] = "";
  }
  EXPECT_EQ(scanned(table, 1 << 16), all);
  EXPECT_EQ(scanned(table, 400), all);
  EXPECT_GT(table.table().totals().marks.overflow_keys, 0u);
}

// --- against a model

struct Doing {
  int op;
  int key;
  int bytes;
  bool restart;
};
std::ostream& operator<<(std::ostream& out, const Doing& doing) {
  return out << "{" << doing.op << ", key " << doing.key << ", " << doing.bytes << (doing.restart ? ", restart}" : "}");
}

void apply(TestTable::Model& model, Op op, const std::string& key, const std::string& value, Status& status) {
  const bool there = model.contains(key);
  status = Status::done;
  if (op == Op::insert && there) status = Status::present;
  if ((op == Op::update || op == Op::remove || op == Op::take) && !there) status = Status::absent;
  if (status != Status::done) return;
  if (op == Op::remove || op == Op::take) {
    model.erase(key);
  } else if (op == Op::append) {
    model[key] += value;
  } else {
    model[key] = value;
  }
}

TEST(NodeTableProperty, IsAMapWhateverIsAskedInAnyOrderAndOverRestarts) {
  const auto doing = rc::gen::construct<Doing>(
      rc::gen::inRange(0, 7), rc::gen::inRange(0, 24),
      rc::gen::weightedOneOf<int>({{8, rc::gen::inRange(0, 80)}, {2, rc::gen::inRange(80, 3000)}}),
      rc::gen::map(rc::gen::inRange(0, 40), [](int i) { return i == 0; }));
  rc::check([&] {
    const auto todo = *rc::gen::scale(3.0, rc::gen::container<std::vector<Doing>>(doing)).as("what is done");
    const auto buckets = *rc::gen::element<std::uint64_t>(1, 2, 4, 6);
    TestTable table(TestTable::figures(buckets, 1 << 20, buckets == 6 ? 3 : 1));
    TestTable::Model model;
    constexpr std::array kOps = {Op::put, Op::insert, Op::update, Op::remove, Op::append, Op::swap, Op::take};
    for (const Doing& each : todo) {
      const std::string key = "key" + std::to_string(each.key), value(static_cast<std::size_t>(each.bytes), 'v');
      const Op op = kOps[static_cast<std::size_t>(each.op)];
      const std::string before = model.contains(key) ? model[key] : "";
      Status expected = Status::done;
      apply(model, op, key, value, expected);
      const Told told = table.change(op, key, has_value(op) ? value : "", static_cast<std::uint32_t>(each.key % 4));
      RC_ASSERT(told.status == expected);
      if ((op == Op::take || op == Op::swap) && expected == Status::done) RC_ASSERT(told.value == before);
      if (each.restart) {
        RC_ASSERT(table.start());
        table.attach();
      }
    }
    std::string wrong;
    const auto found = table.content(wrong);
    RC_ASSERT(wrong == "");
    RC_ASSERT(*found == model);
    RC_ASSERT(table.table().totals().keys == model.size());
    for (const auto& [key, value] : model) RC_ASSERT(table.value_of(key) == value);
  });
}

// --- space

struct Share {
  double most = 0;
  std::uint64_t moved = 0;
};
Share churn(int updates, const std::function<std::size_t(base::Random&, int)>& bytes) {
  TestTable table([] {
    Figures figures = TestTable::figures(4096, 48 << 20);
    figures.chunk_bytes = 1 << 20;
    return figures;
  }());
  base::Random random(1);
  Share share;
  for (int i = 0; i < updates; ++i) {
    const std::string key = "key" + std::to_string(random.below(12'000));
    EXPECT_EQ(table.change(Op::put, key, std::string(bytes(random, i), 'v')).status, Status::done);
    if (i < updates / 4 || i % 997 != 0) continue;
    const Slabs::Usage& usage = table.table().zone(0).usage();
    share.most = std::max(share.most, static_cast<double>(usage.taken) / static_cast<double>(usage.live));
  }
  std::string wrong;
  EXPECT_TRUE(table.content(wrong).has_value()) << wrong;
  share.moved = table.table().totals().marks.moved_blocks;
  return share;
}
TEST(NodeTableSpace, TakesLittleMoreThanItsBlocks) {
  const Share mixed = churn(60'000, [](base::Random& random, int) { return 20 + random.below(1500); });
  EXPECT_LE(mixed.most, 1.15);
  const Share small = churn(60'000, [](base::Random& random, int) { return 500 + random.below(20); });
  EXPECT_LE(small.most, 1.15);
  // Lengths that change with time: pages of the old ones are emptied.
  const Share drifting = churn(100'000, [](base::Random& random, int i) {
    return 300 + static_cast<std::size_t>(i / 1000) * 10 + random.below(100);
  });
  EXPECT_LE(drifting.most, 1.15);
  EXPECT_GT(drifting.moved, 0u);
  RecordProperty("mixed", std::to_string(mixed.most));
  RecordProperty("small", std::to_string(small.most));
  RecordProperty("drifting", std::to_string(drifting.most));
  std::cout << "taken over live: mixed " << mixed.most << " (" << mixed.moved << " moved), of one size " << small.most
            << ", drifting " << drifting.most << " (" << drifting.moved << " moved)\n";
}

TEST(NodeTableSpace, MovesBlocksOfOverflowListsToo) {
  Figures figures = TestTable::figures(64, 8 << 20);
  figures.overflow = 16;
  figures.lines = 64;
  TestTable table(figures);
  TestTable::Model model;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 1200; ++i) {
      // Every third key stays as it is, in pages that the others leave.
      if (round > 0 && i % 3 == 0) continue;
      const std::string key = "key" + std::to_string(i);
      const std::string value(150 + static_cast<std::size_t>(round) * 100, static_cast<char>('a' + round));
      // Lines hold some blocks in pages that are emptied: these stay where they are.
      const bool held = round == 1 && i % 20 == 1;
      const auto line = static_cast<std::uint32_t>(held ? 1 + i / 20 : 0);
      ASSERT_EQ(table.change(held ? Op::swap : Op::put, key, value, line).status, Status::done);
      model[key] = value;
    }
  }
  EXPECT_GT(table.table().totals().marks.overflow_keys, 800u);
  EXPECT_GT(table.table().totals().marks.moved_blocks, 0u);
  std::string wrong;
  EXPECT_EQ(table.content(wrong), model) << wrong;
}

}  // namespace
}  // namespace farpool::outback
