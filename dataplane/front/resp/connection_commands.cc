// SPDX-License-Identifier: Apache-2.0
#include "front/resp/connection_commands.h"

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/number.h"
#include "front/resp/operations.h"
#include "front/resp/text.h"
#include "net/loop.h"
#include "net/stream.h"

namespace farpool::front::resp {
namespace {

constexpr std::string_view kWrongPassword = "WRONGPASS invalid username-password pair or user is disabled.";
constexpr std::string_view kBadName = "ERR Client names cannot contain spaces, newlines or special characters.";

void wrong_arity(Request& request) {
  request.error("ERR wrong number of arguments for '" + std::string(request.spec->name) + "' command");
}

void switch_word(Request& request) {
  const std::string_view word = request.command[2];
  same_word(word, "on") || same_word(word, "off") ? request.answer().ok() : request.error(kSyntaxError);
}

}  // namespace

void do_ping(Conversation&, Request& request) {
  if (request.command.size() > 2) return wrong_arity(request);
  request.command.size() == 1 ? request.answer().simple("PONG") : request.answer().bulk(request.command[1]);
}

void do_echo(Conversation&, Request& request) { request.answer().bulk(request.command[1]); }

void do_quit(Conversation& conversation, Request& request) {
  request.answer().ok();
  conversation.drain();
}

// A browser that was lured into posting to this port: nothing it sends after this line may run.
void do_hang_up(Conversation& conversation, Request&) { conversation.drain(); }

void do_reset(Conversation& conversation, Request& request) {
  conversation.reset();
  request.protocol = conversation.protocol();
  request.answer().simple("RESET");
}

void do_help(Conversation&, Request& request) {
  const std::string_view name = request.spec->name.substr(0, request.spec->name.find('|'));
  const CommandSpec& container = *find_command(name);
  Reply reply = request.answer();
  reply.array(1 + 2 * container.subcommands.size());
  reply.simple(to_upper(name) + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
  for (const CommandSpec& sub : container.subcommands) {
    reply.simple(to_upper(sub.short_name()));
    reply.simple("    " + std::string(sub.summary) + ".");
  }
}

void do_select(Conversation&, Request& request) {
  const std::optional<std::int64_t> index = base::parse_integer(request.command[1]);
  if (!index) return request.error(kNotAnInteger);
  if (*index < std::numeric_limits<int>::min() || *index > std::numeric_limits<int>::max()) {
    return request.error("ERR value is out of range, value must between -2147483648 and 2147483647");
  }
  if (*index != 0) return request.error("ERR DB index is out of range");
  request.answer().ok();
}

void do_auth(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  if (command.size() > 3) return request.error(kSyntaxError);
  if (command.size() == 2 && !conversation.service().passwords.asked()) {
    return request.error(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
        "configuration is correct?");
  }
  const bool named = command.size() == 3;
  if (conversation.log_in(named ? command[1] : "default", command[named ? 2 : 1])) {
    request.answer().ok();
  } else {
    request.error(kWrongPassword);
  }
}

void do_hello(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  std::optional<Protocol> version;
  std::size_t next = 1;
  if (command.size() > next) {
    const std::optional<std::int64_t> number = base::parse_integer(command[next++]);
    if (!number) return request.error("ERR Protocol version is not an integer or out of range");
    if (*number != 2 && *number != 3) return request.error("NOPROTO unsupported protocol version");
    version = *number == 3 ? Protocol::resp3 : Protocol::resp2;
  }
  std::optional<std::pair<std::string_view, std::string_view>> login;
  std::optional<std::string_view> name;
  for (; next < command.size(); ++next) {
    const std::size_t more = command.size() - 1 - next;
    if (same_word(command[next], "AUTH") && more >= 2) {
      login.emplace(command[next + 1], command[next + 2]);
      next += 2;
    } else if (same_word(command[next], "SETNAME") && more >= 1) {
      name = command[++next];
      if (!is_plain_name(*name)) return request.error(kBadName);
    } else {
      return request.error("ERR Syntax error in HELLO option '" +
                           std::string(command[next].substr(0, command[next].find('\0'))) + "'");
    }
  }
  if (login && !conversation.log_in(login->first, login->second)) return request.error(kWrongPassword);
  if (!conversation.authenticated()) {
    return request.error(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> "
        "option can be "
        "used to authenticate the client and select the RESP protocol version at the same time");
  }
  if (name) conversation.name = *name;
  if (version) conversation.set_protocol(*version);
  request.protocol = conversation.protocol();

  Reply reply = request.answer();
  reply.map(7);
  reply.bulk("server");
  reply.bulk("redis");
  reply.bulk("version");
  reply.bulk(kRedisVersion);
  reply.bulk("proto");
  reply.integer(static_cast<std::int64_t>(conversation.protocol()));
  reply.bulk("id");
  reply.integer(static_cast<std::int64_t>(conversation.endpoints().id));
  reply.bulk("mode");
  reply.bulk("standalone");
  reply.bulk("role");
  reply.bulk("master");
  reply.bulk("modules");
  reply.array(0);
}

void do_client_id(Conversation& conversation, Request& request) {
  request.answer().integer(static_cast<std::int64_t>(conversation.endpoints().id));
}

void do_client_getname(Conversation& conversation, Request& request) {
  conversation.name.empty() ? request.answer().null() : request.answer().bulk(conversation.name);
}

void do_client_setname(Conversation& conversation, Request& request) {
  if (!is_plain_name(request.command[2])) return request.error(kBadName);
  conversation.name = request.command[2];
  request.answer().ok();
}

void do_client_setinfo(Conversation& conversation, Request& request) {
  const std::string_view attribute = request.command[2];
  const std::string_view value = request.command[3];
  const bool library = same_word(attribute, "lib-name");
  if (!library && !same_word(attribute, "lib-ver")) {
    return request.error("ERR Unrecognized option '" + std::string(attribute.substr(0, 128)) + "'");
  }
  if (!is_plain_name(value)) {
    return request.error("ERR " + to_lower(attribute) + " cannot contain spaces, newlines or special characters.");
  }
  (library ? conversation.library_name : conversation.library_version) = value.substr(0, 128);
  request.answer().ok();
}

void do_client_info(Conversation& conversation, Request& request) {
  request.answer().verbatim(conversation.client_line());
}

// A client sees itself: connections are spread over workers and shards, and none knows those of another.
void do_client_list(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  bool listed = true;
  if (command.size() == 4 && same_word(command[2], "TYPE")) {
    listed = same_word(command[3], "normal");
    if (!listed && !same_word(command[3], "master") && !same_word(command[3], "replica") &&
        !same_word(command[3], "slave") && !same_word(command[3], "pubsub")) {
      return request.error("ERR Unknown client type '" + std::string(command[3].substr(0, 128)) + "'");
    }
  } else if (command.size() > 3 && same_word(command[2], "ID")) {
    listed = false;
    for (std::size_t i = 3; i < command.size(); ++i) {
      const std::optional<std::int64_t> id = base::parse_integer(command[i]);
      if (!id || *id <= 0) return request.error("ERR Invalid client ID");
      listed = listed || static_cast<std::uint64_t>(*id) == conversation.endpoints().id;
    }
  } else if (command.size() != 2) {
    return request.error(kSyntaxError);
  }
  request.answer().verbatim(listed ? conversation.client_line() : "");
}

// A pool evicts no client, and every read counts as a use of its key, so there is nothing to switch.
void do_client_no_evict(Conversation&, Request& request) { switch_word(request); }
void do_client_no_touch(Conversation&, Request& request) { switch_word(request); }

void do_config_get(Conversation& conversation, Request& request) {
  const Settings& settings = conversation.settings();
  const std::array<std::pair<std::string_view, std::string>, 11> parameters{{
      {"appendonly", "no"},
      {"cluster-enabled", "no"},
      {"databases", "1"},
      {"maxclients", std::to_string(settings.max_connections)},
      {"maxmemory", "0"},
      {"maxmemory-policy", std::string(conversation.service().kv.eviction_policy())},
      {"proto-max-bulk-len", std::to_string(settings.limits.bulk_bytes)},
      {"save", ""},
      {"slave-read-only", "yes"},
      {"tcp-keepalive", std::to_string(net::kKeepAliveSeconds)},
      {"timeout", "0"},
  }};
  // A parameter that is named comes back under the name that was used.
  std::vector<std::pair<std::string_view, std::string_view>> chosen;
  for (const auto& [name, value] : parameters) {
    for (std::size_t word = 2; word < request.command.size(); ++word) {
      if (!glob_match(request.command[word], name, Case::ignored)) continue;
      chosen.emplace_back(same_word(request.command[word], name) ? request.command[word] : name, value);
      break;
    }
  }
  Reply reply = request.answer();
  reply.map(chosen.size());
  for (const auto& [name, value] : chosen) {
    reply.bulk(name);
    reply.bulk(value);
  }
}

}  // namespace farpool::front::resp
