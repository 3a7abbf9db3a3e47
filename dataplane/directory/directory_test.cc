// SPDX-License-Identifier: Apache-2.0
#include "directory/directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"

namespace farpool::directory {
namespace {

using base::Code;
using layout::SplitWord;

constexpr std::uint64_t kRows = 8;

struct Directory {
  explicit Directory(std::uint64_t tables, std::uint64_t in_use = 1)
      : tables(tables), bytes(layout::directory_bytes(tables)) {
    format(bytes, tables, in_use);
  }
  View view() const { return {bytes, tables}; }
  void write(const WordChange& change) { base::store(bytes.data() + change.offset, change.word); }
  void write(const WordChanges& changes) {
    for (const WordChange& change : changes) write(change);
  }
  void split(std::uint64_t table) {
    write(begin(view(), table).value());
    write(begin_clearing(view(), table));
    write(end(view(), table));
  }
  std::uint64_t tables;
  std::vector<std::byte> bytes;
};

TEST(Directory, BeginsWithOneTable) {
  const Directory directory(8);
  EXPECT_EQ(route(directory.view(), 0x1234567), (Route{.table = 0}));
  EXPECT_EQ(verify(directory.view(), kRows), std::vector<std::string>());
  EXPECT_FALSE(under_way(directory.view(), 0));
}

// What it begins with is what splits would have made of one table, but for the versions of entries.
TEST(Directory, BeginsWithSeveralTables) {
  Directory split(16), begun(16, 8);
  for (std::uint64_t tables = 1; tables < 8; tables *= 2) {
    for (std::uint64_t table = 0; table < tables; ++table) split.split(table);
  }
  EXPECT_EQ(verify(begun.view(), kRows), std::vector<std::string>());
  EXPECT_EQ(begun.view().depth(), 3u);
  for (std::uint64_t table = 0; table < 16; ++table) EXPECT_EQ(begun.view().home(table), split.view().home(table));
  for (std::uint64_t hash = 0; hash < 16; ++hash) {
    EXPECT_EQ(route(begun.view(), hash), route(split.view(), hash));
    EXPECT_EQ(tables_of_all_times(begun.view(), hash), tables_of_all_times(split.view(), hash));
  }
  begun.split(5);
  EXPECT_EQ(route(begun.view(), 0b1101), (Route{.table = 8}));
  EXPECT_EQ(verify(begun.view(), kRows), std::vector<std::string>());
}

TEST(Directory, ASplitSharesKeysByTheNextBit) {
  Directory directory(8);
  directory.write(begin(directory.view(), 0).value());
  EXPECT_EQ(directory.view().depth(), 1u);
  EXPECT_EQ(route(directory.view(), 0b10), (Route{.table = 0}));
  EXPECT_EQ(route(directory.view(), 0b11), (Route{.table = 1, .old = 0}));
  EXPECT_EQ(begin(directory.view(), 1).code(), Code::unavailable) << "it is being made";
  EXPECT_TRUE(begin(directory.view(), 0)->empty()) << "it has begun";
  directory.write(begin_clearing(directory.view(), 0));
  EXPECT_TRUE(begin(directory.view(), 0)->empty());
  directory.write(end(directory.view(), 0));
  EXPECT_EQ(route(directory.view(), 0b11), (Route{.table = 1}));
  EXPECT_EQ(verify(directory.view(), kRows), std::vector<std::string>());
  directory.split(1);
  EXPECT_EQ(route(directory.view(), 0b011), (Route{.table = 2}));
  EXPECT_EQ(route(directory.view(), 0b001), (Route{.table = 1}));
  EXPECT_EQ(route(directory.view(), 0b110), (Route{.table = 0})) << "of many entries";
  EXPECT_EQ(tables_of_all_times(directory.view(), 0b011), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(tables_of_all_times(directory.view(), 0b110), (std::vector<std::uint64_t>{0}));
}

TEST(Directory, KnowsWhichTablesHaveBeenSplitLess) {
  const auto in = [](const Directory& directory, std::uint64_t depth) {
    std::set<std::uint64_t> tables;
    for (std::uint64_t chance = 0; chance < 32; ++chance) {
      if (const auto one = shallow_table(directory.view(), depth, chance)) tables.insert(one->table);
    }
    return tables;
  };
  Directory directory(16);
  EXPECT_EQ(least_depth(directory.view()), 0u);
  EXPECT_EQ(in(directory, 0), std::set<std::uint64_t>());
  directory.split(0);
  directory.split(1);
  EXPECT_EQ(least_depth(directory.view()), 1u);
  EXPECT_EQ(in(directory, 1), std::set<std::uint64_t>());
  EXPECT_EQ(in(directory, 2), (std::set<std::uint64_t>{0}));
  EXPECT_EQ(in(directory, 3), (std::set<std::uint64_t>{0, 1, 2}));
  // What is under way does not count yet, and is nobody's to begin.
  directory.write(begin(directory.view(), 0).value());
  EXPECT_EQ(least_depth(directory.view()), 1u);
  EXPECT_EQ(in(directory, 2), std::set<std::uint64_t>());
  directory.write(begin_clearing(directory.view(), 0));
  directory.write(end(directory.view(), 0));
  EXPECT_EQ(least_depth(directory.view()), 2u);
  EXPECT_EQ(least_depth(Directory(16, 8).view()), 3u);
}

TEST(Directory, SplittingAheadEndsWithItsTables) {
  Directory directory(4, 2);
  EXPECT_EQ(even_tables(directory.view()), 2u);
  directory.split(0);
  EXPECT_EQ(even_tables(directory.view()), 2u);
  directory.write(begin(directory.view(), 0).value());
  EXPECT_EQ(even_tables(directory.view()), 2u);
  directory.write(begin_clearing(directory.view(), 0));
  directory.write(end(directory.view(), 0));
  EXPECT_EQ(least_depth(directory.view()), 1u) << "table 1 has not been split";
  EXPECT_EQ(even_tables(directory.view()), 4u) << "and never can be";
}

TEST(Directory, EndsWithItsTables) {
  Directory directory(4);
  for (const std::uint64_t table : {0u, 1u, 0u}) directory.split(table);
  EXPECT_EQ(verify(directory.view(), kRows), std::vector<std::string>());
  for (std::uint64_t table = 0; table < 4; ++table)
    EXPECT_EQ(begin(directory.view(), table).code(), Code::out_of_memory);
  Directory deep(8);  // always the same half
  std::uint64_t splits = 0;
  for (; begin(deep.view(), 0).ok(); ++splits) deep.split(0);
  EXPECT_EQ(splits, layout::most_depth(8));
  EXPECT_EQ(begin(deep.view(), 0).code(), Code::out_of_memory);
  EXPECT_TRUE(begin(deep.view(), 1).ok());
  EXPECT_EQ(verify(deep.view(), kRows), std::vector<std::string>());
  EXPECT_EQ(begin(Directory(1).view(), 0).code(), Code::out_of_memory);
}

// Several splitters, whose every word is a step of its own, in every order; any of them dies behind any step, and
// the next client goes on from what is there. At every step a reader finds each key's table, or both of its split.
class Interleavings {
 public:
  Interleavings(Directory directory, std::vector<std::uint64_t> wishes, int deaths)
      : truth_(1ull << directory.view().most_depth()) {
    for (std::uint64_t hash = 0; hash < truth_.size(); ++hash) truth_[hash] = route(directory.view(), hash)->table;
    State start{.directory = directory, .truth = truth_, .deaths = deaths};
    for (const std::uint64_t table : wishes) {
      start.actors.push_back({.table = table, .home = directory.view().home(table)});
    }
    explore(start);
  }
  std::size_t states() const { return seen_.size(); }
  std::size_t ends() const { return ends_; }

 private:
  enum class Stage : std::uint8_t {
    lease,
    directory_lease,
    beginning,
    moving,
    clearing,
    directory_again,
    ending,
    over
  };
  struct Actor {
    std::uint64_t table = 0;
    std::uint64_t home = 0;  // when it was found full
    Stage stage = Stage::lease;
    WordChanges changes = {};
    std::size_t next = 0;
  };
  struct State {
    Directory directory;
    std::vector<std::uint64_t> truth;  // by hash: the table that has the rows
    int deaths = 0;
    std::vector<Actor> actors = {};
    int directory_holder = -1;  // a living actor: the leases of the dead are free
    std::vector<int> holders = {-1, -1, -1, -1, -1, -1, -1, -1};
  };

  void explore(const State& state) {
    if (testing::Test::HasFailure()) return;
    std::string name(reinterpret_cast<const char*>(state.directory.bytes.data()), state.directory.bytes.size());
    for (const std::uint64_t table : state.truth) name += static_cast<char>(table);
    name += static_cast<char>(state.deaths);
    for (const Actor& actor : state.actors) {
      name += static_cast<char>(actor.stage);
      for (std::size_t i = actor.next; i < actor.changes.size(); ++i) {
        name += std::to_string(actor.changes[i].offset) + '=' + std::to_string(actor.changes[i].word) + ' ';
      }
    }
    if (!seen_.insert(std::move(name)).second) return;
    judge(state);
    bool over = true;
    for (std::size_t i = 0; i < state.actors.size(); ++i) {
      if (state.actors[i].stage == Stage::over) continue;
      over = false;
      State next = state;
      if (step(next, i)) explore(next);
      if (state.deaths > 0 && state.actors[i].stage != Stage::lease) {
        State dead = state;
        --dead.deaths;
        let_go(dead, i);
        dead.actors[i] = {.table = state.actors[i].table, .home = state.actors[i].home};  // somebody else
        explore(dead);
      }
    }
    if (over) {
      ++ends_;
      for (std::uint64_t table = 0; table < state.directory.tables; ++table) {
        EXPECT_EQ(state.directory.view().split(table), 0u) << "a split is never finished";
      }
    }
  }

  void judge(const State& state) const {
    const View view = state.directory.view();
    EXPECT_EQ(verify(view, kRows), std::vector<std::string>());
    for (std::uint64_t hash = 0; hash < state.truth.size(); ++hash) {
      const auto found = route(view, hash);
      ASSERT_TRUE(found) << hash;
      EXPECT_TRUE(found->table == state.truth[hash] || found->old == state.truth[hash])
          << "hash " << hash << " is in table " << state.truth[hash] << ", and the directory says " << found->table;
    }
  }

  static void let_go(State& state, std::size_t i) {
    const int self = static_cast<int>(i);
    if (state.directory_holder == self) state.directory_holder = -1;
    for (int& holder : state.holders) holder = holder == self ? -1 : holder;
  }
  // False: it has to wait.
  static bool step(State& state, std::size_t i) {
    Actor& actor = state.actors[i];
    const View view = state.directory.view();
    const int self = static_cast<int>(i);
    switch (actor.stage) {
      case Stage::lease: {
        int& holder = state.holders[actor.table];
        if (holder >= 0) return false;
        holder = self;
        actor.stage = Stage::directory_lease;
        // Somebody has split it meanwhile.
        if (!under_way(view, actor.table) && view.home(actor.table) != actor.home) leave(state, i);
        return true;
      }
      case Stage::directory_lease: {
        if (state.directory_holder >= 0) return false;
        state.directory_holder = self;
        const auto changes = begin(view, actor.table);
        if (!changes.ok()) return leave(state, i);
        return turn_to(actor, Stage::beginning, *changes);
      }
      case Stage::beginning:
        if (write_one(state, actor)) return true;
        state.directory_holder = -1;
        actor.stage =
            SplitWord::phase(view.split(actor.table)) == SplitWord::moving ? Stage::moving : Stage::directory_again;
        return true;
      case Stage::moving: {
        const Split split = under_way(view, actor.table).value();
        for (std::uint64_t hash = 0; hash < state.truth.size(); ++hash) {
          if (split.moves(hash)) state.truth[hash] = split.to;
        }
        return turn_to(actor, Stage::clearing, begin_clearing(view, actor.table));
      }
      case Stage::clearing:
        if (!write_one(state, actor)) actor.stage = Stage::directory_again;
        return true;
      case Stage::directory_again:
        if (state.directory_holder >= 0) return false;
        state.directory_holder = self;
        return turn_to(actor, Stage::ending, end(view, actor.table));
      case Stage::ending:
        if (!write_one(state, actor)) leave(state, i);
        return true;
      case Stage::over:
        return false;
    }
    return false;
  }
  static bool turn_to(Actor& actor, Stage stage, WordChanges changes) {
    actor.stage = stage;
    actor.changes = std::move(changes);
    actor.next = 0;
    return true;
  }
  static bool write_one(State& state, Actor& actor) {
    if (actor.next == actor.changes.size()) return false;
    state.directory.write(actor.changes[actor.next++]);
    return true;
  }
  static bool leave(State& state, std::size_t i) {
    let_go(state, i);
    state.actors[i].stage = Stage::over;
    state.actors[i].changes.clear();
    state.actors[i].next = 0;
    return true;
  }

  std::vector<std::uint64_t> truth_;
  std::set<std::string> seen_;
  std::size_t ends_ = 0;
};

TEST(Directory, TwoSplitAndDoubleAtOnceAndDie) {
  Directory directory(8);
  directory.split(0);
  const Interleavings all(directory, {0, 1}, 2);
  EXPECT_GT(all.states(), 1000u);
  EXPECT_GT(all.ends(), 0u);
}

// One of them only doubles; the table of another has several entries; two want the same one.
TEST(Directory, TablesOfSeveralEntriesAndOfOne) {
  Directory directory(8);
  for (const std::uint64_t table : {0u, 0u}) directory.split(table);
  const Interleavings all(directory, {0, 1, 1}, 1);
  EXPECT_GT(all.ends(), 0u);
}

TEST(Directory, TheLastTableIsTakenOnce) {
  Directory directory(4);
  for (const std::uint64_t table : {0u, 1u}) directory.split(table);
  const Interleavings all(directory, {0, 1, 2}, 1);
  EXPECT_GT(all.ends(), 0u);
}

// A split that begins anew behind any word goes on with the same table.
TEST(Directory, NoTableIsLost) {
  Directory directory(4);
  const WordChanges changes = begin(directory.view(), 0).value();
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Directory cut(4);
    for (std::size_t j = 0; j < i; ++j) cut.write(changes[j]);
    EXPECT_EQ(verify(cut.view(), kRows), std::vector<std::string>());
    EXPECT_EQ(begin(cut.view(), 1).code(), i == 0 ? Code::corrupt : Code::unavailable) << "not before it has keys";
    cut.write(begin(cut.view(), 0).value());
    EXPECT_EQ(under_way(cut.view(), 0)->to, 1u);
    EXPECT_EQ(cut.view().home(2), 0u);
  }
}

TEST(Directory, VerifyFindsEveryWordThatIsNotAsItWas) {
  Directory directory(4);
  directory.split(0);
  directory.write(begin(directory.view(), 1).value());
  ASSERT_EQ(verify(directory.view(), kRows), std::vector<std::string>());
  const auto found = [&](std::uint64_t offset, std::uint64_t word) {
    Directory damaged = directory;
    damaged.write({offset, word});
    return !verify(damaged.view(), kRows).empty();
  };
  const auto word_at = [&](std::uint64_t offset) { return base::load<std::uint64_t>(directory.bytes.data() + offset); };
  EXPECT_TRUE(found(0, 5));
  EXPECT_TRUE(found(0, 1)) << "entries deeper than the directory";
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::uint64_t offset = layout::entry_offset(i);
    EXPECT_TRUE(found(offset, word_at(offset) ^ 7)) << i;
    EXPECT_TRUE(found(offset, word_at(offset) ^ layout::EntryWord::Depth::put(3))) << i;
    EXPECT_TRUE(found(offset, 0) || i % 2 == 0) << i;
  }
  for (std::uint64_t table = 0; table < 3; ++table) {
    const std::uint64_t offset = layout::record_offset(4, table);
    EXPECT_TRUE(found(offset, 0)) << table;
    EXPECT_TRUE(found(offset, word_at(offset) ^ layout::HomeWord::Suffix::put(1))) << table;
    EXPECT_TRUE(found(offset, word_at(offset) | layout::HomeWord::Zero::put(1))) << table;
    EXPECT_TRUE(found(offset + layout::kRecordProgress, kRows + 1)) << table;
  }
  EXPECT_TRUE(found(layout::record_offset(4, 1) + layout::kRecordSplit, SplitWord::of(0, SplitWord::moving)));
  EXPECT_TRUE(found(layout::record_offset(4, 1) + layout::kRecordSplit, 0));
  EXPECT_TRUE(found(layout::record_offset(4, 3) + layout::kRecordOwner, 1));
  EXPECT_TRUE(found(layout::record_offset(4, 3), layout::HomeWord::of(3, 6))) << "nobody's half";
  EXPECT_FALSE(found(layout::record_offset(4, 3), layout::HomeWord::of(2, 2))) << "a split of table 0 begins like that";
  EXPECT_TRUE(found(layout::record_offset(4, 3), layout::HomeWord::of(2, 0))) << "the half that stays";
  EXPECT_TRUE(found(layout::record_offset(4, 3), layout::HomeWord::of(2, 3))) << "that of table 2";
}

}  // namespace
}  // namespace farpool::directory
