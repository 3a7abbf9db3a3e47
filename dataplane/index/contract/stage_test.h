// SPDX-License-Identifier: Apache-2.0
// Golden verb traces: files say what every operation posts, in each of its branches, for people to read. A block is
// commands, a line of dashes, and what they did. A stage plays the commands; what it has to know of a protocol is the
// protocol's Teller.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "index/table.h"
#include "layout/regions.h"
#include "sim/world.h"

namespace farpool::index::contract {

using Words = std::vector<std::string>;

class Stage;

// What is one protocol's: its tables, its steps, and the words for what it posts.
class Teller {
 public:
  virtual ~Teller() = default;
  Teller() = default;
  Teller(const Teller&) = delete;

  // Returns a world whose memory has so many tables, on a wire that neither tears nor lets one verb lag behind.
  virtual sim::WorldOptions options(std::uint64_t tables) const = 0;
  // Returns the sizes of values for which a client has a block at hand when a story begins.
  virtual std::vector<int> warm(std::uint64_t tables) const = 0;
  // Called when the world stands, before its clients do anything.
  virtual void enter(sim::World& world) = 0;

  // Returns the key that a story calls by this name. Many are named by where they lie.
  virtual std::string key_of(const std::string& name) = 0;
  virtual std::string name_of_key(const std::string& key) const = 0;
  // Does what is no operation of a table, by this client. Returns what happened, or nothing: there is no such command.
  virtual std::optional<std::string> arrange(Stage& stage, sim::Client& client, const Words& words) = 0;
  // Says whether a client has come to this step.
  virtual bool reached(const Words& /*step*/) {
    ADD_FAILURE() << "no such step";
    return true;
  }
  // Returns the position of a scan that a story calls by this number, and what it calls a position.
  virtual std::uint64_t position(std::uint64_t number) const { return number; }
  virtual std::string tell_position(std::uint64_t position) const { return "position " + std::to_string(position); }

  // Returns what the verb is called, and what it does to its place.
  virtual const char* name_of(fabric::Verb verb) const { return fabric::sim::name_of(verb); }
  virtual std::string describe(const fabric::sim::VerbRecord& verb) const = 0;
  // Where a trip does the same to several rows of a table: the row's number in its table, and what the place is
  // otherwise. Nothing: the place is shown by itself.
  virtual std::optional<std::pair<std::uint64_t, std::string>> row_of(const fabric::sim::VerbRecord& /*verb*/) const {
    return {};
  }
  // Says whether chains that are posted at the same moment are one trip, because all takes the same time.
  virtual bool by_time() const { return false; }
};

class Append final : public Editor {
 public:
  explicit Append(std::string more) : more_(std::move(more)) {}
  Edit edit(std::optional<std::string_view> value) override {
    return Edit::put(std::string(value.value_or("")) + more_);
  }

 private:
  std::string more_;
};

// Two clients of one memory node. A client may be stopped on its way, or die there, while the other goes on.
class Stage {
 public:
  Stage(Teller& teller, std::uint64_t tables) : teller_(teller), world_(teller.options(tables)), elsewhere_(*this) {
    teller.enter(world_);
    for (const char* name : {"a", "b"}) {
      players_[name].client = &world_.connect(name);
      // Segments are fetched once in a while; that is not what a trace is about.
      for (const int bytes : teller.warm(tables)) (void)run(std::string(name) + ":put warm *" + std::to_string(bytes));
      if (!teller.warm(tables).empty()) (void)run(std::string(name) + ":remove warm");
    }
  }
  ~Stage() {
    for (auto& [name, player] : players_) player.client->port().resume();
    EXPECT_TRUE(world_.run_until([this] {
      return std::all_of(players_.begin(), players_.end(),
                         [](const auto& one) { return one.second.done || one.second.client->crashed(); });
    }));
  }
  Stage(const Stage&) = delete;

  // Plays one command, `[quiet] [b:]verb [key [value]] [/ until step]`, and returns the trace and the outcome.
  //  - `*90` is a value of 90 bytes.
  //  - `/ until step` stops the client there: what it has posted lands, `go` lets it go on. At `/ dies step` nothing
  //    lands any more.
  //  - steps: `trip n` (so many trips have been posted), `waits` (an operation has found that it must wait), and the
  //    teller's.
  //  - `full`, `full not`: there is no room at the memory node that keys move to. `wait 50`: so many milliseconds pass.
  std::string run(const std::string& line);
  const fabric::Cost& cost() const { return players_.at("a").cost; }
  sim::World& world() { return world_; }
  sim::Client& client(const std::string& name) { return *players_.at(name).client; }

 private:
  using Nanos = base::Nanos;
  using Status = base::Status;
  template <class T>
  using Result = base::Result<T>;
  template <class T>
  using Task = task::Task<T>;

  // Another memory node, to which keys move. What it is asked stands between the trips.
  class Elsewhere final : public Arrivals {
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
      notes.emplace_back(chains, stage_.teller_.name_of_key(std::string(key)) + " " + what);
    }
    Stage& stage_;
  };
  struct Player {
    sim::Client* client = nullptr;
    bool done = true;
    std::string outcome;
    fabric::Cost cost;
    std::string key, value;
    std::uint64_t waits = 0;  // when it began
    // Lines of the trace.
    std::size_t begun = 0, shown = 0;  // chains
    int trips = 0, messages = 0;
    Nanos posted = -1;
  };
  struct Line {
    std::string who = "a";
    Words words, step;
    bool quiet = false, dies = false;
  };
  class Trace;

  static bool is_control(const fabric::sim::VerbRecord& verb) {
    return verb.verb == fabric::Verb::call && verb.opcode < fabric::kFirstServiceOpcode;
  }
  static Line parse(const std::string& line);
  std::optional<std::string> arrange(Player& player, const Words& words);
  void begin(Player& player, const Words& words);
  Task<void> operation(Player* player, const Words& words);
  Task<void> movement(Player* player, const std::string& verb);
  bool reached(const Player& player, const Words& step);
  std::string trace_of(Player& player);

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
  static Task<void> counted(Player* player, Task<Result<Totals>> task) {
    const auto result = co_await std::move(task);
    finish(*player, result.ok() ? std::to_string(result->keys) + " keys, " + std::to_string(result->bytes) + " bytes"
                                : tell(result.status()));
  }
  static Task<void> scanned(Teller* teller, Player* player, Task<Result<Page>> task) {
    const auto result = co_await std::move(task);
    if (!result.ok()) co_return finish(*player, tell(result.status()));
    std::string keys;
    for (const std::string& key : result->keys) keys += (keys.empty() ? "" : " ") + teller->name_of_key(key);
    finish(*player, (keys.empty() ? "no keys" : keys) + ", then " +
                        (result->next == 0 ? "the end" : teller->tell_position(result->next)));
  }
  static Task<void> edited(Player* player, Table* table, Nanos deadline) {
    Append editor(player->value);
    co_await told(player, table->modify(player->key, editor, deadline, player->cost), "edited", "added");
  }
  static Task<void> split(Player* player, Table* table, Nanos deadline) {
    fabric::Cost nobodys;
    const std::uint64_t before = table->marks().splits_finished;
    const Status status = co_await table->split(player->key, deadline, nobodys);
    (void)co_await table->idle(deadline);
    finish(*player, !status.ok() ? tell(status) : table->marks().splits_finished > before ? "split" : "not split");
  }
  static Task<void> swept(Player* player, Table* table, Nanos deadline) {
    const Result<Swept> swept = co_await table->sweep(deadline, player->cost);
    finish(*player, !swept.ok() ? tell(swept.status()) : std::to_string(swept->splits) + " splits finished");
  }
  static Task<void> judged(Player* player, Task<Status> task, const char* well) {
    const Status status = co_await std::move(task);
    finish(*player, status.ok() ? well : tell(status));
  }
  static Task<void> play(Player* player, Task<void> task) {
    co_await std::move(task);
    co_await player->client->port().sleep_for(1);  // what leaves before the turn ends
    player->done = true;
  }
  static void finish(Player& player, std::string outcome) { player.outcome = std::move(outcome); }
  static std::string tell(const Status& status) { return std::string(base::name_of(status.code())); }

  Teller& teller_;
  sim::World world_;
  Elsewhere elsewhere_;
  const Movable::GoOn go_on_ = [] { return Status(); };
  std::map<std::string, Player> players_;
};

inline Stage::Line Stage::parse(const std::string& text) {
  Line line;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (word == "/") {
      in >> word;
      line.dies = word == "dies";
      while (in >> word) line.step.push_back(word);
    } else if (word == "quiet" && line.words.empty()) {
      line.quiet = true;
    } else {
      line.words.push_back(word);
    }
  }
  std::string& verb = line.words.at(0);
  if (verb.size() > 2 && verb[1] == ':') {
    line.who = verb.substr(0, 1);
    verb = verb.substr(2);
  }
  return line;
}

inline std::string Stage::run(const std::string& text) {
  const Line line = parse(text);
  Player& player = players_.at(line.who);
  if (const auto arranged = arrange(player, line.words)) return line.quiet ? "" : *arranged;
  fabric::sim::SimPort& port = player.client->port();
  if (line.words[0] == "go") {
    port.resume();
  } else {
    begin(player, line.words);
  }
  EXPECT_TRUE(world_.run_until([&] { return player.done || (!line.step.empty() && reached(player, line.step)); }))
      << text;
  if (!player.done) {
    if (line.dies) {
      port.crash(fabric::sim::InFlight::cut);
    } else {
      port.pause();
    }
  }
  world_.network().drain(port, world_.network().now() + base::kSecond);
  const std::string trace = trace_of(player);
  if (line.quiet) return "";
  if (!player.done) return trace + (line.dies ? "= dies\n" : "= stopped\n");
  // What splits and moves cost is charged to nobody.
  const bool own = player.cost.trips > 0 && line.words[0] != "sweep";
  return trace + "= " + player.outcome + "   " +
         std::to_string(own ? static_cast<int>(player.cost.trips) : player.trips) + " trips, " +
         std::to_string(own ? static_cast<int>(player.cost.messages) : player.messages) + " messages" +
         (own ? ", " + std::to_string(player.cost.bytes) + " bytes" : "") + "\n";
}

inline std::optional<std::string> Stage::arrange(Player& player, const Words& words) {
  if (words[0] == "full") {
    elsewhere_.full = words.size() == 1;
    return "";
  }
  if (words[0] == "wait") {
    const Nanos then = world_.network().now() + std::stoll(words.at(1)) * base::kMillisecond;
    world_.run_until([&] { return world_.network().now() >= then; });
    return "";
  }
  return teller_.arrange(*this, *player.client, words);
}

inline void Stage::begin(Player& player, const Words& words) {
  player.done = false;
  player.cost = fabric::Cost{};
  player.key = words.size() > 1 ? teller_.key_of(words[1]) : "";
  player.value = words.size() > 2 ? words[2] : "";
  if (player.value.starts_with("*")) player.value = std::string(std::stoul(player.value.substr(1)), 'v');
  Table& table = player.client->table();
  const Marks& marks = table.marks();
  player.waits = marks.split_waits + marks.move_waits;
  player.begun = player.shown = world_.network().trace().chains().size();
  player.trips = player.messages = 0;
  player.posted = -1;
  if (words[0] == "follow") {
    table.movable()->follow({.number = std::stoull(words.at(1)), .depth = 1, .leaving = {words.size() > 2, false}});
    player.done = true;
    return finish(player, "its map has move " + words[1]);
  }
  world_.spawn(*player.client, play(&player, operation(&player, words)));
}

// Returns the task of one command. Its words outlive the call, not the task.
inline task::Task<void> Stage::operation(Player* p, const Words& words) {
  Table& table = p->client->table();
  const Nanos deadline = p->client->port().now() + 5 * base::kSecond;
  const std::string &verb = words[0], &key = p->key, &value = p->value;
  fabric::Cost& cost = p->cost;
  const auto number = [&](std::size_t i) { return words.size() > i ? std::stoull(words[i]) : 0; };
  if (verb == "lookup") return told(p, table.lookup(key, deadline, cost));
  if (verb == "insert") return told(p, table.insert(key, value, deadline, cost), "inserted", "exists");
  if (verb == "update") return told(p, table.update(key, value, deadline, cost), "updated", "absent");
  if (verb == "remove") return told(p, table.remove(key, deadline, cost), "removed", "absent");
  if (verb == "put") return told(p, table.put(key, value, deadline, cost), "replaced", "added");
  if (verb == "modify") return edited(p, &table, deadline);
  if (verb == "count") return counted(p, table.count(deadline, cost));
  if (verb == "scan") return scanned(&teller_, p, table.scan(teller_.position(number(1)), number(2), deadline, cost));
  if (verb == "split") return split(p, &table, deadline);
  if (verb == "sweep") return swept(p, &table, deadline);
  return movement(p, verb);
}
inline task::Task<void> Stage::movement(Player* p, const std::string& verb) {
  Movable& movable = *p->client->table().movable();
  const Nanos deadline = p->client->port().now() + 5 * base::kSecond;
  if (verb == "admit") return told(p, movable.admit(p->key, p->value, deadline, p->cost), "admitted", "was there");
  if (verb == "close") return judged(p, movable.close(&elsewhere_, go_on_), "closed");
  if (verb == "open-arms") return judged(p, movable.close(nullptr, go_on_), "closed");
  EXPECT_EQ(verb, "move") << "no such command";
  return judged(p, movable.move_away(elsewhere_, go_on_), "moved");
}

inline bool Stage::reached(const Player& player, const Words& step) {
  if (step[0] == "trip") {
    int trips = 0;
    Nanos posted = -1;
    const auto& chains = world_.network().trace().chains();
    for (std::size_t i = player.begun; i < chains.size(); ++i) {
      if (chains[i].client != player.client->index() || is_control(chains[i].verbs[0])) continue;
      trips += chains[i].posted != posted ? 1 : 0;
      posted = chains[i].posted;
    }
    return trips >= std::stoi(step.at(1));
  }
  if (step[0] == "waits") {
    const Marks& marks = player.client->table().marks();
    return marks.split_waits + marks.move_waits > player.waits;
  }
  return teller_.reached(step);
}

// ---- the trace ------------------------------------------------------------------------------------------------------

// The lines of a client's chains. What one trip does to several rows alike is shown once, and a trip that is repeated
// as well.
class Stage::Trace {
 public:
  Trace(const Teller& teller, const layout::Geometry& geometry) : teller_(teller), geometry_(geometry) {}

  // Begins a trip, or what nobody waits for.
  void begin(std::string head) {
    flush();
    head_ = std::move(head);
  }
  void add(const fabric::sim::ChainRecord& chain) {
    Shown shown;
    for (const auto& verb : chain.verbs) {
      const std::string what = teller_.describe(verb);
      const bool swaps = verb.verb == fabric::Verb::cas || verb.verb == fabric::Verb::masked_cas;
      const std::string place =
          verb.verb == fabric::Verb::call ? "memory node" : sim::name_place(geometry_, verb.at, swaps ? 8 : verb.bytes);
      char line[160];
      std::snprintf(line, sizeof line, "        %-6s %-22s %s\n", teller_.name_of(verb.verb), place.c_str(),
                    what.c_str());
      shown.text += line;
      const auto row = teller_.row_of(verb);
      if (row && shown.rows.empty()) shown.rows.push_back(row->first);
      shown.alike += std::string(teller_.name_of(verb.verb)) + " " + what + " " + (row ? row->second : place);
    }
    const auto like = std::find_if(trip_.begin(), trip_.end(), [&](const Shown& one) {
      return !one.rows.empty() && !shown.rows.empty() && one.alike == shown.alike;
    });
    if (like == trip_.end()) {
      trip_.push_back(std::move(shown));
    } else {
      like->rows.push_back(shown.rows[0]);
    }
  }
  void note(const std::string& what) {
    flush();
    tell_repeated();
    text_ += "        " + what + "\n";
  }
  std::string end() {
    flush();
    tell_repeated();
    return std::move(text_);
  }

 private:
  struct Shown {
    std::string text, alike;
    std::vector<std::uint64_t> rows;
  };
  void flush() {
    std::string body;
    for (const Shown& shown : trip_) {
      body += shown.text;
      if (shown.rows.size() > 1) body += "        the same of groups" + ranges(shown.rows) + "\n";
    }
    trip_.clear();
    if (body.empty()) return;
    if (body == last_) {
      ++repeated_;
      return;
    }
    tell_repeated();
    last_ = body;
    text_ += head_ + std::string(8 - std::min<std::size_t>(8, head_.size()), ' ') + body.substr(8);
  }
  void tell_repeated() {
    if (repeated_ > 0)
      text_ += "        " + (repeated_ == 1 ? "once" : std::to_string(repeated_) + " times") + " more\n";
    repeated_ = 0;
  }
  // All but the first: " 3 5..7".
  static std::string ranges(const std::vector<std::uint64_t>& numbers) {
    std::string text;
    for (std::size_t i = 1; i < numbers.size(); ++i) {
      const std::size_t first = i;
      while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) ++i;
      text += " " + std::to_string(numbers[first]);
      if (i > first) text += (i > first + 1 ? ".." : " ") + std::to_string(numbers[i]);
    }
    return text;
  }

  const Teller& teller_;
  const layout::Geometry& geometry_;
  std::string text_, head_, last_;
  int repeated_ = 0;
  std::vector<Shown> trip_;
};

// Returns what the client has posted and has not been shown.
inline std::string Stage::trace_of(Player& player) {
  Trace trace(teller_, world_.geometry());
  const auto& chains = world_.network().trace().chains();
  for (; player.shown <= chains.size(); ++player.shown) {
    for (const auto& [at, note] : elsewhere_.notes) {
      if (at == player.shown) trace.note(note);
    }
    if (player.shown == chains.size()) break;
    const auto& chain = chains[player.shown];
    const auto& first = chain.verbs[0];
    if (chain.client != player.client->index()) continue;
    if (is_control(first) && first.opcode != layout::kFence) continue;
    // Nobody waits for these: counters, a slot that is cleared, a block that is freed.
    const bool background =
        chain.verbs.size() == 1 && ((first.verb == fabric::Verb::fetch_add && first.at.region != layout::kTable) ||
                                    (first.verb == fabric::Verb::write && first.at.region == layout::kSlots));
    if (background || !teller_.by_time() || chain.posted != player.posted) {
      trace.begin(background ? "and" : "trip " + std::to_string(++player.trips));
      player.posted = background ? -1 : chain.posted;
    }
    player.messages += static_cast<int>(chain.verbs.size());
    trace.add(chain);
  }
  return trace.end();
}

// Plays a file's stories, and returns the file as it should be. `pool 8` begins anew with a memory of eight tables.
inline std::string replay(const std::string& stories, const std::function<std::unique_ptr<Teller>()>& make) {
  std::unique_ptr<Teller> teller = make();
  auto stage = std::make_unique<Stage>(*teller, 1);
  std::string out, line, pending;
  bool expecting = false;
  std::istringstream lines(stories);
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
    if (line.starts_with("pool ")) {
      stage.reset();
      teller = make();
      stage = std::make_unique<Stage>(*teller, std::stoull(line.substr(5)));
      continue;
    }
    pending += stage->run(line);
  }
  return out;
}

}  // namespace farpool::index::contract
