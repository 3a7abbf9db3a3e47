// SPDX-License-Identifier: Apache-2.0
// The commands on values of any type, and on two keys: a part of the table of commands.
#pragma once

#include <array>

#include "front/resp/connection_commands.h"
#include "front/resp/hash_specs.h"
#include "front/resp/operations.h"
#include "front/resp/table.h"

namespace farpool::front::resp {

// Fills in what commands on the key behind a subcommand have in common.
constexpr CommandSpec on_second_word(CommandSpec spec) {
  spec.first_key = spec.last_key = 2;
  spec.key_step = 1;
  spec.key_access = "RO";
  return spec;
}

constexpr CommandSpec of_object(std::string_view name, std::string_view since, std::string_view summary) {
  return on_second_word({.name = name,
                         .arity = 3,
                         .flags = kReadOnly,
                         .groups = "keyspace",
                         .tips = "nondeterministic_output",
                         .group = "generic",
                         .since = since,
                         .summary = summary,
                         .operation = op_object});
}

// Fills in what commands on two keys have in common.
constexpr CommandSpec on_two_keys(CommandSpec spec) {
  spec.first_key = 1;
  spec.last_key = 2;
  spec.key_step = 1;
  spec.groups = "keyspace";
  spec.group = "generic";
  return spec;
}

inline constexpr std::array kObjectCommands = std::to_array<CommandSpec>({
    of_object("object|encoding", "2.2.3", "Tell how Redis would keep a value"),
    of_object("object|freq", "4.0.0", "Refused: a client of a pool knows only its own uses of a key"),
    {.name = "object|help",
     .arity = 2,
     .flags = kLoading | kStale,
     .groups = "keyspace",
     .group = "generic",
     .since = "6.2.0",
     .summary = "Describe the subcommands",
     .instant = do_help},
    of_object("object|idletime", "2.2.3", "Refused: a client of a pool knows only its own uses of a key"),
    of_object("object|refcount", "2.2.3", "Say 1: no value is shared"),
});

inline constexpr std::array kMemoryCommands = std::to_array<CommandSpec>({
    {.name = "memory|help",
     .arity = 2,
     .flags = kLoading | kStale,
     .group = "server",
     .since = "4.0.0",
     .summary = "Describe the subcommands",
     .instant = do_help},
    on_second_word({.name = "memory|usage",
                    .arity = -3,
                    .flags = kReadOnly,
                    .group = "server",
                    .since = "4.0.0",
                    .summary = "Count the bytes of a key and its value",
                    .operation = op_memory_usage}),
});

inline constexpr std::array kKeyCommands = std::to_array<CommandSpec>({
    on_two_keys({.name = "copy",
                 .arity = -3,
                 .flags = kWrite | kDenyOom,
                 .key_access = "RO access",
                 .second_access = "OW update",
                 .since = "6.2.0",
                 .summary = "Copy a value to another key: REPLACE",
                 .operation = op_copy}),
    {.name = "lcs",
     .arity = -3,
     .flags = kReadOnly,
     .first_key = 1,
     .last_key = 2,
     .key_step = 1,
     .key_access = "RO access",
     .groups = "string",
     .group = "string",
     .since = "7.0.0",
     .summary = "Get the longest subsequence that two values share: LEN, IDX, MINMATCHLEN, WITHMATCHLEN",
     .operation = op_lcs},
    {.name = "memory",
     .arity = -2,
     .group = "server",
     .since = "4.0.0",
     .summary = "Commands about memory",
     .subcommands = kMemoryCommands},
    {.name = "object",
     .arity = -2,
     .group = "generic",
     .since = "2.2.3",
     .summary = "Commands about how values are kept",
     .subcommands = kObjectCommands},
    on_two_keys({.name = "rename",
                 .arity = 3,
                 .flags = kWrite,
                 .key_access = "RW access delete",
                 .second_access = "OW update",
                 .since = "1.0.0",
                 .summary = "Give a value another key: a copy, and then a removal",
                 .operation = op_rename}),
    on_two_keys({.name = "renamenx",
                 .arity = 3,
                 .flags = kWrite | kFast,
                 .key_access = "RW access delete",
                 .second_access = "OW insert",
                 .since = "1.0.0",
                 .summary = "Give a value another key, if there is none of that name",
                 .operation = op_renamenx}),
    {.name = "touch",
     .arity = -2,
     .flags = kReadOnly | kFast,
     .first_key = 1,
     .last_key = -1,
     .key_step = 1,
     .key_access = "RO",
     .groups = "keyspace",
     .tips = "request_policy:multi_shard response_policy:agg_sum",
     .group = "generic",
     .since = "3.2.1",
     .summary = "Count which keys exist, each of which is used by that",
     .operation = op_exists},
});

}  // namespace farpool::front::resp
