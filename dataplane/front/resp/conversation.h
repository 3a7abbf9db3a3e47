// SPDX-License-Identifier: Apache-2.0
// One client's requests and replies, without the socket: bytes in, bytes out. One thread.
//
// Order. Replies leave in the order of the commands. Up to Settings::concurrency commands of a pipeline run at once; a
// command starts only when every earlier one of this connection has started, and no earlier one that touches its key
// still runs; a command on several keys, or on none, runs alone. So the effects on one key happen in order;
// those on different keys of one pipeline may not, as is also true of commands sent over two connections.
//
// Bounds. It stops taking input while Settings::max_pipeline commands or max_queued_bytes wait, or max_reply_bytes have
// not been sent. When all conversations of a worker hold more than max_held_bytes together, each goes on with one
// command and little unsent at a time, so that all get through, and one in the middle of a large command is closed.
//
// Outcomes. What the pool says became of a command is in the error's code (see pool_error): TRYAGAIN, LOCKED, TIMEOUT
// and OOM mean that nothing was done; UNKNOWNOUTCOME that it may have been, and PARTIAL that some keys of several were.
// No driver retries those two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "client/kv.h"
#include "front/resp/counters.h"
#include "front/resp/parser.h"
#include "front/resp/reply.h"
#include "front/resp/table.h"
#include "task/scope.h"

namespace farpool::front::resp {

struct Settings {
  std::string version = "dev";
  std::size_t max_pipeline = 1024;
  std::size_t concurrency = 32;
  std::size_t max_queued_bytes = 16 * 1024 * 1024;
  std::size_t max_reply_bytes = 64 * 1024 * 1024;
  std::size_t max_held_bytes = 256 * 1024 * 1024;  // of all conversations of a worker: requests and replies
  std::size_t max_connections = 10'000;
  std::size_t max_value_bytes = 1024 * 1024;
  Limits limits;
};

// What the conversations of one worker share.
struct Service {
  client::Kv& kv;
  const Settings& settings;
  Counters& counters;
  std::string password = {};   // that new connections must give; empty: none
  std::size_t held_bytes = 0;  // by all conversations
  // Sections that the process adds to INFO ("# Pool\r\n..."), or nothing.
  std::function<std::string()> info = {};
  // Open connections of the whole process.
  std::function<std::size_t()> connected = {};
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
  base::Nanos begun = 0;
  std::string reply;

  Reply answer() { return Reply(reply, protocol); }
  void error(std::string_view text) {
    failed = true;
    answer().error(text);
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
  // Tells how much of the output is still on its way to the client.
  void set_unsent(std::size_t bytes) {
    unsent_ = bytes;
    account();
  }
  // True while it would take input.
  bool hungry() const;

  // Replies to be sent now. The caller empties it.
  std::string& output() { return out_; }
  // No more input is taken, and output() is the last once idle().
  bool closing() const { return closing_; }
  bool idle() const { return requests_.empty(); }
  // Takes no more input; what has been read is still answered.
  void drain() { closing_ = true; }
  // The client is gone. What it has sent whole is still run, and its replies go nowhere.
  void abandon();
  // Nothing of it that has not been started ever will be.
  void cut();
  // Nobody will see a reply.
  bool abandoned() const { return abandoned_; }

  // For the commands.
  Service& service() { return service_; }
  client::Kv& kv() { return service_.kv; }
  const Settings& settings() const { return service_.settings; }
  const Endpoints& endpoints() const { return endpoints_; }
  bool authenticated() const { return authenticated_; }
  bool log_in(std::string_view user, std::string_view password);
  void reset();
  Protocol protocol() const { return protocol_; }
  void set_protocol(Protocol protocol) { protocol_ = protocol; }
  // A MULTI was refused, and neither EXEC nor DISCARD has come.
  bool in_bracket() const { return in_bracket_; }
  void set_in_bracket(bool in_bracket) { in_bracket_ = in_bracket; }
  std::string client_line() const;

  std::string name, library_name, library_version;

 private:
  void take_input(std::string_view& input);
  void admit();
  void start_ready();
  bool may_start(const Request& request) const;
  void start(Request& request);
  task::Task<void> run(Request& request);
  void finish(Request& request);
  void pump(std::string_view& input);
  void fail(std::string_view error);
  void account();
  // The worker's conversations hold too much.
  bool pressed() const { return service_.held_bytes > service_.settings.max_held_bytes; }
  std::size_t reply_limit() const;
  std::unique_ptr<Request> new_request();

  Service& service_;
  Endpoints endpoints_;
  std::function<void()> progress_;
  Parser parser_;
  Protocol protocol_ = Protocol::resp2;
  bool authenticated_ = false;
  bool in_bracket_ = false;
  bool closing_ = false;
  bool abandoned_ = false;
  bool pumping_ = false;
  bool pump_again_ = false;
  std::string_view last_command_ = "NULL";
  base::Nanos opened_;
  base::Nanos last_input_;

  std::deque<std::unique_ptr<Request>> requests_;  // in order; the first `started_` have been started
  std::vector<std::unique_ptr<Request>> spare_;
  std::size_t started_ = 0;
  std::size_t running_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t reply_bytes_ = 0;  // of requests that are done and not yet in out_
  std::size_t unsent_ = 0;
  std::size_t held_ = 0;  // as accounted to the service
  bool stalled_ = false;
  std::string out_;
  task::Scope scope_;
};

// Answers with what the pool's status means to a Redis client.
void pool_error(Request& request, const base::Status& status, Counters& counters);
std::string pool_error_text(const base::Status& status);

inline constexpr std::string_view kNotAnInteger = "ERR value is not an integer or out of range";
inline constexpr std::string_view kSyntaxError = "ERR syntax error";

}  // namespace farpool::front::resp
