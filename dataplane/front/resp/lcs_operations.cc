// SPDX-License-Identifier: Apache-2.0
// LCS: the longest common subsequence of two strings, each read on its own.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/number.h"
#include "front/resp/access.h"
#include "front/resp/operations.h"
#include "front/resp/text.h"

namespace farpool::front::resp {
namespace {

using base::Result;
using client::Type;
using client::Value;
using task::Task;

struct LcsOptions {
  bool length = false, places = false, with_lengths = false;
  std::int64_t least = 0;  // bytes of a match that is told
};

std::optional<LcsOptions> parse_lcs_options(Request& request) {
  const Command& command = request.command;
  LcsOptions options;
  std::string_view error;
  for (std::size_t i = 3; i < command.size() && error.empty(); ++i) {
    if (same_word(command[i], "LEN")) {
      options.length = true;
    } else if (same_word(command[i], "IDX")) {
      options.places = true;
    } else if (same_word(command[i], "WITHMATCHLEN")) {
      options.with_lengths = true;
    } else if (same_word(command[i], "MINMATCHLEN") && i + 1 < command.size()) {
      const std::optional<std::int64_t> least = base::parse_integer(command[++i]);
      if (!least) error = kNotAnInteger;
      options.least = least.value_or(0);
    } else {
      error = kSyntaxError;
    }
  }
  if (error.empty() && options.length && options.places) {
    error = "ERR If you want both the length and indexes, please just use IDX.";
  }
  if (error.empty()) return options;
  request.error(error);
  return std::nullopt;
}

// A stretch that both strings have.
struct Match {
  std::size_t a = 0, b = 0;  // where it begins
  std::size_t length = 0;
};

class Lcs {
 public:
  // Bytes of the table that it fills, in time in proportion.
  static constexpr std::size_t kMostBytes = 64 << 20;
  static bool fits(std::string_view a, std::string_view b) {
    return (a.size() + 1) <= kMostBytes / sizeof(std::uint32_t) / (b.size() + 1);
  }

  Lcs(std::string_view a, std::string_view b) : a_(a), b_(b), cells_((a.size() + 1) * (b.size() + 1)) {
    for (std::size_t i = 1; i <= a.size(); ++i) {
      for (std::size_t j = 1; j <= b.size(); ++j) {
        cell(i, j) = a[i - 1] == b[j - 1] ? cell(i - 1, j - 1) + 1 : std::max(cell(i - 1, j), cell(i, j - 1));
      }
    }
  }
  std::size_t length() { return cell(a_.size(), b_.size()); }
  // The stretches from the last to the first. Where there are several ways, it is the one that Redis goes.
  std::vector<Match> matches() {
    std::vector<Match> found;
    bool goes_on = false;
    for (std::size_t i = a_.size(), j = b_.size(); i > 0 && j > 0;) {
      if (a_[i - 1] == b_[j - 1]) {
        --i;
        --j;
        if (!goes_on) found.emplace_back();
        found.back() = {i, j, found.back().length + 1};
        goes_on = true;
      } else {
        cell(i - 1, j) > cell(i, j - 1) ? --i : --j;
        goes_on = false;
      }
    }
    return found;
  }

 private:
  std::uint32_t& cell(std::size_t i, std::size_t j) { return cells_[i * (b_.size() + 1) + j]; }
  std::string_view a_, b_;
  std::vector<std::uint32_t> cells_;
};

void answer_places(Reply reply, Lcs& lcs, const LcsOptions& options) {
  std::vector<Match> matches = lcs.matches();
  std::erase_if(matches, [&](const Match& one) { return static_cast<std::int64_t>(one.length) < options.least; });
  reply.map(2);
  reply.bulk("matches");
  reply.array(matches.size());
  for (const Match& match : matches) {
    reply.array(options.with_lengths ? 3 : 2);
    for (const std::size_t begin : {match.a, match.b}) {
      reply.array(2);
      reply.integer(static_cast<std::int64_t>(begin));
      reply.integer(static_cast<std::int64_t>(begin + match.length - 1));
    }
    if (options.with_lengths) reply.integer(static_cast<std::int64_t>(match.length));
  }
  reply.bulk("len");
  reply.integer(static_cast<std::int64_t>(lcs.length()));
}

}  // namespace

Task<void> op_lcs(Conversation& conversation, Request& request) {
  const Result<std::optional<Value>> first = co_await read(conversation, request, 1);
  if (!first.ok()) co_return;
  const Result<std::optional<Value>> second = co_await read(conversation, request, 2);
  if (!second.ok()) co_return;
  std::string_view a, b;
  for (const auto& [value, text] : {std::pair{&*first, &a}, std::pair{&*second, &b}}) {
    if (!*value) continue;
    if ((*value)->type != Type::string) co_return request.error("ERR The specified keys must contain string values");
    *text = (*value)->text;
  }
  const std::optional<LcsOptions> options = parse_lcs_options(request);
  if (!options) co_return;
  if (!Lcs::fits(a, b)) co_return request.error("ERR Insufficient memory, transient memory for LCS exceeds 64 MiB");
  Lcs lcs(a, b);
  if (options->places) {
    answer_places(request.answer(), lcs, *options);
  } else if (options->length) {
    request.answer().integer(static_cast<std::int64_t>(lcs.length()));
  } else {
    std::string text;
    std::vector<Match> matches = lcs.matches();
    std::reverse(matches.begin(), matches.end());
    for (const Match& match : matches) text += a.substr(match.a, match.length);
    request.answer().bulk(text);
  }
}

}  // namespace farpool::front::resp
