// SPDX-License-Identifier: Apache-2.0
// RCuckoo and RACE over verbs: the tables' own suites (index/*/table_test.cc), as far as they need no simulator. Here
// clients are threads, and what tears and reorders is a device. It needs an RDMA device: `make test-verbs`.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "client/open_table.h"
#include "directory/directory.h"
#include "fabric/tcp/test_loop.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/responder.h"
#include "fabric/words.h"
#include "heap/heap.h"
#include "index/race/table.h"
#include "index/race/verify.h"
#include "index/rcuckoo/verify.h"
#include "index/table.h"
#include "layout/regions.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "session/session.h"
#include "sim/history.h"

namespace farpool::apps {
namespace {

using base::Code;
using base::kSecond;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::verbs::Device;
using fabric::verbs::VerbsPort;
using sim::Call;
using task::Task;

// Laboratories are slow.
constexpr Nanos kLong = 20 * kSecond;
constexpr Nanos kPatience = 60 * kSecond;

std::string text(const Status& status) { return std::string(base::name_of(status.code())) + ": " + status.message(); }

struct Shape {
  layout::Protocol protocol = layout::Protocol::rcuckoo;
  std::uint64_t tables = 1;
  std::uint64_t memory = 16 << 20;
  std::uint64_t table_percent = 1;
  std::uint64_t entry_bytes = 16;
  std::uint64_t entries_per_row = 8;
  std::uint64_t rows_per_lock = 16;
  std::uint64_t max_lock_bytes = 0;
};

struct Server {
  explicit Server(const Shape& shape) : memory(std::move(*node::Memory::anonymous(shape.memory))) {
    auto opened = Device::open({.failure_timeout = kLong});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (!opened.ok()) return;
    device = *opened;
    control.on([&] {
      responder = std::make_unique<fabric::verbs::VerbsResponder>(
          control.loop, fabric::tcp::ResponderOptions{.listen = "127.0.0.1:0", .handshake_deadline = kLong}, device);
      node::MemoryNode::Options options;
      options.name = "memory-0";
      options.pool_uid = "pool";
      options.endpoint = "memory-0:7400";  // nobody dials what the map says here
      options.geometry.protocol = shape.protocol;
      options.geometry.tables = shape.tables;
      options.geometry.table_percent = shape.table_percent;
      options.geometry.entry_bytes = shape.entry_bytes;
      options.geometry.entries_per_row = shape.entries_per_row;
      options.geometry.rows_per_lock = shape.rows_per_lock;
      options.geometry.max_lock_bytes = shape.max_lock_bytes;
      options.lease = 2 * kLong;
      options.failure_timeout = kLong;
      options.require_authentication = false;
      options.log = [](bool, const std::string&) {};
      options.on_change = [] {};
      auto created = node::MemoryNode::create(std::move(options), memory.span(), *responder);
      EXPECT_TRUE(created.ok()) << created.status().message();
      if (!created.ok()) return;
      node = std::move(*created);
      const Status status = responder->serve(*node);
      EXPECT_TRUE(status.ok()) << status.message();
      node->stand_alone();
    });
  }
  ~Server() {
    control.on([&] {
      responder.reset();
      node.reset();
    });
  }
  base::Bytes region(layout::RegionId id) const {
    const auto& place = node->geometry().at(id);
    return base::Bytes(memory.span()).subspan(place.offset, place.bytes);
  }
  bool locked() const {
    const base::Bytes words = region(layout::kLocks);
    for (std::size_t i = 0; i < words.size(); i += 8) {
      auto* word = const_cast<std::byte*>(words.data() + i);
      if (fabric::word_at(word).load(std::memory_order_acquire) != 0) return true;
    }
    return false;
  }

  node::Memory memory;
  std::shared_ptr<Device> device;
  fabric::tcp::LoopThread control;
  std::unique_ptr<fabric::verbs::VerbsResponder> responder;
  std::unique_ptr<node::MemoryNode> node;
};

// A client on a thread of its own, and its operations, awaited.
struct User : fabric::tcp::PortThread<VerbsPort> {
  explicit User(Server& server) : geometry(server.node->geometry()) {
    on([&] {
      auto opened = VerbsPort::open(loop, nullptr, server.device, {});
      EXPECT_TRUE(opened.ok()) << opened.status().message();
      port = std::move(*opened);
    });
    run(open({.endpoint = server.responder->address(),
              .pool_uid = "pool",
              .client_name = "client",
              .epoch = 1,
              .node_incarnation = server.node->incarnation()}));
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
    heap = std::make_unique<heap::Heap>(*session, geometry.at(layout::kHeap).bytes, geometry.segment_bytes);
    table = client::open_table(*session, *heap, geometry, 0);
  }
  Task<void> leave() {
    if (session->alive()) co_await heap->release(deadline());
    co_await session->close(deadline());
    table.reset();
    heap.reset();
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
  Result<index::Totals> count() {
    return await<index::Totals>([&](Cost& cost) { return table->count(deadline(), cost); });
  }

  const layout::Geometry geometry;
  std::unique_ptr<session::Session> session;
  std::unique_ptr<heap::Heap> heap;
  std::unique_ptr<index::Table> table;
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

Task<void> wait_until_idle(race::Table& table, Nanos deadline, Status& status) {
  status = co_await table.idle(deadline);
}

// Everything whole, no lock held, and the counters right. Others stand still, and what they cleared behind their
// operations has arrived: their sessions have ended.
void expect_sound(Server& server, User& user, std::map<std::string, std::string>* image = nullptr) {
  const auto totals = user.count();
  ASSERT_TRUE(totals.ok()) << text(totals.status());
  if (auto* race = dynamic_cast<race::Table*>(user.table.get())) {  // a split that its keys began
    Status idle;
    user.run(wait_until_idle(*race, user.deadline(), idle));
    ASSERT_TRUE(idle.ok()) << text(idle);
  }
  const auto verify = user.geometry.protocol == layout::Protocol::race ? race::verify : rcuckoo::verify;
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

class TablesOverVerbs : public testing::TestWithParam<layout::Protocol> {};
INSTANTIATE_TEST_SUITE_P(Protocols, TablesOverVerbs, testing::Values(layout::Protocol::rcuckoo, layout::Protocol::race),
                         [](const auto& of) { return of.param == layout::Protocol::race ? "Race" : "RCuckoo"; });

TEST_P(TablesOverVerbs, EveryOperation) {
  Server server({.protocol = GetParam()});
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

TEST_P(TablesOverVerbs, EverySizeUpToTheLimits) {
  Server server({.protocol = GetParam(), .memory = 64 << 20});
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

void compare_with_map(const Shape& shape, std::uint64_t seed, int operations, std::uint64_t keys) {
  Server server(shape);
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

TEST_P(TablesOverVerbs, AgreesWithAMap) { compare_with_map({.protocol = GetParam()}, 1, 600, 150); }
TEST(RCuckooOverVerbs, AgreesWithAMapInLargeEntries) { compare_with_map({.entry_bytes = 64}, 2, 400, 150); }
TEST(RCuckooOverVerbs, AgreesWithAMapUnderSharedLocks) {
  compare_with_map({.rows_per_lock = 1, .max_lock_bytes = 8}, 3, 400, 200);
}

// A table of few rows: entries have to move, and in the end none can.
TEST(RCuckooOverVerbs, FillsUpMovesEntriesAndSaysSo) {
  Server server({.memory = 4 << 20, .entries_per_row = 4});
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

// What clients on several threads asked and were told.
struct Recorder {
  std::mutex mutex;
  sim::History history;
  std::vector<Status> failed;
};

class AddOne final : public index::Editor {
 public:
  index::Edit edit(std::optional<std::string_view> value) override {
    sum = std::to_string(std::stoull(std::string(value.value_or("0"))) + 1);
    return {.kind = index::Edit::Kind::put, .value = sum};
  }
  std::string sum;
};

Task<void> ask(User& user, Recorder& recorder, Call call) {
  call.asked = user.port->now();
  std::size_t number = 0;
  {
    const std::lock_guard lock(recorder.mutex);
    number = recorder.history.ask(call);
  }
  Cost cost;
  Status status;
  std::optional<std::string> found;
  const auto there = [&](const Result<bool>& present, bool when) {
    status = present.status();
    if (present.ok() && *present == when) found = "there";
  };
  const Nanos deadline = user.deadline();
  switch (call.kind) {
    case Call::Kind::get: {
      auto answer = co_await user.table->lookup(call.key, deadline, cost);
      status = answer.status();
      if (answer.ok()) found = *answer;
      break;
    }
    case Call::Kind::put:
      status = (co_await user.table->put(call.key, call.value, deadline, cost)).status();
      break;
    case Call::Kind::insert:
      there(co_await user.table->insert(call.key, call.value, deadline, cost), false);
      break;
    case Call::Kind::update:
      there(co_await user.table->update(call.key, call.value, deadline, cost), true);
      break;
    case Call::Kind::remove:
      there(co_await user.table->remove(call.key, deadline, cost), true);
      break;
    default: {
      AddOne editor;
      status = (co_await user.table->modify(call.key, editor, deadline, cost)).status();
      found = editor.sum;
    }
  }
  const Nanos now = user.port->now();
  const std::lock_guard lock(recorder.mutex);
  if (status.ok()) {
    recorder.history.answer(number, now, std::move(found));
  } else {
    recorder.history.unknown(number);
    recorder.failed.push_back(status);
  }
}

Task<void> work(User& user, Recorder& recorder, std::uint64_t seed, int operations, std::uint64_t keys) {
  base::Random random(seed);
  for (int i = 0; i < operations; ++i) {
    constexpr Call::Kind kKinds[] = {Call::Kind::get,    Call::Kind::get,    Call::Kind::put,
                                     Call::Kind::insert, Call::Kind::update, Call::Kind::remove};
    Call call;
    call.kind = kKinds[random.below(6)];
    call.client = seed;
    call.key = "k" + std::to_string(random.below(keys));
    call.value = std::string(random.chance(0.5) ? 3 : 60, static_cast<char>('a' + random.below(26))) +
                 std::to_string(seed * 1000) + std::to_string(i);
    co_await ask(user, recorder, std::move(call));
  }
}
Task<void> add_ones(User& user, Recorder& recorder, std::uint64_t seed, int times) {
  for (int i = 0; i < times; ++i) co_await ask(user, recorder, {.kind = Call::Kind::add, .client = seed, .key = "sum"});
}

// Three clients with two tasks each, all at once.
template <class Begin>
void all_at_once(Server& server, Recorder& recorder, const Begin& begin) {
  std::vector<std::unique_ptr<User>> users;
  std::vector<std::future<void>> over;
  for (int i = 0; i < 3; ++i) users.push_back(std::make_unique<User>(server));
  for (std::uint64_t i = 0; i < 6; ++i) over.push_back(users[i / 2]->spawn(begin(*users[i / 2], i + 1)));
  for (const auto& each : over) User::wait(each);
  users.clear();
  for (const Status& status : recorder.failed) ADD_FAILURE() << text(status);
}

TEST_P(TablesOverVerbs, ConcurrentHistoriesAreLinearizable) {
  Server server({.protocol = GetParam()});
  for (std::uint64_t round = 1; round <= 4; ++round) {
    Recorder recorder;
    all_at_once(server, recorder,
                [&](User& user, std::uint64_t seed) { return work(user, recorder, 10 * round + seed, 25, 6); });
    EXPECT_EQ(recorder.history.judge(), std::nullopt) << "round " << round;
    User user(server);
    expect_sound(server, user);
    for (std::uint64_t key = 0; key < 6; ++key) ASSERT_TRUE(user.remove("k" + std::to_string(key)).ok());
  }
}

TEST_P(TablesOverVerbs, IncrementsAddUp) {
  Server server({.protocol = GetParam()});
  Recorder recorder;
  all_at_once(server, recorder, [&](User& user, std::uint64_t seed) { return add_ones(user, recorder, seed, 25); });
  User user(server);
  EXPECT_EQ(*user.lookup("sum"), "150");
  expect_sound(server, user);
}

Task<void> race(User& user, int keys, std::vector<int>& wins, std::mutex& mutex) {
  for (int i = 0; i < keys; ++i) {
    Cost cost;
    const auto won = co_await user.table->insert("race" + std::to_string(i), "x", user.deadline(), cost);
    EXPECT_TRUE(won.ok()) << text(won.status());
    const std::lock_guard lock(mutex);
    if (won.ok() && *won) ++wins[static_cast<std::size_t>(i)];
  }
}

TEST_P(TablesOverVerbs, InsertRacesHaveOneWinner) {
  Server server({.protocol = GetParam()});
  Recorder recorder;
  std::mutex mutex;
  std::vector<int> wins(60);
  all_at_once(server, recorder, [&](User& user, std::uint64_t) { return race(user, 60, wins, mutex); });
  EXPECT_EQ(std::count(wins.begin(), wins.end(), 1), 60);
  User user(server);
  expect_sound(server, user);
}

Task<void> insert_all(User& user, std::uint64_t seed, int keys) {
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
TEST(RaceOverVerbs, TablesAreSplitWhileClientsWork) {
  Server server({.protocol = layout::Protocol::race, .tables = 8, .memory = 8 << 20, .table_percent = 1});
  Recorder recorder;
  constexpr int kKeys = 300;
  all_at_once(server, recorder, [&](User& user, std::uint64_t seed) { return insert_all(user, seed, kKeys); });
  User user(server);
  EXPECT_EQ(user.count()->keys, 6u * kKeys);
  const directory::View directory(server.region(layout::kDirectory), 8);
  EXPECT_GT(directory.depth(), 0u) << "nothing was split";
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = std::to_string(seed) + "/" + std::to_string(i);
      ASSERT_EQ(*user.lookup(key), key);
    }
  }
  expect_sound(server, user);
}

}  // namespace
}  // namespace farpool::apps
