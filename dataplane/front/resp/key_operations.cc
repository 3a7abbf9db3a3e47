// SPDX-License-Identifier: Apache-2.0
// Commands on values of any type: OBJECT, MEMORY USAGE, COPY, RENAME and RENAMENX.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/number.h"
#include "front/resp/access.h"
#include "front/resp/hash_value.h"
#include "front/resp/operations.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using base::Status;
using client::Edit;
using client::Type;
using client::Value;
using task::Task;

// The name that Redis would have for how it keeps such a value.
std::string_view encoding_of(const Value& value) {
  constexpr std::size_t kMostEmbedded = 44;
  if (value.type == Type::hash) {
    const std::optional<Hash> hash = Hash::parse(value.text);
    return hash && hash->is_small() ? "listpack" : "hashtable";
  }
  if (value.type != Type::string) return "unknown";
  if (base::parse_integer(value.text)) return "int";
  return value.text.size() <= kMostEmbedded ? "embstr" : "raw";
}

// --- COPY, RENAME, RENAMENX

// Sets a key to a value of any type.
class PutValue final : public client::Editor {
 public:
  // Without `replaces`, a key that exists stays as it is.
  PutValue(const Value& value, bool replaces) : value_(value), replaces_(replaces) {}

  bool takes(Type) const override { return true; }
  Edit edit(std::optional<std::string_view> before) override {
    put_ = replaces_ || !before;
    return put_ ? Edit::put(value_.text, value_.expires, value_.type) : Edit::keep();
  }
  bool put() const { return put_; }

 private:
  const Value& value_;
  const bool replaces_;
  bool put_ = false;
};

// Changes a key only while it has the value that was read: removes it, or gives it another value.
class ChangeIfSame final : public client::Editor {
 public:
  ChangeIfSame(const Value& expected, const Value* next) : expected_(expected), next_(next) {}

  bool takes(Type) const override { return true; }
  void show(const About& about) override { about_ = about; }
  Edit edit(std::optional<std::string_view> before) override {
    absent_ = !before;
    same_ = before && *before == expected_.text && about_.type == expected_.type && about_.expires == expected_.expires;
    if (!same_) return Edit::keep();
    return next_ == nullptr ? Edit::erase() : Edit::put(next_->text, next_->expires, next_->type);
  }
  bool same() const { return same_; }
  bool absent() const { return absent_; }

 private:
  const Value& expected_;
  const Value* next_;
  About about_;
  bool same_ = false, absent_ = false;
};

// Copies the value to the new name, and removes the old one only if it still has the value that was copied: no write to
// it is lost. If it has another by then, that is copied, too.
class Rename {
 public:
  enum class Target : std::uint8_t { any, absent };
  Rename(Conversation& conversation, Request& request, Target target)
      : kv_(conversation.kv()), conversation_(conversation), request_(request), target_(target) {}

  Task<void> run() {
    constexpr int kMostTries = 16;
    for (int i = 0; i < kMostTries; ++i) {
      Result<std::optional<Value>> value = co_await kv_.read(from());
      if (!value.ok()) co_return fail(value.status());
      if (!*value) co_return copied_ ? answer(true) : request_.error("ERR no such key");
      if (from() == to()) co_return answer(target_ == Target::any);
      const bool put = co_await put_at_target(**value);
      if (!put) co_return;
      copied_ = std::move(**value);
      ChangeIfSame removal(*copied_, nullptr);
      const Status status = co_await kv_.modify(from(), removal);
      if (!status.ok()) co_return fail(status);
      if (removal.same() || removal.absent()) co_return answer(true);
    }
    request_.error("PARTIAL 1 of 2 keys were changed, then: other clients changed the old key all the time");
  }

 private:
  std::string_view from() const { return request_.command[1]; }
  std::string_view to() const { return request_.command[2]; }

  // Returns false if the request has been answered.
  Task<bool> put_at_target(const Value& value) {
    if (copied_ && target_ == Target::absent) {  // only over what this command has put there itself
      ChangeIfSame change(*copied_, &value);
      const Status status = co_await kv_.modify(to(), change);
      if (status.ok() && change.same()) co_return true;
      fail(status.ok() ? Status(base::Code::unavailable, "both keys have changed since") : status);
      co_return false;
    }
    PutValue put(value, target_ == Target::any);
    const Status status = co_await kv_.modify(to(), put);
    if (!status.ok()) fail(status);
    if (status.ok() && !put.put()) answer(false);
    co_return status.ok() && put.put();
  }
  void answer(bool renamed) {
    target_ == Target::any ? request_.answer().ok() : request_.answer().integer(renamed ? 1 : 0);
  }
  void fail(const Status& status) {
    if (!copied_ || status.code() == base::Code::unknown_outcome) {
      return pool_error(request_, status, conversation_.service().counters);
    }
    request_.error("PARTIAL 1 of 2 keys were changed: the new key has the value, and the old one is still there: " +
                   pool_error_text(status));
  }

  client::Kv& kv_;
  Conversation& conversation_;
  Request& request_;
  const Target target_;
  std::optional<Value> copied_;  // what was last put at the new name
};

// Returns whether COPY may replace; nothing: the request has been answered with an error.
std::optional<bool> parse_copy_options(Request& request) {
  const Command& command = request.command;
  bool replaces = false;
  for (std::size_t i = 3; i < command.size(); ++i) {
    if (same_word(command[i], "REPLACE")) {
      replaces = true;
    } else if (same_word(command[i], "DB") && i + 1 < command.size()) {
      const std::optional<std::int64_t> database = base::parse_integer(command[++i]);
      constexpr std::int64_t kLeast = std::numeric_limits<int>::min(), kMost = std::numeric_limits<int>::max();
      if (!database || *database != 0) {
        request.error(!database                                 ? kNotAnInteger
                      : *database < kLeast || *database > kMost ? "ERR value is out of range, value must between "
                                                                  "-2147483648 and 2147483647"
                                                                : "ERR DB index is out of range");
        return std::nullopt;
      }
    } else {
      request.error(kSyntaxError);
      return std::nullopt;
    }
  }
  if (command[1] == command[2]) {
    request.error("ERR source and destination objects are the same");
    return std::nullopt;
  }
  return replaces;
}

}  // namespace

Task<void> op_copy(Conversation& conversation, Request& request) {
  const std::optional<bool> replaces = parse_copy_options(request);
  if (!replaces) co_return;
  const Result<std::optional<Value>> value = co_await read(conversation, request);
  if (!value.ok()) co_return;
  if (!*value) co_return request.answer().integer(0);
  PutValue put(**value, *replaces);
  const Status status = co_await conversation.kv().modify(request.command[2], put);
  status.ok() ? request.answer().integer(put.put() ? 1 : 0)
              : pool_error(request, status, conversation.service().counters);
}

Task<void> op_rename(Conversation& conversation, Request& request) {
  Rename rename(conversation, request, Rename::Target::any);
  co_await rename.run();
}

Task<void> op_renamenx(Conversation& conversation, Request& request) {
  Rename rename(conversation, request, Rename::Target::absent);
  co_await rename.run();
}

Task<void> op_object(Conversation& conversation, Request& request) {
  const Result<std::optional<Value>> value = co_await read(conversation, request, 2);
  if (!value.ok()) co_return;
  const std::string_view asked = request.spec->short_name();
  if (!*value) {
    request.answer().null();
  } else if (asked == "encoding") {
    request.answer().bulk(encoding_of(**value));
  } else if (asked == "refcount") {
    request.answer().integer(1);
  } else if (asked == "freq" && conversation.service().kv.eviction_policy().ends_with("-lfu")) {
    request.error("ERR access frequency not known: a client of a pool knows only its own uses of a key");
  } else if (asked == "freq") {
    request.error(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
        "between policies at runtime LRU and LFU data will take some time to adjust.");
  } else {
    request.error("ERR idle time not known: a client of a pool knows only its own uses of a key");
  }
}

Task<void> op_memory_usage(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  for (std::size_t i = 3; i < command.size(); i += 2) {
    const bool samples = same_word(command[i], "SAMPLES") && i + 1 < command.size();
    const std::optional<std::int64_t> number = samples ? base::parse_integer(command[i + 1]) : 0;
    if (samples && number && *number >= 0) continue;
    co_return request.error(number ? kSyntaxError : kNotAnInteger);
  }
  const Result<std::optional<Value>> value = co_await conversation.kv().read(command[2]);
  if (!value.ok()) co_return pool_error(request, value.status(), conversation.service().counters);
  if (!*value) co_return request.answer().null();
  const client::Stored::Tail tail((*value)->text, (*value)->expires, (*value)->type);
  request.answer().integer(static_cast<std::int64_t>(command[2].size() + (*value)->text.size() + tail.bytes().size()));
}

}  // namespace farpool::front::resp
