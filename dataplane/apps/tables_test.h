// SPDX-License-Identifier: Apache-2.0
// RCuckoo and RACE over wires: what index/contract says of every table, as far as it needs no simulator. Here
// clients are threads, and what tears and reorders are sockets, rings or a device, and the processors between them.
// A file that includes this says over which wires: tables_test.cc, tables_lab_test.cc.
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
#include "index/race/table.h"
#include "index/race/verify.h"
#include "index/rcuckoo/verify.h"
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
  std::uint64_t table_percent = 1;
  std::uint64_t entry_bytes = 16;
  std::uint64_t entries_per_row = 8;
  std::uint64_t rows_per_lock = 16;
  std::uint64_t max_lock_bytes = 0;
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
      options.geometry.table_percent = shape.table_percent;
      options.geometry.entry_bytes = shape.entry_bytes;
      options.geometry.entries_per_row = shape.entries_per_row;
      options.geometry.rows_per_lock = shape.rows_per_lock;
      options.geometry.max_lock_bytes = shape.max_lock_bytes;
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
  std::uint64_t depth() const {
    return directory([](const directory::View& view) { return view.depth(); });
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

// A client of one table on a thread of its own, and its operations, awaited.
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
    if (auto* race = dynamic_cast<race::Table*>(table.get())) (void)co_await race->idle(deadline());
    if (session->alive()) co_await table->release(deadline());
    co_await session->close(deadline());
    table.reset();
    session.reset();
  }
  Nanos deadline() const { return port->now() + kPatience; }

  template <class T>
  Task<void> keep(std::function<Task<Result<T>>(Cost&)> begin, std::optional<Result<T>>& into) {
    Cost cost;
    into.emplace(co_await begin(cost));
  }
  template <class T>
  Result<T> await(std::function<Task<Result<T>>(Cost&)> begin) {
    std::optional<Result<T>> result;
    run(keep<T>(std::move(begin), result));
    return *std::move(result);
  }
  Result<std::optional<std::string>> lookup(const std::string& key) {
    return await<std::optional<std::string>>([&](Cost& cost) { return table->lookup(key, deadline(), cost); });
  }
  Result<bool> insert(const std::string& key, const std::string& value) {
    return await<bool>([&](Cost& cost) { return table->insert(key, value, deadline(), cost); });
  }
  Result<bool> update(const std::string& key, const std::string& value) {
    return await<bool>([&](Cost& cost) { return table->update(key, value, deadline(), cost); });
  }
  Result<bool> put(const std::string& key, const std::string& value) {
    return await<bool>([&](Cost& cost) { return table->put(key, value, deadline(), cost); });
  }
  Result<bool> remove(const std::string& key) {
    return await<bool>([&](Cost& cost) { return table->remove(key, deadline(), cost); });
  }
  Result<bool> modify(const std::string& key, index::Editor& editor) {
    return await<bool>([&](Cost& cost) { return table->modify(key, editor, deadline(), cost); });
  }
  Result<index::Page> scan(std::uint64_t position, std::uint64_t count) {
    return await<index::Page>([&](Cost& cost) { return table->scan(position, count, deadline(), cost); });
  }
  Result<index::Totals> count() {
    return await<index::Totals>([&](Cost& cost) { return table->count(deadline(), cost); });
  }

  Task<Outcome> perform(const Call& call) {
    Cost cost;
    const Nanos by = deadline();
    const auto there = [](const Result<bool>& present, bool when) {
      return Outcome{present.status(),
                     present.ok() && *present == when ? std::optional<std::string>("there") : std::nullopt};
    };
    switch (call.kind) {
      case Call::Kind::get: {
        auto answer = co_await table->lookup(call.key, by, cost);
        co_return Outcome{answer.status(), answer.ok() ? *answer : std::nullopt};
      }
      case Call::Kind::put:
        co_return Outcome{(co_await table->put(call.key, call.value, by, cost)).status(), {}};
      case Call::Kind::insert:
        co_return there(co_await table->insert(call.key, call.value, by, cost), false);
      case Call::Kind::update:
        co_return there(co_await table->update(call.key, call.value, by, cost), true);
      case Call::Kind::remove:
        co_return there(co_await table->remove(call.key, by, cost), true);
      default: {
        AddOne editor;
        const Status status = (co_await table->modify(call.key, editor, by, cost)).status();
        co_return Outcome{status, editor.sum};
      }
    }
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

class Appender final : public index::Editor {
 public:
  explicit Appender(std::string more) : more_(std::move(more)) {}
  index::Edit edit(std::optional<std::string_view> value) override {
    return {.kind = index::Edit::Kind::put, .value = std::string(value.value_or("")) + more_};
  }

 private:
  std::string more_;
};

inline Task<void> wait_until_idle(race::Table& table, Nanos deadline, Status& status) {
  status = co_await table.idle(deadline);
}

// Everything whole, no lock held, and the counters right. Others stand still, and what they cleared behind their
// operations has arrived: their sessions have ended.
inline void expect_sound(Server& server, User& user, std::map<std::string, std::string>* image = nullptr) {
  const auto totals = user.count();
  ASSERT_TRUE(totals.ok()) << text(totals.status());
  if (auto* race = dynamic_cast<race::Table*>(user.table.get())) {  // a split that its keys began
    Status idle;
    user.run(wait_until_idle(*race, user.deadline(), idle));
    ASSERT_TRUE(idle.ok()) << text(idle);
  }
  const auto verify = user.geometry.protocol == Protocol::race ? race::verify : rcuckoo::verify;
  const auto report = verify(user.geometry, server.region(layout::kTable), server.region(layout::kHeap),
                             user.session->grant().table_seed,
                             {.visit =
                                  [image](const index::Sighting& seen) {
                                    if (image != nullptr) (*image)[std::string(seen.key)] = seen.value;
                                  },
                              .directory = server.region(layout::kDirectory),
                              .pool_secret = user.session->grant().pool_secret});
  for (const auto& defect : report.defects) ADD_FAILURE() << defect.what;
  EXPECT_EQ(totals->keys, report.keys);
  EXPECT_EQ(totals->bytes, report.bytes);
  EXPECT_FALSE(server.locked());
}

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

inline Task<void> work(User& user, Recorder& recorder, std::uint64_t seed, int operations, std::uint64_t keys,
                       std::vector<std::size_t> sizes = {3, 60}) {
  base::Random random(seed);
  for (int i = 0; i < operations; ++i) {
    constexpr Call::Kind kKinds[] = {Call::Kind::get,    Call::Kind::get,    Call::Kind::put,
                                     Call::Kind::insert, Call::Kind::update, Call::Kind::remove};
    Call call;
    call.kind = kKinds[random.below(6)];
    call.client = seed;
    call.key = "k" + std::to_string(random.below(keys));
    call.value = value_of(random, sizes[random.below(sizes.size())], seed, i);
    if (!co_await ask(user, recorder, std::move(call))) co_return;
  }
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

// Three clients with two tasks each, all at once.
template <class Begin>
void all_at_once(Server& server, const Begin& begin) {
  std::vector<std::unique_ptr<User>> users;
  std::vector<std::future<void>> over;
  for (int i = 0; i < 3; ++i) users.push_back(std::make_unique<User>(server));
  for (std::uint64_t i = 0; i < 6; ++i) over.push_back(users[i / 2]->spawn(begin(*users[i / 2], i + 1)));
  for (const auto& each : over) User::wait(each);
}

struct OverWire : testing::TestWithParam<Wire> {};
inline std::string name_of_wire(const testing::TestParamInfo<Wire>& of) { return name_of(of.param); }
struct Setting {
  Wire wire = Wire::tcp;
  Protocol protocol = Protocol::rcuckoo;
};
inline void PrintTo(const Setting& setting, std::ostream* to) { *to << name_of(setting.wire); }
inline std::vector<Setting> both_over(const std::vector<Wire>& wires) {
  std::vector<Setting> settings;
  for (const Wire wire : wires) {
    for (const Protocol protocol : {Protocol::rcuckoo, Protocol::race}) settings.push_back({wire, protocol});
  }
  return settings;
}
inline std::string name_of_setting(const testing::TestParamInfo<Setting>& of) {
  return std::string(of.param.protocol == Protocol::race ? "Race" : "RCuckoo") + name_of(of.param.wire);
}

// Tests of both protocols.
class Tables : public testing::TestWithParam<Setting> {
 protected:
  const Wire wire = GetParam().wire;
  const Protocol protocol = GetParam().protocol;
};

TEST_P(Tables, EveryOperation) {
  Server server(wire, {.protocol = protocol});
  User a(server);
  EXPECT_EQ(*a.lookup("apple"), std::nullopt);
  EXPECT_FALSE(*a.update("apple", "red"));
  EXPECT_FALSE(*a.remove("apple"));
  EXPECT_TRUE(*a.insert("apple", "red"));
  EXPECT_FALSE(*a.insert("apple", "blue"));
  EXPECT_EQ(**a.lookup("apple"), "red");
  EXPECT_TRUE(*a.update("apple", "green"));
  EXPECT_EQ(**a.lookup("apple"), "green");
  EXPECT_TRUE(*a.put("apple", "brown"));
  EXPECT_FALSE(*a.put("pear", "yellow"));
  EXPECT_EQ(a.count()->keys, 2u);
  EXPECT_EQ(a.count()->bytes, 5u + 5 + 4 + 6);
  Appender append("ish");
  EXPECT_TRUE(*a.modify("pear", append));
  EXPECT_EQ(**a.lookup("pear"), "yellowish");
  EXPECT_FALSE(*a.modify("plum", append));
  EXPECT_EQ(**a.lookup("plum"), "ish");
  for (const char* key : {"apple", "pear", "plum"}) EXPECT_TRUE(*a.remove(key));
  EXPECT_EQ(a.count()->keys, 0u);
  expect_sound(server, a);
}

TEST_P(Tables, EverySizeUpToTheLimits) {
  Server server(wire, {.protocol = protocol, .memory = 64 << 20});
  User a(server);
  std::map<std::string, std::string> model;
  for (const std::size_t key_bytes : {0u, 1u, 14u, 15u, 64u, 300u, 65536u}) {
    for (const std::size_t value_bytes : {0u, 8u, 14u, 255u, 4096u, 1048576u}) {
      std::string key(key_bytes, 'k');
      if (key_bytes > 0) key[0] = static_cast<char>('a' + value_bytes % 26);
      const std::string value(value_bytes, static_cast<char>('A' + model.size() % 26));
      ASSERT_TRUE(a.put(key, value).ok()) << key_bytes << " " << value_bytes;
      model[key] = value;
      ASSERT_EQ(*a.lookup(key), value) << key_bytes << " " << value_bytes;
    }
  }
  for (const auto& [key, value] : model) ASSERT_EQ(*a.lookup(key), value);
  EXPECT_EQ(a.put(std::string(65537, 'k'), "").code(), Code::too_large);
  EXPECT_EQ(a.put("k", std::string(1048577, 'v')).code(), Code::too_large);
  expect_sound(server, a);
  for (const auto& [key, value] : model) ASSERT_TRUE(*a.remove(key));
  EXPECT_EQ(a.count()->bytes, 0u);
}

inline void compare_with_map(Wire wire, const Shape& shape, std::uint64_t seed, int operations, std::uint64_t keys) {
  Server server(wire, shape);
  User a(server);
  base::Random random(seed);
  std::map<std::string, std::string> model, image;
  for (int i = 0; i < operations; ++i) {
    std::string key = "k" + std::to_string(random.below(keys));
    if (random.chance(0.2)) key += std::string(20, 'x');
    const std::string value(random.chance(0.7) ? random.below(9) : random.below(300), static_cast<char>('a' + i % 26));
    const auto known = model.find(key);
    const bool present = known != model.end();
    switch (random.below(6)) {
      case 0:
        ASSERT_EQ(*a.lookup(key), present ? std::optional(known->second) : std::nullopt);
        break;
      case 1:
        ASSERT_EQ(*a.insert(key, value), !present);
        if (!present) model[key] = value;
        break;
      case 2:
        ASSERT_EQ(*a.update(key, value), present);
        if (present) model[key] = value;
        break;
      case 3:
        ASSERT_EQ(*a.remove(key), present);
        model.erase(key);
        break;
      case 4:
        ASSERT_EQ(*a.put(key, value), present);
        model[key] = value;
        break;
      default: {
        Appender append("+");
        ASSERT_EQ(*a.modify(key, append), present);
        model[key] += "+";
      }
    }
  }
  expect_sound(server, a, &image);
  EXPECT_EQ(image, model);
}

TEST_P(Tables, AgreesWithAMap) { compare_with_map(wire, {.protocol = protocol}, 1, 600, 150); }

TEST_P(Tables, ConcurrentHistoriesAreLinearizable) {
  Server server(wire, {.protocol = protocol});
  for (std::uint64_t round = 1; round <= 4; ++round) {
    SCOPED_TRACE(round);
    Recorder recorder;
    all_at_once(server, [&](User& user, std::uint64_t seed) { return work(user, recorder, 10 * round + seed, 25, 6); });
    recorder.judge();
    User user(server);
    expect_sound(server, user);
    for (std::uint64_t key = 0; key < 6; ++key) ASSERT_TRUE(user.remove("k" + std::to_string(key)).ok());
  }
}

// Values that take long to come and go, and blocks that others have soon after.
TEST_P(Tables, ConcurrentHistoriesOfLargeValuesAreLinearizable) {
  Server server(wire, {.protocol = protocol, .memory = 32 << 20});
  Recorder recorder;
  all_at_once(server, [&](User& user, std::uint64_t seed) {
    return work(user, recorder, seed, 14, 3, {3, 5'000, 300'000, (1 << 20) - 20});
  });
  recorder.judge();
  User user(server);
  expect_sound(server, user);
}

TEST_P(Tables, IncrementsAddUp) {
  Server server(wire, {.protocol = protocol});
  Recorder recorder;
  all_at_once(server, [&](User& user, std::uint64_t seed) { return add_ones(user, recorder, seed, 25); });
  recorder.judge();
  User user(server);
  EXPECT_EQ(*user.lookup("sum"), "150");
  expect_sound(server, user);
}

inline Task<void> race(User& user, int keys, std::vector<int>& wins, std::mutex& mutex) {
  for (int i = 0; i < keys; ++i) {
    Cost cost;
    const auto won = co_await user.table->insert("race" + std::to_string(i), "x", user.deadline(), cost);
    EXPECT_TRUE(won.ok()) << text(won.status());
    const std::lock_guard lock(mutex);
    if (won.ok() && *won) ++wins[static_cast<std::size_t>(i)];
  }
}

TEST_P(Tables, InsertRacesHaveOneWinner) {
  Server server(wire, {.protocol = protocol});
  std::mutex mutex;
  std::vector<int> wins(60);
  all_at_once(server, [&](User& user, std::uint64_t) { return race(user, 60, wins, mutex); });
  EXPECT_EQ(std::count(wins.begin(), wins.end(), 1), 60);
  User user(server);
  expect_sound(server, user);
}

inline Task<void> come_and_go(User& user, std::uint64_t seed, int keys, const std::atomic<bool>& enough) {
  Cost cost;
  for (int i = 0; !enough; ++i) {
    const std::string key = "guest" + std::to_string(seed) + "/" + std::to_string(i % keys);
    const auto changed = i % (2 * keys) < keys ? co_await user.table->put(key, "v", user.deadline(), cost)
                                               : co_await user.table->remove(key, user.deadline(), cost);
    EXPECT_TRUE(changed.ok()) << text(changed.status());
    if (!changed.ok()) co_return;
  }
}

// Too long for a laboratory.
class LongTables : public Tables {};

// Tables of few rows, or tables that are split: entries move while they are scanned.
TEST_P(LongTables, AScanTellsOfAllThatStaysWhileOthersComeAndGo) {
  const bool race = protocol == Protocol::race;
  Server server(wire, {.protocol = protocol,
                       .tables = race ? 8ull : 1,
                       .memory = race ? 8ull << 20 : 4 << 20,
                       .entries_per_row = race ? 8ull : 4});
  User reader(server);
  const std::uint64_t staying = race ? 300 : reader.geometry.entries() / 2;
  std::set<std::string> stay;
  for (std::uint64_t i = 0; i < staying; ++i) {
    stay.insert("stays" + std::to_string(i));
    ASSERT_TRUE(*reader.insert("stays" + std::to_string(i), "v"));
  }
  std::atomic<bool> enough = false;
  std::vector<std::unique_ptr<User>> users;
  std::vector<std::future<void>> over;
  for (std::uint64_t i = 0; i < 2; ++i) users.push_back(std::make_unique<User>(server));
  for (std::uint64_t i = 0; i < 4; ++i) {
    over.push_back(users[i / 2]->spawn(come_and_go(*users[i / 2], i, race ? 500 : 40, enough)));
  }
  std::set<std::string> guests;
  const auto look = [&](std::uint64_t count) {
    std::set<std::string> seen;
    std::uint64_t position = 0;
    do {
      const auto page = reader.scan(position, count);
      EXPECT_TRUE(page.ok()) << text(page.status());
      if (!page.ok()) return;
      seen.insert(page->keys.begin(), page->keys.end());
      position = page->next;
    } while (position != 0);
    for (const std::string& key : stay) EXPECT_TRUE(seen.contains(key)) << key << ", by pages of " << count;
    for (const std::string& key : seen) {
      if (stay.contains(key)) continue;
      EXPECT_EQ(key.compare(0, 5, "guest"), 0) << key;
      guests.insert(key);
    }
  };
  EXPECT_TRUE(eventually([&] {
    for (const std::uint64_t count : {1u, 10u, 1000u}) look(count);
    return !guests.empty() && (!race || server.depth() > 0);
  }));
  enough = true;
  for (const auto& each : over) User::wait(each);
  users.clear();
  expect_sound(server, reader);
}

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

// Both protocols, with clients that are told of failures and moves: what takes its time is the failure timeout.
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
    EXPECT_TRUE(protocol == Protocol::race || eventually([&] {
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
    ASSERT_TRUE(user.insert("key", "value").ok());
    std::string reply;
    fabric::Outcome outcome;
    user.run(ask_service(user, "a request", reply, outcome));
    EXPECT_EQ(outcome.fate, service != nullptr ? fabric::Fate::done : fabric::Fate::refused);
    EXPECT_EQ(outcome.why, service != nullptr ? fabric::Refusal::none : fabric::Refusal::no_service);
    EXPECT_EQ(reply, service != nullptr ? "a request" : "");
    if (server.verbs != nullptr) EXPECT_EQ(server.verbs->stats().data.calls, service != nullptr ? 1u : 0u);
  }
}

// Of RCuckoo alone.
class RCuckooTables : public OverWire {};

TEST_P(RCuckooTables, AgreesWithAMapInLargeEntries) { compare_with_map(GetParam(), {.entry_bytes = 64}, 2, 400, 150); }
TEST_P(RCuckooTables, AgreesWithAMapUnderSharedLocks) {
  compare_with_map(GetParam(), {.rows_per_lock = 1, .max_lock_bytes = 8}, 3, 400, 200);
}

// A table of few rows: entries have to move, and in the end none can.
TEST_P(RCuckooTables, FillsUpMovesEntriesAndSaysSo) {
  Server server(GetParam(), {.memory = 4 << 20, .entries_per_row = 4});
  User a(server);
  const std::uint64_t capacity = a.geometry.entries();
  std::vector<std::string> keys;
  Status full;
  for (base::Random random(7); full.ok() && keys.size() <= capacity;) {
    const std::string key = std::to_string(random.next() % 100'000'000);
    const auto added = a.insert(key, "v");
    full = added.status();
    if (added.ok() && *added) keys.push_back(key);
  }
  EXPECT_EQ(full.code(), Code::out_of_memory) << text(full);
  EXPECT_GT(keys.size(), capacity * 80 / 100);
  for (const std::string& key : keys) ASSERT_EQ(*a.lookup(key), "v") << key;
  EXPECT_GT(a.table->marks().displaced, 20u);
  expect_sound(server, a);
}

// Of RACE alone: tables that are split while clients work.
class RaceTables : public OverWire {
 protected:
  static constexpr Shape kShape{.protocol = Protocol::race, .tables = 8, .memory = 8 << 20};
};

inline Task<void> insert_all(User& user, std::uint64_t seed, int keys) {
  for (int i = 0; i < keys; ++i) {
    Cost cost;
    const std::string key = std::to_string(seed) + "/" + std::to_string(i);
    const auto added = co_await user.table->insert(key, key, user.deadline(), cost);
    EXPECT_TRUE(added.ok() && *added) << key << ": " << text(added.status());
    const auto found = co_await user.table->lookup(key, user.deadline(), cost);
    EXPECT_TRUE(found.ok() && *found == key) << key << ": " << text(found.status());
  }
}

// What six tasks insert does not fit the first of eight tables.
TEST_P(RaceTables, AreSplitWhileClientsWork) {
  Server server(GetParam(), kShape);
  constexpr int kKeys = 300;
  all_at_once(server, [&](User& user, std::uint64_t seed) { return insert_all(user, seed, kKeys); });
  User user(server);
  EXPECT_EQ(user.count()->keys, 6u * kKeys);
  EXPECT_GT(server.depth(), 0u) << "nothing was split";
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = std::to_string(seed) + "/" + std::to_string(i);
      ASSERT_EQ(*user.lookup(key), key);
    }
  }
  expect_sound(server, user);
}

// Few keys that everybody changes, in tables that one client fills meanwhile.
TEST_P(RaceTables, HistoriesThroughSplitsAreLinearizable) {
  Server server(GetParam(), kShape);
  Recorder recorder;
  User filler(server);
  const auto filled = filler.spawn(insert_all(filler, 9, 1800));
  for (std::uint64_t round = 0; round < 8 && filled.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
       ++round) {
    all_at_once(server,
                [&](User& user, std::uint64_t seed) { return work(user, recorder, 10 * round + seed, 25, 24); });
  }
  User::wait(filled);
  recorder.judge();
  EXPECT_GT(server.depth(), 0u) << "nothing was split";
  expect_sound(server, filler);
}

// Too long for a laboratory.
class LongRaceTables : public RaceTables {};

// A client that read the directory before the splits is led to tables that the keys have left.
TEST_P(LongRaceTables, ServeWhoeverKnowsAnOldDirectory) {
  Server server(GetParam(), kShape);
  constexpr int kKeys = 1800;
  std::vector<std::unique_ptr<User>> old;
  for (int i = 0; i < 3; ++i) {
    old.push_back(std::make_unique<User>(server));
    EXPECT_EQ(*old.back()->lookup("9/0"), std::nullopt);
  }
  User filler(server);
  filler.run(insert_all(filler, 9, kKeys));
  ASSERT_GT(server.depth(), 0u) << "nothing was split";
  const auto key_of = [](int i) { return "9/" + std::to_string(i); };
  for (int i = 0; i < kKeys; ++i) ASSERT_EQ(*old[0]->lookup(key_of(i)), key_of(i));
  EXPECT_GT(old[0]->table->marks().stale_routes, 0u);
  for (int i = 0; i < kKeys; i += 3) {
    ASSERT_FALSE(*old[1]->insert(key_of(i), "twice"));
    ASSERT_TRUE(*old[1]->update(key_of(i + 1), "new"));
    ASSERT_TRUE(*old[1]->remove(key_of(i + 2)));
  }
  EXPECT_GT(old[1]->table->marks().stale_routes, 0u);
  std::set<std::string> seen;
  std::uint64_t position = 0;
  do {
    const auto page = old[2]->scan(position, 10);
    ASSERT_TRUE(page.ok()) << text(page.status());
    seen.insert(page->keys.begin(), page->keys.end());
    position = page->next;
  } while (position != 0);
  EXPECT_EQ(seen.size(), 2u * kKeys / 3);
  for (int i = 0; i < kKeys; ++i) {
    const auto found = *filler.lookup(key_of(i));
    ASSERT_EQ(found, i % 3 == 2 ? std::nullopt : std::optional(i % 3 == 1 ? "new" : key_of(i))) << i;
  }
  old.clear();
  expect_sound(server, filler);
}

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
