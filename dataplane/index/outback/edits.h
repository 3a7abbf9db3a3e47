// SPDX-License-Identifier: Apache-2.0
// What each operation makes of a key's value. Pure; the rules of Redis for the operations that it has. A value that has
// expired by the request's time counts as absent, and a value that is edited keeps its expiry (index/stored.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "index/outback/layout.h"
#include "index/outback/message.h"

namespace farpool::outback {

struct Decision {
  enum class Kind : std::uint8_t { keep, put, erase };
  // What the reply has beside status and number.
  enum class Text : std::uint8_t { none, before, after };
  Kind kind = Kind::keep;
  Status status = Status::done;
  Text text = Text::none;
  std::uint64_t number = 0;
  bool existed = false;  // the key was there, with a value that had not expired
  base::Bytes value;     // that the key gets; in the request or in `scratch`
};

// `entry` is what is there now. `scratch` holds a value that is new.
Decision decide(const Request& request, const std::optional<BlockView>& entry, std::vector<std::byte>& scratch);

}  // namespace farpool::outback
