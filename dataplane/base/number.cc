// SPDX-License-Identifier: Apache-2.0
#include "base/number.h"

#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace farpool::base {
namespace {
// The longest text that Redis accepts as a float.
constexpr std::size_t kFloatChars = 5 * 1024;
}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (text.empty() || text.size() > 20) return std::nullopt;
  if (text == "0") return 0;
  const std::string_view digits = text[0] == '-' ? text.substr(1) : text;
  if (digits.empty() || digits[0] < '1' || digits[0] > '9') return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<long double> parse_float(std::string_view text) {
  if (text.empty() || text.size() >= kFloatChars) return std::nullopt;
  if (std::isspace(static_cast<unsigned char>(text[0])) != 0) return std::nullopt;
  const std::string terminated(text);
  char* end = nullptr;
  errno = 0;
  const long double value = std::strtold(terminated.c_str(), &end);
  if (end != terminated.c_str() + terminated.size()) return std::nullopt;
  if (errno == ERANGE && (std::isinf(value) || value == 0)) return std::nullopt;
  if (errno == EINVAL || std::isnan(value)) return std::nullopt;
  return value;
}

std::string format_float(long double value) {
  std::array<char, kFloatChars> text;
  const int written = std::snprintf(text.data(), text.size(), "%.17Lf", value);
  if (written <= 0 || static_cast<std::size_t>(written) >= text.size()) return "0";
  std::string_view digits(text.data(), static_cast<std::size_t>(written));
  if (digits.find('.') != std::string_view::npos) {
    while (digits.back() == '0') digits.remove_suffix(1);
    if (digits.back() == '.') digits.remove_suffix(1);
  }
  return digits == "-0" ? "0" : std::string(digits);
}

}  // namespace farpool::base
