// SPDX-License-Identifier: Apache-2.0
#include "front/resp/scan_options.h"

#include <charconv>

#include "base/number.h"
#include "front/resp/text.h"

namespace farpool::front::resp {

std::optional<std::uint64_t> parse_cursor(std::string_view text) {
  if (text.empty()) return 0;
  const bool negative = text.front() == '-';
  if (negative || text.front() == '+') text.remove_prefix(1);
  std::uint64_t cursor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cursor);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? 0 - cursor : cursor;
}

std::optional<ScanOptions> parse_scan_options(Request& request, std::size_t first, ScanOf of) {
  const Command& command = request.command;
  ScanOptions options;
  for (std::size_t i = first; i < command.size(); i += 2) {
    const bool more = i + 1 < command.size();
    if (more && same_word(command[i], "COUNT")) {
      const std::optional<std::int64_t> count = base::parse_integer(command[i + 1]);
      if (!count || *count < 1) {
        request.error(count ? kSyntaxError : kNotAnInteger);
        return std::nullopt;
      }
      options.count = static_cast<std::uint64_t>(*count);
    } else if (more && same_word(command[i], "MATCH")) {
      options.pattern = command[i + 1];
    } else if (more && of == ScanOf::keys && same_word(command[i], "TYPE")) {
      options.type = command[i + 1];
    } else {
      request.error(kSyntaxError);
      return std::nullopt;
    }
  }
  return options;
}

}  // namespace farpool::front::resp
