// SPDX-License-Identifier: Apache-2.0
// The memory node's process dies after every word that it writes: of each operation, in each state of its bucket, of the
// tidying after it, and of the process that takes the memory over. Then nothing that was acknowledged is gone, nothing is
// there by half, and who asks again with the request's id is told what came of it, once.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "index/outback/node_test.h"

namespace farpool::outback {
namespace {

// How the table is before the operation: so many keys, so that buckets are empty, full, or have keys in overflow.
struct Scene {
  std::string name;
  std::uint64_t buckets = 2;
  int keys = 0;
  std::size_t value_bytes = 10;
};
std::string key_of(int number) { return "key" + std::to_string(number); }

void prepare(TestTable& table, const Scene& scene, TestTable::Model& model) {
  for (int i = 0; i < scene.keys; ++i) {
    const std::string key = key_of(i);
    const std::string value = i % 3 == 0 ? std::to_string(1000 + i) : std::string(scene.value_bytes, 'a');
    ASSERT_EQ(table.change(Op::put, key, value).status, Status::done);
    model[key] = value;
  }
}

struct Step {
  std::string name;
  Op op;
  std::string key;
  std::string value;
  std::uint64_t argument = 0;
};
std::vector<Step> steps(const Scene& scene) {
  std::vector<Step> all;
  const std::string same(scene.value_bytes, 'b'), longer(scene.value_bytes + 40, 'c'), huge(2050, 'd');
  for (const std::string& key : {key_of(0), key_of(scene.keys - 1), std::string("new")}) {
    all.push_back({"insert", Op::insert, key, same});
    all.push_back({"update in place", Op::update, key, same});
    all.push_back({"update", Op::update, key, longer});
    all.push_back({"remove", Op::remove, key, ""});
    all.push_back({"add", Op::add, key, "", 5});
    all.push_back({"append", Op::append, key, "tail"});
    all.push_back({"overlay", Op::overlay, key, "patch", 3});
    all.push_back({"swap", Op::swap, key, same});
    all.push_back({"swap for a long one", Op::swap, key, longer});
    all.push_back({"take", Op::take, key, ""});
    all.push_back({"add_float", Op::add_float, key, "0.5"});
    all.push_back({"add_float, long", Op::add_float, key, "1e60"});
  }
  all.push_back({"put a long one", Op::put, key_of(0), huge});
  return all;
}

std::string described(const Told& told) {
  return std::string(text_of(told.status)) + "|" + std::to_string(told.number) + "|" + told.value + "|" +
         std::to_string(told.flags & Reply::kExisted);
}
Request asked(TestTable& table, const Step& step) {
  Request request = table.request(step.op, step.key, step.value);
  request.argument = step.argument;
  return request;
}

// A table as the scene says, and what a step comes to when nobody dies.
struct Stage {
  explicit Stage(const Scene& scene) : table(TestTable::figures(scene.buckets, 128 << 10)) {
    prepare(table, scene, before);
  }
  TestTable table;
  TestTable::Model before;
};
struct Expected {
  std::string outcome;
  TestTable::Model after;
  std::uint64_t words = 0;
};
Expected alive(const Stage& stage, const Step& step) {
  TestTable table(stage.table);
  Expected expected;
  const std::uint64_t begin = table.death().written();
  expected.outcome = described(table.ask(table.numbered(asked(table, step))));
  expected.words = table.death().written() - begin;
  std::string wrong;
  expected.after = table.content(wrong).value_or(TestTable::Model{});
  EXPECT_EQ(wrong, "") << step.name;
  // No key but the step's own changes.
  TestTable::Model others = expected.after, before = stage.before;
  others.erase(step.key);
  before.erase(step.key);
  EXPECT_EQ(others, before) << step.name << " of " << step.key;
  return expected;
}

// A key that is not there, and whose slot is empty, if there is such a slot.
std::string late_key(TestTable& table, const std::string& name) {
  for (int i = 0; i < 12; ++i) {
    const std::string key = name + "_" + std::to_string(i);
    const Told told = table.ask(table.request(Op::find, key));
    Request get{.op = Op::get, .place = table.bucket_of(key), .generation = 1};
    get.argument = slot_of(hash_of(TestTable::kSecret, 99, base::bytes_of(std::string_view(key))), told.seed.value);
    if ((table.ask(get).flags & Reply::kEmpty) != 0) return key;
  }
  return name;
}

// Dies after `words` words of the step, and after `more` of the next process; then asks again.
std::string die(const Stage& stage, const Step& step, const Expected& expected, std::uint64_t words,
                std::uint64_t more) {
  TestTable table(stage.table);
  const Request request = table.numbered(asked(table, step));
  table.death().after(words);
  (void)table.ask(request);
  std::string wrong;
  const auto left = table.content(wrong);
  if (!left) return "after the death: " + wrong;
  if (*left != stage.before && *left != expected.after) return "a partial change is left";
  table.death().after(more);
  const bool started = table.start();
  table.death().after(~0ull);
  if (!started && !table.start()) return "no process can take it over";
  if (table.table().totals().keys != left->size()) return "the counter of keys is wrong";
  for (const auto& [key, value] : *left) {
    if (table.value_of(key) != value) return "taken over, a key cannot be found";
  }
  table.attach();
  const std::string outcome = described(table.ask(request));
  if (outcome != expected.outcome) return "the outcome is " + outcome + ", not " + expected.outcome;
  const auto after = table.content(wrong);
  if (!after || *after != expected.after) return "asked again, it is not what it should be: " + wrong;
  const std::string again = described(table.ask(request));
  if (again != expected.outcome) return "asked a third time, the outcome is " + again;
  // A death may have left a free slot in a bucket that has keys in overflow: inserts go on from there.
  TestTable::Model late = expected.after;
  for (const std::string number : {"0", "1", "2"}) {
    const std::string key = late_key(table, "late" + step.key + number);
    if (table.change(Op::insert, key, "late", 1).status != Status::done) return "a later insert fails";
    late[key] = "late";
    const auto now = table.content(wrong);
    if (!now || *now != late) return "a later insert leaves something else: " + wrong;
  }
  for (const auto& [key, value] : late) {
    if (table.value_of(key) != value) return "a key cannot be found";
    if (table.change(Op::insert, key, "twice", 1).status != Status::present) return "a key can be inserted twice";
  }
  return "";
}

class Crash : public testing::TestWithParam<Scene> {};

TEST_P(Crash, AfterEveryWordOfEveryOperation) {
  const Scene& scene = GetParam();
  const Stage stage(scene);
  std::uint64_t deaths = 0;
  for (const Step& step : steps(scene)) {
    const Expected expected = alive(stage, step);
    for (std::uint64_t words = 0; words <= expected.words; ++words) {
      ++deaths;
      ASSERT_EQ(die(stage, step, expected, words, ~0ull), "")
          << scene.name << ", " << step.name << " of " << step.key << ", after " << words << " words";
    }
  }
  RecordProperty("deaths", std::to_string(deaths));
}

TEST_P(Crash, AfterEveryWordOfTheNextProcess) {
  const Scene& scene = GetParam();
  const Stage stage(scene);
  for (const Step& step : {Step{"insert", Op::insert, "new", "value"}, Step{"remove", Op::remove, key_of(0), ""},
                           Step{"swap", Op::swap, key_of(1), std::string(100, 'x')}}) {
    const Expected expected = alive(stage, step);
    for (std::uint64_t words = 0; words <= expected.words; ++words) {
      for (std::uint64_t more = 0; more < 12; ++more) {
        ASSERT_EQ(die(stage, step, expected, words, more), "")
            << scene.name << ", " << step.name << ", after " << words << " words and " << more;
      }
    }
  }
}

// Between a remove and what follows it, a bucket has a free slot and keys in overflow.
TEST(CrashOfRemoves, LeaveKeysInOverflowThatAreFound) {
  const Scene scene{"one bucket", 1, 9};
  const Stage stage(scene);
  for (int i = 0; i < scene.keys; ++i) {
    const Step step{"remove", Op::remove, key_of(i), ""};
    const Expected expected = alive(stage, step);
    for (std::uint64_t words = 0; words <= expected.words; ++words) {
      ASSERT_EQ(die(stage, step, expected, words, ~0ull), "") << step.key << ", after " << words << " words";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenes, Crash,
                         testing::Values(Scene{"empty", 2, 1}, Scene{"half", 2, 4}, Scene{"nearly full", 2, 7},
                                         Scene{"overflow", 2, 12}, Scene{"one bucket", 1, 6},
                                         Scene{"three in one bucket", 1, 3}, Scene{"long values", 2, 9, 200}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

// A client that goes, or whose lines another one takes, leaves nothing held.
TEST(CrashOfClients, AttachAndDetachAreWhole) {
  for (const bool detach : {true, false}) {
    for (std::uint64_t words = 0; words < 12; ++words) {
      TestTable table(TestTable::figures(2));
      const std::string value(200, 'v');
      ASSERT_EQ(table.change(Op::put, "a", value).status, Status::done);
      ASSERT_EQ(table.change(Op::take, "a", "", 1).value, value);
      ASSERT_EQ(table.change(Op::put, "b", value, 2).status, Status::done);
      table.table().forget_session(TestTable::kSession);
      table.attach(8, 1);
      table.attach(8, TestTable::kToken);
      table.death().after(words);
      Request request{.op = detach ? Op::detach : Op::attach};
      if (!detach) {
        table.table().forget_session(8);
        request.argument = 2;
      }
      (void)table.ask(request, 8);
      table.death().after(~0ull);
      ASSERT_TRUE(table.start());
      std::string wrong;
      EXPECT_EQ(table.content(wrong), (TestTable::Model{{"b", value}})) << wrong;
      table.attach(9, 3);
      table.attach(9, 4);
      EXPECT_EQ(table.content(wrong), (TestTable::Model{{"b", value}})) << wrong;
    }
  }
}

}  // namespace
}  // namespace farpool::outback
