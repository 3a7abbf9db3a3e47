// SPDX-License-Identifier: Apache-2.0
// Outback's CALLs over the simulator's wire: requests and replies get lost, CALLs change places, the memory node dies
// after every word that it writes, and each request takes effect once. Threads of a real process share a table.
#include "index/outback/service.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/marks.h"
#include "fabric/sim/network.h"
#include "index/outback/node_test.h"
#include "index/outback/threads_test.h"
#include "task/scope.h"

namespace farpool::outback {
namespace {

using fabric::sim::Network;
using fabric::sim::Options;
using fabric::sim::SimPort;
using fabric::sim::SimResponder;

// A memory node whose memory outlives it. Each lane is a session of its own.
class NodeHost final : public fabric::Host {
 public:
  explicit NodeHost(Figures figures) : words_(figures.memory_bytes / 8) {
    figures.clients = 8;
    EXPECT_TRUE(format(memory(), figures).ok());
    start();
  }
  void start() {
    service_.reset();
    table_.reset();
    auto opened = NodeTable::open(memory(), {.secret = TestTable::kSecret}, fabric::Hand());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    table_ = std::move(*opened);
    service_ = std::make_unique<NodeService>(*table_);
  }
  base::MutableBytes memory() { return std::as_writable_bytes(std::span(words_)); }
  NodeTable& table() { return *table_; }
  NodeService& service() { return *service_; }
  void on_exchange(const fabric::Peer&, std::string, std::function<void(std::string)> reply) override { reply({}); }
  std::optional<fabric::LaneRights> on_open_lane(const std::array<std::byte, 16>&) override {
    return fabric::LaneRights{.session_id = ++sessions_, .regions = {}, .service = service_.get()};
  }
  std::optional<std::size_t> on_call(std::uint64_t, std::uint32_t, base::Bytes, base::MutableBytes) override {
    return std::nullopt;
  }
  std::uint64_t sessions() const { return sessions_; }

 private:
  std::vector<std::uint64_t> words_;
  std::unique_ptr<NodeTable> table_;
  std::unique_ptr<NodeService> service_;
  std::uint64_t sessions_ = 0;
};

std::uint32_t bucket_of(std::uint32_t buckets, std::string_view key, std::uint32_t partitions = 1) {
  const std::uint64_t hash = hash_of(TestTable::kSecret, 99, base::bytes_of(key));
  const Candidates at = Candidates::of(hash, {.partitions = partitions, .buckets = buckets});
  return at.partition * buckets + at.buckets[0];
}

constexpr std::uint32_t kBuckets = 2;
constexpr std::size_t kRoom = 1024;
constexpr std::uint64_t kWorkers = 4, kRounds = 4;

// A client with one request under way. It asks again, over new lanes, until it knows what came of each.
struct Worker {
  SimPort& port;
  std::uint64_t token;
  fabric::Buffer request, reply;
  std::unique_ptr<fabric::Lane> lane;
  std::uint16_t client = 0;
  std::uint64_t numbers = 0;

  Worker(SimPort& its_port, std::uint64_t its_token)
      : port(its_port), token(its_token), request(port.buffer(kRoom)), reply(port.buffer(kRoom)) {}

  // Nothing: it is not known what came of it.
  task::Task<std::optional<Reply>> post(Request asked) {
    std::size_t bytes = 0;
    EXPECT_EQ(put_kv_request(asked, request.first(kRoom), bytes), Status::done);
    const std::array ops{fabric::Op::call(kCall, request.first(bytes), reply.first(kRoom))};
    const fabric::Outcome outcome = co_await lane->post(ops, port.now() + base::kMillisecond);
    if (outcome.fate != fabric::Fate::done) co_return std::nullopt;
    Reply got;
    EXPECT_TRUE(get_reply(reply.first(outcome.reply_bytes), got));
    co_return got;
  }
  task::Task<void> connect() {
    while (lane == nullptr || !lane->open()) {
      auto opened = co_await port.open_lane({.endpoint = "node"}, port.now() + base::kMillisecond);
      if (!opened.ok()) continue;
      lane = std::move(*opened);
      const auto told = co_await post({.op = Op::attach, .argument = token});
      if (!told || told->status == Status::running) {
        lane.reset();
        continue;
      }
      EXPECT_EQ(told->status, Status::done) << text_of(told->status);
      client = static_cast<std::uint16_t>(told->number);
    }
  }
  task::Task<Reply> carry_out(Request asked) {
    asked.generation = 1;
    asked.place = bucket_of(kBuckets, base::text_of(asked.key));
    asked.request_id = fabric::RequestId{0, ++numbers}.word();
    for (;;) {
      co_await connect();
      asked.client = client;
      const auto told = co_await post(asked);
      if (told && told->status != Status::running) co_return *told;
      if (!told) FARPOOL_MARK(outback_asked_again);
    }
  }
};

// Adds one to a counter that all share, and gives a key of its own one value after the other.
task::Task<void> work(Worker& worker, std::multiset<std::uint64_t>& sums, std::vector<std::string>& wrong,
                      std::size_t& left) {
  const std::string own = "own" + std::to_string(worker.token);
  std::string last;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    const Reply sum =
        co_await worker.carry_out({.op = Op::add, .argument = 1, .key = base::bytes_of(std::string_view("n"))});
    if (sum.status != Status::done) wrong.emplace_back(text_of(sum.status));
    sums.insert(sum.number);
    const std::string value = std::to_string(round) + std::string(round % 2 == 0 ? 100 : 3, 'v');
    const Reply swapped = co_await worker.carry_out({.op = Op::swap,
                                                     .key = base::bytes_of(std::string_view(own)),
                                                     .value = base::bytes_of(std::string_view(value))});
    if (base::text_of(swapped.value) != last) wrong.push_back("a swap that says it found another value");
    last = value;
    const Reply taken = co_await worker.carry_out({.op = Op::take, .key = base::bytes_of(std::string_view(own))});
    if (base::text_of(taken.value) != last) wrong.push_back("a take that says it found another value");
    const Reply added = co_await worker.carry_out({.op = Op::insert,
                                                   .key = base::bytes_of(std::string_view(own)),
                                                   .value = base::bytes_of(std::string_view(value))});
    if (added.status != Status::done) wrong.push_back("an insert that finds its key");
  }
  worker.lane.reset();
  --left;
}

struct Judged {
  std::string wrong;
  std::uint64_t effects = 0;
};
Judged run(Options options, std::uint64_t die_after = ~0ull) {
  NodeHost host(TestTable::figures(kBuckets));
  Network network(options);
  SimResponder& node = network.add_node("node");
  node.serve(host);
  if (die_after != ~0ull) node.die_after(die_after);
  std::multiset<std::uint64_t> sums;
  std::vector<std::string> wrong;
  std::size_t left = kWorkers;
  {
    std::vector<std::unique_ptr<Worker>> workers;
    for (std::uint64_t i = 0; i < kWorkers; ++i) {
      workers.push_back(std::make_unique<Worker>(network.add_client({.role = "client"}), i + 1));
    }
    task::Scope scope;
    for (auto& worker : workers) scope.spawn(work(*worker, sums, wrong, left));
    while (left > 0) {
      if (!network.step()) std::abort();
      if (!node.alive()) {
        host.start();
        node.serve(host);
      }
    }
  }
  Judged judged{.wrong = wrong.empty() ? "" : wrong.front(), .effects = node.service_effects()};
  for (std::uint64_t sum = 1; sum <= kWorkers * kRounds && judged.wrong.empty(); ++sum) {
    if (sums.count(sum) != 1)
      judged.wrong = "the sum " + std::to_string(sum) + " was told " + std::to_string(sums.count(sum)) + " times";
  }
  const auto cut = parse(host.memory());
  const index::Report report = verify(*cut, host.memory(), TestTable::kSecret);
  if (judged.wrong.empty() && report.defect_count() > 0) judged.wrong = report.defects.front().what;
  if (judged.wrong.empty() && report.keys != kWorkers + 1) judged.wrong = "there are other keys than were written";
  return judged;
}

constexpr Options kLossy{.lose_reply = 0.1, .lose_call = 0.1};

TEST(OutbackService, CarriesOutEachRequestOnceOverLostRequestsAndReplies) {
  const std::uint64_t again = base::Mark::hits("outback_asked_again");
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Options options = kLossy;
    options.seed = seed;
    EXPECT_EQ(run(options).wrong, "") << "seed " << seed;
  }
  EXPECT_GT(base::Mark::hits("outback_asked_again"), again);
}

TEST(OutbackService, CarriesOutEachRequestOnceWhenTheMemoryNodeDiesAfterAnyWord) {
  for (const Options& options : {Options{.seed = 1}, Options{.seed = 2, .lose_reply = 0.1, .lose_call = 0.1}}) {
    const std::uint64_t effects = run(options).effects;
    for (std::uint64_t point = 0; point <= effects; ++point) {
      ASSERT_EQ(run(options, point).wrong, "") << "seed " << options.seed << ", after " << point << " words";
    }
  }
}

task::Task<void> until_over(task::Task<void> body, bool& over) {
  co_await std::move(body);
  over = true;
}
task::Task<void> put_one(Worker& worker, std::optional<Reply>& told) {
  co_await worker.connect();
  Request put = {.op = Op::put,
                 .client = worker.client,
                 .place = bucket_of(kBuckets, "key"),
                 .generation = 1,
                 .request_id = fabric::RequestId{0, 1}.word(),
                 .key = base::bytes_of(std::string_view("key"))};
  told = co_await worker.post(put);
}

TEST(OutbackService, HoldsACallWhosePartIsTakenAndAFenceWaitsForIt) {
  NodeHost host(TestTable::figures(kBuckets));
  Network network(Options{.straggle = 0});
  SimResponder& node = network.add_node("node");
  node.serve(host);
  Worker worker(network.add_client({.role = "client"}), 1);
  std::optional<Reply> told;
  bool over = false, fenced = false;
  ASSERT_TRUE(host.table().zone(0).try_lock());
  task::Scope scope;
  scope.spawn(until_over(put_one(worker, told), over));
  ASSERT_TRUE(network.run_until([&] { return host.service().held() == 1; }, base::kSecond));
  node.fence(host.sessions(), [&] { fenced = true; });
  EXPECT_FALSE(network.run_until([&] { return fenced; }, network.now() + 20 * base::kMillisecond))
      << "a CALL of the session is held";
  host.service().leave(0);
  ASSERT_TRUE(network.run_until([&] { return fenced && over; }, network.now() + base::kSecond));
  EXPECT_FALSE(told.has_value()) << "the lane had ended";
  // The session had ended, too: the CALL had no effect.
  EXPECT_EQ(host.table().totals().keys, 0u);
  worker.lane.reset();
}

// --- threads of a real process

void hammer(NodeService& service, std::uint64_t thread, std::uint64_t rounds, std::atomic<std::uint64_t>& wrong) {
  const auto desk = std::make_shared<ThreadCall::AnswerDesk>();
  const auto ask = [&](Request asked, std::vector<std::byte>& reply) {
    std::vector<std::byte> sent(kRoom);
    std::size_t bytes = 0;
    asked.generation = 1;
    if (has_key(asked.op)) asked.place = bucket_of(4, base::text_of(asked.key), 2);
    if (put_kv_request(asked, sent, bytes) != Status::done) wrong.fetch_add(1);
    ThreadCall call(thread + 1, base::Bytes(sent).first(bytes), reply, desk);
    Reply got;
    if (!get_reply(base::Bytes(reply).first(call.carry_out(service)), got)) wrong.fetch_add(1);
    return got;
  };
  std::vector<std::byte> reply(kRoom);
  Reply told;
  do {
    told = ask({.op = Op::attach, .argument = thread + 1}, reply);
  } while (told.status == Status::running);
  const auto client = static_cast<std::uint16_t>(told.number);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::string key = round % 2 == 0 ? "n" : "n" + std::to_string(thread);
    const Reply sum = ask({.op = Op::add,
                           .client = client,
                           .request_id = fabric::RequestId{0, round}.word(),
                           .argument = 1,
                           .key = base::bytes_of(std::string_view(key))},
                          reply);
    if (sum.status != Status::done) wrong.fetch_add(1);
    const Reply found = ask({.op = Op::find, .key = base::bytes_of(std::string_view(key))}, reply);
    if (found.status != Status::done || found.value.empty()) wrong.fetch_add(1);
  }
}

TEST(OutbackServiceThreads, ShareATable) {
  Figures figures = TestTable::figures(8, 512 << 10, 2);
  NodeHost host(figures);
  constexpr std::uint64_t kThreads = 4, kTurns = 500;
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { hammer(host.service(), i, kTurns, wrong); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(host.table().totals().keys, kThreads + 1);
  const auto cut = parse(host.memory());
  std::string n;
  const auto visit = [&](const Seen& seen) {
    if (base::text_of(seen.block.key) == "n") n = base::text_of(seen.block.value);
  };
  EXPECT_EQ(verify(*cut, host.memory(), TestTable::kSecret, {.visit = visit, .progress = {}}).defect_count(), 0u);
  EXPECT_EQ(n, std::to_string(kThreads * kTurns / 2));
}

}  // namespace
}  // namespace farpool::outback
