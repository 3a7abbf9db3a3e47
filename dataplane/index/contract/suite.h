// SPDX-License-Identifier: Apache-2.0
// What index/table.h promises of every table, as tests that every protocol passes on every wire. A file of tests
// includes this header once, and says over which wires:
//
//   INSTANTIATE_TEST_SUITE_P(Sim, Results, on({{"Sim", 12, true, make_sim_bed}}), name_of_setting);
//
// Families: results of operations, bad input, agreement with a map, tables that are full, concurrency, scans; in
// growth.h tables that are split; in moves.h keys that leave for another memory node; in failures.h what operations cost, and clients that die. What only
// one protocol has (what its bytes mean, and what becomes of them) is tested in its room.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "heap/heap.h"
#include "index/contract/bed.h"
#include "index/named_edit.h"
#include "layout/lease.h"
#include "layout/regions.h"
#include "node/audit.h"
#include "protocols/protocols.h"
#include "sim/history.h"

namespace farpool::index::contract {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using sim::Call;
using task::Task;

// Longer than any test may take on a slow machine.
inline constexpr Nanos kPatience = 60 * base::kSecond;

inline std::string text(const Status& status) {
  return std::string(base::name_of(status.code())) + ": " + status.message();
}

// All protocols on each wire.
inline auto on(const std::vector<Ground>& grounds) {
  std::vector<Setting> settings;
  for (const Ground& ground : grounds) {
    for (const Sample& sample : samples()) settings.push_back({sample, ground});
  }
  return ::testing::ValuesIn(settings);
}
// Those of them whose tables can be full before their memory is.
inline auto filling_on(const std::vector<Ground>& grounds) {
  std::vector<Setting> settings;
  for (const Ground& ground : grounds) {
    for (const Sample& sample : samples()) {
      if (!sample.full_says.empty()) settings.push_back({sample, ground});
    }
  }
  return ::testing::ValuesIn(settings);
}
inline std::string name_of_setting(const ::testing::TestParamInfo<Setting>& of) {
  return of.param.sample.name + of.param.ground.name;
}

class Suite : public ::testing::TestWithParam<Setting> {
 protected:
  std::unique_ptr<Bed> make(const layout::GeometryRequest& table, std::uint64_t seed = 1) const {
    auto bed = ground.make(table, seed);
    bed->owned = sample.owned;
    return bed;
  }
  // Says whether a client can write such a key with such a value on this wire.
  bool fits(Member& member, std::size_t key_bytes, std::size_t value_bytes) const {
    const std::uint64_t most = member.port().caps().call_bytes;
    return sample.call_head == 0 || sample.call_head + key_bytes + value_bytes <= most;
  }
  const Sample& sample = GetParam().sample;
  const Ground& ground = GetParam().ground;
};

// ---- helpers --------------------------------------------------------------------------------------------------------

class Appender final : public Editor {
 public:
  explicit Appender(std::string more) : more_(std::move(more)) {}
  Edit edit(std::optional<std::string_view> value) override {
    return Edit::put(std::string(value.value_or("")) + more_);
  }

 private:
  std::string more_;
};

class AddOne final : public Editor {
 public:
  Edit edit(std::optional<std::string_view> value) override {
    sum = std::to_string(std::stoull(std::string(value.value_or("0"))) + 1);
    return Edit::put(sum);
  }
  std::string sum;
};

class Always final : public Editor {
 public:
  explicit Always(Edit edit, bool wants = true) : edit_(std::move(edit)), wants_(wants) {}
  Edit edit(std::optional<std::string_view> value) override {
    seen = value ? std::optional<std::string>(*value) : std::nullopt;
    return edit_;
  }
  bool wants_value() const override { return wants_; }
  std::optional<std::string> seen;

 private:
  Edit edit_;
  bool wants_;
};

// The operations of one client, awaited. `cost` is that of the latest.
struct User {
  explicit User(Bed& bed) : User(bed, bed.connect()) {}
  User(Bed& bed, Member& member) : bed(bed), member(member) {}

  template <class T, class Begin>
  static Task<void> keep(User& user, Begin begin, std::optional<Result<T>>& into) {
    user.cost = {};
    into.emplace(co_await begin(user.member.table(), user.member.port().now() + user.patience, user.cost));
  }
  template <class T, class Begin>
  Result<T> await(Begin begin) {
    std::optional<Result<T>> result;
    bed.run(member, keep<T>(*this, begin, result));
    if (!result) return Status(Code::internal, "the client died");
    return *std::move(result);
  }

  using Value = std::optional<std::string>;
  Result<Value> lookup(std::string_view key) {
    return await<Value>([key](Table& t, Nanos by, Cost& cost) { return t.lookup(key, by, cost); });
  }
  Result<bool> insert(std::string_view key, std::string_view value) {
    return await<bool>([=](Table& t, Nanos by, Cost& cost) { return t.insert(key, value, by, cost); });
  }
  Result<bool> update(std::string_view key, std::string_view value) {
    return await<bool>([=](Table& t, Nanos by, Cost& cost) { return t.update(key, value, by, cost); });
  }
  Result<bool> put(std::string_view key, std::string_view value) {
    return await<bool>([=](Table& t, Nanos by, Cost& cost) { return t.put(key, value, by, cost); });
  }
  Result<bool> remove(std::string_view key) {
    return await<bool>([key](Table& t, Nanos by, Cost& cost) { return t.remove(key, by, cost); });
  }
  Result<bool> modify(std::string_view key, Editor& editor) {
    return await<bool>([key, &editor](Table& t, Nanos by, Cost& cost) { return t.modify(key, editor, by, cost); });
  }
  Result<Page> scan(std::uint64_t position, std::uint64_t count) {
    return await<Page>([=](Table& t, Nanos by, Cost& cost) { return t.scan(position, count, by, cost); });
  }
  // Counters may follow the change that they count, in another client's lane.
  Result<Totals> count() {
    bed.quiesce();
    return await<Totals>([](Table& t, Nanos by, Cost& cost) { return t.count(by, cost); });
  }
  Table& table() { return member.table(); }

  Bed& bed;
  Member& member;
  Cost cost{};
  Nanos patience = kPatience;
};

using Image = std::map<std::string, std::string>;

inline Task<void> stop_splitting(Member& member, Status& into) {
  into = co_await member.table().idle(member.port().now() + kPatience);
}
inline Task<void> split_and_wait(Member& member, std::string_view key, Status& into) {
  Cost cost;
  into = co_await member.table().split(key, member.port().now() + kPatience, cost);
  (void)co_await member.table().idle(member.port().now() + kPatience);
}
// Blocks that the client has and has not used.
inline Task<void> look_at_heap(Member& member, std::uint64_t& blocks) {
  if (const heap::Heap* heap = member.table().heap(); heap != nullptr) {
    const heap::Heap::Usage usage = heap->usage();
    EXPECT_EQ(usage.anomalies, 0u);
    blocks += usage.blocks_free + usage.blocks_limbo;
  }
  co_return;
}

// Counts the leases that a living owner of the table holds.
inline std::uint64_t leases_of_owners(const Bed& bed, const node::Audit& audit) {
  using Session = layout::LeaseWord::Session;
  const auto lives = [&bed](std::uint64_t word) {
    return std::any_of(bed.members().begin(), bed.members().end(), [word](Member* member) {
      return member->lives() && member->session().alive() &&
             Session::get(word) == Session::get(member->session().grant().session_id);
    });
  };
  if (!bed.owned) return 0;
  return static_cast<std::uint64_t>(std::count_if(audit.leases.begin(), audit.leases.end(), lives));
}

// Every byte of the memory is accounted for, nothing is half done, and the counters are right. Nobody does anything.
inline void expect_sound(Bed& bed, Image* image = nullptr) {
  Member* asks = nullptr;
  for (Member* member : bed.members()) {
    if (!member->lives()) continue;
    Status idle;
    bed.run(*member, stop_splitting(*member, idle));
    EXPECT_TRUE(idle.ok()) << text(idle);
    if (asks == nullptr && member->session().alive()) asks = member;
  }
  ASSERT_NE(asks, nullptr) << "no client is left to ask";
  bed.quiesce();
  User user(bed, *asks);
  const auto totals = user.count();
  ASSERT_TRUE(totals.ok()) << text(totals.status());
  const auto& grant = asks->session().grant();
  const node::Audit audit = node::audit_regions(bed.geometry(), bed.memory(), grant.table_seed, grant.pool_secret,
                                                {.visit = [image](const Sighting& seen) {
                                                  if (image != nullptr) (*image)[std::string(seen.key)] = seen.value;
                                                }});
  const std::uint64_t owned = leases_of_owners(bed, audit);
  EXPECT_LE(owned, 1u);
  for (const node::Finding& finding : audit.findings) {
    if (finding.wrong != node::Wrong::lease_held || owned == 0) ADD_FAILURE() << finding.what;
  }
  EXPECT_EQ(audit.damage() + audit.explained(), owned);
  EXPECT_EQ(audit.lock_bits, 0u);
  EXPECT_EQ(totals->keys, audit.table.keys);
  EXPECT_EQ(totals->bytes, audit.table.bytes);
  std::uint64_t kept = 0;
  bool all_live = true;
  for (Member* member : bed.members()) {
    all_live = all_live && member->lives();
    if (member->lives()) bed.run(*member, look_at_heap(*member, kept));
  }
  if (all_live) EXPECT_EQ(audit.blocks_with_owner, kept) << "blocks are neither reachable, nor free, nor with an owner";
}

// The sum over all clients.
inline std::uint64_t marked(Bed& bed, std::uint64_t Marks::*mark) {
  std::uint64_t sum = 0;
  for (Member* member : bed.members()) sum += member->table().marks().*mark;
  return sum;
}

// What clients, on several threads perhaps, asked and were told.
struct Recorder {
  std::mutex mutex;
  sim::History history;
  std::vector<Status> failed;

  void judge() {
    for (const Status& status : failed) ADD_FAILURE() << text(status);
    EXPECT_EQ(history.judge(), std::nullopt);
  }
};

struct Told {
  Status status;
  std::optional<std::string> found;
};
inline Told there(const Result<bool>& present, bool when) {
  return {present.status(), present.ok() && *present == when ? std::optional<std::string>("there") : std::nullopt};
}
inline Task<Told> perform(Member& member, const Call& call) {
  Cost cost;
  Table& table = member.table();
  const Nanos by = member.port().now() + kPatience;
  switch (call.kind) {
    case Call::Kind::get: {
      auto answer = co_await table.lookup(call.key, by, cost);
      co_return Told{answer.status(), answer.ok() ? *answer : std::nullopt};
    }
    case Call::Kind::put:
      co_return Told{(co_await table.put(call.key, call.value, by, cost)).status(), {}};
    case Call::Kind::insert:
      co_return there(co_await table.insert(call.key, call.value, by, cost), false);
    case Call::Kind::update:
      co_return there(co_await table.update(call.key, call.value, by, cost), true);
    case Call::Kind::remove:
      co_return there(co_await table.remove(call.key, by, cost), true);
    default: {
      AddOne editor;
      const Status status = (co_await table.modify(call.key, editor, by, cost)).status();
      co_return Told{status, editor.sum};
    }
  }
}
inline Task<void> ask(Bed& bed, Member& member, Recorder& recorder, Call call) {
  std::size_t number = 0;
  {
    const std::lock_guard lock(recorder.mutex);
    call.asked = bed.moment();
    number = recorder.history.ask(call);
  }
  Told told = co_await perform(member, call);
  const std::lock_guard lock(recorder.mutex);
  if (told.status.ok()) {
    recorder.history.answer(number, bed.moment(), std::move(told.found));
  } else {
    recorder.history.unknown(number);
    recorder.failed.push_back(told.status);
  }
}

inline Task<void> work(Bed& bed, Member& member, Recorder& recorder, std::uint64_t seed, int operations,
                       std::uint64_t keys, std::vector<std::size_t> sizes) {
  base::Random random(seed);
  for (int i = 0; i < operations; ++i) {
    constexpr Call::Kind kKinds[] = {Call::Kind::get,    Call::Kind::get,    Call::Kind::put,
                                     Call::Kind::insert, Call::Kind::update, Call::Kind::remove};
    Call call;
    call.kind = kKinds[random.below(6)];
    call.client = seed;
    call.key = "k" + std::to_string(random.below(keys));
    call.value = std::string(sizes[random.below(sizes.size())], static_cast<char>('a' + random.below(26))) +
                 std::to_string(seed * 1000) + std::to_string(i);
    co_await ask(bed, member, recorder, std::move(call));
  }
}

// Runs two tasks of each of three clients, all at once.
template <class Begin>
void all_at_once(Bed& bed, const Begin& begin) {
  std::vector<Bed::Job> jobs;
  while (bed.members().size() < 3) bed.connect();
  for (std::uint64_t i = 0; i < 6; ++i) {
    Member& member = *bed.members()[i / 2];
    jobs.push_back({&member, begin(member, i + 1)});
  }
  bed.run(std::move(jobs));
}

// ---- results --------------------------------------------------------------------------------------------------------

class Results : public Suite {};

TEST_P(Results, AreThoseOfAMapForEveryOperation) {
  const auto bed = make(sample.tables[0]);
  User a(*bed), b(*bed);
  EXPECT_EQ(*a.lookup("apple"), std::nullopt);
  EXPECT_FALSE(*a.update("apple", "red"));
  EXPECT_FALSE(*a.remove("apple"));
  EXPECT_EQ(a.count()->keys, 0u);
  EXPECT_TRUE(*a.insert("apple", "red"));
  EXPECT_FALSE(*a.insert("apple", "blue"));
  EXPECT_EQ(*b.lookup("apple"), "red");
  EXPECT_TRUE(*b.update("apple", "green"));
  EXPECT_EQ(*a.lookup("apple"), "green");
  EXPECT_TRUE(*a.put("apple", "brown"));
  EXPECT_FALSE(*b.put("pear", "yellow"));
  EXPECT_EQ(*a.lookup("apple"), "brown");
  EXPECT_EQ(a.count()->keys, 2u);
  EXPECT_EQ(a.count()->bytes, 5u + 5 + 4 + 6);
  EXPECT_TRUE(*a.put("apple", std::string(500, 'x')));
  EXPECT_EQ(*b.lookup("apple"), std::string(500, 'x'));
  EXPECT_FALSE(*a.put("empty", ""));
  EXPECT_EQ(*b.lookup("empty"), "");
  for (const char* key : {"apple", "pear", "empty"}) EXPECT_TRUE(*b.remove(key));
  EXPECT_FALSE(*a.remove("pear"));
  EXPECT_EQ(*a.lookup("pear"), std::nullopt);
  EXPECT_EQ(a.count()->keys, 0u);
  EXPECT_EQ(a.count()->bytes, 0u);
  expect_sound(*bed);
}

TEST_P(Results, AnEditorSeesTheValueAndDecides) {
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  Appender append("ish");
  EXPECT_FALSE(*a.modify("plum", append));
  EXPECT_EQ(*a.lookup("plum"), "ish");
  EXPECT_TRUE(*a.modify("plum", append));
  EXPECT_EQ(*a.lookup("plum"), "ishish");
  Appender much(std::string(500, 'x'));
  EXPECT_TRUE(*a.modify("plum", much));
  EXPECT_EQ(*a.lookup("plum"), "ishish" + std::string(500, 'x'));
  Always keep(Edit::keep()), keep_nothing(Edit::keep());
  EXPECT_TRUE(*a.modify("plum", keep));
  EXPECT_EQ(keep.seen, "ishish" + std::string(500, 'x'));
  EXPECT_FALSE(*a.modify("pear", keep_nothing));
  EXPECT_EQ(keep_nothing.seen, std::nullopt);
  EXPECT_EQ(*a.lookup("pear"), std::nullopt);
  Always erase(Edit::erase(), false), erase_nothing(Edit::erase(), false);
  EXPECT_TRUE(*a.modify("plum", erase));
  EXPECT_EQ(erase.seen, "") << "it did not want to see the value";
  EXPECT_FALSE(*a.modify("plum", erase_nothing));
  EXPECT_EQ(erase_nothing.seen, std::nullopt);
  EXPECT_EQ(*a.lookup("plum"), std::nullopt);
  EXPECT_EQ(a.count()->keys, 0u);
  expect_sound(*bed);
}

// The value before of each named edit, what it makes of it, and what it says. Nothing: the key is absent.
struct NamedCase {
  NamedEdit::Name name;
  std::optional<std::string> before;
  std::string value;
  std::uint64_t argument;
  std::optional<std::string> after;
  NamedEdit::Outcome outcome;  // without `existed`, which `before` says
};

inline std::vector<NamedCase> named_cases() {
  using Name = NamedEdit::Name;
  using Refusal = NamedEdit::Refusal;
  const std::string most(layout::kMaxValueBytes, 'm'), large(9000, 'l');
  const std::string greatest = "9223372036854775807";
  return {{Name::insert, {}, "new", 0, "new", {}},
          {Name::insert, "old", "new", 0, "old", {}},
          {Name::update, {}, "new", 0, {}, {}},
          {Name::update, "old", "newer", 0, "newer", {}},
          {Name::swap, {}, "new", 0, "new", {}},
          {Name::swap, "old", "new", 0, "new", {.text = "old"}},
          {Name::swap, "", large, 0, large, {.text = ""}},
          {Name::swap, large, "new", 0, "new", {.text = large}},
          {Name::take, {}, "", 0, {}, {}},
          {Name::take, "old", "", 0, {}, {.text = "old"}},
          {Name::take, large, "", 0, {}, {.text = large}},
          {Name::add, {}, "", 7, "7", {.number = 7}},
          {Name::add, "10", "", static_cast<std::uint64_t>(-12), "-2", {.number = -2}},
          {Name::add, "ten", "", 1, "ten", {.refusal = Refusal::not_integer}},
          {Name::add, "", "", 1, "", {.refusal = Refusal::not_integer}},
          {Name::add, greatest, "", 1, greatest, {.refusal = Refusal::beyond_integer}},
          {Name::append, {}, "", 0, "", {}},
          {Name::append, {}, "ab", 0, "ab", {.number = 2}},
          {Name::append, "ab", "cd", 0, "abcd", {.number = 4}},
          {Name::append, large, large, 0, large + large, {.number = 18000}},
          {Name::append, most, "x", 0, most, {.refusal = Refusal::beyond_value}},
          {Name::overlay, {}, "", 5, {}, {}},
          {Name::overlay, "abc", "", 5, "abc", {.number = 3}},
          {Name::overlay, {}, "x", 2, std::string("\0\0x", 3), {.number = 3}},
          {Name::overlay, "abcdef", "XY", 1, "aXYdef", {.number = 6}},
          {Name::overlay,
           "abc",
           "x",
           layout::kMaxValueBytes - 1,
           "abc" + std::string(most.size() - 4, '\0') + "x",
           {.number = layout::kMaxValueBytes}},
          {Name::overlay, "abc", "x", layout::kMaxValueBytes, "abc", {.refusal = Refusal::beyond_value}},
          {Name::overlay, "abc", "x", ~0ull >> 1, "abc", {.refusal = Refusal::beyond_value}},
          {Name::add_float, {}, "1.5", 0, "1.5", {.text = "1.5"}},
          {Name::add_float, "10.50", "0.1", 0, "10.6", {.text = "10.6"}},
          {Name::add_float, "ten", "1", 0, "ten", {.refusal = Refusal::not_float}},
          {Name::add_float, "10", "one", 0, "10", {.refusal = Refusal::not_float}},
          {Name::add_float, "inf", "1", 0, "inf", {.refusal = Refusal::not_finite}}};
}

TEST_P(Results, NamedEditsFollowTheRulesOfRedis) {
  layout::GeometryRequest table = sample.tables[0];
  table.memory_bytes = 64 << 20;
  const auto bed = make(table);
  User a(*bed);
  ASSERT_FALSE(*a.put("first", "what every client needs has been read"));
  const std::vector<NamedCase> cases = named_cases();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const NamedCase& one = cases[i];
    SCOPED_TRACE("case " + std::to_string(i));
    const std::string key = "key" + std::to_string(i);
    const std::size_t longest = std::max(one.before.value_or("").size(), one.after.value_or("").size());
    if (!fits(a.member, key.size(), longest)) continue;
    if (one.before) ASSERT_FALSE(*a.put(key, *one.before));
    NamedEdit edit(one.name, one.value, one.argument);
    const auto existed = a.modify(key, edit);
    ASSERT_TRUE(existed.ok()) << text(existed.status());
    if (sample.budget.named != 0 && longest < 1000) EXPECT_LE(a.cost.trips, sample.budget.named);
    EXPECT_EQ(*existed, one.before.has_value());
    EXPECT_EQ(edit.outcome().existed, one.before.has_value());
    EXPECT_EQ(edit.outcome().refusal, one.outcome.refusal);
    EXPECT_EQ(edit.outcome().number, one.outcome.number);
    EXPECT_TRUE(edit.outcome().text == one.outcome.text);
    EXPECT_TRUE(*a.lookup(key) == one.after);
  }
  expect_sound(*bed);
}

// A value that expires, before and after each named edit. Edits that find that it has expired find no key.
struct ExpiringCase {
  NamedEdit::Name name;
  std::string before;
  std::string value;
  std::uint64_t argument;
  std::optional<std::string> after;       // of a value that has not expired; its expiry stays
  std::optional<std::string> after_none;  // of one that has
};

inline std::vector<ExpiringCase> expiring_cases() {
  using Name = NamedEdit::Name;
  const std::string large(9000, 'l');
  return {{Name::add, "10", "", 5, "15", "5"},
          {Name::append, "ab", "cd", 0, "abcd", "cd"},
          {Name::append, "ab", "\xff", 0, "ab\xff", "\xff"},
          {Name::append, large, large, 0, large + large, large},
          {Name::overlay, "abc", "X", 1, "aXc", std::string("\0X", 2)},
          {Name::add_float, "10.50", "0.1", 0, "10.6", "0.1"},
          {Name::insert, "old", "new", 0, "old", "new"}};
}

TEST_P(Results, NamedEditsKnowWhatHasExpired) {
  constexpr Millis kNow = 1'000'000;
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  ASSERT_FALSE(*a.put("first", "what every client needs has been read"));
  const auto sealed = [](std::string text, Millis expires) {
    Stored::seal(text, expires);
    return text;
  };
  int number = 0;
  const auto run = [&](NamedEdit::Name name, const std::string& kept, const std::string& value, std::uint64_t argument,
                       Millis expires) {
    const std::string key = "key" + std::to_string(++number);
    EXPECT_FALSE(*a.put(key, kept));
    NamedEdit edit(name, value, argument);
    edit.set_now(kNow);
    edit.set_expires(expires);
    EXPECT_TRUE(a.modify(key, edit).ok());
    return std::pair(edit.outcome(), *a.lookup(key));
  };
  for (const ExpiringCase& one : expiring_cases()) {
    SCOPED_TRACE("case " + std::to_string(number));
    const std::size_t longest = std::max(one.after->size(), one.before.size()) + Stored::kMostTailBytes;
    if (!fits(a.member, 8, longest)) continue;
    const auto [live, kept] = run(one.name, sealed(one.before, kNow), one.value, one.argument, kNoExpiry);
    EXPECT_TRUE(live.existed);
    EXPECT_TRUE(kept == sealed(*one.after, kNow));
    const auto [none, fresh] = run(one.name, sealed(one.before, kNow - 1), one.value, one.argument, kNoExpiry);
    EXPECT_FALSE(none.existed);
    EXPECT_EQ(none.refusal, NamedEdit::Refusal::none);
    EXPECT_TRUE(fresh == sealed(*one.after_none, kNoExpiry));
  }
  using Name = NamedEdit::Name;
  for (const Millis expires : {kNow - 1, kNow}) {
    SCOPED_TRACE("expires " + std::to_string(expires));
    const bool there = expires == kNow;
    const std::string before = sealed("old", expires), after = sealed("new", kNow + 7);
    if (!fits(a.member, 8, before.size())) break;
    const auto text = there ? std::optional<std::string>("old") : std::nullopt;
    const auto [swapped, new_value] = run(Name::swap, before, "new", 0, kNow + 7);
    EXPECT_TRUE(swapped.existed == there && swapped.text == text && new_value == after);
    const auto [updated, another] = run(Name::update, before, "new", 0, kNow + 7);
    EXPECT_TRUE(updated.existed == there && another == (there ? after : before));
    const auto [taken, none] = run(Name::take, before, "", 0, kNoExpiry);
    EXPECT_TRUE(taken.existed == there && taken.text == text && !none);
    const auto [removed, gone] = run(Name::remove, before, "", 0, kNoExpiry);
    EXPECT_TRUE(removed.existed == there && !gone);
    const auto [expired, left] = run(Name::expire, before, "", 0, kNoExpiry);
    EXPECT_TRUE(expired.existed == !there && left.has_value() == there);
  }
  expect_sound(*bed);
}

TEST_P(Results, NamedEditsOfStringsRefuseOtherTypes) {
  constexpr Millis kNow = 1'000'000;
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  const auto hash = [](Millis expires) {
    std::string kept = "hash";
    Stored::seal(kept, expires, Type::hash);
    return kept;
  };
  int number = 0;
  const auto run = [&](NamedEdit::Name name, const std::string& kept) {
    const std::string key = "key" + std::to_string(++number);
    EXPECT_FALSE(*a.put(key, kept));
    const bool bare = name == NamedEdit::Name::add || name == NamedEdit::Name::take || name == NamedEdit::Name::remove;
    NamedEdit edit(name, bare ? "" : "1", name == NamedEdit::Name::add ? 1 : 0);
    edit.set_now(kNow);
    EXPECT_TRUE(a.modify(key, edit).ok());
    return std::pair(edit.outcome(), *a.lookup(key));
  };
  using Name = NamedEdit::Name;
  for (const Name name : {Name::add, Name::append, Name::overlay, Name::swap, Name::take, Name::add_float}) {
    SCOPED_TRACE("edit " + std::to_string(static_cast<int>(name)));
    for (const std::string& kept : {hash(kNoExpiry), hash(kNow), std::string("later\xff")}) {
      const auto [refused, left] = run(name, kept);
      EXPECT_EQ(refused.refusal, NamedEdit::Refusal::other_kind);
      EXPECT_EQ(left, kept);
    }
    const auto [done, after] = run(name, hash(kNow - 1));
    EXPECT_EQ(done.refusal, NamedEdit::Refusal::none);
    EXPECT_FALSE(done.existed);
    EXPECT_EQ(after, name == Name::take ? std::nullopt : std::optional<std::string>("1"));
  }
  const auto [inserted, kept] = run(Name::insert, hash(kNow));
  EXPECT_TRUE(inserted.existed && kept == hash(kNow));
  const auto [updated, set] = run(Name::update, hash(kNow));
  EXPECT_TRUE(updated.existed && set == "1");
  const auto [removed, none] = run(Name::remove, hash(kNow));
  EXPECT_TRUE(removed.existed && !none);
  expect_sound(*bed);
}

// Around what fits an entry of a table, a block of the heap and what a slot's length can say, up to the limits.
TEST_P(Results, AreRightForEverySizeUpToTheLimits) {
  layout::GeometryRequest table = sample.tables[0];
  table.memory_bytes = 64 << 20;
  const auto bed = make(table);
  User a(*bed), b(*bed);
  Image model;
  const auto check = [&](const std::string& key, const std::string& value) {
    const bool known = model.contains(key);
    const auto existed = a.put(key, value);
    if (!fits(a.member, key.size(), value.size())) {
      EXPECT_EQ(existed.code(), Code::too_large) << key.size() << " " << value.size() << " " << text(existed.status());
      return;
    }
    ASSERT_TRUE(existed.ok()) << key.size() << " " << value.size() << " " << text(existed.status());
    EXPECT_EQ(*existed, known) << key.size() << " " << value.size();
    model[key] = value;
    const auto found = b.lookup(key);
    ASSERT_TRUE(found.ok() && *found == value) << key.size() << " " << value.size() << " " << text(found.status());
  };
  for (const std::size_t key_bytes : {0u, 1u, 6u, 14u, 15u, 16u, 63u, 64u, 300u, 65536u}) {
    for (const std::size_t value_bytes : {0u, 1u, 8u, 14u, 48u, 255u, 4096u, 1048576u}) {
      std::string key(key_bytes, 'k');
      if (key_bytes > 0) key[0] = static_cast<char>('a' + value_bytes % 26);
      ASSERT_NO_FATAL_FAILURE(check(key, std::string(value_bytes, static_cast<char>('A' + model.size() % 26))));
    }
  }
  for (const std::size_t bytes :
       {254u * 64 - 17, 254u * 64 - 16, 255u * 64 - 17, 255u * 64 - 16, 255u * 64, 100'000u, 1u << 20}) {
    const std::string value(bytes, static_cast<char>('a' + bytes % 26));
    ASSERT_NO_FATAL_FAILURE(check("K", value));
    if (!fits(a.member, 1, bytes)) continue;
    Appender nothing("");
    EXPECT_TRUE(*a.modify("K", nothing)) << bytes;
    EXPECT_TRUE(*a.update("K", value)) << bytes;
    EXPECT_TRUE(*b.lookup("K") == value) << bytes;
  }
  for (const auto& [key, value] : model) ASSERT_TRUE(*b.lookup(key) == value);
  if (fits(a.member, 65535, 0)) EXPECT_EQ(*a.lookup(std::string(65535, 'k')), std::nullopt);
  expect_sound(*bed);
  for (const auto& [key, value] : model) ASSERT_TRUE(*a.remove(key));
  EXPECT_EQ(a.count()->keys, 0u);
  EXPECT_EQ(a.count()->bytes, 0u);
  expect_sound(*bed);
}

TEST_P(Results, ATableThatCannotBeSplitSaysSo) {
  const auto bed = make(sample.tables[0]);
  ASSERT_EQ(bed->geometry().tables, 1u);
  User a(*bed);
  Status split;
  bed->run(a.member, split_and_wait(a.member, "k", split));
  EXPECT_EQ(split.code(), Code::out_of_memory) << text(split);
}

// ---- bad input ------------------------------------------------------------------------------------------------------

class BadInput : public Suite {};

TEST_P(BadInput, WhatIsTooLongIsRefusedAndChangesNothing) {
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  ASSERT_FALSE(*a.put("k", "v"));
  const std::string long_key(layout::kMaxKeyBytes + 1, 'k'), long_value(layout::kMaxValueBytes + 1, 'v');
  Appender append("x");
  Always large(Edit::put(long_value)), keep(Edit::keep());
  for (const auto& refused :
       {a.insert(long_key, "v"), a.update(long_key, "v"), a.put(long_key, "v"), a.remove(long_key),
        a.modify(long_key, append), a.insert("l", long_value), a.insert("k", long_value), a.update("k", long_value),
        a.update("l", long_value), a.put("k", long_value), a.put("l", long_value), a.modify("k", large),
        a.modify("l", large)}) {
    EXPECT_EQ(refused.code(), Code::too_large) << text(refused.status());
  }
  EXPECT_EQ(a.lookup(long_key).code(), Code::too_large);
  EXPECT_EQ(*a.lookup("k"), "v");
  EXPECT_EQ(*a.lookup("l"), std::nullopt);
  EXPECT_EQ(a.count()->keys, 1u);
  expect_sound(*bed);
}

TEST_P(BadInput, ANamedEditThatIsTooLongIsRefusedAndChangesNothing) {
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  ASSERT_FALSE(*a.put("k", "v"));
  const std::string long_key(layout::kMaxKeyBytes + 1, 'k'), long_value(layout::kMaxValueBytes + 1, 'v');
  NamedEdit add(NamedEdit::Name::add, {}, 1), swap(NamedEdit::Name::swap, long_value);
  EXPECT_EQ(a.modify(long_key, add).code(), Code::too_large);
  EXPECT_EQ(a.modify("k", swap).code(), Code::too_large);
  EXPECT_EQ(*a.lookup("k"), "v");
  expect_sound(*bed);
}

TEST_P(BadInput, AnEmptyKeyIsAKey) {
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  EXPECT_TRUE(*a.insert("", ""));
  EXPECT_FALSE(*a.insert("", "v"));
  EXPECT_EQ(*a.lookup(""), "");
  EXPECT_TRUE(*a.put("", std::string(500, 'v')));
  EXPECT_EQ(*a.lookup(""), std::string(500, 'v'));
  EXPECT_EQ(a.scan(0, ~0ull >> 1)->keys, std::vector<std::string>{""});
  EXPECT_TRUE(*a.remove(""));
  EXPECT_EQ(*a.lookup(""), std::nullopt);
  expect_sound(*bed);
}

// Zeros, spaces, line ends, whatever: keys and values are bytes.
TEST_P(BadInput, KeysAndValuesAreAnyBytes) {
  const auto bed = make(sample.tables[0]);
  User a(*bed);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  Image model{
      {std::string(1, '\0'), all}, {std::string(2, '\0'), "two"}, {all, std::string(3, '\0')}, {"\xff", "\r\n"}};
  for (const auto& [key, value] : model) EXPECT_TRUE(*a.insert(key, value));
  Image image;
  expect_sound(*bed, &image);
  EXPECT_EQ(image, model);
  for (const auto& [key, value] : model) EXPECT_EQ(*a.lookup(key), value);
}

// The deadline is looked at between trips: it has passed, and nothing was done, or the operation was in time.
TEST_P(BadInput, ADeadlineThatPassesLeavesNothingHalfDone) {
  const auto bed = make(sample.tables[0]);
  User a(*bed), b(*bed);
  std::string stands = "0";
  ASSERT_FALSE(*b.put("k", stands));
  int in_time = 0, late = 0;
  for (const Nanos patience : {-base::kSecond, Nanos{0}, Nanos{1}, 2 * base::kMicrosecond, 5 * base::kMicrosecond,
                               20 * base::kMicrosecond, kPatience}) {
    for (int i = 0; i < 3; ++i) {
      const std::string next = std::to_string(in_time + late + 1) + std::string(i == 0 ? 0 : 100, 'v');
      a.patience = patience;
      const auto put = a.put("k", next);
      if (put.ok()) {
        EXPECT_TRUE(*put);
        stands = next;
      } else {
        EXPECT_EQ(put.code(), Code::timed_out) << text(put.status());
      }
      (put.ok() ? in_time : late) += 1;
      EXPECT_EQ(*b.lookup("k"), stands) << patience;
    }
  }
  EXPECT_GE(in_time, 3);
  EXPECT_GE(late, 3) << "a deadline of the past was in time";
  EXPECT_TRUE(a.member.session().alive());
  expect_sound(*bed);
}

// ---- agreement with a map -------------------------------------------------------------------------------------------

inline void compare_with_map(Bed& bed, std::uint64_t seed, int operations, std::uint64_t keys) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  User a(bed);
  base::Random random(seed);
  Image model, image;
  for (int i = 0; i < operations; ++i) {
    std::string key = "k" + std::to_string(random.below(keys));
    if (random.chance(0.2)) key += std::string(20, 'x');
    const std::string value(random.chance(0.7) ? random.below(9) : random.below(300), static_cast<char>('a' + i % 26));
    const auto known = model.find(key);
    const bool present = known != model.end();
    Result<bool> answer = present;
    switch (random.below(6)) {
      case 0: {
        const auto found = a.lookup(key);
        ASSERT_TRUE(found.ok()) << i << " " << text(found.status());
        ASSERT_EQ(*found, present ? std::optional(known->second) : std::nullopt) << i;
        break;
      }
      case 1:
        answer = a.insert(key, value);
        if (answer.ok()) answer = !*answer;
        model.try_emplace(key, value);
        break;
      case 2:
        answer = a.update(key, value);
        if (present) model[key] = value;
        break;
      case 3:
        answer = a.remove(key);
        model.erase(key);
        break;
      case 4:
        answer = a.put(key, value);
        model[key] = value;
        break;
      default: {
        Appender append("+");
        answer = a.modify(key, append);
        model[key] += "+";
      }
    }
    ASSERT_TRUE(answer.ok()) << i << " " << text(answer.status());
    ASSERT_EQ(*answer, present) << i;
  }
  for (const auto& [key, value] : model) EXPECT_EQ(*a.lookup(key), value);
  expect_sound(bed, &image);
  EXPECT_EQ(image, model);
}

TEST_P(Results, AgreeWithAMapInEveryShapeOfTable) {
  for (std::size_t i = 0; i < sample.tables.size(); ++i) {
    SCOPED_TRACE("table " + std::to_string(i));
    // A block of keys that is looked at over and over, and one of which most are seen once.
    for (const std::uint64_t keys : {300u, 1200u}) {
      const std::uint64_t seed = 10 * i + keys;
      const auto bed = make(sample.tables[i], seed);
      compare_with_map(*bed, seed, 1500 / ground.portion, keys / static_cast<std::uint64_t>(ground.portion));
      if (HasFatalFailure()) return;
    }
  }
}

// ---- full tables ----------------------------------------------------------------------------------------------------

class FullTable : public Suite {};

TEST_P(FullTable, SaysSoAndGoesOn) {
  const auto bed = make(sample.few);
  User a(*bed);
  std::vector<std::string> keys;
  Status full;
  const std::uint64_t places = bed->geometry().entries();
  for (base::Random random(7); full.ok() && keys.size() <= places;) {
    const std::string key = std::to_string(random.next() % 100'000'000);
    const auto added = keys.size() % 2 == 0 ? a.insert(key, "v") : a.put(key, "v");
    full = added.status();
    if (added.ok() && *added == (keys.size() % 2 == 0)) keys.push_back(key);
  }
  EXPECT_EQ(full.code(), Code::out_of_memory) << text(full);
  EXPECT_NE(full.message().find(sample.full_says), std::string::npos) << full.message();
  EXPECT_GT(static_cast<double>(keys.size()), sample.full * static_cast<double>(places));
  if (sample.moved != nullptr) EXPECT_GT(marked(*bed, sample.moved), 20u);
  for (const auto mark : sample.filled) EXPECT_GT(marked(*bed, mark), 0u);
  EXPECT_EQ(a.count()->keys, keys.size());
  for (const std::string& key : keys) ASSERT_EQ(*a.lookup(key), "v") << key;
  // What is there can be changed, also into what takes a block.
  EXPECT_TRUE(*a.update(keys[0], std::string(100, 'w')));
  EXPECT_TRUE(*a.put(keys[1], "w"));
  EXPECT_EQ(*a.lookup(keys[0]), std::string(100, 'w'));
  EXPECT_EQ(*a.lookup(keys[1]), "w");
  EXPECT_FALSE(*a.update("absent", "w"));
  expect_sound(*bed);
  // There is room again, for a client that comes next and remembers nothing.
  const std::size_t removed = keys.size() / 10;
  for (std::size_t i = 0; i < removed; ++i) ASSERT_TRUE(*a.remove(keys[i]));
  User b(*bed);
  std::size_t added = 0;
  for (std::size_t i = 0; i < removed / 2; ++i) {
    const auto inserted = b.insert("n" + std::to_string(i), "v");
    if (!inserted.ok()) EXPECT_EQ(inserted.code(), Code::out_of_memory) << text(inserted.status());
    added += inserted.ok() ? 1 : 0;
  }
  EXPECT_GT(static_cast<double>(added), sample.room * static_cast<double>(removed) / 2);
  expect_sound(*bed);
}

// ---- concurrency ----------------------------------------------------------------------------------------------------

class Concurrency : public Suite {};

TEST_P(Concurrency, HistoriesAreLinearizable) {
  std::vector<std::uint64_t> seen(sample.crowd.size());
  for (int seed = 1; seed <= ground.rounds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto bed = make(sample.tables[0], static_cast<std::uint64_t>(seed));
    Recorder recorder;
    all_at_once(*bed, [&](Member& member, std::uint64_t task) {
      return work(*bed, member, recorder, static_cast<std::uint64_t>(10 * seed) + task, 25, 6, {3, 60});
    });
    recorder.judge();
    expect_sound(*bed);
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] += marked(*bed, sample.crowd[i]);
  }
  for (std::size_t i = 0; ground.simulated && i < seen.size(); ++i)
    EXPECT_GT(seen[i], 0u) << "the test is too easy: mark " << i;
}

// Values that take long to come and go, and blocks that others have soon after.
TEST_P(Concurrency, HistoriesOfLargeValuesAreLinearizable) {
  layout::GeometryRequest table = sample.tables[0];
  table.memory_bytes = 32 << 20;
  const auto bed = make(table);
  Recorder recorder;
  all_at_once(*bed, [&](Member& member, std::uint64_t task) {
    return work(*bed, member, recorder, task, 14, 3, {3, 5'000, 300'000, (1 << 20) - 20});
  });
  recorder.judge();
  expect_sound(*bed);
}

inline Task<void> add_ones(Bed& bed, Member& member, Recorder& recorder, std::uint64_t task, int times) {
  for (int i = 0; i < times; ++i) {
    co_await ask(bed, member, recorder, {.kind = Call::Kind::add, .client = task, .key = "sum"});
  }
}

TEST_P(Concurrency, IncrementsAddUp) {
  for (int seed = 1; seed <= (ground.rounds + 1) / 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto bed = make(sample.tables[0], static_cast<std::uint64_t>(seed));
    Recorder recorder;
    all_at_once(*bed, [&](Member& member, std::uint64_t task) { return add_ones(*bed, member, recorder, task, 25); });
    recorder.judge();
    User user(*bed, *bed->members()[0]);
    EXPECT_EQ(*user.lookup("sum"), "150");
    expect_sound(*bed);
  }
}

struct Wins {
  std::mutex mutex;
  std::vector<int> of_key;
};
inline Task<void> compete_for_keys(Member& member, Wins& wins) {
  for (std::size_t i = 0; i < wins.of_key.size(); ++i) {
    Cost cost;
    const Nanos by = member.port().now() + kPatience;
    const auto won = co_await member.table().insert("prize" + std::to_string(i), "x", by, cost);
    EXPECT_TRUE(won.ok()) << text(won.status());
    const std::lock_guard lock(wins.mutex);
    if (won.ok() && *won) ++wins.of_key[i];
  }
}

// In a table so full that keys which move do so while they are raced for.
TEST_P(Concurrency, InsertRacesHaveOneWinner) {
  for (int seed = 1; seed <= (ground.rounds + 3) / 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto bed = make(sample.few, static_cast<std::uint64_t>(seed));
    User a(*bed);
    Wins wins{.of_key = std::vector<int>(200)};
    const auto filled = static_cast<std::size_t>(static_cast<double>(bed->geometry().entries()) * sample.full) - 200;
    for (std::size_t i = 0; i < filled; ++i) ASSERT_TRUE(*a.insert("fill" + std::to_string(i), "x"));
    all_at_once(*bed, [&](Member& member, std::uint64_t) { return compete_for_keys(member, wins); });
    EXPECT_EQ(std::count(wins.of_key.begin(), wins.of_key.end(), 1), 200);
    expect_sound(*bed);
  }
}

struct Watch {
  std::atomic<bool> over = false;
  std::atomic<int> missing = 0, looked = 0;
};
inline Task<void> come_and_go(Member& member, int rounds, std::uint64_t seed, Watch& watch) {
  Cost cost;
  base::Random random(seed);
  std::vector<std::string> mine;
  for (int i = 0; i < rounds; ++i) {
    const Nanos by = member.port().now() + kPatience;
    const std::string key = "guest" + std::to_string(seed) + "/" + std::to_string(i);
    const auto added = co_await member.table().insert(key, "x", by, cost);
    EXPECT_TRUE(added.ok() || added.code() == Code::out_of_memory) << text(added.status());
    if (added.ok()) mine.push_back(key);
    if (mine.size() > 10) {
      std::swap(mine[random.below(mine.size())], mine.back());
      EXPECT_TRUE((co_await member.table().remove(mine.back(), by, cost)).ok());
      mine.pop_back();
    }
  }
  watch.over = true;
}
inline Task<void> look_for(Member& member, const std::vector<std::string>& keys, std::uint64_t seed, Watch& watch) {
  Cost cost;
  base::Random random(seed);
  while (!watch.over) {
    const Nanos by = member.port().now() + kPatience;
    const auto found = co_await member.table().lookup(keys[random.below(keys.size())], by, cost);
    watch.missing += found.ok() && found->has_value() ? 0 : 1;
    ++watch.looked;
  }
}

TEST_P(Concurrency, AKeyThatStaysIsNeverMissedInAFullTable) {
  const auto bed = make(sample.few);
  User a(*bed);
  Member& reader = bed->connect();
  std::vector<std::string> keys;
  const double wanted = (sample.full + 0.04) * static_cast<double>(bed->geometry().entries());
  for (int i = 0; static_cast<double>(keys.size()) < wanted; ++i) {
    const auto added = a.insert("key" + std::to_string(i), "x");
    if (added.code() == Code::out_of_memory) break;
    ASSERT_TRUE(*added);
    keys.push_back("key" + std::to_string(i));
  }
  const std::uint64_t moved = sample.moved == nullptr ? 0 : marked(*bed, sample.moved);
  Watch watch;
  std::vector<Bed::Job> jobs;
  jobs.push_back({&a.member, come_and_go(a.member, 250 / ground.portion, 9, watch)});
  for (std::uint64_t i = 0; i < 4; ++i) jobs.push_back({&reader, look_for(reader, keys, 10 + i, watch)});
  bed->run(std::move(jobs));
  EXPECT_EQ(watch.missing, 0);
  EXPECT_GT(watch.looked, ground.simulated ? 300 : 0);
  if (sample.moved != nullptr)
    EXPECT_GT(marked(*bed, sample.moved), moved + 50 / static_cast<std::uint64_t>(ground.portion));
  expect_sound(*bed);
}

// A value is so many times one letter.
inline Task<void> overwrite(Member& member, int rounds, Watch& watch) {
  Cost cost;
  for (int i = 0; i < rounds; ++i) {
    const std::string value(static_cast<std::size_t>(100 + i % 7 * 50), static_cast<char>('a' + i % 7));
    EXPECT_TRUE((co_await member.table().put("big", value, member.port().now() + kPatience, cost)).ok());
  }
  watch.over = true;
}
inline Task<void> read_big(Member& member, Watch& watch) {
  Cost cost;
  while (!watch.over) {
    const auto found = co_await member.table().lookup("big", member.port().now() + kPatience, cost);
    EXPECT_TRUE(found.ok() && found->has_value()) << text(found.status());
    if (!found.ok() || !found->has_value()) co_return;
    const std::string& value = **found;
    EXPECT_EQ(value, std::string(static_cast<std::size_t>(100 + (value[0] - 'a') * 50), value[0]));
    ++watch.looked;
  }
}

TEST_P(Concurrency, BlocksAreUsedAgainUnderTheEyesOfReaders) {
  const auto bed = make(sample.tables[0], 3);
  User a(*bed);
  Member& reader = bed->connect();
  ASSERT_TRUE(a.put("big", std::string(100, 'a')).ok());
  Watch watch;
  std::vector<Bed::Job> jobs;
  jobs.push_back({&a.member, overwrite(a.member, 600 / ground.portion, watch)});
  for (int i = 0; i < 3; ++i) jobs.push_back({&reader, read_big(reader, watch)});
  bed->run(std::move(jobs));
  EXPECT_GT(watch.looked, ground.simulated ? 200 : 0);
  expect_sound(*bed);
}

// ---- scans ----------------------------------------------------------------------------------------------------------

class Scans : public Suite {
 protected:
  std::function<bool(std::size_t)> room(User& user) const {
    return [this, &user](std::size_t key_bytes) { return fits(user.member, key_bytes, 30); };
  }
};

// How often each key comes. `between` runs before each step but the first.
inline std::map<std::string, int> scan_all(User& user, std::uint64_t count, const std::function<void()>& between = {}) {
  std::map<std::string, int> times;
  std::uint64_t position = 0;
  do {
    if (position != 0 && between) between();
    const auto page = user.scan(position, count);
    EXPECT_TRUE(page.ok()) << text(page.status());
    if (!page.ok()) break;
    for (const std::string& key : page->keys) ++times[key];
    EXPECT_TRUE(page->next == 0 || (page->next > position && page->next < user.table().positions()));
    position = page->next;
  } while (position != 0);
  return times;
}

// `fits` says whether a key of so many bytes can be written.
inline std::vector<std::string> put_keys(User& user, int count, const std::function<bool(std::size_t)>& fits) {
  std::vector<std::string> keys{"",
                                std::string(63, 'k'),
                                std::string(113, 'l'),
                                std::string(5000, 'm'),
                                std::string(20'000, 'n'),
                                std::string(layout::kMaxKeyBytes, 'o')};
  std::erase_if(keys, [&fits](const std::string& key) { return !fits(key.size()); });
  for (int i = 0; i < count; ++i) keys.push_back("key" + std::to_string(i));
  for (const std::string& key : keys) {
    const auto inserted = user.insert(key, key.size() < 6 ? "v" : std::string(30, 'v'));
    EXPECT_TRUE(inserted.ok() && *inserted) << text(inserted.status());
  }
  return keys;
}

TEST_P(Scans, TellOfEveryKeyOnceWhereNothingChanges) {
  const auto bed = make(sample.scanned);
  User a(*bed), b(*bed);
  EXPECT_TRUE(scan_all(a, 10).empty());
  const std::vector<std::string> keys = put_keys(a, sample.scanned_keys, room(a));
  for (const std::uint64_t count : {0ull, 1ull, 30ull, 100ull, 1ull << 63}) {
    const auto times = scan_all(count == 30 ? b : a, count);
    EXPECT_EQ(times.size(), keys.size()) << count;
    for (const std::string& key : keys) {
      const auto found = times.find(key);
      EXPECT_TRUE(found != times.end() && found->second == 1) << count << " " << key.substr(0, 20);
    }
  }
  expect_sound(*bed);
}

// Short and long values, under short and long keys.
TEST_P(Scans, TellWhenValuesExpire) {
  const auto bed = make(sample.scanned);
  User a(*bed);
  std::map<std::string, Millis> expiries;
  Millis expires = 1;
  for (const std::size_t key_bytes : {3u, 100u, 300u}) {
    for (const std::size_t value_bytes : {0u, 1u, 8u, 70u, 100u, 110u, 500u, 9000u}) {
      for (const bool is_expiring : {false, true}) {
        std::string key = std::to_string(value_bytes) + (is_expiring ? "e" : "n"), value(value_bytes, 'v');
        key.resize(key_bytes + 5, 'k');
        const Millis at = is_expiring ? expires++ : kNoExpiry;
        Stored::seal(value, at);
        if (!fits(a.member, key.size(), value.size())) continue;
        ASSERT_FALSE(*a.put(key, value));
        expiries[key] = at;
      }
    }
  }
  std::map<std::string, Millis> told;
  std::uint64_t position = 0;
  do {
    const Result<Page> page = a.scan(position, 30);
    ASSERT_TRUE(page.ok()) << text(page.status());
    for (const std::string& key : page->keys) told[key] = kNoExpiry;
    for (const Page::Expiry& expiry : page->expiries) told[page->keys.at(expiry.key)] = expiry.at;
    position = page->next;
  } while (position != 0);
  EXPECT_EQ(told, expiries);
}

// Splits a table between two steps, by another client than the one that scans, or by the same.
TEST_P(Scans, GoOnThroughSplits) {
  const auto bed = make(sample.scanned);
  User a(*bed), b(*bed);
  const std::vector<std::string> keys = put_keys(a, sample.scanned_keys, room(a));
  base::Random random(5);
  const int rounds = ground.simulated && sample.splits != nullptr ? 4 : 1;
  for (int round = 0; round < rounds; ++round) {
    for (const std::uint64_t count :
         {ground.simulated ? 0ull : 10ull, ground.simulated ? 1ull : 20ull, 30ull, 1ull << 63}) {
      int steps = 0;
      const auto times = scan_all(count == 30 ? b : a, count, [&] {
        if (++steps != 7) return;
        Status split;
        bed->run(a.member, split_and_wait(a.member, keys[random.below(keys.size())], split));
        EXPECT_TRUE(split.ok() || split.code() == Code::out_of_memory) << text(split);
      });
      EXPECT_EQ(times.size(), keys.size()) << count;
      for (const std::string& key : keys) {
        EXPECT_TRUE(times.contains(key)) << count << " " << key.substr(0, 20);
        if (steps < 7) EXPECT_EQ(times.at(key), 1) << count << " " << key.substr(0, 20);
      }
    }
  }
  if (sample.splits != nullptr) EXPECT_GT(marked(*bed, sample.splits), ground.simulated ? 2u : 0u);
  expect_sound(*bed);
}

// In the middle of a scan keys come until there is no room, and others go.
TEST_P(Scans, TellOfAllThatStaysWhileOthersComeAndGo) {
  const auto bed = make(sample.few);
  User reader(*bed), writer(*bed);
  std::set<std::string> stay;
  const auto places = static_cast<double>(bed->geometry().entries());
  for (int i = 0; static_cast<double>(stay.size()) < 0.7 * places; ++i) {
    ASSERT_TRUE(*writer.insert("stays" + std::to_string(i), "v"));
    stay.insert("stays" + std::to_string(i));
  }
  int guests = 0;
  const auto times = scan_all(reader, 256, [&] {
    for (int i = 0; i < 40; ++i) {
      const auto added = writer.insert("guest" + std::to_string(guests), "v");
      if (!added.ok()) break;
      if (++guests % 4 == 0) EXPECT_TRUE(*writer.remove("guest" + std::to_string(guests - 2)));
    }
  });
  EXPECT_GT(guests, 100) << "the scan has too few steps";
  for (const std::string& key : stay) EXPECT_TRUE(times.contains(key)) << key;
  for (const auto& [key, often] : times) EXPECT_TRUE(stay.contains(key) || key.starts_with("guest")) << key;
  if (sample.moved != nullptr) EXPECT_GT(marked(*bed, sample.moved), 20u);
  expect_sound(*bed);
}

struct Traffic {
  std::atomic<bool> over = false;
  std::atomic<int> changes = 0;
};
inline Task<void> visit(Member& member, std::uint64_t seed, int keys, Traffic& traffic) {
  Cost cost;
  for (int i = 0; !traffic.over; ++i, ++traffic.changes) {
    const std::string key = "guest" + std::to_string(seed) + "/" + std::to_string(i % keys);
    const Nanos by = member.port().now() + kPatience;
    const auto changed = i % (2 * keys) < keys ? co_await member.table().put(key, "v", by, cost)
                                               : co_await member.table().remove(key, by, cost);
    EXPECT_TRUE(changed.ok() || changed.code() == Code::out_of_memory) << text(changed.status());
  }
}
// Scans by pages of several sizes, until others have made so many changes.
inline Task<void> scan_until(Member& member, std::vector<std::set<std::string>>& scans, Traffic& traffic, int changes) {
  while (traffic.changes < changes || scans.size() < 3) {
    std::uint64_t position = 0;
    const std::uint64_t count = std::array{1u, 10u, 1000u}[scans.size() % 3];
    std::set<std::string>& seen = scans.emplace_back();
    do {
      Cost cost;
      const auto page = co_await member.table().scan(position, count, member.port().now() + kPatience, cost);
      EXPECT_TRUE(page.ok()) << text(page.status());
      if (!page.ok()) break;
      seen.insert(page->keys.begin(), page->keys.end());
      position = page->next;
    } while (position != 0);
  }
  traffic.over = true;
}

// The same by clients that work at the same time. Entries move meanwhile, or tables are split.
TEST_P(Scans, TellOfAllThatStaysWhileOtherClientsWork) {
  const bool grows = sample.splits != nullptr;
  const auto bed = make(grows ? sample.grows : sample.few);
  User reader(*bed);
  const auto places = static_cast<int>(bed->geometry().entries());
  const int staying = grows ? places / 8 : places / 2, visiting = grows ? places / 2 : places / 10;
  std::set<std::string> stay;
  for (int i = 0; i < staying; ++i) {
    stay.insert("stays" + std::to_string(i));
    ASSERT_TRUE(*reader.insert("stays" + std::to_string(i), "v"));
  }
  const std::uint64_t splits = grows ? marked(*bed, sample.splits) : 0;
  Traffic traffic;
  std::vector<std::set<std::string>> scans;
  std::vector<Bed::Job> jobs;
  for (int i = 0; i < 2; ++i) bed->connect();
  for (std::uint64_t i = 0; i < 4; ++i) {
    Member& member = *bed->members()[1 + i / 2];
    jobs.push_back({&member, visit(member, i, visiting / 4, traffic)});
  }
  jobs.push_back({&reader.member, scan_until(reader.member, scans, traffic, 2 * visiting)});
  bed->run(std::move(jobs));
  std::size_t guests = 0;
  for (const std::set<std::string>& seen : scans) {
    for (const std::string& key : stay) EXPECT_TRUE(seen.contains(key)) << key;
    for (const std::string& key : seen) EXPECT_TRUE(stay.contains(key) || key.starts_with("guest")) << key;
    guests += seen.size() - stay.size();
  }
  EXPECT_GT(guests, 0u) << "no key came while a scan was under way";
  if (grows) EXPECT_GT(marked(*bed, sample.splits), splits);
  expect_sound(*bed);
}

TEST_P(Scans, AreSafeFromAnyPosition) {
  const auto bed = make(sample.scanned);
  User a(*bed);
  const std::uint64_t most = a.table().positions();
  EXPECT_LE(most, 1ull << kPositionBits);
  ASSERT_TRUE(*a.insert("key", "value"));
  Status split;
  bed->run(a.member, split_and_wait(a.member, "key", split));
  base::Random random(1);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t position = i % 4 == 0 ? most - 1 - random.below(3) : random.next() >> random.below(64);
    const auto page = a.scan(position, random.next() >> random.below(64));
    ASSERT_TRUE(page.ok()) << position << " " << text(page.status());
    EXPECT_TRUE(page->next == 0 || (page->next > position && page->next < most)) << position;
    if (position >= most) EXPECT_TRUE(page->keys.empty() && page->next == 0) << position;
  }
  expect_sound(*bed);
}

TEST_P(Scans, TakeFewTrips) {
  const auto bed = make(sample.few);
  User a(*bed);
  ASSERT_TRUE(a.scan(0, 10).ok());
  EXPECT_EQ(a.cost.trips, sample.budget.scan_empty) << "what says which rows have ever been used";
  EXPECT_LE(a.cost.messages, sample.budget.scan_messages);
  for (int i = 0; i < 600; ++i)
    ASSERT_TRUE(*a.insert("key" + std::to_string(i), std::string(i % 2 == 0 ? 0 : 30, 'v')));
  const auto page = a.scan(0, 40);
  ASSERT_TRUE(page.ok());
  EXPECT_GT(page->keys.size(), sample.page);
  EXPECT_LE(a.cost.trips, sample.budget.scan);
  ASSERT_TRUE(a.scan(a.table().positions() - 2, 10).ok());  // keys of the last rows may lie in the first
  EXPECT_LE(a.cost.trips, sample.budget.scan);
}

}  // namespace farpool::index::contract
