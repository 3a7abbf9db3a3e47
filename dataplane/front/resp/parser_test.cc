// SPDX-License-Identifier: Apache-2.0
#include "front/resp/parser.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/random.h"

namespace farpool::front::resp {
namespace {

// Everything that a stream of bytes came to: its commands, then the error if there was one.
struct Seen {
  std::vector<std::vector<std::string>> commands;
  std::string error;
  friend bool operator==(const Seen&, const Seen&) = default;
};

bool drain(Parser& parser, std::string_view input, Seen& seen) {
  while (true) {
    switch (parser.feed(input)) {
      case Parser::Outcome::need_more:
        EXPECT_TRUE(input.empty());
        return true;
      case Parser::Outcome::error:
        seen.error = parser.error();
        return false;
      case Parser::Outcome::command: {
        std::vector<std::string> words;
        for (std::size_t i = 0; i < parser.command().size(); ++i) words.emplace_back(parser.command()[i]);
        seen.commands.push_back(std::move(words));
        break;
      }
    }
  }
}

Seen parse_whole(std::string_view stream, Limits limits = {}) {
  Parser parser(limits);
  Seen seen;
  drain(parser, stream, seen);
  return seen;
}

using Words = std::vector<std::vector<std::string>>;

TEST(Parser, ReadsArraysOfBulkStrings) {
  EXPECT_EQ(parse_whole("*2\r\n$3\r\nGET\r\n$1\r\na\r\n").commands, (Words{{"GET", "a"}}));
  EXPECT_EQ(parse_whole("*1\r\n$0\r\n\r\n").commands, (Words{{""}}));
  EXPECT_EQ(parse_whole(std::string("*2\r\n$3\r\na\0b\r\n$2\r\n\r\n\r\n", 21)).commands,
            (Words{{std::string("a\0b", 3), "\r\n"}}));
  EXPECT_EQ(parse_whole("*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n").commands, (Words{{"PING"}}));
}

TEST(Parser, ReadsInlineCommands) {
  EXPECT_EQ(parse_whole("PING\r\n").commands, (Words{{"PING"}}));
  EXPECT_EQ(parse_whole("\r\n\n  \r\nset  a\tb \n").commands, (Words{{"set", "a", "b"}}));
  EXPECT_EQ(parse_whole("set k \"a b\\x41\\n\\\"\" 'it\\'s \\n'\n").commands,
            (Words{{"set", "k", "a bA\n\"", "it's \\n"}}));
  EXPECT_EQ(parse_whole("x \"\"\n").commands, (Words{{"x", ""}}));
  EXPECT_EQ(parse_whole("x ab\"c d\"\n").commands, (Words{{"x", "abc d"}}));
}

TEST(Parser, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"*a\r\n", "Protocol error: invalid multibulk length"},
      {"*2147483648\r\n", "Protocol error: invalid multibulk length"},
      {"*1048577\r\n", "Protocol error: invalid multibulk length"},
      {"*01\r\n", "Protocol error: invalid multibulk length"},
      {"*1\r\nGET\r\n", "Protocol error: expected '$', got 'G'"},
      {"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"},
      {"*1\r\n$x\r\n", "Protocol error: invalid bulk length"},
      {"*1\r\n$8388609\r\n",
       "Protocol error: invalid bulk length: a key, value or other argument may have at most 8388608 bytes here"},
      {"*1\r\n$9223372036854775808\r\n", "Protocol error: invalid bulk length"},
      {"get \"a\n", "Protocol error: unbalanced quotes in request"},
      {"get \"a\"b\n", "Protocol error: unbalanced quotes in request"},
      {"get 'a\n", "Protocol error: unbalanced quotes in request"},
      {std::string(65537, 'x') + "\n", "Protocol error: too big inline request"},
      {std::string(65537, 'x'), "Protocol error: too big inline request"},
      {"*" + std::string(65537, '1') + "\r\n", "Protocol error: too big mbulk count string"},
      {"*1\r\n$" + std::string(65537, '1') + "\r\n", "Protocol error: too big bulk count string"},
  };
  for (const auto& [stream, error] : cases) {
    const Seen seen = parse_whole(stream);
    EXPECT_EQ(seen.error, error) << stream.substr(0, 40);
    EXPECT_TRUE(seen.commands.empty());
  }
  Limits small;
  small.command_bytes = 10;
  EXPECT_EQ(parse_whole("*2\r\n$6\r\nabcdef\r\n$5\r\n", small).error, "Protocol error: command of more than 10 bytes");
  EXPECT_EQ(parse_whole("*2\r\n$6\r\nabcdef\r\n$4\r\nghij\r\n", small).commands, (Words{{"abcdef", "ghij"}}));
}

TEST(Parser, StaysBrokenAfterAnError) {
  Parser parser;
  std::string_view bad = "*x\r\n";
  EXPECT_EQ(parser.feed(bad), Parser::Outcome::error);
  std::string_view good = "PING\r\n";
  EXPECT_EQ(parser.feed(good), Parser::Outcome::error);
}

TEST(Parser, BoundsWhatStrangersSend) {
  const auto as_stranger = [](std::string_view stream) {
    Parser parser;
    parser.set_stranger(true);
    Seen seen;
    drain(parser, stream, seen);
    return seen.error;
  };
  EXPECT_EQ(as_stranger("*11\r\n"), "Protocol error: unauthenticated multibulk length");
  EXPECT_EQ(as_stranger("*1\r\n$16385\r\n"), "Protocol error: unauthenticated bulk length");
  EXPECT_EQ(as_stranger("*10\r\n$16384\r\n"), "");
}

std::string random_stream(base::Random& random) {
  std::string stream;
  const std::uint64_t commands = 1 + random.below(6);
  for (std::uint64_t c = 0; c < commands; ++c) {
    switch (random.below(8)) {
      case 0:
        stream += "set \"a\\x0a b\" 'c'\r\n";
        break;
      case 1:
        stream += "\r\n";
        break;
      case 2:
        stream += random.chance(0.2) ? "*1\r\n+x\r\n" : "*0\r\n";
        break;
      case 3:
        stream += "ping " + std::string(random.below(300), 'p') + "\n";
        break;
      default: {
        const std::uint64_t words = 1 + random.below(4);
        stream += "*" + std::to_string(words) + "\r\n";
        for (std::uint64_t w = 0; w < words; ++w) {
          std::string word;
          for (std::uint64_t i = random.below(40); i > 0; --i) word += "\r\n$*ab\0"[random.below(7)];
          stream += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
        }
      }
    }
  }
  return stream;
}

TEST(Parser, YieldsTheSameHoweverTheBytesAreSplit) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    base::Random random(seed);
    const std::string stream = random_stream(random);
    const Seen whole = parse_whole(stream);
    Parser parser;
    Seen split;
    const std::uint64_t longest = 1 + random.below(12);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t piece = std::min<std::size_t>(stream.size() - at, 1 + random.below(longest));
      // Its own allocation, so that a look beyond the piece is an error that the sanitizer sees.
      const std::vector<char> bytes(stream.begin() + static_cast<std::ptrdiff_t>(at),
                                    stream.begin() + static_cast<std::ptrdiff_t>(at + piece));
      if (!drain(parser, {bytes.data(), bytes.size()}, split)) break;
      at += piece;
    }
    ASSERT_EQ(whole, split);
  }
}

}  // namespace
}  // namespace farpool::front::resp
