// SPDX-License-Identifier: Apache-2.0
// One client's requests and replies, without the socket: bytes in, bytes out. One thread.
//
// Order. Replies leave in the order of the commands. Up to Settings::concurrency commands of a pipeline run at once; a
// command starts only when every earlier one of this connection has started, and no earlier one that touches its key
// still runs; a command on several keys, or on none, runs alone. So the effects on one key happen in order;
// effects on different keys of one pipeline may not, as is also true of commands sent over two connections.
//
// Bounds. It stops taking input while Settings::max_pipeline commands or max_queued_bytes wait, or max_unread_bytes of
// replies have not been sent. When all conversations of a process hold more than max_held_bytes together, each goes on
// with one command and little unsent at a time, so that all get through, and one in the middle of a large command
// waits. A client that does not take its replies is closed in the end (see Worker).
//
// Outcomes. The error's code says what became of a command (see pool_error): TRYAGAIN, LOCKED, TIMEOUT and OOM mean
// that nothing was done; UNKNOWNOUTCOME means that the command may have been done, and PARTIAL that it was done for
// some of its keys. No driver retries these two.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/queue.h"
#include "base/result.h"
#include "base/time.h"
#include "client/kv.h"
#include "front/resp/backlog.h"
#include "front/resp/counters.h"
#include "front/resp/parser.h"
#include "front/resp/reply.h"
#include "front/resp/table.h"
#include "front/resp/transaction.h"
#include "net/loop.h"
#include "task/scope.h"

namespace farpool::front::resp {

struct Settings {
  std::string version = "dev";
  std::size_t max_pipeline = 1024;
  std::size_t concurrency = 32;
  std::size_t max_queued_bytes = 16 * 1024 * 1024;
  std::size_t max_reply_bytes = 64 * 1024 * 1024;    // of one command
  std::size_t max_unread_bytes = 128 * 1024 * 1024;  // replies that a client has not taken
  std::size_t max_held_bytes = 256 * 1024 * 1024;    // of all conversations of a process: requests and replies
  // How long a client may take less than kLeastTaken of the replies that wait for it: when there are max_unread_bytes
  // of them; when all conversations hold too much; and when it has sent its last command.
  base::Nanos unread_patience = 10 * base::kSecond;
  base::Nanos pressed_patience = base::kSecond;
  base::Nanos last_patience = 300 * base::kSecond;
  std::size_t max_connections = 10'000;
  std::size_t max_value_bytes = 1024 * 1024;
  Limits limits;
};

inline constexpr std::size_t kLeastTaken = 256 * 1024;

// What all workers of a process hold of requests and replies, a little late.
struct Budget {
  std::atomic<std::size_t> held = 0;
};

// What INFO tells of the whole process.
struct Figures {
  std::vector<const Counters*> workers;
  std::uint64_t refused_connections = 0;
  std::uint64_t expired_keys = 0;  // removed by this process
  std::uint64_t evicted_keys = 0;  // the same, to make room
};

// The passwords of which a new connection gives one.
struct Passwords {
  std::string password = {};  // empty: connections give none, and `also` counts for nothing
  std::string also = {};      // a second one, while applications change to another; empty: there is none

  // Says whether connections have to give a password.
  bool asked() const { return !password.empty(); }
  bool operator==(const Passwords&) const = default;
};

// What the conversations of one worker share.
struct Service {
  client::Kv& kv;
  const Settings& settings;
  Counters& counters;
  Passwords passwords = {};
  std::size_t held_bytes = 0;  // by all conversations of this worker
  Budget* budget = nullptr;    // of the process; none: of this worker alone
  std::size_t told_bytes = 0;  // of held_bytes, to the budget
  base::Nanos begun = 0;
  net::Loop* loop = nullptr;  // whose turns' time is taken; none: the clock is read each time
  // Sections that the process adds to INFO ("# Pool\r\n..."), or nothing.
  std::function<std::string()> info = {};
  // None: of this worker alone.
  std::function<Figures()> figures = {};
  // Takes what an operator should read, or nothing.
  std::function<void(const std::string&)> warn = {};

  void hold(std::size_t before, std::size_t now) {
    constexpr std::size_t kCoarse = 64 * 1024;  // spares workers each other's cache lines
    held_bytes += now - before;
    const std::size_t apart = held_bytes > told_bytes ? held_bytes - told_bytes : told_bytes - held_bytes;
    if (budget == nullptr || apart == 0 || (apart < kCoarse && held_bytes != 0)) return;
    budget->held.fetch_add(held_bytes - told_bytes, std::memory_order_relaxed);
    told_bytes = held_bytes;
  }
  base::Nanos now() const { return loop == nullptr ? net::Loop::now() : loop->turn_time(); }
  // All conversations of the process hold too much.
  bool pressed() const {
    const std::size_t held = budget == nullptr ? held_bytes : budget->held.load(std::memory_order_relaxed);
    return held > settings.max_held_bytes;
  }
};

struct Endpoints {
  std::uint64_t id = 0;
  std::string remote = "?:0";
  std::string local = "?:0";
};

// A command from being read to being replied to.
struct Request {
  Command command;
  const CommandSpec* spec = nullptr;
  Protocol protocol = Protocol::resp2;
  bool exclusive = false;  // runs alone
  bool done = false;
  bool failed = false;
  std::uint64_t key_hash = 0;
  std::uint64_t resets = 0;  // of the conversation, before the command came
  base::Nanos begun = 0;
  std::string reply;
  std::string room;                          // for the value that a command reads
  std::unique_ptr<Transaction> transaction;  // that EXEC or DISCARD ends

  // Says whether the command has a key, and no other: one that takes several keys may name the same one again.
  bool has_one_key() const {
    if (spec->first_key != 1) return false;
    if (spec->last_key == 1) return true;
    if (spec->last_key != -1) return false;
    const auto step = static_cast<std::size_t>(spec->key_step);
    for (std::size_t i = 1 + step; i < command.size(); i += step) {
      if (command[i] != command[1]) return false;
    }
    return command.size() > 1;
  }
  Reply answer() { return Reply(reply, protocol); }
  void error(std::string_view text) {
    failed = true;
    answer().error(text);
  }
  // Answers with an error in the place of a reply that is longer than `most` bytes. `instead` says what to send.
  void refuse_reply(std::size_t most, std::string_view instead) {
    reply.clear();
    error("ERR the reply would be larger than " + std::to_string(most) + " bytes: " + std::string(instead));
  }
};

class Conversation {
 public:
  // `progress` is called when replies or room have come without a call of receive(); it must not destroy the
  // conversation.
  Conversation(Service& service, Endpoints endpoints, std::function<void()> progress);
  ~Conversation();  // idle() must hold
  Conversation(const Conversation&) = delete;

  // Takes what it can from the front of `input` and starts what may start.
  void receive(std::string_view& input);
  // Tells how much of what was sent is still on its way to the client.
  void set_unsent(std::size_t bytes) {
    unsent_ = bytes;
    account();
  }
  // True while it would take input.
  bool hungry() const;

  // Replies to be sent. The caller takes them, as fast as the client does.
  Backlog& backlog() { return backlog_; }
  // Takes all of them at once, for callers that do not mind how many there are.
  std::string take_all();
  // Replies that the client has not taken.
  std::size_t waiting() const { return backlog_.size() + unsent_; }
  // Says whether it takes no input because of them.
  bool stalled_by_replies() const { return !closing_ && reply_bytes_ + waiting() + expected() >= reply_limit(); }
  // Says whether it is in the middle of a large command, and waits because all conversations hold too much.
  bool waits_for_room() const;
  // Gives it up.
  void refuse_room();
  std::size_t held() const { return held_; }
  // Says whether it takes no more input. The backlog is the last then, once idle().
  bool closing() const { return closing_; }
  bool idle() const { return requests_.empty(); }
  // True while neither a command nor a part of one is here.
  bool at_rest() const { return requests_.empty() && parser_.pending_bytes() == 0 && backlog_.empty(); }
  // Takes no more input; what has been read is still answered.
  void drain() { closing_ = true; }
  // Tells that the client is gone. Commands that it has sent whole still run, and their replies go nowhere.
  void abandon();
  // Drops every command that has not started, and all replies.
  void cut();
  // Says that no client will see a reply.
  bool abandoned() const { return abandoned_; }

  // For the commands.
  Service& service() { return service_; }
  // The pool; while a transaction runs, its key.
  client::Kv& kv() { return kv_ != nullptr ? *kv_ : service_.kv; }
  void set_kv(client::Kv* kv) { kv_ = kv; }
  const Settings& settings() const { return service_.settings; }
  const Endpoints& endpoints() const { return endpoints_; }
  bool authenticated() const { return authenticated_; }
  bool log_in(std::string_view user, std::string_view password);
  void reset();
  Protocol protocol() const { return protocol_; }
  void set_protocol(Protocol protocol) { protocol_ = protocol; }
  // What MULTI has begun, and neither EXEC nor DISCARD has ended; none: nothing.
  Transaction* transaction() { return transaction_.get(); }
  void begin_transaction() { transaction_ = std::make_unique<Transaction>(); }
  // What is watched as a command runs; a RESET between WATCH and the command has ended that, and one after the command,
  // which may run before it, has not.
  const Watched* watched(const Request& request) const {
    return watched_ && watched_->resets == request.resets ? &*watched_ : nullptr;
  }
  void watch(Watched watched) { watched_ = std::move(watched); }
  std::optional<Watched> take_watched(const Request& request) {
    if (watched(request) == nullptr) watched_.reset();
    return std::exchange(watched_, std::nullopt);
  }
  std::string client_line() const;

  std::string name, library_name, library_version;

 private:
  void take_input(std::string_view& input);
  void admit();
  bool take_into_transaction(Request& request);
  void start_ready();
  bool may_start(const Request& request) const;
  void start(Request& request);
  task::Task<void> run(Request& request);
  void finish(Request& request);
  void pump(std::string_view& input);
  void fail(std::string_view error);
  void account();
  bool pressed() const { return service_.pressed(); }
  // Bytes of replies that running commands will need, as if each were as large as the largest of late.
  std::size_t expected() const { return running_ * recent_reply_; }
  std::size_t reply_limit() const;
  std::unique_ptr<Request> new_request();

  Service& service_;
  Endpoints endpoints_;
  std::function<void()> progress_;
  Parser parser_;
  Protocol protocol_ = Protocol::resp2;
  bool authenticated_ = false;
  std::unique_ptr<Transaction> transaction_;
  std::optional<Watched> watched_;
  std::uint64_t resets_ = 0;
  client::Kv* kv_ = nullptr;
  bool closing_ = false;
  bool abandoned_ = false;
  bool pumping_ = false;
  bool pump_again_ = false;
  std::string_view last_command_ = "NULL";
  base::Nanos opened_;
  base::Nanos last_input_;

  base::Queue<std::unique_ptr<Request>> requests_;  // in order; the first `started_` have been started
  std::vector<std::unique_ptr<Request>> spare_;
  std::size_t started_ = 0;
  std::size_t running_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t reply_bytes_ = 0;  // of requests that are done and not yet in the backlog
  std::size_t recent_reply_ = 0;
  std::size_t unsent_ = 0;
  std::size_t held_ = 0;  // as accounted to the service
  bool stalled_ = false;
  Backlog backlog_;
  task::Scope scope_;
};

// Answers with what the pool's status means to a Redis client.
void pool_error(Request& request, const base::Status& status, Counters& counters);
std::string pool_error_text(const base::Status& status);

inline constexpr std::string_view kWrongType = "WRONGTYPE Operation against a key holding the wrong kind of value";
inline constexpr std::string_view kNotAnInteger = "ERR value is not an integer or out of range";
inline constexpr std::string_view kSyntaxError = "ERR syntax error";

}  // namespace farpool::front::resp
