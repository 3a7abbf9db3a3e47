// SPDX-License-Identifier: Apache-2.0
#include "front/resp/reply.h"

#include <array>
#include <charconv>

namespace farpool::front::resp {

void Reply::line(char type, std::string_view text) {
  out_ += type;
  out_ += text;
  out_ += "\r\n";
}

void Reply::header(char type, std::int64_t number) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  line(type, {digits.data(), static_cast<std::size_t>(end - digits.data())});
}

void Reply::error(std::string_view text) {
  out_ += '-';
  for (const char c : text) out_ += c == '\r' || c == '\n' ? ' ' : c;
  out_ += "\r\n";
}

void Reply::bulk(std::string_view bytes) {
  header('$', static_cast<std::int64_t>(bytes.size()));
  out_ += bytes;
  out_ += "\r\n";
}

void Reply::verbatim(std::string_view text) {
  if (protocol_ == Protocol::resp2) return bulk(text);
  header('=', static_cast<std::int64_t>(text.size() + 4));
  out_ += "txt:";
  out_ += text;
  out_ += "\r\n";
}

}  // namespace farpool::front::resp
