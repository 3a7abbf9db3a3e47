// SPDX-License-Identifier: Apache-2.0
// SCAN with any words: cursors are taken as strtoul takes them, or refused; the pool is asked for what was written, or
// for nothing; the reply is whole, and the cursor in it stands for the number that the pool gave when it comes back.
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "client/kv.h"
#include "front/resp/conversation.h"

namespace {

using farpool::base::Result;
using farpool::base::Status;
using farpool::client::Page;
using farpool::task::Task;
namespace resp = farpool::front::resp;

// What it was asked, and what it says.
class Asked final : public farpool::client::Kv {
 public:
  Page page;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> asked;  // cursor and count

  Task<Result<Page>> scan(std::uint64_t cursor, std::uint64_t count, Keys) override {
    FARPOOL_CHECK(!asked);
    asked = {cursor, count};
    co_return page;
  }

  Task<Result<std::optional<std::string>>> get(std::string_view, std::string) override { co_return none(); }
  Task<Status> put(std::string_view, std::string_view, farpool::client::Millis) override { co_return none(); }
  Task<Result<std::optional<farpool::client::Value>>> read(std::string_view) override { co_return none(); }
  Task<Result<farpool::client::Millis>> time() override { co_return none(); }
  Task<Result<bool>> erase(std::string_view) override { co_return none(); }
  Task<Status> modify(std::string_view, farpool::client::Editor&) override { co_return none(); }
  Task<Result<std::vector<std::optional<farpool::client::Value>>>> multi_read(std::vector<std::string_view>) override {
    co_return none();
  }
  Task<Result<std::uint64_t>> count() override { co_return none(); }
  Task<Result<std::optional<std::string>>> any_key() override { co_return none(); }
  std::uint64_t random() override { return 0; }

 private:
  static Status none() { return {farpool::base::Code::internal, "it was not asked for that"}; }
};

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() { return rest_.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(take(1)[0]); }
  std::uint64_t word() {
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | byte();
    return word;
  }
  // Up to so many bytes.
  std::string text(std::size_t most) { return std::string(take(byte() % (most + 1))); }

 private:
  std::string_view take(std::size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest_;
};

std::string encode(const std::vector<std::string>& words) {
  std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return bytes;
}

// Reads a reply back.
class Replied {
 public:
  explicit Replied(std::string_view bytes) : rest_(bytes) {}
  std::size_t number(char mark) {
    FARPOOL_CHECK(!rest_.empty() && rest_.front() == mark);
    const std::size_t end = rest_.find("\r\n");
    FARPOOL_CHECK(end != std::string_view::npos);
    const std::size_t value = std::stoul(std::string(rest_.substr(1, end - 1)));
    rest_.remove_prefix(end + 2);
    return value;
  }
  std::string bulk() {
    const std::size_t size = number('$');
    FARPOOL_CHECK(rest_.size() >= size + 2 && rest_.substr(size, 2) == "\r\n");
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size + 2);
    return text;
  }
  bool over() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

std::optional<std::uint64_t> as_strtoul(const std::string& text) {
  if (!text.empty() && std::isspace(static_cast<unsigned char>(text[0])) != 0) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (errno == ERANGE || end != text.c_str() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Asked kv;
  const resp::Settings settings;
  resp::Counters counters;
  resp::Service service{.kv = kv, .settings = settings, .counters = counters};
  resp::Conversation conversation(service, {}, [] {});
  std::string given = "0";
  std::uint64_t given_number = 0;
  while (!input.empty()) {
    kv.asked.reset();
    kv.page = {};
    const std::uint8_t what = input.byte();
    for (int i = 0; i < what % 4; ++i) kv.page.keys.push_back(input.text(64));
    kv.page.next = input.word();

    std::vector<std::string> words{"SCAN", given};
    const bool back = what / 4 % 2 == 0;
    if (!back) {
      // Anything; or a number with something before it or behind it.
      const bool number = what / 8 % 2 != 0;
      static constexpr std::array<std::string_view, 8> kBefore{"", "", "-", "+", "0", "-0", " ", "+-"};
      words[1] = number ? kBefore[input.byte() % kBefore.size()] : input.text(24);
      if (number) words[1] += std::to_string(input.word());
      if (number && input.byte() % 4 == 0) words[1] += input.text(2);
    }
    std::optional<std::string> pattern;
    bool sound = true;  // the other words
    for (int i = 0; i < what / 16 % 4; ++i) {
      const std::uint8_t option = input.byte();
      switch (option % 5) {
        case 0:
          words.insert(words.end(), {"COUNT", std::to_string(1 + input.word() % ((1ull << 63) - 1))});
          break;
        case 1:  // a key, each of its characters by itself
          pattern.emplace();
          if (!kv.page.keys.empty()) {
            for (const char c : kv.page.keys.front()) *pattern += {'\\', c};
          }
          words.insert(words.end(), {"match", *pattern});
          break;
        case 2:
          words.insert(words.end(), {"MATCH", input.text(255)});
          pattern.reset();
          sound = false;
          break;
        case 3:
          words.insert(words.end(), {"COUNT", input.text(24)});
          sound = false;
          break;
        default:
          words.push_back(input.text(8));
          sound = false;
      }
    }

    const std::string command = encode(words);
    std::string_view left = command;
    conversation.receive(left);
    FARPOOL_CHECK(left.empty() && conversation.idle() && !conversation.closing());
    const std::string reply = conversation.take_all();
    const std::optional<std::uint64_t> cursor = as_strtoul(words[1]);
    if (back) FARPOOL_CHECK(cursor == given_number);
    FARPOOL_CHECK(!kv.asked || (cursor && kv.asked->first == *cursor && kv.asked->second >= 1));
    if (!kv.asked) {
      FARPOOL_CHECK(reply.starts_with("-ERR ") && reply.find("\r\n") == reply.size() - 2);
      FARPOOL_CHECK((reply == "-ERR invalid cursor\r\n") == !cursor);
      FARPOOL_CHECK(!cursor || !sound);
      continue;
    }
    Replied replied(reply);
    FARPOOL_CHECK(replied.number('*') == 2);
    given = replied.bulk();
    given_number = kv.page.next;
    std::vector<std::string> told(replied.number('*'));
    for (std::string& key : told) key = replied.bulk();
    FARPOOL_CHECK(replied.over());
    std::size_t at = 0;  // keys that match, in the order of the page
    for (const std::string& key : kv.page.keys) at += at < told.size() && told[at] == key ? 1 : 0;
    FARPOOL_CHECK(at == told.size());
    if (!sound) continue;
    FARPOOL_CHECK(pattern || told.size() == kv.page.keys.size());
    FARPOOL_CHECK(!pattern || kv.page.keys.empty() || (!told.empty() && told.front() == kv.page.keys.front()));
  }
  return 0;
}
