// SPDX-License-Identifier: Apache-2.0
// hiredis against a compute shard. See hack/local/drivers_test.go for what every driver does.
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char* what, const char* said) {
  fprintf(stderr, "%s: %s\n", what, said);
  exit(1);
}

// Fails unless a reply has this type, and this text where one is given.
static void check(redisContext* context, redisReply* reply, int type, const char* text) {
  if (reply == NULL) fail("the connection broke", context->errstr);
  if (reply->type != type) fail("a reply has another type", reply->str != NULL ? reply->str : "no text");
  if (text != NULL && strncmp(reply->str, text, strlen(text)) != 0) fail(text, reply->str);
  freeReplyObject(reply);
}

static void check_integer(redisContext* context, redisReply* reply, long long least, long long most) {
  if (reply == NULL) fail("the connection broke", context->errstr);
  if (reply->type != REDIS_REPLY_INTEGER) fail("no integer", reply->str != NULL ? reply->str : "no text");
  if (reply->integer < least || reply->integer > most) fail("another integer", "out of range");
  freeReplyObject(reply);
}

static redisContext* connected(redisContext* context) {
  if (context == NULL || context->err != 0) fail("connect", context != NULL ? context->errstr : "no memory");
  return context;
}

#define SAYS(type, text, ...) check(c, redisCommand(c, __VA_ARGS__), type, text)
#define COUNTS(least, most, ...) check_integer(c, redisCommand(c, __VA_ARGS__), least, most)

static void connections(const char* host) {
  const char* password = getenv("FARPOOL_PASSWORD");
  redisContext* c = connected(redisConnect(host, atoi(getenv("FARPOOL_LOCKED_PORT"))));
  SAYS(REDIS_REPLY_ERROR, "NOAUTH", "PING");
  SAYS(REDIS_REPLY_ERROR, "WRONGPASS", "AUTH wrong");
  SAYS(REDIS_REPLY_STATUS, "OK", "AUTH %s", password);
  SAYS(REDIS_REPLY_STATUS, "OK", "AUTH default %s", password);
  SAYS(REDIS_REPLY_STATUS, "OK", "CLIENT SETINFO LIB-NAME hiredis");
  redisFree(c);
  c = connected(redisConnectUnix(getenv("FARPOOL_SOCKET")));
  SAYS(REDIS_REPLY_STATUS, "PONG", "PING");
  SAYS(REDIS_REPLY_ARRAY, NULL, "HELLO 2");
  SAYS(REDIS_REPLY_ERROR, "ERR DB index is out of range", "SELECT 1");
  redisFree(c);
}

static void strings(redisContext* c) {
  unsigned char value[25600];
  for (size_t i = 0; i < sizeof value; ++i) value[i] = (unsigned char)i;
  SAYS(REDIS_REPLY_STATUS, "OK", "SET hiredis:binary %b", value, sizeof value);
  redisReply* reply = redisCommand(c, "GET hiredis:binary");
  if (reply == NULL || reply->len != sizeof value || memcmp(reply->str, value, sizeof value) != 0) fail("GET", "another value");
  freeReplyObject(reply);
  SAYS(REDIS_REPLY_STATUS, "OK", "SET hiredis:nx 1 NX EX 100");
  SAYS(REDIS_REPLY_NIL, NULL, "SET hiredis:nx 2 NX");
  COUNTS(90, 100, "TTL hiredis:nx");
  COUNTS(42, 42, "INCRBY hiredis:nx 41");
  SAYS(REDIS_REPLY_ARRAY, NULL, "MGET hiredis:nx hiredis:none");
  COUNTS(2, 2, "HSET hiredis:hash one 1 two 2");
  COUNTS(10, 10, "HINCRBY hiredis:hash one 9");
  SAYS(REDIS_REPLY_STRING, "10", "HGET hiredis:hash one");
  SAYS(REDIS_REPLY_ERROR, "WRONGTYPE", "GET hiredis:hash");
}

// A pipeline of 300 writes, which a scan then returns.
static void pipeline(redisContext* c) {
  enum { kKeys = 300 };
  for (int i = 0; i < kKeys; ++i) redisAppendCommand(c, "SET hiredis:scan:%d x EX 1000", i);
  void* reply = NULL;
  for (int i = 0; i < kKeys; ++i) {
    if (redisGetReply(c, &reply) != REDIS_OK) fail("pipeline", c->errstr);
    check(c, reply, REDIS_REPLY_STATUS, "OK");
  }
  char found[kKeys] = {0};
  char cursor[32] = "0";
  do {
    redisReply* step = redisCommand(c, "SCAN %s MATCH hiredis:scan:* COUNT 50", cursor);
    if (step == NULL || step->type != REDIS_REPLY_ARRAY) fail("SCAN", c->errstr);
    snprintf(cursor, sizeof cursor, "%s", step->element[0]->str);
    for (size_t i = 0; i < step->element[1]->elements; ++i) found[atoi(step->element[1]->element[i]->str + strlen("hiredis:scan:"))] = 1;
    freeReplyObject(step);
  } while (strcmp(cursor, "0") != 0);
  for (int i = 0; i < kKeys; ++i) {
    if (!found[i]) fail("SCAN", "a key is missing");
  }
}

static void transactions(redisContext* c) {
  SAYS(REDIS_REPLY_STATUS, "OK", "MULTI");
  SAYS(REDIS_REPLY_STATUS, "QUEUED", "SET hiredis:count 1");
  SAYS(REDIS_REPLY_STATUS, "QUEUED", "INCR hiredis:count");
  redisReply* reply = redisCommand(c, "EXEC");
  if (reply == NULL || reply->elements != 2 || reply->element[1]->integer != 2) fail("EXEC", "other replies");
  freeReplyObject(reply);
  SAYS(REDIS_REPLY_STATUS, "OK", "WATCH hiredis:count");
  COUNTS(3, 3, "INCR hiredis:count");
  SAYS(REDIS_REPLY_STATUS, "OK", "MULTI");
  SAYS(REDIS_REPLY_STATUS, "QUEUED", "SET hiredis:count 0");
  SAYS(REDIS_REPLY_NIL, NULL, "EXEC");
  SAYS(REDIS_REPLY_STATUS, "OK", "MULTI");
  SAYS(REDIS_REPLY_STATUS, "QUEUED", "SET hiredis:x 1");
  SAYS(REDIS_REPLY_ERROR, "ERR not queued: all commands of a transaction of this pool have one key", "SET hiredis:y 2");
  SAYS(REDIS_REPLY_ERROR, "EXECABORT Transaction discarded because of previous errors. The first: not queued: all commands", "EXEC");
  COUNTS(0, 0, "EXISTS hiredis:x hiredis:y");
}

int main(void) {
  const char* host = getenv("FARPOOL_HOST");
  connections(host);
  redisContext* c = connected(redisConnect(host, atoi(getenv("FARPOOL_PORT"))));
  strings(c);
  pipeline(c);
  transactions(c);
  SAYS(REDIS_REPLY_ERROR, "ERR unknown command 'EVAL'", "EVAL return_1 0");
  SAYS(REDIS_REPLY_ERROR, "ERR unknown command 'BLPOP'", "BLPOP hiredis:list 1");
  SAYS(REDIS_REPLY_ERROR, "ERR unknown command 'SUBSCRIBE'", "SUBSCRIBE channel");
  SAYS(REDIS_REPLY_ERROR, "ERR unknown command 'PUBLISH'", "PUBLISH channel x");
  SAYS(REDIS_REPLY_STATUS, "PONG", "PING");
  redisFree(c);
  printf("hiredis %d.%d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
  return 0;
}
