// SPDX-License-Identifier: Apache-2.0
// Golden verb traces: testdata/*.txt say what every operation posts, in each of its branches, for people to read. A
// block is commands, a line of dashes, and what they did. FARPOOL_REWRITE=1 writes the files anew; the difference is
// the review.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "directory/directory.h"
#include "index/race/layout.h"
#include "index/race/locate.h"
#include "index/race/table.h"
#include "layout/lease.h"
#include "sim/world.h"

namespace farpool::race {
namespace {

using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Verb;
using sim::Client;
using sim::World;
using task::Task;

// One table; or many small ones, that are split, on a wire on which all takes the same time: then verbs that are posted
// side by side are one trip in the trace, too.
sim::WorldOptions options_of(std::uint64_t tables) {
  sim::WorldOptions options;
  options.wire.keep_chains = true;
  options.wire.tear = false;
  options.wire.straggle = 0;
  options.geometry = {.memory_bytes = 32 << 20,
                      .table_percent = 3,
                      .max_sessions = 4,
                      .slots_per_session = 4,
                      .protocol = layout::Protocol::race,
                      .tables = tables};
  if (tables == 1) return options;
  options.wire.min_delay = options.wire.max_delay = base::kMicrosecond;
  options.wire.spread = 0;
  options.geometry.memory_bytes = 2560 << 10;
  options.geometry.table_percent = 1;
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

// Two clients of one table. A client may be stopped on its way, or die there, while the other goes on.
class Stage {
 public:
  explicit Stage(std::uint64_t tables) : world_(options_of(tables)), elsewhere_(*this) {
    for (const char* name : {"a", "b"}) {
      Player& player = players_[name];
      player.client = &world_.connect(name);
      // Segments are fetched once in a while; that is not what a trace is about.
      const std::vector<int> sizes = tables == 1 ? std::vector{1, 30, 60, 100, 20000} : std::vector{1};
      for (const int bytes : sizes) (void)run(std::string(name) + ":put warm *" + std::to_string(bytes));
      (void)run(std::string(name) + ":remove warm");
    }
  }

  ~Stage() {
    for (auto& [name, player] : players_) player.client->port().resume();
    EXPECT_TRUE(world_.run_until([this] {
      return std::all_of(players_.begin(), players_.end(),
                         [](const auto& one) { return one.second.done || one.second.client->crashed(); });
    }));
  }

  // One command: `[quiet] [b:]verb [key [value]] [/ until step]`. Gives the trace and the outcome.
  //  - `/ until step` stops the client there: what it has posted lands, `go` lets it go on. At `/ dies step` nothing
  //    lands any more.
  //  - steps: see reached().
  std::string run(const std::string& line);
  const Cost& cost() const { return players_.at("a").cost; }

 private:
  using Words = std::vector<std::string>;
  // Another memory node, to which keys move. What it is asked stands between the trips.
  class Elsewhere final : public index::Arrivals {
   public:
    explicit Elsewhere(Stage& stage) : stage_(stage) {}
    Task<Status> take_in(std::string_view key, std::string_view) override {
      note(key, full ? "finds no room there" : "is there");
      co_return full ? Status(base::Code::out_of_memory, "there is no room") : Status();
    }
    Task<Result<bool>> has(std::string_view key) override {
      note(key, "is not there");
      co_return false;
    }

    bool full = false;
    std::vector<std::pair<std::size_t, std::string>> notes;  // before the chain of that number

   private:
    void note(std::string_view key, const std::string& what) {
      const std::size_t chains = stage_.world_.network().trace().chains().size();
      notes.emplace_back(chains, stage_.alias(std::string(key)) + " " + what);
    }
    Stage& stage_;
  };
  struct Player {
    Client* client = nullptr;
    bool done = true;
    std::string outcome;
    Cost cost;
    std::string key, value;
    std::uint64_t waits = 0;  // when it began
    // Lines of the trace.
    std::size_t begun = 0, shown = 0;  // chains
    int trips = 0, messages = 0;
    Nanos posted = -1;
  };

  void begin(Player& player, const std::string& verb, const Words& words);
  bool reached(const Player& player, const Words& step) const;
  std::string arrange(const std::string& verb, const Words& words);
  std::string trace_of(Player& player);
  std::string tell_directory() const;

  // --- What clients do

  static Task<void> told(Player* player, Task<Result<bool>> task, const char* yes, const char* no) {
    const auto result = co_await std::move(task);
    finish(*player, result.ok() ? std::string(*result ? yes : no) : tell(result.status()));
  }
  static Task<void> told(Player* player, Task<Result<std::optional<std::string>>> task) {
    const auto result = co_await std::move(task);
    finish(*player, !result.ok()          ? tell(result.status())
                    : result->has_value() ? std::to_string((*result)->size()) + " bytes"
                                          : "absent");
  }
  static Task<void> counted(Player* player, Task<Result<index::Totals>> task) {
    const auto result = co_await std::move(task);
    finish(*player, result.ok() ? std::to_string(result->keys) + " keys, " + std::to_string(result->bytes) + " bytes"
                                : tell(result.status()));
  }
  static Task<void> scanned(Stage* stage, Player* player, Task<Result<index::Page>> task) {
    const auto result = co_await std::move(task);
    if (!result.ok()) co_return finish(*player, tell(result.status()));
    std::string keys;
    for (const std::string& key : result->keys) keys += (keys.empty() ? "" : " ") + stage->alias(key);
    finish(*player, (keys.empty() ? "no keys" : keys) + ", then " + stage->tell_position(result->next));
  }
  static Task<void> edited(Player* player, index::Table* table, Nanos deadline) {
    Append editor(player->value);
    co_await told(player, table->modify(player->key, editor, deadline, player->cost), "edited", "added");
  }
  static Task<void> split(Player* player, Table* table, Nanos deadline) {
    Cost nobodys;
    const std::uint64_t before = table->marks().splits_finished;
    const Status status = co_await table->split(player->key, deadline, nobodys);
    (void)co_await table->idle(deadline);
    finish(*player, !status.ok() ? tell(status) : table->marks().splits_finished > before ? "split" : "not split");
  }
  static Task<void> swept(Player* player, index::Table* table, Nanos deadline) {
    const Result<index::Swept> swept = co_await table->sweep(deadline, player->cost);
    finish(*player, !swept.ok() ? tell(swept.status()) : std::to_string(swept->splits) + " splits finished");
  }
  static Task<void> judged(Player* player, Task<Status> task, const char* well) {
    const Status status = co_await std::move(task);
    finish(*player, status.ok() ? well : tell(status));
  }
  static void finish(Player& player, std::string outcome) {
    player.outcome = std::move(outcome);
    player.done = true;
  }
  static std::string tell(const Status& status) { return std::string(base::name_of(status.code())); }

  // --- Keys and places

  std::uint64_t tables() const { return world_.geometry().tables; }
  std::uint64_t groups() const { return world_.geometry().rows_per_table(); }
  directory::View view() const { return {world_.region(layout::kDirectory), tables()}; }
  // Keys that were named by where they lie, see arrange().
  std::string key_of(const std::string& name) const { return keys_.contains(name) ? keys_.at(name) : name; }
  std::string alias(const std::string& key) const {
    for (const auto& [name, of] : keys_) {
      if (of == key) return name;
    }
    return key;
  }
  std::uint64_t hash_of(const std::string& name) const {
    return base::keyed_hash(world_.pool_secret(), base::bytes_of(key_of(name)));
  }
  std::uint64_t table_hash(const std::string& name) const {
    return base::keyed_hash(world_.table_seed(), base::bytes_of(key_of(name)));
  }
  Places places_of(const std::string& name) const { return locate(table_hash(name), groups()); }
  // The table that has the key, or from which a split takes it, and the new one.
  std::pair<std::uint64_t, std::uint64_t> tables_of(const std::string& name) const {
    const directory::Route route = *directory::route(view(), directory::hash_of(hash_of(name)));
    return {route.old.value_or(route.table), route.table};
  }
  std::uint64_t header(std::uint64_t table, std::uint64_t group, std::uint64_t bucket) const {
    const std::uint64_t offset = (table * groups() + group) * kGroupBytes + bucket * kBucketBytes;
    return base::load<std::uint64_t>(world_.region(layout::kTable).data() + offset);
  }
  std::optional<std::pair<std::uint64_t, Slot>> look_for(const std::string& name) const;
  std::pair<std::uint64_t, Slot> find(const std::string& name) const {
    const auto found = look_for(name);
    if (found) return *found;
    ADD_FAILURE() << name << " is in no slot";
    return {};
  }
  std::string tell_position(std::uint64_t position) const;
  std::string describe(const fabric::sim::VerbRecord& verb) const;

  static Task<void> cas(Client* client, std::uint64_t offset, std::uint64_t compare, std::uint64_t swap) {
    Cost cost;
    std::uint64_t before = 0;
    const std::array chain{fabric::Op::cas({layout::kTable, offset}, before, compare, swap)};
    (void)co_await client->session().post(chain, client->port().now() + base::kSecond, cost);
    EXPECT_EQ(before, compare);
  }

  mutable World world_;
  Elsewhere elsewhere_;
  const index::Movable::GoOn go_on_ = [] { return Status(); };
  std::map<std::string, Player> players_;
  std::map<std::string, std::string> keys_;
};

std::string Stage::run(const std::string& line) {
  std::istringstream in(line);
  Words words, step;
  bool quiet = false, dies = false;
  for (std::string word; in >> word;) {
    if (word == "/") {
      in >> word;
      dies = word == "dies";
      while (in >> word) step.push_back(word);
    } else if (word == "quiet" && words.empty()) {
      quiet = true;
    } else {
      words.push_back(word);
    }
  }
  std::string who = "a", verb = words[0];
  if (verb.size() > 2 && verb[1] == ':') {
    who = verb.substr(0, 1);
    verb = verb.substr(2);
  }
  Player& player = players_.at(who);
  if (verb == "key" || verb == "stand" || verb == "twin" || verb == "directory" || verb == "full" || verb == "wait") {
    const std::string text = arrange(verb, words);
    return quiet ? "" : text;
  }
  fabric::sim::SimPort& port = player.client->port();
  if (verb == "go") {
    port.resume();
  } else {
    begin(player, verb, words);
  }
  EXPECT_TRUE(world_.run_until([&] { return player.done || (!step.empty() && reached(player, step)); })) << line;
  if (!player.done) {
    if (dies) {
      port.crash(fabric::sim::InFlight::cut);
    } else {
      port.pause();
    }
  }
  world_.network().drain(port, world_.network().now() + base::kSecond);
  const std::string text = trace_of(player);
  if (quiet) return "";
  if (!player.done) return text + (dies ? "= dies\n" : "= stopped\n");
  // What splits and moves cost is charged to nobody.
  const bool own = player.cost.trips > 0 && verb != "sweep";
  return text + "= " + player.outcome + "   " +
         std::to_string(own ? static_cast<int>(player.cost.trips) : player.trips) + " trips, " +
         std::to_string(own ? static_cast<int>(player.cost.messages) : player.messages) + " messages" +
         (own ? ", " + std::to_string(player.cost.bytes) + " bytes" : "") + "\n";
}

void Stage::begin(Player& player, const std::string& verb, const Words& words) {
  Client& client = *player.client;
  player.done = false;
  player.cost = Cost{};
  player.key = words.size() > 1 ? key_of(words[1]) : "";
  player.value = words.size() > 2 ? words[2] : "";
  // `*90` is a value of 90 bytes.
  if (player.value.starts_with("*")) player.value = std::string(std::stoul(player.value.substr(1)), 'v');
  const index::Marks& marks = client.table().marks();
  player.waits = marks.split_waits + marks.move_waits;
  player.begun = player.shown = world_.network().trace().chains().size();
  player.trips = player.messages = 0;
  player.posted = -1;
  auto& table = dynamic_cast<Table&>(client.table());
  index::Movable& movable = *table.movable();
  const Nanos deadline = client.port().now() + 5 * base::kSecond;
  const std::string &key = player.key, &value = player.value;
  Cost& cost = player.cost;
  const auto number = [&](std::size_t i) { return words.size() > i ? std::stoull(words[i]) : 0; };
  Player* const p = &player;
  if (verb == "follow") {
    movable.follow({.number = number(1), .depth = 1, .leaving = {words.size() > 2, false}});
    return finish(player, "its map has move " + words[1]);
  }
  world_.spawn(client,
               verb == "lookup"   ? told(p, table.lookup(key, deadline, cost))
               : verb == "insert" ? told(p, table.insert(key, value, deadline, cost), "inserted", "exists")
               : verb == "update" ? told(p, table.update(key, value, deadline, cost), "updated", "absent")
               : verb == "remove" ? told(p, table.remove(key, deadline, cost), "removed", "absent")
               : verb == "put"    ? told(p, table.put(key, value, deadline, cost), "replaced", "added")
               : verb == "modify" ? edited(p, &table, deadline)
               : verb == "count"  ? counted(p, table.count(deadline, cost))
               : verb == "scan"
                   ? scanned(this, p, table.scan(number(1) << layout::most_depth(tables()), number(2), deadline, cost))
               : verb == "split"     ? split(p, &table, deadline)
               : verb == "sweep"     ? swept(p, &table, deadline)
               : verb == "admit"     ? told(p, movable.admit(key, value, deadline, cost), "admitted", "was there")
               : verb == "close"     ? judged(p, movable.close(&elsewhere_, go_on_), "closed")
               : verb == "open-arms" ? judged(p, movable.close(nullptr, go_on_), "closed")
                                     : judged(p, movable.move_away(elsewhere_, go_on_), "moved"));
}

//  trip n     so many trips have been posted
//  waits      an operation has found that it must wait
//  told       the directory says that a table is being split, and its lease has been given back
//  closed k   a header of the key's first group does not cover the key any more
//  moving k   so is the key's slot; leaving k, tentative k as well
//  half k     the key's first group is open in the middle alone
//  opened k   it is open
//  shut k     it has the number of a move
//  clearing   all groups have been moved
bool Stage::reached(const Player& player, const Words& step) const {
  const std::string& what = step[0];
  if (what == "trip") {
    int trips = 0;
    Nanos posted = -1;
    const auto& chains = world_.network().trace().chains();
    for (std::size_t i = player.begun; i < chains.size(); ++i) {
      if (chains[i].client != player.client->index() || chains[i].verbs[0].verb == Verb::call) continue;
      trips += chains[i].posted != posted ? 1 : 0;
      posted = chains[i].posted;
    }
    return trips >= std::stoi(step[1]);
  }
  if (what == "waits") {
    const index::Marks& marks = player.client->table().marks();
    return marks.split_waits + marks.move_waits > player.waits;
  }
  bool told = false, clearing = false;
  for (std::uint64_t table = 0; table < tables(); ++table) {
    const auto phase = layout::SplitWord::phase(view().split(table));
    told |= phase != layout::SplitWord::none;
    clearing |= phase == layout::SplitWord::clearing;
  }
  if (what == "clearing") return clearing;
  if (what == "told") {
    const auto lease = base::load<std::uint64_t>(world_.region(layout::kLeases).data() + 8 * layout::kDirectoryLease);
    return told && !layout::LeaseWord::held(lease);
  }
  const std::string& key = step[1];
  if (what == "moving" || what == "leaving" || what == "tentative") {
    const auto found = look_for(key);
    const Slot slot = found ? found->second : Slot();
    return what == "moving" ? slot.moving() : what == "leaving" ? slot.leaving() : slot.tentative();
  }
  const auto [from, to] = tables_of(key);
  const Place place = places_of(key)[0];
  const std::uint64_t main = 2 * place.side;
  if (what == "closed") {
    return from != to && !HeaderWord::covers(header(from, place.group, main), directory::hash_of(hash_of(key)));
  }
  if (what == "shut") return HeaderWord::Move::get(header(from, place.group, main)) != 0;
  const bool middle = HeaderWord::open(header(to, place.group, kOpenedFirst));
  const bool side = HeaderWord::open(header(to, place.group, main));
  if (what == "half") return middle && !side;
  EXPECT_EQ(what, "opened");
  return from != to && side && HeaderWord::open(header(to, place.group, 2 - main));
}

// What is no client's doing.
//  key k 1 3 01 [leaves|stays]   a key of this name lies in groups 1 and 3; its directory hash ends in 01
//  key k 1 3 01 like l           its slots might be l's, as far as print and places go
//  stand k, twin k               see there
//  directory                     what it says
//  full, full not                there is no room at the memory node that keys move to
//  wait 50                       so many milliseconds pass
std::string Stage::arrange(const std::string& verb, const Words& words) {
  const std::string key = words.size() > 1 ? words[1] : "";
  if (verb == "directory") return tell_directory();
  if (verb == "full") {
    elsewhere_.full = words.size() == 1;
    return "";
  }
  if (verb == "wait") {
    const Nanos then = world_.network().now() + std::stoll(key) * base::kMillisecond;
    world_.run_until([&] { return world_.network().now() >= then; });
    return "";
  }
  if (verb == "key") {
    const std::uint64_t one = std::stoull(words[2]), other = std::stoull(words[3]);
    const std::string& suffix = words[4];
    for (std::uint64_t i = 0;; ++i) {
      const std::string real = i == 0 ? key : key + std::to_string(i);
      keys_[key] = real;
      const Places places = places_of(key);
      const std::uint64_t hash = directory::hash_of(hash_of(key));
      const bool leaves = (hash_of(key) & 1) == 0;
      if (places[0].group != one || places[1].group != other) continue;
      if (directory::low_bits(hash, suffix.size()) != std::stoull(suffix, nullptr, 2)) continue;
      if (words.size() > 6) {
        const std::string& other = words[6];
        if (places != places_of(other) || print_of(table_hash(key)) != print_of(table_hash(other))) continue;
      } else if (words.size() > 5 && leaves != (words[5] == "leaves")) {
        continue;
      }
      return "";
    }
  }
  // As if its inserter had died before it committed.
  Client& a = *players_.at("a").client;
  if (verb == "stand") {
    const auto [offset, slot] = find(key);
    world_.run(a, cas(&a, offset, slot.word(), slot.as(Slot::State::tentative).word()));
    return "= its slot is tentative\n";
  }
  // A slot of another key with the same print, in a bucket of the key.
  (void)run("put stranger s");
  const Slot stranger = find("stranger").second;
  const std::uint64_t offset = places_of(key)[1].slot_offset(kCombinedSlots - 1);
  world_.run(
      a, cas(&a, offset, 0, Slot::of(print_of(table_hash(key)), stranger.block(), 64, Slot::State::committed).word()));
  return "= another key of the same print lies beside it\n";
}

// The oldest table that has it first.
std::optional<std::pair<std::uint64_t, Slot>> Stage::look_for(const std::string& name) const {
  for (std::uint64_t table = 0; table < tables(); ++table) {
    for (Place place : places_of(name)) {
      place.group += table * groups();
      for (std::uint64_t i = 0; i < kCombinedSlots; ++i) {
        const Slot slot(base::load<std::uint64_t>(world_.region(layout::kTable).data() + place.slot_offset(i)));
        if (!slot.empty() && slot.print() == print_of(table_hash(name))) return std::pair(place.slot_offset(i), slot);
      }
    }
  }
  return std::nullopt;
}

std::string binary(std::uint64_t bits, std::uint64_t count) {
  std::string text;
  for (std::uint64_t i = count; i > 0; --i) text += (bits >> (i - 1) & 1) != 0 ? '1' : '0';
  return text;
}

std::string Stage::tell_directory() const {
  std::string text = "= depth " + std::to_string(view().depth()) + ";";
  for (std::uint64_t i = 0; i < 1ull << view().depth(); ++i) {
    const std::uint64_t entry = view().entry(i);
    text += " " + binary(i, view().depth()) + ": table " + std::to_string(layout::EntryWord::Table::get(entry)) + ", " +
            std::to_string(layout::EntryWord::Depth::get(entry)) + " bits" +
            (layout::EntryWord::Splitting::get(entry) != 0 ? ", splitting;" : ";");
  }
  text.back() = '\n';
  return text;
}

std::string Stage::tell_position(std::uint64_t position) const {
  if (position == 0) return "the end";
  const std::uint64_t bits = layout::most_depth(tables()), group = position >> bits;
  std::uint64_t hash = 0, known = 0;
  for (std::uint64_t i = 0; i < bits; ++i) {
    if ((position >> (bits - 1 - i) & 1) == 0) continue;
    hash |= 1ull << i;
    known = i + 1;
  }
  return "group " + std::to_string(group) + (known == 0 ? "" : " from .." + binary(hash, known) + " on");
}

// --- The trace

// All but the first: " 3 5..7".
std::string ranges(const std::vector<std::uint64_t>& numbers) {
  std::string text;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) ++i;
    text += " " + std::to_string(numbers[first]);
    if (i > first) text += (i > first + 1 ? ".." : " ") + std::to_string(numbers[i]);
  }
  return text;
}

// Which of the two a device has changes nothing in what is traced.
const char* name_of(Verb verb) { return fabric::sim::name_of(verb == Verb::masked_cas ? Verb::cas : verb); }

std::string Stage::describe(const fabric::sim::VerbRecord& verb) const {
  if (verb.verb == Verb::fetch_add) return verb.at.region == layout::kTable ? "set once more" : "free";
  if (verb.verb == Verb::call) return "ends it, if it stands still";
  if (verb.verb == Verb::read || verb.verb == Verb::write) return std::to_string(verb.bytes) + " B";
  if (verb.at.region == layout::kLeases) {
    const bool before = layout::LeaseWord::held(verb.compare), after = layout::LeaseWord::held(verb.swap);
    const bool same = layout::LeaseWord::Session::get(verb.compare) == layout::LeaseWord::Session::get(verb.swap);
    return !after ? "to free" : !before ? "to held" : same ? "to held still" : "stolen";
  }
  if (verb.at.offset % kBucketBytes == 0) {
    const std::uint64_t depth = HeaderWord::Depth::get(verb.swap), move = HeaderWord::Move::get(verb.swap);
    return (depth == 0 ? "to all keys" : "to keys .." + binary(HeaderWord::Suffix::get(verb.swap), depth)) +
           (move == 0 ? "" : ", move " + std::to_string(move));
  }
  const Slot to(verb.swap);
  return to.empty()       ? "to empty"
         : to.tentative() ? "to tentative"
         : to.moving()    ? "to moving"
         : to.leaving()   ? "to leaving"
                          : "to committed";
}

// What the client has posted and has not been shown. What one trip does to several groups alike is shown once, and a
// trip that is repeated as well.
std::string Stage::trace_of(Player& player) {
  struct Shown {
    std::string text, alike;
    std::vector<std::uint64_t> groups;
  };
  std::string text, head, last;
  int repeated = 0;
  std::vector<Shown> trip;
  const auto repeats = [&] {
    if (repeated > 0) text += "        " + (repeated == 1 ? "once" : std::to_string(repeated) + " times") + " more\n";
    repeated = 0;
  };
  const auto flush = [&] {
    std::string body;
    for (const Shown& shown : trip) {
      body += shown.text;
      if (shown.groups.size() > 1) body += "        the same of groups" + ranges(shown.groups) + "\n";
    }
    trip.clear();
    if (body.empty()) return;
    if (body == last) {
      ++repeated;
      return;
    }
    repeats();
    last = body;
    text += head + std::string(8 - std::min<std::size_t>(8, head.size()), ' ') + body.substr(8);
  };
  const auto& chains = world_.network().trace().chains();
  for (; player.shown <= chains.size(); ++player.shown) {
    for (const auto& [at, note] : elsewhere_.notes) {
      if (at != player.shown) continue;
      flush();
      repeats();
      text += "        " + note + "\n";
    }
    if (player.shown == chains.size()) break;
    const auto& chain = chains[player.shown];
    const auto& first = chain.verbs[0];
    if (chain.client != player.client->index()) continue;
    if (first.verb == Verb::call && first.opcode != layout::kFence) continue;
    // Nobody waits for these: counters, a block that is freed.
    const bool background = (first.verb == Verb::fetch_add && first.at.region != layout::kTable) ||
                            (first.at.region == layout::kSlots && first.verb == Verb::write);
    if (background || tables() == 1 || chain.posted != player.posted) {
      flush();
      head = background ? "and" : "trip " + std::to_string(++player.trips);
      player.posted = background ? -1 : chain.posted;
    }
    player.messages += static_cast<int>(chain.verbs.size());
    Shown shown;
    for (const auto& verb : chain.verbs) {
      const std::string what = describe(verb);
      const bool swaps = verb.verb == Verb::cas || verb.verb == Verb::masked_cas;
      const std::uint64_t bytes = swaps ? 8 : verb.bytes;
      const std::string name =
          verb.verb == Verb::call ? "memory node" : sim::name_place(world_.geometry(), verb.at, bytes);
      char line[160];
      std::snprintf(line, sizeof line, "        %-6s %-22s %s\n", name_of(verb.verb), name.c_str(), what.c_str());
      shown.text += line;
      const bool of_group =
          tables() > 1 && verb.at.region == layout::kTable && verb.at.offset < world_.geometry().mark_offset(0);
      const std::uint64_t row = verb.at.offset / kGroupBytes;
      if (of_group && shown.groups.empty()) shown.groups.push_back(row % groups());
      shown.alike += std::string(name_of(verb.verb)) + " " + what + " ";
      shown.alike +=
          of_group ? std::to_string(row / groups()) + "/" + std::to_string(verb.at.offset % kGroupBytes) : name;
    }
    const auto like = std::find_if(trip.begin(), trip.end(), [&](const Shown& one) {
      return !one.groups.empty() && !shown.groups.empty() && one.alike == shown.alike;
    });
    if (like == trip.end()) {
      trip.push_back(std::move(shown));
    } else {
      like->groups.push_back(shown.groups[0]);
    }
  }
  flush();
  repeats();
  return text;
}

std::string replay(const std::string& file, std::string* wanted) {
  std::ifstream in(file);
  auto stage = std::make_unique<Stage>(1);
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
    if (line.starts_with("pool ")) {  // of so many tables, of which the first has all keys
      stage.reset();
      stage = std::make_unique<Stage>(std::stoull(line.substr(5)));
      continue;
    }
    pending += stage->run(line);
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
  EXPECT_EQ(files, 7);
}

// RA-03, RA-05 and section 6.1 of the paper's figures, with 16 bytes of key and 32 of value: 2 trips to search, 3 to
// insert, update and delete. Bytes as RoCEv2 would carry them. An insert has one CAS more than the paper's, which makes
// it exact, and what changes the count of keys has a WRITE of counters that nobody waits for.
TEST(Cost, IsThatOfThePaper) {
  constexpr std::uint64_t kReadBuckets = 2 * (74 + 62 + 128), kReadBlock = 74 + 62 + 64, kWriteBlock = 74 + 64 + 62,
                          kReadKey = 74 + 62 + 32, kCas = 86 + 70, kCount = 74 + 24 + 62;
  Stage stage(1);
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
  constexpr std::uint64_t kSetMark = kCas;  // an FAA as long as a CAS; of groups that had no slot before
  EXPECT_EQ(costs("insert " + key + " *32"),
            figures(3, 9, 2 * kReadBuckets + kWriteBlock + kSetMark + 2 * kCas + kCount));
  EXPECT_EQ(costs("lookup " + key), figures(2, 3, kReadBuckets + kReadBlock));
  EXPECT_EQ(costs("update " + key + " *32"), figures(3, 5, kReadBuckets + kWriteBlock + kReadKey + kCas));
  EXPECT_EQ(costs("put " + key + " *32"), figures(3, 5, kReadBuckets + kWriteBlock + kReadKey + kCas));
  EXPECT_EQ(costs("remove " + key), figures(3, 5, kReadBuckets + kReadKey + kCas + kCount));
  EXPECT_EQ(costs("put " + key + " *32"), figures(3, 8, 2 * kReadBuckets + kWriteBlock + 2 * kCas + kCount));
  EXPECT_EQ(costs("modify " + key + " "), figures(3, 5, kReadBuckets + kReadBlock + kWriteBlock + kCas));
}

}  // namespace
}  // namespace farpool::race
