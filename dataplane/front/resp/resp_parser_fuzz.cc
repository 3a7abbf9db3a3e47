// SPDX-License-Identifier: Apache-2.0
// Any bytes, split anywhere: the same commands as in one piece, within the limits, and nothing read that was not given.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "front/resp/parser.h"

namespace {

using farpool::front::resp::Limits;
using farpool::front::resp::Parser;

constexpr Limits kLimits{.arguments = 64, .bulk_bytes = 512, .command_bytes = 1024, .line_bytes = 128};

struct Seen {
  std::vector<std::string> words;
  std::string error;
};

bool drain(Parser& parser, std::string_view input, Seen& seen) {
  while (true) {
    const Parser::Outcome outcome = parser.feed(input);
    FARPOOL_CHECK(parser.pending_bytes() <= kLimits.command_bytes + kLimits.line_bytes + 2);
    if (outcome == Parser::Outcome::need_more) {
      FARPOOL_CHECK(input.empty());
      return true;
    }
    if (outcome == Parser::Outcome::error) {
      seen.error = parser.error();
      return false;
    }
    FARPOOL_CHECK(parser.command().size() > 0 && parser.command().size() <= kLimits.line_bytes);
    for (std::size_t i = 0; i < parser.command().size(); ++i) seen.words.emplace_back(parser.command()[i]);
    seen.words.emplace_back("<end>");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0] % 16;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  Seen whole, split;
  Parser one(kLimits), other(kLimits);
  drain(one, stream, whole);
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    const std::string bytes(stream.substr(at, piece));
    if (!drain(other, bytes, split)) break;
  }
  FARPOOL_CHECK(whole.words == split.words && whole.error == split.error);
  return 0;
}
