// SPDX-License-Identifier: Apache-2.0
// Each command on one key is one operation of the pool. A command on several keys promises each key on its own.
#include "front/resp/operations.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/number.h"
#include "front/resp/access.h"
#include "front/resp/expiry.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using base::Status;
using client::Edit;
using client::NamedEdit;
using client::Value;
using task::Task;

// A value's limit, which is not that of a word on the wire (proto-max-bulk-len).
constexpr std::string_view kTooLong = "ERR string exceeds maximum allowed size (of a value: 1 MiB)";
void bulk_or_null(Request& request, const std::optional<std::string>& value) {
  value ? request.answer().bulk(*value) : request.answer().null();
}

struct SetOptions {
  enum class When : std::uint8_t { always, absent, present } when = When::always;
  bool get = false;
  ExpiryOption expiry;
  bool plain() const { return when == When::always && !get && expiry.kind == ExpiryOption::Kind::none; }
};

// SET where the value before counts for more than its presence: GET asks for it, or KEEPTTL keeps its expiry.
class SetEditor final : public client::Editor {
 public:
  SetEditor(std::string_view value, const SetOptions& options, std::uint64_t expires)
      : value_(value), when_(options.when), answers_(options.get), expires_(expires) {}

  Edit edit(std::optional<std::string_view> value) override {
    old_.reset();
    if (value) old_.emplace(*value);
    written_ = when_ == SetOptions::When::always || (when_ == SetOptions::When::present) == value.has_value();
    return written_ ? Edit::put(std::string(value_), expires_) : Edit::keep();
  }
  // What it does not answer with, it need not read.
  bool takes(client::Type type) const override { return !answers_ || type == client::Type::string; }
  const std::optional<std::string>& old() const { return old_; }
  bool written() const { return written_; }

 private:
  std::string_view value_;
  SetOptions::When when_;
  bool answers_;
  std::uint64_t expires_;
  std::optional<std::string> old_;
  bool written_ = false;
};

std::string_view error_of(NamedEdit::Refusal refusal) {
  switch (refusal) {
    case NamedEdit::Refusal::none:
      return {};
    case NamedEdit::Refusal::not_integer:
      return kNotAnInteger;
    case NamedEdit::Refusal::beyond_integer:
      return "ERR increment or decrement would overflow";
    case NamedEdit::Refusal::not_float:
      return "ERR value is not a valid float";
    case NamedEdit::Refusal::not_finite:
      return "ERR increment would produce NaN or Infinity";
    case NamedEdit::Refusal::beyond_value:
      return kTooLong;
    case NamedEdit::Refusal::other_kind:
      return kWrongType;
  }
  return {};
}

// Modifies by an edit that may find that the value does not allow the command.
Task<bool> modify_checked(Conversation& conversation, Request& request, NamedEdit& edit) {
  const bool done = co_await modify(conversation, request, edit);
  if (!done) co_return false;
  const std::string_view error = error_of(edit.outcome().refusal);
  const bool allowed = error.empty();
  if (!allowed) request.error(error);
  co_return allowed;
}

// Carries out an edit that replies with the value before.
Task<void> answer_before(Conversation& conversation, Request& request, NamedEdit::Name name, std::string_view value,
                         client::Millis expires = client::kNoExpiry) {
  NamedEdit edit(name, value);
  edit.set_expires(expires);
  const bool done = co_await modify_checked(conversation, request, edit);
  if (!done) co_return count_failed_read(conversation, request);
  count_read(conversation, edit.outcome().text.has_value());
  bulk_or_null(request, edit.outcome().text);
}

// The value at the command's key; outer nothing: the request has been answered with an error.
Task<std::optional<std::optional<std::string>>> fetch(Conversation& conversation, Request& request) {
  Result<std::optional<std::string>> value =
      co_await conversation.kv().get(request.command[1], std::move(request.room));
  if (value.ok()) {
    count_read(conversation, value->has_value());
    co_return std::optional(std::move(*value));
  }
  pool_error(request, value.status(), conversation.service().counters);
  count_failed_read(conversation, request);
  co_return std::nullopt;
}

Task<void> add(Conversation& conversation, Request& request, std::int64_t addend) {
  NamedEdit edit(NamedEdit::Name::add, {}, static_cast<std::uint64_t>(addend));
  const bool done = co_await modify_checked(conversation, request, edit);
  if (done) request.answer().integer(edit.outcome().number);
}

// What became of the keys of one command.
struct Tally {
  std::size_t done = 0;  // keys that were worked on
  std::size_t hits = 0;  // of these, the ones that existed
  Status first_failure;
  void count(const Status& status, bool hit) {
    if (status.ok()) {
      ++done;
      hits += hit ? 1 : 0;
    } else if (first_failure.ok() || status.code() == base::Code::unknown_outcome) {
      first_failure = status;
    }
  }
};

// An error of a command that changes several keys: if some were changed, no code that a driver would retry.
void answer_partial(Request& request, const Tally& tally, std::size_t keys, Counters& counters) {
  if (tally.done == 0 || tally.first_failure.code() == base::Code::unknown_outcome) {
    return pool_error(request, tally.first_failure, counters);
  }
  request.error("PARTIAL " + std::to_string(tally.done) + " of " + std::to_string(keys) +
                " keys were changed, then: " + pool_error_text(tally.first_failure));
}

Task<void> put_one(client::Kv& kv, std::string_view key, std::string_view value, Tally& tally) {
  const Status status = co_await kv.put(key, value);
  tally.count(status, true);
}

Task<void> erase_one(client::Kv& kv, std::string_view key, Tally& tally) {
  const Result<bool> existed = co_await kv.erase(key);
  tally.count(existed.status(), existed.ok() && *existed);
}

// The options after the value. Nothing: the request has been answered with an error.
std::optional<SetOptions> parse_set_options(Request& request) {
  const Command& command = request.command;
  SetOptions options;
  for (std::size_t i = 3; i < command.size(); ++i) {
    const std::string_view word = command[i];
    if (same_word(word, "NX") && options.when != SetOptions::When::present) {
      options.when = SetOptions::When::absent;
    } else if (same_word(word, "XX") && options.when != SetOptions::When::absent) {
      options.when = SetOptions::When::present;
    } else if (same_word(word, "GET")) {
      options.get = true;
    } else if (!take_expiry_option(command, i, false, options.expiry)) {
      request.error(kSyntaxError);
      return std::nullopt;
    }
  }
  return options;
}

Task<void> set_by_editor(Conversation& conversation, Request& request, SetOptions options, std::uint64_t expires) {
  SetEditor editor(request.command[2], options, expires);
  const bool done = co_await modify(conversation, request, editor);
  if (!done) co_return count_failed_read(conversation, request);
  if (options.get) {
    count_read(conversation, editor.old().has_value());
    bulk_or_null(request, editor.old());
  } else {
    editor.written() ? request.answer().ok() : request.answer().null();
  }
}

// Not inlined: its frame would be a part of every SET's.
[[gnu::noinline]] Task<void> set_with_options(Conversation& conversation, Request& request, SetOptions options) {
  Due due;
  if (options.expiry.is_time()) {
    const Result<client::Millis> now = co_await conversation.kv().time();
    if (!now.ok()) {
      pool_error(request, now.status(), conversation.service().counters);
      co_return;
    }
    due = due_of(options.expiry, *now, "set");
    if (!due.error.empty()) {
      request.error(due.error);
      co_return;
    }
  }
  const bool keeps = options.expiry.kind == ExpiryOption::Kind::keep;
  const bool always = options.when == SetOptions::When::always;
  if (keeps || (!always && options.get)) {
    co_return co_await set_by_editor(conversation, request, options, keeps ? Edit::kAsBefore : due.at);
  }
  if (always && !options.get) {
    const Status status = co_await conversation.kv().put(request.command[1], request.command[2], due.at);
    status.ok() ? request.answer().ok() : pool_error(request, status, conversation.service().counters);
    co_return;
  }
  if (always)
    co_return co_await answer_before(conversation, request, NamedEdit::Name::swap, request.command[2], due.at);
  const auto name = options.when == SetOptions::When::present ? NamedEdit::Name::update : NamedEdit::Name::insert;
  NamedEdit edit(name, request.command[2]);
  edit.set_expires(due.at);
  const bool done = co_await modify(conversation, request, edit);
  if (!done) co_return;
  const bool written = edit.outcome().existed == (name == NamedEdit::Name::update);
  written ? request.answer().ok() : request.answer().null();
}

}  // namespace

Task<void> op_get(Conversation& conversation, Request& request) {
  // Without fetch(), whose frame and results would be one more for each GET.
  Result<std::optional<std::string>> value =
      co_await conversation.kv().get(request.command[1], std::move(request.room));
  if (!value.ok()) {
    pool_error(request, value.status(), conversation.service().counters);
    co_return count_failed_read(conversation, request);
  }
  count_read(conversation, value->has_value());
  bulk_or_null(request, *value);
  if (*value) request.room = std::move(**value);
}

Task<void> op_set(Conversation& conversation, Request& request) {
  const std::optional<SetOptions> options = parse_set_options(request);
  if (!options) co_return;
  if (options->plain()) {
    const Status status = co_await conversation.kv().put(request.command[1], request.command[2]);
    status.ok() ? request.answer().ok() : pool_error(request, status, conversation.service().counters);
    co_return;
  }
  co_await set_with_options(conversation, request, *options);
}

Task<void> op_setnx(Conversation& conversation, Request& request) {
  NamedEdit edit(NamedEdit::Name::insert, request.command[2]);
  const bool done = co_await modify(conversation, request, edit);
  if (done) request.answer().integer(edit.outcome().existed ? 0 : 1);
}

Task<void> op_getset(Conversation& conversation, Request& request) {
  return answer_before(conversation, request, NamedEdit::Name::swap, request.command[2]);
}

Task<void> op_getdel(Conversation& conversation, Request& request) {
  return answer_before(conversation, request, NamedEdit::Name::take, {});
}

Task<void> op_append(Conversation& conversation, Request& request) {
  NamedEdit edit(NamedEdit::Name::append, request.command[2]);
  const bool done = co_await modify_checked(conversation, request, edit);
  if (done) request.answer().integer(edit.outcome().number);
}

Task<void> op_strlen(Conversation& conversation, Request& request) {
  const auto value = co_await fetch(conversation, request);
  if (value) request.answer().integer(static_cast<std::int64_t>(value->has_value() ? (*value)->size() : 0));
}

Task<void> op_type(Conversation& conversation, Request& request) {
  const Result<std::optional<Value>> value = co_await read(conversation, request);
  if (!value.ok()) co_return;
  const std::string_view name = *value ? name_of((*value)->type) : "none";
  name.empty() ? request.error(kWrongType) : request.answer().simple(name);
}

Task<void> op_setrange(Conversation& conversation, Request& request) {
  const std::optional<std::int64_t> offset = base::parse_integer(request.command[2]);
  if (!offset) {
    request.error(kNotAnInteger);
    co_return;
  }
  if (*offset < 0) {
    request.error("ERR offset is out of range");
    co_return;
  }
  NamedEdit edit(NamedEdit::Name::overlay, request.command[3], static_cast<std::uint64_t>(*offset));
  const bool done = co_await modify_checked(conversation, request, edit);
  if (done) request.answer().integer(edit.outcome().number);
}

Task<void> op_getrange(Conversation& conversation, Request& request) {
  const std::optional<std::int64_t> first = base::parse_integer(request.command[2]);
  const std::optional<std::int64_t> last = base::parse_integer(request.command[3]);
  if (!first || !last) {
    request.error(kNotAnInteger);
    co_return;
  }
  const auto value = co_await fetch(conversation, request);
  if (!value) co_return;
  const std::string_view text = value->has_value() ? std::string_view(**value) : std::string_view();
  const auto length = static_cast<std::int64_t>(text.size());
  std::int64_t from = *first, to = *last;
  const bool backwards = from < 0 && to < 0 && from > to;
  // Negative positions count from the end, those before the beginning are the beginning.
  if (from < 0) from = std::max<std::int64_t>(0, length + from);
  if (to < 0) to = std::max<std::int64_t>(0, length + to);
  to = std::min(to, length - 1);
  if (backwards || from > to) {
    request.answer().bulk("");
  } else {
    request.answer().bulk(text.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from + 1)));
  }
}

Task<void> op_incr(Conversation& conversation, Request& request) { return add(conversation, request, 1); }
Task<void> op_decr(Conversation& conversation, Request& request) { return add(conversation, request, -1); }

Task<void> op_incrby(Conversation& conversation, Request& request) {
  const std::optional<std::int64_t> addend = base::parse_integer(request.command[2]);
  if (!addend) {
    request.error(kNotAnInteger);
    co_return;
  }
  co_await add(conversation, request, *addend);
}

Task<void> op_decrby(Conversation& conversation, Request& request) {
  const std::optional<std::int64_t> subtrahend = base::parse_integer(request.command[2]);
  if (!subtrahend) {
    request.error(kNotAnInteger);
    co_return;
  }
  if (*subtrahend == std::numeric_limits<std::int64_t>::min()) {
    request.error("ERR decrement would overflow");
    co_return;
  }
  co_await add(conversation, request, -*subtrahend);
}

Task<void> op_incrbyfloat(Conversation& conversation, Request& request) {
  NamedEdit edit(NamedEdit::Name::add_float, request.command[2]);
  const bool done = co_await modify_checked(conversation, request, edit);
  if (done) request.answer().bulk(edit.outcome().text.value_or(""));
}

Task<void> op_mget(Conversation& conversation, Request& request) {
  const std::size_t keys = request.command.size() - 1;
  request.answer().array(keys);
  for (std::size_t begin = 1; begin <= keys; begin += kKeysAtOnce) {
    std::vector<std::string_view> batch;
    for (std::size_t i = begin; i <= std::min(keys, begin + kKeysAtOnce - 1); ++i) batch.push_back(request.command[i]);
    auto values = co_await conversation.kv().multi_read(std::move(batch));
    if (!values.ok()) {
      request.reply.clear();
      pool_error(request, values.status(), conversation.service().counters);
      co_return;
    }
    for (const std::optional<Value>& value : *values) {
      count_read(conversation, value.has_value());
      const bool string = value && value->type == client::Type::string;
      string ? request.answer().bulk(value->text) : request.answer().null();
    }
    if (const std::size_t most = conversation.settings().max_reply_bytes; request.reply.size() > most) {
      request.refuse_reply(most, "ask for fewer keys at once");
      co_return;
    }
  }
}

Task<void> op_mset(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  if (command.size() % 2 == 0) {
    request.error("ERR wrong number of arguments for 'mset' command");
    co_return;
  }
  // If a key is named twice the last value counts, and only that one is written: the writes have no order.
  std::unordered_map<std::string_view, std::size_t> last;
  for (std::size_t i = 1; i < command.size(); i += 2) last[command[i]] = i;
  Tally tally;
  for (std::size_t i = 1; i < command.size();) {
    task::Scope scope;
    for (; i < command.size() && scope.running() < kKeysAtOnce; i += 2) {
      if (last[command[i]] == i) scope.spawn(put_one(conversation.kv(), command[i], command[i + 1], tally));
    }
    co_await scope.join();
    if (!tally.first_failure.ok()) break;
  }
  if (tally.first_failure.ok()) {
    request.answer().ok();
  } else {
    answer_partial(request, tally, last.size(), conversation.service().counters);
  }
}

Task<void> op_msetnx(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  if (command.size() % 2 == 0) {
    request.error("ERR wrong number of arguments for 'msetnx' command");
    co_return;
  }
  if (!request.has_one_key()) {
    request.error("ERR " + std::string(kSeveralIfAbsent));
    co_return;
  }
  // If the key is named again, the last value counts.
  NamedEdit edit(NamedEdit::Name::insert, command[command.size() - 1]);
  const bool done = co_await modify(conversation, request, edit);
  if (done) request.answer().integer(edit.outcome().existed ? 0 : 1);
}

Task<void> op_del(Conversation& conversation, Request& request) {
  const Command& command = request.command;
  if (command.size() == 2) {
    const Result<bool> existed = co_await conversation.kv().erase(command[1]);
    existed.ok() ? request.answer().integer(*existed ? 1 : 0)
                 : pool_error(request, existed.status(), conversation.service().counters);
    co_return;
  }
  std::unordered_set<std::string_view> seen;
  Tally tally;
  for (std::size_t i = 1; i < command.size();) {
    task::Scope scope;
    for (; i < command.size() && scope.running() < kKeysAtOnce; ++i) {
      if (seen.insert(command[i]).second) scope.spawn(erase_one(conversation.kv(), command[i], tally));
    }
    co_await scope.join();
    if (!tally.first_failure.ok()) break;
  }
  if (tally.first_failure.ok()) {
    request.answer().integer(static_cast<std::int64_t>(tally.hits));
  } else {
    answer_partial(request, tally, seen.size(), conversation.service().counters);
  }
}

Task<void> op_exists(Conversation& conversation, Request& request) {
  const std::size_t keys = request.command.size() - 1;
  std::int64_t found = 0;
  for (std::size_t begin = 1; begin <= keys; begin += kKeysAtOnce) {
    std::vector<std::string_view> batch;
    for (std::size_t i = begin; i <= std::min(keys, begin + kKeysAtOnce - 1); ++i) batch.push_back(request.command[i]);
    const auto values = co_await conversation.kv().multi_read(std::move(batch));
    if (!values.ok()) {
      pool_error(request, values.status(), conversation.service().counters);
      co_return;
    }
    for (const auto& value : *values) {
      count_read(conversation, value.has_value());
      found += value.has_value() ? 1 : 0;
    }
  }
  request.answer().integer(found);
}

Task<void> op_dbsize(Conversation& conversation, Request& request) {
  const Result<std::uint64_t> keys = co_await conversation.kv().count();
  if (keys.ok()) {
    request.answer().integer(static_cast<std::int64_t>(*keys));
  } else {
    pool_error(request, keys.status(), conversation.service().counters);
  }
}

}  // namespace farpool::front::resp
