// SPDX-License-Identifier: Apache-2.0
#include "front/resp/conversation.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "front/resp/memory_kv.h"

namespace farpool::front::resp {
namespace {

std::string command(const std::vector<std::string>& words) {
  std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return bytes;
}

class ConversationTest : public ::testing::Test {
 protected:
  ConversationTest() { settings.version = "test"; }
  ~ConversationTest() override {
    while (kv.held() > 0) {
      kv.release(0);
      pump();
    }
  }

  Conversation& talk() {
    if (!conversation)
      conversation =
          std::make_unique<Conversation>(service, Endpoints{7, "1.2.3.4:5", "6.7.8.9:10"}, [this] { ++progress; });
    return *conversation;
  }
  // What the server does at the end of a turn.
  void pump() {
    if (!conversation) return;
    std::string_view left = input;
    talk().receive(left);
    input.erase(0, input.size() - left.size());
    output += talk().take_all();
  }
  void feed(const std::string& bytes) {
    input += bytes;
    talk();
    pump();
  }
  std::string say(const std::string& bytes) {
    feed(bytes);
    return std::exchange(output, {});
  }

  MemoryKv kv;
  Settings settings;
  Counters counters;
  Service service{.kv = kv, .settings = settings, .counters = counters};
  std::unique_ptr<Conversation> conversation;
  std::string input, output;
  int progress = 0;
};

TEST_F(ConversationTest, AnswersInOrderWhateverEndsFirst) {
  kv.hold = true;
  EXPECT_EQ(say(command({"SET", "a", "1"}) + command({"SET", "b", "2"}) + command({"PING"}) + command({"GET", "c"})),
            "");
  EXPECT_EQ(kv.held(), 3u);
  kv.release(2);  // GET c
  kv.release(1);  // SET b
  EXPECT_EQ(say(""), "");
  kv.release(0);
  EXPECT_EQ(progress, 3);
  EXPECT_EQ(say(""), "+OK\r\n+OK\r\n+PONG\r\n$-1\r\n");
}

TEST_F(ConversationTest, KeepsTheOrderOfEffectsPerKey) {
  kv.hold = true;
  say(command({"SET", "a", "1"}) + command({"APPEND", "a", "2"}) + command({"SET", "b", "x"}) + command({"GET", "a"}));
  // Nothing overtakes a command that waits for its key.
  ASSERT_EQ(kv.held(), 1u);
  kv.release(0);
  say("");
  ASSERT_EQ(kv.held(), 2u);  // APPEND a and SET b; GET a waits
  kv.release(1);
  kv.release(0);
  say("");
  ASSERT_EQ(kv.held(), 1u);
  kv.release(0);
  EXPECT_EQ(say(""), "$2\r\n12\r\n");
  EXPECT_EQ(kv.log, (std::vector<std::string>{"a", "b", "a"}));
}

TEST_F(ConversationTest, RunsCommandsOfSeveralKeysAlone) {
  kv.hold = true;
  say(command({"SET", "a", "1"}) + command({"MSET", "a", "2", "b", "2"}) + command({"GET", "c"}));
  ASSERT_EQ(kv.held(), 1u);
  kv.release(0);
  say("");
  ASSERT_EQ(kv.held(), 2u);  // the two keys of MSET
  kv.release(1);
  say("");
  ASSERT_EQ(kv.held(), 1u);
  kv.release(0);
  say("");
  ASSERT_EQ(kv.held(), 1u);  // GET c
}

// Random pipelines against a model that runs one command after another: replies and effects per key are the same in
// whatever order the pool ends operations.
TEST_F(ConversationTest, IsOneAfterTheOtherAsFarAsAKeyCanTell) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    base::Random random(seed);
    MemoryKv model_kv;
    Service model_service{.kv = model_kv, .settings = settings, .counters = counters};
    Conversation model(model_service, {7, "", ""}, [] {});
    kv.map.clear();
    kv.hold = true;
    kv.most_held = 0;
    std::string expected;
    for (int i = 0; i < 120; ++i) {
      const std::string key = "k" + std::to_string(random.below(40));
      std::string bytes;
      switch (random.below(8)) {
        case 0:
          bytes = command({"SET", key, std::to_string(random.below(1000))});
          break;
        case 1:
          bytes = command({"APPEND", key, std::to_string(i)});
          break;
        case 2:
          bytes = command({"INCR", key});
          break;
        case 3:
          bytes = command({"DEL", key});
          break;
        case 4:
          bytes = random.chance(0.2) ? command({"MGET", key, "k1"}) : command({"GETSET", key, "9"});
          break;
        case 5:
          bytes = random.chance(0.2) ? command({"DBSIZE"}) : command({"ECHO", key});
          break;
        default:
          bytes = command({"GET", key});
          break;
      }
      std::string_view model_input = bytes;
      model.receive(model_input);
      expected += model.take_all();
      // Arrives in pieces while earlier ones are under way.
      const std::size_t cut = random.below(bytes.size() + 1);
      feed(bytes.substr(0, cut));
      if (kv.held() > 0 && random.chance(0.5)) kv.release(random.below(kv.held()));
      feed(bytes.substr(cut));
    }
    for (int turns = 0; kv.held() > 0 || !talk().idle(); ++turns) {
      ASSERT_LT(turns, 10'000);
      if (kv.held() > 0) kv.release(random.below(kv.held()));
      pump();
    }
    ASSERT_EQ(std::exchange(output, {}), expected);
    ASSERT_EQ(kv.map, model_kv.map);
    ASSERT_GT(kv.most_held, 3u) << "nothing ran at once: the test shows nothing";
    ASSERT_LE(kv.most_held, settings.concurrency);
  }
}

TEST_F(ConversationTest, StopsTakingInputWhenItsPipelineIsFull) {
  settings.max_pipeline = 4;
  settings.concurrency = 2;
  kv.hold = true;
  std::string bytes;
  for (int i = 0; i < 10; ++i) bytes += command({"GET", "k" + std::to_string(i)});
  say(bytes);
  EXPECT_EQ(kv.held(), 2u);
  EXPECT_FALSE(talk().hungry());
  EXPECT_EQ(input.size(), bytes.size() / 10 * 6);
  for (int turns = 0; kv.held() > 0; ++turns) {
    ASSERT_LT(turns, 100);
    kv.release(0);
    pump();
  }
  std::string nulls;
  for (int i = 0; i < 10; ++i) nulls += "$-1\r\n";
  EXPECT_EQ(output, nulls);
  EXPECT_TRUE(talk().hungry());
}

TEST_F(ConversationTest, StopsWhenRepliesAreNotTaken) {
  settings.max_unread_bytes = 10'000;
  kv.map["big"] = std::string(4000, 'v');
  std::string bytes;
  for (int i = 0; i < 50; ++i) bytes += command({"GET", "big"});
  std::string_view left = bytes;
  talk().receive(left);
  EXPECT_LE(talk().waiting(), 10'000u + 4100u);
  EXPECT_TRUE(talk().stalled_by_replies());
  const std::size_t sent = talk().take_all().size();
  talk().set_unsent(sent);
  talk().receive(left);
  EXPECT_TRUE(talk().take_all().empty());
  EXPECT_FALSE(talk().hungry());
  std::size_t total = sent;
  for (int turns = 0; total < 50 * (std::string("$4000\r\n").size() + 4002); ++turns) {
    ASSERT_LT(turns, 100);
    talk().set_unsent(0);
    talk().receive(left);
    ASSERT_LE(talk().waiting(), 10'000u + 4100u);
    total += talk().take_all().size();
  }
  EXPECT_TRUE(left.empty());
  EXPECT_TRUE(talk().idle());
}

// Together the conversations of a process hold no more than it has, and each still gets on.
TEST_F(ConversationTest, SharesTheMemoryOfAProcess) {
  settings.max_held_bytes = 4 << 20;
  Budget budget;
  service.budget = &budget;
  kv.map["big"] = std::string(100'000, 'v');
  std::vector<std::unique_ptr<Conversation>> others;
  std::string bytes;
  for (int i = 0; i < 200; ++i) bytes += command({"GET", "big"});
  std::vector<std::string_view> left(20, bytes);
  std::vector<std::size_t> unsent(20, 0);
  for (std::size_t i = 0; i < left.size(); ++i) {
    others.push_back(std::make_unique<Conversation>(service, Endpoints{i, "", ""}, [] {}));
    others[i]->receive(left[i]);
    unsent[i] = others[i]->take_all().size();
    others[i]->set_unsent(unsent[i]);
  }
  // The first has taken what there was; the rest hold little.
  EXPECT_GT(unsent[0], 4'000'000u);
  EXPECT_LE(unsent[0], 4'600'000u);
  for (std::size_t i = 1; i < unsent.size(); ++i) EXPECT_LE(unsent[i], 400'000u);
  EXPECT_EQ(budget.held, service.held_bytes);
  // A large command waits, until there is room or it is given up.
  Conversation& large = *others[5];
  for (int turns = 0; !left[5].empty() || !large.idle(); ++turns) {
    ASSERT_LT(turns, 1000);
    large.set_unsent(0);
    large.receive(left[5]);
    EXPECT_LE(large.take_all().size(), 400'000u);
  }
  large.set_unsent(0);
  std::string_view head = "*2\r\n$3\r\nGET\r\n$6000000\r\n";
  large.receive(head);
  const std::string body(3'000'000, 'k');
  std::string_view more = body;
  large.receive(more);
  EXPECT_TRUE(large.waits_for_room());
  EXPECT_FALSE(large.hungry());
  EXPECT_FALSE(large.closing());
  large.refuse_room();
  std::string_view nothing;
  large.receive(nothing);
  EXPECT_TRUE(large.closing());
  EXPECT_TRUE(large.take_all().starts_with("-ERR Protocol error: no room"));
  // All get all of their replies once these are taken.
  for (std::size_t i = 0; i < others.size(); ++i) {
    for (int turns = 0; !left[i].empty() || !others[i]->idle(); ++turns) {
      ASSERT_LT(turns, 1000);
      others[i]->set_unsent(0);
      others[i]->receive(left[i]);
      others[i]->take_all();
    }
    others[i]->set_unsent(0);
  }
  others.clear();
  EXPECT_EQ(service.held_bytes, 0u);
  EXPECT_EQ(budget.held, 0u);
}

// Replies of commands that run are foreseen: they would be there before anyone could say no.
TEST_F(ConversationTest, StartsNoMoreThanItsRepliesHaveRoomFor) {
  settings.max_unread_bytes = 1'000'000;
  kv.map["big"] = std::string(200'000, 'v');
  say(command({"GET", "big"}));
  kv.hold = true;
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes += command({"GET", "big"}) + command({"GET", std::to_string(i)});
  kv.most_held = 0;
  say(bytes);
  EXPECT_LE(kv.held(), 5u);
  EXPECT_GE(kv.held(), 2u);
  std::size_t got = 0;
  while (kv.held() > 0 || !talk().idle()) {
    if (kv.held() > 0) kv.release(0);
    pump();
    got += std::exchange(output, {}).size();
  }
  EXPECT_GT(got, 32 * 200'000u);
}

TEST(Backlog, GivesBackWhatWasPutIn) {
  base::Random random(1);
  for (int round = 0; round < 200; ++round) {
    Backlog backlog;
    std::string expected, got;
    for (int i = 0; i < 200; ++i) {
      if (random.chance(0.6)) {
        std::string reply(random.below(random.chance(0.1) ? 200'000 : 300), static_cast<char>('a' + i % 26));
        expected += reply;
        backlog.append(reply);
      } else if (!backlog.empty()) {
        const std::string_view first = backlog.first();
        ASSERT_FALSE(first.empty());
        const std::size_t taken = 1 + random.below(first.size());
        got += first.substr(0, taken);
        backlog.consume(taken);
      }
      ASSERT_EQ(backlog.size(), expected.size() - got.size());
    }
    while (!backlog.empty()) {
      const std::string_view first = backlog.first();
      got += first;
      backlog.consume(first.size());
    }
    ASSERT_TRUE(got == expected);
  }
}

TEST_F(ConversationTest, RefusesAReplyThatIsTooLarge) {
  settings.max_reply_bytes = 10'000;
  kv.map["big"] = std::string(4000, 'v');
  EXPECT_EQ(say(command({"MGET", "big", "big"})).size(), 4 + 2 * (7 + 4002u));
  EXPECT_EQ(say(command({"MGET", "big", "big", "big"})),
            "-ERR the reply would be larger than 10000 bytes: ask for fewer keys at once\r\n");
  for (int i = 0; i < 5; ++i) kv.map[std::to_string(i) + std::string(1990, 'k')] = "v";
  EXPECT_EQ(say(command({"KEYS", "[0-3]*"})).size(), 4 + 4 * (7 + 1993u));
  EXPECT_EQ(say(command({"KEYS", "*"})),
            "-ERR the reply would be larger than 10000 bytes: use SCAN, or a pattern that fewer keys match\r\n");
}

// Steps of a flush, or of KEYS, leave room for others.
TEST_F(ConversationTest, GoesThroughAllKeysInSteps) {
  for (int i = 0; i < 1200; ++i) kv.map["key" + std::to_string(i)] = "v";
  kv.hold = true;
  EXPECT_EQ(say(command({"KEYS", "key7"})), "");
  for (int step = 0; step < 3; ++step) {
    ASSERT_EQ(kv.held(), 1u);
    kv.release(0);
  }
  EXPECT_EQ(say(""), "*1\r\n$4\r\nkey7\r\n");
  EXPECT_EQ(say(command({"FLUSHALL", "ASYNC"})), "");
  while (kv.held() > 0) kv.release(0);
  EXPECT_EQ(say(""), "+OK\r\n");
  EXPECT_LE(kv.most_held, 64u);
}

TEST_F(ConversationTest, TellsOutcomesApart) {
  using base::Code;
  const std::vector<std::pair<Code, std::string>> cases{
      {Code::out_of_memory, "-OOM command not allowed when used memory > 'maxmemory'.\r\n"},
      {Code::unknown_outcome, "-UNKNOWNOUTCOME the command may or may not have taken effect: why\r\n"},
      {Code::unavailable, "-TRYAGAIN nothing was done: why\r\n"},
      {Code::stale, "-TRYAGAIN nothing was done: why\r\n"},
      {Code::locked, "-LOCKED nothing was done: why\r\n"},
      {Code::timed_out, "-TIMEOUT nothing was done: why\r\n"},
  };
  for (const auto& [code, text] : cases) {
    kv.failure = {code, "why"};
    for (const auto& words : std::vector<std::vector<std::string>>{{"GET", "a"},
                                                                   {"SET", "a", "1"},
                                                                   {"SET", "a", "1", "NX"},
                                                                   {"INCR", "a"},
                                                                   {"DEL", "a"},
                                                                   {"MGET", "a"},
                                                                   {"MSET", "a", "1"},
                                                                   {"DBSIZE"},
                                                                   {"SCAN", "0"},
                                                                   {"KEYS", "*"},
                                                                   {"RANDOMKEY"},
                                                                   {"FLUSHDB"}}) {
      EXPECT_EQ(say(command(words)), text) << words[0];
    }
  }
  EXPECT_EQ(counters.unknown_outcomes.get(), 12u);
  EXPECT_EQ(counters.commands[number_of(*find_command("get"))].errors.get(), cases.size());
}

// Nothing that a driver would retry may stand before the error of a command that has changed some of its keys.
TEST_F(ConversationTest, SaysWhenOnlySomeKeysWereChanged) {
  kv.failure = {base::Code::unavailable, "why"};
  kv.fail_after = 1;
  EXPECT_EQ(say(command({"MSET", "a", "1", "b", "2", "c", "3"})),
            "-PARTIAL 1 of 3 keys were changed, then: TRYAGAIN nothing was done: why\r\n");
  kv.fail_after = 2;
  EXPECT_EQ(say(command({"DEL", "a", "b", "c", "a"})),
            "-PARTIAL 2 of 3 keys were changed, then: TRYAGAIN nothing was done: why\r\n");
  kv.map = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  kv.fail_after = 3;
  EXPECT_EQ(say(command({"FLUSHDB"})), "-PARTIAL 2 keys were deleted, then: TRYAGAIN nothing was done: why\r\n");
}

TEST_F(ConversationTest, KeysExpireByThePoolsClock) {
  kv.now = 1'000'000;
  EXPECT_EQ(say(command({"SET", "a", "1", "PX", "100"}) + command({"SET", "b", "2"})), "+OK\r\n+OK\r\n");
  EXPECT_EQ(say(command({"PTTL", "a"}) + command({"PEXPIRETIME", "a"})), ":100\r\n:1000100\r\n");
  kv.now += 100;
  EXPECT_EQ(say(command({"GET", "a"}) + command({"PTTL", "a"})), "$1\r\n1\r\n:0\r\n");
  kv.now += 1;
  EXPECT_EQ(say(command({"GET", "a"}) + command({"PTTL", "a"}) + command({"EXISTS", "a", "b"}) + command({"DEL", "a"})),
            "$-1\r\n:-2\r\n:1\r\n:0\r\n");
  EXPECT_FALSE(kv.map.contains("a"));
  EXPECT_EQ(say(command({"SETEX", "a", "2", "5"}) + command({"INCR", "a"})), "+OK\r\n:6\r\n");
  kv.now += 1'500;
  EXPECT_EQ(say(command({"TTL", "a"}) + command({"PTTL", "a"})), ":1\r\n:500\r\n");
  kv.now += 501;
  EXPECT_EQ(say(command({"SETNX", "a", "x"}) + command({"TTL", "a"})), ":1\r\n:-1\r\n");
}

TEST_F(ConversationTest, FlushesWhatHasExpired) {
  kv.now = 1'000'000;
  say(command({"SET", "a", "1", "PX", "100"}) + command({"SET", "b", "2"}));
  kv.now += 101;
  EXPECT_EQ(say(command({"KEYS", "*"})), "*1\r\n$1\r\nb\r\n");
  EXPECT_EQ(say(command({"FLUSHDB"})), "+OK\r\n");
  EXPECT_TRUE(kv.map.empty());
}

TEST_F(ConversationTest, WithoutThePoolsTimeNothingIsDone) {
  kv.failure = {base::Code::unavailable, "why"};
  for (const auto& words : {std::vector<std::string>{"SET", "a", "1", "EX", "10"},
                            {"SETEX", "a", "1", "x"},
                            {"PSETEX", "a", "1", "x"},
                            {"EXPIRE", "a", "1"},
                            {"GETEX", "a", "EX", "1"}}) {
    EXPECT_EQ(say(command(words)), "-TRYAGAIN nothing was done: why\r\n") << words[0];
  }
  EXPECT_TRUE(kv.map.empty());
}

TEST_F(ConversationTest, RefusesAValueOfAKindThatItDoesNotKnow) {
  const std::string refusal = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
  kv.map["a"] = "of a later version\xff";
  for (const auto& words : {std::vector<std::string>{"GET", "a"},
                            {"STRLEN", "a"},
                            {"INCR", "a"},
                            {"APPEND", "a", "x"},
                            {"GETSET", "a", "x"},
                            {"GETDEL", "a"},
                            {"GETEX", "a", "EX", "9"},
                            {"EXPIRE", "a", "9"},
                            {"TTL", "a"},
                            {"TYPE", "a"},
                            {"SETRANGE", "a", "0", "x"},
                            {"SET", "a", "x", "GET"},
                            {"SET", "a", "x", "KEEPTTL"}}) {
    EXPECT_EQ(say(command(words)), refusal) << words[0];
  }
  EXPECT_EQ(kv.map["a"], "of a later version\xff");
  EXPECT_EQ(say(command({"DEL", "a"})), ":1\r\n");
  kv.map["a"] = "of a later version\xff";
  EXPECT_EQ(say(command({"SET", "a", "x"}) + command({"GET", "a"})), "+OK\r\n$1\r\nx\r\n");
}

TEST_F(ConversationTest, RefusesAHashThatItCannotReadAndLeavesIt) {
  const std::string damaged = std::string(
                                  "\x01\x05"
                                  "a",
                                  3) +
                              "\x01\xfa",
                    later = std::string("\x02") + "\x01\xfa";
  for (const std::string& kept : {damaged, later}) {
    kv.map["h"] = kept;
    for (const auto& words : {std::vector<std::string>{"HGET", "h", "a"},
                              {"HGETALL", "h"},
                              {"HSET", "h", "a", "1"},
                              {"HDEL", "h", "a"},
                              {"HINCRBY", "h", "a", "1"},
                              {"HRANDFIELD", "h"},
                              {"HSCAN", "h", "0"}}) {
      EXPECT_TRUE(say(command(words)).starts_with("-ERR this hash cannot be read, and was left as it is")) << words[0];
    }
    EXPECT_EQ(kv.map["h"], kept);
    EXPECT_EQ(say(command({"TYPE", "h"}) + command({"RENAME", "h", "g"}) + command({"TYPE", "g"})),
              "+hash\r\n+OK\r\n+hash\r\n");
    EXPECT_EQ(kv.map["g"], kept);
    EXPECT_EQ(say(command({"DEL", "g"})), ":1\r\n");
  }
}

// A hash never becomes so long that it could not be given an expiry.
TEST_F(ConversationTest, AHashIsNoLongerThanAValueMayBe) {
  const std::string refusal = "-ERR hash exceeds maximum allowed size (with all of its fields: 1 MiB)\r\n";
  const std::size_t longest = settings.max_value_bytes - client::Stored::kMostTailBytes - 1 - 2 - 3;
  EXPECT_EQ(say(command({"HSET", "h", "a", std::string(longest + 1, 'v')})), refusal);
  EXPECT_TRUE(kv.map.empty());
  EXPECT_EQ(say(command({"HSET", "h", "a", std::string(longest, 'v')})), ":1\r\n");
  EXPECT_EQ(say(command({"EXPIRE", "h", "100"})), ":1\r\n");
  EXPECT_EQ(kv.map["h"].size(), settings.max_value_bytes);
  EXPECT_EQ(say(command({"HSET", "h", "b", ""})), refusal);
  EXPECT_EQ(say(command({"HINCRBY", "h", "b", "1"})), refusal);
  EXPECT_EQ(say(command({"HSTRLEN", "h", "a"})), ":" + std::to_string(longest) + "\r\n");
  EXPECT_EQ(say(command({"HSET", "h", "a", "1"}) + command({"HSET", "h", "b", "2"})), ":0\r\n:1\r\n");
}

TEST_F(ConversationTest, RepliesOfHashesAreBounded) {
  settings.max_reply_bytes = 10'000;
  say(command({"HSET", "h", "a", std::string(3000, 'v'), "b", "2"}));
  const std::string refusal = "-ERR the reply would be larger than 10000 bytes: ask for fewer fields at once\r\n";
  EXPECT_EQ(say(command({"HMGET", "h", "a", "a", "a", "a"})), refusal);
  EXPECT_EQ(say(command({"HRANDFIELD", "h", "-9223372036854775807"})), refusal);
  EXPECT_EQ(say(command({"HRANDFIELD", "h", "-1999", "WITHVALUES"})), refusal);
  EXPECT_EQ(say(command({"HMGET", "h", "b"})), "*1\r\n$1\r\n2\r\n");
}

TEST_F(ConversationTest, RandomFieldsAreChosenWithoutRepetitionAndAllOfThemAtSomeTime) {
  say(command({"HSET", "h", "a", "1", "b", "2", "c", "3", "d", "4"}));
  std::map<std::string, int> pairs, single;
  for (int i = 0; i < 600; ++i) {
    ++pairs[say(command({"HRANDFIELD", "h", "2"}))];
    ++single[say(command({"HRANDFIELD", "h"}))];
  }
  EXPECT_EQ(pairs.size(), 6u);
  EXPECT_EQ(single.size(), 4u);
  for (const auto& [reply, times] : pairs) EXPECT_GT(times, 50) << reply;
  for (const auto& [reply, times] : single) EXPECT_GT(times, 90) << reply;
  for (const char* pair : {"ab", "ac", "ad", "bc", "bd", "cd"}) {
    EXPECT_TRUE(pairs.contains("*2\r\n$1\r\n" + std::string(1, pair[0]) + "\r\n$1\r\n" + pair[1] + "\r\n")) << pair;
  }
}

// A write to the old key that comes between the copy and the removal is copied, too.
TEST_F(ConversationTest, ARenameLosesNoWriteToTheOldKey) {
  for (const char* name : {"RENAME", "RENAMENX"}) {
    kv.map = {{"from", "old"}};
    kv.hold = true;
    feed(command({name, "from", "to"}));
    kv.release(0);  // reads the old key
    kv.release(0);  // sets the new one
    EXPECT_EQ(kv.map["to"], "old");
    kv.map["from"] = "written meanwhile";
    kv.release(0);  // does not remove the old key
    EXPECT_EQ(kv.map["from"], "written meanwhile");
    while (kv.held() > 0) kv.release(0);
    EXPECT_EQ(say(""), std::string(name) == "RENAME" ? "+OK\r\n" : ":1\r\n");
    EXPECT_EQ(kv.map, (decltype(kv.map){{"to", "written meanwhile"}}));
  }
}

TEST_F(ConversationTest, ARenameOverwritesNothingThatItDidNotWrite) {
  kv.map = {{"from", "old"}};
  kv.hold = true;
  feed(command({"RENAMENX", "from", "to"}));
  kv.release(0);
  kv.release(0);
  kv.map["from"] = "written meanwhile";
  kv.map["to"] = "of another client";
  while (kv.held() > 0) kv.release(0);
  EXPECT_TRUE(say("").starts_with("-PARTIAL 1 of 2 keys were changed"));
  EXPECT_EQ(kv.map, (decltype(kv.map){{"from", "written meanwhile"}, {"to", "of another client"}}));
}

TEST_F(ConversationTest, ARenameSaysWhatItHasDoneBeforeItFailed) {
  kv.map = {{"from", "old"}};
  kv.failure = {base::Code::unavailable, "why"};
  EXPECT_EQ(say(command({"RENAME", "from", "to"})), "-TRYAGAIN nothing was done: why\r\n");
  kv.fail_after = 1;
  EXPECT_EQ(say(command({"RENAME", "from", "to"})), "-TRYAGAIN nothing was done: why\r\n");
  EXPECT_EQ(kv.map.size(), 1u);
  kv.fail_after = 2;
  EXPECT_EQ(say(command({"RENAME", "from", "to"})),
            "-PARTIAL 1 of 2 keys were changed: the new key has the value, and the old one is still there: TRYAGAIN "
            "nothing was done: why\r\n");
  EXPECT_EQ(kv.map.size(), 2u);
}

TEST_F(ConversationTest, SaysWhyItDoesNotDoWhatAPoolCannot) {
  for (const auto& words : {std::vector<std::string>{"CLIENT", "KILL", "1.2.3.4:5"},
                            {"CLIENT", "PAUSE", "100"},
                            {"CLIENT", "REPLY", "OFF"},
                            {"CLIENT", "REPLY", "skip"},
                            {"CLIENT", "TRACKING", "on"}}) {
    const std::string reply = say(command(words));
    EXPECT_TRUE(reply.starts_with("-ERR CLIENT " + words[1]) && reply.find("not supported: ") != reply.npos) << reply;
  }
  EXPECT_TRUE(say(command({"SET", "a", "1"}) + command({"OBJECT", "IDLETIME", "a"}))
                  .ends_with("knows only its own uses of a key\r\n"));
  EXPECT_TRUE(say(command({"OBJECT", "FREQ", "a"})).starts_with("-ERR An LFU maxmemory policy is not selected"));
  kv.policy = "volatile-lfu";
  EXPECT_TRUE(say(command({"OBJECT", "FREQ", "a"})).starts_with("-ERR access frequency not known"));
  EXPECT_EQ(say(command({"CONFIG", "GET", "maxmemory-policy"})),
            "*2\r\n$16\r\nmaxmemory-policy\r\n$12\r\nvolatile-lfu\r\n");
  EXPECT_EQ(say(command({"MEMORY", "USAGE", "a"})), ":2\r\n");
  EXPECT_EQ(say(command({"SET", "b", std::string(5000, 'b')}) + command({"LCS", "b", "b", "LEN"})),
            "+OK\r\n-ERR Insufficient memory, transient memory for LCS exceeds 64 MiB\r\n");
}

TEST_F(ConversationTest, ATransactionIsOneChangeOfItsKey) {
  EXPECT_EQ(say(command({"MULTI"})), "+OK\r\n");
  EXPECT_EQ(say(command({"SET", "a", "5"}) + command({"INCR", "a"}) + command({"PING"}) + command({"GET", "a"})),
            "+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
  EXPECT_TRUE(kv.log.empty());
  // MemoryKv asks each editor twice, as after a lost race: replies are those of the last time.
  EXPECT_EQ(say(command({"EXEC"})), "*4\r\n+OK\r\n:6\r\n+PONG\r\n$1\r\n6\r\n");
  EXPECT_EQ(kv.log, std::vector<std::string>{"a"});
  EXPECT_EQ(say(command({"GET", "a"})), "$1\r\n6\r\n");
  // A command that fails as it runs keeps the others from nothing.
  EXPECT_EQ(
      say(command({"MULTI"}) + command({"HSET", "a", "f", "v"}) + command({"DEL", "a"}) +
          command({"HSET", "a", "f", "v"}) + command({"EXEC"})),
      "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n-WRONGTYPE Operation against a key holding the wrong kind of "
      "value\r\n:1\r\n:1\r\n");
  EXPECT_EQ(say(command({"HGET", "a", "f"})), "$1\r\nv\r\n");
  EXPECT_EQ(say(command({"MULTI"}) + command({"EXEC"})), "+OK\r\n*0\r\n");
  EXPECT_EQ(say(command({"MULTI"}) + command({"ECHO", "x"}) + command({"EXEC"})),
            "+OK\r\n+QUEUED\r\n*1\r\n$1\r\nx\r\n");
  EXPECT_EQ(say(command({"MULTI"}) + command({"DEL", "a"}) + command({"EXEC"}) + command({"EXISTS", "a"})),
            "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n:0\r\n");
}

TEST_F(ConversationTest, ACommandThatNamesItsKeyAgainHasOneKey) {
  EXPECT_EQ(
      say(command({"MULTI"}) + command({"MSET", "a", "1", "a", "2"}) + command({"MGET", "a", "a"}) +
          command({"MSETNX", "a", "3"}) + command({"DEL", "a", "a"}) + command({"MSETNX", "a", "3", "a", "4"}) +
          command({"EXEC"})),
      "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*5\r\n+OK\r\n*2\r\n$1\r\n2\r\n$1\r\n2\r\n:0\r\n"
      ":1\r\n:1\r\n");
  EXPECT_EQ(kv.map["a"], "4");
  // It does not run alone.
  kv.hold = true;
  say(command({"MSET", "a", "5", "a", "6"}) + command({"GET", "b"}));
  EXPECT_EQ(kv.held(), 2u);
}

TEST_F(ConversationTest, SetsOneKeyIfThereIsNone) {
  EXPECT_TRUE(say(command({"MSETNX", "a", "1", "b", "2"})).starts_with("-ERR MSETNX of several keys is not supported"));
  EXPECT_TRUE(kv.map.empty());
  EXPECT_EQ(say(command({"MSETNX", "a", "1"}) + command({"MSETNX", "a", "2"})), ":1\r\n:0\r\n");
  EXPECT_EQ(kv.map["a"], "1");
}

TEST_F(ConversationTest, ATransactionKeepsTypesAndExpiries) {
  kv.now = 1'000'000;
  EXPECT_EQ(
      say(command({"MULTI"}) + command({"HSET", "h", "f", "1"}) + command({"PEXPIRE", "h", "500"}) + command({"EXEC"})),
      "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:1\r\n");
  EXPECT_EQ(say(command({"MULTI"}) + command({"HINCRBY", "h", "f", "2"}) + command({"PTTL", "h"}) + command({"EXEC"})),
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:3\r\n:500\r\n");
  kv.now += 501;
  EXPECT_EQ(say(command({"MULTI"}) + command({"HGET", "h", "f"}) + command({"APPEND", "h", "x"}) + command({"EXEC"})),
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n:1\r\n");
  EXPECT_EQ(say(command({"PTTL", "h"})), ":-1\r\n");
}

TEST_F(ConversationTest, WhatNoTransactionCanHaveEndsIt) {
  const auto fails = [this](const std::vector<std::string>& words, std::string_view says) {
    EXPECT_EQ(say(command({"MULTI"}) + command({"SET", "a", "1"})), "+OK\r\n+QUEUED\r\n");
    const std::string refusal = say(command(words));
    EXPECT_NE(refusal.find(says), std::string::npos) << refusal;
    EXPECT_EQ(say(command({"SET", "a", "2"})), "+QUEUED\r\n");
    // Redis's sentence, and what Redis would not have refused.
    const std::string_view own = "-ERR not queued: ";
    const std::string first = refusal.starts_with(own) ? " The first: " + refusal.substr(5) : "\r\n";
    EXPECT_EQ(say(command({"EXEC"})), "-EXECABORT Transaction discarded because of previous errors." + first);
  };
  fails({"GET", "b"}, "all commands of a transaction of this pool have one key");
  fails({"MSET", "a", "1", "b", "2"}, "send mset without MULTI");
  fails({"MSET", "a", "1", "a", "2", "b", "2"}, "send mset without MULTI");
  fails({"MSET", "b", "1", "b", "2"}, "all commands of a transaction of this pool have one key");
  fails({"MSETNX", "a", "1", "b", "2"}, "MSETNX of several keys is not supported");
  fails({"DBSIZE"}, "send dbsize without MULTI");
  fails({"SCAN", "0"}, "send scan without MULTI");
  fails({"RENAME", "a", "b"}, "send rename without MULTI");
  fails({"HELLO", "3"}, "send hello without MULTI");
  fails({"NOSUCH"}, "unknown command");
  fails({"GET"}, "wrong number of arguments");
  EXPECT_TRUE(kv.map.empty());
  // These do not.
  EXPECT_EQ(say(command({"MULTI"}) + command({"MULTI"}) + command({"WATCH", "a"}) + command({"EXEC"})),
            "+OK\r\n-ERR MULTI calls can not be nested\r\n-ERR WATCH inside MULTI is not allowed\r\n*0\r\n");
  EXPECT_EQ(say(command({"EXEC"})), "-ERR EXEC without MULTI\r\n");
  EXPECT_EQ(say(command({"DISCARD"})), "-ERR DISCARD without MULTI\r\n");
  EXPECT_EQ(say(command({"MULTI"}) + command({"INCR", "a"}) + command({"DISCARD"}) + command({"INCR", "a"})),
            "+OK\r\n+QUEUED\r\n+OK\r\n:1\r\n");
  EXPECT_EQ(say(command({"MULTI"}) + command({"INCR", "a"}) + command({"RESET"}) + command({"INCR", "a"})),
            "+OK\r\n+QUEUED\r\n+RESET\r\n:2\r\n");
  EXPECT_EQ(say(command({"MULTI"}) + command({"QUIT"}) + command({"INCR", "a"})), "+OK\r\n+OK\r\n");
  EXPECT_TRUE(talk().closing());
}

TEST_F(ConversationTest, ATransactionIsBounded) {
  settings.max_pipeline = 3;
  EXPECT_EQ(say(command({"MULTI"})), "+OK\r\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(say(command({"INCR", "a"})), "+QUEUED\r\n");
  EXPECT_EQ(say(command({"INCR", "a"})), "-ERR not queued: the transaction is too long: 3 commands of 15 bytes\r\n");
  EXPECT_EQ(
      say(command({"EXEC"})),
      "-EXECABORT Transaction discarded because of previous errors. The first: not queued: the transaction is too "
      "long: 3 commands of 15 bytes\r\n");
  settings.max_queued_bytes = 100;
  EXPECT_EQ(say(command({"MULTI"}) + command({"SET", "a", std::string(60, 'x')})), "+OK\r\n+QUEUED\r\n");
  EXPECT_TRUE(say(command({"SET", "a", std::string(60, 'x')})).starts_with("-ERR not queued: the transaction is too"));
  EXPECT_TRUE(say(command({"EXEC"})).starts_with("-EXECABORT "));
  settings.max_reply_bytes = 50;
  EXPECT_EQ(
      say(command({"MULTI"}) + command({"SET", "a", std::string(60, 'x')}) + command({"GET", "a"}) + command({"EXEC"})),
      "+OK\r\n+QUEUED\r\n+QUEUED\r\n-ERR nothing was done: the replies of the transaction are too long\r\n");
  EXPECT_TRUE(kv.map.empty());
}

TEST_F(ConversationTest, WatchSeesWhetherTheKeyHasChanged) {
  const auto change = command({"MULTI"}) + command({"SET", "a", "mine"}) + command({"EXEC"});
  EXPECT_EQ(say(command({"SET", "a", "1"}) + command({"WATCH", "a"})), "+OK\r\n+OK\r\n");
  kv.map["a"] = "2";
  EXPECT_EQ(say(change), "+OK\r\n+QUEUED\r\n*-1\r\n");
  EXPECT_EQ(kv.map["a"], "2");
  EXPECT_EQ(say(change), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n") << "EXEC ends what WATCH began";
  EXPECT_EQ(say(command({"WATCH", "a"}) + change), "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
  // A key that is not there may come.
  EXPECT_EQ(say(command({"WATCH", "b"})), "+OK\r\n");
  kv.map["b"] = "";
  EXPECT_EQ(say(command({"MULTI"}) + command({"GET", "b"}) + command({"EXEC"})), "+OK\r\n+QUEUED\r\n*-1\r\n");
  EXPECT_EQ(say(command({"WATCH", "b"})), "+OK\r\n");
  kv.map.erase("b");
  EXPECT_EQ(say(command({"MULTI"}) + command({"EXEC"})), "+OK\r\n*-1\r\n");
  // UNWATCH, DISCARD and RESET end it, too.
  for (const std::string& end : {command({"UNWATCH"}), command({"MULTI"}) + command({"DISCARD"}), command({"RESET"})}) {
    say(command({"WATCH", "a"}) + end);
    kv.map["a"] += "!";
    EXPECT_EQ(say(change), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
  }
  // What was seen first counts.
  EXPECT_EQ(say(command({"WATCH", "a"}) + command({"SET", "a", "x"}) + command({"WATCH", "a"}) + change),
            "+OK\r\n+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n");
  // One key.
  EXPECT_TRUE(say(command({"WATCH", "a", "b"})).starts_with("-ERR WATCH of several keys is not supported"));
  EXPECT_EQ(say(command({"WATCH", "b"})), "+OK\r\n");
  EXPECT_TRUE(say(command({"WATCH", "a"})).starts_with("-ERR WATCH of several keys is not supported"));
  EXPECT_TRUE(say(change).starts_with("+OK\r\n+QUEUED\r\n-EXECABORT Transaction discarded: WATCH named another key"));
}

TEST_F(ConversationTest, APoolThatFailsSaysWhatBecameOfATransaction) {
  kv.failure = {base::Code::unknown_outcome, "a memory node went away"};
  const std::uint64_t before = counters.unknown_outcomes.get();
  EXPECT_EQ(say(command({"MULTI"}) + command({"INCR", "a"}) + command({"EXEC"})),
            "+OK\r\n+QUEUED\r\n-UNKNOWNOUTCOME the command may or may not have taken effect: a memory node went "
            "away\r\n");
  EXPECT_EQ(counters.unknown_outcomes.get(), before + 1);
  EXPECT_TRUE(say(command({"WATCH", "a"})).starts_with("-UNKNOWNOUTCOME "));
}

// A WATCH that is still being carried out when its connection is reset watches nothing.
TEST_F(ConversationTest, AResetOvertakesAWatch) {
  kv.hold = true;
  EXPECT_EQ(say(command({"WATCH", "a"}) + command({"RESET"})), "");
  kv.release(0);
  kv.hold = false;
  EXPECT_EQ(say(""), "+OK\r\n+RESET\r\n");
  kv.map["a"] = "other";
  EXPECT_EQ(say(command({"MULTI"}) + command({"GET", "a"}) + command({"EXEC"})),
            "+OK\r\n+QUEUED\r\n*1\r\n$5\r\nother\r\n");
}

TEST_F(ConversationTest, UnsubscribesFromNothing) {
  const std::string none = "\r\n$11\r\nunsubscribe\r\n";
  EXPECT_EQ(say(command({"UNSUBSCRIBE"})), "*3" + none + "$-1\r\n:0\r\n");
  EXPECT_EQ(say(command({"UNSUBSCRIBE", "a", "b"})), "*3" + none + "$1\r\na\r\n:0\r\n*3" + none + "$1\r\nb\r\n:0\r\n");
  say(command({"HELLO", "3"}));
  EXPECT_EQ(say(command({"UNSUBSCRIBE"})), ">3" + none + "_\r\n:0\r\n");
  // A reply is many times as long as the command.
  settings.max_reply_bytes = 10'000;
  std::vector<std::string> channels(400);
  channels[0] = "PUNSUBSCRIBE";
  EXPECT_EQ(say(command(channels)), "-ERR the reply would be larger than 10000 bytes: name fewer channels at once\r\n");
  EXPECT_EQ(say(command({"PING"})), "+PONG\r\n");
}

TEST_F(ConversationTest, HelpsWithSubcommands) {
  for (const char* container : {"CLIENT", "COMMAND", "CONFIG"}) {
    const std::string text = say(command({container, "HELP"}));
    EXPECT_NE(text.find(std::string("+") + container + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("+HELP\r\n"), std::string::npos) << text;
    EXPECT_TRUE(say(command({container, "HELP", "x"})).starts_with("-ERR wrong number of arguments for"));
  }
}

TEST_F(ConversationTest, TellsTheLimitThatABulkStringExceeds) {
  EXPECT_EQ(say(command({"CONFIG", "GET", "proto-max-bulk-len"})),
            "*2\r\n$18\r\nproto-max-bulk-len\r\n$7\r\n8388608\r\n");
  EXPECT_EQ(say("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$8388609\r\n"),
            "-ERR Protocol error: invalid bulk length: a key, value or other argument may have at most 8388608 bytes "
            "here\r\n");
}

TEST_F(ConversationTest, AsksForThePasswordFirst) {
  service.passwords.password = "secret";
  EXPECT_EQ(say(command({"GET", "a"})), "-NOAUTH Authentication required.\r\n");
  EXPECT_EQ(say(command({"AUTH", "wrong"})), "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
  EXPECT_EQ(say(command({"AUTH", "secret2"})), "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
  EXPECT_EQ(say(command({"AUTH", "other", "secret"})),
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
  EXPECT_EQ(counters.failed_authentications.get(), 3u);
  EXPECT_EQ(say(command({"AUTH", "secret"}) + command({"GET", "a"})), "+OK\r\n$-1\r\n");
  EXPECT_EQ(say(command({"RESET"}) + command({"GET", "a"})), "+RESET\r\n-NOAUTH Authentication required.\r\n");
  EXPECT_TRUE(say(command({"HELLO", "3", "AUTH", "default", "secret", "SETNAME", "me"}) + command({"GET", "a"}))
                  .ends_with("_\r\n"));
  EXPECT_EQ(say(command({"CLIENT", "GETNAME"})), "$2\r\nme\r\n");
}

// While applications change from one password to another, both open the pool, and connections that are open notice nothing.
TEST_F(ConversationTest, TakesEitherOfTwoPasswords) {
  service.passwords = {.password = "old", .also = "newer"};
  for (const char* password : {"old", "newer"}) {
    EXPECT_EQ(say(command({"AUTH", password}) + command({"GET", "a"})), "+OK\r\n$-1\r\n") << password;
    EXPECT_EQ(say(command({"RESET"}) + command({"GET", "a"})), "+RESET\r\n-NOAUTH Authentication required.\r\n");
  }
  const std::string wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
  for (const char* password : {"", "ol", "new", "oldnewer", "older"}) {
    EXPECT_EQ(say(command({"AUTH", password})), wrong) << password;
  }
  EXPECT_EQ(counters.failed_authentications.get(), 5u);
  EXPECT_EQ(say(command({"AUTH", "old"})), "+OK\r\n");
  service.passwords = {.password = "newer"};
  EXPECT_EQ(say(command({"GET", "a"})), "$-1\r\n") << "a connection that is open stays so";
  EXPECT_EQ(say(command({"RESET"}) + command({"AUTH", "old"})), "+RESET\r\n" + wrong);
  EXPECT_EQ(say(command({"AUTH", ""})), wrong) << "no second password is no empty one";
  EXPECT_EQ(say(command({"AUTH", "newer"})), "+OK\r\n");
}

TEST_F(ConversationTest, ChangesTheProtocolFromTheNextReplyOn) {
  kv.hold = true;
  say(command({"GET", "a"}) + command({"HELLO", "3"}) + command({"GET", "b"}));
  kv.release(1);
  kv.release(0);
  const std::string reply = say("");
  EXPECT_TRUE(reply.starts_with("$-1\r\n%7\r\n")) << reply;
  EXPECT_TRUE(reply.ends_with("_\r\n")) << reply;
}

TEST_F(ConversationTest, EndsAfterQuitAndAfterErrorsOfTheProtocol) {
  EXPECT_EQ(say(command({"SET", "a", "1"}) + "*1\r\n$x\r\n" + command({"SET", "a", "2"})),
            "+OK\r\n-ERR Protocol error: invalid bulk length\r\n");
  EXPECT_TRUE(talk().closing());
  EXPECT_EQ(kv.map["a"], "1");
  conversation.reset();
  input.clear();
  EXPECT_EQ(say(command({"QUIT"}) + command({"SET", "a", "2"})), "+OK\r\n");
  EXPECT_TRUE(talk().closing());
  EXPECT_EQ(kv.map["a"], "1");
  conversation.reset();
  input.clear();
  EXPECT_EQ(say("POST / HTTP/1.1\r\nHost: a\r\n\r\n" + command({"SET", "a", "2"})), "");
  EXPECT_TRUE(talk().closing());
  EXPECT_EQ(kv.map["a"], "1");
}

TEST_F(ConversationTest, DrainsWhatItHasRead) {
  kv.hold = true;
  say(command({"SET", "a", "1"}) + command({"SET", "a", "2"}));
  talk().drain();
  say(command({"SET", "a", "3"}));
  while (kv.held() > 0) {
    kv.release(0);
    pump();
  }
  EXPECT_EQ(output, "+OK\r\n+OK\r\n");
  EXPECT_EQ(kv.map["a"], "2");
  EXPECT_TRUE(talk().idle());
}

TEST_F(ConversationTest, RunsWhatHasComeOfAClientThatIsGone) {
  kv.hold = true;
  say(command({"SET", "a", "1"}) + command({"SET", "a", "2"}) + command({"PING"}));
  talk().abandon();
  EXPECT_FALSE(talk().idle());
  while (kv.held() > 0) {
    kv.release(0);
    pump();
  }
  EXPECT_TRUE(talk().idle());
  EXPECT_EQ(kv.map["a"], "2");
}

TEST_F(ConversationTest, BeginsNothingMoreOnceItIsCut) {
  kv.hold = true;
  say(command({"SET", "a", "1"}) + command({"SET", "a", "2"}) + command({"PING"}));
  talk().cut();
  EXPECT_FALSE(talk().idle());
  kv.release(0);
  pump();
  EXPECT_TRUE(talk().idle());
  EXPECT_EQ(kv.map["a"], "1");
}

TEST_F(ConversationTest, DescribesItself) {
  EXPECT_TRUE(say(command({"CLIENT", "SETINFO", "LIB-NAME", "tester"})) == "+OK\r\n");
  const std::string list = say(command({"CLIENT", "LIST"}));
  EXPECT_NE(list.find("id=7 addr=1.2.3.4:5 laddr=6.7.8.9:10"), std::string::npos) << list;
  EXPECT_NE(list.find("cmd=client|list"), std::string::npos) << list;
  EXPECT_NE(list.find("lib-name=tester"), std::string::npos) << list;
  kv.map["x"] = "1";
  service.info = [] { return std::string("# Pool\r\nepoch:3\r\n"); };
  const std::string info = say(command({"INFO"}));
  for (const char* part : {"# Server\r\n", "farpool_version:test\r\n", "# Pool\r\nepoch:3\r\n", "db0:keys=1,"}) {
    EXPECT_NE(info.find(part), std::string::npos) << part;
  }
  for (const char* part :
       {"\r\nused_memory:", "\r\nblocked_clients:0\r\n", "\r\nuptime_in_seconds:", "\r\ntcp_port:10\r\n",
        "\r\ntotal_connections_received:0\r\n", "\r\ntotal_commands_processed:", "\r\nkeyspace_hits:0\r\n",
        "\r\nrejected_connections:0\r\n", "\r\nused_cpu_user:", "\r\nmem_clients_normal:"}) {
    EXPECT_NE(info.find(part), std::string::npos) << part << "\n" << info;
  }
  // The sum over all workers, where there are several.
  Counters other;
  other.hits.add(7);
  other.connections.add(2);
  service.figures = [&] { return Figures{{&counters, &other}, 3, 4, 5}; };
  const std::string all = say(command({"GET", "x"}) + command({"INFO"}));
  for (const char* part : {"keyspace_hits:8\r\n", "connected_clients:2\r\n", "rejected_connections:3\r\n",
                           "expired_keys:4\r\n", "evicted_keys:5\r\n", "maxmemory_policy:noeviction\r\n"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
  }
  EXPECT_NE(say(command({"INFO", "commandstats"})).find("cmdstat_client|list:calls=1,"), std::string::npos);
  EXPECT_EQ(say(command({"INFO", "keyspace"})), "$44\r\n# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n\r\n");
}

TEST(Table, IsSortedAndWhole) {
  std::string_view before;
  for (const CommandSpec& spec : commands()) {
    EXPECT_LT(before, spec.name);
    before = spec.name;
    EXPECT_EQ(find_command(spec.name), &spec);
    EXPECT_TRUE(spec.instant != nullptr || spec.operation != nullptr || !spec.subcommands.empty()) << spec.name;
    EXPECT_FALSE(spec.summary.empty() || spec.since.empty() || spec.group.empty()) << spec.name;
    EXPECT_EQ(command_at(number_of(spec)), &spec);
    std::string_view before_sub;
    for (const CommandSpec& sub : spec.subcommands) {
      EXPECT_LT(before_sub, sub.name);
      before_sub = sub.name;
      EXPECT_EQ(find_subcommand(spec, sub.short_name()), &sub);
      EXPECT_EQ(command_at(number_of(sub)), &sub);
    }
  }
  EXPECT_EQ(find_command("GeT"), find_command("get"));
  EXPECT_EQ(find_command("getx"), nullptr);
}

TEST(Latencies, LandInTheirBucket) {
  Latencies latencies;
  latencies.record(0);
  latencies.record(1000);
  latencies.record(1001);
  latencies.record(4'000'000);
  latencies.record(base::kSecond * 100);
  EXPECT_EQ(latencies.bucket(0), 2u);
  EXPECT_EQ(latencies.bucket(1), 1u);
  EXPECT_EQ(latencies.bucket(12), 1u);
  EXPECT_EQ(latencies.bucket(Latencies::kBuckets), 1u);
}

}  // namespace
}  // namespace farpool::front::resp
