// SPDX-License-Identifier: Apache-2.0
// The commands about what a pool does not have, a part of the table of commands.
#pragma once

#include <array>

#include "front/resp/connection_commands.h"
#include "front/resp/table.h"

namespace farpool::front::resp {

inline constexpr std::array kSlowlogCommands = std::to_array<CommandSpec>({
    {.name = "slowlog|get",
     .arity = -2,
     .flags = kAdmin | kLoading | kStale,
     .tips = "request_policy:all_nodes nondeterministic_output",
     .group = "server",
     .since = "2.2.12",
     .summary = "Tell of no slow commands: none are logged",
     .instant = do_slowlog_get},
    {.name = "slowlog|help",
     .arity = 2,
     .flags = kLoading | kStale,
     .group = "server",
     .since = "6.2.0",
     .summary = "Describe the subcommands",
     .instant = do_help},
    {.name = "slowlog|len",
     .arity = 2,
     .flags = kAdmin | kLoading | kStale,
     .tips = "request_policy:all_nodes response_policy:agg_sum nondeterministic_output",
     .group = "server",
     .since = "2.2.12",
     .summary = "Say 0: no commands are logged",
     .instant = do_nothing_counted},
    {.name = "slowlog|reset",
     .arity = 2,
     .flags = kAdmin | kLoading | kStale,
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .group = "server",
     .since = "2.2.12",
     .summary = "Accepted: there is no log",
     .instant = do_nothing_to_reset},
});

inline constexpr std::uint16_t kWatchLatency = kAdmin | kNoScript | kLoading | kStale;
inline constexpr std::array kLatencyCommands = std::to_array<CommandSpec>({
    {.name = "latency|help",
     .arity = 2,
     .flags = kLoading | kStale,
     .group = "server",
     .since = "2.8.13",
     .summary = "Describe the subcommands",
     .instant = do_help},
    {.name = "latency|history",
     .arity = 3,
     .flags = kWatchLatency,
     .tips = "nondeterministic_output request_policy:all_nodes response_policy:special",
     .group = "server",
     .since = "2.8.13",
     .summary = "Tell of no events: none are kept",
     .instant = do_nothing_logged},
    {.name = "latency|latest",
     .arity = 2,
     .flags = kWatchLatency,
     .tips = "nondeterministic_output request_policy:all_nodes response_policy:special",
     .group = "server",
     .since = "2.8.13",
     .summary = "Tell of no events: none are kept",
     .instant = do_nothing_logged},
    {.name = "latency|reset",
     .arity = -2,
     .flags = kWatchLatency,
     .tips = "request_policy:all_nodes response_policy:all_succeeded",
     .group = "server",
     .since = "2.8.13",
     .summary = "Say 0: there are no events",
     .instant = do_nothing_counted},
});

inline constexpr std::array kServerCommands = std::to_array<CommandSpec>({
    {.name = "latency",
     .arity = -2,
     .group = "server",
     .since = "2.8.13",
     .summary = "Commands about slow events",
     .subcommands = kLatencyCommands},
    {.name = "slowlog",
     .arity = -2,
     .group = "server",
     .since = "2.2.12",
     .summary = "Commands about slow commands",
     .subcommands = kSlowlogCommands},
    {.name = "wait",
     .arity = 3,
     .flags = kNoScript,
     .groups = "connection",
     .tips = "request_policy:all_shards response_policy:agg_min",
     .group = "generic",
     .since = "3.0.0",
     .summary = "Say 0: there are no replicas",
     .instant = do_wait},
});

}  // namespace farpool::front::resp
