// SPDX-License-Identifier: Apache-2.0
// Pools of memory nodes over wires: keys that move between them, clients and splitters whose threads stand still, and
// services. index/contract has what one table does. Here clients are threads, and what tears and reorders are sockets,
// rings or a device, and the processors between them. A file that includes this says over which wires: tables_test.cc,
// tables_lab_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/daemon_test.h"
#include "base/random.h"
#include "client/pool.h"
#include "directory/directory.h"
#include "fabric/service.h"
#include "fabric/session_port/server.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/port.h"
#include "fabric/tcp/responder.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/responder.h"
#include "fabric/words.h"
#include "heap/heap.h"
#include "index/table.h"
#include "layout/regions.h"
#include "node/audit.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"
#include "session/session.h"
#include "sim/history.h"

namespace farpool::apps::tables {

using base::Code;
using base::kMillisecond;
using base::kSecond;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::session_port::PortThread;
using fabric::verbs::Device;
using fabric::verbs::VerbsPort;
using layout::Protocol;
using sim::Call;
using task::Task;

// Laboratories and sanitizers are slow: nobody is taken for dead who is not to be.
inline constexpr Nanos kLong = 20 * kSecond;
inline constexpr Nanos kPatience = 60 * kSecond;
inline constexpr base::HashSecret kSecret{11, 22};
inline constexpr char kUid[] = "pool";

enum class Wire : std::uint8_t { tcp, shm, verbs };
inline const char* name_of(Wire wire) {
  static constexpr const char* kNames[] = {"Tcp", "Shm", "Verbs"};
  return kNames[static_cast<int>(wire)];
}

inline std::string text(const Status& status) {
  return std::string(base::name_of(status.code())) + ": " + status.message();
}

struct Shape {
  Protocol protocol = Protocol::rcuckoo;
  std::uint64_t tables = 1;
  std::uint64_t memory = 16 << 20;
  Nanos failure_timeout = kLong;
  fabric::Service* service = nullptr;  // of CALLs for data
};

// What the memory nodes and clients of a test share: a directory, and a device if the wire has one.
struct Ground {
  explicit Ground(Wire of) : wire(of) {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-tables-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory = pattern;
    if (wire != Wire::verbs) return;
    auto opened = Device::open({.failure_timeout = kLong});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (opened.ok()) device = *opened;
  }
  ~Ground() { std::filesystem::remove_all(directory); }
  Ground(const Ground&) = delete;

  // On the loop's thread.
  std::unique_ptr<fabric::Port> port(net::Loop& loop) const {
    if (wire != Wire::verbs) {
      return std::make_unique<fabric::tcp::TcpPort>(loop, nullptr, wire == Wire::shm ? directory : "");
    }
    auto opened = VerbsPort::open(loop, nullptr, device, {});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return std::move(*opened);
  }

  const Wire wire;
  std::string directory;
  std::shared_ptr<Device> device;
};

// A memory node. What it leaves when the test is over is looked through by farpool-fsck.
struct Server {
  Server(Wire wire, const Shape& shape) : Server(std::make_shared<Ground>(wire), shape, "memory-0") {
    control.on([&] { EXPECT_EQ(node->stand_alone().verdict, node::MemoryNode::Verdict::adopted); });
  }
  // One of several, which are told of each other.
  Server(std::shared_ptr<Ground> on, const Shape& shape, std::string name)
      : ground(std::move(on)),
        file(ground->directory + "/" + name + ".memory"),
        memory(std::make_unique<node::Memory>(
            std::move(*node::Memory::on_volume(ground->directory, name, shape.memory)))) {
    control.on([&] {
      fabric::session_port::Options session_port{.listen = "127.0.0.1:0", .executors = 2, .handshake_deadline = kLong};
      if (ground->wire == Wire::verbs) {
        session_port.executors = 1;
        verbs = std::make_unique<fabric::verbs::VerbsResponder>(control.loop, session_port, ground->device);
      } else {
        tcp = std::make_unique<fabric::tcp::TcpResponder>(control.loop, session_port);
      }
      node::MemoryNode::Options options;
      options.name = std::move(name);
      options.pool_uid = kUid;
      options.endpoint = "memory-0:7400";  // as long as nobody knows better: map_of()
      options.geometry.protocol = shape.protocol;
      options.geometry.tables = shape.tables;
      options.geometry.table_percent = 1;
      options.geometry.rows_per_lock = 16;
      options.lease = 2 * shape.failure_timeout;
      options.failure_timeout = shape.failure_timeout;
      options.require_authentication = false;
      options.service = shape.service;
      options.log = [](bool, const std::string&) {};
      options.on_change = [] {};
      auto created = node::MemoryNode::create(std::move(options), memory->span(), responder());
      ASSERT_TRUE(created.ok()) << created.status().message();
      node = std::move(*created);
      const Status status = verbs != nullptr ? verbs->serve(*node) : tcp->serve(*node);
      ASSERT_TRUE(status.ok()) << status.message();
      if (ground->wire != Wire::shm) return;
      const Status rings = tcp->serve_rings(fabric::tcp::rings_address(ground->directory, node->incarnation()));
      ASSERT_TRUE(rings.ok()) << rings.message();
    });
  }
  ~Server() {
    if (ground->wire != Wire::verbs) {
      EXPECT_GT(tcp->stats().chains, 0u);
      EXPECT_GT(lanes_seen.load(), 0u) << "nobody came over this wire";
    }
    control.on([&] {
      tcp.reset();
      verbs.reset();
      node.reset();
    });
    memory.reset();
    Daemon fsck(FARPOOL_FSCK, {file});
    EXPECT_EQ(fsck.wait(), 0) << fsck.output();
    EXPECT_NE(fsck.output().find(": clean"), std::string::npos) << fsck.output();
  }
  Server(const Server&) = delete;

  fabric::Responder& responder() {
    if (verbs != nullptr) return *verbs;
    return *tcp;
  }
  const std::string& address() const { return verbs != nullptr ? verbs->address() : tcp->address(); }
  // Lanes are what the wire says they are: all of them over rings, or none.
  void look_at_lanes() {
    if (ground->wire == Wire::verbs) return;
    const auto stats = tcp->stats();
    EXPECT_EQ(stats.ring_lanes, ground->wire == Wire::shm ? stats.lanes : 0u);
    lanes_seen += stats.lanes;
  }
  base::Bytes region(layout::RegionId id) const {
    const auto& place = node->geometry().at(id);
    return base::Bytes(memory->span()).subspan(place.offset, place.bytes);
  }
  bool locked() const {
    const base::Bytes words = region(layout::kLocks);
    for (std::size_t i = 0; i < words.size(); i += 8) {
      auto* word = const_cast<std::byte*>(words.data() + i);
      if (fabric::word_at(word).load(std::memory_order_acquire) != 0) return true;
    }
    return false;
  }
  // As clients have it now.
  template <class Look>
  auto directory(const Look& look) const {
    const auto& place = node->geometry().at(layout::kDirectory);
    std::vector<std::byte> words(place.bytes);
    fabric::read_words(memory->span().data() + place.offset, words);
    return look(directory::View(words, node->geometry().tables));
  }
  bool splitting() const {
    return directory([](const directory::View& view) {
      for (std::uint64_t table = 0; table < view.tables(); ++table) {
        if (directory::under_way(view, table)) return true;
      }
      return false;
    });
  }

  const std::shared_ptr<Ground> ground;
  const std::string file;
  std::unique_ptr<node::Memory> memory;
  fabric::session_port::LoopThread control;
  std::unique_ptr<fabric::tcp::TcpResponder> tcp;
  std::unique_ptr<fabric::verbs::VerbsResponder> verbs;
  std::unique_ptr<node::MemoryNode> node;
  std::atomic<std::uint64_t> lanes_seen = 0;
};

class AddOne final : public index::Editor {
 public:
  // Called once, when the value is known and not yet written.
  explicit AddOne(std::function<void()> between = {}) : between_(std::move(between)) {}
  index::Edit edit(std::optional<std::string_view> value) override {
    sum = std::to_string(std::stoull(std::string(value.value_or("0"))) + 1);
    if (const auto first = std::exchange(between_, {})) first();
    return {.kind = index::Edit::Kind::put, .value = sum};
  }
  std::string sum;

 private:
  std::function<void()> between_;
};

struct Outcome {
  Status status;
  std::optional<std::string> found;
};

// A client of one table on a thread of its own.
struct User : PortThread<fabric::Port> {
  explicit User(Server& server) : geometry(server.node->geometry()) {
    on([&] { port = server.ground->port(loop); });
    run(open({.endpoint = server.address(),
              .pool_uid = kUid,
              .client_name = "client",
              .epoch = 1,
              .node_incarnation = server.node->incarnation()}));
    server.look_at_lanes();
  }
  ~User() {
    if (session) run(leave());
  }
  Task<void> open(session::Session::Options options) {
    options.deadline = deadline();
    auto opened = co_await session::Session::open(*port, std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (!opened.ok()) co_return;
    session = std::move(*opened);
    table = protocols::of(geometry.protocol).open(*session, geometry, 0);
  }
  Task<void> leave() {
    (void)co_await table->idle(deadline());
    if (session->alive()) co_await table->release(deadline());
    co_await session->close(deadline());
    table.reset();
    session.reset();
  }
  Nanos deadline() const { return port->now() + kPatience; }

  Task<void> insert(std::string key, std::string value, Result<bool>& into) {
    Cost cost;
    into = co_await table->insert(key, value, deadline(), cost);
  }

  const layout::Geometry geometry;
  std::unique_ptr<session::Session> session;
  std::unique_ptr<index::Table> table;
};

// A client of a whole pool, which goes on as another one where its session has been ended. Its thread can be stopped.
struct Member : PortThread<fabric::Port> {
  Member(const std::vector<std::unique_ptr<Server>>& servers, const std::string& name) {
    on([&] {
      port = servers.front()->ground->port(loop);
      std::vector<std::string> bootstrap;
      for (const auto& server : servers) bootstrap.push_back(server->address());
      pool = std::make_unique<client::Pool>(*port, client::Pool::Options{.pool_uid = kUid,
                                                                         .client_name = name,
                                                                         .bootstrap = std::move(bootstrap),
                                                                         .operation_deadline = kPatience,
                                                                         .connect_deadline = kLong});
      pool->start();
    });
    EXPECT_TRUE(eventually([this] { return state().ready; })) << state().message;
    for (const auto& server : servers) server->look_at_lanes();
  }
  ~Member() {
    run(leave());
    on([this] { pool.reset(); });
  }
  Task<void> leave() { co_await pool->close(port->now() + kPatience); }
  client::PoolState state() {
    client::PoolState now;
    on([&] { now = pool->state(); });
    return now;
  }
  bool drained(std::uint64_t epoch) {
    const client::PoolState now = state();
    return now.epoch >= epoch && now.ready &&
           std::none_of(now.nodes.begin(), now.nodes.end(), [](const auto& node) { return node.leaving; });
  }

  // From here on its thread stands still, whatever is under way, until `until` is ready.
  void stop(std::shared_future<void> until) {
    loop.post([until = std::move(until)] { until.wait(); });
  }

  std::function<void()> between;  // of the next `add`: see AddOne
  Task<Outcome> perform(const Call& call) {
    switch (call.kind) {
      case Call::Kind::get: {
        auto answer = co_await pool->get(call.key);
        co_return Outcome{answer.status(), answer.ok() ? *answer : std::nullopt};
      }
      case Call::Kind::put:
        co_return Outcome{co_await pool->put(call.key, call.value), {}};
      case Call::Kind::remove: {
        const auto answer = co_await pool->erase(call.key);
        co_return Outcome{answer.status(), answer.ok() && *answer ? std::optional<std::string>("there") : std::nullopt};
      }
      default: {
        AddOne editor(std::exchange(between, {}));
        const Status status = co_await pool->modify(call.key, editor);
        co_return Outcome{status, editor.sum};
      }
    }
  }

  std::unique_ptr<client::Pool> pool;
};

// What lies at a memory node, key by key. Nobody changes anything.
inline std::map<std::string, std::string> image_of(Server& server) {
  std::map<std::string, std::string> image;
  const auto found = node::audit_memory(server.memory->span(), {.visit = [&image](const index::Sighting& seen) {
                                          image[std::string(seen.key)] = seen.value;
                                        }});
  EXPECT_TRUE(found.ok()) << found.status().message();
  if (!found.ok()) return image;
  for (const node::Finding& finding : found->audit.findings) {
    if (node::kind_of(finding.wrong).damage) ADD_FAILURE() << finding.what;
  }
  return image;
}

// What clients on several threads asked and were told.
struct Recorder {
  std::mutex mutex;
  sim::History history;
  bool sessions_end = false;  // so that nobody can say of some operations what became of them
  std::vector<Status> failed;

  std::size_t asked() {
    const std::lock_guard lock(mutex);
    return history.size();
  }
  void judge() {
    for (const Status& status : failed) ADD_FAILURE() << text(status);
    EXPECT_EQ(history.judge(), std::nullopt);
  }
  bool right() const { return failed.empty(); }
};

// False: something is wrong, and the test need not go on.
template <class Client>
Task<bool> ask(Client& client, Recorder& recorder, Call call) {
  call.asked = client.port->now();
  std::size_t number = 0;
  {
    const std::lock_guard lock(recorder.mutex);
    number = recorder.history.ask(call);
  }
  Outcome outcome = co_await client.perform(call);
  const Nanos now = client.port->now();
  const std::lock_guard lock(recorder.mutex);
  if (outcome.status.ok()) {
    recorder.history.answer(number, now, std::move(outcome.found));
    co_return recorder.right();
  }
  recorder.history.unknown(number);
  if (!recorder.sessions_end || outcome.status.code() != Code::unknown_outcome) {
    recorder.failed.push_back(outcome.status);
  }
  co_return recorder.right();
}

inline std::string value_of(base::Random& random, std::size_t bytes, std::uint64_t seed, int i) {
  return std::string(bytes, static_cast<char>('a' + random.below(26))) + std::to_string(seed * 1000) +
         std::to_string(i);
}

inline Task<void> work_in_pool(Member& member, Recorder& recorder, std::uint64_t seed, int operations,
                               std::uint64_t keys) {
  base::Random random(seed);
  for (int i = 0; i < operations; ++i) {
    constexpr Call::Kind kKinds[] = {Call::Kind::get, Call::Kind::put, Call::Kind::put, Call::Kind::remove,
                                     Call::Kind::add};
    Call call;
    call.kind = kKinds[random.below(5)];
    call.client = seed;
    call.key = call.kind == Call::Kind::add ? "sum" : "k" + std::to_string(random.below(keys));
    call.value = value_of(random, random.chance(0.5) ? 3 : 60, seed, i);
    if (!co_await ask(member, recorder, std::move(call))) co_return;
  }
}
template <class Client>
Task<void> add_ones(Client& client, Recorder& recorder, std::uint64_t seed, int times) {
  for (int i = 0; i < times; ++i) {
    Call call{.kind = Call::Kind::add, .client = seed, .key = "sum"};
    if (!co_await ask(client, recorder, std::move(call))) co_return;
  }
}

inline bool all_over(const std::vector<std::future<void>>& tasks, std::size_t from = 0) {
  return std::all_of(tasks.begin() + static_cast<std::ptrdiff_t>(from), tasks.end(), [](const auto& task) {
    return task.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
}

struct OverWire : testing::TestWithParam<Wire> {};
inline std::string name_of_wire(const testing::TestParamInfo<Wire>& of) { return name_of(of.param); }
struct Setting {
  Wire wire = Wire::tcp;
  Protocol protocol = Protocol::rcuckoo;
};
inline void PrintTo(const Setting& setting, std::ostream* to) { *to << name_of(setting.wire); }
inline std::vector<Setting> all_over_wires(const std::vector<Wire>& wires) {
  std::vector<Setting> settings;
  for (const Wire wire : wires) {
    for (const Protocol protocol : {Protocol::rcuckoo, Protocol::race, Protocol::outback})
      settings.push_back({wire, protocol});
  }
  return settings;
}
inline std::string name_of_setting(const testing::TestParamInfo<Setting>& of) {
  return std::string(layout::shape_of(of.param.protocol).name) + name_of(of.param.wire);
}

class Tables : public testing::TestWithParam<Setting> {
 protected:
  const Wire wire = GetParam().wire;
  const Protocol protocol = GetParam().protocol;
};

// The pool's operator, as far as a test needs one: parts of the hash space, by turns to the memory nodes.
inline v1alpha1::ShardMap map_of(const std::vector<std::unique_ptr<Server>>& servers, std::uint64_t epoch,
                                 std::uint64_t move = 0, std::optional<std::uint32_t> drained = {},
                                 bool under_way = false) {
  v1alpha1::ShardMap map;
  map.set_pool_uid(kUid);
  map.set_epoch(epoch);
  map.set_move(move);
  map.set_directory_depth(2);
  const auto nodes = static_cast<std::uint32_t>(servers.size());
  for (std::uint32_t i = 0; i < nodes; ++i) {
    *map.add_nodes() = servers[i]->node->entry();
    map.mutable_nodes(static_cast<int>(i))->set_endpoint(servers[i]->address());
    auto* table = map.add_tables();
    table->set_id(i);
    table->set_node(i);
  }
  for (std::uint32_t part = 0; part < 4; ++part) {
    const std::uint32_t home = part % nodes;
    map.add_directory(home == drained ? (home + 1) % nodes : home);
    if (home != drained || !under_way) continue;
    auto* departure = map.add_departures();
    departure->set_part(part);
    departure->set_from(home);
  }
  return map;
}
inline void publish(const std::vector<std::unique_ptr<Server>>& servers, const v1alpha1::ShardMap& map) {
  for (const auto& server : servers) {
    server->control.on([&] {
      const auto published = server->node->publish(map, kSecret);
      EXPECT_EQ(published.verdict, node::MemoryNode::Verdict::adopted) << published.message;
    });
  }
}
inline std::vector<std::unique_ptr<Server>> pool_of(Wire wire, std::size_t nodes, const Shape& shape) {
  const auto ground = std::make_shared<Ground>(wire);
  std::vector<std::unique_ptr<Server>> servers;
  for (std::size_t i = 0; i < nodes; ++i) {
    servers.push_back(std::make_unique<Server>(ground, shape, "memory-" + std::to_string(i)));
  }
  publish(servers, map_of(servers, 1));
  return servers;
}

inline Task<void> put_all(Member& member, std::string prefix, int keys, std::string value) {
  for (int i = 0; i < keys; ++i) {
    Status status;
    do {  // nobody else changes these
      status = co_await member.pool->put(prefix + std::to_string(i), value + std::to_string(i));
    } while (status.code() == Code::unknown_outcome);
    EXPECT_TRUE(status.ok()) << i << ": " << text(status);
  }
}
inline Task<void> expect_all(Member& member, std::string prefix, int keys, std::string value) {
  for (int i = 0; i < keys; ++i) {
    const auto found = co_await member.pool->get(prefix + std::to_string(i));
    EXPECT_TRUE(found.ok() && *found == value + std::to_string(i)) << prefix << i << ": " << text(found.status());
  }
}
inline Task<void> expect_all_until(Member& member, std::string prefix, int keys, std::string value,
                                   const std::atomic<bool>& enough) {
  while (!enough) co_await expect_all(member, prefix, keys, value);
}
inline Task<void> scan_all(Member& member, std::set<std::string>& seen) {
  std::uint64_t cursor = 0;
  do {
    const auto page = co_await member.pool->scan(cursor, 20);
    EXPECT_TRUE(page.ok()) << text(page.status());
    if (!page.ok()) co_return;
    seen.insert(page->keys.begin(), page->keys.end());
    cursor = page->next;
  } while (cursor != 0);
}

// As short as the wire allows, or a laboratory. A client that is taken for dead because the machine is slow begins
// anew.
inline Nanos impatience(Wire wire) { return wire == Wire::verbs ? 3 * kSecond : 600 * kMillisecond; }

// All protocols, with clients that are told of failures and moves: what takes its time is the failure timeout.
class Pools : public Tables {
 protected:
  const Nanos timeout = impatience(wire);
};

// A memory node is drained into another, and has its parts back, while clients work and one of them scans.
TEST_P(Pools, KeysMoveBetweenMemoryNodesWhileClientsWork) {
  const bool race = protocol == Protocol::race;
  auto servers = pool_of(
      wire, 2, {.protocol = protocol, .tables = race ? 4ull : 1, .memory = 8 << 20, .failure_timeout = timeout});
  Recorder recorder;
  recorder.sessions_end = true;
  const int keys = wire == Wire::verbs ? 80 : 300;
  const std::uint64_t moves = wire == Wire::verbs ? 1 : 2;
  {
    std::vector<std::unique_ptr<Member>> members;
    for (int i = 0; i < 3; ++i) members.push_back(std::make_unique<Member>(servers, "m" + std::to_string(i)));
    members[0]->run(put_all(*members[0], "stays", keys, "v"));
    EXPECT_GT(image_of(*servers[0]).size(), static_cast<std::size_t>(keys) / 5);
    std::uint64_t moved = 0;
    for (std::uint64_t move = 1; move <= moves; ++move) {
      SCOPED_TRACE(move);
      std::vector<std::future<void>> over, looks;
      std::set<std::string> seen;
      std::atomic<bool> enough = false;
      for (const auto& member : members) {
        looks.push_back(member->spawn(expect_all_until(*member, "stays", keys, "v", enough)));
      }
      for (std::uint64_t i = 0; i < 4; ++i) {
        over.push_back(members[i / 2]->spawn(work_in_pool(*members[i / 2], recorder, 10 * move + i, 60, 8)));
      }
      // The first drains node 0; the second gives its parts back.
      v1alpha1::ShardMap begun = map_of(servers, 2 * move, move, 0, true);
      if (move == 2) {
        begun = map_of(servers, 4, 2);
        for (const std::uint32_t part : {0u, 2u}) {
          auto* departure = begun.add_departures();
          departure->set_part(part);
          departure->set_from(1);
        }
      }
      publish(servers, begun);
      over.push_back(members[2]->spawn(scan_all(*members[2], seen)));
      for (const auto& each : over) Member::wait(each);
      for (const auto& member : members) EXPECT_TRUE(eventually([&] { return member->drained(2 * move); }));
      enough = true;
      for (const auto& each : looks) Member::wait(each);
      for (int i = 0; i < keys; ++i) EXPECT_TRUE(seen.contains("stays" + std::to_string(i))) << i;
      begun.clear_departures();
      begun.set_epoch(2 * move + 1);
      publish(servers, begun);
      for (const auto& member : members) EXPECT_TRUE(eventually([&] { return member->drained(2 * move + 1); }));
      members[2]->run(expect_all(*members[2], "stays", keys, "v"));
      if (move == 1) EXPECT_EQ(image_of(*servers[0]).size(), 0u);
      moved = 0;
      for (const auto& member : members) moved += member->pool->counters().index.get(&index::Marks::moved_away);
    }
    EXPECT_GT(moved, static_cast<std::size_t>(keys) / 3);
  }
  recorder.judge();
  if (moves == 2) EXPECT_GT(image_of(*servers[0]).size(), static_cast<std::size_t>(keys) / 5);
  EXPECT_GT(image_of(*servers[1]).size(), static_cast<std::size_t>(keys) / 5);
}

// Too long for a laboratory.
class LongPools : public Pools {};

// Clients whose threads stand still in the middle of what they do are given up, and others go on with what they have
// left. When they wake they have lost their sessions, and begin anew.
TEST_P(LongPools, ClientsThatStandStillAreTakenOver) {
  auto servers = pool_of(wire, 1, {.protocol = protocol, .failure_timeout = timeout});
  Recorder recorder;
  recorder.sessions_end = true;
  {
    std::vector<std::unique_ptr<Member>> members;
    for (int i = 0; i < 5; ++i) members.push_back(std::make_unique<Member>(servers, "m" + std::to_string(i)));
    std::promise<void> wake, stands;
    const std::shared_future<void> awake = wake.get_future().share();
    std::vector<std::future<void>> over;
    // One stops between a value that it has read and the one that it makes of it: RCuckoo holds the key's locks.
    members[0]->on([&] {
      members[0]->between = [&stands, awake] {
        stands.set_value();
        awake.wait();
      };
    });
    over.push_back(members[0]->spawn(add_ones(*members[0], recorder, 100, 3)));
    stands.get_future().wait();
    // Others stop anywhere.
    for (std::uint64_t i = 2; i < 6; ++i) {
      over.push_back(members[i / 2]->spawn(work_in_pool(*members[i / 2], recorder, i, 60, 8)));
    }
    const std::size_t some = recorder.asked() + 40;
    while (recorder.asked() < some && !all_over(over, 1)) std::this_thread::yield();
    for (int i = 1; i < 3; ++i) members[static_cast<std::size_t>(i)]->stop(awake);

    std::vector<std::future<void>> goes_on;
    for (std::uint64_t i = 6; i < 10; ++i) {
      goes_on.push_back(members[i / 2]->spawn(work_in_pool(*members[i / 2], recorder, i, 40, 8)));
      goes_on.push_back(members[i / 2]->spawn(add_ones(*members[i / 2], recorder, 10 + i, 5)));
    }
    for (const auto& each : goes_on) Member::wait(each);
    EXPECT_TRUE(eventually([&] {
      std::uint64_t too_slow = 0;  // others that were taken for dead
      for (std::size_t i = 3; i < 5; ++i) too_slow += members[i]->pool->counters().sessions_opened.get() - 1;
      return servers[0]->node->stats().sessions_fenced >= 3 + too_slow;
    }));

    wake.set_value();
    for (const auto& each : over) Member::wait(each);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_GT(members[i]->pool->counters().sessions_opened.get(), 1u) << i;
    // By the client that met the key first, even if it stood still only later.
    EXPECT_TRUE(protocol != Protocol::rcuckoo || eventually([&] {
                  return std::ranges::any_of(members, [](const auto& member) {
                    return member->pool->counters().repair.get(&session::RepairMarks::repaired) > 0;
                  });
                }));
  }
  recorder.judge();
  image_of(*servers[0]);
  EXPECT_FALSE(servers[0]->locked());
}

// Answers CALLs for data with what they asked.
class Echo final : public fabric::Service {
 public:
  fabric::Served serve(fabric::Call& call) noexcept override {
    if (call.request.size() > call.reply.size()) return fabric::Served::refused(fabric::Refusal::too_long);
    std::copy(call.request.begin(), call.request.end(), call.reply.begin());
    return fabric::Served::done(call.request.size());
  }
};
inline Task<void> ask_service(User& user, const std::string& request, std::string& reply, fabric::Outcome& outcome) {
  fabric::Buffer out = user.port->buffer(request.size()), in = user.port->buffer(request.size());
  std::memcpy(out.data(), request.data(), request.size());
  const std::array chain{
      fabric::Op::call(fabric::kFirstServiceOpcode, out.first(request.size()), in.first(request.size()))};
  Cost cost;
  outcome = co_await user.session->post(chain, user.deadline(), cost);
  reply = base::text_of(in.first(outcome.reply_bytes));
}

class Services : public OverWire {};

TEST_P(Services, ASessionHasTheOneOfItsMemoryNodeOrIsToldThatThereIsNone) {
  Echo echo;
  for (fabric::Service* service : {static_cast<fabric::Service*>(&echo), static_cast<fabric::Service*>(nullptr)}) {
    Server server(GetParam(), {.service = service});
    User user(server);
    ASSERT_NE(user.session, nullptr);
    EXPECT_EQ(user.session->grant().lane.calls, service != nullptr);
    Result<bool> inserted = Status(Code::internal, "it did not come to an end");
    user.run(user.insert("key", "value", inserted));
    ASSERT_TRUE(inserted.ok()) << text(inserted.status());
    std::string reply;
    fabric::Outcome outcome;
    user.run(ask_service(user, "a request", reply, outcome));
    EXPECT_EQ(outcome.fate, service != nullptr ? fabric::Fate::done : fabric::Fate::refused);
    EXPECT_EQ(outcome.why, service != nullptr ? fabric::Refusal::none : fabric::Refusal::no_service);
    EXPECT_EQ(reply, service != nullptr ? "a request" : "");
    if (server.verbs != nullptr) EXPECT_EQ(server.verbs->stats().data.calls, service != nullptr ? 1u : 0u);
  }
}

// Too long for a laboratory.
class LongRaceTables : public OverWire {};

// A split whose client stands still in the middle of it is finished by another.
TEST_P(LongRaceTables, SplitsOfClientsThatStandStillAreTakenOver) {
  auto servers =
      pool_of(GetParam(), 1,
              {.protocol = Protocol::race, .tables = 8, .memory = 8 << 20, .failure_timeout = impatience(GetParam())});
  constexpr int kKeys = 350;
  std::uint64_t taken_over = 0;
  {
    Member other(servers, "other");
    for (int round = 0; round < 7 && taken_over == 0; ++round) {
      const std::string prefix = std::to_string(round) + "/";
      Member stands(servers, "stands");
      std::promise<void> wake;
      const auto over = stands.spawn(put_all(stands, prefix + "a", kKeys, "v"));
      while (!servers[0]->splitting() && over.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        std::this_thread::yield();
      }
      stands.stop(wake.get_future().share());
      other.run(put_all(other, prefix + "b", kKeys, "v"));
      if (servers[0]->splitting()) EXPECT_TRUE(eventually([&] { return !servers[0]->splitting(); }));
      wake.set_value();
      Member::wait(over);
      other.run(expect_all(other, prefix + "a", kKeys, "v"));
      other.run(expect_all(other, prefix + "b", kKeys, "v"));
      taken_over = other.pool->counters().index.get(&index::Marks::splits_taken_over);  // as of the last second
    }
  }
  EXPECT_GT(taken_over, 0u);
  image_of(*servers[0]);
}

}  // namespace farpool::apps::tables
