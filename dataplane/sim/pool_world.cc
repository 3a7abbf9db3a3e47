// SPDX-License-Identifier: Apache-2.0
#include "sim/pool_world.h"

#include <set>

#include "base/check.h"
#include "base/hash.h"
#include "layout/directory.h"
#include "node/audit.h"
#include "sim/pool_play.h"

namespace farpool::sim {
namespace {

using base::kMillisecond;
using base::kSecond;
using base::Random;

constexpr const char* kUid = "pool-of-the-simulation";
constexpr base::HashSecret kSecret{0x5eed, 0x900d};
constexpr std::uint64_t kNever = 1ull << 60;  // so many effects
constexpr std::size_t kNobody = 99;           // a client
constexpr client::Millis kAfterTheWorld = 1'000'000'000;
constexpr Nanos kWall = 1'700'000'000 * kSecond;

bool has_locks(const PoolSetting& s) { return layout::shape_of(s.geometry.protocol).locks; }

// Does to the value that is there what a call asks for.
class CallEditor final : public client::Editor {
 public:
  explicit CallEditor(const Call& call) : call_(call) {}
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

Evicts evicts_under(v1alpha1::Eviction eviction) {
  const client::EvictionPolicy policy = client::EvictionPolicy::of(eviction);
  if (policy.allows(client::kNoExpiry)) return {Evicts::Which::all};
  return {policy.allows(kAfterTheWorld) ? Evicts::Which::expiring : Evicts::Which::none};
}

}  // namespace

PoolWorld::PoolWorld(const PoolSetting& setting, PoolVerdict& verdict)
    : setting_(setting),
      verdict_(verdict),
      evicts_(evicts_under(setting.eviction)),
      eviction_(setting.eviction),
      network_(setting.wire),
      random_(setting.wire.seed ^ 0x0b5) {
  for (std::size_t i = 0; i < setting.nodes; ++i) {
    members_.push_back(std::make_unique<PoolMember>(network_.add_node("node-" + std::to_string(i) + ":7400"),
                                                    "node-" + std::to_string(i), memory()));
    // Hosts agree when the world begins, as well as hosts do.
    const auto apart = static_cast<Nanos>(Random(setting.wire.seed + i).below(3 * kMillisecond));
    members_.back()->ahead = kWall + apart - members_.back()->wire.now();
    begin_life(*members_.back());
  }
  for (std::uint32_t i = 0; i < 1u << setting.depth; ++i) {
    owners_.push_back(i % static_cast<std::uint32_t>(members_.size()));
  }
  publish();
}

PoolWorld::~PoolWorld() {
  for (const auto& client : clients_) {
    if (client->left) continue;
    if (!client->port->crashed()) client->port->crash(fabric::sim::InFlight::cut);  // something is wrong
    fabric::sim::bury(client->body);
  }
}

PoolClient& PoolWorld::connect() {
  clients_.push_back(std::make_unique<PoolClient>());
  PoolClient& client = *clients_.back();
  client.since = network_.now();
  const std::string name = "client-" + std::to_string(clients_.size());
  client.port = &network_.add_client({.pool_uid = kUid, .role = "client", .name = name, .authenticated = true});
  std::vector<std::string> bootstrap;
  for (const auto& member : members_) bootstrap.push_back(member->wire.endpoint());
  client.body->pool = std::make_unique<client::Pool>(
      *client.port, client::Pool::Options{.pool_uid = kUid,
                                          .client_name = name,
                                          .bootstrap = bootstrap,
                                          .operation_deadline = kPoolPatience,
                                          .connect_deadline = kSecond,
                                          .log = [this, name](bool, const std::string& line) {
                                            befell_.add(network_.now(), name, line);
                                          }});
  client.body->pool->start();
  return client;
}

void PoolWorld::kill(std::size_t which, bool keeps_memory) {
  PoolMember& member = *members_[which];
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

void PoolWorld::publish() {
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
  map.set_eviction(eviction_);
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

void PoolWorld::wish(std::uint64_t tables) {
  least_tables_ = std::min(tables, setting_.geometry.tables);
  ++verdict_.wishes;
  befell_.add(network_.now(), "operator", "wants " + std::to_string(least_tables_) + " tables at each");
  publish();
}

task::Task<void> PoolWorld::scan(PoolClient& client, std::vector<std::string> keys, std::uint64_t count) {
  std::vector<std::pair<PoolMember*, std::shared_ptr<Asked>>> looks;
  for (std::string& key : keys) {
    PoolMember& member = *members_[map_->table_of(map::directory_hash(kSecret, base::bytes_of(key))).node()];
    Call call{.kind = Call::Kind::look, .client = client.port->index(), .key = std::move(key)};
    call.asked = network_.now();
    looks.emplace_back(&member, std::make_shared<Asked>(Asked{.call = call, .number = member.history.ask(call)}));
    member.asked.push_back(looks.back().second);
  }
  client::Pool& pool = *client.body->pool;
  std::set<std::string> told;
  base::Status status;
  std::uint64_t cursor = 0;
  do {
    auto page = co_await pool.scan(cursor, count);
    status = page.status();
    if (!status.ok()) break;
    for (std::string& key : page->keys) {
      if (!key.starts_with(kExpiringKey)) told.insert(std::move(key));
    }
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

void PoolWorld::begin_move(std::size_t from, std::uint64_t which) {
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
              "begins move " + std::to_string(move_) + " of " + std::to_string(departures_.size()) + " parts of node-" +
                  std::to_string(from));
  publish();
  network_.at(network_.now() + kMoveLook, [this, from, move = move_] { follow_move(*members_[from], move); });
}

task::Task<base::Status> PoolWorld::put(client::Pool& pool, const Call& call) {
  client::Millis expires = client::kNoExpiry;
  if (call.expires) {
    const auto now = co_await pool.time();
    if (!now.ok()) co_return now.status();
    expires = *now + kAfterTheWorld;
  }
  co_return co_await pool.put(call.key, call.value, expires);
}

task::Task<void> PoolWorld::call(PoolClient& client, Call call) {
  PoolMember& member = *members_[map_->table_of(map::directory_hash(kSecret, base::bytes_of(call.key))).node()];
  call.client = client.port->index();
  call.asked = network_.now();
  const auto asked = std::make_shared<Asked>(Asked{.call = call, .number = member.history.ask(call)});
  member.asked.push_back(asked);
  client::Pool& pool = *client.body->pool;
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
      status = co_await put(pool, call);
      break;
    case Call::Kind::remove: {
      const auto answer = co_await pool.erase(call.key);
      status = answer.status();
      if (answer.ok() && *answer) found = "there";
      break;
    }
    default: {
      CallEditor editor(call);
      status = co_await pool.modify(call.key, editor);
      found = editor.found;
    }
  }
  asked->over = true;
  note(member, *asked, status, std::move(found));
}

void PoolWorld::stop_evicting() {
  eviction_ = v1alpha1::EVICTION_NOEVICTION;
  publish();
  const auto knows = [](const auto& client) {
    return client->port->crashed() || client->body->pool->eviction_policy() == "noeviction";
  };
  if (!run_until([&] { return std::ranges::all_of(clients_, knows); }, kPoolPatience)) {
    return wrong("a client does not follow the map that evicts nothing");
  }
  // A removal that was decided upon before may be under way.
  const Nanos decided = network_.now() + kPoolLease;
  run_until([&] { return network_.now() >= decided; }, 2 * kPoolLease);
  evicts_.until = network_.now();
}

void PoolWorld::calm() {
  network_.options().lose_reply = 0;
  network_.options().lose_exchange = 0;
  for (const auto& client : clients_) {
    if (client->port->crashed()) continue;
    client->port->crash_after(kNever, fabric::sim::InFlight::lands);
    client->port->pause_after(kNever);
    client->port->resume();
  }
}

void PoolWorld::close_books() {
  for (const auto& member : members_) {
    for (const auto& asked : member->asked) {
      if (!asked->over && !asked->straddles) member->history.unknown(asked->number);
    }
  }
}

std::vector<std::string> PoolWorld::leftovers() const {
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
      left.push_back(member->name + ": " + finding.what + " (" + std::string(node::kind_of(finding.wrong).name) + ")");
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

std::vector<std::string> PoolWorld::strays() const {
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

std::string PoolWorld::story(Nanos from) {
  Story all = befell_;
  for (const auto& member : members_) all.add(member->history);
  all.add(network_.trace(), geometry_);
  return all.tell(from);
}

void PoolWorld::sum_up() {
  for (const auto& member : members_) {
    if (member->node != nullptr) verdict_.slots_repaired += member->node->stats().repaired;
  }
  for (const auto& client : clients_) {
    if (client->port->crashed()) continue;
    verdict_.slots_repaired += client->body->pool->counters().repair.get(&session::RepairMarks::repaired);
    verdict_.moved_away += client->body->pool->counters().index.get(&index::Marks::moved_away);
    verdict_.splits_taken_over += client->body->pool->counters().index.get(&index::Marks::splits_taken_over);
    verdict_.move_waits += client->body->pool->counters().index.get(&index::Marks::move_waits);
    verdict_.reconnections += client->body->pool->counters().index.get(&index::Marks::reconnections);
    verdict_.evicted += client->body->pool->counters().evicted_keys.get();
    verdict_.expired_removed += client->body->pool->counters().expired_keys.get();
    verdict_.asked_again += client->body->pool->counters().index.get(&index::Marks::asked_again);
  }
  verdict_.trace_hash = network_.trace().hash();
}

void PoolWorld::follow_move(PoolMember& source, std::uint64_t move) {
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

void PoolWorld::begin_life(PoolMember& member) {
  auto life = node::MemoryNode::create(
      {.name = member.name,
       .pool_uid = kUid,
       .endpoint = member.wire.endpoint(),
       .version = "simulated",
       .geometry = setting_.geometry,
       .lease = kPoolLease,
       .failure_timeout = setting_.failure_timeout,
       .max_lanes = 24,
       .opens_per_second = 100000,
       .kept_map = member.kept,
       .keep_map = [&member](const std::string& map) { member.kept = map; },
       .wall = [&member] { return static_cast<std::uint64_t>(member.wire.now() + member.ahead); }},
      member.memory.span(), member.wire);
  if (!life.ok()) {
    wrong(member.name + ": the memory cannot be taken up: " + life.status().message());
    return;
  }
  last_life_began_ = network_.now();
  member.node = std::move(*life);
  if (member.node->stats().defects > 0) wrong(member.name + ": defects in the memory that was taken up");
  member.entry = member.node->entry();
  // Keys that were leaving it are there only if they had left.
  if (std::exchange(member.fresh, false)) {
    const std::size_t leaving =
        std::erase_if(departures_, [&](const auto& departure) { return members_[departure.second].get() == &member; });
    if (leaving > 0) befell_.add(network_.now(), "operator", "sees that nothing can leave " + member.name);
  }
  member.wire.serve(*member.node);
  geometry_ = member.node->geometry();
  befell_.add(network_.now(), member.name, "serves");
}

void PoolWorld::lose(PoolMember& lost) {
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

void PoolWorld::tell(PoolMember& member, const v1alpha1::ShardMap& map, Phase phase) {
  if (member.node == nullptr) return;
  const auto published = (member.node.get()->*phase)(map, kSecret);
  using Verdict = node::MemoryNode::Verdict;
  if (published.verdict != Verdict::adopted && published.verdict != Verdict::older_epoch) {
    wrong(member.name + " refuses an epoch: " + published.message);
  }
}

void PoolWorld::note(PoolMember& member, Asked& asked, const base::Status& status, std::optional<std::string> found) {
  if (status.ok()) {
    ++verdict_.done;
  } else if (status.code() == base::Code::unknown_outcome) {
    ++verdict_.unknown;
  } else {
    ++verdict_.not_done;
    verdict_.refused += status.code() == base::Code::out_of_memory ? 1 : 0;
    if (status.code() == base::Code::out_of_memory && evicts_.which == Evicts::Which::all) {
      wrong("a pool that may evict every key refuses a call: " + status.message());
    }
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

bool PoolWorld::exact() const {
  const bool calm = setting_.deaths + setting_.stops + setting_.restarts + setting_.losses_of_some == 0 &&
                    setting_.lose_reply == 0 && setting_.wire.lose_exchange == 0 && setting_.wire.max_drift_ppm == 0;
  return has_locks(setting_) || calm;
}

}  // namespace farpool::sim
