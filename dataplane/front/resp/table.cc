// SPDX-License-Identifier: Apache-2.0
#include "front/resp/table.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "front/resp/bit_specs.h"
#include "front/resp/connection_commands.h"
#include "front/resp/conversation.h"
#include "front/resp/hash_specs.h"
#include "front/resp/key_specs.h"
#include "front/resp/operations.h"
#include "front/resp/server_specs.h"
#include "front/resp/text.h"
#include "front/resp/transaction.h"

namespace farpool::front::resp {
namespace {

constexpr std::uint16_t kTalk = kLoading | kStale;
constexpr std::uint16_t kLogin = kNoScript | kLoading | kStale | kFast | kNoAuth | kAllowBusy;
constexpr std::uint16_t kOwn = kNoScript | kLoading | kStale;
constexpr std::uint16_t kBracket = kNoScript | kLoading | kStale | kFast | kAllowBusy;

constexpr std::string_view kShardsSum = "request_policy:multi_shard response_policy:agg_sum";

constexpr std::array kClientCommands = std::to_array<CommandSpec>({
    {.name = "client|getname",
     .arity = 2,
     .flags = kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "2.6.9",
     .summary = "Get the name of this connection",
     .instant = do_client_getname},
    {.name = "client|help",
     .arity = 2,
     .flags = kTalk,
     .groups = "connection",
     .group = "connection",
     .since = "5.0.0",
     .summary = "Describe the subcommands",
     .instant = do_help},
    {.name = "client|id",
     .arity = 2,
     .flags = kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "5.0.0",
     .summary = "Get the number of this connection",
     .instant = do_client_id},
    {.name = "client|info",
     .arity = 2,
     .flags = kOwn,
     .groups = "connection",
     .tips = "nondeterministic_output",
     .group = "connection",
     .since = "6.2.0",
     .summary = "Describe this connection",
     .instant = do_client_info},
    {.name = "client|kill",
     .arity = -3,
     .flags = kAdmin | kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "2.4.0",
     .summary = "Refused: shards do not know each other's connections",
     .instant = do_client_kill},
    {.name = "client|list",
     .arity = -2,
     .flags = kAdmin | kOwn,
     .groups = "connection",
     .tips = "nondeterministic_output",
     .group = "connection",
     .since = "2.4.0",
     .summary = "List this connection",
     .instant = do_client_list},
    {.name = "client|no-evict",
     .arity = 3,
     .flags = kAdmin | kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "7.0.0",
     .summary = "Accepted; no connection is evicted",
     .instant = do_client_no_evict},
    {.name = "client|no-touch",
     .arity = 3,
     .flags = kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "7.2.0",
     .summary = "Accepted; every read is a use of its key",
     .instant = do_client_no_touch},
    {.name = "client|pause",
     .arity = -3,
     .flags = kAdmin | kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "2.9.50",
     .summary = "Refused: the other shards would go on",
     .instant = do_client_pause},
    {.name = "client|reply",
     .arity = 3,
     .flags = kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "3.2.0",
     .summary = "Accepted for ON; every command is answered",
     .instant = do_client_reply},
    {.name = "client|setinfo",
     .arity = 4,
     .flags = kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "7.2.0",
     .summary = "Say which library this connection uses",
     .instant = do_client_setinfo},
    {.name = "client|setname",
     .arity = 3,
     .flags = kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "2.6.9",
     .summary = "Name this connection",
     .instant = do_client_setname},
    {.name = "client|tracking",
     .arity = -3,
     .flags = kOwn,
     .groups = "connection",
     .group = "connection",
     .since = "6.0.0",
     .summary = "Accepted for OFF; shards do not see what others write",
     .instant = do_client_tracking},
});

constexpr std::array kCommandCommands = std::to_array<CommandSpec>({
    {.name = "command|count",
     .arity = 2,
     .flags = kTalk,
     .groups = "connection",
     .group = "server",
     .since = "2.8.13",
     .summary = "Count the commands",
     .instant = command_count},
    {.name = "command|docs",
     .arity = -2,
     .flags = kTalk,
     .groups = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "7.0.0",
     .summary = "Describe commands for people",
     .instant = command_docs},
    {.name = "command|help",
     .arity = 2,
     .flags = kTalk,
     .groups = "connection",
     .group = "server",
     .since = "5.0.0",
     .summary = "Describe the subcommands",
     .instant = do_help},
    {.name = "command|info",
     .arity = -2,
     .flags = kTalk,
     .groups = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "2.8.13",
     .summary = "Describe commands for drivers",
     .instant = command_info},
    {.name = "command|list",
     .arity = -2,
     .flags = kTalk,
     .groups = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "7.0.0",
     .summary = "Name the commands",
     .instant = command_list},
});

constexpr std::array kConfigCommands = std::to_array<CommandSpec>({
    {.name = "config|get",
     .arity = -3,
     .flags = kAdmin | kOwn,
     .group = "server",
     .since = "2.0.0",
     .summary = "Get parameters by patterns",
     .instant = do_config_get},
    {.name = "config|help",
     .arity = 2,
     .flags = kTalk,
     .group = "server",
     .since = "5.0.0",
     .summary = "Describe the subcommands",
     .instant = do_help},
});

constexpr std::array kOtherCommands = std::to_array<CommandSpec>({
    {.name = "append",
     .arity = 3,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW insert",
     .groups = "string",
     .group = "string",
     .since = "2.0.0",
     .summary = "Append to a value",
     .operation = op_append},
    {.name = "auth",
     .arity = -2,
     .flags = kLogin,
     .groups = "connection",
     .group = "connection",
     .since = "1.0.0",
     .summary = "Authenticate",
     .instant = do_auth},
    {.name = "client",
     .arity = -2,
     .group = "connection",
     .since = "2.4.0",
     .summary = "Commands about this connection",
     .subcommands = kClientCommands},
    {.name = "command",
     .arity = -1,
     .flags = kTalk,
     .groups = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "2.8.13",
     .summary = "Describe all commands",
     .instant = command_all,
     .subcommands = kCommandCommands},
    {.name = "config",
     .arity = -2,
     .group = "server",
     .since = "2.0.0",
     .summary = "Commands about parameters",
     .subcommands = kConfigCommands},
    {.name = "dbsize",
     .arity = 1,
     .flags = kReadOnly | kFast,
     .groups = "keyspace",
     .tips = "request_policy:all_shards response_policy:agg_sum",
     .group = "server",
     .since = "1.0.0",
     .summary = "Count the keys of the pool",
     .operation = op_dbsize},
    {.name = "decr",
     .arity = 2,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Subtract one from a number",
     .operation = op_decr},
    {.name = "decrby",
     .arity = 3,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Subtract from a number",
     .operation = op_decrby},
    {.name = "del",
     .arity = -2,
     .flags = kWrite,
     .first_key = 1,
     .last_key = -1,
     .key_step = 1,
     .key_access = "RM delete",
     .groups = "keyspace",
     .tips = kShardsSum,
     .group = "generic",
     .since = "1.0.0",
     .summary = "Delete keys, each atomically on its own",
     .operation = op_del},
    {.name = "discard",
     .arity = 1,
     .flags = kBracket,
     .group = "transactions",
     .since = "2.0.0",
     .summary = "End what MULTI began; none of it is run",
     .operation = op_discard,
     .in_bracket = true},
    {.name = "echo",
     .arity = 2,
     .flags = kLoading | kStale | kFast,
     .groups = "connection",
     .group = "connection",
     .since = "1.0.0",
     .summary = "Send the argument back",
     .instant = do_echo},
    {.name = "exec",
     .arity = 1,
     .flags = kNoScript | kLoading | kStale | kSkipSlowlog,
     .group = "transactions",
     .since = "1.2.0",
     .summary = "Run the commands since MULTI as one change of their key",
     .operation = op_exec,
     .in_bracket = true},
    {.name = "exists",
     .arity = -2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = -1,
     .key_step = 1,
     .key_access = "RO",
     .groups = "keyspace",
     .tips = kShardsSum,
     .group = "generic",
     .since = "1.0.0",
     .summary = "Count which keys exist",
     .operation = op_exists},
    {.name = "expire",
     .arity = -3,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW update",
     .groups = "keyspace",
     .group = "generic",
     .since = "1.0.0",
     .summary = "Let a key expire after some seconds: NX, XX, GT, LT",
     .operation = op_expire},
    {.name = "expireat",
     .arity = -3,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW update",
     .groups = "keyspace",
     .group = "generic",
     .since = "1.2.0",
     .summary = "Let a key expire at a time in seconds: NX, XX, GT, LT",
     .operation = op_expireat},
    {.name = "expiretime",
     .arity = 2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "keyspace",
     .group = "generic",
     .since = "7.0.0",
     .summary = "Get the time in seconds at which a key expires",
     .operation = op_expiretime},
    {.name = "flushall",
     .arity = -1,
     .flags = kWrite,
     .groups = "keyspace dangerous",
     .tips = "request_policy:all_shards response_policy:all_succeeded",
     .group = "server",
     .since = "1.0.0",
     .summary = "Delete all keys, each atomically on its own",
     .operation = op_flushdb},
    {.name = "flushdb",
     .arity = -1,
     .flags = kWrite,
     .groups = "keyspace dangerous",
     .tips = "request_policy:all_shards response_policy:all_succeeded",
     .group = "server",
     .since = "1.0.0",
     .summary = "Delete all keys, each atomically on its own",
     .operation = op_flushdb},
    {.name = "get",
     .arity = 2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Get a value",
     .operation = op_get},
    {.name = "getdel",
     .arity = 2,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access delete",
     .groups = "string",
     .group = "string",
     .since = "6.2.0",
     .summary = "Get a value and delete its key",
     .operation = op_getdel},
    {.name = "getex",
     .arity = -2,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update",
     .key_note = "RW and UPDATE because it changes the TTL",
     .groups = "string",
     .group = "string",
     .since = "6.2.0",
     .summary = "Get a value and set when it expires",
     .operation = op_getex},
    {.name = "getrange",
     .arity = 4,
     .flags = kReadOnly,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "string",
     .group = "string",
     .since = "2.4.0",
     .summary = "Get a part of a value",
     .operation = op_getrange},
    {.name = "getset",
     .arity = 3,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Set a value and get the one before",
     .operation = op_getset},
    {.name = "hello",
     .arity = -1,
     .flags = kLogin,
     .groups = "connection",
     .group = "connection",
     .since = "6.0.0",
     .summary = "Choose the protocol, authenticate",
     .instant = do_hello},
    {.name = "host:",
     .arity = -1,
     .flags = kLogin,
     .group = "server",
     .since = "7.0.0",
     .summary = "Hang up: this is not HTTP",
     .instant = do_hang_up,
     .in_bracket = true},
    {.name = "incr",
     .arity = 2,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Add one to a number",
     .operation = op_incr},
    {.name = "incrby",
     .arity = 3,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Add to a number",
     .operation = op_incrby},
    {.name = "incrbyfloat",
     .arity = 3,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update",
     .groups = "string",
     .group = "string",
     .since = "2.6.0",
     .summary = "Add to a decimal number",
     .operation = op_incrbyfloat},
    {.name = "info",
     .arity = -1,
     .flags = kTalk,
     .groups = "dangerous",
     .tips = "nondeterministic_output request_policy:all_shards response_policy:special",
     .group = "server",
     .since = "1.0.0",
     .summary = "Describe this compute shard",
     .operation = op_info},
    {.name = "keys",
     .arity = 2,
     .flags = kReadOnly,
     .groups = "keyspace dangerous",
     .tips = "request_policy:all_shards nondeterministic_output_order",
     .group = "generic",
     .since = "1.0.0",
     .summary = "Get the keys that match a pattern",
     .operation = op_keys},
    {.name = "mget",
     .arity = -2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = -1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "string",
     .tips = "request_policy:multi_shard",
     .group = "string",
     .since = "1.0.0",
     .summary = "Get values, each atomically on its own",
     .operation = op_mget},
    {.name = "mset",
     .arity = -3,
     .flags = kWrite | kDenyOom,
     .first_key = 1,
     .last_key = -1,
     .key_step = 2,
     .key_access = "OW update",
     .groups = "string",
     .tips = "request_policy:multi_shard response_policy:all_succeeded",
     .group = "string",
     .since = "1.0.1",
     .summary = "Set values, each atomically on its own",
     .operation = op_mset},
    {.name = "multi",
     .arity = 1,
     .flags = kBracket,
     .group = "transactions",
     .since = "1.2.0",
     .summary = "Queue commands on one key until EXEC",
     .instant = do_multi,
     .in_bracket = true},
    {.name = "persist",
     .arity = 2,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW update",
     .groups = "keyspace",
     .group = "generic",
     .since = "2.2.0",
     .summary = "Let a key expire no more",
     .operation = op_persist},
    {.name = "pexpire",
     .arity = -3,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW update",
     .groups = "keyspace",
     .group = "generic",
     .since = "2.6.0",
     .summary = "Let a key expire after some milliseconds: NX, XX, GT, LT",
     .operation = op_pexpire},
    {.name = "pexpireat",
     .arity = -3,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW update",
     .groups = "keyspace",
     .group = "generic",
     .since = "2.6.0",
     .summary = "Let a key expire at a time in milliseconds: NX, XX, GT, LT",
     .operation = op_pexpireat},
    {.name = "pexpiretime",
     .arity = 2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "keyspace",
     .group = "generic",
     .since = "7.0.0",
     .summary = "Get the time in milliseconds at which a key expires",
     .operation = op_pexpiretime},
    {.name = "ping",
     .arity = -1,
     .flags = kFast,
     .groups = "connection",
     .tips = "request_policy:all_shards response_policy:all_succeeded",
     .group = "connection",
     .since = "1.0.0",
     .summary = "See whether this compute shard answers",
     .instant = do_ping},
    {.name = "post",
     .arity = -1,
     .flags = kLogin,
     .group = "server",
     .since = "7.0.0",
     .summary = "Hang up: this is not HTTP",
     .instant = do_hang_up,
     .in_bracket = true},
    {.name = "psetex",
     .arity = 4,
     .flags = kWrite | kDenyOom,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "OW update",
     .groups = "string",
     .group = "string",
     .since = "2.6.0",
     .summary = "Set a value that expires after some milliseconds",
     .operation = op_psetex},
    {.name = "pttl",
     .arity = 2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "keyspace",
     .tips = "nondeterministic_output",
     .group = "generic",
     .since = "2.6.0",
     .summary = "Get the milliseconds until a key expires",
     .operation = op_pttl},
    {.name = "quit",
     .arity = -1,
     .flags = kLogin,
     .groups = "connection",
     .group = "connection",
     .since = "1.0.0",
     .summary = "Close this connection",
     .instant = do_quit,
     .in_bracket = true},
    {.name = "randomkey",
     .arity = 1,
     .flags = kReadOnly,
     .groups = "keyspace",
     .tips = "request_policy:all_shards nondeterministic_output",
     .group = "generic",
     .since = "1.0.0",
     .summary = "Get a key by chance",
     .operation = op_randomkey},
    {.name = "reset",
     .arity = 1,
     .flags = kLogin,
     .groups = "connection",
     .group = "connection",
     .since = "6.2.0",
     .summary = "Begin this connection anew",
     .instant = do_reset,
     .in_bracket = true},
    {.name = "scan",
     .arity = -2,
     .flags = kReadOnly,
     .groups = "keyspace",
     .tips = "nondeterministic_output request_policy:special",
     .group = "generic",
     .since = "2.8.0",
     .summary = "Go through the keys step by step: MATCH, COUNT, TYPE",
     .operation = op_scan},
    {.name = "select",
     .arity = 2,
     .flags = kLoading | kStale | kFast,
     .groups = "connection",
     .group = "connection",
     .since = "1.0.0",
     .summary = "Choose database 0, the only one",
     .instant = do_select},
    {.name = "set",
     .arity = -3,
     .flags = kWrite | kDenyOom,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW access update variable_flags",
     .key_note = "RW and ACCESS due to the optional `GET` argument",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Set a value: NX, XX, GET, KEEPTTL, EX, PX, EXAT, PXAT",
     .operation = op_set},
    {.name = "setex",
     .arity = 4,
     .flags = kWrite | kDenyOom,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "OW update",
     .groups = "string",
     .group = "string",
     .since = "2.0.0",
     .summary = "Set a value that expires after some seconds",
     .operation = op_setex},
    {.name = "setnx",
     .arity = 3,
     .flags = kGrow,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "OW insert",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Set a value if there is none",
     .operation = op_setnx},
    {.name = "setrange",
     .arity = 4,
     .flags = kWrite | kDenyOom,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RW update",
     .groups = "string",
     .group = "string",
     .since = "2.2.0",
     .summary = "Overwrite a part of a value",
     .operation = op_setrange},
    {.name = "strlen",
     .arity = 2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO",
     .groups = "string",
     .group = "string",
     .since = "2.2.0",
     .summary = "Get the length of a value",
     .operation = op_strlen},
    {.name = "substr",
     .arity = 4,
     .flags = kReadOnly,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "string",
     .group = "string",
     .since = "1.0.0",
     .summary = "Get a part of a value",
     .operation = op_getrange},
    {.name = "ttl",
     .arity = 2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "keyspace",
     .tips = "nondeterministic_output",
     .group = "generic",
     .since = "1.0.0",
     .summary = "Get the seconds until a key expires",
     .operation = op_ttl},
    {.name = "type",
     .arity = 2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = 1,
     .key_step = 1,
     .key_access = "RO",
     .groups = "keyspace",
     .group = "generic",
     .since = "1.0.0",
     .summary = "Get the type of a value",
     .operation = op_type},
    {.name = "unlink",
     .arity = -2,
     .flags = kWrite | kFast,
     .first_key = 1,
     .last_key = -1,
     .key_step = 1,
     .key_access = "RM delete",
     .groups = "keyspace",
     .tips = kShardsSum,
     .group = "generic",
     .since = "4.0.0",
     .summary = "Delete keys, each atomically on its own",
     .operation = op_del},
    {.name = "unwatch",
     .arity = 1,
     .flags = kBracket,
     .group = "transactions",
     .since = "2.2.0",
     .summary = "Watch no key any more",
     .operation = op_unwatch},
    {.name = "watch",
     .arity = -2,
     .flags = kBracket,
     .first_key = 1,
     .last_key = -1,
     .key_step = 1,
     .key_access = "RO",
     .group = "transactions",
     .since = "2.2.0",
     .summary = "Have EXEC run nothing if the key has another value by then",
     .operation = op_watch,
     .in_bracket = true},
});

// Puts parts of the table together, sorted by name.
template <std::size_t... sizes>
constexpr auto joined(const std::array<CommandSpec, sizes>&... parts) {
  std::array<CommandSpec, (sizes + ...)> all;
  auto end = all.begin();
  ((end = std::copy(parts.begin(), parts.end(), end)), ...);
  std::sort(all.begin(), all.end(), [](const CommandSpec& a, const CommandSpec& b) { return a.name < b.name; });
  return all;
}
constexpr std::array kCommands = joined(kOtherCommands, kHashCommands, kKeyCommands, kBitCommands, kServerCommands);

// The commands that COMMAND tells of.
std::vector<const CommandSpec*> told() {
  std::vector<const CommandSpec*> specs;
  for (const CommandSpec& spec : kCommands) {
    if (!spec.unsupported) specs.push_back(&spec);
  }
  return specs;
}

// Every entry of the table in the order of its number.
const std::vector<const CommandSpec*>& numbered() {
  static const std::vector<const CommandSpec*> all = [] {
    std::vector<const CommandSpec*> entries;
    for (const CommandSpec& spec : kCommands) entries.push_back(&spec);
    for (const CommandSpec& spec : kCommands) {
      for (const CommandSpec& sub : spec.subcommands) entries.push_back(&sub);
    }
    FARPOOL_CHECK(entries.size() <= kMaxCommands);
    return entries;
  }();
  return all;
}

const CommandSpec* find_in(std::span<const CommandSpec> table, std::string_view name) {
  const auto found =
      std::lower_bound(table.begin(), table.end(), name, [](const CommandSpec& spec, std::string_view wanted) {
        const std::string_view own = spec.short_name();
        return std::lexicographical_compare(own.begin(), own.end(), wanted.begin(), wanted.end(),
                                            [](char a, char b) { return lower(a) < lower(b); });
      });
  return found != table.end() && same_word(found->short_name(), name) ? &*found : nullptr;
}

// Where each command of the table stands, by a hash of its name: one behind the next where hashes are equal.
class Places {
 public:
  constexpr Places() {
    static_assert(kCommands.size() * 2 < kPlaces && kCommands.size() < 255);
    for (std::size_t i = 0; i < kCommands.size(); ++i) {
      std::size_t place = hash(kCommands[i].name);
      while (numbers_[place] != 0) place = (place + 1) % kPlaces;
      numbers_[place] = static_cast<std::uint8_t>(i + 1);
    }
  }
  const CommandSpec* find(std::string_view name) const {
    for (std::size_t place = hash(name); numbers_[place] != 0; place = (place + 1) % kPlaces) {
      const CommandSpec& spec = kCommands[numbers_[place] - 1u];
      if (same_word(spec.name, name)) return &spec;
    }
    return nullptr;
  }

 private:
  static constexpr std::size_t kPlaces = 256;
  static constexpr std::size_t kLongest = 16;  // what comes behind is not hashed
  static constexpr std::size_t hash(std::string_view name) {
    std::size_t hash = name.size();
    for (const char c : name.substr(0, kLongest)) hash = hash * 31 + static_cast<unsigned char>(lower(c));
    return hash % kPlaces;
  }

  std::array<std::uint8_t, kPlaces> numbers_{};  // in the table, from 1 on
};
constexpr Places kPlacesOfCommands;

std::vector<std::string> words(std::string_view text, std::string_view prefix = "") {
  std::vector<std::string> result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    result.push_back(std::string(prefix) + std::string(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

std::vector<std::string> flags_of(const CommandSpec& spec) {
  constexpr std::array<std::string_view, 11> kNames{"write",    "readonly", "denyoom",   "admin",
                                                    "noscript", "loading",  "stale",     "skip_slowlog",
                                                    "fast",     "no_auth",  "allow_busy"};
  std::vector<std::string> result;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if ((spec.flags & (1u << i)) != 0) result.emplace_back(kNames[i]);
  }
  return result;
}

std::vector<std::string> categories_of(const CommandSpec& spec) {
  std::vector<std::string> result;
  const auto named = [&spec](std::string_view group) { return spec.groups.find(group) != std::string_view::npos; };
  const auto add = [&result](bool in, std::string_view name) {
    if (in) result.push_back("@" + std::string(name));
  };
  add(named("keyspace"), "keyspace");
  add((spec.flags & kReadOnly) != 0, "read");
  add((spec.flags & kWrite) != 0, "write");
  add(named("hash"), "hash");
  add(named("string"), "string");
  add(named("bitmap"), "bitmap");
  add((spec.flags & kAdmin) != 0, "admin");
  add((spec.flags & kFast) != 0, "fast");
  add((spec.flags & kFast) == 0, "slow");
  add((spec.flags & kAdmin) != 0 || named("dangerous"), "dangerous");
  add(named("connection"), "connection");
  add(spec.group == "transactions", "transaction");
  return result;
}

void simple_set(Reply& reply, const std::vector<std::string>& elements) {
  reply.set(elements.size());
  for (const std::string& element : elements) reply.simple(element);
}

// The keys from the word `first` to the word that is so many behind it, or counted from the end.
void describe_keys(Reply& reply, const CommandSpec& spec, std::string_view access, int first, int last) {
  reply.map(spec.key_note.empty() ? 3 : 4);
  if (!spec.key_note.empty()) {
    reply.bulk("notes");
    reply.bulk(spec.key_note);
  }
  reply.bulk("flags");
  simple_set(reply, words(access));
  reply.bulk("begin_search");
  reply.map(2);
  reply.bulk("type");
  reply.bulk("index");
  reply.bulk("spec");
  reply.map(1);
  reply.bulk("index");
  reply.integer(first);
  reply.bulk("find_keys");
  reply.map(2);
  reply.bulk("type");
  reply.bulk("range");
  reply.bulk("spec");
  reply.map(3);
  reply.bulk("lastkey");
  reply.integer(last);
  reply.bulk("keystep");
  reply.integer(spec.key_step);
  reply.bulk("limit");
  reply.integer(0);
}

void describe(Reply& reply, const CommandSpec* spec) {
  if (spec == nullptr || spec->unsupported) return reply.null();
  reply.array(10);
  reply.bulk(spec->name);
  reply.integer(spec->arity);
  simple_set(reply, flags_of(*spec));
  reply.integer(spec->first_key);
  reply.integer(spec->last_key);
  reply.integer(spec->key_step);
  simple_set(reply, categories_of(*spec));
  const std::vector<std::string> tips = words(spec->tips);
  reply.set(tips.size());
  for (const std::string& tip : tips) reply.bulk(tip);
  if (spec->key_access.empty()) {
    reply.set(0);
  } else if (spec->second_access.empty()) {
    reply.set(1);
    const int last = spec->last_key < 0 ? spec->last_key : spec->last_key - spec->first_key;
    describe_keys(reply, *spec, spec->key_access, spec->first_key, last);
  } else {
    reply.set(2);
    describe_keys(reply, *spec, spec->key_access, spec->first_key, 0);
    describe_keys(reply, *spec, spec->second_access, spec->last_key, 0);
  }
  // An empty set, but a list otherwise: as Redis has it.
  spec->subcommands.empty() ? reply.set(0) : reply.array(spec->subcommands.size());
  for (const CommandSpec& sub : spec->subcommands) describe(reply, &sub);
}

void document(Reply& reply, const CommandSpec& spec) {
  reply.bulk(spec.name);
  reply.map(spec.subcommands.empty() ? 3 : 4);
  reply.bulk("summary");
  reply.bulk(spec.summary);
  reply.bulk("since");
  reply.bulk(spec.since);
  reply.bulk("group");
  reply.bulk(spec.group);
  if (spec.subcommands.empty()) return;
  reply.bulk("subcommands");
  reply.map(spec.subcommands.size());
  for (const CommandSpec& sub : spec.subcommands) document(reply, sub);
}

// "get" or "client|id"
const CommandSpec* find_full(std::string_view name) {
  const std::size_t bar = name.find('|');
  const CommandSpec* spec = find_command(name.substr(0, bar));
  if (spec == nullptr || bar == std::string_view::npos) return spec;
  return find_subcommand(*spec, name.substr(bar + 1));
}

}  // namespace

std::span<const CommandSpec> commands() { return kCommands; }
const CommandSpec* find_command(std::string_view name) { return kPlacesOfCommands.find(name); }
const CommandSpec* find_subcommand(const CommandSpec& parent, std::string_view name) {
  return find_in(parent.subcommands, name);
}

std::size_t number_of(const CommandSpec& spec) {
  if (&spec >= kCommands.data() && &spec < kCommands.data() + kCommands.size()) {
    return static_cast<std::size_t>(&spec - kCommands.data());
  }
  const auto& all = numbered();
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), &spec) - all.begin());
}

const CommandSpec* command_at(std::size_t number) { return number < numbered().size() ? numbered()[number] : nullptr; }

void command_all(Conversation&, Request& request) {
  Reply reply = request.answer();
  const std::vector<const CommandSpec*> specs = told();
  reply.array(specs.size());
  for (const CommandSpec* spec : specs) describe(reply, spec);
}

void command_count(Conversation&, Request& request) {
  request.answer().integer(static_cast<std::int64_t>(told().size()));
}

void command_info(Conversation& conversation, Request& request) {
  if (request.command.size() == 2) return command_all(conversation, request);
  Reply reply = request.answer();
  reply.array(request.command.size() - 2);
  for (std::size_t i = 2; i < request.command.size(); ++i) describe(reply, find_full(request.command[i]));
}

void command_docs(Conversation&, Request& request) {
  std::vector<const CommandSpec*> chosen;
  for (std::size_t i = 2; i < request.command.size(); ++i) {
    const CommandSpec* spec = find_full(request.command[i]);
    if (spec != nullptr && !spec->unsupported) chosen.push_back(spec);
  }
  if (request.command.size() == 2) chosen = told();
  Reply reply = request.answer();
  reply.map(chosen.size());
  for (const CommandSpec* spec : chosen) document(reply, *spec);
}

void command_list(Conversation&, Request& request) {
  const Command& command = request.command;
  std::string_view pattern = "*";
  if (command.size() == 5 && same_word(command[2], "FILTERBY") && same_word(command[3], "PATTERN")) {
    pattern = command[4];
  } else if (command.size() != 2) {
    return request.error(kSyntaxError);
  }
  std::vector<std::string_view> names;
  for (const CommandSpec* spec : told()) {
    if (glob_match(pattern, spec->name, Case::ignored)) names.push_back(spec->name);
  }
  Reply reply = request.answer();
  reply.set(names.size());
  for (const std::string_view name : names) reply.bulk(name);
}

}  // namespace farpool::front::resp
