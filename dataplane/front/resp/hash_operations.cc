// SPDX-License-Identifier: Apache-2.0
// Commands on hashes. Each is one operation of the pool, on the whole hash: a read, or a read-modify-write.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/number.h"
#include "front/resp/access.h"
#include "front/resp/hash_value.h"
#include "front/resp/operations.h"
#include "front/resp/scan_options.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using client::Edit;
using client::Type;
using client::Value;
using task::Task;

constexpr std::string_view kUnreadable =
    "ERR this hash cannot be read, and was left as it is: its bytes are damaged, or a later version wrote them";
constexpr std::string_view kTooLarge = "ERR hash exceeds maximum allowed size (with all of its fields: 1 MiB)";

// Edits a hash; the hash of an absent key is empty.
class HashEditor : public client::Editor {
 public:
  explicit HashEditor(const Conversation& conversation)
      : most_(conversation.settings().max_value_bytes - client::Stored::kMostTailBytes) {}

  bool takes(Type type) const final { return type == Type::hash; }
  Edit edit(std::optional<std::string_view> value) final {
    error_ = {};
    if (!value) return change(Hash());
    const std::optional<Hash> hash = Hash::parse(*value);
    return hash ? change(*hash) : refuse(kUnreadable);
  }
  // Returns why the edit did nothing; empty: it did what it should.
  std::string_view error() const { return error_; }

 protected:
  virtual Edit change(const Hash& hash) = 0;

  Edit refuse(std::string_view error) {
    error_ = error;
    return Edit::keep();
  }
  // Sets fields, and tells in `added` how many of them are new.
  Edit set(const Hash& hash, std::span<const Field> fields, std::size_t& added) {
    std::optional<ChangedHash> after = with_fields(hash, fields, most_);
    if (!after) return refuse(kTooLarge);
    added = after->changed;
    return put(std::move(after->image));
  }
  static Edit put(std::string image) { return Edit::put(std::move(image), Edit::kAsBefore, Type::hash); }

 private:
  const std::size_t most_;  // bytes of an image, so that it may be given an expiry later
  std::string_view error_;
};

std::vector<std::string_view> words_from(const Command& command, std::size_t first) {
  std::vector<std::string_view> words;
  words.reserve(command.size() - first);
  for (std::size_t i = first; i < command.size(); ++i) words.push_back(command[i]);
  return words;
}

constexpr std::string_view kFewerFields = "ask for fewer fields at once";

// Returns whether the operation took effect; otherwise the request has been answered with the error.
Task<bool> modify_hash(Conversation& conversation, Request& request, HashEditor& editor) {
  const bool done = co_await modify(conversation, request, editor);
  if (!done || editor.error().empty()) co_return done;
  request.error(editor.error());
  co_return false;
}

// A hash as it was read.
struct HashRead {
  std::optional<Value> value;
  Hash hash;  // refers to the value
};

// Reads the hash at the command's key. Returns false if the request has been answered with an error.
Task<bool> read_hash(Conversation& conversation, Request& request, HashRead& into) {
  Result<std::optional<Value>> value = co_await read(conversation, request);
  if (!value.ok()) co_return false;
  into.value = std::move(*value);
  if (!into.value) co_return true;
  if (into.value->type != Type::hash) {
    request.error(kWrongType);
    co_return false;
  }
  const std::optional<Hash> hash = Hash::parse(into.value->text);
  if (hash) {
    into.hash = *hash;
  } else {
    request.error(kUnreadable);
  }
  co_return hash.has_value();
}

// --- HSET, HMSET, HSETNX, HDEL

class SetFields final : public HashEditor {
 public:
  SetFields(const Conversation& conversation, std::vector<Field> fields, bool only_new)
      : HashEditor(conversation), fields_(std::move(fields)), only_new_(only_new) {}
  std::size_t added() const { return added_; }

 private:
  Edit change(const Hash& hash) override {
    added_ = 0;
    if (only_new_ && hash.find(fields_.front().name)) return Edit::keep();
    return set(hash, fields_, added_);
  }
  const std::vector<Field> fields_;
  const bool only_new_;
  std::size_t added_ = 0;
};

// The pairs of names and values of a command; nothing: the request has been answered with an error.
std::optional<std::vector<Field>> parse_fields(Request& request) {
  const Command& command = request.command;
  if (command.size() % 2 != 0) {
    request.error("ERR wrong number of arguments for '" + std::string(request.spec->name) + "' command");
    return std::nullopt;
  }
  std::vector<Field> fields;
  fields.reserve(command.size() / 2 - 1);
  for (std::size_t i = 2; i < command.size(); i += 2) fields.push_back({command[i], command[i + 1]});
  return fields;
}

class RemoveFields final : public HashEditor {
 public:
  RemoveFields(const Conversation& conversation, std::vector<std::string_view> names)
      : HashEditor(conversation), names_(std::move(names)) {}
  std::size_t removed() const { return removed_; }

 private:
  Edit change(const Hash& hash) override {
    ChangedHash after = without_fields(hash, names_);
    removed_ = after.changed;
    if (removed_ == 0) return Edit::keep();
    return after.size == 0 ? Edit::erase() : put(std::move(after.image));
  }
  const std::vector<std::string_view> names_;
  std::size_t removed_ = 0;
};

// --- HINCRBY, HINCRBYFLOAT

class AddToField final : public HashEditor {
 public:
  AddToField(const Conversation& conversation, std::string_view name, std::int64_t addend)
      : HashEditor(conversation), name_(name), addend_(addend) {}
  std::int64_t sum() const { return sum_; }

 private:
  Edit change(const Hash& hash) override {
    const std::optional<std::string_view> text = hash.find(name_);
    const std::optional<std::int64_t> number = text ? base::parse_integer(*text) : 0;
    if (!number) return refuse("ERR hash value is not an integer");
    if (__builtin_add_overflow(*number, addend_, &sum_)) return refuse("ERR increment or decrement would overflow");
    const std::string value = std::to_string(sum_);
    const Field field{name_, value};
    std::size_t added = 0;
    return set(hash, {&field, 1}, added);
  }
  const std::string_view name_;
  const std::int64_t addend_;
  std::int64_t sum_ = 0;
};

class AddFloatToField final : public HashEditor {
 public:
  AddFloatToField(const Conversation& conversation, std::string_view name, long double addend)
      : HashEditor(conversation), name_(name), addend_(addend) {}
  const std::string& sum() const { return sum_; }

 private:
  Edit change(const Hash& hash) override {
    const std::optional<std::string_view> text = hash.find(name_);
    const std::optional<long double> number = text ? base::parse_float(*text) : 0.0L;
    if (!number) return refuse("ERR hash value is not a float");
    const long double sum = *number + addend_;
    if (!(sum - sum == 0)) return refuse("ERR increment would produce NaN or Infinity");
    sum_ = base::format_float(sum);
    const Field field{name_, sum_};
    std::size_t added = 0;
    return set(hash, {&field, 1}, added);
  }
  const std::string_view name_;
  const long double addend_;
  std::string sum_;
};

// --- HGETALL, HKEYS, HVALS

enum class Parts : std::uint8_t { names, values, both };

Task<void> answer_all(Conversation& conversation, Request& request, Parts parts) {
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (!done) co_return;
  Reply reply = request.answer();
  parts == Parts::both ? reply.map(found.hash.size()) : reply.array(found.hash.size());
  for (const Field& field : found.hash) {
    if (parts != Parts::values) reply.bulk(field.name);
    if (parts != Parts::names) reply.bulk(field.value);
  }
}

// --- HRANDFIELD

// How many fields HRANDFIELD asks for, and how.
struct RandomOptions {
  std::int64_t count = 0;  // negative: a field may come again
  bool with_values = false;
};

std::optional<RandomOptions> parse_random_options(Request& request) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Command& command = request.command;
  const std::optional<std::int64_t> count = base::parse_integer(command[2]);
  if (!count) {
    request.error(kNotAnInteger);
    return std::nullopt;
  }
  if (*count < -kMost) {
    request.error("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
    return std::nullopt;
  }
  const bool with_values = command.size() == 4 && same_word(command[3], "WITHVALUES");
  if (command.size() > 3 && !with_values) {
    request.error(kSyntaxError);
    return std::nullopt;
  }
  if (with_values && (*count < -kMost / 2 || *count > kMost / 2)) {
    request.error("ERR value is out of range");
    return std::nullopt;
  }
  return RandomOptions{*count, with_values};
}

// Writes fields as HRANDFIELD does.
class RandomFields {
 public:
  RandomFields(Request& request, bool with_values) : reply_(request.answer()), with_values_(with_values) {}
  void begin(std::size_t fields) { reply_.array(in_pairs() || !with_values_ ? fields : 2 * fields); }
  void add(const Field& field) {
    if (in_pairs()) reply_.array(2);
    reply_.bulk(field.name);
    if (with_values_) reply_.bulk(field.value);
  }

 private:
  bool in_pairs() const { return with_values_ && reply_.protocol() == Protocol::resp3; }
  Reply reply_;
  bool with_values_;
};

std::vector<Field> list(const Hash& hash) {
  std::vector<Field> fields;
  fields.reserve(hash.size());
  for (const Field& field : hash) fields.push_back(field);
  return fields;
}

// Draws fields of which each may come again.
void answer_draws(Conversation& conversation, Request& request, const Hash& hash, const RandomOptions& options) {
  const std::size_t most = conversation.settings().max_reply_bytes;
  const std::size_t draws = 0 - static_cast<std::size_t>(options.count);
  const std::vector<Field> fields = list(hash);
  constexpr std::size_t kLeastBytes = 5;  // of a bulk string
  RandomFields reply(request, options.with_values);
  reply.begin(draws);
  bool fits = draws <= most / kLeastBytes;
  for (std::size_t i = 0; fits && i < draws; ++i) {
    reply.add(fields[conversation.kv().random() % fields.size()]);
    fits = request.reply.size() <= most;
  }
  if (!fits) request.refuse_reply(most, kFewerFields);
}

// Chooses fields of which none comes twice, each with the same chance, in the order of the hash.
void answer_choice(Conversation& conversation, Request& request, const Hash& hash, const RandomOptions& options) {
  std::size_t left = hash.size();
  std::size_t wanted = std::min(left, static_cast<std::size_t>(options.count));
  RandomFields reply(request, options.with_values);
  reply.begin(wanted);
  for (const Field& field : hash) {
    if (conversation.kv().random() % left-- >= wanted) continue;
    reply.add(field);
    --wanted;
  }
}

}  // namespace

Task<void> op_hset(Conversation& conversation, Request& request) {
  std::optional<std::vector<Field>> fields = parse_fields(request);
  if (!fields) co_return;
  SetFields editor(conversation, std::move(*fields), false);
  const bool done = co_await modify_hash(conversation, request, editor);
  if (done) request.answer().integer(static_cast<std::int64_t>(editor.added()));
}

Task<void> op_hmset(Conversation& conversation, Request& request) {
  std::optional<std::vector<Field>> fields = parse_fields(request);
  if (!fields) co_return;
  SetFields editor(conversation, std::move(*fields), false);
  const bool done = co_await modify_hash(conversation, request, editor);
  if (done) request.answer().ok();
}

Task<void> op_hsetnx(Conversation& conversation, Request& request) {
  SetFields editor(conversation, {{request.command[2], request.command[3]}}, true);
  const bool done = co_await modify_hash(conversation, request, editor);
  if (done) request.answer().integer(static_cast<std::int64_t>(editor.added()));
}

Task<void> op_hdel(Conversation& conversation, Request& request) {
  RemoveFields editor(conversation, words_from(request.command, 2));
  const bool done = co_await modify_hash(conversation, request, editor);
  if (done) request.answer().integer(static_cast<std::int64_t>(editor.removed()));
}

Task<void> op_hincrby(Conversation& conversation, Request& request) {
  const std::optional<std::int64_t> addend = base::parse_integer(request.command[3]);
  if (!addend) {
    request.error(kNotAnInteger);
    co_return;
  }
  AddToField editor(conversation, request.command[2], *addend);
  const bool done = co_await modify_hash(conversation, request, editor);
  if (done) request.answer().integer(editor.sum());
}

Task<void> op_hincrbyfloat(Conversation& conversation, Request& request) {
  const std::optional<long double> addend = base::parse_float(request.command[3]);
  if (!addend) {
    request.error("ERR value is not a valid float");
    co_return;
  }
  if (!(*addend - *addend == 0)) {
    request.error("ERR value is NaN or Infinity");
    co_return;
  }
  AddFloatToField editor(conversation, request.command[2], *addend);
  const bool done = co_await modify_hash(conversation, request, editor);
  if (done) request.answer().bulk(editor.sum());
}

Task<void> op_hget(Conversation& conversation, Request& request) {
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (!done) co_return;
  const std::optional<std::string_view> value = found.hash.find(request.command[2]);
  value ? request.answer().bulk(*value) : request.answer().null();
}

Task<void> op_hmget(Conversation& conversation, Request& request) {
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (!done) co_return;
  const std::size_t most = conversation.settings().max_reply_bytes;
  const std::vector<std::string_view> names = words_from(request.command, 2);
  Reply reply = request.answer();
  reply.array(names.size());
  for (const std::optional<std::string_view>& value : found.hash.find_all(names)) {
    value ? reply.bulk(*value) : reply.null();
    if (request.reply.size() > most) co_return request.refuse_reply(most, kFewerFields);
  }
}

Task<void> op_hexists(Conversation& conversation, Request& request) {
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (done) request.answer().integer(found.hash.find(request.command[2]) ? 1 : 0);
}

Task<void> op_hlen(Conversation& conversation, Request& request) {
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (done) request.answer().integer(static_cast<std::int64_t>(found.hash.size()));
}

Task<void> op_hstrlen(Conversation& conversation, Request& request) {
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (!done) co_return;
  const std::string_view value = found.hash.find(request.command[2]).value_or("");
  request.answer().integer(static_cast<std::int64_t>(value.size()));
}

Task<void> op_hgetall(Conversation& conversation, Request& request) {
  return answer_all(conversation, request, Parts::both);
}
Task<void> op_hkeys(Conversation& conversation, Request& request) {
  return answer_all(conversation, request, Parts::names);
}
Task<void> op_hvals(Conversation& conversation, Request& request) {
  return answer_all(conversation, request, Parts::values);
}

Task<void> op_hrandfield(Conversation& conversation, Request& request) {
  std::optional<RandomOptions> options;
  if (request.command.size() > 2) {
    options = parse_random_options(request);
    if (!options) co_return;
  }
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (!done) co_return;
  if (!options) {
    if (found.hash.empty()) co_return request.answer().null();
    const std::vector<Field> fields = list(found.hash);
    request.answer().bulk(fields[conversation.kv().random() % fields.size()].name);
  } else if (options->count == 0 || found.hash.empty()) {
    request.answer().array(0);
  } else if (options->count < 0) {
    answer_draws(conversation, request, found.hash, *options);
  } else {
    answer_choice(conversation, request, found.hash, *options);
  }
}

// The whole hash has been read anyway, so a step returns all of it, at one moment, and the cursor that ends a scan.
Task<void> op_hscan(Conversation& conversation, Request& request) {
  const std::optional<std::uint64_t> cursor = parse_cursor(request.command[2]);
  if (!cursor) {
    request.error(kInvalidCursor);
    co_return;
  }
  HashRead found;
  const bool done = co_await read_hash(conversation, request, found);
  if (!done) co_return;
  ScanOptions options;
  if (found.value) {
    const std::optional<ScanOptions> parsed = parse_scan_options(request, 3, ScanOf::fields);
    if (!parsed) co_return;
    options = *parsed;
  }
  std::vector<Field> fields;
  for (const Field& field : found.hash) {
    if (glob_match(options.pattern, field.name, Case::matters)) fields.push_back(field);
  }
  Reply reply = request.answer();
  reply.array(2);
  reply.bulk("0");
  reply.array(2 * fields.size());
  for (const Field& field : fields) {
    reply.bulk(field.name);
    reply.bulk(field.value);
  }
}

}  // namespace farpool::front::resp
