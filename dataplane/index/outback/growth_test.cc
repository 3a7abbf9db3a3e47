// SPDX-License-Identifier: Apache-2.0
// A table that gets other locators, of as many buckets or of more, while it is used.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "index/outback/node_test.h"

namespace farpool::outback {
namespace {

std::string key_of(int number) { return "key" + std::to_string(number); }

// Small steps, so that there is much between them.
GrowthSettings slow(std::uint32_t step = 1) { return {.step = step, .most_step = std::max(step, 4u)}; }

Figures figures_of(std::uint64_t buckets, std::uint64_t zones, std::uint64_t doublings,
                   std::uint64_t memory = 1 << 20) {
  Figures figures = TestTable::figures(buckets, memory, zones);
  figures.overflow = buckets << doublings;
  figures.doublings = doublings;
  return figures;
}

// Every key is where the locator says, and a client that has read it finds the key with a get of one slot.
void expect_in_slots(TestTable& table, const TestTable::Model& model, double share) {
  std::size_t found = 0;
  for (const auto& [key, value] : model) {
    const std::uint64_t hash = hash_of(TestTable::kSecret, table.table().cut().figures.salt, base::bytes_of(key));
    const Spot spot = table.locator().find(hash);
    Request get{.op = Op::get, .place = spot.bucket, .generation = table.table().stage().generation};
    get.argument = spot.slot;
    const Told told = table.ask(get);
    ASSERT_EQ(told.status, Status::done);
    found += told.key == key && told.value == value ? 1 : 0;
  }
  EXPECT_GE(static_cast<double>(found), share * static_cast<double>(model.size()));
}

void expect_content(TestTable& table, const TestTable::Model& model) {
  std::string wrong;
  const auto content = table.content(wrong);
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(content, model);
  EXPECT_EQ(table.table().totals().keys, model.size());
  for (const auto& [key, value] : model) ASSERT_EQ(table.value_of(key), value) << key;
}

TEST(Growth, GivesTheKeysOfAFullTableSlots) {
  TestTable table(figures_of(64, 1, 0), GrowthSettings{});
  TestTable::Model model;
  int keys = 0;
  while (table.table().growth().figures().begun == 0) {
    const std::string key = key_of(keys++);
    ASSERT_EQ(table.change(Op::insert, key, "v" + key).status, Status::done);
    model[key] = "v" + key;
  }
  EXPECT_GT(table.table().totals().marks.overflow_keys, 10u);
  EXPECT_GT(keys, 150) << "of 256 slots";
  while (table.grow()) {
  }
  EXPECT_EQ(table.table().growth().figures().ended, 1u);
  EXPECT_EQ(table.table().totals().marks.overflow_keys, 0u);
  EXPECT_EQ(table.table().stage().level, 0u);
  EXPECT_NE(table.table().stage().generation, 1u);
  expect_content(table, model);
  expect_in_slots(table, model, 1);
}

TEST(Growth, DoublesATableAsOftenAsTheMemoryHasRoomFor) {
  for (const std::uint64_t zones : {1u, 4u}) {
    TestTable table(figures_of(16, zones, 4, 2 << 20), slow(4));
    TestTable::Model model;
    std::uint64_t notices = 0;
    for (int i = 0; i < 1000; ++i) {
      const std::string key = key_of(i);
      const Told told = table.change(Op::insert, key, "v");
      ASSERT_EQ(told.status, Status::done) << i;
      notices += (told.flags & Reply::kGrows) != 0 ? 1 : 0;
      model[key] = "v";
      if (i % 10 == 3) {
        ASSERT_EQ(table.change(Op::remove, key_of(i / 2)).status, Status::done) << i;
        model.erase(key_of(i / 2));
      }
      ASSERT_EQ(table.value_of(key_of(i)), "v");
    }
    while (table.grow()) {
    }
    EXPECT_EQ(table.table().stage().level, 4u);
    EXPECT_GT(notices, 0u) << "clients are told before";
    expect_content(table, model);
    EXPECT_LE(table.table().totals().marks.overflow_keys, model.size() / 7)
        << "a quarter of the buckets begins a locator";
    expect_in_slots(table, model, 0.45);  // buckets that keys have come to since have other seeds than the locator says
    ASSERT_TRUE(table.start());
    table.attach();
    expect_content(table, model);
  }
}

// Changes go on in every stage, and what they do is there after the next one.
TEST(Growth, LosesNoChangeThatIsMadeMeanwhile) {
  TestTable table(figures_of(32, 2, 2), slow());
  TestTable::Model model;
  std::set<std::string> stages;
  for (int round = 0; round < 4000; ++round) {
    const std::string key = key_of(round * 7919 % 300), value = "v" + std::to_string(round);
    const bool there = model.contains(key);
    switch (round % 5) {
      case 0:
      case 1:
        ASSERT_EQ(table.change(Op::insert, key, value).status, there ? Status::present : Status::done);
        model.try_emplace(key, value);
        break;
      case 2: {
        const Told told = table.change(Op::swap, key, value + std::string(static_cast<std::size_t>(round % 90), 'x'));
        ASSERT_EQ(told.status, Status::done);
        ASSERT_EQ(told.value, there ? model[key] : "");
        model[key] = value + std::string(static_cast<std::size_t>(round % 90), 'x');
        break;
      }
      case 3:
        ASSERT_EQ(table.change(Op::remove, key).status, there ? Status::done : Status::absent);
        model.erase(key);
        break;
      default:
        ASSERT_EQ(table.change(Op::update, key, value).status, there ? Status::done : Status::absent);
        if (there) model[key] = value;
    }
    stages.insert(std::string(table.table().growth().building() ? "building " : "") +
                  (table.table().stage().moving ? "moving " : "") +
                  (table.table().stage().doubled ? "doubled" : "the same"));
    if (round % 50 == 0) expect_content(table, model);
  }
  EXPECT_EQ(stages, (std::set<std::string>{"the same", "building the same", "moving the same", "moving doubled"}));
  expect_content(table, model);
}

TEST(Growth, TellsClientsWithAnOldLocatorSo) {
  TestTable table(figures_of(16, 1, 1), GrowthSettings{});
  int keys = 0;
  const Request old = table.request(Op::find, "key0");
  while (table.table().stage().generation == 1) (void)table.change(Op::put, key_of(keys++), "v");
  EXPECT_EQ(table.ask(old).status, Status::stale);
  Request change = table.numbered(table.request(Op::put, "key0", "w"));
  const std::uint64_t generation = change.generation;
  change.generation = 1;
  EXPECT_EQ(table.ask(change).status, Status::stale);
  EXPECT_EQ(table.value_of("key0"), "v");
  change.generation = generation;
  EXPECT_EQ(table.ask(change).status, Status::done);
  change.generation = 1;
  EXPECT_EQ(table.ask(change).status, Status::done) << "it has taken effect, and is told so";
}

// What a scan finds that goes on over new locators and doublings: each key that was there all the time.
TEST(Growth, LetsAScanFindEveryKeyThatStays) {
  for (const int pause : {1, 3, 17}) {
    TestTable table(figures_of(16, 2, 3, 2 << 20), slow());
    TestTable::Model stays;
    for (int i = 0; i < 30; ++i) {
      ASSERT_EQ(table.change(Op::insert, key_of(i), "v").status, Status::done);
      stays[key_of(i)] = "";
    }
    int late = 0;
    std::set<std::uint64_t> generations;
    for (int scan = 0; scan < 6; ++scan) {
      std::set<std::string> found;
      std::uint64_t position = 0;
      do {
        const Told told = table.ask(
            {.op = Op::scan, .place = position, .generation = table.table().stage().generation, .argument = 1});
        ASSERT_EQ(told.status, Status::done);
        base::Bytes rest = base::bytes_of(std::string_view(told.value));
        ScanKey key;
        bool bad = false;
        while (next_scan_key(rest, key, bad)) found.insert(std::string(base::text_of(key.key)));
        ASSERT_TRUE(!bad && (told.number == 0 || told.number > position));
        position = told.number;
        for (int i = 0; i < pause; ++i) (void)table.change(Op::put, "late" + std::to_string(late++ % 350), "v");
        generations.insert(table.table().stage().generation);
      } while (position != 0);
      for (const auto& [key, value] : stays) EXPECT_TRUE(found.contains(key)) << key << " in scan " << scan;
    }
    EXPECT_GT(generations.size(), 2u);
  }
}

TEST(Growth, AsInThePaperRefusesInsertsWhileALocatorIsBuilt) {
  GrowthSettings settings = slow();
  settings.as_paper = true;
  TestTable table(figures_of(32, 1, 1), settings);
  std::uint64_t refused = 0;
  TestTable::Model model;
  for (int i = 0; i < 300; ++i) {
    const std::string key = key_of(i);
    Told told;
    while ((told = table.change(Op::insert, key, "v")).status == Status::full) {
      ++refused;
      EXPECT_NE(told.flags & Reply::kWaits, 0);
      EXPECT_EQ(table.change(Op::update, key_of(0), "v").status, Status::done);
      if (!table.table().growth().building()) continue;
      EXPECT_EQ(table.change(Op::remove, key_of(0)).status, Status::full);
    }
    ASSERT_EQ(told.status, Status::done);
    EXPECT_EQ(told.flags & Reply::kGrows, 0);
    model[key] = "v";
  }
  EXPECT_GT(refused, 0u);
  expect_content(table, model);
}

TEST(Growth, RefusesThresholdsThatCannotWork) {
  EXPECT_TRUE(GrowthSettings{}.check().ok());
  for (const GrowthSettings& wrong : {GrowthSettings{.begin_permille = 0}, GrowthSettings{.begin_permille = 900},
                                      GrowthSettings{.latest_permille = 1001}, GrowthSettings{.double_permille = 99},
                                      GrowthSettings{.step = 0}, GrowthSettings{.step = 300}}) {
    EXPECT_EQ(wrong.check().code(), base::Code::invalid_argument);
  }
  EXPECT_EQ(cut({.memory_bytes = 1 << 20,
                 .partitions = 1,
                 .partition_buckets = 8,
                 .zones = 2,
                 .overflow = 8,
                 .chunk_bytes = 32768})
                .code(),
            base::Code::invalid_argument);
  EXPECT_FALSE(cut({.memory_bytes = 1 << 20,
                    .partitions = 1,
                    .partition_buckets = 8,
                    .overflow = 8,
                    .chunk_bytes = 32768,
                    .doublings = 30})
                   .ok());
}

// --- the process dies

// Keys until a locator is about to be built, and then what happens beside the steps of growth.
struct Story {
  std::uint64_t buckets, zones, doublings;
  bool changes;
};
std::ostream& operator<<(std::ostream& out, const Story& story) {
  return out << story.buckets << " buckets, " << story.doublings << " doublings" << (story.changes ? ", changes" : "");
}

class GrowthDeaths : public testing::TestWithParam<Story> {
 protected:
  static constexpr int kRounds = 60;
  static Figures figures() {
    const Story& story = GetParam();
    Figures figures = figures_of(story.buckets, story.zones, story.doublings, 256 << 10);
    figures.clients = 1;
    return figures;
  }
  // Returns the change of round `i` of a story, so that it can be asked again. Key and value outlive it.
  static Request change_of(TestTable& table, int i, const std::string& key, const std::string& value) {
    constexpr std::array kOps = {Op::put, Op::remove, Op::swap, Op::take, Op::append};
    const Op op = kOps[static_cast<std::size_t>(i) % kOps.size()];
    return table.request(op, key, layout::has_value(op) ? std::string_view(value) : std::string_view());
  }
  static void apply(TestTable::Model& model, const Request& request) {
    const std::string key(base::text_of(request.key)), value(base::text_of(request.value));
    if (request.op == Op::remove || request.op == Op::take) {
      model.erase(key);
    } else if (request.op == Op::append) {
      model[key] += value;
    } else {
      model[key] = value;
    }
  }
  // Steps of growth, and changes if the story has them, until growth has ended. Returns false if the process has died
  // of them: then `pending` may have taken effect or not.
  struct Pending {
    Request request;
    std::string key, value;
  };
  static bool tell(TestTable& table, TestTable::Model& model, std::optional<Pending>& pending, int first, int& round) {
    bool grows = true;
    for (round = first; grows || round < first + kRounds; ++round) {
      grows = table.grow();
      if (table.death().dead()) return false;
      if (!GetParam().changes || round >= first + kRounds) continue;
      pending.emplace();
      pending->key = key_of(round * 13 % 40);
      pending->value = std::string(static_cast<std::size_t>(round % 3) * 70, 'w');
      pending->request = table.numbered(change_of(table, round, pending->key, pending->value));
      const Told told = table.ask(pending->request);
      if (table.death().dead()) return false;
      EXPECT_TRUE(told.status == Status::done || told.status == Status::absent) << text_of(told.status);
      apply(model, pending->request);
      pending.reset();
    }
    return true;
  }
};

TEST_P(GrowthDeaths, AfterEveryWordLoseNothing) {
  TestTable stage(figures(), slow());
  TestTable::Model filled;
  int keys = 0;
  while (stage.table().growth().figures().begun == 0) {
    const std::string key = key_of(keys), value = std::string(keys % 5 == 0 ? 100 : 8, 'v');
    ASSERT_EQ(stage.change(Op::insert, key, value).status, Status::done);
    filled[key] = value;
    ++keys;
  }
  std::uint64_t words = 1, deaths = 0;
  for (std::uint64_t last = 0; last < words; ++last, ++deaths) {
    TestTable table(stage);
    TestTable::Model model = filled;
    std::optional<Pending> pending;
    int round = 0;
    const std::uint64_t begin = table.death().written();
    table.death().after(last == 0 ? ~0ull : last);
    const bool over = tell(table, model, pending, 0, round);
    if (last == 0) words = table.death().written() - begin;
    ASSERT_EQ(over, last == 0);
    if (!over) {
      table.death().after(~0ull);
      ASSERT_TRUE(table.start()) << last;
      table.attach();
      std::string wrong;
      TestTable::Model with = model;
      if (pending) apply(with, pending->request);
      const auto left = table.content(wrong);
      ASSERT_TRUE(left && (*left == model || *left == with)) << "after " << last << " words: " << wrong;
      if (pending) {
        // Asked again, it takes effect once, whichever locator the client had.
        Told told = table.ask(pending->request);
        if (told.status == Status::stale) {
          const Op op = pending->request.op;
          told = table.ask(table.numbered(
              table.request(op, pending->key, layout::has_value(op) ? std::string_view(pending->value) : "")));
        }
        ASSERT_TRUE(told.status == Status::done || told.status == Status::absent) << text_of(told.status);
        model = with;
        pending.reset();
      }
      ASSERT_TRUE(tell(table, model, pending, round + 1, round)) << last;
    }
    std::string wrong;
    ASSERT_EQ(table.content(wrong), model) << "after " << last << " words: " << wrong;
    for (const auto& [key, value] : model) ASSERT_EQ(table.value_of(key), value) << key << " after " << last;
    ASSERT_FALSE(table.table().stage().moving);
    if (!GetParam().changes) ASSERT_EQ(table.table().growth().figures().ended, 1u) << last;
  }
  EXPECT_GT(deaths, 200u);
  RecordProperty("deaths", std::to_string(deaths));
}

INSTANTIATE_TEST_SUITE_P(Stories, GrowthDeaths,
                         testing::Values(Story{16, 1, 0, false}, Story{8, 1, 1, false}, Story{8, 2, 1, true},
                                         Story{16, 2, 0, true}),
                         [](const auto& info) { return "Story" + std::to_string(info.index); });

}  // namespace
}  // namespace farpool::outback
