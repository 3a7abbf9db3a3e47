// SPDX-License-Identifier: Apache-2.0
#include "front/resp/transaction.h"

#include <utility>

#include "base/check.h"
#include "front/resp/connection_commands.h"
#include "front/resp/conversation.h"
#include "front/resp/one_key.h"
#include "front/resp/operations.h"
#include "task/scope.h"

namespace farpool::front::resp {
namespace {

using client::Edit;
using client::Stored;
using task::Task;

// Commands without a key that a transaction may have.
bool runs_without_key(const CommandSpec& spec) {
  return spec.instant == do_ping || spec.instant == do_echo || spec.instant == do_unsubscribe ||
         spec.operation == op_unwatch;
}

// Runs a transaction on the value that an edit shows. It may be asked again after a lost race.
class Execution final : public client::Editor {
 public:
  Execution(Conversation& conversation, Transaction& transaction, std::string_view key,
            const std::optional<Watched>& watched)
      : conversation_(conversation), transaction_(transaction), key_(key), watched_(watched) {}

  bool takes(client::Type) const override { return true; }
  void show(const About& about) override { about_ = about; }
  Edit edit(std::optional<std::string_view> value) override {
    changed_ = watched_ && !same(value);
    replies_.reset();
    if (changed_) return Edit::keep();
    std::optional<std::string> kept;
    if (value) {
      kept.emplace(*value);
      Stored::seal(*kept, about_.expires, about_.type);
    }
    OneKey one(key_, kept, about_.now, conversation_.service().kv);
    conversation_.set_kv(&one);
    replies_ = transaction_.run(conversation_, conversation_.settings().max_reply_bytes);
    conversation_.set_kv(nullptr);
    if (!replies_ || one.kept() == kept) return Edit::keep();
    if (!one.kept()) return Edit::erase();
    const std::optional<Stored> stored = Stored::parse(*one.kept());
    FARPOOL_CHECK(stored.has_value());
    return Edit::put(std::string(stored->text), stored->expires, stored->type);
  }
  // Says whether the watched key had another value than its client has seen.
  bool changed() const { return changed_; }
  const std::optional<std::string>& replies() const { return replies_; }

 private:
  bool same(std::optional<std::string_view> value) const {
    const std::optional<client::Value>& seen = watched_->value;
    if (!seen || !value) return seen.has_value() == value.has_value();
    return seen->text == *value && seen->type == about_.type && seen->expires == about_.expires;
  }

  Conversation& conversation_;
  Transaction& transaction_;
  std::string_view key_;
  const std::optional<Watched>& watched_;
  About about_;
  bool changed_ = false;
  std::optional<std::string> replies_;
};

void answer(Request& request, std::size_t commands, const std::optional<std::string>& replies) {
  if (!replies) return request.error("ERR nothing was done: the replies of the transaction are too long");
  request.answer().array(commands);
  request.reply += *replies;
}

}  // namespace

Transaction::Transaction() = default;
Transaction::~Transaction() = default;

// Returns why a command cannot be queued, or nothing. The first command with a key names that of the transaction.
std::string Transaction::refuse(const Request& request, std::size_t most_commands, std::size_t most_bytes) {
  const CommandSpec& spec = *request.spec;
  if (!runs_without_key(spec)) {
    const bool fits = spec.operation != nullptr && request.has_one_key();
    if (!fits && spec.operation == op_msetnx) return "ERR not queued: " + std::string(kSeveralIfAbsent);
    if (!fits) {
      return "ERR not queued: a transaction of this pool has commands on one key, PING and ECHO; send " +
             std::string(spec.name) + " without MULTI";
    }
    const std::string_view key = request.command[1];
    if (key_ && *key_ != key) {
      return "ERR not queued: all commands of a transaction of this pool have one key, and this one has another; send "
             "commands on several keys without MULTI";
    }
    key_.emplace(key);
  }
  if (requests_.size() == most_commands || bytes_ + request.command.bytes() > most_bytes) {
    return "ERR not queued: the transaction is too long: " + std::to_string(requests_.size()) + " commands of " +
           std::to_string(bytes_) + " bytes";
  }
  return {};
}

std::string Transaction::add(Request& request, std::size_t most_commands, std::size_t most_bytes) {
  if (spoiled_) return {};  // it is not run
  if (std::string refusal = refuse(request, most_commands, most_bytes); !refusal.empty()) {
    spoiled_ = true;
    return refusal_ = std::move(refusal);
  }
  auto queued = std::make_unique<Request>();
  queued->command.swap(request.command);
  queued->spec = request.spec;
  queued->protocol = request.protocol;
  bytes_ += queued->command.bytes();
  requests_.push_back(std::move(queued));
  return {};
}

std::optional<std::string> Transaction::run(Conversation& conversation, std::size_t most_bytes) {
  std::string replies;
  for (const std::unique_ptr<Request>& request : requests_) {
    request->reply.clear();
    request->failed = false;
    if (request->spec->instant != nullptr) {
      request->spec->instant(conversation, *request);
    } else {
      task::Scope scope;
      scope.spawn(request->spec->operation(conversation, *request));
      FARPOOL_CHECK(scope.running() == 0);  // see OneKey
    }
    replies += request->reply;
    std::string().swap(request->reply);
    if (replies.size() > most_bytes) return std::nullopt;
  }
  return replies;
}

void do_multi(Conversation& conversation, Request& request) {
  if (conversation.transaction() != nullptr) return request.error("ERR MULTI calls can not be nested");
  conversation.begin_transaction();
  request.answer().ok();
}

Task<void> op_exec(Conversation& conversation, Request& request) {
  if (request.transaction == nullptr) {
    request.error("ERR EXEC without MULTI");
    co_return;
  }
  const std::unique_ptr<Transaction> transaction = std::move(request.transaction);
  const std::optional<Watched> watched = conversation.take_watched(request);
  if (transaction->spoiled()) {
    // Many drivers show their callers this reply and none of those before it.
    constexpr std::string_view kKind = "ERR ";
    const std::string& why = transaction->refusal();
    request.error("EXECABORT Transaction discarded because of previous errors." +
                  (why.empty() ? why : " The first: " + why.substr(kKind.size())));
    co_return;
  }
  const std::optional<std::string>& key = transaction->key();
  if (watched && key && watched->key != *key) {
    request.error(
        "EXECABORT Transaction discarded: WATCH named another key than its commands, and a transaction of "
        "this pool has one key");
    co_return;
  }
  if (!watched && !key) {
    answer(request, transaction->size(), transaction->run(conversation, conversation.settings().max_reply_bytes));
    co_return;
  }
  const std::string_view on = key ? *key : watched->key;
  Execution execution(conversation, *transaction, on, watched);
  const base::Status status = co_await conversation.service().kv.modify(on, execution);
  if (!status.ok()) {
    pool_error(request, status, conversation.service().counters);
  } else if (execution.changed()) {
    request.answer().null_array();
  } else {
    answer(request, transaction->size(), execution.replies());
  }
}

Task<void> op_discard(Conversation& conversation, Request& request) {
  if (request.transaction == nullptr) {
    request.error("ERR DISCARD without MULTI");
    co_return;
  }
  request.transaction.reset();
  (void)conversation.take_watched(request);
  request.answer().ok();
}

Task<void> op_watch(Conversation& conversation, Request& request) {
  const std::string_view key = request.command[1];
  const Watched* const before = conversation.watched(request);
  if (request.command.size() > 2 || (before != nullptr && before->key != key)) {
    request.error("ERR WATCH of several keys is not supported: a transaction of this pool has one key");
    co_return;
  }
  if (before != nullptr) {  // what was seen first counts
    request.answer().ok();
    co_return;
  }
  base::Result<std::optional<client::Value>> value = co_await conversation.kv().read(key);
  if (!value.ok()) {
    pool_error(request, value.status(), conversation.service().counters);
    co_return;
  }
  conversation.watch({std::string(key), std::move(*value), request.resets});
  request.answer().ok();
}

Task<void> op_unwatch(Conversation& conversation, Request& request) {
  (void)conversation.take_watched(request);
  request.answer().ok();
  co_return;
}

}  // namespace farpool::front::resp
