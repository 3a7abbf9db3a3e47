// SPDX-License-Identifier: Apache-2.0
#include "front/resp/text.h"

#include <utility>

namespace farpool::front::resp {
namespace {

// Matches one character against the element at the front of `pattern` (not a star) and moves past the element.
bool match_one(std::string_view& pattern, char c) {
  const char head = pattern.front();
  pattern.remove_prefix(1);
  if (head == '?') return true;
  if (head == '\\' && !pattern.empty()) {
    const bool same = lower(pattern.front()) == lower(c);
    pattern.remove_prefix(1);
    return same;
  }
  if (head != '[') return lower(head) == lower(c);
  const bool negated = !pattern.empty() && pattern.front() == '^';
  if (negated) pattern.remove_prefix(1);
  bool in = false;
  while (!pattern.empty() && pattern.front() != ']') {
    char from = pattern.front();
    pattern.remove_prefix(1);
    if (from == '\\' && !pattern.empty()) {
      from = pattern.front();
      pattern.remove_prefix(1);
    }
    char to = from;
    if (pattern.size() >= 2 && pattern[0] == '-' && pattern[1] != ']') {
      to = pattern[1];
      pattern.remove_prefix(2);
    }
    if (lower(from) > lower(to)) std::swap(from, to);
    in = in || (lower(c) >= lower(from) && lower(c) <= lower(to));
  }
  if (!pattern.empty()) pattern.remove_prefix(1);
  return in != negated;
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  // On a mismatch only the last star needs to take one more character.
  std::string_view star_pattern, star_text;
  bool starred = false;
  while (true) {
    if (!pattern.empty() && pattern.front() == '*') {
      pattern.remove_prefix(1);
      star_pattern = pattern;
      star_text = text;
      starred = true;
      continue;
    }
    if (text.empty()) {
      if (pattern.empty()) return true;
      return false;  // a star could only take more text
    }
    if (!pattern.empty()) {
      std::string_view rest = pattern;
      if (match_one(rest, text.front())) {
        pattern = rest;
        text.remove_prefix(1);
        continue;
      }
    }
    if (!starred) return false;
    star_text.remove_prefix(1);
    pattern = star_pattern;
    text = star_text;
  }
}

}  // namespace farpool::front::resp
