// SPDX-License-Identifier: Apache-2.0
#include "front/resp/text.h"

#include <utility>

namespace farpool::front::resp {
namespace {

// Matches one character against the element at the front of `pattern` (not a star) and moves past the element.
bool match_one(std::string_view& pattern, char c, Case letters) {
  const auto fold = [letters](char one) { return letters == Case::ignored ? lower(one) : one; };
  const auto take = [&pattern] {
    const char one = pattern.front();
    pattern.remove_prefix(1);
    return one;
  };
  const char head = take();
  if (head == '?') return true;
  if (head == '\\' && !pattern.empty()) return fold(take()) == fold(c);
  if (head != '[') return fold(head) == fold(c);
  const bool negated = !pattern.empty() && pattern.front() == '^';
  if (negated) pattern.remove_prefix(1);
  bool in = false;
  while (!pattern.empty()) {
    if (pattern.front() == '\\' && pattern.size() >= 2) {
      pattern.remove_prefix(1);
      in = take() == c || in;
    } else if (pattern.front() == ']') {
      pattern.remove_prefix(1);
      break;
    } else if (pattern.size() >= 3 && pattern[1] == '-') {
      char from = fold(pattern[0]), to = fold(pattern[2]);
      if (from > to) std::swap(from, to);
      in = in || (fold(c) >= from && fold(c) <= to);
      pattern.remove_prefix(3);
    } else {
      in = fold(take()) == fold(c) || in;
    }
  }
  return in != negated;
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text, Case letters) {
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
      if (match_one(rest, text.front(), letters)) {
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
