// SPDX-License-Identifier: Apache-2.0
// Commands on hashes to redis-server and to this front end.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "front/resp/differential_test.h"

namespace farpool::front::resp {
namespace {

// Hashes that Redis keeps in the order in which their fields were set.
const std::vector<Words>& script() {
  static const std::string nul("a\0b\r\nc", 6);
  static const std::vector<Words> commands{
      // Setting and reading
      {"HGET", "h", "a"},
      {"HGETALL", "h"},
      {"HKEYS", "h"},
      {"HVALS", "h"},
      {"HLEN", "h"},
      {"HEXISTS", "h", "a"},
      {"HSTRLEN", "h", "a"},
      {"HMGET", "h", "a", "b"},
      {"HDEL", "h", "a"},
      {"HSET", "h", "b", "1", "a", "2"},
      {"HSET", "h", "a", "3", "c", "4", "c", "5"},
      {"HGETALL", "h"},
      {"HKEYS", "h"},
      {"HVALS", "h"},
      {"HLEN", "h"},
      {"HGET", "h", "a"},
      {"HGET", "h", "nope"},
      {"HGET", "h", "A"},
      {"HMGET", "h", "a", "nope", "c", "a"},
      {"HEXISTS", "h", "a"},
      {"HEXISTS", "h", "nope"},
      {"HSTRLEN", "h", "a"},
      {"HSTRLEN", "h", "nope"},
      {"HSETNX", "h", "a", "9"},
      {"HSETNX", "h", "d", "9"},
      {"HMSET", "h", "a", "7", "e", ""},
      {"HGETALL", "h"},
      {"HSTRLEN", "h", "e"},
      {"HSET", "h", "", "empty", nul, nul},
      {"HGET", "h", ""},
      {"HGET", "h", nul},
      {"HSTRLEN", "h", nul},
      {"HDEL", "h", "a", "a", "nope", nul},
      {"HGETALL", "h"},
      {"HSET", "h", "a", "again"},
      {"HKEYS", "h"},
      // Wrong numbers of words
      {"HSET"},
      {"HSET", "h"},
      {"HSET", "h", "a"},
      {"HSET", "h", "a", "1", "b"},
      {"HMSET", "h", "a", "1", "b"},
      {"hmset", "h", "a"},
      {"HSETNX", "h", "a"},
      {"HSETNX", "h", "a", "1", "b", "2"},
      {"HGET", "h"},
      {"HGET", "h", "a", "b"},
      {"HMGET", "h"},
      {"HGETALL"},
      {"HGETALL", "h", "x"},
      {"HKEYS", "h", "x"},
      {"HVALS", "h", "x"},
      {"HLEN"},
      {"HDEL", "h"},
      {"HEXISTS", "h"},
      {"HSTRLEN", "h"},
      {"HINCRBY", "h", "a"},
      {"HINCRBYFLOAT", "h", "a"},
      {"HRANDFIELD"},
      {"HSCAN", "h"},
      // A hash without fields is no key
      {"HSET", "gone", "a", "1", "b", "2"},
      {"EXISTS", "gone"},
      {"HDEL", "gone", "b", "a", "c"},
      {"EXISTS", "gone"},
      {"TYPE", "gone"},
      {"HLEN", "gone"},
      {"DBSIZE"},
      // Numbers
      {"HINCRBY", "n", "a", "5"},
      {"HINCRBY", "n", "a", "-7"},
      {"HGET", "n", "a"},
      {"HINCRBY", "n", "a", "x"},
      {"HINCRBY", "n", "a", "1.5"},
      {"HINCRBY", "n", "a", ""},
      {"HINCRBY", "n", "a", "9223372036854775808"},
      {"HSET", "n", "max", "9223372036854775807", "min", "-9223372036854775808", "word", "abc", "space", " 1"},
      {"HINCRBY", "n", "max", "1"},
      {"HINCRBY", "n", "min", "-1"},
      {"HINCRBY", "n", "max", "-9223372036854775808"},
      {"HINCRBY", "n", "word", "1"},
      {"HINCRBY", "n", "space", "1"},
      {"HINCRBYFLOAT", "n", "f", "10.5"},
      {"HINCRBYFLOAT", "n", "f", "0.1"},
      {"HINCRBYFLOAT", "n", "f", "-10.6"},
      {"HINCRBYFLOAT", "n", "f", "5e3"},
      {"HINCRBYFLOAT", "n", "a", "1.5"},
      {"HINCRBY", "n", "a", "1"},
      {"HINCRBYFLOAT", "n", "f", "x"},
      {"HINCRBYFLOAT", "n", "f", ""},
      {"HINCRBYFLOAT", "n", "f", " 1"},
      {"HINCRBYFLOAT", "n", "f", "nan"},
      {"HINCRBYFLOAT", "n", "f", "inf"},
      {"HINCRBYFLOAT", "n", "f", "-inf"},
      {"HINCRBYFLOAT", "n", "f", "1e5000"},
      {"HINCRBYFLOAT", "n", "word", "1"},
      {"HINCRBYFLOAT", "n", "space", "1"},
      {"HSET", "n", "inf", "inf"},
      {"HINCRBYFLOAT", "n", "inf", "1"},
      {"HGETALL", "n"},
      {"HINCRBYFLOAT", "new", "f", "3.0"},
      {"HINCRBY", "new2", "f", "x"},
      {"EXISTS", "new2"},
      // Wrong types, both ways
      {"SET", "s", "text"},
      {"HSET", "s", "a", "1"},
      {"HSET", "s", "a"},
      {"HSET", "s", "a", "1", "b"},
      {"HMSET", "s", "a", "1"},
      {"HSETNX", "s", "a", "1"},
      {"HGET", "s", "a"},
      {"HMGET", "s", "a"},
      {"HGETALL", "s"},
      {"HKEYS", "s"},
      {"HVALS", "s"},
      {"HLEN", "s"},
      {"HDEL", "s", "a"},
      {"HEXISTS", "s", "a"},
      {"HSTRLEN", "s", "a"},
      {"HINCRBY", "s", "a", "1"},
      {"HINCRBY", "s", "a", "x"},
      {"HINCRBYFLOAT", "s", "a", "1"},
      {"HINCRBYFLOAT", "s", "a", "x"},
      {"HRANDFIELD", "s"},
      {"HRANDFIELD", "s", "1"},
      {"HRANDFIELD", "s", "0"},
      {"HRANDFIELD", "s", "x"},
      {"HSCAN", "s", "0"},
      {"HSCAN", "s", "x"},
      {"HSCAN", "s", "0", "FOO"},
      {"GET", "s"},
      {"GET", "h"},
      {"STRLEN", "h"},
      {"GETRANGE", "h", "0", "-1"},
      {"GETDEL", "h"},
      {"GETSET", "h", "x"},
      {"GETEX", "h"},
      {"GETEX", "h", "EX", "100"},
      {"GETEX", "h", "PERSIST"},
      {"SET", "h", "x", "GET"},
      {"SET", "h", "x", "NX"},
      {"SET", "h", "x", "NX", "GET"},
      {"SET", "h", "x", "XX", "GET"},
      {"SET", "h", "x", "KEEPTTL", "GET"},
      {"SETNX", "h", "x"},
      {"APPEND", "h", "x"},
      {"SETRANGE", "h", "1", "x"},
      {"SETRANGE", "h", "1", ""},
      {"INCR", "h"},
      {"DECRBY", "h", "2"},
      {"INCRBYFLOAT", "h", "2"},
      {"MGET", "h", "s", "nope"},
      {"EXISTS", "h", "s"},
      {"TYPE", "h"},
      {"TYPE", "s"},
      {"HGETALL", "h"},
      {"HSET", "o", "a", "1"},
      {"SET", "o", "x"},
      {"GET", "o"},
      {"DEL", "o"},
      {"HSET", "o", "a", "1"},
      {"SET", "o", "x", "XX"},
      {"DEL", "o"},
      {"HSET", "o", "a", "1"},
      {"SETEX", "o", "100", "x"},
      {"DEL", "o"},
      {"HSET", "o", "a", "1"},
      {"MSET", "o", "x", "p", "y"},
      {"MGET", "o", "p"},
      {"DEL", "o", "p"},
      {"HSET", "o", "a", "1"},
      {"EXPIREAT", "o", "9999999999"},
      {"SET", "o", "x", "KEEPTTL"},
      {"EXPIRETIME", "o"},
      {"UNLINK", "o"},
      // Expiry
      {"HSET", "x", "a", "1"},
      {"TTL", "x"},
      {"EXPIRE", "x", "100"},
      {"TTL", "x"},
      {"HSET", "x", "b", "2"},
      {"TTL", "x"},
      {"HSETNX", "x", "c", "2"},
      {"HINCRBY", "x", "a", "1"},
      {"HINCRBYFLOAT", "x", "a", "1.5"},
      {"HDEL", "x", "b"},
      {"TTL", "x"},
      {"HGETALL", "x"},
      {"TYPE", "x"},
      {"GET", "x"},
      {"EXPIRE", "x", "50", "GT"},
      {"PEXPIREAT", "x", "9999999999501", "GT"},
      {"PEXPIRETIME", "x"},
      {"PERSIST", "x"},
      {"PERSIST", "x"},
      {"TTL", "x"},
      {"HGETALL", "x"},
      {"EXPIRE", "x", "100"},
      {"HDEL", "x", "a", "c"},
      {"TTL", "x"},
      {"HSET", "x", "a", "1"},
      {"TTL", "x"},
      {"EXPIREAT", "x", "1"},
      {"EXISTS", "x"},
      {"HGETALL", "x"},
      {"HSET", "x", "fresh", "1"},
      {"EXPIRE", "x", "-1"},
      {"HLEN", "x"},
      // HRANDFIELD
      {"HRANDFIELD", "nope"},
      {"HRANDFIELD", "nope", "1"},
      {"HRANDFIELD", "nope", "-1", "WITHVALUES"},
      {"HSET", "one", "only", "value"},
      {"HRANDFIELD", "one"},
      {"HRANDFIELD", "one", "1"},
      {"HRANDFIELD", "one", "5"},
      {"HRANDFIELD", "one", "-3"},
      {"HRANDFIELD", "one", "0"},
      {"HRANDFIELD", "one", "1", "WITHVALUES"},
      {"HRANDFIELD", "one", "-2", "withvalues"},
      {"HRANDFIELD", "one", "0", "withvalues"},
      {"HRANDFIELD", "h", "100"},
      {"HRANDFIELD", "h", "100", "WITHVALUES"},
      {"HRANDFIELD", "h", "9223372036854775807"},
      {"HRANDFIELD", "h", "9223372036854775807", "WITHVALUES"},
      {"HRANDFIELD", "h", "-9223372036854775808"},
      {"HRANDFIELD", "h", "-9223372036854775807", "WITHVALUES"},
      {"HRANDFIELD", "h", "9223372036854775808"},
      {"HRANDFIELD", "h", "x"},
      {"HRANDFIELD", "h", "x", "FOO"},
      {"HRANDFIELD", "h", "1", "FOO"},
      {"HRANDFIELD", "h", "1", "WITHVALUES", "x"},
      {"HRANDFIELD", "nope", "x"},
      {"HRANDFIELD", "nope", "1", "FOO"},
      // HSCAN
      {"HSCAN", "h", "0"},
      {"HSCAN", "h", "0", "COUNT", "1"},
      {"HSCAN", "h", "7"},
      {"HSCAN", "h", "0", "MATCH", "[a-c]"},
      {"HSCAN", "h", "0", "match", "nothing*", "count", "100"},
      {"HSCAN", "h", "0", "MATCH"},
      {"HSCAN", "h", "0", "COUNT", "0"},
      {"HSCAN", "h", "0", "COUNT", "x"},
      {"HSCAN", "h", "0", "TYPE", "hash"},
      {"HSCAN", "h", "0", "FOO", "1"},
      {"HSCAN", "h", "x"},
      {"HSCAN", "h", "18446744073709551616"},
      {"HSCAN", "nope", "0"},
      {"HSCAN", "nope", "x"},
      {"HSCAN", "nope", "0", "FOO"},
      // All keys
      {"DEL", "one", "new", "n", "s"},
      {"SET", "s", "text"},
      {"DBSIZE"},
      {"SCAN", "0", "COUNT", "1000", "TYPE", "hash"},
      {"SCAN", "0", "COUNT", "1000", "TYPE", "HASH"},
      {"SCAN", "0", "COUNT", "1000", "TYPE", "string"},
      {"SCAN", "0", "COUNT", "1000", "TYPE", "zset"},
      {"SCAN", "0", "COUNT", "1000", "TYPE", "hash", "MATCH", "s*"},
      {"FLUSHALL"},
      {"HGETALL", "h"},
  };
  return commands;
}

TEST_F(Differential, HashesInResp2) {
  start();
  compare_each(script());
}

TEST_F(Differential, HashesInResp3) {
  start();
  compare({{"HELLO", "3"}});
  compare_each(script());
}

TEST_F(Differential, HashesInOnePipeline) {
  start();
  compare(script());
}

TEST_F(Differential, CountsHitsAndMissesOfHashes) {
  start();
  std::vector<Words> commands = script();
  // Redis counts what these look at to choose by type.
  std::erase_if(commands, [](const Words& words) { return words[0] == "SCAN"; });
  compare(commands);
  EXPECT_EQ(hits_and_misses(*here_), hits_and_misses(*there_));
}

// Beyond what Redis keeps in order: the same fields, in any order.
TEST_F(Differential, LargeHashesHaveTheSameFields) {
  start();
  for (int i = 0; i < 2000; ++i) {
    const std::string number = std::to_string(i);
    compare({{"HSET", "many", "field" + number, number}});
  }
  compare({{"HSET", "long", "a", std::string(65, 'x'), std::string(65, 'b'), "y", "c", "z"}});
  const auto same = [&](const Words& words) {
    there_->send(encode(words));
    here_->send(encode(words));
    EXPECT_EQ(sorted(here_->reply()), sorted(there_->reply())) << text_of(words);
  };
  for (const char* key : {"many", "long"}) {
    same({"HGETALL", key});
    same({"HKEYS", key});
    same({"HVALS", key});
    same({"HRANDFIELD", key, "5000", "WITHVALUES"});
    compare({{"HLEN", key}, {"HGET", key, "a"}, {"HGET", key, "field1999"}, {"HSTRLEN", key, "field7"}});
  }
  for (int i = 0; i < 2000; i += 3) compare({{"HDEL", "many", "field" + std::to_string(i), "nope"}});
  for (int i = 0; i < 2000; i += 7) compare({{"HINCRBY", "many", "field" + std::to_string(i), "5"}});
  same({"HGETALL", "many"});
  compare({{"HLEN", "many"}, {"DEL", "many", "long"}, {"DBSIZE"}});
}

}  // namespace
}  // namespace farpool::front::resp
