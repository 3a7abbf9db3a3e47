// SPDX-License-Identifier: Apache-2.0
#include "front/resp/parser.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/number.h"

namespace farpool::front::resp {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr std::size_t kLineEnd = 2;  // Redis looks at the first of its bytes alone
constexpr std::size_t kMostDigits = 9;

// Takes a header off the front of the input: its sign, few digits, and the end of the line. Returns nothing, and takes
// nothing, if it is not there whole or has another form.
std::optional<std::int64_t> take_short_header(std::string_view& input, char sign) {
  if (input.empty() || input[0] != sign) return std::nullopt;
  const std::size_t end = std::min(input.size(), 1 + kMostDigits);
  std::int64_t number = 0;
  std::size_t at = 1;
  for (; at < end && input[at] >= '0' && input[at] <= '9'; ++at) number = 10 * number + (input[at] - '0');
  const bool zeros = input.size() > 1 && input[1] == '0' && at > 2;
  if (at == 1 || zeros || input.size() < at + kLineEnd || input[at] != '\r') return std::nullopt;
  input.remove_prefix(at + kLineEnd);
  return number;
}

}  // namespace

bool split_words(std::string_view line, Command& into) {
  std::size_t at = 0;
  while (true) {
    while (at < line.size() && is_space(line[at])) ++at;
    if (at == line.size() || line[at] == '\0') return true;
    char quote = 0;
    for (;; ++at) {
      const bool end = at == line.size() || line[at] == '\0';
      if (quote == 0) {
        if (end || is_space(line[at])) break;
        if (line[at] == '"' || line[at] == '\'') {
          quote = line[at];
        } else {
          into.append(line.substr(at, 1));
        }
        continue;
      }
      if (end) return false;
      if (line[at] == quote) {
        if (at + 1 < line.size() && line[at + 1] != '\0' && !is_space(line[at + 1])) return false;
        ++at;
        break;
      }
      char byte = line[at];
      if (quote == '\'') {
        if (byte == '\\' && at + 1 < line.size() && line[at + 1] == '\'') byte = line[++at];
      } else if (byte == '\\' && at + 1 < line.size() && line[at + 1] != '\0') {
        if (line[at + 1] == 'x' && at + 3 < line.size() && hex_digit(line[at + 2]) >= 0 &&
            hex_digit(line[at + 3]) >= 0) {
          byte = static_cast<char>(hex_digit(line[at + 2]) * 16 + hex_digit(line[at + 3]));
          at += 3;
        } else {
          switch (byte = line[++at]; byte) {
            case 'n':
              byte = '\n';
              break;
            case 'r':
              byte = '\r';
              break;
            case 't':
              byte = '\t';
              break;
            case 'b':
              byte = '\b';
              break;
            case 'a':
              byte = '\a';
              break;
            default:
              break;
          }
        }
      }
      into.append({&byte, 1});
    }
    into.end_argument();
  }
}

bool Parser::take_line(std::string_view& input, char terminator) {
  const std::size_t found = input.find(terminator);
  if (found == std::string_view::npos) {
    // Keep no more than is needed to know that the line is too long.
    line_.append(input.substr(0, std::min(input.size(), limits_.line_bytes + 1)));
    input = {};
    return false;
  }
  line_.append(input.substr(0, std::min(found, limits_.line_bytes + 1)));
  input.remove_prefix(found + 1);
  return true;
}

Parser::Outcome Parser::fail(std::string error) {
  state_ = State::broken;
  command_.clear();
  error_ = "Protocol error: " + std::move(error);
  return Outcome::error;
}

Parser::Outcome Parser::finish() {
  state_ = State::start;
  finished_ = true;
  return Outcome::command;
}

std::optional<std::int64_t> Parser::take_number() {
  skip_ = 1;
  const std::optional<std::int64_t> number = base::parse_integer(std::string_view(line_).substr(1));
  line_.clear();
  return number;
}

std::optional<Parser::Outcome> Parser::take_array_header(std::string_view& input) {
  std::optional<std::int64_t> count = line_.empty() ? take_short_header(input, '*') : std::nullopt;
  if (!count) {
    const bool whole = take_line(input, '\r');
    if (too_long()) return fail("too big mbulk count string");
    if (!whole) return Outcome::need_more;
    count = take_number();
  }
  if (!count ||
      *count > static_cast<std::int64_t>(std::min<std::size_t>(limits_.arguments, std::numeric_limits<int>::max()))) {
    return fail("invalid multibulk length");
  }
  if (stranger_ && *count > static_cast<std::int64_t>(limits_.stranger_arguments)) {
    return fail("unauthenticated multibulk length");
  }
  arguments_left_ = *count > 0 ? static_cast<std::size_t>(*count) : 0;
  state_ = arguments_left_ > 0 ? State::bulk_header : State::start;
  return std::nullopt;
}

std::optional<Parser::Outcome> Parser::take_bulk_header(std::string_view& input) {
  std::optional<std::int64_t> length = line_.empty() ? take_short_header(input, '$') : std::nullopt;
  if (!length) {
    const bool whole = take_line(input, '\r');
    if (too_long()) return fail("too big bulk count string");
    if (!whole) return Outcome::need_more;
    if (line_.empty() || line_[0] != '$') {
      skip_ = 1;
      return fail(std::string("expected '$', got '") + (line_.empty() ? '\r' : line_[0]) + "'");
    }
    length = take_number();
  }
  if (!length || *length < 0) return fail("invalid bulk length");
  if (*length > static_cast<std::int64_t>(limits_.bulk_bytes)) {
    return fail("invalid bulk length: a key, value or other argument may have at most " +
                std::to_string(limits_.bulk_bytes) + " bytes here");
  }
  if (stranger_ && *length > static_cast<std::int64_t>(limits_.stranger_bulk_bytes)) {
    return fail("unauthenticated bulk length");
  }
  bulk_left_ = static_cast<std::size_t>(*length);
  if (bulk_left_ > limits_.command_bytes - std::min(command_.bytes(), limits_.command_bytes)) {
    return fail("command of more than " + std::to_string(limits_.command_bytes) + " bytes");
  }
  if (skip_ == 0 && input.size() >= bulk_left_ + kLineEnd) {
    command_.append(input.substr(0, bulk_left_));
    input.remove_prefix(bulk_left_ + kLineEnd);
    bulk_left_ = 0;
    if (end_argument()) return finish();
    return std::nullopt;
  }
  state_ = bulk_left_ > 0 ? State::bulk_body : State::bulk_end;
  return std::nullopt;
}

bool Parser::end_argument() {
  command_.end_argument();
  if (--arguments_left_ == 0) return true;
  state_ = State::bulk_header;
  return false;
}

Parser::Outcome Parser::feed(std::string_view& input) {
  if (finished_) {
    finished_ = false;
    command_.clear();
  }
  while (true) {
    const std::size_t skipped = std::min(skip_, input.size());
    input.remove_prefix(skipped);
    skip_ -= skipped;
    if (state_ == State::broken) return Outcome::error;
    if (input.empty()) return Outcome::need_more;

    switch (state_) {
      case State::start:
        line_.clear();
        state_ = input.front() == '*' ? State::array_header : State::inline_line;
        break;

      case State::inline_line: {
        const bool whole = take_line(input, '\n');
        if (too_long()) return fail("too big inline request");
        if (!whole) return Outcome::need_more;
        if (!line_.empty() && line_.back() == '\r') line_.pop_back();
        if (!split_words(line_, command_)) return fail("unbalanced quotes in request");
        if (command_.size() > 0) return finish();
        state_ = State::start;
        break;
      }

      case State::array_header:
        if (const std::optional<Outcome> ended = take_array_header(input)) return *ended;
        break;

      case State::bulk_header:
        if (const std::optional<Outcome> ended = take_bulk_header(input)) return *ended;
        break;

      case State::bulk_body: {
        const std::size_t taken = std::min(bulk_left_, input.size());
        command_.append(input.substr(0, taken));
        input.remove_prefix(taken);
        bulk_left_ -= taken;
        if (bulk_left_ > 0) return Outcome::need_more;
        state_ = State::bulk_end;
        break;
      }

      case State::bulk_end:
        // Redis does not look at the two bytes after a bulk string either; a command is whole only once both have come.
        if (input.size() == 1 && bulk_left_ == 0) {
          input.remove_prefix(1);
          bulk_left_ = 1;  // one of the two has been seen
          return Outcome::need_more;
        }
        input.remove_prefix(2 - bulk_left_);
        bulk_left_ = 0;
        if (end_argument()) return finish();
        break;

      case State::broken:
        break;
    }
  }
}

}  // namespace farpool::front::resp
