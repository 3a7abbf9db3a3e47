// SPDX-License-Identifier: Apache-2.0
// Numbers as Redis reads and writes them in strings: strict, so that a value that a command changes reads back byte for
// byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace farpool::base {

// A decimal integer in its one canonical form: no sign but '-', no leading zero, no space, within 64 bits.
std::optional<std::int64_t> parse_integer(std::string_view text);

// What strtold takes, whole and without leading space; neither NaN nor out of range.
std::optional<long double> parse_float(std::string_view text);

// Fixed notation with at most 17 decimals and no trailing zeros.
std::string format_float(long double value);

}  // namespace farpool::base
