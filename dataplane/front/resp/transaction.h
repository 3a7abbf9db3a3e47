// SPDX-License-Identifier: Apache-2.0
// MULTI, EXEC, DISCARD, WATCH and UNWATCH (docs/adr/0047-transactions-of-one-key.md). All commands of a transaction
// have one key. EXEC runs them in memory on the key's value, inside one edit of it, so that they take effect together
// or not at all, and nobody sees what is between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/kv.h"
#include "task/task.h"

namespace farpool::front::resp {

class Conversation;
struct Request;

// What a client has seen of the key that it watches.
struct Watched {
  std::string key;
  std::optional<client::Value> value;  // nothing: there was no such key
  std::uint64_t resets = 0;            // Request::resets of the WATCH
};

// The commands between MULTI and EXEC.
class Transaction {
 public:
  Transaction();
  ~Transaction();
  Transaction(const Transaction&) = delete;

  // Takes a command that has been checked, and that `request` no longer has then. Returns why it cannot be in a
  // transaction, which spoils it; empty: it is queued.
  std::string add(Request& request, std::size_t most_commands, std::size_t most_bytes);
  // A command was refused: EXEC runs none.
  void spoil() { spoiled_ = true; }
  bool spoiled() const { return spoiled_; }
  // Returns the refusal of the first command that `add` could not take; empty: it took all, or another error came first.
  const std::string& refusal() const { return refusal_; }
  std::size_t size() const { return requests_.size(); }
  std::size_t bytes() const { return bytes_; }
  // The key of its commands; nothing if none has one.
  const std::optional<std::string>& key() const { return key_; }
  // Runs all commands, one after the other. Returns their replies; nothing if these are longer than `most_bytes`.
  std::optional<std::string> run(Conversation& conversation, std::size_t most_bytes);

 private:
  std::string refuse(const Request& request, std::size_t most_commands, std::size_t most_bytes);

  std::vector<std::unique_ptr<Request>> requests_;
  std::optional<std::string> key_;
  std::size_t bytes_ = 0;
  bool spoiled_ = false;
  std::string refusal_;
};

void do_multi(Conversation&, Request&);
task::Task<void> op_exec(Conversation&, Request&);
task::Task<void> op_discard(Conversation&, Request&);
task::Task<void> op_watch(Conversation&, Request&);
task::Task<void> op_unwatch(Conversation&, Request&);

}  // namespace farpool::front::resp
