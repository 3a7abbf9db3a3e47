// SPDX-License-Identifier: Apache-2.0
// Commands about when keys expire. Each is one operation of the pool.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/number.h"
#include "front/resp/access.h"
#include "front/resp/expiry.h"
#include "front/resp/operations.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using base::Status;
using client::Edit;
using client::kNoExpiry;
using client::Millis;
using task::Task;

enum class Unit : std::uint8_t { seconds, millis };
enum class From : std::uint8_t { now, epoch };  // what a time is counted from

// Nothing: the request has been answered with an error.
Task<std::optional<Millis>> time_of(Conversation& conversation, Request& request) {
  const Result<Millis> now = co_await conversation.kv().time();
  if (now.ok()) co_return *now;
  pool_error(request, now.status(), conversation.service().counters);
  co_return std::nullopt;
}

// --- EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT

struct Conditions {
  bool nx = false, xx = false, gt = false, lt = false;
};

std::optional<Conditions> parse_conditions(Request& request) {
  Conditions conditions;
  for (std::size_t i = 3; i < request.command.size(); ++i) {
    const std::string_view word = request.command[i];
    if (same_word(word, "NX")) {
      conditions.nx = true;
    } else if (same_word(word, "XX")) {
      conditions.xx = true;
    } else if (same_word(word, "GT")) {
      conditions.gt = true;
    } else if (same_word(word, "LT")) {
      conditions.lt = true;
    } else {
      request.error("ERR Unsupported option " + std::string(word));
      return std::nullopt;
    }
  }
  if (conditions.nx && (conditions.xx || conditions.gt || conditions.lt)) {
    request.error("ERR NX and XX, GT or LT options at the same time are not compatible");
    return std::nullopt;
  }
  if (conditions.gt && conditions.lt) {
    request.error("ERR GT and LT options at the same time are not compatible");
    return std::nullopt;
  }
  return conditions;
}

class ExpireEditor final : public client::Editor {
 public:
  ExpireEditor(std::int64_t when, Conditions conditions) : when_(when), conditions_(conditions) {}

  bool takes(client::Type) const override { return true; }
  void show(const About& about) override { about_ = about; }
  Edit edit(std::optional<std::string_view> value) override {
    done_ = value.has_value() && allowed();
    if (!done_) return Edit::keep();
    if (when_ <= static_cast<std::int64_t>(about_.now)) return Edit::erase();
    return Edit::put(std::string(*value), static_cast<Millis>(when_), about_.type);
  }
  bool done() const { return done_; }

 private:
  // A key that does not expire counts as one that expires later than any.
  bool allowed() const {
    const auto before = static_cast<std::int64_t>(about_.expires);
    const bool expires = about_.expires != kNoExpiry;
    if (conditions_.nx && expires) return false;
    if (conditions_.xx && !expires) return false;
    if (conditions_.gt && (!expires || when_ <= before)) return false;
    return !(conditions_.lt && expires && when_ >= before);
  }

  const std::int64_t when_;
  const Conditions conditions_;
  About about_;
  bool done_ = false;
};

// The time that the command names. Nothing: the request has been answered with an error.
std::optional<std::int64_t> parse_when(Request& request, Unit unit, Millis base) {
  constexpr std::int64_t kLatest = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kEarliest = std::numeric_limits<std::int64_t>::min();
  const std::optional<std::int64_t> number = base::parse_integer(request.command[2]);
  if (!number) {
    request.error(kNotAnInteger);
    return std::nullopt;
  }
  std::int64_t when = *number;
  const bool too_far = unit == Unit::seconds && (when > kLatest / 1000 || when < kEarliest / 1000);
  if (!too_far && unit == Unit::seconds) when *= 1000;
  if (too_far || __builtin_add_overflow(when, static_cast<std::int64_t>(base), &when)) {
    request.error(invalid_expiry(request.spec->name));
    return std::nullopt;
  }
  return when;
}

Task<void> expire(Conversation& conversation, Request& request, Unit unit, From from) {
  const std::optional<Conditions> conditions = parse_conditions(request);
  if (!conditions) co_return;
  Millis base = 0;
  if (from == From::now) {
    const std::optional<Millis> now = co_await time_of(conversation, request);
    if (!now) co_return;
    base = *now;
  }
  const std::optional<std::int64_t> when = parse_when(request, unit, base);
  if (!when) co_return;
  ExpireEditor editor(*when, *conditions);
  const bool done = co_await modify(conversation, request, editor);
  if (done) request.answer().integer(editor.done() ? 1 : 0);
}

class PersistEditor final : public client::Editor {
 public:
  bool takes(client::Type) const override { return true; }
  void show(const About& about) override { about_ = about; }
  Edit edit(std::optional<std::string_view> value) override {
    done_ = value.has_value() && about_.expires != kNoExpiry;
    return done_ ? Edit::put(std::string(*value), kNoExpiry, about_.type) : Edit::keep();
  }
  bool done() const { return done_; }

 private:
  About about_;
  bool done_ = false;
};

// --- TTL, PTTL, EXPIRETIME, PEXPIRETIME

Task<void> tell(Conversation& conversation, Request& request, Unit unit, From from) {
  const Result<std::optional<client::Value>> value = co_await read(conversation, request);
  if (!value.ok()) co_return;
  const Millis expires = *value ? (*value)->expires : kNoExpiry;
  if (expires == kNoExpiry) {
    request.answer().integer(*value ? -1 : -2);
    co_return;
  }
  Millis told = expires;
  if (from == From::now) {
    const std::optional<Millis> now = co_await time_of(conversation, request);
    if (!now) co_return;
    told = told > *now ? told - *now : 0;
  }
  request.answer().integer(static_cast<std::int64_t>(unit == Unit::millis ? told : (told + 500) / 1000));
}

// --- GETEX, SETEX, PSETEX

class GetexEditor final : public client::Editor {
 public:
  GetexEditor(const ExpiryOption& option, const Due& due) : option_(option), due_(due) {}

  void show(const About& about) override { about_ = about; }
  Edit edit(std::optional<std::string_view> value) override {
    text_.reset();
    if (value) text_.emplace(*value);
    if (!value || !due_.error.empty()) return Edit::keep();
    if (option_.kind == ExpiryOption::Kind::persist) {
      return about_.expires != kNoExpiry ? Edit::put(*text_, kNoExpiry) : Edit::keep();
    }
    return due_.at <= about_.now ? Edit::erase() : Edit::put(*text_, due_.at);
  }
  const std::optional<std::string>& text() const { return text_; }

 private:
  const ExpiryOption& option_;
  const Due& due_;
  About about_;
  std::optional<std::string> text_;
};

Task<void> set_for(Conversation& conversation, Request& request, ExpiryOption::Kind kind) {
  const std::optional<Millis> now = co_await time_of(conversation, request);
  if (!now) co_return;
  const Due due = due_of({.kind = kind, .number = request.command[2]}, *now, request.spec->name);
  if (!due.error.empty()) {
    request.error(due.error);
    co_return;
  }
  const Status status = co_await conversation.kv().put(request.command[1], request.command[3], due.at);
  status.ok() ? request.answer().ok() : pool_error(request, status, conversation.service().counters);
}

}  // namespace

Task<void> op_expire(Conversation& conversation, Request& request) {
  return expire(conversation, request, Unit::seconds, From::now);
}
Task<void> op_pexpire(Conversation& conversation, Request& request) {
  return expire(conversation, request, Unit::millis, From::now);
}
Task<void> op_expireat(Conversation& conversation, Request& request) {
  return expire(conversation, request, Unit::seconds, From::epoch);
}
Task<void> op_pexpireat(Conversation& conversation, Request& request) {
  return expire(conversation, request, Unit::millis, From::epoch);
}
Task<void> op_ttl(Conversation& conversation, Request& request) {
  return tell(conversation, request, Unit::seconds, From::now);
}
Task<void> op_pttl(Conversation& conversation, Request& request) {
  return tell(conversation, request, Unit::millis, From::now);
}
Task<void> op_expiretime(Conversation& conversation, Request& request) {
  return tell(conversation, request, Unit::seconds, From::epoch);
}
Task<void> op_pexpiretime(Conversation& conversation, Request& request) {
  return tell(conversation, request, Unit::millis, From::epoch);
}
Task<void> op_setex(Conversation& conversation, Request& request) {
  return set_for(conversation, request, ExpiryOption::Kind::ex);
}
Task<void> op_psetex(Conversation& conversation, Request& request) {
  return set_for(conversation, request, ExpiryOption::Kind::px);
}

Task<void> op_persist(Conversation& conversation, Request& request) {
  PersistEditor editor;
  const bool done = co_await modify(conversation, request, editor);
  if (done) request.answer().integer(editor.done() ? 1 : 0);
}

Task<void> op_getex(Conversation& conversation, Request& request) {
  ExpiryOption option;
  for (std::size_t i = 2; i < request.command.size(); ++i) {
    if (take_expiry_option(request.command, i, true, option)) continue;
    request.error(kSyntaxError);
    co_return;
  }
  if (option.kind == ExpiryOption::Kind::none) co_return co_await op_get(conversation, request);
  const std::optional<Millis> now = co_await time_of(conversation, request);
  if (!now) co_return;
  const Due due = due_of(option, *now, request.spec->name);
  GetexEditor editor(option, due);
  const bool done = co_await modify(conversation, request, editor);
  if (!done) co_return count_failed_read(conversation, request);
  count_read(conversation, editor.text().has_value());
  // A key that is not there has no expiry that could be wrong.
  if (!editor.text()) {
    request.answer().null();
  } else if (!due.error.empty()) {
    request.error(due.error);
  } else {
    request.answer().bulk(*editor.text());
  }
}

}  // namespace farpool::front::resp
