// SPDX-License-Identifier: Apache-2.0
#include "sim/pools.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "client/pool.h"
#include "fabric/sim/network.h"
#include "layout/directory.h"
#include "map/shard_map.h"
#include "node/audit.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "sim/dialect.h"
#include "sim/history.h"
#include "sim/last_words.h"
#include "sim/story.h"
#include "task/scope.h"

namespace farpool::sim {
namespace {

using base::kMillisecond;
using base::kSecond;
using base::Random;

constexpr const char* kUid = "pool-of-the-simulation";
constexpr base::HashSecret kSecret{0x5eed, 0x900d};
constexpr Nanos kLease = 2 * kSecond;
constexpr std::uint64_t kNever = 1ull << 60;  // so many effects
constexpr Nanos kPatience = 20 * kSecond;     // of a call
constexpr std::size_t kNobody = 99;           // a client

using Setting = PoolSetting;

bool has_locks(const Setting& s) { return layout::shape_of(s.geometry.protocol).locks; }

// Where keys move memory is lost, too: with keys that have not left, or with keys that have come.
void lose_memory(Setting& s, std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0x105e5);
  if (s.moves > 0 && random.chance(0.3)) s.losses_of_some = 1 + random.below(2);
}

Setting draw(std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0x900150);
  Setting s;
  s.nodes = 2 + random.below(3);
  while (1u << s.depth < s.nodes) ++s.depth;
  s.depth += random.below(2) == 0 ? 0 : 2;  // several entries share a table
  s.clients = 2 + random.below(3);
  s.late_comers = random.below(3);
  s.tasks = 1 + random.below(4);
  s.keys = 3 * s.nodes + random.below(12);
  s.calls = 6 + random.below(160 / (s.clients * s.tasks));
  s.large = random.chance(0.3) ? 0.6 : 0.15;
  s.deaths = random.below(4);
  s.stops = random.below(3);
  s.restarts = random.below(3);
  s.losses = random.chance(0.3) ? 1 : 0;
  s.epochs = random.below(3);
  s.lose_reply = random.chance(0.3) ? 0.003 : 0;
  s.horizon = (random.chance(0.5) ? 10 : 200) * kMillisecond;
  s.wire.seed = base::mix(seed);
  s.wire.straggle = random.chance(0.3) ? 0.2 : 0.03;
  s.wire.tear = !random.chance(0.1);
  s.wire.lose_exchange = random.chance(0.2) ? 0.05 : 0;
  if (random.chance(0.4)) {
    s.wire.max_offset = 3600 * kSecond;
    s.wire.max_drift_ppm = 50'000;
  }
  // From a stream of its own: what was drawn before stays as it was.
  Random more(base::mix(seed) ^ 0x5ca9);
  if (more.chance(0.3)) s.scans = 1 + more.below(3);
  return s;
}

std::string describe(const Setting& s) {
  const auto some = [](std::uint64_t count, const char* what) {
    return count == 0 ? std::string() : ", " + std::to_string(count) + " " + what;
  };
  const std::string title = title_of(s.geometry.protocol);
  return std::to_string(s.nodes) + " memory nodes under a directory of depth " + std::to_string(s.depth) + ", " +
         std::to_string(s.clients) + " clients" + some(s.late_comers, "late comers") + ", each of " +
         std::to_string(s.tasks) + " tasks of " + std::to_string(s.calls) + " calls, on " + std::to_string(s.keys) +
         " keys" + some(s.deaths, "deaths") + some(s.stops, "stops") + some(s.restarts, "restarts") +
         some(s.losses + s.losses_of_some, "losses of memory") + some(s.epochs, "more epochs") +
         some(s.moves, "moves of parts") + some(s.wishes, "wishes for tables") + some(s.scans, "scans") +
         (title.empty()
              ? ""
              : ", " + title + " with room for " + std::to_string(s.geometry.tables) + " tables at each node") +
         (s.lose_reply > 0 ? ", lost replies" : "") + (s.wire.lose_exchange > 0 ? ", lost handshakes" : "") +
         (s.wire.max_drift_ppm > 0 ? ", clocks drift" : "");
}

// A call under way, as long as its caller may still be told what came of it.
struct Asked {
  Call call;
  std::size_t number = 0;  // in its memory node's history
  bool over = false;
  bool straddles = false;  // it began before a loss of memory: what it did, and what it is told, may be of either pool
};

// A memory node, through all its lives, with the history of the keys that it serves at first.
struct Member {
  Member(fabric::sim::SimResponder& responder, std::string called, std::uint64_t bytes)
      : wire(responder), name(std::move(called)), memory(std::move(*node::Memory::anonymous(bytes))) {}
  fabric::sim::SimResponder& wire;
  std::string name;
  node::Memory memory;
  std::unique_ptr<node::MemoryNode> node;
  v1alpha1::MemoryNodeEntry entry;  // of its last life
  bool fresh = false;               // its memory was lost, and nobody has been told yet
  std::string kept;                 // its newest map, beside its memory
  History history;
  std::vector<std::shared_ptr<Asked>> asked;
};

// A client thread. What its coroutines refer to is buried with it if it crashes.
struct Person {
  struct Body {
    std::unique_ptr<client::Pool> pool;
    task::Scope scope;
  };
  fabric::sim::SimPort* port = nullptr;
  std::shared_ptr<Body> body = std::make_shared<Body>();
  bool left = false;
};

// What a modify does to the value that is there.
class Change final : public client::Editor {
 public:
  explicit Change(const Call& call) : call_(call) {}
  client::Edit edit(std::optional<std::string_view> value) override {
    found.reset();
    switch (call_.kind) {
      case Call::Kind::insert:
        if (value) found = "there";
        return value ? client::Edit::keep() : client::Edit::put(call_.value);
      case Call::Kind::update:
        if (value) found = "there";
        return value ? client::Edit::put(call_.value) : client::Edit::keep();
      default:
        found = std::to_string((value ? std::stoll(std::string(*value)) : 0) + 1);
        return client::Edit::put(*found);
    }
  }
  std::optional<std::string> found;

 private:
  const Call& call_;
};

class PoolWorld {
 public:
  explicit PoolWorld(const Setting& setting, PoolVerdict& verdict)
      : setting_(setting), verdict_(verdict), network_(setting.wire), random_(setting.wire.seed ^ 0x0b5) {
    for (std::size_t i = 0; i < setting.nodes; ++i) {
      members_.push_back(std::make_unique<Member>(network_.add_node("node-" + std::to_string(i) + ":7400"),
                                                  "node-" + std::to_string(i), memory()));
      begin_life(*members_.back());
    }
    for (std::uint32_t i = 0; i < 1u << setting.depth; ++i) {
      owners_.push_back(i % static_cast<std::uint32_t>(members_.size()));
    }
    publish();
  }
  ~PoolWorld() {
    for (const auto& person : persons_) {
      if (person->left) continue;
      if (!person->port->crashed()) person->port->crash(fabric::sim::InFlight::cut);  // something is wrong
      fabric::sim::bury(person->body);
    }
  }
  PoolWorld(const PoolWorld&) = delete;

  fabric::sim::Network& network() { return network_; }
  const std::vector<std::unique_ptr<Person>>& persons() const { return persons_; }
  bool right() const { return verdict_.wrong.empty(); }
  void wrong(std::string what) { verdict_.wrong.push_back(std::move(what)); }

  Person& connect() {
    persons_.push_back(std::make_unique<Person>());
    Person& person = *persons_.back();
    const std::string name = "client-" + std::to_string(persons_.size());
    person.port = &network_.add_client({.pool_uid = kUid, .role = "client", .name = name, .authenticated = true});
    std::vector<std::string> bootstrap;
    for (const auto& member : members_) bootstrap.push_back(member->wire.endpoint());
    person.body->pool = std::make_unique<client::Pool>(
        *person.port, client::Pool::Options{.pool_uid = kUid,
                                            .client_name = name,
                                            .bootstrap = bootstrap,
                                            .operation_deadline = kPatience,
                                            .connect_deadline = kSecond,
                                            .log = [this, name](bool, const std::string& line) {
                                              befell_.add(network_.now(), name, line);
                                            }});
    person.body->pool->start();
    return person;
  }

  bool over(const Person& person) const { return person.port->crashed() || person.body->scope.running() == 0; }
  bool run_until(const std::function<bool()>& done, Nanos within) {
    return network_.run_until(done, network_.now() + within);
  }
  bool run(Person& person, task::Task<void> task, Nanos within = 2 * kPatience) {
    person.body->scope.spawn(std::move(task));
    return run_until([&] { return over(person); }, within);
  }

  // A memory node's process is killed, and comes back later, when the operator is told of it.
  void kill(std::size_t which, bool keeps_memory) {
    Member& member = *members_[which];
    if (member.node == nullptr) return;  // it is down
    verdict_.slots_repaired += member.node->stats().repaired;
    member.wire.stop();
    member.node.reset();
    befell_.add(network_.now(), member.name, keeps_memory ? "is killed" : "is killed, and loses its memory");
    ++(keeps_memory ? verdict_.restarts : verdict_.losses);
    if (!keeps_memory) lose(member);
    network_.at(network_.now() + some(50 * kMillisecond), [this, &member] {
      begin_life(member);
      network_.at(network_.now() + some(20 * kMillisecond), [this] { publish(); });
    });
  }

  // The operator makes an epoch of the lives that it knows. In the first phase it has one memory node after the other
  // hold it, in the second follow it. It may be another operator by then: the phases of several epochs overlap.
  void publish() {
    v1alpha1::ShardMap map;
    map.set_pool_uid(kUid);
    map.set_epoch(++verdict_.epochs);
    map.set_directory_depth(setting_.depth);
    map.set_directory_version(1);
    befell_.add(network_.now(), "operator", "begins to tell of epoch " + std::to_string(map.epoch()));
    for (std::uint32_t i = 0; i < members_.size(); ++i) {
      *map.add_nodes() = members_[i]->entry;
      auto* table = map.add_tables();
      table->set_id(i);
      table->set_node(i);
    }
    for (const std::uint32_t owner : owners_) map.add_directory(owner);
    map.set_least_tables(static_cast<std::uint32_t>(least_tables_));
    map.set_move(move_);
    for (const auto& [part, from] : departures_) {
      auto* departure = map.add_departures();
      departure->set_part(part);
      departure->set_from(from);
    }
    if (!map_) {
      auto made = map::Map::from(map);
      FARPOOL_CHECK(made.ok());
      map_ = std::move(*made);
    }
    const auto content = std::make_shared<v1alpha1::ShardMap>(std::move(map));
    const Nanos now = network_.now();
    for (const auto& member : members_) {
      const Nanos held = now + some(5 * kMillisecond);
      network_.at(held, [this, content, &member = *member] { tell(member, *content, &node::MemoryNode::prepare); });
    }
    for (const auto& member : members_) {
      const Nanos followed = now + 5 * kMillisecond + some(5 * kMillisecond);
      network_.at(followed, [this, content, &member = *member] { tell(member, *content, &node::MemoryNode::publish); });
    }
  }

  // The operator wants so many tables at each memory node, ahead of keys; fewer than before where a resize is aborted.
  void wish(std::uint64_t tables) {
    least_tables_ = std::min(tables, setting_.geometry.tables);
    ++verdict_.wishes;
    befell_.add(network_.now(), "operator", "wants " + std::to_string(least_tables_) + " tables at each");
    publish();
  }
  bool split_ahead() const {
    return std::all_of(members_.begin(), members_.end(), [this](const auto& member) {
      return member->node->facts().memory_node().even_tables() >= least_tables_;
    });
  }

  // A scan is a look at each key.
  task::Task<void> scan(Person& person, std::vector<std::string> keys, std::uint64_t count) {
    std::vector<std::pair<Member*, std::shared_ptr<Asked>>> looks;
    for (std::string& key : keys) {
      Member& member = *members_[map_->table_of(map::directory_hash(kSecret, base::bytes_of(key))).node()];
      Call call{.kind = Call::Kind::look, .client = person.port->index(), .key = std::move(key)};
      call.asked = network_.now();
      looks.emplace_back(&member, std::make_shared<Asked>(Asked{.call = call, .number = member.history.ask(call)}));
      member.asked.push_back(looks.back().second);
    }
    client::Pool& pool = *person.body->pool;
    std::set<std::string> told;
    base::Status status;
    std::uint64_t cursor = 0;
    do {
      auto page = co_await pool.scan(cursor, count);
      status = page.status();
      if (!status.ok()) break;
      for (std::string& key : page->keys) told.insert(std::move(key));
      cursor = page->next;
    } while (cursor != 0);
    verdict_.scans += status.ok() ? 1 : 0;
    for (const auto& [member, asked] : looks) {
      asked->over = true;
      const bool there = told.erase(asked->call.key) > 0;
      note(*member, *asked, status, there ? std::optional<std::string>("there") : std::nullopt);
    }
    if (!told.empty()) wrong("a scan told of " + *told.begin() + ", which nobody has ever written");
  }

  // The operator has some of a member's parts moved, to one or more others. While another move is under way it waits.
  void begin_move(std::size_t from, std::uint64_t which) {
    if (!departures_.empty()) {
      ++moves_waiting_;
      network_.at(network_.now() + kMoveLook, [this, from, which] {
        --moves_waiting_;
        begin_move(from, which);
      });
      return;
    }
    Random random(which);
    for (std::uint32_t part = 0; part < owners_.size(); ++part) {
      const auto to = static_cast<std::uint32_t>((from + 1 + random.below(members_.size() - 1)) % members_.size());
      if (owners_[part] != from || random.chance(0.3)) continue;
      departures_.emplace(part, owners_[part]);
      owners_[part] = to;
    }
    if (departures_.empty()) return;
    ++move_;
    ++verdict_.moves;
    befell_.add(network_.now(), "operator",
                "begins move " + std::to_string(move_) + " of " + std::to_string(departures_.size()) +
                    " parts of node-" + std::to_string(from));
    publish();
    network_.at(network_.now() + kMoveLook, [this, from, move = move_] { follow_move(*members_[from], move); });
  }
  bool moving() const { return !departures_.empty() || moves_waiting_ > 0; }

  task::Task<void> call(Person& person, Call call) {
    Member& member = *members_[map_->table_of(map::directory_hash(kSecret, base::bytes_of(call.key))).node()];
    call.client = person.port->index();
    call.asked = network_.now();
    const auto asked = std::make_shared<Asked>(Asked{.call = call, .number = member.history.ask(call)});
    member.asked.push_back(asked);
    client::Pool& pool = *person.body->pool;
    base::Status status;
    std::optional<std::string> found;
    switch (call.kind) {
      case Call::Kind::get: {
        auto answer = co_await pool.get(call.key);
        status = answer.status();
        if (answer.ok()) found = *answer;
        break;
      }
      case Call::Kind::put:
        status = co_await pool.put(call.key, call.value);
        break;
      case Call::Kind::remove: {
        const auto answer = co_await pool.erase(call.key);
        status = answer.status();
        if (answer.ok() && *answer) found = "there";
        break;
      }
      default: {
        Change change(call);
        status = co_await pool.modify(call.key, change);
        found = change.found;
      }
    }
    asked->over = true;
    note(member, *asked, status, std::move(found));
  }

  // Faults end: no client dies any more, and stopped clients go on. Memory nodes that are down come back by
  // themselves.
  void calm() {
    network_.options().lose_reply = 0;
    network_.options().lose_exchange = 0;
    for (const auto& person : persons_) {
      if (person->port->crashed()) continue;
      person->port->crash_after(kNever, fabric::sim::InFlight::lands);
      person->port->pause_after(kNever);
      person->port->resume();
    }
  }
  // The answers that never came.
  void close_books() {
    for (const auto& member : members_) {
      for (const auto& asked : member->asked) {
        if (!asked->over && !asked->straddles) member->history.unknown(asked->number);
      }
    }
  }
  void judge_histories() {
    for (const auto& member : members_) {
      if (const auto judged = member->history.judge()) wrong(member->name + ": " + *judged);
    }
  }

  // What is wrong with a memory, or left in it by the dead.
  std::vector<std::string> leftovers() const {
    std::vector<std::string> left;
    for (const auto& member : members_) {
      const auto found = node::audit_memory(member->memory.span());
      if (!found.ok()) {
        left.push_back(member->name + ": " + found.status().message());
        continue;
      }
      for (const node::Finding& finding : found->audit.findings) {
        if (finding.wrong == node::Wrong::blocks_lost) continue;  // until their segment changes hands
        // Where there are no locks: until they are in somebody's way; and keys that the dead did not come to count.
        if (!has_locks(setting_) && finding.wrong == node::Wrong::insert_half_done) continue;
        if (finding.wrong == node::Wrong::counters_off && !exact()) continue;
        left.push_back(member->name + ": " + finding.what + " (" + std::string(node::kind_of(finding.wrong).name) +
                       ")");
      }
      const auto some_left = [&](std::uint64_t count, const char* what) {
        if (count > 0) left.push_back(member->name + ": " + std::to_string(count) + " " + what);
      };
      some_left(found->audit.lock_bits, "lock bits");
      some_left(found->audit.barriers, "barriers");
      some_left(found->audit.leases.size(), "repair leases");
    }
    return left;
  }

  // Says whether all keys are counted: no session can have ended in the middle.
  bool exact() const {
    const bool calm = setting_.deaths + setting_.stops + setting_.restarts + setting_.losses_of_some == 0 &&
                      setting_.lose_reply == 0 && setting_.wire.lose_exchange == 0 && setting_.wire.max_drift_ppm == 0;
    return has_locks(setting_) || calm;
  }

  // Keys that lie where the map does not say.
  std::vector<std::string> strays() const {
    std::vector<std::string> strays;
    for (std::uint32_t i = 0; i < members_.size(); ++i) {
      const auto visit = [&](const index::Sighting& at) {
        const std::uint64_t hash = map::directory_hash(kSecret, base::bytes_of(at.key));
        if (owners_[hash & ((1ull << setting_.depth) - 1)] == i) return;
        strays.push_back(members_[i]->name + " has " + std::string(at.key) + ", which is another's");
      };
      const auto found = node::audit_memory(members_[i]->memory.span(), {.visit = visit});
      if (!found.ok()) strays.push_back(members_[i]->name + ": " + found.status().message());
    }
    return strays;
  }

  // What has happened since then, as far as the history of memory that is still there goes.
  std::string story(Nanos from) {
    Story all = befell_;
    for (const auto& member : members_) all.add(member->history);
    all.add(network_.trace(), geometry_);
    return all.tell(from);
  }

  std::uint64_t up() const {
    return static_cast<std::uint64_t>(
        std::count_if(members_.begin(), members_.end(), [](const auto& member) { return member->node != nullptr; }));
  }
  void sum_up() {
    for (const auto& member : members_) {
      if (member->node != nullptr) verdict_.slots_repaired += member->node->stats().repaired;
    }
    for (const auto& person : persons_) {
      if (person->port->crashed()) continue;
      verdict_.slots_repaired += person->body->pool->counters().repair.get(&session::RepairMarks::repaired);
      verdict_.moved_away += person->body->pool->counters().index.get(&index::Marks::moved_away);
      verdict_.splits_taken_over += person->body->pool->counters().index.get(&index::Marks::splits_taken_over);
      verdict_.move_waits += person->body->pool->counters().index.get(&index::Marks::move_waits);
    }
    verdict_.trace_hash = network_.trace().hash();
  }

 private:
  static constexpr std::uint64_t kMemory = 2560 << 10;
  // Where keys move, all may come to lie at one node, in segments of many clients. A segment has blocks of one size,
  // and blocks stay where they are: a node of few segments is full with few keys, and no move to it would end.
  std::uint64_t memory() const { return (setting_.moves > 0 ? 3 : 1) * kMemory; }
  static constexpr Nanos kMoveLook = 5 * kMillisecond;

  // The operator learns that a move is finished from the memory node that keys have left.
  void follow_move(Member& source, std::uint64_t move) {
    if (departures_.empty() || move != move_) return;  // it has lost what was to leave
    const std::uint64_t offset = geometry_.at(layout::kDirectory).offset + layout::move_offset(geometry_.tables);
    if (base::load<std::uint64_t>(source.memory.span().data() + offset) < move_) {
      network_.at(network_.now() + kMoveLook, [this, &source, move] { follow_move(source, move); });
      return;
    }
    befell_.add(network_.now(), "operator", "sees that move " + std::to_string(move_) + " is finished");
    departures_.clear();
    publish();
  }

  Nanos some(Nanos most) { return static_cast<Nanos>(random_.below(static_cast<std::uint64_t>(most))); }

  void begin_life(Member& member) {
    auto life = node::MemoryNode::create({.name = member.name,
                                          .pool_uid = kUid,
                                          .endpoint = member.wire.endpoint(),
                                          .version = "simulated",
                                          .geometry = setting_.geometry,
                                          .lease = kLease,
                                          .failure_timeout = setting_.failure_timeout,
                                          .max_lanes = 24,
                                          .opens_per_second = 100000,
                                          .kept_map = member.kept,
                                          .keep_map = [&member](const std::string& map) { member.kept = map; }},
                                         member.memory.span(), member.wire);
    if (!life.ok()) {
      wrong(member.name + ": the memory cannot be taken up: " + life.status().message());
      return;
    }
    member.node = std::move(*life);
    if (member.node->stats().defects > 0) wrong(member.name + ": defects in the memory that was taken up");
    member.entry = member.node->entry();
    // Keys that were leaving it are there only if they had left.
    if (std::exchange(member.fresh, false)) {
      const std::size_t leaving = std::erase_if(
          departures_, [&](const auto& departure) { return members_[departure.second].get() == &member; });
      if (leaving > 0) befell_.add(network_.now(), "operator", "sees that nothing can leave " + member.name);
    }
    member.wire.serve(*member.node);
    geometry_ = member.node->geometry();
    befell_.add(network_.now(), member.name, "serves");
  }

  // Forgets what callers knew of its keys. A client that waits may yet write to the memory that follows. In a part that
  // is on its way, nobody knows which keys were here.
  void lose(Member& lost) {
    const auto which = static_cast<std::uint32_t>(
        std::find_if(members_.begin(), members_.end(), [&](const auto& one) { return one.get() == &lost; }) -
        members_.begin());
    const auto part_of = [this](const std::string& key) {
      return static_cast<std::uint32_t>(map::directory_hash(kSecret, base::bytes_of(key)) & (owners_.size() - 1));
    };
    const auto all_lost = [&](std::uint32_t part) { return owners_[part] == which && !departures_.contains(part); };
    const auto some_lost = [&](std::uint32_t part) {
      const auto departure = departures_.find(part);
      return departure != departures_.end() && (owners_[part] == which || departure->second == which);
    };
    const auto leaves = [&](const auto& departure) { return departure.second == which; };
    const auto comes = [&](const auto& departure) { return owners_[departure.first] == which; };
    verdict_.sources_lost += std::any_of(departures_.begin(), departures_.end(), leaves) ? 1 : 0;
    verdict_.targets_lost += std::any_of(departures_.begin(), departures_.end(), comes) ? 1 : 0;
    lost.memory = std::move(*node::Memory::anonymous(memory()));
    lost.kept.clear();
    lost.fresh = true;
    for (const auto& member : members_) {
      History& history = member->history;
      for (const std::string& key : history.keys()) {
        if (!some_lost(part_of(key))) continue;
        const std::size_t number =
            history.ask({.kind = Call::Kind::remove, .client = kNobody, .key = key, .asked = network_.now()});
        history.until(number, network_.now());
      }
      for (std::size_t i = 0; i < history.size(); ++i) {
        if (const std::string& key = history.calls()[i].key; !key.empty() && all_lost(part_of(key))) history.forget(i);
      }
      std::erase_if(member->asked, [](const auto& asked) { return asked->over; });
      for (const auto& asked : member->asked) {
        if (!all_lost(part_of(asked->call.key))) continue;
        asked->straddles = true;
        if (asked->call.kind == Call::Kind::get || asked->call.kind == Call::Kind::look) continue;
        Call again = asked->call;
        again.asked = network_.now();
        again.known = false;
        history.ask(std::move(again));
      }
    }
  }

  using Phase = node::MemoryNode::Published (node::MemoryNode::*)(const v1alpha1::ShardMap&, const base::HashSecret&);
  void tell(Member& member, const v1alpha1::ShardMap& map, Phase phase) {
    if (member.node == nullptr) return;
    const auto published = (member.node.get()->*phase)(map, kSecret);
    using Verdict = node::MemoryNode::Verdict;
    if (published.verdict != Verdict::adopted && published.verdict != Verdict::older_epoch) {
      wrong(member.name + " refuses an epoch: " + published.message);
    }
  }

  void note(Member& member, Asked& asked, const base::Status& status, std::optional<std::string> found) {
    if (status.ok()) {
      ++verdict_.done;
    } else if (status.code() == base::Code::unknown_outcome) {
      ++verdict_.unknown;
    } else {
      ++verdict_.not_done;
      if (status.code() == base::Code::corrupt || status.code() == base::Code::internal) {
        wrong(std::string(name_of(asked.call.kind)) + ": " + status.message());
      }
    }
    if (asked.straddles) return;
    if (status.ok()) {
      member.history.answer(asked.number, network_.now(), std::move(found));
    } else if (status.code() == base::Code::unknown_outcome) {
      member.history.unknown(asked.number);
    } else {
      member.history.forget(asked.number);
    }
  }

  const Setting& setting_;
  PoolVerdict& verdict_;
  Story befell_;
  layout::Geometry geometry_;  // of every memory node
  fabric::sim::Network network_;
  Random random_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Person>> persons_;
  std::optional<map::Map> map_;        // by which histories are told apart
  std::vector<std::uint32_t> owners_;  // members, by part of the hash space
  std::uint64_t least_tables_ = 0;
  std::uint64_t move_ = 0;
  std::uint64_t moves_waiting_ = 0;                    // for the one that is under way
  std::map<std::uint32_t, std::uint32_t> departures_;  // of the move that is under way: part, and where it comes from
};

std::string key_named(std::size_t index) { return "key-" + std::to_string(index); }

// What a seed's pool does, one element after the other; any of them may be left out.
struct Step {
  Call call;
  Nanos rest = 0;  // after it
};
using Tasks = std::vector<std::vector<Step>>;  // of one client

struct Fault {
  enum class Kind : std::uint8_t { death, stop, restart, loss, epoch, arrival, move, wish } kind = Kind::epoch;
  std::size_t whom = 0;       // a client, or a memory node
  Nanos when = 0;             // of a stop: it goes on
  std::uint64_t effects = 0;  // after which a death or a stop strikes; which parts move; tables
  fabric::sim::InFlight posted = fabric::sim::InFlight::lands;
  Tasks tasks;  // of a client that comes
};

struct Play {
  std::vector<Tasks> clients;
  std::vector<Fault> faults;
};

// Every value is written once, so that a read tells whose it was. Every fourth key holds numbers.
std::vector<Step> draw_steps(const Setting& setting, std::uint64_t seed) {
  Random random(seed);
  std::vector<Step> steps;
  for (std::size_t i = 0; i < setting.calls; ++i) {
    const std::size_t index = std::min(random.below(setting.keys), random.below(setting.keys));
    const bool counts = index % 4 == 1;
    Call call{.key = key_named(index), .value = std::to_string(seed % 100'000'000) + "." + std::to_string(i)};
    if (random.chance(setting.large)) call.value += std::string(20 + random.below(3000), 'x');
    const std::uint64_t die = random.below(100);
    if (random.chance(setting.reads)) {
      call.kind = Call::Kind::get;
    } else if (counts) {
      call.kind = die < 20 ? Call::Kind::remove : Call::Kind::add;
    } else {
      call.kind = die < 40   ? Call::Kind::put
                  : die < 60 ? Call::Kind::insert
                  : die < 80 ? Call::Kind::update
                             : Call::Kind::remove;
    }
    const auto most = static_cast<std::uint64_t>(2 * setting.horizon) / setting.calls;
    const Nanos rest = random.chance(0.5) ? static_cast<Nanos>(random.below(most + 1)) : 0;
    steps.push_back({std::move(call), rest});
  }
  return steps;
}

Tasks draw_tasks(const Setting& setting, Random& random) {
  Tasks tasks;
  for (std::size_t i = 0; i < setting.tasks; ++i) tasks.push_back(draw_steps(setting, random.next()));
  return tasks;
}

Play draw_play(const Setting& setting, std::uint64_t seed) {
  Random random(base::mix(seed) ^ 0x57041);
  Play play;
  for (std::size_t i = 0; i < setting.clients; ++i) play.clients.push_back(draw_tasks(setting, random));
  const auto some = [&](Nanos most) { return static_cast<Nanos>(random.below(static_cast<std::uint64_t>(most))); };
  for (std::size_t i = 0; i < setting.deaths; ++i) {
    Fault death{.kind = Fault::Kind::death, .whom = random.below(setting.clients)};
    death.effects = random.below(600);
    if (random.chance(0.5)) death.posted = fabric::sim::InFlight::cut;
    play.faults.push_back(std::move(death));
  }
  for (std::size_t i = 0; i < setting.stops; ++i) {
    Fault stop{.kind = Fault::Kind::stop, .whom = random.below(setting.clients)};
    stop.effects = random.below(600);
    stop.when = some(3 * kLease);
    play.faults.push_back(std::move(stop));
  }
  for (std::size_t i = 0; i < setting.restarts + setting.losses; ++i) {
    Fault fault{.kind = i < setting.restarts ? Fault::Kind::restart : Fault::Kind::loss,
                .whom = random.below(setting.nodes)};
    fault.when = some(setting.horizon);
    play.faults.push_back(std::move(fault));
  }
  for (std::size_t i = 0; i < setting.epochs; ++i) {
    play.faults.push_back({.kind = Fault::Kind::epoch, .when = some(setting.horizon)});
  }
  for (std::size_t i = 0; i < setting.late_comers; ++i) {
    Fault arrival{.kind = Fault::Kind::arrival, .when = some(setting.horizon)};
    arrival.tasks = draw_tasks(setting, random);
    play.faults.push_back(std::move(arrival));
  }
  for (std::size_t i = 0; i < setting.moves; ++i) {
    Fault move{.kind = Fault::Kind::move, .whom = random.below(setting.nodes), .when = some(setting.horizon)};
    move.effects = random.next();
    play.faults.push_back(std::move(move));
  }
  for (std::size_t i = 0; i < setting.wishes; ++i) {
    Fault wish{.kind = Fault::Kind::wish, .when = some(setting.horizon)};
    wish.effects = std::uint64_t{1} << random.below(setting.geometry.tables > 16 ? 8 : 5);
    play.faults.push_back(std::move(wish));
  }
  // From a stream of its own: what was drawn before stays as it was.
  Random more(base::mix(seed) ^ 0x1057);
  for (std::size_t i = 0; i < setting.losses_of_some; ++i) {
    Fault loss{.kind = Fault::Kind::loss, .whom = more.below(setting.nodes)};
    loss.when = static_cast<Nanos>(more.below(static_cast<std::uint64_t>(setting.horizon)));
    play.faults.push_back(std::move(loss));
  }
  return play;
}

// Leaves out what `part` leaves out. Returns how many elements there were.
std::size_t leave_out(Play& play, const Part& part) {
  std::size_t element = 0;
  const auto out = [&](const auto&) { return !part.has(element++); };
  const auto thin = [&out](Tasks& tasks) {
    for (auto& steps : tasks) std::erase_if(steps, out);
  };
  for (Tasks& tasks : play.clients) thin(tasks);
  for (Fault& fault : play.faults) thin(fault.tasks);
  std::erase_if(play.faults, out);
  return element;
}

task::Task<void> work(PoolWorld& world, Person& person, std::vector<Step> steps) {
  for (Step& step : steps) {
    co_await world.call(person, std::move(step.call));
    if (step.rest > 0) co_await person.port->sleep_for(step.rest);
  }
}

// Looks at all keys, time and again.
task::Task<void> scan(PoolWorld& world, Person& person, const Setting& setting) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < setting.keys; ++i) keys.push_back(key_named(i));
  for (std::size_t i = 0; i < setting.scans; ++i) {
    co_await world.scan(person, keys, 1 + 10 * i);
    co_await person.port->sleep_for(setting.horizon / 8);
  }
}

task::Task<void> repair(Person& person, std::vector<std::string>& trouble) {
  trouble.clear();
  for (auto& one : co_await person.body->pool->repair(person.port->now() + 5 * kSecond)) {
    if (!one.trouble.empty()) trouble.push_back(one.node + ": " + one.trouble);
  }
}

task::Task<void> read_all(PoolWorld& world, Person& person, std::size_t keys, std::uint64_t& there,
                          base::Result<std::uint64_t>& counted) {
  for (std::size_t i = 0; i < keys; ++i) {
    co_await world.call(person, {.kind = Call::Kind::get, .key = key_named(i)});
    const auto value = co_await person.body->pool->get(key_named(i));
    if (value.ok() && value->has_value()) ++there;
  }
  counted = co_await person.body->pool->count();
}

task::Task<void> leave(Person& person) { co_await person.body->pool->close(person.port->now() + 5 * kSecond); }

Person& begin(PoolWorld& world, const Tasks& tasks) {
  Person& person = world.connect();
  for (const std::vector<Step>& steps : tasks) person.body->scope.spawn(work(world, person, steps));
  return person;
}

void strike(PoolWorld& world, const Fault& fault, PoolVerdict& verdict) {
  fabric::sim::Network& network = world.network();
  const Nanos when = network.now() + fault.when;
  switch (fault.kind) {
    case Fault::Kind::death:
      return world.persons()[fault.whom]->port->crash_after(fault.effects, fault.posted);
    case Fault::Kind::stop: {
      fabric::sim::SimPort& port = *world.persons()[fault.whom]->port;
      port.pause_after(fault.effects);
      return network.at(when, [&port, &verdict] {
        if (port.paused()) {
          ++verdict.stops;
          verdict.zombies += port.cut_off() ? 1 : 0;
        }
        port.resume();
      });
    }
    case Fault::Kind::restart:
    case Fault::Kind::loss:
      return network.at(when, [&world, &fault] { world.kill(fault.whom, fault.kind == Fault::Kind::restart); });
    case Fault::Kind::epoch:
      return network.at(when, [&world] { world.publish(); });
    case Fault::Kind::arrival:
      return network.at(when, [&world, &fault] { (void)begin(world, fault.tasks); });
    case Fault::Kind::move:
      return network.at(when, [&world, &fault] { world.begin_move(fault.whom, fault.effects); });
    case Fault::Kind::wish:
      return network.at(when, [&world, &fault] { world.wish(fault.effects); });
  }
}

// Faults have ended. Somebody comes, has all repaired and finds everything; then all leave.
void look_after(PoolWorld& world, const Setting& setting) {
  const Nanos leases_over = world.network().now() + 2 * kLease;
  world.run_until([&] { return world.network().now() >= leases_over; }, 3 * kLease);
  Person& last = world.connect();
  std::vector<std::string> trouble;
  for (int times = 0; times < 5; ++times) {
    if (!world.run(last, repair(last, trouble))) return world.wrong("repair does not end");
    if (trouble.empty()) break;
  }
  for (const std::string& what : trouble) world.wrong("for ever: " + what);
  if (!world.run_until([&] { return !world.moving(); }, 60 * kSecond)) return world.wrong("a move does not end");
  std::uint64_t there = 0;
  base::Result<std::uint64_t> counted = base::Status(base::Code::internal, "not counted");
  if (!world.run(last, read_all(world, last, setting.keys, there, counted), 20 * kPatience)) {
    return world.wrong("reading does not end");
  }
  if (!counted.ok()) {
    world.wrong("counting: " + counted.status().message());
  } else if (*counted != there && world.exact()) {
    world.wrong(std::to_string(*counted) + " keys are counted, and " + std::to_string(there) + " are there");
  }
  if (setting.wishes > 0) world.wish(setting.geometry.tables);
  for (const auto& person : world.persons()) {
    if (person->port->crashed()) continue;
    // Others may have left splits to the last client.
    if (person.get() == &last) {
      bool ahead = false;
      for (int i = 0; i < 6 && !ahead; ++i) ahead = world.run_until([&] { return world.split_ahead(); }, 60 * kSecond);
      if (!ahead) world.wrong("tables are not split ahead");
    }
    if (!world.run(*person, leave(*person))) return world.wrong("a goodbye does not end");
    person->left = true;
  }
  for (std::string& what : world.leftovers()) world.wrong("when all have left: " + std::move(what));
  for (std::string& what : world.strays()) world.wrong("when all have left: " + std::move(what));
}

// Arguments of simulate that choose this driver.
std::string driver_of(layout::Protocol protocol) { return "--pools " + flag_of(protocol); }

}  // namespace

PoolVerdict run_pool(std::uint64_t seed, const Part& part, bool tells, layout::Protocol protocol) {
  const LastWords words(driver_of(protocol) + "--seed " + std::to_string(seed) + " --only " + describe(part));
  Setting setting = draw(seed);
  setting.geometry.protocol = protocol;
  dialect_of(protocol).adapt(setting, seed);
  lose_memory(setting, seed);
  setting.wire.seed += part.salt << 32;
  setting.wire.keep_chains = tells;
  PoolVerdict verdict;
  verdict.setting = describe(setting);
  Play play = draw_play(setting, seed);
  verdict.elements = leave_out(play, part);
  PoolWorld world(setting, verdict);
  const Nanos begun = world.network().now();
  Person* first = nullptr;
  for (const Tasks& tasks : play.clients) {
    Person& person = begin(world, tasks);
    if (first == nullptr) first = &person;
  }
  if (setting.scans > 0) first->body->scope.spawn(scan(world, *first, setting));
  for (const Fault& fault : play.faults) strike(world, fault, verdict);
  world.network().options().lose_reply = setting.lose_reply;
  const Nanos storm_over = world.network().now() + std::max(setting.horizon, 3 * kLease);
  const auto all_over = [&] {
    return std::all_of(world.persons().begin(), world.persons().end(),
                       [&](const auto& person) { return world.over(*person); });
  };
  world.run_until([&] { return world.network().now() >= storm_over; }, 2 * (storm_over - world.network().now()));
  world.calm();
  if (!world.run_until(all_over, static_cast<Nanos>(setting.calls + 2) * kPatience)) {
    verdict.wrong.push_back("a call of somebody who lives does not end");
  }
  world.close_books();
  if (tells) verdict.story = world.story(begun);
  if (world.up() != setting.nodes) verdict.wrong.push_back("a memory node has not come back");
  if (verdict.wrong.empty()) look_after(world, setting);
  world.judge_histories();
  for (const auto& person : world.persons()) verdict.deaths += person->port->crashed() ? 1 : 0;
  world.sum_up();
  return verdict;
}

std::string explain_pool(std::uint64_t seed, const ShrinkBudget& budget, layout::Protocol protocol) {
  return explain(driver_of(protocol), seed, budget,
                 [=](const Part& part, bool tells) -> Told { return run_pool(seed, part, tells, protocol); });
}

namespace {

struct Count {
  std::uint64_t PoolVerdict::*of;
  const char* name;
};
constexpr Count kCounts[] = {
    {&PoolVerdict::done, "calls done"},
    {&PoolVerdict::unknown, "of unknown outcome"},
    {&PoolVerdict::not_done, "not done"},
    {&PoolVerdict::deaths, "deaths"},
    {&PoolVerdict::stops, "stops"},
    {&PoolVerdict::zombies, "zombies"},
    {&PoolVerdict::restarts, "restarts of memory nodes"},
    {&PoolVerdict::losses, "losses of memory"},
    {&PoolVerdict::sources_lost, "of sources of moves under way"},
    {&PoolVerdict::targets_lost, "of targets"},
    {&PoolVerdict::epochs, "epochs"},
    {&PoolVerdict::slots_repaired, "slots repaired"},
    {&PoolVerdict::scans, "scans"},
    {&PoolVerdict::moves, "moves of parts"},
    {&PoolVerdict::moved_away, "keys moved"},
    {&PoolVerdict::wishes, "wishes for tables"},
    {&PoolVerdict::splits_taken_over, "splits taken over"},
    {&PoolVerdict::move_waits, "waits for one"},
};

// Says whether it may happen in such pools.
bool can_be(const Count& count, layout::Protocol protocol) {
  const layout::Shape& shape = layout::shape_of(protocol);
  if (count.of == &PoolVerdict::slots_repaired) return shape.locks;
  if (count.of == &PoolVerdict::wishes || count.of == &PoolVerdict::splits_taken_over) return shape.most_tables > 1;
  return count.of != &PoolVerdict::move_waits;  // too rare to rely on
}

}  // namespace

void add(PoolVerdict& sum, const PoolVerdict& verdict) {
  for (const Count& count : kCounts) sum.*count.of += verdict.*count.of;
}

std::string describe(const PoolVerdict& sum) {
  std::string text;
  for (const Count& count : kCounts) {
    text += (text.empty() ? "" : ", ") + std::to_string(sum.*count.of) + " " + count.name;
  }
  return text;
}

std::vector<std::string> never_reached(const PoolVerdict& sum, layout::Protocol protocol) {
  std::vector<std::string> never;
  for (const Count& count : kCounts) {
    if (sum.*count.of == 0 && can_be(count, protocol)) never.emplace_back(count.name);
  }
  return never;
}

}  // namespace farpool::sim
