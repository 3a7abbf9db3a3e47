// SPDX-License-Identifier: Apache-2.0
#include "front/resp/expiry.h"

#include <limits>
#include <optional>

#include "base/number.h"
#include "front/resp/conversation.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using Kind = ExpiryOption::Kind;

constexpr std::int64_t kLatest = std::numeric_limits<std::int64_t>::max();

Kind kind_of(std::string_view word) {
  if (same_word(word, "EX")) return Kind::ex;
  if (same_word(word, "PX")) return Kind::px;
  if (same_word(word, "EXAT")) return Kind::exat;
  if (same_word(word, "PXAT")) return Kind::pxat;
  if (same_word(word, "KEEPTTL")) return Kind::keep;
  if (same_word(word, "PERSIST")) return Kind::persist;
  return Kind::none;
}

}  // namespace

bool take_expiry_option(const Command& command, std::size_t& i, bool of_get, ExpiryOption& option) {
  const Kind kind = kind_of(command[i]);
  // An option may come twice; the last one counts.
  if (kind == Kind::none || (option.kind != Kind::none && option.kind != kind)) return false;
  if (kind == (of_get ? Kind::keep : Kind::persist)) return false;
  option.kind = kind;
  if (!option.is_time()) return true;
  if (i + 1 >= command.size()) return false;
  option.number = command[++i];
  return true;
}

std::string invalid_expiry(std::string_view command) {
  return "ERR invalid expire time in '" + std::string(command) + "' command";
}

Due due_of(const ExpiryOption& option, client::Millis now, std::string_view command) {
  if (!option.is_time()) return {};
  const std::optional<std::int64_t> number = base::parse_integer(option.number);
  if (!number) return {.error = std::string(kNotAnInteger)};
  const bool seconds = option.kind == Kind::ex || option.kind == Kind::exat;
  std::int64_t at = *number;
  if (at <= 0 || (seconds && at > kLatest / 1000)) return {.error = invalid_expiry(command)};
  if (seconds) at *= 1000;
  if (option.is_relative() && __builtin_add_overflow(at, static_cast<std::int64_t>(now), &at)) {
    return {.error = invalid_expiry(command)};
  }
  return {.at = static_cast<client::Millis>(at)};
}

}  // namespace farpool::front::resp
