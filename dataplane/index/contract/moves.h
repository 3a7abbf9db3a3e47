// SPDX-License-Identifier: Apache-2.0
// Part of the suite of index protocols (suite.h): keys leave for another memory node while clients work. This is the
// side that they leave, with a map in the other's place, and what of the other side is one table's.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "index/contract/suite.h"
#include "layout/lease.h"
#include "session/tenure.h"
#include "task/scope.h"

namespace farpool::index::contract {

class Elsewhere final : public Arrivals {
 public:
  Task<Status> take_in(std::string_view key, std::string_view value) override {
    if (full) co_return Status(Code::out_of_memory, "there is no room");
    keys.emplace(key, value);
    co_return Status();
  }
  Task<Result<bool>> has(std::string_view key) override { co_return keys.contains(std::string(key)); }

  Image keys;
  bool full = false;
};

// Nobody can tell of a key whether it has arrived.
class Unsure final : public Arrivals {
 public:
  Task<Status> take_in(std::string_view key, std::string_view) override {
    asked.emplace(key);
    co_return Status(Code::unknown_outcome, "nobody knows");
  }
  Task<Result<bool>> has(std::string_view) override { co_return Status(Code::unavailable, "nobody knows"); }

  std::set<std::string> asked;
};

// Half of the keys leave, in move 1; every third has a value that takes a block.
class Moves : public Suite {
 protected:
  static constexpr int kKeys = 120;
  static std::string key(int i) { return "key-" + std::to_string(i); }
  static std::string value(int i) { return i % 3 == 0 ? std::string(100, 'v') : "v"; }
  static Move move(std::uint64_t number = 1) {
    return number == 1 ? Move{.number = 1, .depth = 1, .leaving = {true, false}}
                       : Move{.number = number, .depth = 1, .leaving = {}};
  }

  void SetUp() override {
    bed = make(sample.scanned);
    client = std::make_unique<User>(*bed);
    ignorant = std::make_unique<User>(*bed);
    ASSERT_NE(client->table().movable(), nullptr);
    for (int i = 0; i < kKeys; ++i) ASSERT_FALSE(*client->put(key(i), value(i)));
  }
  void TearDown() override {
    client.reset();
    ignorant.reset();
    bed.reset();
  }
  bool leaves(const std::string& key) const {
    return (base::keyed_hash(client->member.session().grant().pool_secret, base::bytes_of(key)) & 1) == 0;
  }
  std::string first_key(bool that_leaves, int from = 0) const {
    while (leaves(key(from)) != that_leaves) ++from;
    return key(from);
  }

  static Task<void> followed(Member& member, Move move) {
    member.table().movable()->follow(move);
    co_return;
  }
  void follow(User& user, Move move) { bed->run(user.member, followed(user.member, std::move(move))); }
  // Runs a step of a move, as its mover does: with the lease for moves.
  template <class T>
  static Task<void> as_mover(Member& member, Task<T> task, T& result) {
    session::Tenure tenure(member.session());
    const Nanos patience = member.port().now() + kPatience;
    const Status taken = co_await tenure.take(layout::kMoveLease, patience);
    if (taken.ok()) {
      result = co_await std::move(task);
    } else {
      result = taken;
    }
    co_await tenure.give_back(patience);
  }
  template <class T>
  T run(User& user, Task<T> task) {
    T result = Status(Code::internal, "it did not come to an end");
    bed->run(user.member, as_mover(user.member, std::move(task), result));
    return result;
  }
  static Movable& movable(User& user) { return *user.table().movable(); }
  Status close() {
    return run(*client, movable(*client).close(&elsewhere, [this] { return work; }));
  }
  Status move_away(Arrivals& arrivals) {
    return run(*client, movable(*client).move_away(arrivals, [this] { return work; }));
  }
  // The client knows of the move, and the table is closed for keys that leave.
  void begin_move() {
    follow(*client, move());
    const Status closed = close();
    ASSERT_TRUE(closed.ok()) << text(closed);
  }
  // Leaves keys on their way, as a mover does that cannot tell whether the other memory node has them.
  std::set<std::string> strand() {
    Unsure unsure;
    EXPECT_EQ(move_away(unsure).code(), Code::unknown_outcome);
    return unsure.asked;
  }
  Result<bool> admit(User& user, const std::string& key) {
    Cost cost;
    return run(user, movable(user).admit(key, "v", user.member.port().now() + kPatience, cost));
  }

  std::unique_ptr<Bed> bed;
  std::unique_ptr<User> client, ignorant;  // the second follows an older map
  Elsewhere elsewhere;
  Status work;  // may be made an error
};

TEST_P(Moves, AClosedTableTakesNoKeyThatLeaves) {
  begin_move();
  for (int i = 0; i < 2 * kKeys; ++i) {
    const bool there = i < kKeys, may_be_elsewhere = leaves(key(i)) && !there;
    const Code expected = may_be_elsewhere ? Code::moved : Code::ok;
    EXPECT_EQ(client->lookup(key(i)).code(), expected) << i;
    EXPECT_EQ(client->put(key(i), "w").code(), expected) << i;
    EXPECT_EQ(client->remove(key(i)).code(), expected) << i;
  }
  expect_sound(*bed);
}

// It can read what is there, because that is the truth. It may change nothing, and believes no miss.
TEST_P(Moves, AClientThatDoesNotKnowOfTheMoveReadsTheMapFirst) {
  begin_move();
  for (const bool that_leaves : {true, false}) {
    const std::string there = first_key(that_leaves);
    EXPECT_TRUE((*ignorant->lookup(there)).has_value());
    EXPECT_EQ(ignorant->put(there, "w").code(), Code::stale);
    EXPECT_EQ(ignorant->update(there, "w").code(), Code::stale);
    EXPECT_EQ(ignorant->remove(there).code(), Code::stale);
  }
  EXPECT_EQ(ignorant->lookup("none").code(), Code::stale);
  EXPECT_EQ(ignorant->put("none", "w").code(), Code::stale);
  EXPECT_EQ(ignorant->insert("none", "w").code(), Code::stale);
  EXPECT_EQ(ignorant->scan(0, ~0ull >> 1).code(), Code::stale);
  follow(*ignorant, move());
  EXPECT_EQ(ignorant->put(key(0), "w").code(), Code::ok);
  expect_sound(*bed);
}

TEST_P(Moves, KeysThatLeaveAreElsewhereAndOthersAreNot) {
  begin_move();
  const Status moved = move_away(elsewhere);
  ASSERT_TRUE(moved.ok()) << text(moved);
  std::uint64_t stay = 0;
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(elsewhere.keys.contains(key(i)), leaves(key(i)));
    if (leaves(key(i))) EXPECT_EQ(elsewhere.keys.at(key(i)), value(i));
    EXPECT_EQ(client->lookup(key(i)).code(), leaves(key(i)) ? Code::moved : Code::ok);
    stay += leaves(key(i)) ? 0 : 1;
  }
  EXPECT_EQ(run(*client, movable(*client).standing())->finished, 1u);
  EXPECT_EQ(client->table().marks().moved_away, kKeys - stay);
  EXPECT_EQ(client->count()->keys, stay);
  expect_sound(*bed);
}

// Nobody changes it; everybody reads it, and a scan tells of it.
TEST_P(Moves, AKeyThatIsLeavingIsWaitedFor) {
  begin_move();
  const std::set<std::string> leaving = strand();
  ASSERT_FALSE(leaving.empty());
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(*client->lookup(key(i)), value(i));
  const std::string gone = *leaving.begin(), was = **client->lookup(gone);
  EXPECT_TRUE(leaves(gone));
  client->patience = 200 * base::kMillisecond;
  EXPECT_EQ(client->put(gone, "w").code(), Code::timed_out);
  EXPECT_EQ(client->remove(gone).code(), Code::timed_out);
  EXPECT_GT(client->table().marks().move_waits, 1u);
  client->patience = kPatience;
  const auto told = scan_all(*client, 100);
  EXPECT_EQ(told.size(), std::size_t{kKeys});
  EXPECT_EQ(ignorant->scan(0, ~0ull >> 1).code(), Code::stale);
  ASSERT_TRUE(move_away(elsewhere).ok());
  EXPECT_EQ(elsewhere.keys.at(gone), was);
  EXPECT_EQ(client->put(gone, "w").code(), Code::moved);
  EXPECT_EQ(scan_all(*client, 100).size(), kKeys - elsewhere.keys.size());
  expect_sound(*bed);
}

// The mover may be of the same client, whose operations take turns.
TEST_P(Moves, AnOperationThatWaitsForAKeyLetsItsMoverWork) {
  begin_move();
  const std::set<std::string> leaving = strand();
  std::vector<Result<bool>> done(leaving.size(), Status(Code::internal, "it did not come to an end"));
  std::vector<Bed::Job> jobs;
  std::size_t i = 0;
  const auto put = [](Member& member, const std::string& key, Result<bool>& into) -> Task<void> {
    Cost cost;
    into = co_await member.table().put(key, "w", member.port().now() + kPatience, cost);
  };
  for (const std::string& key : leaving) jobs.push_back({&client->member, put(client->member, key, done[i++])});
  Status moved(Code::internal, "it did not come to an end");
  const Movable::GoOn go_on = [] { return Status(); };
  jobs.push_back({&client->member, as_mover(client->member, movable(*client).move_away(elsewhere, go_on), moved)});
  bed->run(std::move(jobs));
  EXPECT_TRUE(moved.ok()) << text(moved);
  for (const Result<bool>& one : done) EXPECT_TRUE(one.ok() || one.code() == Code::moved) << text(one.status());
  EXPECT_GT(client->table().marks().move_waits, 0u);
  for (const std::string& key : leaving) EXPECT_EQ(client->lookup(key).code(), Code::moved);
  expect_sound(*bed);
}

// It looks for the key by move 1, and is told of move 2, in which no key leaves, before it has read anything.
inline Task<void> put_and_follow(Member& member, const std::string& key, Move move, Result<bool>& into) {
  Cost cost;
  task::Scope scope;
  const auto put = [](Member& member, const std::string& key, Cost& cost, Result<bool>& into) -> Task<void> {
    into = co_await member.table().put(key, "w", member.port().now() + kPatience, cost);
  };
  scope.spawn(put(member, key, cost, into));
  member.table().movable()->follow(std::move(move));
  co_await scope.join();
}

// What counts is the map by which the key was looked for here: an operation that waits while moves come and go must not
// put the key where it no longer belongs.
TEST_P(Moves, AMoveThatIsLearntOfInTheMiddleOfAnOperationDoesNotCount) {
  begin_move();
  follow(*ignorant, move());
  ASSERT_TRUE(move_away(elsewhere).ok());
  const std::string gone = first_key(true);
  for (User* user : {client.get(), ignorant.get()}) {
    Result<bool> done = Status(Code::internal, "it did not come to an end");
    bed->run(user->member, put_and_follow(user->member, gone, move(2), done));
    EXPECT_EQ(done.code(), Code::moved) << text(done.status());
    follow(*user, move());
    EXPECT_EQ(user->lookup(gone).code(), Code::moved);
  }
  expect_sound(*bed);
}

TEST_P(Moves, WhereThereIsNoRoomKeysStayAndCanBeChanged) {
  begin_move();
  elsewhere.full = true;
  EXPECT_EQ(move_away(elsewhere).code(), Code::out_of_memory);
  EXPECT_EQ(run(*client, movable(*client).standing())->finished, 0u);
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(client->put(key(i), "w").code(), Code::ok);
  elsewhere.full = false;
  ASSERT_TRUE(move_away(elsewhere).ok());
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(elsewhere.keys.contains(key(i)), leaves(key(i)));
  for (const auto& [key, value] : elsewhere.keys) EXPECT_EQ(value, "w") << key;
  expect_sound(*bed);
}

// A key that did get there, as far as anybody can tell, is not given free here.
TEST_P(Moves, AKeyThatMayBeAtBothEndsStaysOnItsWay) {
  begin_move();
  const std::set<std::string> leaving = strand();
  for (int i = 0; i < kKeys; ++i) elsewhere.keys.emplace(key(i), value(i));
  elsewhere.full = true;
  EXPECT_EQ(move_away(elsewhere).code(), Code::out_of_memory);
  client->patience = 200 * base::kMillisecond;
  EXPECT_EQ(client->put(*leaving.begin(), "w").code(), Code::timed_out);
}

TEST_P(Moves, EndWhenTheyAreNotWantedAnyMore) {
  follow(*client, move());
  work = Status(Code::unavailable, "not wanted");
  EXPECT_EQ(close().code(), Code::unavailable);
  work = Status();
  EXPECT_TRUE(close().ok());
  work = Status(Code::unavailable, "not wanted");
  EXPECT_EQ(move_away(elsewhere).code(), Code::unavailable);
  work = Status();
  EXPECT_TRUE(move_away(elsewhere).ok());
  expect_sound(*bed);
}

// By a map of before the key may have been leaving this memory node.
TEST_P(Moves, AKeyThatComesIsNotChangedByAClientThatFollowsAnOlderMap) {
  begin_move();
  follow(*ignorant, move());
  ASSERT_TRUE(move_away(elsewhere).ok());
  const std::string back = first_key(true);
  follow(*client, move(2));
  ASSERT_TRUE(run(*client, movable(*client).close(nullptr, [] { return Status(); })).ok());  // as one that keys come to
  EXPECT_TRUE(*admit(*client, back));
  EXPECT_FALSE(*admit(*client, back));
  EXPECT_EQ(*ignorant->lookup(back), "v");
  EXPECT_EQ(ignorant->put(back, "w").code(), Code::stale);
  EXPECT_EQ(ignorant->remove(back).code(), Code::stale);
  EXPECT_EQ(client->put("another", "w").code(), Code::ok);
  expect_sound(*bed);
}

}  // namespace farpool::index::contract
