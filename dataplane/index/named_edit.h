// SPDX-License-Identifier: Apache-2.0
// Read-modify-writes that have names, with the rules that Redis has for them. A protocol whose memory node knows the
// name sends it there, which takes one trip, and says what came of it. For every other protocol they are editors. All of
// it is in this header, because the front end links no protocol.
//
// They know the form in which values are kept (index/stored.h): a value that has expired counts as absent, a value
// that is edited keeps its expiry, and one that is no string is removed or overwritten by those alone that need not read
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/number.h"
#include "index/edit.h"
#include "index/stored.h"
#include "layout/regions.h"

namespace farpool::index {

class NamedEdit final : public Editor {
 public:
  enum class Name : std::uint8_t {
    insert,     // sets the key if it is absent
    update,     // sets the key if it is there
    swap,       // sets the key; the text is the value before
    take,       // removes the key; the text is the value before
    remove,     // removes the key
    expire,     // removes the key if it has expired; `existed` then says that it had
    add,        // adds the argument, as a signed integer; the number is the sum
    append,     // the number is the length
    overlay,    // writes the value over what is there, from the argument on; the number is the length
    add_float,  // adds the value, a number in text; the text is the sum
  };
  // Why the value that the key has does not allow the edit, which then changes nothing.
  enum class Refusal : std::uint8_t {
    none,
    not_integer,
    beyond_integer,
    not_float,
    not_finite,
    beyond_value,
    other_kind
  };
  struct Outcome {
    bool existed = false;  // the key was there before
    Refusal refusal = Refusal::none;
    std::int64_t number = 0;
    std::optional<std::string> text;
  };

  // `value` must live as long as the edit.
  NamedEdit(Name name, std::string_view value, std::uint64_t argument = 0)
      : name_(name), value_(value), argument_(argument) {}

  // Says when the value that an insert, an update or a swap sets expires.
  void set_expires(Millis expires) { expires_ = expires; }
  // Tells the time; without it, nothing has expired.
  void set_now(Millis now) { now_ = now; }

  Name name() const { return name_; }
  std::string_view value() const { return value_; }
  std::uint64_t argument() const { return argument_; }
  Millis expires() const { return expires_; }
  Millis now() const { return now_; }

  // Returns what came of the edit, once `modify` has succeeded.
  const Outcome& outcome() const { return outcome_; }
  // Takes what came of the edit elsewhere. A text is as it is kept.
  void set_outcome(Outcome outcome);

  Edit edit(std::optional<std::string_view> kept) override;
  // No memory node knows `expire`.
  NamedEdit* named() override { return name_ == Name::expire ? nullptr : this; }

 private:
  bool reads_the_value() const;
  Edit refuse(Refusal refusal);
  Edit refuse_kind();
  Edit set() const;
  Edit keeping(Edit edit);
  Edit change(std::optional<std::string_view> value);
  Edit add(std::optional<std::string_view> value);
  Edit append(std::string_view value);
  Edit overlay(std::string_view value);
  Edit add_float(std::optional<std::string_view> value);

  const Name name_;
  const std::string_view value_;
  const std::uint64_t argument_;
  Millis expires_ = kNoExpiry;
  Millis now_ = 0;
  Millis before_ = kNoExpiry;  // when the value expires that was seen last
  Outcome outcome_;
};

inline Edit NamedEdit::edit(std::optional<std::string_view> kept) {
  outcome_ = {};
  before_ = kNoExpiry;
  std::optional<Stored> stored;
  if (kept) {
    stored = Stored::parse(*kept);
    if (!stored && reads_the_value()) return refuse_kind();
    if (!stored) stored = Stored{};  // it exists, whatever it is
  }
  const bool expired = stored && stored->expired(now_);
  if (name_ == Name::expire) {
    outcome_.existed = expired;
    return expired ? Edit::erase() : Edit::keep();
  }
  if (expired) {
    if (name_ == Name::remove || name_ == Name::take) return Edit::erase();
    return change(std::nullopt);
  }
  if (stored && stored->type != Type::string && reads_the_value()) return refuse_kind();
  if (stored) before_ = stored->expires;
  return change(stored ? std::optional(stored->text) : std::nullopt);
}

inline void NamedEdit::set_outcome(Outcome outcome) {
  outcome_ = std::move(outcome);
  if (!outcome_.text) return;
  const std::optional<Stored> stored = Stored::parse(*outcome_.text);
  if (stored && name_ != Name::add_float && stored->expired(now_)) {
    outcome_.text.reset();
    outcome_.existed = false;
  } else if (!stored || stored->type != Type::string) {
    outcome_.text.reset();
    outcome_.refusal = Refusal::other_kind;
  } else {
    outcome_.text->resize(stored->text.size());
  }
}

inline Edit NamedEdit::set() const {
  std::string value;
  value.reserve(value_.size() + Stored::kMostTailBytes);
  value += value_;
  Stored::seal(value, expires_);
  return Edit::put(std::move(value));
}

// The new value expires when the one before would have.
inline Edit NamedEdit::keeping(Edit edit) {
  if (edit.kind != Edit::Kind::put) return edit;
  Stored::seal(edit.value, before_);
  if (edit.value.size() <= layout::kMaxValueBytes) return edit;
  outcome_.number = 0;
  return refuse(Refusal::beyond_value);
}

inline Edit NamedEdit::change(std::optional<std::string_view> value) {
  outcome_.existed = value.has_value();
  switch (name_) {
    case Name::insert:
      return value ? Edit::keep() : set();
    case Name::update:
      return value ? set() : Edit::keep();
    case Name::swap:
      if (value) outcome_.text.emplace(*value);
      return set();
    case Name::take:
      if (!value) return Edit::keep();
      outcome_.text.emplace(*value);
      return Edit::erase();
    case Name::remove:
      return value ? Edit::erase() : Edit::keep();
    case Name::expire:
      return Edit::keep();
    case Name::add:
      return keeping(add(value));
    case Name::append:
      return keeping(append(value.value_or("")));
    case Name::overlay:
      return keeping(overlay(value.value_or("")));
    case Name::add_float:
      return keeping(add_float(value));
  }
  return Edit::keep();
}

inline bool NamedEdit::reads_the_value() const {
  return name_ != Name::insert && name_ != Name::update && name_ != Name::remove && name_ != Name::expire;
}

inline Edit NamedEdit::refuse(Refusal refusal) {
  outcome_.refusal = refusal;
  return Edit::keep();
}

inline Edit NamedEdit::refuse_kind() {
  outcome_.existed = true;
  return refuse(Refusal::other_kind);
}

inline Edit NamedEdit::add(std::optional<std::string_view> value) {
  const std::optional<std::int64_t> number = value ? base::parse_integer(*value) : 0;
  if (!number) return refuse(Refusal::not_integer);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(*number, static_cast<std::int64_t>(argument_), &sum)) {
    return refuse(Refusal::beyond_integer);
  }
  outcome_.number = sum;
  return Edit::put(std::to_string(sum));
}

inline Edit NamedEdit::append(std::string_view value) {
  const std::size_t length = value.size() + value_.size();
  if (length > layout::kMaxValueBytes) return refuse(Refusal::beyond_value);
  std::string joined;
  joined.reserve(length + Stored::kMostTailBytes);
  joined += value;
  joined += value_;
  outcome_.number = static_cast<std::int64_t>(length);
  return Edit::put(std::move(joined));
}

inline Edit NamedEdit::overlay(std::string_view value) {
  outcome_.number = static_cast<std::int64_t>(value.size());
  if (value_.empty()) return Edit::keep();
  if (argument_ > layout::kMaxValueBytes || argument_ + value_.size() > layout::kMaxValueBytes) {
    outcome_.number = 0;
    return refuse(Refusal::beyond_value);
  }
  std::string patched(value);
  patched.resize(std::max<std::size_t>(patched.size(), argument_ + value_.size()), '\0');
  patched.replace(argument_, value_.size(), value_);
  outcome_.number = static_cast<std::int64_t>(patched.size());
  return Edit::put(std::move(patched));
}

inline Edit NamedEdit::add_float(std::optional<std::string_view> value) {
  const std::optional<long double> number = value ? base::parse_float(*value) : 0.0L;
  const std::optional<long double> addend = base::parse_float(value_);
  if (!number || !addend) return refuse(Refusal::not_float);
  const long double sum = *number + *addend;
  if (!(sum - sum == 0)) return refuse(Refusal::not_finite);
  std::string text = base::format_float(sum);
  outcome_.text = text;
  return Edit::put(std::move(text));
}

}  // namespace farpool::index
