// SPDX-License-Identifier: Apache-2.0
// Golden verb traces: testdata/*.txt say what every operation posts, in each of its branches, for people to read. A
// block is commands, a line of dashes, and what they did. FARPOOL_REWRITE=1 writes the files anew; the difference is
// the review.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "index/rcuckoo/facts.h"
#include "index/rcuckoo/layout.h"
#include "index/rcuckoo/locate.h"
#include "index/rcuckoo/table.h"
#include "sim/world.h"

namespace farpool::rcuckoo {
namespace {

using base::Nanos;
using base::Result;
using fabric::Cost;
using sim::Client;
using sim::World;
using sim::WorldOptions;
using task::Task;

WorldOptions options_of() {
  WorldOptions options;
  options.wire.keep_chains = true;
  options.wire.tear = false;
  options.wire.straggle = 0;
  options.geometry = {.memory_bytes = 32 << 20, .table_percent = 3, .max_sessions = 4, .slots_per_session = 4};
  return options;
}

class Append final : public Editor {
 public:
  explicit Append(std::string more) : more_(std::move(more)) {}
  Edit edit(std::optional<std::string_view> value) override {
    return {.kind = Edit::Kind::put, .value = std::string(value.value_or("")) + more_};
  }

 private:
  std::string more_;
};

// Two clients of one table, and keys that are called by where their rows lie.
class Stage {
 public:
  Stage() : world_(options_of()) {
    for (const char* name : {"a", "b"}) {
      Client& client = world_.connect(name);
      clients_[name] = &client;
      // Segments are fetched once in a while; that is not what a trace is about.
      for (const int bytes : {30, 60, 200, 400})
        act(client, "put", "warm", std::string(static_cast<std::size_t>(bytes), 'w'));
      act(client, "remove", "warm", "");
    }
  }

  // One command: `[b:]verb key [value]`. Gives the trace and the outcome.
  std::string run(const std::string& line) {
    std::istringstream words(line);
    std::string verb, name, value;
    words >> verb >> name;
    std::getline(words >> std::ws, value);
    std::string who = "a";
    if (verb.size() > 2 && verb[1] == ':') {
      who = verb.substr(0, 1);
      verb = verb.substr(2);
    }
    // `*90` is a value of 90 bytes.
    if (!value.empty() && value[0] == '*') value = std::string(std::stoul(value.substr(1)), 'v');
    Client& client = *clients_.at(who);
    const std::string key = key_named(name);
    if (verb == "crowd") return crowd(client, key);
    if (verb == "hold") return hold(client, key);
    world_.network().trace().clear();
    const std::string outcome = act(client, verb, key, value);
    return trace_of(client) + "= " + outcome + "\n";
  }

  const Cost& cost() const { return cost_; }
  std::string key_named(const std::string& name) {
    auto& key = keys_[name];
    for (int i = 0; key.empty(); ++i) {
      const std::string candidate = std::string(1, static_cast<char>('a' + keys_.size())) + std::to_string(i);
      const Places p = places(candidate);
      const std::uint64_t low = std::min(p.first, p.second), high = std::max(p.first, p.second);
      const std::uint64_t locks = lock_of(world_.geometry(), high) - lock_of(world_.geometry(), low);
      const bool one_word = word(low) == word(high);
      const bool fits = name.starts_with("adjacent")    ? high - low == 1 && locks == 0
                        : name.starts_with("apart")     ? high - low > 1 && locks == 0
                        : name.starts_with("two-locks") ? locks > 1 && one_word
                        : name.starts_with("two-words") ? !one_word && locks > 1 && p.first < p.second
                                                        : true;
      if (fits) key = candidate;
    }
    return key;
  }

 private:
  Places places(const std::string& key) {
    return locate(base::keyed_hash(world_.table_seed(), base::bytes_of(std::string_view(key))), world_.geometry().rows);
  }
  std::uint64_t word(std::uint64_t row) { return lock_bit(world_.geometry(), lock_of(world_.geometry(), row)).offset; }

  static Task<void> bool_text(Task<Result<bool>> task, const char* yes, const char* no, std::string* into) {
    const auto result = co_await std::move(task);
    *into = result.ok() ? (*result ? yes : no)
                        : std::string(base::name_of(result.code())) + ": " + result.status().message();
  }
  static Task<void> value_text(Task<Result<std::optional<std::string>>> task, std::string* into) {
    const auto result = co_await std::move(task);
    if (!result.ok()) {
      *into = std::string(base::name_of(result.code())) + ": " + result.status().message();
    } else {
      *into = result->has_value() ? std::to_string((*result)->size()) + " bytes" : "absent";
    }
  }
  Task<void> task_of(Client& client, const std::string& verb, const std::string& key, const std::string& value,
                     Editor& editor, Cost& cost, std::string* outcome) {
    index::Table& table = client.table();
    const Nanos deadline = client.port().now() + 5 * base::kSecond;
    if (verb == "lookup") return value_text(table.lookup(key, deadline, cost), outcome);
    if (verb == "insert") return bool_text(table.insert(key, value, deadline, cost), "inserted", "exists", outcome);
    if (verb == "update") return bool_text(table.update(key, value, deadline, cost), "updated", "absent", outcome);
    if (verb == "remove") return bool_text(table.remove(key, deadline, cost), "removed", "absent", outcome);
    if (verb == "put") return bool_text(table.put(key, value, deadline, cost), "replaced", "added", outcome);
    return bool_text(table.modify(key, editor, deadline, cost), "edited", "added", outcome);
  }

  std::string act(Client& client, const std::string& verb, const std::string& key, const std::string& value) {
    cost_ = Cost{};
    std::string outcome = "it did not end";
    Append editor(value);
    world_.run(client, task_of(client, verb, key, value, editor, cost_, &outcome));
    world_.network().drain(client.port(), world_.network().now() + base::kSecond);
    return outcome + "   " + std::to_string(cost_.trips) + " trips, " + std::to_string(cost_.messages) + " messages, " +
           std::to_string(cost_.bytes) + " bytes";
  }

  // Fills both rows of a key with others, by way of the same client.
  std::string crowd(Client& client, const std::string& key) {
    const Places p = places(key);
    int added = 0;
    for (int i = 0; full(p.first) + full(p.second) < 2; ++i) {
      const std::string other = "fill" + std::to_string(i);
      const Places q = places(other);
      const bool first = q.first == p.first && full(p.first) == 0;
      const bool second = q.first == p.second && full(p.second) == 0;
      // Its other row must not be the key's: then nothing could be moved out of the way.
      if ((!first && !second) || q.second == p.first || q.second == p.second) continue;
      act(client, "put", other, "x");
      ++added;
    }
    return "= " + std::to_string(added) + " keys fill both rows\n";
  }
  int full(std::uint64_t row) {
    const Geometry& g = world_.geometry();
    return RowView(g, world_.region(layout::kTable).subspan(row * g.row_bytes(), g.row_bytes())).empty_slot() < 0 ? 1
                                                                                                                  : 0;
  }

  // The client takes the lock of the key's first row, and drops it a little later.
  static Task<void> hold_for(Client& client, LockBit bit, bool* held) {
    Cost cost;
    std::uint64_t old = 0;
    const Nanos deadline = client.port().now() + base::kSecond;
    auto slot = co_await client.session().take_slot(deadline);
    slot->words().lock_word[0] = {bit.offset, bit.mask};
    const std::array take = {
        slot->claim(0), fabric::Op::masked_cas({layout::kLocks, bit.offset}, old, 0, bit.mask, bit.mask, bit.mask)};
    (void)co_await client.session().post(take, deadline, cost);
    *held = true;
    co_await client.port().sleep_for(10 * base::kMicrosecond);
    const std::array drop = {
        fabric::Op::masked_cas({layout::kLocks, bit.offset}, old, bit.mask, bit.mask, 0, bit.mask)};
    (void)co_await client.session().post(drop, deadline, cost);
  }
  std::string hold(Client& client, const std::string& key) {
    bool held = false;
    world_.spawn(client,
                 hold_for(client, lock_bit(world_.geometry(), lock_of(world_.geometry(), places(key).first)), &held));
    world_.run_until([&held] { return held; });
    return "= holds the lock for 10 us\n";
  }

  std::string trace_of(const Client& client) const {
    std::string text;
    int trip = 0;
    for (const auto& chain : world_.network().trace().chains()) {
      if (chain.client != client.index() || chain.verbs[0].verb == fabric::Verb::call) continue;
      const auto& first = chain.verbs[0];
      // Nobody waits for these: a slot that is cleared, a block that is freed.
      const bool background =
          chain.verbs.size() == 1 && (first.verb == fabric::Verb::fetch_add ||
                                      (first.verb == fabric::Verb::write && first.at.region == layout::kSlots));
      std::string head = background ? "and" : "trip " + std::to_string(++trip);
      for (const auto& verb : chain.verbs) {
        char line[160];
        std::snprintf(line, sizeof line, "%-7s %-6s %-22s %s\n", head.c_str(), name_of(verb.verb), place(verb).c_str(),
                      detail(verb).c_str());
        text += line;
        head.clear();
      }
    }
    return text;
  }
  std::string place(const fabric::sim::VerbRecord& verb) const {
    return sim::name_place(world_.geometry(), verb.at, verb.bytes);
  }
  static const char* name_of(fabric::Verb verb) {
    switch (verb) {
      case fabric::Verb::read:
        return "READ";
      case fabric::Verb::write:
        return "WRITE";
      case fabric::Verb::masked_cas:
        return "MCAS";
      case fabric::Verb::fetch_add:
        return "FAA";
      default:
        return "?";
    }
  }
  static std::string detail(const fabric::sim::VerbRecord& verb) {
    char text[64];
    if (verb.verb == fabric::Verb::masked_cas) {
      std::snprintf(text, sizeof text, "%s bits %llx", verb.swap != 0 ? "take" : "drop",
                    static_cast<unsigned long long>(verb.swap_mask));
    } else if (verb.verb == fabric::Verb::fetch_add) {
      std::snprintf(text, sizeof text, "+%llx", static_cast<unsigned long long>(verb.swap));
    } else {
      std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(verb.bytes));
    }
    return std::string(text) + (verb.fence ? ", fenced" : "");
  }

  mutable World world_;
  std::map<std::string, Client*> clients_;
  std::map<std::string, std::string> keys_;
  Cost cost_;
};

std::string replay(const std::string& file, std::string* wanted) {
  std::ifstream in(file);
  Stage stage;
  std::string out, line, pending;
  bool expecting = false;
  std::stringstream all;
  all << in.rdbuf();
  *wanted = all.str();
  std::istringstream lines(*wanted);
  while (std::getline(lines, line)) {
    if (expecting) {
      if (line.empty()) {
        expecting = false;
        out += "\n";
      }
      continue;  // what was expected is written anew
    }
    out += line + "\n";
    if (line.starts_with("#") || line.empty()) continue;
    if (line == "----") {
      out += pending;
      pending.clear();
      expecting = true;
      continue;
    }
    pending += stage.run(line);
  }
  return out;
}

TEST(Traces, AreAsTheFilesSay) {
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator("testdata")) {
    if (file.path().extension() != ".txt") continue;
    ++files;
    std::string wanted;
    const std::string got = replay(file.path(), &wanted);
    if (std::getenv("FARPOOL_REWRITE") != nullptr) {
      std::ofstream(file.path()) << got;
    } else {
      EXPECT_EQ(got, wanted) << file.path() << ": run with FARPOOL_REWRITE=1 and read the difference";
    }
  }
  EXPECT_EQ(files, 6);
}

// What the code posts is what the arithmetic says.
TEST(Facts, HoldForEveryOperation) {
  Stage stage;
  const facts::Shape ours{.row_bytes = 8 * 16 + 16, .rows_per_lock = 16, .slots = true};
  const auto costs = [&stage](const std::string& line) {
    stage.run(line);
    return facts::Figures{stage.cost().trips, stage.cost().messages, stage.cost().bytes};
  };
  const auto print = [](const facts::Figures& f) {
    return std::to_string(f.trips) + " " + std::to_string(f.messages) + " " + std::to_string(f.bytes);
  };
#define EXPECT_COSTS(line, figures) EXPECT_EQ(print(costs(line)), print(figures)) << line
  using facts::Rows;
  const facts::Figures mark{0, 1, facts::kFetchAdd};  // of rows that had no entry before
  for (const auto& [name, rows] : {std::pair("adjacent", Rows::adjacent), std::pair("apart", Rows::apart)}) {
    const std::string key = name;
    EXPECT_COSTS("lookup " + key, facts::lookup_miss(ours, rows));
    EXPECT_COSTS("update " + key + " x", facts::change_nothing(ours, rows));
    EXPECT_COSTS("remove " + key, facts::change_nothing(ours, rows));
    EXPECT_COSTS("insert " + key + " x", facts::insert(ours, 1, 1, 1) + mark);
    EXPECT_COSTS("lookup " + key, facts::lookup_hit(ours, rows));
    EXPECT_COSTS("update " + key + " y", facts::change(ours, rows));
    EXPECT_COSTS("put " + key + " z", facts::change(ours, rows));
    EXPECT_COSTS("modify " + key + " z", facts::change(ours, rows));
    EXPECT_COSTS("remove " + key, facts::change(ours, rows));
    EXPECT_COSTS("put " + key + " new", facts::change(ours, rows));
    EXPECT_EQ(print(costs("put " + key + " *30")),
              print(facts::change(ours, rows) +
                    facts::Figures{0, 1, facts::write(layout::extent_bytes(stage.key_named(key).size(), 30))}))
        << "in place before, an extent now";
    EXPECT_COSTS("lookup " + key, facts::lookup_hit(ours, rows, 64));
    // The block that is freed is the client's own: no verb. Another client's costs one FAA.
    const std::uint64_t key_bytes = stage.key_named(key).size(), extent = layout::extent_bytes(key_bytes, 200);
    EXPECT_COSTS("update " + key + " *200", facts::change_extent(ours, rows, key_bytes, 64, extent, true));
    EXPECT_COSTS("remove " + key, facts::change_extent(ours, rows, key_bytes, 256, 0, true));
  }
  EXPECT_COSTS("put two-words x", facts::change(ours, Rows::apart, 2) + mark);
  EXPECT_COSTS("remove two-words", facts::change(ours, Rows::apart, 2));
#undef EXPECT_COSTS
}

}  // namespace
}  // namespace farpool::rcuckoo
