// SPDX-License-Identifier: Apache-2.0
#include "front/resp/conversation.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "front/resp/connection_commands.h"
#include "front/resp/text.h"
#include "net/loop.h"

namespace farpool::front::resp {
namespace {

constexpr std::size_t kSpareRequests = 64;
constexpr std::size_t kKeepReplyBytes = 16 * 1024;
// What a conversation may hold while its worker is pressed: enough for one of the largest values.
constexpr std::size_t kPressedReplyBytes = 256 * 1024;
constexpr std::size_t kPressedCommandBytes = 2 * 1024 * 1024;

// Equal in time that does not depend on where the two differ.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned char difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ secret[secret.empty() ? 0 : i % secret.size()]);
  }
  return difference == 0;
}

// Says whether what a client gave is a password that counts, in time that does not tell which.
bool fits(std::string_view given, const Passwords& passwords) {
  const bool is_first = same_secret(given, passwords.password);
  const bool is_second = same_secret(given, passwords.also) && !passwords.also.empty();
  return static_cast<unsigned>(is_first) + static_cast<unsigned>(is_second) != 0;
}

// Redis prints words of users up to a NUL and a length.
std::string_view shown(std::string_view text, std::size_t longest) {
  return text.substr(0, std::min(text.find('\0'), longest));
}

std::string unknown_command(const Command& command) {
  std::string words;
  for (std::size_t i = 1; i < command.size() && words.size() < 128; ++i) {
    words += '\'';
    words += shown(command[i], 128 - words.size() + 1);
    words += "' ";
  }
  return "ERR unknown command '" + std::string(shown(command[0], 128)) + "', with args beginning with: " + words;
}

}  // namespace

std::string pool_error_text(const base::Status& status) {
  using base::Code;
  switch (status.code()) {
    case Code::out_of_memory:
      return "OOM command not allowed when used memory > 'maxmemory'.";
    case Code::unknown_outcome:
      return "UNKNOWNOUTCOME the command may or may not have taken effect: " + status.message();
    case Code::unavailable:
    case Code::stale:
    case Code::moved:
      return "TRYAGAIN nothing was done: " + status.message();
    case Code::locked:
      return "LOCKED nothing was done: " + status.message();
    case Code::timed_out:
      return "TIMEOUT nothing was done: " + status.message();
    default:
      if (client::is_other_kind(status)) return status.message();
      return "ERR " + std::string(base::name_of(status.code())) + ": " + status.message();
  }
}

void pool_error(Request& request, const base::Status& status, Counters& counters) {
  if (status.code() == base::Code::unknown_outcome) counters.unknown_outcomes.add();
  request.error(pool_error_text(status));
}

Conversation::Conversation(Service& service, Endpoints endpoints, std::function<void()> progress)
    : service_(service),
      endpoints_(std::move(endpoints)),
      progress_(std::move(progress)),
      parser_(service.settings.limits),
      opened_(net::Loop::now()),
      last_input_(opened_) {
  authenticated_ = !service_.passwords.asked();
  parser_.set_stranger(!authenticated_);
}

Conversation::~Conversation() {
  FARPOOL_CHECK(idle());
  service_.hold(held_, 0);
}

bool Conversation::log_in(std::string_view user, std::string_view password) {
  const bool secret_fits = !service_.passwords.asked() || fits(password, service_.passwords);
  if (user != "default" || !secret_fits) {
    service_.counters.failed_authentications.add();
    return false;
  }
  authenticated_ = true;
  parser_.set_stranger(false);
  return true;
}

void Conversation::reset() {
  name.clear();
  transaction_.reset();
  ++resets_;
  protocol_ = Protocol::resp2;
  authenticated_ = !service_.passwords.asked();
  parser_.set_stranger(!authenticated_);
}

std::string Conversation::client_line() const {
  const base::Nanos now = net::Loop::now();
  std::string line = "id=" + std::to_string(endpoints_.id);
  line += " addr=" + endpoints_.remote + " laddr=" + endpoints_.local + " fd=0 name=" + name;
  line += " age=" + std::to_string((now - opened_) / base::kSecond) +
          " idle=" + std::to_string((now - last_input_) / base::kSecond);
  line += " flags=N db=0 sub=0 psub=0 ssub=0 multi=" + (transaction_ ? std::to_string(transaction_->size()) : "-1") +
          " qbuf=" + std::to_string(parser_.pending_bytes());
  line += " qbuf-free=0 argv-mem=" + std::to_string(queued_bytes_) +
          " multi-mem=" + std::to_string(transaction_ ? transaction_->bytes() : 0) +
          " rbs=0 rbp=0 obl=" + std::to_string(backlog_.size());
  line +=
      " oll=0 omem=" + std::to_string(unsent_) + " tot-mem=" + std::to_string(queued_bytes_ + reply_bytes_ + waiting());
  line += " events=r cmd=" + std::string(last_command_) + " user=default redir=-1 resp=";
  line += protocol_ == Protocol::resp3 ? '3' : '2';
  line += " lib-name=" + library_name + " lib-ver=" + library_version + "\n";
  return line;
}

bool Conversation::hungry() const {
  return !closing_ && requests_.size() < service_.settings.max_pipeline &&
         queued_bytes_ < service_.settings.max_queued_bytes && (requests_.empty() || !pressed()) && !waits_for_room() &&
         !stalled_by_replies();
}

bool Conversation::waits_for_room() const {
  return !closing_ && parser_.pending_bytes() > kPressedCommandBytes && pressed();
}

std::size_t Conversation::reply_limit() const {
  const std::size_t most = service_.settings.max_unread_bytes;
  return pressed() ? std::min(most, kPressedReplyBytes) : most;
}

void Conversation::account() {
  const std::size_t transaction = transaction_ ? transaction_->bytes() : 0;
  const std::size_t holds =
      parser_.pending_bytes() + queued_bytes_ + transaction + reply_bytes_ + waiting() + expected();
  service_.hold(held_, holds);
  held_ = holds;
}

std::string Conversation::take_all() {
  std::string all;
  while (!backlog_.empty()) {
    const std::string_view first = backlog_.first();
    all += first;
    backlog_.consume(first.size());
  }
  account();
  return all;
}

void Conversation::refuse_room() {
  fail("ERR Protocol error: no room for so large a command while others hold as much as this server can");
}

void Conversation::abandon() {
  abandoned_ = true;
  unsent_ = 0;
  backlog_.clear();
  account();
}

void Conversation::cut() {
  closing_ = true;
  while (requests_.size() > started_) {
    if (requests_.back()->done) reply_bytes_ -= requests_.back()->reply.size();
    queued_bytes_ -= requests_.back()->command.bytes();
    requests_.pop_back();
  }
  abandon();
}

void Conversation::receive(std::string_view& input) {
  if (!input.empty()) last_input_ = service_.now();
  pump(input);
}

void Conversation::pump(std::string_view& input) {
  FARPOOL_CHECK(!pumping_);
  pumping_ = true;
  // A command may finish while it is being started: then what waits behind it, or for its room, is looked at again.
  do {
    pump_again_ = false;
    take_input(input);
    start_ready();
    while (!requests_.empty() && requests_.front()->done) {
      Request& request = *requests_.front();
      reply_bytes_ -= request.reply.size();
      abandoned_ ? request.reply.clear() : backlog_.append(request.reply);
      queued_bytes_ -= request.command.bytes();
      if (spare_.size() < kSpareRequests) spare_.push_back(std::move(requests_.front()));
      requests_.pop_front();
      --started_;
      pump_again_ = pump_again_ || !input.empty();
    }
    account();
  } while (pump_again_);
  pumping_ = false;
}

void Conversation::take_input(std::string_view& input) {
  while (hungry()) {
    const std::size_t before = input.size();
    const Parser::Outcome outcome = parser_.feed(input);
    service_.counters.input_bytes.add(before - input.size());
    if (outcome == Parser::Outcome::command) {
      admit();
      continue;
    }
    stalled_ = false;
    if (outcome == Parser::Outcome::error) return fail("ERR " + parser_.error());
    account();
    return;
  }
  if (!closing_ && !input.empty() && !std::exchange(stalled_, true)) service_.counters.stalls.add();
}

// The last reply of this connection.
void Conversation::fail(std::string_view error) {
  service_.counters.protocol_errors.add();
  closing_ = true;
  std::unique_ptr<Request> request = new_request();
  request->protocol = protocol_;
  request->error(error);
  request->done = true;
  reply_bytes_ += request->reply.size();
  requests_.push_back(std::move(request));
}

std::unique_ptr<Request> Conversation::new_request() {
  if (spare_.empty()) return std::make_unique<Request>();
  std::unique_ptr<Request> request = std::move(spare_.back());
  spare_.pop_back();
  request->command.clear();
  request->spec = nullptr;
  request->exclusive = request->done = request->failed = false;
  request->transaction.reset();
  if (request->reply.capacity() > kKeepReplyBytes) std::string().swap(request->reply);
  request->reply.clear();
  if (request->room.capacity() > kKeepReplyBytes) std::string().swap(request->room);
  return request;
}

// Decides, in the order in which the commands were read, whether the parsed command may run, and runs it if it touches
// no key.
void Conversation::admit() {
  std::unique_ptr<Request> owned = new_request();
  Request& request = *owned;
  request.command.swap(parser_.command());
  request.protocol = protocol_;
  request.resets = resets_;
  queued_bytes_ += request.command.bytes();
  requests_.push_back(std::move(owned));

  const Command& command = request.command;
  const CommandSpec* spec = find_command(command[0]);
  const CommandSpec* container = nullptr;
  if (spec != nullptr && !spec->subcommands.empty() && command.size() > 1) {
    container = spec;
    spec = find_subcommand(*container, command[1]);
  }
  std::string refusal;
  if (spec == nullptr && container != nullptr) {
    refusal = "ERR unknown subcommand '" + std::string(shown(command[1], 128)) + "'. Try " +
              to_upper(shown(command[0], 128)) + " HELP.";
  } else if (spec == nullptr) {
    refusal = unknown_command(command);
  } else if (!spec->arity_fits(command.size())) {
    refusal = "ERR wrong number of arguments for '" + std::string(spec->name) + "' command";
  } else if (!authenticated_ && (spec->flags & kNoAuth) == 0) {
    refusal = "NOAUTH Authentication required.";
  }
  if (spec == nullptr || !refusal.empty()) {
    service_.counters.refused.add();
    if (transaction_ != nullptr) transaction_->spoil();
    if (spec != nullptr && spec->operation == op_exec) {  // as Redis words it, whatever is wrong with EXEC itself
      refusal = "EXECABORT Transaction discarded because of: " + refusal.substr(refusal.starts_with("ERR ") ? 4 : 0);
      transaction_.reset();
    }
    request.error(refusal);
    request.done = true;
    reply_bytes_ += request.reply.size();
    return;
  }
  request.spec = spec;
  last_command_ = spec->name;
  if (transaction_ != nullptr && take_into_transaction(request)) return;
  if (spec->instant != nullptr) {
    request.begun = service_.now();
    spec->instant(*this, request);
    finish(request);
    return;
  }
  // A WATCH that is under way decides what another one may watch.
  const bool one_key = request.has_one_key() && spec->operation != op_watch;
  request.exclusive = !one_key;
  if (one_key) request.key_hash = std::hash<std::string_view>{}(command[1]);
}

// Between MULTI and EXEC: queues the command, or refuses it. Returns false if it runs all the same.
bool Conversation::take_into_transaction(Request& request) {
  if (request.spec->operation == op_exec || request.spec->operation == op_discard) {
    request.transaction = std::move(transaction_);
    return false;
  }
  std::string refusal;
  if (request.spec->operation == op_watch) {
    refusal = "ERR WATCH inside MULTI is not allowed";
  } else if (request.spec->in_bracket) {
    return false;
  } else {
    queued_bytes_ -= request.command.bytes();
    refusal = transaction_->add(request, settings().max_pipeline, settings().max_queued_bytes);
    queued_bytes_ += request.command.bytes();
  }
  if (refusal.empty()) {
    request.answer().simple("QUEUED");
  } else {
    service_.counters.refused.add();
    request.error(refusal);
  }
  request.done = true;
  reply_bytes_ += request.reply.size();
  return true;
}

bool Conversation::may_start(const Request& request) const {
  if (running_ == 0) return true;
  if (request.exclusive || running_ >= service_.settings.concurrency) return false;
  for (std::size_t i = 0; i < started_; ++i) {
    const Request& earlier = *requests_[i];
    // Two keys of one hash merely wait for each other.
    if (!earlier.done && (earlier.exclusive || earlier.key_hash == request.key_hash)) return false;
  }
  return true;
}

void Conversation::start_ready() {
  while (started_ < requests_.size()) {
    Request& request = *requests_[started_];
    if (request.done) {
      ++started_;
      continue;
    }
    // Replies that nobody takes must not pile up. Where there are some to send, room will come.
    if (waiting() + reply_bytes_ + expected() >= reply_limit() && (waiting() > 0 || started_ > 0)) return;
    if (!may_start(request)) return;
    ++started_;
    start(request);
  }
}

void Conversation::start(Request& request) {
  ++running_;
  service_.counters.in_flight.add();
  request.begun = service_.now();
  scope_.spawn(run(request));
}

task::Task<void> Conversation::run(Request& request) {
  co_await request.spec->operation(*this, request);
  --running_;
  service_.counters.in_flight.subtract();
  finish(request);
  pump_again_ = true;
  if (!pumping_) progress_();
}

void Conversation::finish(Request& request) {
  request.done = true;
  reply_bytes_ += request.reply.size();
  recent_reply_ = std::max(request.reply.size(), recent_reply_ - recent_reply_ / 8);
  account();
  Counters::PerCommand& counters = service_.counters.commands[number_of(*request.spec)];
  counters.calls.add();
  if (request.failed) counters.errors.add();
  counters.latencies.record(service_.now() - request.begun);
}

}  // namespace farpool::front::resp
