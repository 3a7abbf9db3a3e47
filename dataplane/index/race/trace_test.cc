// SPDX-License-Identifier: Apache-2.0
// Golden verb traces: testdata/*.txt say what every operation posts, in each of its branches, for people to read. A
// block is commands, a line of dashes, and what they did. FARPOOL_REWRITE=1 writes the files anew; the difference is
// the review.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "index/race/layout.h"
#include "index/race/locate.h"
#include "sim/world.h"

namespace farpool::race {
namespace {

using base::Nanos;
using base::Result;
using fabric::Cost;
using fabric::Verb;
using sim::Client;
using sim::World;
using task::Task;

sim::WorldOptions options_of() {
  sim::WorldOptions options;
  options.wire.keep_chains = true;
  options.wire.tear = false;
  options.wire.straggle = 0;
  options.geometry = {.memory_bytes = 32 << 20,
                      .table_percent = 3,
                      .max_sessions = 4,
                      .slots_per_session = 4,
                      .protocol = layout::Protocol::race};
  return options;
}

class Append final : public index::Editor {
 public:
  explicit Append(std::string more) : more_(std::move(more)) {}
  index::Edit edit(std::optional<std::string_view> value) override {
    return index::Edit::put(std::string(value.value_or("")) + more_);
  }

 private:
  std::string more_;
};

// Two clients of one table.
class Stage {
 public:
  Stage() : world_(options_of()) {
    for (const char* name : {"a", "b"}) {
      Client& client = world_.connect(name);
      clients_[name] = &client;
      // Segments are fetched once in a while; that is not what a trace is about.
      for (const int bytes : {1, 30, 60, 100, 20000}) act(client, "put", "warm", "*" + std::to_string(bytes));
      act(client, "remove", "warm", "");
    }
  }

  // One command: `[b:]verb key [value]`. Gives the trace and the outcome.
  std::string run(const std::string& line) {
    std::istringstream words(line);
    std::string verb, key, value;
    words >> verb >> key;
    std::getline(words >> std::ws, value);
    std::string who = "a";
    if (verb.size() > 2 && verb[1] == ':') {
      who = verb.substr(0, 1);
      verb = verb.substr(2);
    }
    if (verb == "stand") return stand(key);
    if (verb == "twin") return twin(*clients_.at(who), key);
    Client& client = *clients_.at(who);
    world_.network().trace().clear();
    const std::string outcome = act(client, verb, key, value);
    return trace_of(client) + "= " + outcome + "\n";
  }
  const Cost& cost() const { return cost_; }

 private:
  static Task<void> told(Task<Result<bool>> task, const char* yes, const char* no, std::string* into) {
    const auto result = co_await std::move(task);
    *into = result.ok() ? (*result ? yes : no)
                        : std::string(base::name_of(result.code())) + ": " + result.status().message();
  }
  static Task<void> told(Task<Result<std::optional<std::string>>> task, std::string* into) {
    const auto result = co_await std::move(task);
    *into = !result.ok()          ? result.status().message()
            : result->has_value() ? std::to_string((*result)->size()) + " bytes"
                                  : "absent";
  }
  std::string act(Client& client, const std::string& verb, const std::string& key, std::string value) {
    // `*90` is a value of 90 bytes.
    if (!value.empty() && value[0] == '*') value = std::string(std::stoul(value.substr(1)), 'v');
    cost_ = Cost{};
    index::Table& table = client.table();
    const Nanos deadline = client.port().now() + 5 * base::kSecond;
    std::string outcome = "it did not end";
    Append editor(value);
    world_.run(client,
               verb == "lookup"   ? told(table.lookup(key, deadline, cost_), &outcome)
               : verb == "insert" ? told(table.insert(key, value, deadline, cost_), "inserted", "exists", &outcome)
               : verb == "update" ? told(table.update(key, value, deadline, cost_), "updated", "absent", &outcome)
               : verb == "remove" ? told(table.remove(key, deadline, cost_), "removed", "absent", &outcome)
               : verb == "put"    ? told(table.put(key, value, deadline, cost_), "replaced", "added", &outcome)
                                  : told(table.modify(key, editor, deadline, cost_), "edited", "added", &outcome));
    world_.network().drain(client.port(), world_.network().now() + base::kSecond);
    return outcome + "   " + std::to_string(cost_.trips) + " trips, " + std::to_string(cost_.messages) + " messages, " +
           std::to_string(cost_.bytes) + " bytes";
  }

  static Task<void> cas(Client* client, std::uint64_t offset, std::uint64_t compare, std::uint64_t swap) {
    Cost cost;
    std::uint64_t before = 0;
    const std::array chain{fabric::Op::cas({layout::kTable, offset}, before, compare, swap)};
    (void)co_await client->session().post(chain, client->port().now() + base::kSecond, cost);
    EXPECT_EQ(before, compare);
  }
  std::pair<std::uint64_t, Slot> find(const std::string& key) {
    const std::uint64_t hash = base::keyed_hash(world_.table_seed(), base::bytes_of(key));
    for (const Place& place : locate(hash, world_.geometry().rows)) {
      for (std::uint64_t i = 0; i < kCombinedSlots; ++i) {
        const Slot slot(base::load<std::uint64_t>(world_.region(layout::kTable).data() + place.slot_offset(i)));
        if (!slot.empty() && slot.print() == print_of(hash)) return {place.slot_offset(i), slot};
      }
    }
    ADD_FAILURE() << key << " is in no slot";
    return {};
  }
  // As if its inserter had died before it committed.
  std::string stand(const std::string& key) {
    const auto [offset, slot] = find(key);
    world_.run(*clients_["a"], cas(clients_["a"], offset, slot.word(), slot.as(Slot::State::tentative).word()));
    return "= its slot is tentative\n";
  }
  // A slot of another key with the same print, in a bucket of the key.
  std::string twin(Client& client, const std::string& key) {
    act(client, "put", "stranger", "s");
    const std::uint64_t hash = base::keyed_hash(world_.table_seed(), base::bytes_of(key));
    const Slot stranger = find("stranger").second;
    const std::uint64_t offset = locate(hash, world_.geometry().rows)[1].slot_offset(kCombinedSlots - 1);
    world_.run(client,
               cas(&client, offset, 0, Slot::of(print_of(hash), stranger.block(), 64, Slot::State::committed).word()));
    return "= another key of the same print lies beside it\n";
  }

  std::string trace_of(const Client& client) const {
    std::string text;
    int trip = 0;
    for (const auto& chain : world_.network().trace().chains()) {
      if (chain.client != client.index() || chain.verbs[0].verb == Verb::call) continue;
      const auto& first = chain.verbs[0];
      // Nobody waits for these: counters, a block that is freed.
      const bool background = first.verb == Verb::fetch_add || first.at.region == layout::kSlots;
      std::string head = background ? "and" : "trip " + std::to_string(++trip);
      for (const auto& verb : chain.verbs) {
        char line[160];
        std::snprintf(line, sizeof line, "%-7s %-6s %-22s %s\n", head.c_str(), name_of(verb.verb),
                      sim::name_place(world_.geometry(), verb.at, verb.bytes).c_str(), detail(verb).c_str());
        text += line;
        head.clear();
      }
    }
    return text;
  }
  static const char* name_of(Verb verb) {
    return verb == Verb::read ? "READ" : verb == Verb::write ? "WRITE" : verb == Verb::cas ? "CAS" : "FAA";
  }
  static std::string detail(const fabric::sim::VerbRecord& verb) {
    if (verb.verb == Verb::cas) {
      const Slot to(verb.swap);
      return to.empty() ? "to empty" : to.tentative() ? "to tentative" : "to committed";
    }
    if (verb.verb == Verb::fetch_add) return "free";
    return std::to_string(verb.bytes) + " B";
  }

  mutable World world_;
  std::map<std::string, Client*> clients_;
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
  EXPECT_EQ(files, 2);
}

// RA-03, RA-05 and section 6.1 of the paper's figures, with 16 bytes of key and 32 of value: 2 trips to search, 3 to
// insert, update and delete. Bytes as RoCEv2 would carry them. An insert has one CAS more than the paper's, which makes
// it exact, and what changes the count of keys has a WRITE of counters that nobody waits for.
TEST(Cost, IsThatOfThePaper) {
  constexpr std::uint64_t kReadBuckets = 2 * (74 + 62 + 128), kReadBlock = 74 + 62 + 64, kWriteBlock = 74 + 64 + 62,
                          kReadKey = 74 + 62 + 32, kCas = 86 + 70, kCount = 74 + 24 + 62;
  Stage stage;
  const std::string key = "sixteen-byte-key";
  const auto costs = [&stage](const std::string& line) {
    (void)stage.run(line);
    const Cost& cost = stage.cost();
    return std::to_string(cost.trips) + " " + std::to_string(cost.messages) + " " + std::to_string(cost.bytes);
  };
  const auto figures = [](int trips, int messages, std::uint64_t bytes) {
    return std::to_string(trips) + " " + std::to_string(messages) + " " + std::to_string(bytes);
  };
  EXPECT_EQ(costs("lookup " + key), figures(1, 2, kReadBuckets)) << "a miss needs no second look";
  EXPECT_EQ(costs("update " + key + " *32"), figures(1, 3, kReadBuckets + kWriteBlock));
  EXPECT_EQ(costs("remove " + key), figures(1, 2, kReadBuckets));
  EXPECT_EQ(costs("insert " + key + " *32"), figures(3, 8, 2 * kReadBuckets + kWriteBlock + 2 * kCas + kCount));
  EXPECT_EQ(costs("lookup " + key), figures(2, 3, kReadBuckets + kReadBlock));
  EXPECT_EQ(costs("update " + key + " *32"), figures(3, 5, kReadBuckets + kWriteBlock + kReadKey + kCas));
  EXPECT_EQ(costs("put " + key + " *32"), figures(3, 5, kReadBuckets + kWriteBlock + kReadKey + kCas));
  EXPECT_EQ(costs("remove " + key), figures(3, 5, kReadBuckets + kReadKey + kCas + kCount));
  EXPECT_EQ(costs("put " + key + " *32"), figures(3, 8, 2 * kReadBuckets + kWriteBlock + 2 * kCas + kCount));
  EXPECT_EQ(costs("modify " + key + " "), figures(3, 5, kReadBuckets + kReadBlock + kWriteBlock + kCas));
}

}  // namespace
}  // namespace farpool::race
