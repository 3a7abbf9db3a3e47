// SPDX-License-Identifier: Apache-2.0
// When a value is to expire, as SET, GETEX, SETEX and PSETEX say it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "client/kv.h"
#include "front/resp/parser.h"

namespace farpool::front::resp {

struct ExpiryOption {
  enum class Kind : std::uint8_t { none, ex, px, exat, pxat, keep, persist };
  Kind kind = Kind::none;
  std::string_view number;

  bool is_time() const { return kind >= Kind::ex && kind <= Kind::pxat; }
  bool is_relative() const { return kind == Kind::ex || kind == Kind::px; }
};

// Takes the option at `i`, and moves `i` to its last word. KEEPTTL is an option of SET, PERSIST one of GETEX. Returns
// false if it is none of these, or does not go with those before.
bool take_expiry_option(const Command& command, std::size_t& i, bool of_get, ExpiryOption& option);

// The time that an option says, or why it cannot be.
struct Due {
  client::Millis at = client::kNoExpiry;
  std::string error;
};
// `now` counts for what is relative. `command` is in lower case.
Due due_of(const ExpiryOption& option, client::Millis now, std::string_view command);

std::string invalid_expiry(std::string_view command);

}  // namespace farpool::front::resp
