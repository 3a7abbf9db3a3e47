// SPDX-License-Identifier: Apache-2.0
// The contract of fabric/fabric.h as tests that every wire passes. A wire's test file includes this header once and
// says
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, Contract, ::testing::Values(WireFactory{"plain", ...}), name_of_wire);
//
// in namespace farpool::fabric::contract. Only what the contract promises is asserted here; what it permits besides is
// the litmus tests' business, because real wires are stronger than the contract.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/contract/wire.h"
#include "fabric/cost.h"
#include "fabric/fabric.h"
#include "task/scope.h"

namespace farpool::fabric::contract {

// What the coroutine of one client sees. Everything in it outlives the coroutine.
struct Client {
  TestHost& host;
  Wire& wire;
  Port& port;
  Nanos soon() const { return port.now() + 30 * base::kSecond; }
};

class Contract : public ::testing::TestWithParam<WireFactory> {
 protected:
  void start(std::size_t clients) {
    wire = GetParam().make(host, clients);
    ASSERT_NE(wire, nullptr);
    ASSERT_GE(wire->clients(), clients);
  }
  Client client(std::size_t index) { return {host, *wire, wire->port(index)}; }
  void run(task::Task<void> task) {
    std::vector<task::Task<void>> tasks;
    tasks.push_back(std::move(task));
    run(std::move(tasks));
  }
  void run(std::vector<task::Task<void>> tasks) {
    if (!wire->run(std::move(tasks))) GTEST_FAIL() << "the tasks did not end within a minute";
  }
  void TearDown() override {
    wire.reset();
    EXPECT_TRUE(host.guards_whole()) << "a verb touched memory outside the regions";
  }

  TestHost host;
  std::unique_ptr<Wire> wire;
};

inline std::string name_of_wire(const ::testing::TestParamInfo<WireFactory>& info) { return info.param.name; }

// A test whose whole body is the coroutine of one client, `c`.
#define FARPOOL_CONTRACT(name)                       \
  inline task::Task<void> contract_##name(Client c); \
  TEST_P(Contract, name) {                           \
    ASSERT_NO_FATAL_FAILURE(start(1));               \
    run(contract_##name(client(0)));                 \
  }                                                  \
  inline task::Task<void> contract_##name([[maybe_unused]] Client c)

// ---- helpers --------------------------------------------------------------------------------------------------------

inline Remote at(std::uint64_t offset) { return {TestHost::kSmall, offset}; }

// Registered memory seen as words.
struct Words {
  Words(Port& port, std::size_t count) : buffer(port.buffer(8 * count)), count(count) { fill(0); }
  std::uint64_t get(std::size_t i) const { return base::load<std::uint64_t>(buffer.data() + 8 * i); }
  void set(std::size_t i, std::uint64_t value) { base::store(buffer.data() + 8 * i, value); }
  void fill(std::uint64_t value) {
    for (std::size_t i = 0; i < count; ++i) set(i, value);
  }
  bool all(std::uint64_t value) const {
    for (std::size_t i = 0; i < count; ++i) {
      if (get(i) != value) return false;
    }
    return true;
  }
  base::MutableBytes span() const { return buffer.first(8 * count); }
  Buffer buffer;
  std::size_t count;
};

inline task::Task<std::unique_ptr<Lane>> open_lane(Client c, std::uint64_t session_id = 1) {
  auto lane = co_await c.port.open_lane(c.host.grant(session_id, c.wire.endpoint()), c.soon());
  EXPECT_TRUE(lane.ok()) << lane.status().message();
  if (!lane) std::abort();  // nothing in the suite can go on without lanes
  co_return std::move(*lane);
}

inline task::Task<Outcome> post(Client c, Lane& lane, Op op) {
  const std::array ops{op};
  co_return co_await lane.post(ops, c.soon());
}

struct Ended {
  int times = 0;
  Outcome outcome{};
};
inline task::Task<void> post_into(Lane& lane, std::vector<Op> ops, Nanos deadline, Ended& ended) {
  ended.outcome = co_await lane.post(ops, deadline);
  ++ended.times;
}

// `first` before `second` on one lane: in one chain, or in two chains posted in one turn.
inline task::Task<bool> post_pair(Client c, Lane& lane, Op first, Op second, bool one_chain) {
  Ended a, b;
  task::Scope scope;
  if (one_chain) {
    scope.spawn(post_into(lane, {first, second}, c.soon(), a));
    co_await scope.join();
    co_return a.outcome.fate == Fate::done;
  }
  scope.spawn(post_into(lane, {first}, c.soon(), a));
  scope.spawn(post_into(lane, {second}, c.soon(), b));
  co_await scope.join();
  co_return a.outcome.fate == Fate::done&& b.outcome.fate == Fate::done;
}

// Resumes are counted, and any number is survived: what a posting that completes twice would do.
class Counted {
 public:
  struct promise_type {
    Counted get_return_object() { return Counted(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  static Counted count(int& times) {
    for (;;) {
      ++times;
      co_await std::suspend_always{};
    }
  }
  Counted(const Counted&) = delete;
  ~Counted() { handle.destroy(); }
  std::coroutine_handle<promise_type> handle;

 private:
  explicit Counted(std::coroutine_handle<promise_type> handle) : handle(handle) {}
};

struct CountedPosting {
  CountedPosting(Lane& lane, std::vector<Op> chain, Nanos deadline)
      : ops(std::move(chain)), counter(Counted::count(times)), posting(lane, ops, deadline) {
    posting.waiter = counter.handle;
    lane.enqueue(posting);
    EXPECT_EQ(times, 0) << "a posting completed inline";
  }
  int times = 0;
  std::vector<Op> ops;
  Counted counter;
  Posting posting;
};

// Waits until each has completed, then lets the wire do a little more, and expects each to have completed once.
inline task::Task<void> expect_once(Client c, std::vector<std::unique_ptr<CountedPosting>>& postings) {
  const Nanos limit = c.soon();
  for (const auto& posting : postings) {
    while (posting->times == 0 && c.port.now() < limit) co_await c.port.sleep_for(base::kMillisecond);
  }
  auto lane = co_await open_lane(c, 900);
  Words word(c.port, 1);
  for (int i = 0; i < 20; ++i) co_await post(c, *lane, Op::read(at(0), word.span()));
  for (const auto& posting : postings) EXPECT_EQ(posting->times, 1);
}

// ---- completion -----------------------------------------------------------------------------------------------------

FARPOOL_CONTRACT(WhatWasWrittenIsRead) {
  auto lane = co_await open_lane(c);
  base::Random random(1);
  for (std::size_t words : {1u, 2u, 8u, 64u, 1000u, 8192u}) {
    Words from(c.port, words), into(c.port, words);
    for (std::size_t i = 0; i < words; ++i) from.set(i, random.next());
    EXPECT_EQ((co_await post(c, *lane, Op::write(at(0), from.span()))).fate, Fate::done);
    EXPECT_EQ((co_await post(c, *lane, Op::read(at(0), into.span()))).fate, Fate::done);
    for (std::size_t i = 0; i < words; ++i) EXPECT_EQ(into.get(i), from.get(i)) << "word " << i << " of " << words;
  }
  EXPECT_TRUE(lane->open());
  EXPECT_EQ(lane->pending(), 0u);
}

FARPOOL_CONTRACT(VerbsAsLongAsTheCapabilitiesSay) {
  auto lane = co_await open_lane(c);
  const std::uint64_t bytes = std::min<std::uint64_t>(c.port.caps().max_verb_bytes, TestHost::kLargeBytes - 64);
  Words from(c.port, bytes / 8), into(c.port, bytes / 8);
  for (std::size_t i = 0; i < bytes / 8; ++i) from.set(i, base::mix(i));
  const Remote place{TestHost::kLarge, 64};
  EXPECT_EQ((co_await post(c, *lane, Op::write(place, from.span()))).fate, Fate::done);
  EXPECT_EQ((co_await post(c, *lane, Op::read(place, into.span()))).fate, Fate::done);
  EXPECT_TRUE(std::equal(from.span().begin(), from.span().end(), into.span().begin()));
  if (c.port.caps().max_verb_bytes + 8 > TestHost::kLargeBytes) co_return;
  Words longer(c.port, c.port.caps().max_verb_bytes / 8 + 1);
  EXPECT_EQ((co_await post(c, *lane, Op::read({TestHost::kLarge, 0}, longer.span()))).fate, Fate::refused);
  EXPECT_FALSE(lane->open());
}

FARPOOL_CONTRACT(APostingCompletesOnceAndNeverInline) {
  auto lane = co_await open_lane(c);
  Words words(c.port, 64);
  std::uint64_t old = 0;
  std::vector<std::unique_ptr<CountedPosting>> postings;
  for (int i = 0; i < 4; ++i) {
    postings.push_back(std::make_unique<CountedPosting>(*lane, std::vector{Op::write(at(0), words.span())}, c.soon()));
    postings.push_back(std::make_unique<CountedPosting>(*lane, std::vector{Op::fetch_add(at(0), old, 1)}, c.soon()));
    postings.push_back(
        std::make_unique<CountedPosting>(*lane, std::vector{Op::call(TestHost::kNothing, {}, {})}, c.soon()));
  }
  EXPECT_EQ(lane->pending(), postings.size());
  co_await expect_once(c, postings);
  for (const auto& posting : postings) EXPECT_EQ(posting->posting.outcome.fate, Fate::done);
  EXPECT_EQ(lane->pending(), 0u);
}

FARPOOL_CONTRACT(AChainExecutesAsALongAsItMayBe) {
  auto lane = co_await open_lane(c);
  const std::size_t length = std::min<std::size_t>(c.port.caps().max_chain, kMaxChain);
  std::vector<std::uint64_t> old(length);
  std::vector<Op> ops;
  for (std::size_t i = 0; i < length; ++i) ops.push_back(Op::fetch_add(at(8 * i), old[i], i + 1));
  EXPECT_EQ((co_await lane->post(ops, c.soon())).fate, Fate::done);
  for (std::size_t i = 0; i < length; ++i) EXPECT_EQ(c.host.word(TestHost::kSmall, 8 * i), i + 1);
}

FARPOOL_CONTRACT(AChainThatIsTooLongIsRefusedWhole) {
  auto lane = co_await open_lane(c);
  std::uint64_t old = 0;
  const std::vector<Op> ops(kMaxChain + 1, Op::fetch_add(at(0), old, 1));
  EXPECT_EQ((co_await lane->post(ops, c.soon())).fate, Fate::refused);
  EXPECT_EQ(c.host.word(TestHost::kSmall, 0), 0u);
  EXPECT_FALSE(lane->open());
}

FARPOOL_CONTRACT(AChainMayCarryManyBytesAndNoMore) {
  auto lane = co_await open_lane(c);
  const std::uint64_t bytes = 1 << 20;
  static_assert(bytes + 64 <= TestHost::kLargeBytes);
  std::vector<std::unique_ptr<Words>> words;
  std::vector<Op> ops;
  for (std::uint64_t i = 0; i < kMaxChainBytes / bytes; ++i) {
    words.push_back(std::make_unique<Words>(c.port, bytes / 8));
    ops.push_back(Op::read({TestHost::kLarge, 0}, words.back()->span()));
  }
  EXPECT_EQ((co_await lane->post(ops, c.soon())).fate, Fate::done);
  words.push_back(std::make_unique<Words>(c.port, 1));
  ops.push_back(Op::read({TestHost::kLarge, 0}, words.back()->span()));
  EXPECT_EQ((co_await lane->post(ops, c.soon())).fate, Fate::refused);
  EXPECT_FALSE(lane->open());
}

FARPOOL_CONTRACT(AnEmptyChainIsRefused) {
  auto lane = co_await open_lane(c);
  EXPECT_EQ((co_await lane->post({}, c.soon())).fate, Fate::refused);
  EXPECT_FALSE(lane->open());
}

// ---- order ----------------------------------------------------------------------------------------------------------

constexpr std::uint64_t kRounds = 60;
constexpr std::size_t kSpan = 24;  // words of the longer verbs

FARPOOL_CONTRACT(WriteBeforeRead) {
  auto lane = co_await open_lane(c);
  Words from(c.port, kSpan), into(c.port, kSpan);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    from.fill(round);
    EXPECT_TRUE(
        co_await post_pair(c, *lane, Op::write(at(0), from.span()), Op::read(at(0), into.span()), round % 2 == 0));
    EXPECT_TRUE(into.all(round)) << "round " << round;
  }
}

FARPOOL_CONTRACT(WriteBeforeWrite) {
  auto lane = co_await open_lane(c);
  Words first(c.port, kSpan), second(c.port, kSpan), into(c.port, kSpan);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    first.fill(2 * round);
    second.fill(2 * round + 1);
    EXPECT_TRUE(
        co_await post_pair(c, *lane, Op::write(at(0), first.span()), Op::write(at(0), second.span()), round % 2 == 0));
    EXPECT_EQ((co_await post(c, *lane, Op::read(at(0), into.span()))).fate, Fate::done);
    EXPECT_TRUE(into.all(2 * round + 1)) << "round " << round;
  }
}

FARPOOL_CONTRACT(WriteBeforeAtomic) {
  auto lane = co_await open_lane(c);
  Words from(c.port, kSpan);
  const std::uint64_t last = 8 * (kSpan - 1);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    const std::uint64_t value = round << 8;
    from.fill(value);
    std::uint64_t old = 0;
    const std::array atomics{Op::cas(at(last), old, value, value + 1), Op::fetch_add(at(last), old, 1),
                             Op::masked_cas(at(last), old, value, ~0ull, value + 1, 0xff)};
    const Op atomic = atomics[round % 3];
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::write(at(0), from.span()), atomic, round % 2 == 0));
    EXPECT_EQ(old, value) << "round " << round;
    EXPECT_EQ(c.host.word(TestHost::kSmall, last), value + 1);
  }
}

FARPOOL_CONTRACT(WriteBeforeCall) {
  auto lane = co_await open_lane(c);
  Words from(c.port, kSpan), request(c.port, 1), reply(c.port, 1);
  request.set(0, 8 * (kSpan - 1));
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    from.fill(round);
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::write(at(0), from.span()),
                                   Op::call(TestHost::kPeek, request.span(), reply.span()), false));
    EXPECT_EQ(reply.get(0), round);
  }
}

// The two trips of RCuckoo rest on this one: a lock is taken and the rows it covers are read in one chain.
FARPOOL_CONTRACT(AtomicBeforeRead) {
  auto lane = co_await open_lane(c);
  Words into(c.port, kSpan);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::uint64_t old = 0;
    const std::array atomics{Op::cas(at(64), old, round, round + 1), Op::fetch_add(at(64), old, 1),
                             Op::masked_cas(at(64), old, round, ~0ull, round + 1, ~0ull)};
    const Op atomic = atomics[round % 3];
    EXPECT_TRUE(co_await post_pair(c, *lane, atomic, Op::read(at(0), into.span()), round % 2 == 0));
    EXPECT_EQ(old, round);
    EXPECT_EQ(into.get(8), round + 1) << "round " << round;
  }
}

FARPOOL_CONTRACT(ReadBeforeFencedWrite) {
  auto lane = co_await open_lane(c);
  Words from(c.port, kSpan), into(c.port, kSpan);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    from.fill(round);
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::read(at(0), into.span()), Op::write(at(0), from.span()).fenced(),
                                   round % 2 == 0));
    EXPECT_TRUE(into.all(round - 1)) << "round " << round;
  }
}

FARPOOL_CONTRACT(ReadBeforeFencedAtomic) {
  auto lane = co_await open_lane(c);
  Words into(c.port, kSpan);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::uint64_t old = 0;
    const std::array atomics{Op::cas(at(64), old, round, round + 1), Op::fetch_add(at(64), old, 1),
                             Op::masked_cas(at(64), old, round, ~0ull, round + 1, ~0ull)};
    const Op atomic = atomics[round % 3].fenced();
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::read(at(0), into.span()), atomic, round % 2 == 0));
    EXPECT_EQ(into.get(8), round) << "round " << round;
  }
}

FARPOOL_CONTRACT(ReadBeforeFencedCall) {
  auto lane = co_await open_lane(c);
  Words into(c.port, kSpan), request(c.port, 1), reply(c.port, 1);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::read(at(0), into.span()),
                                   Op::call(TestHost::kBump, request.span(), reply.span()).fenced(), false));
    EXPECT_EQ(into.get(0), round);
    EXPECT_EQ(reply.get(0), round);
  }
}

FARPOOL_CONTRACT(AtomicBeforeFencedWrite) {
  auto lane = co_await open_lane(c);
  Words from(c.port, kSpan);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    from.fill(round << 8);
    std::uint64_t old = 0;
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::fetch_add(at(0), old, 1), Op::write(at(0), from.span()).fenced(),
                                   round % 2 == 0));
    EXPECT_EQ(old, (round - 1) << 8);
    EXPECT_EQ(c.host.word(TestHost::kSmall, 0), round << 8);
  }
}

FARPOOL_CONTRACT(AtomicBeforeFencedAtomic) {
  auto lane = co_await open_lane(c);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::uint64_t first = 0, second = 0;
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::cas(at(0), first, 2 * round, 2 * round + 1),
                                   Op::cas(at(0), second, 2 * round + 1, 2 * round + 2).fenced(), round % 2 == 0));
    EXPECT_EQ(first, 2 * round);
    EXPECT_EQ(second, 2 * round + 1);
  }
}

FARPOOL_CONTRACT(AtomicBeforeFencedCall) {
  auto lane = co_await open_lane(c);
  Words request(c.port, 1), reply(c.port, 1);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::uint64_t old = 0;
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::fetch_add(at(0), old, 1),
                                   Op::call(TestHost::kPeek, request.span(), reply.span()).fenced(), false));
    EXPECT_EQ(reply.get(0), round + 1);
  }
}

FARPOOL_CONTRACT(AnAwaitedChainIsBeforeWhateverIsPostedThen) {
  auto lane = co_await open_lane(c);
  auto other = co_await open_lane(c);
  Words from(c.port, kSpan), into(c.port, kSpan);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    from.fill(round);
    EXPECT_EQ((co_await post(c, *lane, Op::write(at(0), from.span()))).fate, Fate::done);
    EXPECT_EQ((co_await post(c, *other, Op::read(at(0), into.span()))).fate, Fate::done);
    EXPECT_TRUE(into.all(round)) << "even on another lane, round " << round;
  }
}

// ---- words and atomics ----------------------------------------------------------------------------------------------

inline task::Task<void> write_patterns(Client c, std::atomic<bool>& over) {
  auto lane = co_await open_lane(c, 1);
  Words from(c.port, kSpan);
  for (std::uint64_t round = 0; round < 200; ++round) {
    from.fill(round % 2 == 0 ? 0x5555555555555555 : 0xaaaaaaaaaaaaaaaa);
    EXPECT_EQ((co_await post(c, *lane, Op::write(at(0), from.span()))).fate, Fate::done);
  }
  over.store(true);
}
inline task::Task<void> read_patterns(Client c, std::atomic<bool>& over) {
  auto lane = co_await open_lane(c, 2);
  Words into(c.port, kSpan);
  while (!over.load()) {
    EXPECT_EQ((co_await post(c, *lane, Op::read(at(0), into.span()))).fate, Fate::done);
    for (std::size_t i = 0; i < kSpan; ++i) {
      const std::uint64_t word = into.get(i);
      EXPECT_TRUE(word == 0 || word == 0x5555555555555555 || word == 0xaaaaaaaaaaaaaaaa) << "a torn word: " << word;
    }
  }
}
TEST_P(Contract, AWordNeverTears) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  std::atomic<bool> over{false};
  std::vector<task::Task<void>> tasks;
  tasks.push_back(write_patterns(client(0), over));
  tasks.push_back(read_patterns(client(1), over));
  run(std::move(tasks));
}

inline task::Task<void> add_and_swap(Client c, std::uint64_t session_id, std::uint64_t times) {
  auto lane = co_await open_lane(c, session_id);
  std::uint64_t old = 0;
  for (std::uint64_t i = 0; i < times; ++i) {
    EXPECT_EQ((co_await post(c, *lane, Op::fetch_add(at(0), old, session_id))).fate, Fate::done);
    for (std::uint64_t expected = 0;; expected = old) {
      EXPECT_EQ((co_await post(c, *lane, Op::cas(at(8), old, expected, expected + 1))).fate, Fate::done);
      if (old == expected || !lane->open()) break;
    }
  }
}
TEST_P(Contract, ConcurrentAtomicsAddUpExactly) {
  constexpr std::uint64_t kClients = 4, kTimes = 40;
  ASSERT_NO_FATAL_FAILURE(start(kClients));
  std::vector<task::Task<void>> tasks;
  for (std::uint64_t i = 0; i < kClients; ++i) tasks.push_back(add_and_swap(client(i), i + 1, kTimes));
  run(std::move(tasks));
  EXPECT_EQ(host.word(TestHost::kSmall, 0), kTimes * (1 + 2 + 3 + 4));
  EXPECT_EQ(host.word(TestHost::kSmall, 8), kTimes * kClients);
}

// A lock bit taken with the READ of what it guards in one chain, and dropped behind the WRITE in another.
inline task::Task<void> count_under_lock(Client c, std::uint64_t session_id, std::uint64_t times, std::uint64_t bit) {
  auto lane = co_await open_lane(c, session_id);
  Words counter(c.port, kSpan);
  std::uint64_t old = 0;
  for (std::uint64_t i = 0; i < times && lane->open();) {
    const std::array take{Op::masked_cas(at(0), old, 0, bit, bit, bit), Op::read(at(64), counter.span())};
    EXPECT_EQ((co_await lane->post(take, c.soon())).fate, Fate::done);
    if ((old & bit) != 0) continue;
    for (std::size_t word = 0; word < kSpan; ++word)
      EXPECT_EQ(counter.get(word), counter.get(0)) << "read under the lock";
    counter.fill(counter.get(0) + 1);
    const std::array drop{Op::write(at(64), counter.span()), Op::masked_cas(at(0), old, bit, bit, 0, bit)};
    EXPECT_EQ((co_await lane->post(drop, c.soon())).fate, Fate::done);
    EXPECT_NE(old & bit, 0u);
    ++i;
  }
}
TEST_P(Contract, AMaskedCasBitIsALock) {
  constexpr std::uint64_t kClients = 3, kTimes = 30;
  ASSERT_NO_FATAL_FAILURE(start(kClients));
  host.set_word(TestHost::kSmall, 0, 0xf0);  // other bits of the word are others' locks
  std::vector<task::Task<void>> tasks;
  for (std::uint64_t i = 0; i < kClients; ++i) tasks.push_back(count_under_lock(client(i), i + 1, kTimes, 1ull << 63));
  run(std::move(tasks));
  for (std::size_t word = 0; word < kSpan; ++word)
    EXPECT_EQ(host.word(TestHost::kSmall, 64 + 8 * word), kClients * kTimes);
  EXPECT_EQ(host.word(TestHost::kSmall, 0), 0xf0u);
}

FARPOOL_CONTRACT(MaskedCasComparesAndSwapsUnderItsMasks) {
  auto lane = co_await open_lane(c);
  base::Random random(3);
  std::uint64_t word = random.next();
  c.host.set_word(TestHost::kSmall, 0, word);
  std::uint64_t swapped = 0;
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t compare_mask = random.next() & random.next() & random.next();
    const std::uint64_t swap_mask = random.next() & random.next(), swap = random.next();
    const std::uint64_t compare = random.chance(0.5) ? word ^ (random.next() & ~compare_mask) : random.next();
    const bool hit = (word & compare_mask) == (compare & compare_mask);
    std::uint64_t old = 0;
    const Outcome outcome = co_await post(c, *lane, Op::masked_cas(at(0), old, compare, compare_mask, swap, swap_mask));
    EXPECT_EQ(outcome.fate, Fate::done);
    if (c.wire.has_masked_cas()) EXPECT_EQ(outcome.extra_trips, 0);
    EXPECT_EQ(old, word);
    if (hit) word = (word & ~swap_mask) | (swap & swap_mask), ++swapped;
    EXPECT_EQ(c.host.word(TestHost::kSmall, 0), word);
  }
  EXPECT_GT(swapped, 50u);
  if (!c.wire.has_masked_cas()) std::printf("masked CAS is not native to this wire: extra trips were not checked\n");
}

FARPOOL_CONTRACT(AFailedCasDoesNotStopItsChain) {
  auto lane = co_await open_lane(c);
  Words from(c.port, 2), into(c.port, 2);
  from.fill(5);
  std::uint64_t failed = 0, masked = 0, added = 0;
  const std::array ops{Op::cas(at(0), failed, 77, 78), Op::masked_cas(at(8), masked, 1, 1, 3, 3),
                       Op::write(at(64), from.span()).fenced(), Op::fetch_add(at(128), added, 9),
                       Op::read(at(64), into.span())};
  EXPECT_EQ((co_await lane->post(ops, c.soon())).fate, Fate::done);
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(masked, 0u);
  EXPECT_EQ(c.host.word(TestHost::kSmall, 0), 0u);
  EXPECT_EQ(c.host.word(TestHost::kSmall, 8), 0u);
  EXPECT_EQ(c.host.word(TestHost::kSmall, 128), 9u);
  EXPECT_TRUE(into.all(5));
}

// ---- refusals -------------------------------------------------------------------------------------------------------

// Each verb is refused: the lane ends, the memory is as it was, and so it stays for what is posted behind it.
inline task::Task<void> expect_refused(Client c, LaneGrant grant, Op op, const char* why) {
  const std::vector<std::uint64_t> before = c.host.snapshot();
  auto opened = co_await c.port.open_lane(std::move(grant), c.soon());
  if (!opened) {  // a wire may look at the keys as early as here
    EXPECT_EQ(opened.code(), base::Code::forbidden) << why;
    co_return;
  }
  Lane& lane = **opened;
  Words poison(c.port, 1);
  poison.fill(0xbad);
  Ended refused, behind;
  {
    task::Scope scope;
    scope.spawn(post_into(lane, {op, Op::write(at(512), poison.span())}, c.soon(), refused));
    scope.spawn(post_into(lane, {Op::write(at(512), poison.span())}, c.soon(), behind));
    co_await scope.join();
  }
  Fate fate = Fate::refused;
  static int lost = 0;
  if (c.wire.loses_refusals() && refused.outcome.fate == Fate::maybe && ++lost <= 2) fate = Fate::maybe;
  EXPECT_EQ(refused.outcome.fate, fate) << why;
  EXPECT_NE(behind.outcome.fate, Fate::done) << why;
  EXPECT_FALSE(lane.open()) << why;
  EXPECT_EQ((co_await post(c, lane, Op::write(at(512), poison.span()))).fate, fate) << why;
  EXPECT_EQ(lane.pending(), 0u) << why;
  EXPECT_EQ(c.host.snapshot(), before) << why << ": memory was touched";
}

FARPOOL_CONTRACT(WhatIsOutsideTheRightsIsRefused) {
  Words words(c.port, 4);
  words.fill(0xbad);
  std::uint64_t old = 0;
  const std::string endpoint = c.wire.endpoint();
  const std::uint64_t end = TestHost::kSmallBytes;
  const std::vector<std::pair<const char*, Op>> cases{
      {"unknown region", Op::write({1234, 0}, words.span())},
      {"unknown region, read", Op::read({1234, 0}, words.span())},
      {"offset not a multiple of 8", Op::write(at(4), words.span())},
      {"offset not a multiple of 8, read", Op::read(at(12), words.span())},
      {"length not a multiple of 8", Op::write(at(0), words.span().first(12))},
      {"length not a multiple of 8, read", Op::read(at(0), words.span().first(4))},
      {"begins at the end", Op::write(at(end), words.span())},
      {"reaches beyond the end", Op::write(at(end - 24), words.span())},
      {"reaches beyond the end, read", Op::read(at(end - 24), words.span())},
      {"offset and length wrap around", Op::write(at(~0ull - 7), words.span())},
      {"offset and length wrap around, read", Op::read(at(~0ull - 23), words.span())},
      {"misaligned CAS", Op::cas(at(20), old, 0, 0xbad)},
      {"CAS beyond the end", Op::cas(at(end), old, 0, 0xbad)},
      {"misaligned masked CAS", Op::masked_cas(at(4), old, 0, 0, 0xbad, ~0ull)},
      {"masked CAS at the last offset there is", Op::masked_cas(at(~0ull - 7), old, 0, 0, 0xbad, ~0ull)},
      {"misaligned FAA", Op::fetch_add(at(1), old, 1)},
      {"FAA beyond the end", Op::fetch_add(at(end + 64), old, 1)},
  };
  for (const auto& [why, op] : cases) co_await expect_refused(c, c.host.grant(1, endpoint), op, why);

  LaneGrant grant = c.host.grant(1, endpoint);
  for (auto& region : grant.regions) region.key ^= 1;
  co_await expect_refused(c, std::move(grant), Op::write(at(0), words.span()), "wrong key");
  grant = c.host.grant(1, endpoint);
  grant.regions[0].key = c.host.grant(2, endpoint).regions[0].key;
  co_await expect_refused(c, std::move(grant), Op::write(at(0), words.span()), "another session's key");
  grant = c.host.grant(1, endpoint);
  grant.regions[0].bytes *= 2;
  co_await expect_refused(c, std::move(grant), Op::write(at(end), words.span()),
                          "a grant that claims more than there is");
}

FARPOOL_CONTRACT(AReadOnlyRegionCanBeReadAndNothingElse) {
  Words words(c.port, 4);
  std::uint64_t old = 0;
  const std::string endpoint = c.wire.endpoint();
  {
    auto lane = co_await open_lane(c);
    EXPECT_EQ((co_await post(c, *lane, Op::read({TestHost::kFixed, TestHost::kFixedBytes - 32}, words.span()))).fate,
              Fate::done);
    EXPECT_EQ(words.get(3), TestHost::kGuard);  // which is what the host filled it with
  }
  words.fill(0xbad);
  const std::vector<std::pair<const char*, Op>> cases{
      {"a WRITE", Op::write({TestHost::kFixed, 0}, words.span())},
      {"a WRITE of nothing", Op::write({TestHost::kFixed, 0}, words.span().first(0))},
      {"a CAS that fails", Op::cas({TestHost::kFixed, 8}, old, 1, 0xbad)},
      {"a masked CAS", Op::masked_cas({TestHost::kFixed, 16}, old, 0, 0, 0xbad, ~0ull)},
      {"a FAA", Op::fetch_add({TestHost::kFixed, 24}, old, 1)},
      {"a FAA of nothing", Op::fetch_add({TestHost::kFixed, 24}, old, 0)},
      {"a READ beyond its end", Op::read({TestHost::kFixed, TestHost::kFixedBytes - 24}, words.span())},
  };
  for (const auto& [why, op] : cases) co_await expect_refused(c, c.host.grant(1, endpoint), op, why);
  for (std::uint64_t offset = 0; offset < TestHost::kFixedBytes; offset += 8) {
    EXPECT_EQ(c.host.word(TestHost::kFixed, offset), TestHost::kGuard);
  }
}

FARPOOL_CONTRACT(WhatStoodBeforeARefusedVerbMayHaveHappenedAndNothingBehind) {
  for (int round = 0; round < 10; ++round) {
    auto lane = co_await open_lane(c);
    Words good(c.port, 2), bad(c.port, 2);
    good.fill(static_cast<std::uint64_t>(round) + 1);
    bad.fill(0xbad);
    const std::array ops{Op::write(at(0), good.span()), Op::write({77, 0}, bad.span()), Op::write(at(0), bad.span())};
    EXPECT_EQ((co_await lane->post(ops, c.soon())).fate, Fate::refused);
    for (std::uint64_t offset : {0u, 8u}) {
      EXPECT_NE(c.host.word(TestHost::kSmall, offset), 0xbadu);
      EXPECT_LE(c.host.word(TestHost::kSmall, offset), static_cast<std::uint64_t>(round) + 1);
    }
  }
}

// ---- CALL -----------------------------------------------------------------------------------------------------------

FARPOOL_CONTRACT(ACallIsAnsweredWithinItsBounds) {
  auto lane = co_await open_lane(c);
  Words request(c.port, kMaxCallBytes / 8), reply(c.port, kMaxCallBytes / 8);
  for (std::size_t bytes : std::vector<std::size_t>{0, 8, 64, 4096, kMaxCallBytes}) {
    for (std::size_t i = 0; i < bytes / 8; ++i) request.set(i, base::mix(i + bytes));
    reply.fill(0);
    const std::array ops{Op::call(TestHost::kEcho, request.span().first(bytes), reply.span())};
    const Outcome outcome = co_await lane->post(ops, c.soon());
    EXPECT_EQ(outcome.fate, Fate::done) << bytes;
    EXPECT_EQ(outcome.reply_bytes, bytes);
    for (std::size_t i = 0; i < bytes / 8; ++i) EXPECT_EQ(reply.get(i), request.get(i));
  }
  Words small(c.port, 4);
  small.set(3, 42);
  const std::array fill{Op::call(TestHost::kFill, {}, small.span().first(24))};
  const Outcome outcome = co_await lane->post(fill, c.soon());
  EXPECT_EQ(outcome.reply_bytes, 24u);
  EXPECT_EQ(small.get(2), 0x5a5a5a5a5a5a5a5aull);
  EXPECT_EQ(small.get(3), 42u) << "a reply went beyond its buffer";
}

inline task::Task<void> expect_call_refused(Client c, std::vector<Op> ops, const char* why) {
  auto lane = co_await open_lane(c);
  EXPECT_EQ((co_await lane->post(ops, c.soon())).fate, Fate::refused) << why;
  EXPECT_FALSE(lane->open()) << why;
}
FARPOOL_CONTRACT(ACallBeyondItsBoundsIsRefused) {
  Words words(c.port, kMaxCallBytes / 8 + 1), reply(c.port, 1);
  const Op echo = Op::call(TestHost::kEcho, reply.span(), reply.span());
  const std::uint64_t before = c.host.calls();
  co_await expect_call_refused(c, {Op::read(at(0), reply.span()), echo}, "behind another verb");
  co_await expect_call_refused(c, {echo, Op::read(at(0), reply.span())}, "before another verb");
  co_await expect_call_refused(c, {echo, echo}, "two calls");
  co_await expect_call_refused(c, {Op::call(TestHost::kEcho, words.span(), reply.span())}, "a request too long");
  co_await expect_call_refused(c, {Op::call(TestHost::kEcho, reply.span(), words.span())}, "a reply too long");
  EXPECT_EQ(c.host.calls(), before) << "the handler ran";
  co_await expect_call_refused(c, {Op::call(TestHost::kRefuse, reply.span(), reply.span())}, "the handler refuses");
}

// ---- fates ----------------------------------------------------------------------------------------------------------

FARPOOL_CONTRACT(SeverEndsAllThatIsPendingOnceAndLeavesBuffersAlone) {
  for (std::uint64_t offset = 0; offset < TestHost::kSmallBytes; offset += 8)
    c.host.set_word(TestHost::kSmall, offset, 0x1111);
  for (int round = 0; round < 20; ++round) {
    auto lane = co_await open_lane(c);
    Words words(c.port, 1024);
    std::uint64_t old = 0;
    std::vector<std::unique_ptr<CountedPosting>> postings;
    for (int i = 0; i < 6; ++i) {
      postings.push_back(std::make_unique<CountedPosting>(*lane, std::vector{Op::read(at(0), words.span())}, c.soon()));
      postings.push_back(std::make_unique<CountedPosting>(*lane, std::vector{Op::fetch_add(at(16), old, 0)}, c.soon()));
    }
    if (round % 2 == 1) co_await c.port.sleep_until(c.port.now());  // let the doorbell ring
    lane->sever();
    EXPECT_FALSE(lane->open());
    const int at_once = postings.back()->times;
    if (round % 2 == 0) EXPECT_EQ(at_once, 0) << "sever completed a posting inline";
    const Nanos limit = c.soon();
    while (lane->pending() > 0 && c.port.now() < limit) co_await c.port.sleep_for(base::kMicrosecond);
    EXPECT_EQ(lane->pending(), 0u);
    words.fill(0x2222);
    old = 0x2222;
    co_await expect_once(c, postings);
    EXPECT_TRUE(words.all(0x2222)) << "a READ landed after its posting had completed";
    EXPECT_EQ(old, 0x2222u) << "an atomic's answer landed after its posting had completed";
    for (const auto& posting : postings) {
      EXPECT_NE(posting->posting.outcome.fate, Fate::refused);
      if (round % 2 == 0) EXPECT_EQ(posting->posting.outcome.fate, Fate::maybe);
    }
    EXPECT_EQ((co_await post(c, *lane, Op::read(at(0), words.span()))).fate, Fate::maybe);
    EXPECT_TRUE(words.all(0x2222));
  }
}

FARPOOL_CONTRACT(ALanesEndIsItsOwn) {
  auto severed = co_await open_lane(c), whole = co_await open_lane(c);
  Words words(c.port, 8);
  severed->sever();
  severed->sever();
  severed.reset();
  EXPECT_TRUE(whole->open());
  EXPECT_EQ((co_await post(c, *whole, Op::write(at(0), words.span()))).fate, Fate::done);
}

FARPOOL_CONTRACT(APostingThatIsLateSeversItsLane) {
  auto lane = co_await open_lane(c);
  Words request(c.port, 1), reply(c.port, 1);
  c.wire.hold_calls(c.host);
  std::vector<std::unique_ptr<CountedPosting>> postings;
  const Nanos deadline = c.port.now() + 20 * base::kMillisecond;
  postings.push_back(std::make_unique<CountedPosting>(
      *lane, std::vector{Op::call(TestHost::kGated, request.span(), reply.span())}, deadline));
  postings.push_back(std::make_unique<CountedPosting>(
      *lane, std::vector{Op::call(TestHost::kGated, request.span(), reply.span())}, c.soon()));
  const Nanos limit = c.soon();
  while (lane->pending() > 0 && c.port.now() < limit) co_await c.port.sleep_for(base::kMillisecond);
  EXPECT_GE(c.port.now(), deadline);
  EXPECT_FALSE(lane->open());
  reply.fill(0x3333);
  c.wire.release_calls(c.host);
  co_await expect_once(c, postings);
  for (const auto& posting : postings) EXPECT_EQ(posting->posting.outcome.fate, Fate::maybe);
  EXPECT_TRUE(reply.all(0x3333)) << "a reply landed after its posting had completed";
}

FARPOOL_CONTRACT(APostingWhoseDeadlineHasPassedEndsMaybe) {
  auto lane = co_await open_lane(c);
  Words words(c.port, 1);
  std::vector<std::unique_ptr<CountedPosting>> postings;
  postings.push_back(
      std::make_unique<CountedPosting>(*lane, std::vector{Op::read(at(0), words.span())}, c.port.now() - 1));
  co_await expect_once(c, postings);
  EXPECT_EQ(postings[0]->posting.outcome.fate, Fate::maybe);
  EXPECT_FALSE(lane->open());
}

// ---- fence ----------------------------------------------------------------------------------------------------------

inline task::Task<void> await_fence(Client c, std::uint64_t session_id) {
  auto times = std::make_shared<std::atomic<int>>(0);  // shared: a `done` that comes late must find it
  Responder& responder = c.wire.responder();
  c.wire.on_control([&responder, session_id, times] { responder.fence(session_id, [times] { times->fetch_add(1); }); });
  const Nanos limit = c.soon();
  while (times->load() == 0 && c.port.now() < limit) co_await c.port.sleep_for(100 * base::kMicrosecond);
  EXPECT_EQ(times->load(), 1) << "fence called back a number of times that is not one";
}

inline task::Task<void> write_until_cut(Client c, Lane& lane, std::uint64_t place, Outcome& last) {
  Words words(c.port, kSpan);
  std::uint64_t old = 0;
  last.fate = Fate::done;
  for (std::uint64_t round = 1; last.fate == Fate::done; ++round) {
    words.fill(round);
    const std::array ops{Op::write(at(1024 * place), words.span()), Op::fetch_add(at(0), old, 1)};
    last = co_await lane.post(ops, c.soon());
  }
}
inline task::Task<void> write_until_fenced(Client c) {
  auto lane = co_await open_lane(c, 1), second = co_await open_lane(c, 1);
  std::array<Outcome, 4> last;
  {
    task::Scope scope;
    for (std::uint64_t i = 0; i < last.size(); ++i) {
      scope.spawn(write_until_cut(c, i % 2 == 0 ? *lane : *second, i + 1, last[i]));
    }
    co_await scope.join();
  }
  for (const Outcome& outcome : last) EXPECT_NE(outcome.fate, Fate::done);
  Words words(c.port, 1);
  for (Lane* each : {lane.get(), second.get()}) {
    EXPECT_NE((co_await post(c, *each, Op::write(at(8192), words.span()))).fate, Fate::done);
  }
}
inline task::Task<void> fence_the_writer(Client c) {
  auto lane = co_await open_lane(c, 2);
  const Nanos limit = c.soon();
  while (c.host.word(TestHost::kSmall, 0) < 40 && c.port.now() < limit)
    co_await c.port.sleep_for(100 * base::kMicrosecond);
  co_await await_fence(c, 1);
  const std::vector<std::uint64_t> before = c.host.snapshot();
  EXPECT_GE(before[0], 40u);
  Words words(c.port, kSpan);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ((co_await post(c, *lane, Op::write({TestHost::kLarge, 0}, words.span()))).fate, Fate::done);
  }
  EXPECT_EQ(c.host.snapshot(), before) << "a verb executed after the fence";
  co_await await_fence(c, 1);     // again, with nothing left
  co_await await_fence(c, 4711);  // nobody
  EXPECT_EQ((co_await post(c, *lane, Op::read(at(0), words.span()))).fate, Fate::done) << "a fence is for one session";
}
TEST_P(Contract, AfterAFenceNoVerbOfTheSessionExecutes) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  std::vector<task::Task<void>> tasks;
  tasks.push_back(write_until_fenced(client(0)));
  tasks.push_back(fence_the_writer(client(1)));
  run(std::move(tasks));
}

FARPOOL_CONTRACT(AnIdleLaneIsFencedToo) {
  auto lane = co_await open_lane(c);
  Words words(c.port, 1), request(c.port, 1);
  co_await await_fence(c, 1);
  words.fill(0xbad);
  const std::uint64_t calls = c.host.calls();
  EXPECT_NE((co_await post(c, *lane, Op::write(at(0), words.span()))).fate, Fate::done);
  EXPECT_NE((co_await post(c, *lane, Op::call(TestHost::kEcho, request.span(), request.span()))).fate, Fate::done);
  EXPECT_FALSE(lane->open());
  EXPECT_EQ(c.host.word(TestHost::kSmall, 0), 0u);
  EXPECT_EQ(c.host.calls(), calls);
}

// ---- CALLs for data: the family call_*, on wires that have them -----------------------------------------------------

// As FARPOOL_CONTRACT, where the wire has the capability. Where it has none, such a CALL is refused.
inline task::Task<void> expect_no_service_calls(Client c) {
  auto lane = co_await open_lane(c);
  const Outcome outcome = co_await post(c, *lane, Op::call(TestService::kEcho, {}, {}));
  EXPECT_EQ(outcome.fate, Fate::refused);
  EXPECT_EQ(outcome.why, Refusal::no_service);
  EXPECT_FALSE(lane->open());
  EXPECT_EQ(c.host.service().served(), 0u);
  std::printf("this wire has no CALLs for data: that they are refused was checked, and nothing else\n");
}
#define FARPOOL_CALL_CONTRACT(name)                                             \
  inline task::Task<void> contract_##name(Client c);                            \
  TEST_P(Contract, name) {                                                      \
    ASSERT_NO_FATAL_FAILURE(start(1));                                          \
    const bool has = client(0).port.caps().calls_in_flight > 0;                 \
    run(has ? contract_##name(client(0)) : expect_no_service_calls(client(0))); \
  }                                                                             \
  inline task::Task<void> contract_##name([[maybe_unused]] Client c)

inline task::Task<void> echo_into(Client c, Lane& lane, std::uint64_t number, std::size_t words, int& right) {
  Words request(c.port, words + 1), reply(c.port, words + 1);
  for (std::size_t i = 0; i < words; ++i) request.set(i, base::mix(number + i));
  const Outcome outcome = co_await post(
      c, lane, Op::call(TestService::kEcho, request.span().first(8 * words), reply.span().first(8 * words)));
  bool same = outcome.fate == Fate::done && outcome.reply_bytes == 8 * words;
  for (std::size_t i = 0; i < words; ++i) same = same && reply.get(i) == request.get(i);
  if (same) ++right;
}
FARPOOL_CALL_CONTRACT(CallsOfALaneAreManyAtOnce) {
  auto lane = co_await open_lane(c);
  const std::uint64_t count = 3ull * c.port.caps().calls_in_flight + 1;  // more than may be in flight
  int right = 0;
  {
    task::Scope scope;
    for (std::uint64_t i = 0; i < count; ++i) scope.spawn(echo_into(c, *lane, i, 1 + i % 8, right));
    co_await scope.join();
  }
  EXPECT_EQ(right, static_cast<int>(count));
  EXPECT_EQ(c.host.service().served(), count);
  EXPECT_EQ(c.host.calls(), 0u) << "the host heard of them";
  EXPECT_TRUE(lane->open());
}

FARPOOL_CALL_CONTRACT(CallsAreAsLongAsTheCapabilitiesSay) {
  auto lane = co_await open_lane(c);
  const std::uint64_t most = c.port.caps().call_bytes;
  for (const std::uint64_t bytes : std::vector<std::uint64_t>{0, 8, 64, most / 16 * 8, most / 8 * 8}) {
    int right = 0;
    co_await echo_into(c, *lane, bytes, bytes / 8, right);
    EXPECT_EQ(right, 1) << bytes << " bytes";
  }
  // Any number of bytes, which is not the verbs' rule.
  Words request(c.port, 2), reply(c.port, 2);
  request.fill(0x3132333435363738);
  reply.fill(7);
  const Outcome odd =
      co_await post(c, *lane, Op::call(TestService::kEcho, request.span().first(11), reply.span().first(13)));
  EXPECT_EQ(odd.reply_bytes, 11u);
  EXPECT_TRUE(std::equal(request.span().begin(), request.span().begin() + 11, reply.span().begin()));
  EXPECT_EQ(reply.span()[13], std::byte{0}) << "a reply went beyond its buffer";
}

inline task::Task<void> wait_for_held(Client c, std::size_t count) {
  const Nanos limit = c.soon();
  while (c.host.service().held() < count && c.port.now() < limit) co_await c.port.sleep_for(100 * base::kMicrosecond);
  EXPECT_EQ(c.host.service().held(), count);
}

FARPOOL_CALL_CONTRACT(CallsThatAreHeldAreOvertaken) {
  auto lane = co_await open_lane(c);
  constexpr std::size_t kHeld = 3;
  Words requests(c.port, kHeld), replies(c.port, kHeld), words(c.port, 4);
  std::vector<std::unique_ptr<CountedPosting>> held;
  for (std::size_t i = 0; i < kHeld; ++i) {
    requests.set(i, 100 + i);
    held.push_back(std::make_unique<CountedPosting>(
        *lane,
        std::vector{Op::call(TestService::kHold, requests.span().subspan(8 * i, 8), replies.span().subspan(8 * i, 8))},
        c.soon()));
  }
  co_await wait_for_held(c, kHeld);
  int right = 0;
  for (std::uint64_t i = 0; i < 5; ++i) co_await echo_into(c, *lane, i, 4, right);
  EXPECT_EQ(right, 5) << "what came behind CALLs that are held";
  EXPECT_EQ((co_await post(c, *lane, Op::write(at(0), words.span()))).fate, Fate::done);
  EXPECT_EQ((co_await post(c, *lane, Op::call(TestHost::kEcho, words.span(), words.span()))).fate, Fate::done);
  EXPECT_TRUE(replies.all(0));
  for (const auto& each : held) EXPECT_EQ(each->times, 0);
  c.host.service().answer_held();
  co_await expect_once(c, held);
  for (std::size_t i = 0; i < kHeld; ++i) {
    EXPECT_EQ(held[i]->posting.outcome.fate, Fate::done);
    EXPECT_EQ(held[i]->posting.outcome.reply_bytes, 8u);
    EXPECT_EQ(replies.get(i), 100 + i);
  }
  EXPECT_TRUE(lane->open());
}

FARPOOL_CALL_CONTRACT(CallsBeyondTheBoundWaitAtTheClient) {
  auto lane = co_await open_lane(c);
  const std::size_t most = c.port.caps().calls_in_flight;
  Words word(c.port, 1);
  std::vector<std::unique_ptr<CountedPosting>> postings;
  for (std::size_t i = 0; i < most + 2; ++i) {
    postings.push_back(std::make_unique<CountedPosting>(
        *lane, std::vector{Op::call(TestService::kHold, word.span(), word.span())}, c.soon()));
  }
  // One that would be answered at once, and a WRITE.
  Words reply(c.port, 1), one(c.port, 1);
  one.fill(1);
  postings.push_back(std::make_unique<CountedPosting>(
      *lane, std::vector{Op::call(TestService::kEcho, one.span(), reply.span())}, c.soon()));
  postings.push_back(std::make_unique<CountedPosting>(*lane, std::vector{Op::write(at(0), one.span())}, c.soon()));
  co_await wait_for_held(c, most);
  co_await c.port.sleep_for(2 * base::kMillisecond);
  EXPECT_EQ(c.host.service().held(), most) << "more than the lane may have in flight";
  EXPECT_EQ(c.host.word(TestHost::kSmall, 0), 0u);
  c.host.service().answer_held();
  co_await wait_for_held(c, 2);
  c.host.service().answer_held();
  co_await expect_once(c, postings);
  for (const auto& each : postings) EXPECT_EQ(each->posting.outcome.fate, Fate::done);
  EXPECT_TRUE(reply.all(1));
  EXPECT_EQ(c.host.word(TestHost::kSmall, 0), 1u);
}

FARPOOL_CALL_CONTRACT(CallWithoutAnAnswerEndsMaybe) {
  auto lane = co_await open_lane(c), other = co_await open_lane(c);
  Words word(c.port, 1);
  EXPECT_EQ((co_await post(c, *lane, Op::call(TestService::kDrop, word.span(), word.span()))).fate, Fate::maybe);
  EXPECT_FALSE(lane->open());
  // One whose lane is severed, or late: its answer reaches nobody.
  word.fill(5);
  std::vector<std::unique_ptr<CountedPosting>> held;
  held.push_back(std::make_unique<CountedPosting>(*other,
                                                  std::vector{Op::call(TestService::kHold, word.span(), word.span())},
                                                  c.port.now() + 20 * base::kMillisecond));
  const Nanos limit = c.soon();
  while (other->pending() > 0 && c.port.now() < limit) co_await c.port.sleep_for(base::kMillisecond);
  EXPECT_FALSE(other->open());
  word.fill(6);
  c.host.service().answer_held();
  co_await expect_once(c, held);
  EXPECT_EQ(held[0]->posting.outcome.fate, Fate::maybe);
  EXPECT_TRUE(word.all(6)) << "an answer landed after its posting had completed";
}

FARPOOL_CALL_CONTRACT(CallsAreOrderedBehindOtherVerbs) {
  auto lane = co_await open_lane(c);
  Words from(c.port, kSpan), into(c.port, kSpan), request(c.port, 1), reply(c.port, 1);
  const Op peek = Op::call(TestService::kPeek, request.span(), reply.span());
  const Op bump = Op::call(TestService::kBump, request.span(), reply.span());
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    from.fill(round << 8);
    request.set(0, 8 * (kSpan - 1));
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::write(at(0), from.span()), peek, false));
    EXPECT_EQ(reply.get(0), round << 8) << "WRITE, CALL";
    request.set(0, 0);
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::read(at(0), into.span()), bump.fenced(), false));
    EXPECT_EQ(into.get(0), round << 8) << "READ, fenced CALL";
    EXPECT_EQ(reply.get(0), round << 8);
    std::uint64_t old = 0;
    EXPECT_TRUE(co_await post_pair(c, *lane, Op::fetch_add(at(0), old, 1), peek.fenced(), false));
    EXPECT_EQ(old, (round << 8) + 1);
    EXPECT_EQ(reply.get(0), (round << 8) + 2) << "atomic, fenced CALL";
  }
}

// Each is refused with its reason, ends its lane and executes nothing.
inline task::Task<void> expect_call_refused(Client c, std::vector<Op> ops, Refusal why, std::uint64_t session = 1) {
  const std::vector<std::uint64_t> before = c.host.snapshot();
  auto lane = co_await open_lane(c, session);
  const Outcome outcome = co_await lane->post(ops, c.soon());
  EXPECT_FALSE(lane->open()) << text_of(why);
  if (c.wire.loses_refusals() && outcome.fate == Fate::maybe) co_return;
  EXPECT_EQ(outcome.fate, Fate::refused) << text_of(why);
  EXPECT_EQ(outcome.why, why) << "for the reason that " << text_of(outcome.why) << ", not that " << text_of(why);
  EXPECT_EQ(c.host.snapshot(), before) << text_of(why);
}
FARPOOL_CALL_CONTRACT(CallsThatMayNotBeAreRefusedWithAReason) {
  const std::uint64_t most = c.port.caps().call_bytes;
  Words words(c.port, most / 8 + 1), reply(c.port, 1);
  const Op bump = Op::call(TestService::kBump, reply.span(), reply.span());
  co_await expect_call_refused(c, {Op::read(at(0), reply.span()), bump}, Refusal::none);
  co_await expect_call_refused(c, {bump, Op::read(at(0), reply.span())}, Refusal::none);
  co_await expect_call_refused(c, {bump, bump}, Refusal::none);
  co_await expect_call_refused(c, {Op::call(TestService::kBump, words.span(), reply.span())}, Refusal::too_long);
  co_await expect_call_refused(c, {Op::call(TestService::kBump, reply.span(), words.span())}, Refusal::too_long);
  co_await expect_call_refused(c, {bump}, Refusal::no_service, TestHost::kNoService);
  EXPECT_EQ(c.host.service().served(), 0u) << "the service ran";
  for (const std::uint32_t opcode : {std::uint32_t{TestService::kUnknown}, ~0u}) {
    co_await expect_call_refused(c, {Op::call(opcode, reply.span(), reply.span())}, Refusal::unknown_opcode);
  }
  // Not ranges of the service's memory, and not what it can read.
  reply.set(0, TestHost::kSmallBytes);
  co_await expect_call_refused(c, {bump}, Refusal::malformed);
  reply.set(0, 4);
  co_await expect_call_refused(c, {bump}, Refusal::malformed);
  co_await expect_call_refused(c, {Op::call(TestService::kBump, {}, reply.span())}, Refusal::malformed);
  co_await expect_call_refused(c, {Op::call(TestService::kEcho, words.span().first(64), reply.span())},
                               Refusal::malformed);
}

// What was in flight beside a CALL that is refused has executed, or not; nobody is told that it has not.
FARPOOL_CALL_CONTRACT(CallsBesideARefusedOneEndMaybe) {
  auto lane = co_await open_lane(c);
  Words word(c.port, 1), reply(c.port, 1);
  std::vector<std::unique_ptr<CountedPosting>> postings;
  for (int i = 0; i < 2; ++i) {
    postings.push_back(std::make_unique<CountedPosting>(
        *lane, std::vector{Op::call(TestService::kHold, word.span(), word.span())}, c.soon()));
  }
  co_await wait_for_held(c, 2);
  const Outcome refused = co_await post(c, *lane, Op::call(TestService::kUnknown, reply.span(), reply.span()));
  if (!c.wire.loses_refusals()) EXPECT_EQ(refused.fate, Fate::refused);
  co_await expect_once(c, postings);
  for (const auto& each : postings) EXPECT_EQ(each->posting.outcome.fate, Fate::maybe);
  c.host.service().answer_held();
}

inline task::Task<void> bump_until_cut(Client c, Lane& lane, std::uint64_t place, Outcome& last) {
  Words request(c.port, 1), reply(c.port, 1);
  request.set(0, 8 * place);
  do {
    last = co_await post(c, lane, Op::call(TestService::kBump, request.span(), reply.span()));
  } while (last.fate == Fate::done);
}
inline task::Task<void> bump_until_fenced(Client c) {
  auto lane = co_await open_lane(c, 1), second = co_await open_lane(c, 1);
  std::array<Outcome, 8> last;
  {
    task::Scope scope;
    for (std::uint64_t i = 0; i < last.size(); ++i) {
      scope.spawn(bump_until_cut(c, i % 2 == 0 ? *lane : *second, i, last[i]));
    }
    co_await scope.join();
  }
  for (const Outcome& outcome : last) EXPECT_EQ(outcome.fate, Fate::maybe);
}
inline task::Task<void> fence_the_caller(Client c) {
  auto lane = co_await open_lane(c, 2);
  const Nanos limit = c.soon();
  while (c.host.word(TestHost::kSmall, 0) < 40 && c.port.now() < limit)
    co_await c.port.sleep_for(100 * base::kMicrosecond);
  co_await await_fence(c, 1);
  const std::vector<std::uint64_t> before = c.host.snapshot();
  const std::uint64_t served = c.host.service().served();
  int right = 0;
  for (std::uint64_t i = 0; i < 200; ++i) co_await echo_into(c, *lane, i, 1, right);
  EXPECT_EQ(right, 200) << "a fence is for one session";
  EXPECT_EQ(c.host.snapshot(), before) << "a CALL executed after the fence";
  EXPECT_EQ(c.host.service().served(), served + 200);
}
TEST_P(Contract, CallsEndWithAFence) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  if (client(0).port.caps().calls_in_flight == 0) return run(expect_no_service_calls(client(0)));
  std::vector<task::Task<void>> tasks;
  tasks.push_back(bump_until_fenced(client(0)));
  tasks.push_back(fence_the_caller(client(1)));
  run(std::move(tasks));
}

FARPOOL_CALL_CONTRACT(CallsThatAreHeldKeepAFenceWaiting) {
  auto lane = co_await open_lane(c, 1), other = co_await open_lane(c, 2);
  Words word(c.port, 1), reply(c.port, 1);
  std::vector<std::unique_ptr<CountedPosting>> held;
  const Op hold = Op::call(TestService::kHold, word.span(), word.span());
  held.push_back(std::make_unique<CountedPosting>(*lane, std::vector{hold}, c.soon()));
  co_await wait_for_held(c, 1);
  c.host.service().be_slow();
  auto fences = std::make_shared<std::atomic<int>>(0);
  Responder& responder = c.wire.responder();
  c.wire.on_control([&responder, fences] { responder.fence(1, [fences] { fences->fetch_add(1); }); });
  const Nanos limit = c.soon();
  while (c.host.service().released() == 0 && c.port.now() < limit) co_await c.port.sleep_for(100 * base::kMicrosecond);
  EXPECT_GE(c.host.service().released(), 1) << "the service was not told of the fence";
  // The lane has ended by now, and the fence is not over: other sessions go on meanwhile.
  co_await expect_once(c, held);
  EXPECT_EQ(held[0]->posting.outcome.fate, Fate::maybe);
  EXPECT_EQ((co_await post(c, *lane, Op::call(TestService::kBump, word.span(), reply.span()))).fate, Fate::maybe);
  int right = 0;
  for (std::uint64_t i = 0; i < 50; ++i) co_await echo_into(c, *other, i, 1, right);
  EXPECT_EQ(right, 50);
  EXPECT_EQ(fences->load(), 0) << "the fence did not wait for a CALL that is held";
  word.fill(9);
  c.host.service().answer_held();
  while (fences->load() == 0 && c.port.now() < limit) co_await c.port.sleep_for(100 * base::kMicrosecond);
  EXPECT_EQ(fences->load(), 1);
  EXPECT_TRUE(word.all(9));
  EXPECT_EQ(c.host.word(TestHost::kSmall, 0), 0u);
}

inline task::Task<void> bump_one_by_one(Client c, Lane& lane, Op bump, std::uint64_t times) {
  for (std::uint64_t i = 0; i < times; ++i) {
    const Outcome outcome = co_await post(c, lane, bump);
    EXPECT_EQ(outcome.fate, Fate::done);
    EXPECT_EQ(outcome.reply_bytes, 8u);
  }
}
inline task::Task<void> bump_times(Client c, std::uint64_t session, std::uint64_t times) {
  auto lane = co_await open_lane(c, session);
  Words request(c.port, 1), replies(c.port, 4);
  task::Scope scope;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Op bump = Op::call(TestService::kBump, request.span(), replies.span().subspan(8 * i, 8));
    scope.spawn(bump_one_by_one(c, *lane, bump, times));
  }
  co_await scope.join();
}
TEST_P(Contract, CallsOfManyClientsExecuteOnceEach) {
  constexpr std::uint64_t kClients = 4, kTimes = 50;
  ASSERT_NO_FATAL_FAILURE(start(kClients));
  if (client(0).port.caps().calls_in_flight == 0) return run(expect_no_service_calls(client(0)));
  std::vector<task::Task<void>> tasks;
  for (std::uint64_t i = 0; i < kClients; ++i) tasks.push_back(bump_times(client(i), i + 1, kTimes));
  run(std::move(tasks));
  EXPECT_EQ(host.word(TestHost::kSmall, 0), kClients * 4 * kTimes);
  EXPECT_EQ(host.service().served(), kClients * 4 * kTimes);
}

// ---- the session port, time -----------------------------------------------------------------------------------------

FARPOOL_CONTRACT(ATokenIsGoodForOneLane) {
  const LaneGrant grant = c.host.grant(1, c.wire.endpoint());
  auto first = co_await c.port.open_lane(grant, c.soon());
  EXPECT_TRUE(first.ok());
  auto second = co_await c.port.open_lane(grant, c.soon());
  EXPECT_EQ(second.code(), base::Code::forbidden);
  LaneGrant invented = c.host.grant(1, c.wire.endpoint());
  invented.token[3] ^= std::byte{1};
  auto third = co_await c.port.open_lane(invented, c.soon());
  EXPECT_EQ(third.code(), base::Code::forbidden);
  Words words(c.port, 1);
  EXPECT_EQ((co_await post(c, **first, Op::read(at(0), words.span()))).fate, Fate::done);
}

FARPOOL_CONTRACT(AnExchangeIsAnsweredOrFailsBeforeItsDeadline) {
  for (std::size_t bytes : {0u, 1u, 1000u, 30000u}) {
    const std::string request(bytes, 'x');
    auto reply = co_await c.port.exchange(c.wire.endpoint(), request, c.soon());
    EXPECT_TRUE(reply.ok()) << reply.status().message();
    if (reply) EXPECT_EQ(*reply, "echo:" + request);
  }
  auto dead = co_await c.port.exchange(c.wire.dead_endpoint(), "anyone?", c.port.now() + 2 * base::kSecond);
  EXPECT_TRUE(dead.code() == base::Code::unavailable || dead.code() == base::Code::timed_out);
  EXPECT_FALSE(dead.status().message().empty());
  LaneGrant nobodys = c.host.grant(1, c.wire.dead_endpoint());
  nobodys.node_incarnation = 2;
  auto lane = co_await c.port.open_lane(std::move(nobodys), c.port.now() + 2 * base::kSecond);
  EXPECT_TRUE(lane.code() == base::Code::unavailable || lane.code() == base::Code::timed_out);
  auto late = co_await c.port.exchange(c.wire.endpoint(), "too late", c.port.now() - 1);
  EXPECT_EQ(late.code(), base::Code::timed_out);
}

inline task::Task<void> sleep_and_log(Port& port, Nanos until, char name, std::string& log) {
  co_await port.sleep_until(until);
  EXPECT_GE(port.now(), until);
  log.push_back(name);
}
FARPOOL_CONTRACT(SleepsEndInOrderAndNeverInline) {
  std::string log;
  const Nanos now = c.port.now();
  task::Scope scope;
  scope.spawn(sleep_and_log(c.port, now + 3 * base::kMillisecond, 'c', log));
  scope.spawn(sleep_and_log(c.port, now - 1, 'a', log));
  scope.spawn(sleep_and_log(c.port, now + 2 * base::kMillisecond, 'b', log));
  EXPECT_EQ(log, "");
  co_await scope.join();
  EXPECT_EQ(log, "abc");
  EXPECT_GE(c.port.now(), now + 3 * base::kMillisecond);
}

FARPOOL_CONTRACT(TheControlThreadHasATimer) {
  auto ran = std::make_shared<std::atomic<int>>(0);
  auto early = std::make_shared<std::atomic<bool>>(false);
  Responder& responder = c.wire.responder();
  c.wire.on_control([&responder, ran, early] {
    const Nanos due = responder.now() + 2 * base::kMillisecond;
    responder.after(2 * base::kMillisecond, [&responder, ran, early, due] {
      early->store(responder.now() < due);
      ran->fetch_add(1);
    });
    EXPECT_EQ(ran->load(), 0) << "ran within the call";
  });
  const Nanos limit = c.soon();
  while (ran->load() == 0 && c.port.now() < limit) co_await c.port.sleep_for(base::kMillisecond);
  EXPECT_EQ(ran->load(), 1);
  EXPECT_FALSE(early->load());
}

// ---- counting -------------------------------------------------------------------------------------------------------

FARPOOL_CONTRACT(ChainsOfOneTurnRingOnce) {
  auto lane = co_await open_lane(c);
  Words words(c.port, 4), reply(c.port, 1);
  std::uint64_t old = 0;
  const LaneStats before = lane->stats();
  const std::vector<std::vector<Op>> chains{
      {Op::write(at(0), words.span()), Op::masked_cas(at(64), old, 0, 1, 1, 1)},
      {Op::read(at(0), words.span())},
      {Op::call(TestHost::kEcho, reply.span(), reply.span())},
  };
  std::array<Ended, 3> ended;
  std::uint64_t bytes = 0, messages = 0;
  {
    task::Scope scope;
    for (std::size_t i = 0; i < chains.size(); ++i) {
      scope.spawn(post_into(*lane, chains[i], c.soon(), ended[i]));
      for (const Op& op : chains[i]) bytes += wire_bytes(op), ++messages;
    }
    co_await scope.join();
  }
  for (const Ended& each : ended) {
    EXPECT_EQ(each.times, 1);
    EXPECT_EQ(each.outcome.fate, Fate::done);
  }
  EXPECT_EQ(lane->stats().chains - before.chains, 3u);
  EXPECT_EQ(lane->stats().messages - before.messages, messages);
  EXPECT_EQ(lane->stats().bytes - before.bytes, bytes);
  EXPECT_EQ(lane->stats().doorbells - before.doorbells, 1u);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Contract);

}  // namespace farpool::fabric::contract
