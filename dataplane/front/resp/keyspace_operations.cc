// SPDX-License-Identifier: Apache-2.0
// The commands on all keys of the pool. None of them sees the pool at one moment: they go through it step by step,
// while other connections go on.
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/number.h"
#include "front/resp/operations.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using base::Status;
using client::Page;
using task::Task;

// Keys that a step asks for, where the client does not say how many.
constexpr std::uint64_t kStep = 512;
constexpr std::size_t kErasedAtOnce = 64;

// As strtoul takes it: an optional sign, and a minus counts down from 2^64.
std::optional<std::uint64_t> parse_cursor(std::string_view text) {
  if (text.empty()) return 0;
  const bool negative = text.front() == '-';
  if (negative || text.front() == '+') text.remove_prefix(1);
  std::uint64_t cursor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cursor);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? 0 - cursor : cursor;
}

struct ScanOptions {
  std::uint64_t cursor = 0;
  std::uint64_t count = 10;
  std::string_view pattern = "*";
  bool strings = true;  // the type that is asked for is the one that there is
};

// Nothing: the request has been answered with an error.
std::optional<ScanOptions> parse_scan(Request& request) {
  const Command& command = request.command;
  ScanOptions options;
  const std::optional<std::uint64_t> cursor = parse_cursor(command[1]);
  if (!cursor) {
    request.error("ERR invalid cursor");
    return std::nullopt;
  }
  options.cursor = *cursor;
  for (std::size_t i = 2; i < command.size(); i += 2) {
    const bool more = i + 1 < command.size();
    if (more && same_word(command[i], "COUNT")) {
      const std::optional<std::int64_t> count = base::parse_integer(command[i + 1]);
      if (!count) {
        request.error(kNotAnInteger);
        return std::nullopt;
      }
      if (*count < 1) {
        request.error(kSyntaxError);
        return std::nullopt;
      }
      options.count = static_cast<std::uint64_t>(*count);
    } else if (more && same_word(command[i], "MATCH")) {
      options.pattern = command[i + 1];
    } else if (more && same_word(command[i], "TYPE")) {
      options.strings = same_word(command[i + 1], "string");
    } else {
      request.error(kSyntaxError);
      return std::nullopt;
    }
  }
  return options;
}

class Flush {
 public:
  Flush(Conversation& conversation, Request& request) : conversation_(conversation), request_(request) {}
  Task<void> run() {
    std::uint64_t cursor = 0;
    do {
      const Result<Page> page = co_await conversation_.kv().scan(cursor, kStep, client::Kv::Keys::all);
      if (!page.ok()) {
        failure_ = page.status();
        break;
      }
      for (std::size_t i = 0; i < page->keys.size() && failure_.ok();) {
        task::Scope scope;
        for (; i < page->keys.size() && scope.running() < kErasedAtOnce; ++i) scope.spawn(erase(page->keys[i]));
        co_await scope.join();
      }
      cursor = page->next;
    } while (cursor != 0 && failure_.ok());
    Counters& counters = conversation_.service().counters;
    if (failure_.ok()) {
      request_.answer().ok();
    } else if (erased_ == 0 || failure_.code() == base::Code::unknown_outcome) {
      pool_error(request_, failure_, counters);
    } else {
      request_.error("PARTIAL " + std::to_string(erased_) + " keys were deleted, then: " + pool_error_text(failure_));
    }
  }

 private:
  Task<void> erase(const std::string& key) {
    const Result<bool> existed = co_await conversation_.kv().erase(key);
    if (existed.ok()) {
      erased_ += *existed ? 1 : 0;
    } else if (failure_.ok() || existed.code() == base::Code::unknown_outcome) {
      failure_ = existed.status();
    }
  }
  Conversation& conversation_;
  Request& request_;
  std::uint64_t erased_ = 0;
  Status failure_;
};

}  // namespace

Task<void> op_scan(Conversation& conversation, Request& request) {
  const std::optional<ScanOptions> options = parse_scan(request);
  if (!options) co_return;
  const Result<Page> page = co_await conversation.kv().scan(options->cursor, options->count);
  if (!page.ok()) {
    pool_error(request, page.status(), conversation.service().counters);
    co_return;
  }
  std::vector<std::string_view> keys;
  for (const std::string& key : page->keys) {
    if (options->strings && glob_match(options->pattern, key, Case::matters)) keys.push_back(key);
  }
  Reply reply = request.answer();
  reply.array(2);
  reply.bulk(std::to_string(page->next));
  reply.array(keys.size());
  for (const std::string_view key : keys) reply.bulk(key);
}

Task<void> op_keys(Conversation& conversation, Request& request) {
  const std::size_t most = conversation.settings().max_reply_bytes;
  std::unordered_set<std::string> keys;
  std::size_t bytes = 0;
  std::uint64_t cursor = 0;
  do {
    Result<Page> page = co_await conversation.kv().scan(cursor, kStep);
    if (!page.ok()) {
      pool_error(request, page.status(), conversation.service().counters);
      co_return;
    }
    for (std::string& key : page->keys) {
      if (!glob_match(request.command[1], key, Case::matters)) continue;
      const std::size_t size = key.size() + sizeof(std::string);
      if (keys.insert(std::move(key)).second) bytes += size;
    }
    if (bytes > most) {
      request.error("ERR the reply would be larger than " + std::to_string(most) +
                    " bytes: use SCAN, or a pattern that fewer keys match");
      co_return;
    }
    cursor = page->next;
  } while (cursor != 0 && !conversation.abandoned());
  Reply reply = request.answer();
  reply.array(keys.size());
  for (const std::string& key : keys) reply.bulk(key);
}

Task<void> op_randomkey(Conversation& conversation, Request& request) {
  const Result<std::optional<std::string>> key = co_await conversation.kv().any_key();
  if (!key.ok()) {
    pool_error(request, key.status(), conversation.service().counters);
  } else if (*key) {
    request.answer().bulk(**key);
  } else {
    request.answer().null();
  }
}

// ASYNC and SYNC are the same: either way it is answered when the keys are gone, and holds up nobody else.
Task<void> op_flushdb(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  if (command.size() > 2 ||
      (command.size() == 2 && !same_word(command[1], "ASYNC") && !same_word(command[1], "SYNC"))) {
    request.error(kSyntaxError);
    co_return;
  }
  Flush flush(conversation, request);
  co_await flush.run();
}

}  // namespace farpool::front::resp
