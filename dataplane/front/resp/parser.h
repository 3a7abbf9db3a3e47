// SPDX-License-Identifier: Apache-2.0
// Reads the requests of a RESP client: arrays of bulk strings, and inline commands. Pure and incremental: it keeps what
// it has seen of an unfinished command, never looks at a byte twice, and yields the same commands however the bytes are
// split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace farpool::front::resp {

// The words of one command, in one allocation that is kept for reuse.
class Command {
 public:
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(bytes_).substr(begin, ends_[index] - begin);
  }
  std::size_t bytes() const { return bytes_.size(); }
  void clear() {
    // A rare large command must not pin its memory for the life of the connection.
    if (bytes_.capacity() > kKeepBytes) std::string().swap(bytes_);
    if (ends_.capacity() > kKeepBytes / sizeof(std::size_t)) std::vector<std::size_t>().swap(ends_);
    bytes_.clear();
    ends_.clear();
  }
  void append(std::string_view bytes) { bytes_.append(bytes); }
  void end_argument() { ends_.push_back(bytes_.size()); }
  void add(std::string_view argument) {
    append(argument);
    end_argument();
  }
  void swap(Command& other) noexcept {
    bytes_.swap(other.bytes_);
    ends_.swap(other.ends_);
  }

 private:
  static constexpr std::size_t kKeepBytes = 64 * 1024;
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

struct Limits {
  std::size_t arguments = 1024 * 1024;
  std::size_t bulk_bytes =
      8 * 1024 * 1024;  // above what a pool stores, so that most oversized values get a kinder error
  std::size_t command_bytes = 64 * 1024 * 1024;  // all arguments together
  std::size_t line_bytes = 64 * 1024;            // an inline command, or the header of an array or a bulk string
  // What one may send before having authenticated, as in Redis.
  std::size_t stranger_arguments = 10;
  std::size_t stranger_bulk_bytes = 16 * 1024;
};

class Parser {
 public:
  enum class Outcome : std::uint8_t {
    need_more,  // all input is consumed and the command is not whole
    command,    // a command is whole; the rest of the input belongs to the next one
    error,      // the stream cannot be understood any more: send error() and close
  };

  explicit Parser(Limits limits = {}) : limits_(limits) {}

  // Consumes from the front of `input` up to the end of one command. Empty commands are skipped, as Redis does.
  Outcome feed(std::string_view& input);

  // The command after Outcome::command: the caller may swap it away. feed() clears what is left of it.
  Command& command() { return command_; }
  // The text after "ERR ".
  const std::string& error() const { return error_; }
  // Bytes held of an unfinished command.
  std::size_t pending_bytes() const { return state_ == State::start ? 0 : command_.bytes() + line_.size(); }

  void set_stranger(bool stranger) { stranger_ = stranger; }

 private:
  enum class State : std::uint8_t { start, inline_line, array_header, bulk_header, bulk_body, bulk_end, broken };

  // Moves bytes up to and without `terminator` into line_; true when it was found.
  bool take_line(std::string_view& input, char terminator);
  // Takes the header of an array, or of a bulk string and the string if it is there whole. Returns what feed() returns;
  // nothing: it goes on.
  std::optional<Outcome> take_array_header(std::string_view& input);
  std::optional<Outcome> take_bulk_header(std::string_view& input);
  std::optional<std::int64_t> take_number();  // behind the sign of line_, which is whole
  bool end_argument();                        // returns whether it was the last one
  bool too_long() const { return line_.size() > limits_.line_bytes; }
  Outcome fail(std::string error);
  Outcome finish();

  Limits limits_;
  State state_ = State::start;
  bool stranger_ = false;
  bool finished_ = false;
  std::string line_;
  std::size_t arguments_left_ = 0;
  std::size_t bulk_left_ = 0;
  std::size_t skip_ = 0;  // bytes of a line end still to pass over
  Command command_;
  std::string error_;
};

// Splits an inline command into words, with the quoting that redis-cli users know ("\x41\n", 'it\'s'). False:
// unbalanced quotes.
bool split_words(std::string_view line, Command& into);

}  // namespace farpool::front::resp
