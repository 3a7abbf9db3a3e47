// SPDX-License-Identifier: Apache-2.0
// The same commands to redis-server and to this front end, over real sockets: every reply is equal byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "base/random.h"
#include "front/resp/differential_test.h"

namespace farpool::front::resp {
namespace {

const std::vector<Words>& script() {
  static const std::string nul("a\0b\r\nc", 6);
  static const std::vector<Words> commands{
      // Connection
      {"PING"},
      {"ping", "hello"},
      {"PING", "a", "b"},
      {"ECHO", nul},
      {"ECHO"},
      {"SELECT", "0"},
      {"SELECT", "1"},
      {"SELECT", "-1"},
      {"SELECT", "x"},
      {"SELECT", "99999999999"},
      {"SELECT", "9223372036854775808"},
      {"AUTH", "x"},
      {"AUTH", "default", "x"},
      {"AUTH", "other", "x"},
      {"AUTH", "a", "b", "c"},
      {"AUTH"},
      {"HELLO", "4"},
      {"HELLO", "1"},
      {"HELLO", "x"},
      {"HELLO", "2", "SETNAME"},
      {"HELLO", "2", "SETNAME", "a b"},
      {"HELLO", "2", "AUTH", "x"},
      {"HELLO", "2", "AUTH", "nobody", "x"},
      {"HELLO", "2", "FOO"},
      {"CLIENT", "GETNAME"},
      {"CLIENT", "SETNAME", "me"},
      {"CLIENT", "GETNAME"},
      {"CLIENT", "SETNAME", "a\nb"},
      {"CLIENT", "SETNAME", ""},
      {"CLIENT", "GETNAME"},
      {"CLIENT", "NO-EVICT", "on"},
      {"CLIENT", "NO-EVICT", "maybe"},
      {"CLIENT", "GETNAME", "x"},
      {"CLIENT", "HELP", "x"},
      {"COMMAND", "HELP", "x"},
      {"CONFIG", "HELP", "x"},
      // A client that has subscribed to nothing
      {"UNSUBSCRIBE"},
      {"unsubscribe", "a", nul},
      {"PUNSUBSCRIBE"},
      {"PUNSUBSCRIBE", "a*", "a*"},
      {"SUNSUBSCRIBE"},
      {"SUNSUBSCRIBE", ""},
      // Outside of a transaction
      {"EXEC"},
      {"DISCARD"},
      {"EXEC", "x"},
      {"MULTI", "x"},
      {"WATCH"},
      {"UNWATCH"},
      {"UNWATCH", "x"},
      {"CLIENT"},
      {"CLIENT", "NOSUCH"},
      {"CLIENT", "NOSUCH", "a", "b"},
      {"client", "setname"},
      {"CLIENT", "LIST", "ID"},
      {"CLIENT", "LIST", "FOO"},
      {"CLIENT", "LIST", "ID", "x"},
      {"CLIENT", "LIST", "TYPE", "none"},
      {"CLIENT", "LIST", "TYPE", "pubsub"},
      {"CONFIG"},
      {"CONFIG", "GET"},
      {"CONFIG", "NOSUCH"},
      {"CONFIG", "GET", "save"},
      {"CONFIG", "GET", "appendonly"},
      {"CONFIG", "GET", "MaxMemory"},
      {"CONFIG", "GET", "databases"},
      {"CONFIG", "GET", "nosuch*"},
      {"COMMAND", "NOSUCH"},
      {"COMMAND", "COUNT", "x"},
      {"COMMAND", "LIST", "FILTERBY"},
      {"COMMAND", "DOCS", "nosuch"},
      {"COMMAND", "INFO", "nosuch"},
      {"DBSIZE"},
      {"DBSIZE", "x"},
      {"RESET"},
      {"RESET", "x"},
      // Unknown commands
      {"NOSUCH"},
      {"NOSUCH", "a", "b c", nul},
      {"NO\r\nSUCH", "x\ry\nz"},
      {std::string(200, 'x'), std::string(100, 'y'), std::string(100, 'z'), "w"},
      {std::string("a\0b", 3), std::string("c\0d", 3)},
      {""},
      {"", ""},
      {"NOSUCH", std::string(127, 'y'), "z"},
      {"NOSUCH", std::string(123, 'y'), "z"},
      // Strings
      {"GET", "a"},
      {"GET"},
      {"GET", "a", "b"},
      {"SET", "a", "1"},
      {"GET", "a"},
      {"SET", "a"},
      {"SET", "b", nul},
      {"GET", "b"},
      {"SET", "", ""},
      {"GET", ""},
      {"STRLEN", ""},
      {"DEL", ""},
      {"SET", "a", "2", "NX"},
      {"SET", "a", "3", "xx"},
      {"GET", "a"},
      {"SET", "no", "1", "XX"},
      {"SET", "no", "1", "XX", "GET"},
      {"SET", "a", "4", "GET"},
      {"SET", "a", "5", "NX", "GET"},
      {"GET", "a"},
      {"SET", "c", "6", "NX", "GET"},
      {"GET", "c"},
      {"SET", "a", "7", "NX", "XX"},
      {"SET", "a", "7", "XX", "NX"},
      {"SET", "a", "7", "KEEPTTL"},
      {"SET", "a", "8", "KEEPTTL", "EX", "10"},
      {"SET", "a", "8", "EX", "10", "PX", "10"},
      {"SET", "a", "8", "EX"},
      {"SET", "a", "8", "FOO"},
      {"SET", "a", "8", "GET", "GET"},
      {"SET", "a", "8", "KEEPTTL", "KEEPTTL", "GET"},
      {"SET", "a", "9", "PERSIST"},
      // Expiry
      {"SET", "x", "1", "EX", "100"},
      {"TTL", "x"},
      {"SET", "x", "2"},
      {"TTL", "x"},
      {"SET", "x", "2", "ex", "100", "EX", "50"},
      {"TTL", "x"},
      {"SET", "x", "3", "KEEPTTL"},
      {"TTL", "x"},
      {"GET", "x"},
      {"SET", "x", "4", "XX", "KEEPTTL", "GET"},
      {"TTL", "x"},
      {"SET", "x", "5", "NX", "KEEPTTL"},
      {"SET", "x", "5", "XX", "EX", "200"},
      {"TTL", "x"},
      {"SET", "x", "6", "PXAT", "99999999999999"},
      {"PEXPIRETIME", "x"},
      {"EXPIRETIME", "x"},
      {"SET", "x", "7", "EXAT", "9999999999", "GET"},
      {"EXPIRETIME", "x"},
      {"SET", "x", "8", "NX", "GET", "EX", "10"},
      {"EXPIRETIME", "x"},
      {"SET", "x", "9", "EX", "0"},
      {"SET", "x", "9", "EX", "-1"},
      {"SET", "x", "9", "EX", "x"},
      {"SET", "x", "9", "EX", "1.5"},
      {"SET", "x", "9", "EX", "9223372036854775807"},
      {"SET", "x", "9", "PX", "9223372036854775807"},
      {"SET", "x", "9", "PX", "9223372036854775808"},
      {"SET", "x", "9", "EXAT", "9223372036854775807"},
      {"SET", "x", "9", "EXAT", "9223372036854775"},
      {"EXPIRETIME", "x"},
      {"SET", "x", "9", "PXAT", "0"},
      {"SET", "x", "9", "EX", "10", "KEEPTTL"},
      {"SET", "x", "9", "PX", "10", "EXAT", "10"},
      {"SET", "x", "9", "PX"},
      {"SET", "x", "9", "EX", "x", "FOO"},
      {"SET", "x", "9", "EX", "100", "NX"},
      {"SET", "gone", "1", "PXAT", "1"},
      {"GET", "gone"},
      {"TTL", "gone"},
      {"EXISTS", "gone", "x"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"STRLEN", "gone"},
      {"TYPE", "gone"},
      {"MGET", "gone", "x"},
      {"DEL", "gone"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"SET", "gone", "2", "XX"},
      {"SET", "gone", "2", "NX"},
      {"GETDEL", "gone"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"GETDEL", "gone"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"GETSET", "gone", "2"},
      {"TTL", "gone"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"INCR", "gone"},
      {"TTL", "gone"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"APPEND", "gone", "a"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"SETRANGE", "gone", "1", "a"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"SETRANGE", "gone", "1", ""},
      {"SET", "gone", "1", "EXAT", "1"},
      {"INCRBYFLOAT", "gone", "1.5"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"SETNX", "gone", "2"},
      {"SETNX", "gone", "3"},
      {"SET", "gone", "1", "EXAT", "1"},
      {"KEYS", "gon*"},
      {"SCAN", "0", "MATCH", "gon*", "COUNT", "1000"},
      {"EXPIRE", "gone", "10"},
      {"PERSIST", "gone"},
      {"GETEX", "gone"},
      {"DEL", "gone"},
      {"SET", "x", "10", "EX", "100"},
      {"INCR", "x"},
      {"TTL", "x"},
      {"APPEND", "x", "5"},
      {"TTL", "x"},
      {"INCRBYFLOAT", "x", "0.5"},
      {"TTL", "x"},
      {"SETRANGE", "x", "0", "9"},
      {"TTL", "x"},
      {"GET", "x"},
      {"GETRANGE", "x", "-2", "-1"},
      {"STRLEN", "x"},
      {"GETSET", "x", "z"},
      {"TTL", "x"},
      {"PTTL", "x"},
      {"EXPIRETIME", "x"},
      {"PEXPIRETIME", "x"},
      {"TTL", "nope"},
      {"PTTL", "nope"},
      {"EXPIRETIME", "nope"},
      {"PEXPIRETIME", "nope"},
      {"TTL"},
      {"TTL", "x", "y"},
      {"EXPIRE", "x", "100"},
      {"TTL", "x"},
      {"EXPIRE", "x", "50", "NX"},
      {"EXPIRE", "x", "50", "GT"},
      {"TTL", "x"},
      {"EXPIRE", "x", "150", "gt"},
      {"TTL", "x"},
      {"EXPIRE", "x", "200", "LT"},
      {"EXPIRE", "x", "40", "lt"},
      {"TTL", "x"},
      {"EXPIRE", "x", "40", "XX"},
      {"EXPIRE", "x", "400", "XX", "GT"},
      {"TTL", "x"},
      {"EXPIRE", "x", "30", "XX", "LT", "XX"},
      {"TTL", "x"},
      {"PERSIST", "x"},
      {"PERSIST", "x"},
      {"TTL", "x"},
      {"EXPIRE", "x", "30", "XX"},
      {"EXPIRE", "x", "30", "GT"},
      {"EXPIRE", "x", "30", "LT"},
      {"TTL", "x"},
      {"PERSIST", "x"},
      {"EXPIRE", "x", "30", "NX"},
      {"TTL", "x"},
      {"PEXPIRE", "x", "100000"},
      {"TTL", "x"},
      {"EXPIREAT", "x", "9999999999"},
      {"EXPIRETIME", "x"},
      {"PEXPIREAT", "x", "9999999999001", "NX"},
      {"PEXPIREAT", "x", "9999999999001", "GT"},
      {"PEXPIRETIME", "x"},
      {"EXPIRETIME", "x"},
      {"PEXPIREAT", "x", "9999999999500"},
      {"EXPIRETIME", "x"},
      {"EXPIRE", "x", "10", "FOO"},
      {"EXPIRE", "x", "x", "FOO"},
      {"EXPIRE", "x", "10", "NX", "XX"},
      {"EXPIRE", "x", "10", "NX", "GT"},
      {"EXPIRE", "x", "10", "LT", "NX"},
      {"EXPIRE", "x", "10", "GT", "LT"},
      {"EXPIRE", "x", "x"},
      {"EXPIRE", "x", ""},
      {"EXPIRE", "x"},
      {"EXPIRE", "x", "9223372036854775807"},
      {"EXPIRE", "x", "9223372036854775"},
      {"EXPIRE", "x", "-9223372036854775808"},
      {"EXPIRE", "x", "-9223372036854775809"},
      {"PEXPIRE", "x", "9223372036854775807"},
      {"EXPIREAT", "x", "9223372036854775807"},
      {"EXPIRE", "nope", "9223372036854775807"},
      {"EXPIRE", "nope", "10"},
      {"EXPIRE", "x", "0"},
      {"GET", "x"},
      {"SET", "x", "1"},
      {"EXPIRE", "x", "-1"},
      {"EXISTS", "x"},
      {"SET", "x", "1"},
      {"EXPIREAT", "x", "1"},
      {"EXISTS", "x"},
      {"SET", "x", "1"},
      {"PEXPIREAT", "x", "-5"},
      {"DEL", "x"},
      {"SET", "x", "1"},
      {"PEXPIRE", "x", "-9223372036854775808"},
      {"DEL", "x"},
      {"SET", "x", "1"},
      {"PEXPIREAT", "x", "9223372036854775807"},
      {"PEXPIRETIME", "x"},
      {"SETEX", "x", "100", "v"},
      {"TTL", "x"},
      {"SETEX", "x", "0", "v"},
      {"SETEX", "x", "-5", "v"},
      {"SETEX", "x", "x", "v"},
      {"SETEX", "x", "9223372036854775807", "v"},
      {"SETEX", "x", "10"},
      {"PSETEX", "x", "100000", "w"},
      {"TTL", "x"},
      {"PSETEX", "x", "0", "w"},
      {"PSETEX", "x", "9223372036854775807", "w"},
      {"GET", "x"},
      {"GETEX", "x"},
      {"GETEX", "x", "PERSIST"},
      {"TTL", "x"},
      {"GETEX", "x", "EX", "100"},
      {"TTL", "x"},
      {"GETEX", "x", "px", "50000"},
      {"TTL", "x"},
      {"GETEX", "x", "EXAT", "9999999999"},
      {"EXPIRETIME", "x"},
      {"GETEX", "x", "PXAT", "9999999999001"},
      {"PEXPIRETIME", "x"},
      {"GETEX", "x", "EX", "0"},
      {"GETEX", "x", "EX", "x"},
      {"GETEX", "x", "EX", "9223372036854775807"},
      {"GETEX", "x", "PERSIST", "EX", "10"},
      {"GETEX", "x", "EX", "10", "PERSIST"},
      {"GETEX", "x", "PERSIST", "PERSIST"},
      {"GETEX", "x", "KEEPTTL"},
      {"GETEX", "x", "NX"},
      {"GETEX", "x", "EX"},
      {"GETEX", "x", "FOO"},
      {"GETEX", "nope", "EX", "0"},
      {"GETEX", "nope", "EX", "10"},
      {"GETEX", "nope", "FOO"},
      {"GETEX", "x", "PXAT", "1"},
      {"GET", "x"},
      // Values that end like the form in which values are kept
      {"SET", "x", "\xf8"},
      {"GET", "x"},
      {"SET", "x", "red\xf9", "EX", "100"},
      {"GET", "x"},
      {"STRLEN", "x"},
      {"APPEND", "x", "\xff"},
      {"GETRANGE", "x", "0", "-1"},
      {"TTL", "x"},
      {"GETSET", "x", "\xfa"},
      {"SETNX", "x", "y"},
      {"GETDEL", "x"},
      {"SETNX", "x", "\xff\xff"},
      {"GET", "x"},
      {"DEL", "x"},
      {"SETNX", "a", "x"},
      {"SETNX", "d", "x"},
      {"GETSET", "d", "y"},
      {"GETSET", "e", "z"},
      {"GETDEL", "e"},
      {"GETDEL", "e"},
      {"GETDEL"},
      {"MGET", "a", "nope", "d"},
      {"MGET"},
      {"MSET", "a", "1", "a", "2", "f", "3"},
      {"GET", "a"},
      {"MSET", "a"},
      {"MSET", "a", "1", "b"},
      {"MSETNX"},
      {"MSETNX", "a"},
      {"MSETNX", "a", "1", "b"},
      {"MSETNX", "a", "9"},
      {"GET", "a"},
      {"MSETNX", "once", "1", "once", "2"},
      {"GET", "once"},
      {"MSETNX", "once", "3"},
      {"HSET", "fields", "f", "1"},
      {"MSETNX", "fields", "3"},
      {"DEL", "once", "fields", "once"},
      {"EXISTS", "a", "a", "nope", "f"},
      {"EXISTS"},
      {"DEL", "a", "a", "f"},
      {"UNLINK", "d", "nope"},
      {"TYPE", "b"},
      {"TYPE", "nope"},
      {"STRLEN", "b"},
      {"STRLEN", "nope"},
      {"APPEND", "g", ""},
      {"EXISTS", "g"},
      {"APPEND", "g", "abc"},
      {"APPEND", "g", "def"},
      {"GET", "g"},
      {"GETRANGE", "g", "0", "-1"},
      {"GETRANGE", "g", "-3", "-1"},
      {"GETRANGE", "g", "-1", "-3"},
      {"GETRANGE", "g", "2", "1"},
      {"GETRANGE", "g", "10", "20"},
      {"GETRANGE", "g", "-100", "2"},
      {"GETRANGE", "g", "0", "-100"},
      {"GETRANGE", "g", "-100", "-100"},
      {"GETRANGE", "nope", "0", "-1"},
      {"GETRANGE", "g", "x", "1"},
      {"GETRANGE", "g", "0", "9223372036854775807"},
      {"GETRANGE", "g", "-9223372036854775808", "9223372036854775807"},
      {"GETRANGE", "g", "9223372036854775808", "1"},
      {"SUBSTR", "g", "1", "2"},
      {"SUBSTR", "g"},
      {"SETRANGE", "g", "2", "XY"},
      {"GET", "g"},
      {"SETRANGE", "g", "8", "Z"},
      {"GET", "g"},
      {"SETRANGE", "g", "-1", "x"},
      {"SETRANGE", "g", "x", "x"},
      {"SETRANGE", "g", "2000000", ""},
      {"SETRANGE", "nope", "5", ""},
      {"EXISTS", "nope"},
      {"SETRANGE", "h", "3", "x"},
      {"GET", "h"},
      {"SETRANGE", "g", "1048576", "x"},
      {"SETRANGE", "g", "1048575", "xx"},
      {"SETRANGE", "g", "9223372036854775807", "x"},
      {"SETRANGE", "nope", "9223372036854775807", "x"},
      {"SET", "big", std::string(1048576, 'b')},
      {"APPEND", "big", "x"},
      {"APPEND", "big", ""},
      {"SETRANGE", "big", "1048575", "c"},
      {"STRLEN", "big"},
      {"DEL", "big"},
      // Numbers
      {"SET", "n", "10"},
      {"INCR", "n"},
      {"DECR", "n"},
      {"INCRBY", "n", "5"},
      {"DECRBY", "n", "-5"},
      {"INCRBY", "n", "x"},
      {"INCRBY", "n", "1.5"},
      {"INCRBY", "n", " 1"},
      {"INCRBY", "n", "+1"},
      {"INCRBY", "n", "01"},
      {"INCRBY", "n", "-0"},
      {"INCRBY", "n", ""},
      {"DECRBY", "n", "-9223372036854775808"},
      {"SET", "n", "9223372036854775807"},
      {"INCR", "n"},
      {"INCRBY", "n", "-1"},
      {"INCRBY", "n", "9223372036854775807"},
      {"SET", "n", "-9223372036854775808"},
      {"DECR", "n"},
      {"INCRBY", "n", "-9223372036854775808"},
      {"INCRBY", "n", "-9223372036854775809"},
      {"SET", "n", "1 "},
      {"INCR", "n"},
      {"SET", "n", "-0"},
      {"INCR", "n"},
      {"SET", "n", "abc"},
      {"INCR", "n"},
      {"DECRBY", "n", "1"},
      {"INCRBYFLOAT", "n", "1"},
      {"INCR", "new"},
      {"DECRBY", "new2", "7"},
      {"SET", "n", "10.50"},
      {"INCRBYFLOAT", "n", "0.1"},
      {"INCR", "n"},
      {"INCRBYFLOAT", "n", "-10.6"},
      {"INCRBYFLOAT", "n", "5e3"},
      {"INCRBYFLOAT", "n", "1e-5"},
      {"INCRBYFLOAT", "n", "x"},
      {"INCRBYFLOAT", "n", " 1"},
      {"INCRBYFLOAT", "n", "1 "},
      {"INCRBYFLOAT", "n", ""},
      {"INCRBYFLOAT", "n", "nan"},
      {"INCRBYFLOAT", "n", "inf"},
      {"INCRBYFLOAT", "n", "-inf"},
      {"INCRBYFLOAT", "n", "1e5000"},
      {"INCRBYFLOAT", "n", "0x10"},
      {"INCRBYFLOAT", "nf", "3.0"},
      {"INCRBYFLOAT", "nf", "200"},
      {"INCRBYFLOAT", "nf", "-203"},
      {"INCRBYFLOAT", "nf", "-0"},
      {"INCRBYFLOAT", "nf", "1e400"},
      {"STRLEN", "nf"},
      {"INCRBYFLOAT", "nf", "1e-17"},
      {"SET", "nf", "0.1"},
      {"INCRBYFLOAT", "nf", "0.2"},
      {"INCRBYFLOAT", "nf", "1.00000000000000000000000000000001"},
      {"INCR"},
      {"INCR", "a", "b"},
      {"DBSIZE"},
      // All keys
      {"SCAN"},
      {"SCAN", "x"},
      {"SCAN", " 0"},
      {"SCAN", "0 "},
      {"SCAN", "0x"},
      {"SCAN", "1.5"},
      {"SCAN", "18446744073709551616"},
      {"SCAN", "-18446744073709551616"},
      {"SCAN", "0", "COUNT"},
      {"SCAN", "0", "MATCH"},
      {"SCAN", "0", "TYPE"},
      {"SCAN", "0", "FOO"},
      {"SCAN", "0", "FOO", "1"},
      {"SCAN", "0", "COUNT", "x"},
      {"SCAN", "0", "COUNT", "0"},
      {"SCAN", "0", "COUNT", "-1"},
      {"SCAN", "0", "COUNT", "9223372036854775808"},
      {"SCAN", "x", "COUNT", "0"},
      {"SCAN", "0", "COUNT", "0", "FOO"},
      {"KEYS"},
      {"KEYS", "a", "b"},
      {"KEYS", "nothing*"},
      {"RANDOMKEY", "x"},
      {"FLUSHDB", "x"},
      {"FLUSHDB", "ASYNC", "SYNC"},
      {"FLUSHALL", "x"},
      {"DBSIZE"},
      {"FLUSHDB"},
      {"DBSIZE"},
      {"FLUSHDB", "sync"},
      {"FLUSHALL", "async"},
      {"FLUSHALL", "SYNC"},
      {"RANDOMKEY"},
      {"KEYS", "*"},
      {"SCAN", "0"},
      {"SCAN", ""},
      {"SCAN", "+0", "COUNT", "100", "match", "*", "type", "string", "count", "1"},
      {"SET", "only", "1"},
      {"RANDOMKEY"},
      {"KEYS", "*"},
      {"SCAN", "-0"},
      {"SCAN", "0", "TYPE", "STRING"},
      {"SCAN", "0", "TYPE", "list"},
      {"SCAN", "0", "TYPE", "nosuch"},
      {"SCAN", "0", "MATCH", "o*y"},
      {"SCAN", "0", "MATCH", "O*"},
      {"SCAN", "0", "MATCH", "x*"},
      {"FLUSHALL"},
      {"GET", "only"},
  };
  return commands;
}

TEST_F(Differential, AScriptOfEdgeCasesInResp2) {
  start();
  compare_each(script());
}

TEST_F(Differential, AScriptOfEdgeCasesInResp3) {
  start();
  std::vector<Words> commands = script();
  // Protocol 3 throughout: what would change it back goes.
  std::erase_if(commands, [](const Words& words) { return words[0] == "RESET" || words[0] == "HELLO"; });
  compare({{"HELLO", "3"}});
  compare_each(commands);
}

TEST_F(Differential, TheScriptAsOnePipeline) {
  start();
  compare(script());
}

TEST_F(Differential, WhatCommandInfoTellsDrivers) {
  start();
  for (const char* protocol : {"2", "3"}) {
    compare({{"HELLO", protocol}});
    for (const CommandSpec& spec : commands()) {
      if (spec.name == "post" || spec.name == "host:" || !spec.subcommands.empty() || spec.unsupported) continue;
      compare({{"COMMAND", "INFO", std::string(spec.name)}});
    }
    for (const char* sub :
         {"client|getname",  "client|help",     "command|help",    "config|help",   "client|id",    "client|info",
          "client|list",     "client|no-evict", "client|setname",  "command|count", "command|docs", "command|info",
          "command|list",    "config|get",      "client|kill",     "client|pause",  "client|reply", "client|tracking",
          "slowlog|get",     "slowlog|help",    "slowlog|len",     "slowlog|reset", "latency|help", "latency|history",
          "latency|latest",  "latency|reset",   "object|encoding", "object|freq",   "object|help",  "object|idletime",
          "object|refcount", "memory|help",     "memory|usage",    "get|x",         "client|nosuch"}) {
      compare({{"COMMAND", "INFO", sub, "nosuch"}});
    }
  }
}

TEST_F(Differential, Passwords) {
  start("secret");
  for (const char* protocol : {"2", "3"}) {
    reconnect();
    compare_each({{"GET", "a"},
                  {"PING"},
                  {"NOSUCH"},
                  {"GET"},
                  {"CLIENT", "SETNAME", "x"},
                  {"CLIENT", "NOSUCH"},
                  {"HELLO"},
                  {"HELLO", protocol},
                  {"COMMAND"},
                  {"AUTH", "wrong"},
                  {"AUTH", "default", "wrong"},
                  {"AUTH", "nobody", "secret"},
                  {"HELLO", "3", "AUTH", "default", "wrong"},
                  {"RESET"},
                  {"GET", "a"},
                  {"HELLO", protocol, "AUTH", "default", "secret", "SETNAME", "me"},
                  {"GET", "a"},
                  {"CLIENT", "GETNAME"},
                  {"RESET"},
                  {"GET", "a"},
                  {"AUTH", "secret"},
                  {"GET", "a"},
                  {"AUTH", "wrong"},
                  {"GET", "a"},
                  {"AUTH", "default", "secret"}});
  }
  compare_ending("*11\r\n");
  compare_ending("*1\r\n$16385\r\n");
  compare_ending("AUTH secret\r\n*1\r\n$4\r\nQUIT\r\n");
}

TEST_F(Differential, EndsOfConnections) {
  start();
  for (const char* bytes : {"*1\r\n$4\r\nQUIT\r\n", "PING\r\nQUIT\r\nPING\r\n", "*a\r\n", "*2\r\n$3\r\nGET\r\n+a\r\n",
                            "*1\r\n$-5\r\n", "*1\r\nGET\r\n", "set \"a\r\n", "*1\r\n$100000000000000000000\r\n",
                            "SET a 1\r\n*1\r\n$x\r\nSET a 2\r\n", "POST / HTTP/1.1\r\nHost: x\r\n\r\n"}) {
    ASSERT_NO_FATAL_FAILURE(compare_ending(bytes));
  }
  ASSERT_NO_FATAL_FAILURE(compare_ending(std::string(100'000, 'x')));
  ASSERT_NO_FATAL_FAILURE(compare_ending("*" + std::string(100'000, '1')));
  ASSERT_NO_FATAL_FAILURE(compare_ending("*1\r\n$" + std::string(100'000, '1')));
}

// What INFO counts of keys that are read.
TEST_F(Differential, CountsHitsAndMisses) {
  start();
  std::vector<Words> commands = script();
  // Redis counts what these look at to choose by type, or by expiry.
  std::erase_if(commands, [](const Words& words) { return words[0] == "RANDOMKEY" || words[0] == "SCAN"; });
  compare(commands);
  EXPECT_EQ(hits_and_misses(*here_), hits_and_misses(*there_));
}

// The limit and the policy, and sizes as people read them. Under a sanitizer, malloc counts nothing.
TEST_F(Differential, TellsMemoryToPeopleToo) {
  start();
  static const std::regex limit(R"(maxmemory:0\r\nmaxmemory_human:0B\r\nmaxmemory_policy:noeviction\r\n)");
  static const std::regex used(R"(used_memory:\d+\r\nused_memory_human:(?:0B|\d+\.\d\d[KMG])\r\n)"
                               R"(used_memory_rss:\d+\r\nused_memory_rss_human:\d+\.\d\d[KMG]\r\n)");
  for (SocketClient* client : {there_.get(), here_.get()}) {
    const std::string info = client->call({"INFO", "memory"});
    EXPECT_TRUE(std::regex_search(info, limit)) << info;
    EXPECT_TRUE(std::regex_search(info, used)) << info;
  }
}

// A half-closed connection, as `nc -N` leaves it: both answer all that came whole, and nothing else.
TEST_F(Differential, HalfClosedConnections) {
  start();
  std::string many;
  for (int i = 0; i < 500; ++i) many += encode({"SET", "k" + std::to_string(i), "v"});
  for (const std::string& bytes :
       {encode({"SET", "g", "hello"}) + encode({"GET", "g"}), many, many + "*1\r\n$4\r\nPI", std::string("PING"),
        std::string("PING\r\n"), std::string(), many + encode({"QUIT"}) + many, many + "*a\r\n" + many}) {
    reconnect();
    for (SocketClient* client : {there_.get(), here_.get()}) {
      client->send(bytes);
      client->half_close();
    }
    const std::string expected = there_->rest();
    EXPECT_EQ(here_->rest(), expected) << bytes.substr(0, 60);
  }
  reconnect();
  compare_each({{"DBSIZE"}, {"GET", "k499"}});
}

// A transaction that is aborted leaves no trace.
TEST_F(Differential, AbortedTransactions) {
  start();
  const std::vector<Words> bracket{{"MULTI"}, {"INCR", "tx"},     {"NOSUCH"},      {"INCR", "tx"},
                                   {"MULTI"}, {"SET", "tx", "1"}, {"WATCH", "tx"}, {"SET", "tx"}};
  for (const Words& end : {Words{"EXEC"}, Words{"DISCARD"}, Words{"RESET"}, Words{"EXEC", "x"}}) {
    std::vector<Words> commands = bracket;
    commands.push_back(end);
    compare(commands);
    compare_each({{"EXISTS", "tx"}, {"EXEC"}, {"DISCARD"}});
  }
}

TEST_F(Differential, TransactionsOfOneKey) {
  start();
  const std::vector<Words> commands{{"SET", "t", "5"},
                                    {"INCR", "t"},
                                    {"GET", "t"},
                                    {"APPEND", "t", "x"},
                                    {"SETRANGE", "t", "3", "yy"},
                                    {"GETDEL", "t"},
                                    {"SET", "t", "1", "NX", "GET"},
                                    {"SETNX", "t", "7"},
                                    {"DEL", "t"},
                                    {"EXISTS", "t"},
                                    {"TYPE", "t"},
                                    {"STRLEN", "t"},
                                    {"HSET", "t", "f", "1"},
                                    {"HINCRBY", "t", "f", "3"},
                                    {"HGETALL", "t"},
                                    {"HDEL", "t", "f"},
                                    {"EXPIRE", "t", "1000"},
                                    {"PERSIST", "t"},
                                    {"TTL", "t"},
                                    {"SETBIT", "t", "7", "1"},
                                    {"BITCOUNT", "t"},
                                    {"MGET", "t"},
                                    {"MGET", "t", "t"},
                                    {"MSET", "t", "12"},
                                    {"MSET", "t", "3", "t", "4"},
                                    {"MSET", "t", "3", "t"},
                                    {"MSETNX", "t", "5"},
                                    {"MSETNX", "t", "5", "t", "6"},
                                    {"MSETNX", "t", "5", "t"},
                                    {"DEL", "t", "t"},
                                    {"EXISTS", "t", "t", "t"},
                                    {"TOUCH", "t", "t"},
                                    {"UNLINK", "t", "t"},
                                    {"INCRBYFLOAT", "t", "0.5"},
                                    {"PING"},
                                    {"ECHO", "hello"},
                                    {"UNSUBSCRIBE"},
                                    {"PUNSUBSCRIBE", "a", "b"},
                                    {"SUNSUBSCRIBE", "a"},
                                    {"UNWATCH"}};
  base::Random random(11);
  std::vector<Words> said;
  for (int i = 0; i < 300; ++i) {
    if (random.chance(0.3)) said.push_back({"WATCH", "t"});
    if (random.chance(0.3)) said.push_back({"APPEND", "t", "w"});
    said.push_back({"MULTI"});
    for (std::uint64_t n = random.below(6); n > 0; --n) said.push_back(commands[random.below(commands.size())]);
    said.push_back({random.chance(0.1) ? "DISCARD" : "EXEC"});
    said.push_back({"GET", "t"});
  }
  compare(said);
}

TEST_F(Differential, UnsubscribesInATransaction) {
  start();
  for (const char* protocol : {"2", "3"}) {
    compare({{"HELLO", protocol},
             {"MULTI"},
             {"UNSUBSCRIBE"},
             {"PUNSUBSCRIBE", "a", "b"},
             {"SUNSUBSCRIBE", "a"},
             {"SET", "t", "1"},
             {"EXEC"}});
  }
}

// Hashes share keys with strings, and stay so small that Redis keeps their order.
template <class Value>
Words random_hash_command(base::Random& random, const std::string& key, Value value) {
  const auto field = [&random] { return "f" + std::to_string(random.below(5)); };
  switch (random.below(14)) {
    case 0:
    case 1: {
      Words words{random.chance(0.7) ? "HSET" : "HMSET", key};
      for (std::uint64_t i = 1 + random.below(6); i > 0; --i) words.push_back(i % 2 == 0 ? field() : value());
      return words;
    }
    case 2:
      return {"HSETNX", key, field(), value()};
    case 3:
      return {"HGET", key, field()};
    case 4:
      return {"HMGET", key, field(), field(), value()};
    case 5: {
      static const std::vector<std::string> names{"HGETALL", "HKEYS", "HVALS", "HLEN"};
      return {names[random.below(names.size())], key};
    }
    case 6:
      return {"HDEL", key, field(), field()};
    case 7:
      return {"HDEL", key, "f0", "f1", "f2", "f3", "f4", "f2"};
    case 8:
      return {random.chance(0.5) ? "HEXISTS" : "HSTRLEN", key, field()};
    case 9:
      return {"HINCRBY", key, field(), value()};
    case 10:
      return {"HINCRBYFLOAT", key, field(), value()};
    case 11: {
      Words words{"HRANDFIELD", key, random.chance(0.7) ? "100" : value()};
      if (words.back().size() > 4 || words.back() == "1" || words.back()[0] == '-') words.back() = "0";
      if (random.chance(0.5)) words.push_back(random.chance(0.8) ? "withvalues" : "junk");
      return words;
    }
    case 12: {
      static const std::vector<std::string> options{"MATCH", "f[1-3]", "COUNT", "3", "0", "TYPE", "hash"};
      Words words{"HSCAN", key, random.chance(0.9) ? "0" : value()};
      for (std::uint64_t i = random.below(4); i > 0; --i) words.push_back(options[random.below(options.size())]);
      return words;
    }
    default:
      return {"SCAN", "0", "COUNT", "1000", "MATCH", key, "TYPE", random.chance(0.5) ? "hash" : "string"};
  }
}

template <class Value>
Words random_bit_command(base::Random& random, const std::string& key, Value value) {
  const auto number = [&](std::uint64_t most) {
    return random.chance(0.9) ? std::to_string(random.below(most)) : value().substr(0, 4);
  };
  const auto any = [&] { return (random.chance(0.4) ? "-" : "") + number(40); };
  static const std::vector<std::string> units{"BIT", "byte", "junk"};
  switch (random.below(5)) {
    case 0:
      return {"SETBIT", key, number(100), random.chance(0.9) ? number(2) : number(4)};
    case 1:
      return {"GETBIT", key, number(100)};
    case 2:
    case 3: {
      const bool counts = random.chance(0.5);
      Words words{counts ? "BITCOUNT" : "BITPOS", key};
      if (!counts) words.push_back(random.chance(0.95) ? number(2) : number(4));
      for (std::uint64_t i = random.below(3); i > 0; --i) words.push_back(any());
      if (random.chance(0.5)) words.push_back(units[random.below(units.size())]);
      return words;
    }
    default: {
      static const std::vector<std::string> types{"u1", "u5", "u8", "i8", "i5", "u63", "i64", "i1", "u64", "x8", "i0"};
      static const std::vector<std::string> overflows{"wrap", "SAT", "fail", "junk"};
      Words words{random.chance(0.8) ? "BITFIELD" : "BITFIELD_RO", key};
      for (std::uint64_t i = random.below(6); i > 0; --i) {
        if (random.chance(0.3)) {
          words.insert(words.end(), {"OVERFLOW", overflows[random.below(random.chance(0.1) ? 4 : 3)]});
        }
        const std::string& type = types[random.below(random.chance(0.1) ? types.size() : 8)];
        const std::string offset = (random.chance(0.4) ? "#" : "") + number(random.chance(0.5) ? 8 : 60);
        const std::uint64_t what = random.below(3);
        words.insert(words.end(), {what == 0 ? "GET" : what == 1 ? "SET" : "incrby", type, offset});
        if (what != 0) words.push_back(random.chance(0.5) ? any() : value());
      }
      return words;
    }
  }
}

Words random_command(base::Random& random) {
  static const std::vector<std::string> numbers{"0",
                                                "1",
                                                "-1",
                                                "10",
                                                "9223372036854775807",
                                                "-9223372036854775808",
                                                "3.25",
                                                "-0.5",
                                                "1e3",
                                                "abc",
                                                "",
                                                " 1",
                                                "100",
                                                "0.1",
                                                "7",
                                                "9223372036854775800",
                                                "-7",
                                                "1e17",
                                                "2.5",
                                                "x\r\ny"};
  const auto key = [&random] { return "k" + std::to_string(random.below(6)); };
  const auto value = [&random] { return numbers[random.below(numbers.size())]; };
  const auto small = [&random] { return std::to_string(static_cast<std::int64_t>(random.below(24)) - 12); };
  static const std::vector<std::string> times{"9999999999", "9999999999501", "99999999999999", "0", "-1", "x"};
  const auto time = [&random] { return times[random.below(times.size())]; };
  switch (random.below(42)) {
    case 0:
      return {"GET", key()};
    case 1:
      return {"SET", key(), value()};
    case 2: {
      Words words{"SET", key(), value()};
      static const std::vector<std::string> options{"NX",   "XX",   "GET",           "keepttl", "nx",
                                                    "junk", "PXAT", "9999999999501", "EXAT",    "9999999999"};
      for (std::uint64_t i = random.below(4); i > 0; --i) words.push_back(options[random.below(options.size())]);
      return words;
    }
    case 3:
      return {"SETNX", key(), value()};
    case 4:
      return {"GETSET", key(), value()};
    case 5:
      return {"GETDEL", key()};
    case 6:
      return {"MGET", key(), key(), key()};
    case 7:
      return {"MSET", key(), value(), key(), value()};
    case 8:
      return {"DEL", key(), key()};
    case 9:
      return {"UNLINK", key()};
    case 10:
      return {"EXISTS", key(), key()};
    case 11:
      return {"STRLEN", key()};
    case 12:
      return {"TYPE", key()};
    case 13:
      return {"APPEND", key(), value()};
    case 14:
      return {"SETRANGE", key(), random.chance(0.8) ? std::to_string(random.below(20)) : value(), value()};
    case 15:
      return {"GETRANGE", key(), random.chance(0.8) ? small() : value(), random.chance(0.8) ? small() : value()};
    case 16:
      return {"INCR", key()};
    case 17:
      return {"DECR", key()};
    case 18:
      return {"INCRBY", key(), value()};
    case 19:
      return {"DECRBY", key(), value()};
    case 20:
      return {"INCRBYFLOAT", key(), value()};
    case 21:
      return {"DBSIZE"};
    case 22: {
      // The right name with a wrong number of words.
      static const std::vector<std::string> names{"get",    "set",    "incrby",   "mset",
                                                  "append", "strlen", "getrange", "Substr"};
      Words words{names[random.below(names.size())]};
      for (std::uint64_t i = random.below(4); i > 0; --i) words.push_back(key());
      return words;
    }
    case 23: {
      static const std::vector<std::string> names{"EXPIREAT", "PEXPIREAT"};
      static const std::vector<std::string> options{"NX", "XX", "GT", "lt", "junk"};
      Words words{names[random.below(names.size())], key(), time()};
      for (std::uint64_t i = random.below(3); i > 0; --i) words.push_back(options[random.below(options.size())]);
      return words;
    }
    case 24:
      return {random.chance(0.5) ? "EXPIRETIME" : "PEXPIRETIME", key()};
    case 25:
      return {"PERSIST", key()};
    case 26: {
      static const std::vector<std::string> options{"EXAT", "PXAT", "persist", "KEEPTTL", "9999999999"};
      Words words{"GETEX", key()};
      for (std::uint64_t i = random.below(3); i > 0; --i) words.push_back(options[random.below(options.size())]);
      return words;
    }
    case 27:
      return {"SET", key(), value(), random.chance(0.5) ? "PXAT" : "EXAT", "9999999999501"};
    case 28:
      return {"ECHO", value()};
    case 29: {
      Words words{"COPY", key(), key()};
      if (random.chance(0.5)) words.push_back(random.chance(0.8) ? "replace" : "junk");
      return words;
    }
    case 30:
      return {random.chance(0.5) ? "RENAME" : "RENAMENX", key(), key()};
    case 31:
      return {"TOUCH", key(), key()};
    case 32:
    case 33:
      return random_bit_command(random, key(), value);
    default:
      return random_hash_command(random, key(), value);
  }
}

// Patterns, whole and broken ones, against keys that have their characters.
TEST_F(Differential, Globs) {
  start();
  base::Random random(1);
  const std::string letters = "abcABC]-^\\[*?!";
  const auto draw = [&](std::size_t most) {
    std::string text;
    for (std::uint64_t i = random.below(most + 1); i > 0; --i) text += letters[random.below(letters.size())];
    return text;
  };
  for (int i = 0; i < 300; ++i) compare({{"SET", draw(4), "1"}});
  compare({{"DBSIZE"}});
  const auto same_keys = [&](const std::string& pattern) {
    there_->send(encode({"KEYS", pattern}));
    here_->send(encode({"KEYS", pattern}));
    EXPECT_EQ(sorted(here_->reply()), sorted(there_->reply())) << pattern;
  };
  for (const char* pattern :
       {"*",   "",    "?",     "[a-c]",    "[c-a]", "[^a]",  "[a",     "[",    "[]",   "[^]", "[a-]", "[\\]]", "\\",
        "\\*", "[\\", "a[-b]", "[a-b-c]*", "**a",   "*a*b*", "[A-C]?", "\\[a", "[!a]", "[^",  "[a^]", "[a-"}) {
    same_keys(pattern);
  }
  for (int i = 0; i < 3000 && !HasFailure(); ++i) same_keys(draw(7));
}

// A scan in any steps is what KEYS tells at once.
TEST_F(Differential, ScansAreComplete) {
  start();
  std::vector<std::string> keys;
  for (int i = 0; i < 300; ++i) {
    keys.push_back("key" + std::to_string(i));
    compare({{"SET", keys.back(), "1"}});
  }
  std::sort(keys.begin(), keys.end());
  for (const char* count : {"1", "10", "1000"}) {
    std::vector<std::string> found;
    std::string cursor = "0";
    do {
      here_->send(encode({"SCAN", cursor, "COUNT", count, "MATCH", "key*"}));
      const std::string reply = here_->reply();
      ASSERT_EQ(reply.substr(0, 4), "*2\r\n");
      const std::size_t begin = reply.find("\r\n", 4) + 2, end = reply.find("\r\n", begin);
      cursor = reply.substr(begin, end - begin);
      for (std::string& key : sorted(reply.substr(end + 2))) found.push_back(std::move(key));
    } while (cursor != "0");
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, keys);
  }
  compare({{"FLUSHDB"}, {"DBSIZE"}});
}

TEST_F(Differential, RandomPipelines) {
  start();
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    base::Random random(seed);
    if (random.chance(0.1)) compare({{"HELLO", random.chance(0.5) ? "3" : "2"}});
    std::vector<Words> pipeline;
    for (std::uint64_t i = 1 + random.below(100); i > 0; --i) pipeline.push_back(random_command(random));
    compare(pipeline);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace farpool::front::resp
