// SPDX-License-Identifier: Apache-2.0
// Follows the pool: reads its map, and keeps a session with each memory node that serves.
#include <algorithm>
#include <utility>

#include "client/links.h"
#include "map/fetch.h"
#include "protocols/protocols.h"

namespace farpool::client {

using base::Code;
using base::Result;
using base::Status;
using task::Task;

namespace {

constexpr Nanos kLongestBackoff = 2 * base::kSecond;
// How often the map is read although nothing says that it has changed.
constexpr Nanos kMapInterval = 15 * base::kSecond;
constexpr int kLooksInATick = 8;  // when the memory node is short of segments

}  // namespace

Task<void> Pool::follow_map() {
  Nanos backoff = kFirstBackoff;
  while (!closing_) {
    refresh_due_ = false;
    std::vector<std::string> endpoints;
    for (const Link* link : link_of_node_) {
      if (link != nullptr) endpoints.push_back(link->endpoint);
    }
    for (const std::string& endpoint : options_.bootstrap) {
      if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end()) endpoints.push_back(endpoint);
    }
    map::Trust trust{.key = options_.map_key.get()};
    Result<map::Map> fetched = co_await map::fetch(port_, endpoints, options_.pool_uid,
                                                   std::max(epoch(), wanted_epoch_), port_.now() + patience(), trust);
    counters_.map_fetches.add();
    if (fetched.code() == Code::stale && wanted_epoch_ > epoch() + 1 && !closing_) {
      // A memory node has reported an epoch whose map no node can show. It may lie: until the map is there, the epochs
      // below it count.
      Result<map::Map> older = co_await map::fetch(port_, std::move(endpoints), options_.pool_uid, epoch() + 1,
                                                   port_.now() + patience(), trust);
      counters_.map_fetches.add();
      if (older.ok()) fetched = std::move(older);
    }
    counters_.forged_maps.add(trust.forged);
    if (closing_) break;
    const bool newer = fetched.ok() && (!map_ || fetched->epoch() > epoch());
    if (newer) {
      adopt(std::move(*fetched));
      map_trouble_.clear();
    } else if (!fetched.ok()) {
      counters_.failed_map_fetches.add();
      if (map_trouble_ != fetched.status().message()) {
        map_trouble_ = fetched.status().message();
        log(true, map_trouble_);
        changed();
      }
    } else {
      map_trouble_.clear();
    }
    const bool whole = map_ && fetched.ok() && state().ready;
    backoff = newer ? kFirstBackoff : std::min(2 * backoff, kLongestBackoff);
    if (whole) {
      backoff = kFirstBackoff;
      if (!refresh_due_) (void)co_await refresh_.wait(port_.now() + jittered(kMapInterval));
    } else {
      // Even when a task asks for it, the map is not read more often than this.
      co_await port_.sleep_for(kFirstBackoff / 2);
      if (!closing_ && !refresh_due_) (void)co_await refresh_.wait(port_.now() + jittered(backoff));
    }
  }
}

void Pool::adopt(map::Map map) {
  log(false, "follows epoch " + std::to_string(map.epoch()) + " of the shard map with " +
                 std::to_string(map.message().nodes_size()) + " memory nodes and " +
                 std::to_string(map.message().tables_size()) + " tables");
  const v1alpha1::ShardMap& message = map.message();
  std::erase_if(links_, [](const std::unique_ptr<Link>& link) {
    return link->retired && !link->kept && !link->moving && !link->reclaiming;
  });
  for (const auto& link : links_) link->retired = true;
  link_of_node_.assign(static_cast<std::size_t>(message.nodes_size()), nullptr);
  for (const v1alpha1::TableEntry& table : message.tables()) {
    const v1alpha1::MemoryNodeEntry& node = map.node_of(table);
    const auto same = [&node, &table](const std::unique_ptr<Link>& link) {
      return link->name == node.name() && link->incarnation == node.incarnation() &&
             link->endpoint == node.endpoint() && link->table == table.id();
    };
    auto found = std::find_if(links_.begin(), links_.end(), same);
    if (found == links_.end()) {
      links_.push_back(std::make_unique<Link>());
      found = std::prev(links_.end());
      (*found)->name = node.name();
      (*found)->endpoint = node.endpoint();
      (*found)->incarnation = node.incarnation();
      (*found)->table = table.id();
    }
    Link& link = **found;
    link.retired = false;
    link.stopped = node.state() != v1alpha1::MemoryNodeEntry::STATE_SERVING;
    link_of_node_[table.node()] = &link;
  }
  const auto named = [this](const Lasting& lasting) {
    return std::any_of(links_.begin(), links_.end(), [&lasting](const auto& link) {
      return !link->retired && link->name == lasting.node && link->table == lasting.table_id;
    });
  };
  for (std::size_t i = lasting_.size(); i-- > 0;) {
    if (!named(*lasting_[i])) forget(*lasting_[i]);
  }
  map_ = std::move(map);
  policy_ = EvictionPolicy::of(map_->message().eviction());
  if (policy_.watches()) {
    if (options_.accesses == nullptr) options_.accesses = std::make_shared<Accesses>();
    options_.accesses->watch(port_.now());
  }
  for (const auto& link : links_) {
    link->move = move_of(*link);
    if (link->bond == nullptr) continue;
    if (index::Movable* movable = link->bond->table->movable()) movable->follow(link->move);
    // Other clients should know of the move by then.
    link->bond->move_due = port_.now() + jittered(link->bond->session->grant().tick);
    link->bond->split_due = link->bond->move_due;
  }
  counters_.epoch.set(map_->epoch());
  for (const auto& link : links_) {
    if (!link->wanted() || link->kept) continue;
    link->kept = true;
    scope_.spawn(keep(*link));
  }
  links_due_.wake_all();
  changed();
}

// Keeps a session with a node open for as long as the map wants it.
Task<void> Pool::keep(Link& link) {
  Nanos backoff = kFirstBackoff;
  while (!closing_ && link.wanted()) {
    Result<std::unique_ptr<Bond>> bond = co_await bind(link);
    if (bond.ok()) {
      backoff = kFirstBackoff;
      link.bond = std::move(*bond);
      link.trouble = {};
      counters_.sessions.add();
      counters_.sessions_opened.add();
      log(false, "opened session " + std::to_string(link.bond->session->grant().session_id) + " with memory node " +
                     link.name + " at " + link.endpoint);
      changed();
      co_await watch(link, *link.bond);
      std::unique_ptr<Bond> parting = std::move(link.bond);
      if (!parting->session->alive()) {
        counters_.sessions_lost.add();
        link.trouble = parting->session->why();
        link.previous = parting->session->grant().client_incarnation;
        link.previous_token = parting->session->grant().lane.token;
        log(true, "lost the session with memory node " + link.name + ": " + link.trouble.message());
        refresh();
      }
      counters_.sessions.subtract();
      changed();
      if (parting->lasting != nullptr) {
        scope_.spawn(part(std::move(parting)));  // its operations wait for the next session
      } else {
        co_await part(std::move(parting));
      }
    } else {
      counters_.failed_opens.add();
      if (link.trouble.message() != bond.status().message()) {
        link.trouble = bond.status();
        log(true, "no session with memory node " + link.name + " at " + link.endpoint + ": " + link.trouble.message());
        changed();
        if (link.trouble.code() == Code::fenced && options_.on_fenced) options_.on_fenced(link.trouble.message());
      }
      // The node may have begun another life, or may follow another epoch.
      refresh();
      co_await pause(link, port_.now() + jittered(backoff));
      backoff = std::min(2 * backoff, kLongestBackoff);
    }
  }
  link.kept = false;
}

Task<Result<std::unique_ptr<Pool::Bond>>> Pool::bind(Link& link) {
  const Nanos deadline = port_.now() + patience();
  Result<std::unique_ptr<session::Session>> session =
      co_await session::Session::open(port_, {.endpoint = link.endpoint,
                                              .pool_uid = options_.pool_uid,
                                              .client_name = options_.client_name,
                                              .epoch = epoch(),
                                              .node_incarnation = link.incarnation,
                                              .client_process = options_.process,
                                              .previous_incarnation = link.previous,
                                              .previous_token = link.previous_token,
                                              .node_name = options_.map_key != nullptr ? link.name : "",
                                              .clock = &clock_,
                                              .deadline = deadline});
  if (!session.ok()) co_return session.status();
  auto bond = std::make_unique<Bond>(port_);
  bond->session = std::move(*session);
  failure_timeout_ = std::max(failure_timeout_, bond->session->grant().failure_timeout);
  const base::HashSecret secret = bond->session->grant().pool_secret;
  fabric::Cost cost;
  Result<layout::Superblock> superblock = co_await index::read_superblock(*bond->session, deadline, cost);
  Status status = superblock.status();
  // With one table, keys are never looked for elsewhere, and the node may have begun anew with a secret of its own.
  if (status.ok() && pool_secret_ && *pool_secret_ != secret && map_->message().tables_size() > 1) {
    status = {
        Code::corrupt,
        "the node grants another hash secret than the pool's other nodes: keys would be looked for in the wrong place"};
  }
  if (!status.ok()) {
    co_await bond->session->close(deadline);  // with a goodbye: the next attempt opens another one
    co_return status;
  }
  const index::Protocol& protocol = protocols::of(superblock->geometry.protocol);
  if (status = index::check_wire(protocol.name(), protocol.needs(), port_.caps()); !status.ok()) {
    co_await bond->session->close(deadline);
    co_return status;
  }
  pool_secret_ = secret;
  bond->lasting = lasting_of(link, *bond->session, superblock->geometry);
  if (bond->lasting != nullptr) {
    bond->table = std::shared_ptr<index::Table>(bond->lasting, bond->lasting->table.get());
  } else {
    bond->table = protocol.open(*bond->session, superblock->geometry, link.table);
    bond->table->set_make_room([this, of = bond.get()](std::uint64_t bytes) { return begin_to_make_room(*of, bytes); });
  }
  if (index::Movable* movable = bond->table->movable()) movable->follow(link.move);
  co_return bond;
}

// Watches a session until it has ended or is no longer wanted.
Task<void> Pool::watch(Link& link, Bond& bond) {
  const Nanos tick = bond.session->grant().tick;
  Nanos maintained = port_.now();
  layout::Pressure pressure = layout::Pressure::none;
  layout::Stretch cleared;
  while (bond.session->alive() && !closing_ && link.wanted()) {
    const bool scarce = bond.session->pressure() != layout::Pressure::none;
    (void)co_await links_due_.wait(port_.now() + std::min(scarce ? tick / kLooksInATick : tick, kLook));
    if (bond.session->epoch() > epoch() && bond.session->epoch() > wanted_epoch_) {
      wanted_epoch_ = bond.session->epoch();
      refresh();
    }
    if (!bond.session->alive() || closing_) continue;
    if (!moving_ && link.leaving() && port_.now() >= bond.move_due) {
      moving_ = link.moving = true;
      scope_.spawn(move_away(link, bond));
    }
    if (!link.reclaiming && reclaims_at(link, bond)) {
      link.reclaiming = true;
      scope_.spawn(reclaim(link, bond));
    }
    if (pressure == layout::Pressure::none && scarce && bond.session->reclaims()) make_room_ahead(bond);
    // Other clients wait for what this client can give up.
    const bool news = bond.session->pressure() > pressure || !(bond.session->cleared() == cleared);
    if (port_.now() < maintained + (news ? tick / kLooksInATick : tick)) continue;
    pressure = bond.session->pressure();
    cleared = bond.session->cleared();
    co_await bond.table->maintain(port_.now() + tick);
    maintained = port_.now();
    co_await split_ahead(link, bond);
    tell_split_trouble(link, bond);
    co_await repair_after_deaths(link, bond);
    publish_marks();
  }
}

void Pool::tell_split_trouble(const Link& link, Bond& bond) {
  const Status trouble = bond.table->split_trouble();
  if (trouble.message() == bond.split_trouble) return;
  bond.split_trouble = trouble.message();
  if (trouble.ok() || !bond.session->alive()) return;
  log(true, "a split of a table of memory node " + link.name + " does not go on here: " + bond.split_trouble);
}

Task<void> Pool::repair_after_deaths(const Link& link, Bond& bond) {
  const Nanos timeout = bond.session->grant().failure_timeout;
  // Where tables are split, a client that dies may leave a split without an operation slot that says so. So may an
  // earlier life of the memory node.
  const bool splits = bond.table->geometry().tables > 1;
  const std::uint64_t deaths = bond.session->deaths();
  if (bond.session->dead() == 0 && (!splits || bond.deaths_repaired == deaths)) {
    bond.repair_due = 0;
    co_return;
  }
  if (bond.repair_due == 0) bond.repair_due = port_.now() + jittered(2 * timeout);
  if (port_.now() < bond.repair_due) co_return;
  const auto swept = co_await bond.table->sweep(port_.now() + timeout, bond.repair_cost);
  if (swept.ok() && swept->repaired > 0) {
    log(false, "repaired " + std::to_string(swept->repaired) +
                   " operation slots that ended clients had left on memory node " + link.name);
  }
  if (swept.ok() && swept->splits > 0) {
    log(false, "finished " + std::to_string(swept->splits) +
                   " splits of tables that nobody went on with on memory node " + link.name);
  }
  if (swept.ok() && swept->splitting == 0) bond.deaths_repaired = deaths;
  if (swept.ok() && !swept->trouble.empty()) {
    log(true, std::string(swept->left > 0 ? "operation slots of ended clients" : "splits of tables") +
                  " are left on memory node " + link.name + ": " + swept->trouble);
  }
  bond.repair_due = port_.now() + jittered(8 * timeout);
}

Task<void> Pool::part(std::unique_ptr<Bond> bond) {
  parting_.push_back(bond.get());
  // No operation finds the bond any more. Operations that hold it end by their deadlines, or at once if the session has
  // ended.
  while (bond->uses > 0) {
    if (port_.now() >= close_deadline_) bond->session->end({Code::unavailable, "this client of the pool has closed"});
    (void)co_await links_due_.wait(port_.now() + kLook);
  }
  if (bond->lasting == nullptr) bond->table->set_make_room(nullptr);
  const Nanos deadline = std::min(close_deadline_, port_.now() + patience());
  if (bond->session->alive() && !is_shared(*bond)) co_await bond->table->release(deadline);
  co_await bond->session->close(deadline);
  std::erase(parting_, bond.get());
  add_marks(*bond, marks_of_the_past_, repairs_of_the_past_);
  bond->table.reset();
  bond->session.reset();
}

// --- tables that outlive sessions

Task<Result<std::shared_ptr<session::Session>>> Pool::Lasting::next(Nanos deadline) {
  for (;;) {
    if (gone) {
      co_return Status(Code::stale, "the memory of memory node " + node + " is gone, or no longer in the shard map");
    }
    for (const auto& link : pool.links_) {
      if (link->bond != nullptr && link->bond->lasting.get() == this && link->bond->session->alive()) {
        co_return link->bond->session;
      }
    }
    if (pool.closing_) {
      co_return Status(Code::stale, "there is no other session with memory node " + node +
                                        ", and none will come: this client of the pool is closing");
    }
    if (pool.port_.now() >= deadline) {
      co_return Status(Code::unavailable, "there is no other session with memory node " + node + " yet");
    }
    pool.links_due_.wake_all();
    (void)co_await pool.changed_.wait(deadline);
  }
}

std::shared_ptr<Pool::Lasting> Pool::lasting_of(const Link& link, const session::Session& session,
                                                const layout::Geometry& geometry) {
  const base::HashSecret seed = session.grant().table_seed;
  const auto found = std::find_if(lasting_.begin(), lasting_.end(), [&link](const auto& one) {
    return one->node == link.name && one->table_id == link.table;
  });
  if (found != lasting_.end()) {
    if ((*found)->seed == seed && (*found)->geometry == geometry) return *found;
    forget(**found);
  }
  auto lasting = std::make_shared<Lasting>(*this);
  lasting->node = link.name;
  lasting->table_id = link.table;
  lasting->seed = seed;
  lasting->geometry = geometry;
  lasting->table = protocols::of(geometry.protocol).open_lasting(*lasting, session.grant(), geometry, link.table);
  if (lasting->table == nullptr) return nullptr;
  lasting_.push_back(lasting);
  return lasting;
}

void Pool::forget(Lasting& lasting) {
  lasting.gone = true;
  marks_of_the_past_ += lasting.table->marks();
  std::erase_if(lasting_, [&lasting](const auto& one) { return one.get() == &lasting; });
  changed_.wake_all();
}

bool Pool::is_shared(const Bond& bond) const {
  return bond.lasting != nullptr && std::any_of(links_.begin(), links_.end(), [&bond](const auto& link) {
           return link->bond != nullptr && link->bond->lasting == bond.lasting;
         });
}

Task<void> Pool::pause(const Link& link, Nanos until) {
  while (!closing_ && link.wanted() && port_.now() < until) (void)co_await links_due_.wait(until);
}

void Pool::add_marks(const Bond& bond, index::Marks& marks, session::RepairMarks& repairs) {
  if (bond.lasting == nullptr) marks += bond.table->marks();
  repairs += session::marks_of(*bond.session, bond.table->repairer());
}

void Pool::publish_marks() {
  index::Marks marks = marks_of_the_past_;
  session::RepairMarks repairs = repairs_of_the_past_;
  for (const auto& link : links_) {
    if (link->bond != nullptr) add_marks(*link->bond, marks, repairs);
  }
  for (const Bond* bond : parting_) add_marks(*bond, marks, repairs);
  for (const auto& lasting : lasting_) marks += lasting->table->marks();
  counters_.index.set(marks);
  counters_.repair.set(repairs);
}

}  // namespace farpool::client
