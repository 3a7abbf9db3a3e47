// SPDX-License-Identifier: Apache-2.0
// CALLs for data in the simulator: their weak order, the time of service threads, requests and replies that get lost,
// and a memory node that dies after any word that its service writes. A service that writes request ids down with its
// effects carries out each request once, over all of that; the same one without ids, or with its words in another
// order, does not, and is found out.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/marks.h"
#include "fabric/contract/wire.h"
#include "fabric/once.h"
#include "fabric/sim/network.h"
#include "task/scope.h"

namespace farpool::fabric::sim {
namespace {

using contract::TestHost;
using contract::TestService;

// ---- order and time -------------------------------------------------------------------------------------------------

struct World {
  explicit World(Options options) : network(options), node(network.add_node("node")) {
    node.serve(host);
    port = &network.add_client({.role = "client"});
  }
  TestHost host{64};
  Network network;
  SimResponder& node;
  SimPort* port;
  std::string outcome;
  Nanos soon() const { return network.now() + base::kSecond; }
};

struct Word {
  explicit Word(Port& port, std::uint64_t value = 0) : buffer(port.buffer(8)) { base::store(buffer.data(), value); }
  std::uint64_t value() const { return base::load<std::uint64_t>(buffer.data()); }
  base::MutableBytes span() const { return buffer.first(8); }
  Buffer buffer;
};

task::Task<std::unique_ptr<Lane>> open(World& world) {
  auto lane = co_await world.port->open_lane(world.host.grant(1, "node"), world.soon());
  if (!lane) std::abort();
  co_return std::move(*lane);
}
task::Task<void> post(World& world, Lane& lane, Op op) {
  const std::array ops{op};
  EXPECT_EQ((co_await lane.post(ops, world.soon())).fate, Fate::done);
}
task::Task<void> until_over(task::Task<void> body, bool& over) {
  co_await std::move(body);
  over = true;
}

using Set = std::set<std::string>;
Set outcomes(task::Task<void> (*body)(World&), Options options = {}) {
  Set seen;
  for (options.seed = 1; options.seed <= 200; ++options.seed) {
    World world(options);
    bool over = false;
    task::Scope scope;
    scope.spawn(until_over(body(world), over));
    if (!world.network.run_until([&over] { return over; }, 100 * base::kSecond)) std::abort();
    seen.insert(world.outcome);
  }
  return seen;
}

enum class First : std::uint8_t { call, read, atomic, write };
template <First kFirst, bool kFence>
task::Task<void> then_a_call(World& world) {
  auto lane = co_await open(world);
  Word word(*world.port, 5), request(*world.port), reply(*world.port), other(*world.port);
  std::uint64_t old = 0;
  const Remote place{TestHost::kSmall, 0};
  const Op bump = Op::call(TestService::kBump, request.span(), reply.span());
  const std::map<First, Op> firsts{{First::call, Op::call(TestService::kBump, request.span(), other.span())},
                                   {First::read, Op::read(place, other.span())},
                                   {First::atomic, Op::fetch_add(place, old, 5)},
                                   {First::write, Op::write(place, word.span())}};
  task::Scope scope;
  scope.spawn(post(world, *lane, firsts.at(kFirst)));
  scope.spawn(post(world, *lane, kFence ? bump.fenced() : bump));
  co_await scope.join();
  world.outcome = std::to_string(kFirst == First::call || kFirst == First::read ? other.value() : reply.value());
}
TEST(CallLitmus, TwoCallsChangePlacesFenceOrNot) {
  EXPECT_EQ(outcomes(then_a_call<First::call, false>), (Set{"0", "1"}));
  EXPECT_EQ(outcomes(then_a_call<First::call, true>), (Set{"0", "1"}));
}
TEST(CallLitmus, AReadIsOvertakenByALaterCallUnlessThatIsFenced) {
  EXPECT_EQ(outcomes(then_a_call<First::read, false>), (Set{"0", "1"}));
  EXPECT_EQ(outcomes(then_a_call<First::read, true>), Set{"0"});
}
TEST(CallLitmus, AnAtomicIsOvertakenByALaterCallUnlessThatIsFenced) {
  EXPECT_EQ(outcomes(then_a_call<First::atomic, false>), (Set{"0", "5"}));
  EXPECT_EQ(outcomes(then_a_call<First::atomic, true>), Set{"5"});
}
TEST(CallLitmus, AWriteIsNeverOvertakenByALaterCall) {
  EXPECT_EQ(outcomes(then_a_call<First::write, false>), Set{"5"});
}

task::Task<void> a_call_and_a_fenced_write(World& world) {
  auto lane = co_await open(world);
  Word word(*world.port, 5), request(*world.port), reply(*world.port);
  task::Scope scope;
  scope.spawn(post(world, *lane, Op::call(TestService::kPeek, request.span(), reply.span())));
  scope.spawn(post(world, *lane, Op::write({TestHost::kSmall, 0}, word.span()).fenced()));
  co_await scope.join();
  world.outcome = std::to_string(reply.value());
}
TEST(CallLitmus, ACallIsOvertakenByALaterWriteFenceOrNot) {
  EXPECT_EQ(outcomes(a_call_and_a_fenced_write), (Set{"0", "5"}));
}

// Forty CALLs of a thousand nanoseconds each: threads share them.
task::Task<void> forty_calls(World& world) {
  auto lane = co_await open(world);
  Word request(*world.port), reply(*world.port);
  const Nanos begin = world.network.now();
  task::Scope scope;
  for (int i = 0; i < 40; ++i)
    scope.spawn(post(world, *lane, Op::call(TestService::kBump, request.span(), reply.span())));
  co_await scope.join();
  world.outcome = std::to_string((world.network.now() - begin) / 1000);
}
TEST(CallTime, ServiceThreadsShareTheWork) {
  for (const Timing& timing : {Timing{}, Timing{.nic = &kConnectX5}}) {
    std::vector<int> took;
    for (const std::size_t threads : {1u, 4u}) {
      World world({.seed = 3,
                   .straggle = 0,
                   .calls_in_flight = 64,
                   .service_threads = threads,
                   .min_service = 1000,
                   .max_service = 1000,
                   .timing = timing});
      bool over = false;
      task::Scope scope;
      scope.spawn(until_over(forty_calls(world), over));
      ASSERT_TRUE(world.network.run_until([&over] { return over; }, base::kSecond));
      took.push_back(std::stoi(world.outcome));
    }
    EXPECT_GE(took[0], 40) << "microseconds, on one thread";
    EXPECT_GE(took[1], 10);
    EXPECT_LT(took[1], took[0] * 2 / 3) << "microseconds, on four";
  }
}

// ---- exactly once ---------------------------------------------------------------------------------------------------

enum class Flaw : std::uint8_t {
  none,
  no_ids,        // carries out whatever comes
  forgets,       // does not read the ids of an earlier life
  counts_first,  // an entry counts before its words are written
};

// A balance that clients add to. Its memory outlives its process: a count of entries, and the entries. The last entry
// that counts says what the balance is, and each whose request it was.
class Ledger final : public Service {
 public:
  struct Request {
    std::uint64_t client = 0, id = 0, amount = 0;
  };
  struct Entry {
    std::uint64_t client = 0, id = 0, amount = 0, balance = 0;
  };
  static constexpr std::uint32_t kAdd = kFirstServiceOpcode;
  static constexpr std::uint64_t kBusy = ~0ull;  // in place of a balance: ask again
  static constexpr std::size_t kMost = 256;
  using Memory = std::array<std::uint64_t, 1 + 4 * kMost>;

  Ledger(Memory& memory, Flaw flaw) : memory_(memory), flaw_(flaw) {
    if (flaw == Flaw::forgets) return;
    for (std::uint64_t i = 0; i < memory_[0]; ++i) {
      const Entry entry = at(i);
      (void)of(entry.client).restore(RequestId::of(entry.id), base::bytes_of(entry.balance));
    }
  }
  Entry at(std::uint64_t index) const {
    Entry entry;
    std::memcpy(&entry, &memory_[1 + 4 * index], sizeof entry);
    return entry;
  }

  Served serve(Call& call) noexcept override {
    if (call.opcode != kAdd) return Served::refused(Refusal::unknown_opcode);
    if (call.request.size() != sizeof(Request) || call.reply.size() < 8) return Served::refused(Refusal::malformed);
    const auto request = base::load<Request>(call.request.data());
    const RequestId id = RequestId::of(request.id);
    Once& once = of(request.client);
    std::size_t bytes = 0;
    if (flaw_ != Flaw::no_ids) {
      switch (once.begin(id, call.reply.first(8), bytes)) {
        case Once::Turn::first:
          break;
        case Once::Turn::again:
          return Served::done(bytes);
        case Once::Turn::running:
          base::store(call.reply.data(), kBusy);
          return Served::done(8);
        case Once::Turn::old:
        case Once::Turn::bad:
          return Served::refused(Refusal::malformed);
      }
    }
    const std::uint64_t count = memory_[0];
    const std::uint64_t balance = request.amount + (count > 0 ? at(count - 1).balance : 0);
    const Entry entry{request.client, request.id, request.amount, balance};
    auto* place = reinterpret_cast<std::byte*>(memory_.data());
    if (flaw_ == Flaw::counts_first) call.hand.write(place, count + 1);
    call.hand.write(place + 8 + 32 * count, base::bytes_of(entry));
    if (flaw_ != Flaw::counts_first) call.hand.write(place, count + 1);
    base::store(call.reply.data(), balance);
    if (flaw_ != Flaw::no_ids) FARPOOL_CHECK(once.finish(id, base::bytes_of(balance)));
    return Served::done(8);
  }

 private:
  Once& of(std::uint64_t client) {
    auto& once = clients_[client];
    if (once == nullptr) once = std::make_unique<Once>(2, 8);
    return *once;
  }
  Memory& memory_;
  const Flaw flaw_;
  std::map<std::uint64_t, std::unique_ptr<Once>> clients_;
};

class LedgerHost final : public Host {
 public:
  explicit LedgerHost(Flaw flaw) : flaw_(flaw) { start(); }
  void start() { ledger_ = std::make_unique<Ledger>(memory_, flaw_); }
  void on_exchange(const Peer&, std::string, std::function<void(std::string)> reply) override { reply({}); }
  std::optional<LaneRights> on_open_lane(const std::array<std::byte, 16>&) override {
    return LaneRights{.session_id = 1, .regions = {}, .service = ledger_.get()};
  }
  std::optional<std::size_t> on_call(std::uint64_t, std::uint32_t, base::Bytes, base::MutableBytes) override {
    return std::nullopt;
  }
  const Ledger& ledger() const { return *ledger_; }
  std::uint64_t count() const { return memory_[0]; }

 private:
  const Flaw flaw_;
  Ledger::Memory memory_{};
  std::unique_ptr<Ledger> ledger_;  // of this life; one of an earlier life has been destroyed with all that it knew
};

constexpr std::uint64_t kClients = 2, kAdds = 6;

// Adds 1, 2, 3 ..., and asks again with the same id until it has learned what came of each.
task::Task<void> add(SimPort& port, std::uint64_t client, std::uint32_t line, std::vector<std::uint64_t>& balances,
                     std::size_t& left) {
  std::unique_ptr<Lane> lane;
  Buffer request = port.buffer(sizeof(Ledger::Request)), reply = port.buffer(8);
  for (std::uint64_t number = 1; number <= kAdds;) {
    while (lane == nullptr || !lane->open()) {
      auto opened = co_await port.open_lane({.endpoint = "node"}, port.now() + base::kMillisecond);
      if (opened.ok()) lane = std::move(*opened);
    }
    base::store(request.data(),
                Ledger::Request{.client = client, .id = RequestId{line, number}.word(), .amount = number});
    const std::array ops{Op::call(Ledger::kAdd, request.first(sizeof(Ledger::Request)), reply.first(8))};
    const Outcome outcome = co_await lane->post(ops, port.now() + base::kMillisecond);
    if (outcome.fate == Fate::maybe) {
      FARPOOL_MARK(asked_again);
      continue;
    }
    EXPECT_EQ(outcome.fate, Fate::done) << text_of(outcome.why);
    const auto balance = base::load<std::uint64_t>(reply.data());
    if (outcome.fate == Fate::done && balance == Ledger::kBusy) continue;
    balances.push_back(balance);
    ++number;
  }
  lane.reset();
  --left;
}

struct Judged {
  std::string wrong;  // empty: each request was carried out once, and its client was told what came of it
  std::uint64_t effects = 0;
};
Judged run(Options options, Flaw flaw, std::uint64_t die_after = ~0ull) {
  LedgerHost host(flaw);
  Network network(options);
  SimResponder& node = network.add_node("node");
  node.serve(host);
  if (die_after != ~0ull) node.die_after(die_after);
  std::vector<std::vector<std::uint64_t>> balances(2 * kClients);
  std::size_t left = balances.size();
  {
    task::Scope scope;
    for (std::size_t i = 0; i < balances.size(); ++i) {
      if (i % 2 == 0) (void)network.add_client({.role = "client"});
    }
    for (std::size_t i = 0; i < balances.size(); ++i) {
      scope.spawn(add(network.client(i / 2), i / 2, static_cast<std::uint32_t>(i % 2), balances[i], left));
    }
    while (left > 0) {
      if (!network.step()) std::abort();
      if (!node.alive()) {
        host.start();
        node.serve(host);
      }
    }
  }
  Judged judged{.wrong = {}, .effects = node.service_effects()};
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> told;
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < host.count(); ++i) {
    const Ledger::Entry entry = host.ledger().at(i);
    sum += entry.amount;
    if (entry.balance != sum) judged.wrong = "an entry that counts is not whole";
    if (!told.emplace(std::pair(entry.client, entry.id), entry.balance).second) judged.wrong = "an effect twice";
  }
  if (host.count() != balances.size() * kAdds && judged.wrong.empty()) judged.wrong = "not every request";
  for (std::size_t i = 0; i < balances.size(); ++i) {
    for (std::uint64_t number = 1; number <= kAdds; ++number) {
      const auto entry = told.find({i / 2, RequestId{static_cast<std::uint32_t>(i % 2), number}.word()});
      if (judged.wrong.empty() && (entry == told.end() || entry->second != balances[i][number - 1])) {
        judged.wrong = "a client was told of another outcome";
      }
    }
  }
  return judged;
}

constexpr Options kLossy{.lose_reply = 0.1, .lose_call = 0.1};

TEST(CallOnce, OverLostRequestsAndReplies) {
  const std::uint64_t again = base::Mark::hits("asked_again"), lost = base::Mark::hits("sim_request_lost");
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Options options = kLossy;
    options.seed = seed;
    EXPECT_EQ(run(options, Flaw::none).wrong, "") << "seed " << seed;
  }
  EXPECT_GT(base::Mark::hits("asked_again"), again);
  EXPECT_GT(base::Mark::hits("sim_request_lost"), lost);
}

// Every word that the service writes, one after the other, is the last one of its process.
Set after_every_effect(Flaw flaw, Options options) {
  Set wrong;
  const std::uint64_t effects = run(options, flaw).effects;
  for (std::uint64_t point = 0; point <= effects; ++point) {
    const std::string found = run(options, flaw, point).wrong;
    if (!found.empty()) wrong.insert(found);
  }
  return wrong;
}
TEST(CallOnce, WhenTheMemoryNodeDiesAfterAnyEffect) {
  const std::uint64_t deaths = base::Mark::hits("sim_memory_node_died_in_a_service");
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Options options = seed % 2 == 0 ? kLossy : Options{};
    options.seed = seed;
    EXPECT_EQ(after_every_effect(Flaw::none, options), Set{}) << "seed " << seed;
  }
  EXPECT_GE(base::Mark::hits("sim_memory_node_died_in_a_service"), deaths + 6 * 5 * 2 * kClients * kAdds);
}

TEST(CallOnce, FlawedServicesAreFoundOut) {
  Set without_ids;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Options options = kLossy;
    options.seed = seed;
    without_ids.insert(run(options, Flaw::no_ids).wrong);
  }
  EXPECT_TRUE(without_ids.contains("an effect twice"));
  EXPECT_TRUE(after_every_effect(Flaw::forgets, {.seed = 1}).contains("an effect twice"));
  EXPECT_TRUE(after_every_effect(Flaw::counts_first, {.seed = 1}).contains("an entry that counts is not whole"));
}

TEST(CallOnce, ASeedIsARun) {
  Options options = kLossy;
  options.seed = 9;
  EXPECT_EQ(run(options, Flaw::none).effects, run(options, Flaw::none).effects);
}

}  // namespace
}  // namespace farpool::fabric::sim
