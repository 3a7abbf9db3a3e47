// SPDX-License-Identifier: Apache-2.0
// What SCAN and HSCAN take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "front/resp/conversation.h"

namespace farpool::front::resp {

inline constexpr std::string_view kInvalidCursor = "ERR invalid cursor";

// Reads a cursor as strtoul takes it: an optional sign, and a minus counts down from 2^64.
std::optional<std::uint64_t> parse_cursor(std::string_view text);

struct ScanOptions {
  std::uint64_t count = 10;
  std::string_view pattern = "*";
  std::optional<std::string_view> type;
};
enum class ScanOf : std::uint8_t { keys, fields };  // TYPE is an option of scans of keys
// Reads the words from the first option on. Returns nothing if the request has been answered with an error.
std::optional<ScanOptions> parse_scan_options(Request& request, std::size_t first, ScanOf of);

}  // namespace farpool::front::resp
