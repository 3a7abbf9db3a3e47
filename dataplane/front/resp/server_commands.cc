// SPDX-License-Identifier: Apache-2.0
// Commands about what a pool does not have: replicas, logs of slow commands, subscriptions, and clients that are told of
// writes. Each answers as a Redis that has none of them, or says why it cannot do what it is asked for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/number.h"
#include "front/resp/connection_commands.h"
#include "front/resp/conversation.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

// Returns whether the word is a time in milliseconds; otherwise the request has been answered with an error.
bool is_timeout(Request& request, std::size_t word) {
  const std::optional<std::int64_t> timeout = base::parse_integer(request.command[word]);
  if (timeout && *timeout >= 0) return true;
  request.error(timeout ? "ERR timeout is negative" : "ERR timeout is not an integer or out of range");
  return false;
}

}  // namespace

void do_wait(Conversation&, Request& request) {
  if (!base::parse_integer(request.command[1])) return request.error(kNotAnInteger);
  if (is_timeout(request, 2)) request.answer().integer(0);
}

// No client of a pool has subscriptions. Drivers end them all the same when they clean a connection up, and wait for a
// reply about each channel; where none is named, for one.
void do_unsubscribe(Conversation& conversation, Request& request) {
  const std::size_t most = conversation.settings().max_reply_bytes;
  const Command& command = request.command;
  Reply reply = request.answer();
  for (std::size_t i = 1; i < std::max<std::size_t>(command.size(), 2); ++i) {
    reply.push(3);
    reply.bulk(request.spec->name);
    i < command.size() ? reply.bulk(command[i]) : reply.null();
    reply.integer(0);
    if (request.reply.size() > most) return request.refuse_reply(most, "name fewer channels at once");
  }
}

void do_nothing_logged(Conversation&, Request& request) { request.answer().array(0); }
void do_nothing_counted(Conversation&, Request& request) { request.answer().integer(0); }
void do_nothing_to_reset(Conversation&, Request& request) { request.answer().ok(); }

void do_slowlog_get(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  if (command.size() > 3) {
    return request.error("ERR unknown subcommand or wrong number of arguments for '" + std::string(command[1]) +
                         "'. Try SLOWLOG HELP.");
  }
  const std::optional<std::int64_t> count = command.size() == 3 ? base::parse_integer(command[2]) : -1;
  if (!count || *count < -1) return request.error("ERR count should be greater than or equal to -1");
  do_nothing_logged(conversation, request);
}

void do_client_kill(Conversation&, Request& request) {
  request.error("ERR CLIENT KILL is not supported: a connection is served by one shard, and others do not know it");
}

void do_client_pause(Conversation&, Request& request) {
  if (!is_timeout(request, 2)) return;
  request.error("ERR CLIENT PAUSE is not supported: the other shards of the pool would go on");
}

void do_client_reply(Conversation&, Request& request) {
  const std::string_view mode = request.command[2];
  if (same_word(mode, "ON")) return request.answer().ok();
  const bool known = same_word(mode, "OFF") || same_word(mode, "SKIP");
  request.error(known ? "ERR CLIENT REPLY OFF and SKIP are not supported: every command is answered" : kSyntaxError);
}

void do_client_tracking(Conversation&, Request& request) {
  const std::string_view mode = request.command[2];
  if (same_word(mode, "OFF") && request.command.size() == 3) return request.answer().ok();
  request.error(same_word(mode, "ON")
                    ? "ERR CLIENT TRACKING is not supported: a shard does not see what other shards write"
                    : kSyntaxError);
}

}  // namespace farpool::front::resp
