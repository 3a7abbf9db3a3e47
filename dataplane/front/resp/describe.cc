// SPDX-License-Identifier: Apache-2.0
// COMMAND: what it tells drivers of the table of commands.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "front/resp/conversation.h"
#include "front/resp/table.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

// The commands that COMMAND tells of.
std::vector<const CommandSpec*> told() {
  std::vector<const CommandSpec*> specs;
  for (const CommandSpec& spec : commands()) {
    if (!spec.unsupported) specs.push_back(&spec);
  }
  return specs;
}

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
  constexpr std::array<std::string_view, 12> kNames{"write",        "readonly", "denyoom", "admin",
                                                    "pubsub",       "noscript", "loading", "stale",
                                                    "skip_slowlog", "fast",     "no_auth", "allow_busy"};
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
  add((spec.flags & kPubSub) != 0, "pubsub");
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
