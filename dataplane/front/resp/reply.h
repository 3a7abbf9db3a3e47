// SPDX-License-Identifier: Apache-2.0
// Writes replies in the protocol that a connection has chosen: what RESP2 cannot say becomes what Redis makes of it
// there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace farpool::front::resp {

enum class Protocol : std::uint8_t { resp2 = 2, resp3 = 3 };

class Reply {
 public:
  Reply(std::string& out, Protocol protocol) : out_(out), protocol_(protocol) {}

  void simple(std::string_view text) { line('+', text); }
  void ok() { out_ += "+OK\r\n"; }
  // `text` begins with its code ("ERR ..."). Line ends within it become spaces: they would end the reply.
  void error(std::string_view text);
  void integer(std::int64_t value) { header(':', value); }
  void bulk(std::string_view bytes);
  void null() { out_ += protocol_ == Protocol::resp3 ? "_\r\n" : "$-1\r\n"; }
  void null_array() { out_ += protocol_ == Protocol::resp3 ? "_\r\n" : "*-1\r\n"; }
  // Text for people: tools print it without quoting.
  void verbatim(std::string_view text);

  // Each is followed by that many elements; a map by twice as many.
  void array(std::size_t elements) { header('*', static_cast<std::int64_t>(elements)); }
  void map(std::size_t pairs) {
    protocol_ == Protocol::resp3 ? header('%', static_cast<std::int64_t>(pairs)) : array(2 * pairs);
  }
  // What a subscriber is told, and what answers a command about subscriptions.
  void push(std::size_t elements) {
    protocol_ == Protocol::resp3 ? header('>', static_cast<std::int64_t>(elements)) : array(elements);
  }
  void set(std::size_t elements) {
    protocol_ == Protocol::resp3 ? header('~', static_cast<std::int64_t>(elements)) : array(elements);
  }

  Protocol protocol() const { return protocol_; }

 private:
  void line(char type, std::string_view text);
  void header(char type, std::int64_t number);

  std::string& out_;
  Protocol protocol_;
};

}  // namespace farpool::front::resp
