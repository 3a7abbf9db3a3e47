// SPDX-License-Identifier: Apache-2.0
// The commands on all keys of the pool. None of them sees the pool at one moment: they go through it step by step,
// while other connections go on.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "front/resp/access.h"
#include "front/resp/operations.h"
#include "front/resp/scan_options.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using base::Status;
using client::Page;
using client::Type;
using task::Task;

// Keys that a step asks for, where the client does not say how many.
constexpr std::uint64_t kStep = 512;

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
        for (; i < page->keys.size() && scope.running() < kKeysAtOnce; ++i) scope.spawn(erase(page->keys[i]));
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

Task<void> ask_type(client::Kv& kv, std::string_view key, std::string_view wanted, bool& of_type, Status& failure) {
  const Result<std::optional<client::Value>> value = co_await kv.read(key);
  if (value.ok()) {
    of_type = *value && same_word(name_of((*value)->type), wanted);
  } else if (!client::is_other_kind(value.status())) {
    failure = value.status();
  }
}

// Leaves the keys whose values are of that type. No page says types, so this reads the values.
Task<Status> keep_of_type(Conversation& conversation, std::string_view type, std::vector<std::string_view>& keys) {
  Status failure;
  std::vector<std::string_view> kept;
  const bool known = same_word(type, name_of(Type::string)) || same_word(type, name_of(Type::hash));
  for (std::size_t begin = 0; known && begin < keys.size() && failure.ok(); begin += kKeysAtOnce) {
    const std::size_t end = std::min(keys.size(), begin + kKeysAtOnce);
    std::array<bool, kKeysAtOnce> of_type{};
    task::Scope scope;
    for (std::size_t i = begin; i < end; ++i) {
      scope.spawn(ask_type(conversation.kv(), keys[i], type, of_type[i - begin], failure));
    }
    co_await scope.join();
    for (std::size_t i = begin; i < end; ++i) {
      if (of_type[i - begin]) kept.push_back(keys[i]);
    }
  }
  keys = std::move(kept);
  co_return failure;
}

}  // namespace

Task<void> op_scan(Conversation& conversation, Request& request) {
  const std::optional<std::uint64_t> cursor = parse_cursor(request.command[1]);
  if (!cursor) co_return request.error(kInvalidCursor);
  const std::optional<ScanOptions> options = parse_scan_options(request, 2, ScanOf::keys);
  if (!options) co_return;
  Result<Page> page = co_await conversation.kv().scan(*cursor, options->count);
  if (!page.ok()) {
    pool_error(request, page.status(), conversation.service().counters);
    co_return;
  }
  std::erase_if(page->keys,
                [&options](const std::string& key) { return !glob_match(options->pattern, key, Case::matters); });
  std::vector<std::string_view> keys(page->keys.begin(), page->keys.end());
  if (options->type) {
    const Status status = co_await keep_of_type(conversation, *options->type, keys);
    if (!status.ok()) co_return pool_error(request, status, conversation.service().counters);
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
      request.refuse_reply(most, "use SCAN, or a pattern that fewer keys match");
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
