// SPDX-License-Identifier: Apache-2.0
// The commands as data: what COMMAND tells drivers, and what runs them, from one table.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "task/task.h"

namespace farpool::front::resp {

class Conversation;
struct Request;

// In the order in which Redis prints them.
enum Flag : std::uint16_t {
  kWrite = 1 << 0,
  kReadOnly = 1 << 1,
  kDenyOom = 1 << 2,
  kAdmin = 1 << 3,
  kPubSub = 1 << 4,
  kNoScript = 1 << 5,
  kLoading = 1 << 6,
  kStale = 1 << 7,
  kSkipSlowlog = 1 << 8,
  kFast = 1 << 9,
  kNoAuth = 1 << 10,  // may run before authentication
  kAllowBusy = 1 << 11,
};
// What commands have that write one value and may make it longer.
inline constexpr std::uint16_t kGrow = kWrite | kDenyOom | kFast;

// Runs as soon as the command has been read, without waiting for earlier ones of its connection: it touches no key. Its
// reply still takes its turn.
using Instant = void (*)(Conversation&, Request&);
// Runs on the pool.
using Operation = task::Task<void> (*)(Conversation&, Request&);

struct CommandSpec {
  std::string_view name;  // lower case; of a subcommand, "client|id"
  int arity = 0;          // words, the name included; negative: at least that many
  std::uint16_t flags = 0;
  int first_key = 0, last_key = 0, key_step = 0;
  std::string_view key_access;  // flags of its key specification, or empty
  std::string_view key_note;
  std::string_view second_access = {};  // the same of the second key, of commands that do something else with it
  std::string_view groups;              // ACL categories beyond the ones that follow from the flags
  std::string_view tips;
  std::string_view group;  // of the documentation
  std::string_view since;
  std::string_view summary;
  Instant instant = nullptr;
  Operation operation = nullptr;
  std::span<const CommandSpec> subcommands = {};
  bool in_bracket = false;   // is not queued between MULTI and EXEC, but runs at once
  bool unsupported = false;  // known so that it can be refused well: COMMAND does not tell of it

  bool arity_fits(std::size_t words) const {
    return arity >= 0 ? words == static_cast<std::size_t>(arity) : words >= static_cast<std::size_t>(-arity);
  }
  // "id" of "client|id"
  std::string_view short_name() const { return name.substr(name.find('|') + 1); }
};

// The table, sorted by name. Its indices, then those of the subcommands in the order of their parents, number the
// counters.
std::span<const CommandSpec> commands();
// A command or, with `subcommand`, one of a container; nothing if there is none. Case does not matter.
const CommandSpec* find_command(std::string_view name);
const CommandSpec* find_subcommand(const CommandSpec& parent, std::string_view name);
// Every entry has a number for its counters: at most kMaxCommands.
inline constexpr std::size_t kMaxCommands = 160;
std::size_t number_of(const CommandSpec& spec);
const CommandSpec* command_at(std::size_t number);

// COMMAND and its subcommands.
void command_all(Conversation&, Request&);
void command_count(Conversation&, Request&);
void command_docs(Conversation&, Request&);
void command_info(Conversation&, Request&);
void command_list(Conversation&, Request&);

}  // namespace farpool::front::resp
