// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace farpool::front::resp {

constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// ASCII only, as Redis compares names of commands and options.
constexpr bool same_word(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

inline std::string to_lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = lower(c);
  return result;
}

inline std::string to_upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return result;
}

// Redis's glob patterns: * ? [abc] [^a-z] and \ before a literal, with what Redis makes of patterns that are not whole.
// Linear in the product of the lengths, whatever the pattern.
enum class Case : std::uint8_t { matters, ignored };
bool glob_match(std::string_view pattern, std::string_view text, Case letters);

// What Redis takes as the name of a client: printable ASCII without spaces.
constexpr bool is_plain_name(std::string_view name) {
  for (const char c : name) {
    if (c < '!' || c > '~') return false;
  }
  return true;
}

}  // namespace farpool::front::resp
