// SPDX-License-Identifier: Apache-2.0
// A client's commands in any pieces, with MULTI, EXEC, DISCARD and WATCH anywhere among them, and an end of any kind at
// any byte: what came whole is run and answered in order, a transaction is one change of one key or none, and in the end
// nothing is left.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "front/resp/conversation.h"
#include "front/resp/memory_kv.h"

namespace {

namespace resp = farpool::front::resp;

std::string encode(const std::vector<std::string>& words) {
  std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return bytes;
}

// What a client of one command after the other would see. Every reply of a command that is not EXEC is one line.
class Model {
 public:
  explicit Model(std::size_t most_commands) : most_commands_(most_commands) {}

  // The command has come whole.
  void take(std::size_t what, const std::string& key) {
    if (quit_) return;
    ++least;
    ++most;
    switch (what) {
      case 0:
        if (!open_) *this = opened();
        break;
      case 1:  // EXEC
        if (open_) execute();
        break;
      case 2:  // DISCARD
        if (open_) *this = closed();
        break;
      case 3:  // RESET
        *this = closed();
        break;
      case 4:
        quit_ = true;
        break;
      case 5:
      case 6:
        open_ ? queue(key) : run.push_back(key);
        break;
      case 7:
        if (!open_ && watched_.empty()) watched_ = key;
        break;
      case 8:
        open_ ? queue("") : watched_.clear();
        break;
      case 9:
      case 10:
        spoiled_ = open_;
        break;
      default:
        if (open_) queue("");
        break;
    }
  }
  std::size_t least = 0, most = 0;  // lines of replies
  std::vector<std::string> run;     // keys

 private:
  void queue(const std::string& key) {
    if (spoiled_) return;
    const bool other = !key.empty() && !key_.empty() && key != key_;
    spoiled_ = other || commands_ == most_commands_;
    if (!spoiled_) ++commands_;
    // A command that is refused for its length has named the key.
    if (!other && !key.empty()) key_ = key;
  }
  void execute() {
    const bool others = !watched_.empty() && !key_.empty() && watched_ != key_;
    if (!spoiled_ && !others) {
      // Values decide whether a watched key has changed, and this does not know them.
      if (watched_.empty()) least += commands_;
      most += commands_;
      if (!watched_.empty() || !key_.empty()) run.push_back(key_.empty() ? watched_ : key_);
    }
    *this = closed();
  }
  Model opened() const {
    Model next = *this;
    next.open_ = true;
    return next;
  }
  Model closed() const {
    Model next(most_commands_);
    next.least = least, next.most = most, next.run = run;
    return next;
  }

  std::size_t most_commands_;
  bool open_ = false, spoiled_ = false, quit_ = false;
  std::size_t commands_ = 0;
  std::string key_, watched_;
};

std::vector<std::string> words_of(std::size_t what, const std::string& key) {
  switch (what) {
    case 0:
      return {"MULTI"};
    case 1:
      return {"EXEC"};
    case 2:
      return {"DISCARD"};
    case 3:
      return {"RESET"};
    case 4:
      return {"QUIT"};
    case 5:
      return {"SET", key, "1"};
    case 6:
      return {"INCR", key};
    case 7:
      return {"WATCH", key};
    case 8:
      return {"UNWATCH"};
    case 9:
      return {"NOSUCH", key};
    case 10:
      return {"SET", key};
    default:
      return {"PING"};
  }
}

enum class End : std::uint8_t { half_close, close, cut };

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const auto end = static_cast<End>(data[0] % 3);
  const std::size_t piece = 1 + data[1] % 48;
  resp::Settings settings;
  settings.max_pipeline = 1 + data[2] % 8;
  settings.concurrency = 1 + data[2] / 8 % 4;
  const std::size_t cut_off = data[3];  // of the last bytes
  resp::MemoryKv kv;
  kv.hold = true;
  resp::Counters counters;
  resp::Service service{.kv = kv, .settings = settings, .counters = counters};
  resp::Conversation conversation(service, {}, [] {});

  std::string stream;
  struct Sent {
    std::size_t end, what;
    std::string key;
  };
  std::vector<Sent> sent;
  for (std::size_t i = 4; i < size && i < 300; ++i) {
    const std::size_t what = data[i] % 12;
    const std::string key(1, static_cast<char>('a' + data[i] / 12 % 8));
    stream += encode(words_of(what, key));
    sent.push_back({stream.size(), what, key});
  }
  stream.resize(stream.size() - std::min(stream.size(), cut_off));
  Model model(settings.max_pipeline);
  for (const Sent& command : sent) {
    if (command.end <= stream.size()) model.take(command.what, command.key);
  }

  // As a connection does with its conversation, and a pool that answers in an order that the input chooses.
  std::string arrived, replies;
  std::size_t at = 0, turns = 0;
  bool gone = false, ended = false;
  while (!ended || !conversation.idle()) {
    FARPOOL_CHECK(++turns < 100'000);
    arrived += stream.substr(at, piece);
    at = std::min(stream.size(), at + piece);
    if (at == stream.size() && !gone && end != End::half_close) {
      gone = true;
      end == End::close ? conversation.abandon() : conversation.cut();
    }
    std::string_view left = arrived;
    conversation.receive(left);
    arrived.erase(0, arrived.size() - left.size());
    replies += conversation.take_all();
    if (at == stream.size() && (arrived.empty() || conversation.closing())) {
      ended = true;
      conversation.drain();
    }
    if (kv.held() > 0 && (at == stream.size() || data[turns % size] % 2 == 0))
      kv.release(data[turns % size] % kv.held());
  }
  std::string_view nothing;
  conversation.receive(nothing);
  replies += conversation.take_all();
  FARPOOL_CHECK(conversation.idle() && kv.held() == 0 && counters.in_flight.get() == 0);

  std::vector<std::string> run = kv.log;
  std::sort(run.begin(), run.end());
  std::sort(model.run.begin(), model.run.end());
  const auto answered = static_cast<std::size_t>(std::count(replies.begin(), replies.end(), '\n'));
  if (end == End::cut) {
    FARPOOL_CHECK(std::includes(model.run.begin(), model.run.end(), run.begin(), run.end()));
  } else {
    FARPOOL_CHECK(run == model.run);
  }
  FARPOOL_CHECK(answered <= model.most && (end != End::half_close || answered >= model.least));
  FARPOOL_CHECK(service.held_bytes == 0 || conversation.waiting() == 0);
  return 0;
}
