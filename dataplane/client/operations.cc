// SPDX-License-Identifier: Apache-2.0
// Operations on keys. Each is tried again if an attempt did nothing.
#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "client/links.h"

namespace farpool::client {

using base::Code;
using base::Result;
using base::Status;
using task::Task;

namespace {

constexpr std::uint64_t kEdited = 256;  // bytes that a value is taken for which an editor makes

}  // namespace

Task<Result<std::optional<std::string>>> Pool::get(std::string_view key, std::string room) {
  Account account(*this, Operation::get);
  for (;;) {
    std::optional<Borrowed> bond = borrow_now(key, account);
    if (!bond) {
      if (Status none = co_await borrow(key, account, bond); !none.ok()) co_return none;
    }
    Result<std::optional<std::string>> value =
        co_await bond->table().lookup(key, account.deadline, account.cost, std::exchange(room, {}));
    if (!value.ok()) {
      const bool retry = co_await again(value.status(), *bond, account);
      if (retry) continue;
    } else if (Status status = open_stored(*value, clock()); !status.ok()) {
      account.close(status.code());
      co_return status;
    } else if (*value) {
      used(account);
    }
    account.close(value.code());
    co_return value;
  }
}

Task<Result<std::optional<Value>>> Pool::read(std::string_view key) {
  Account account(*this, Operation::get);
  for (;;) {
    std::optional<Borrowed> bond = borrow_now(key, account);
    if (!bond) {
      if (Status none = co_await borrow(key, account, bond); !none.ok()) co_return none;
    }
    Result<std::optional<std::string>> kept = co_await bond->table().lookup(key, account.deadline, account.cost);
    if (!kept.ok()) {
      const bool retry = co_await again(kept.status(), *bond, account);
      if (retry) continue;
      account.close(kept.code());
      co_return kept.status();
    }
    Result<std::optional<Value>> value = open_value(std::move(*kept), clock());
    if (value.ok() && *value) used(account);
    account.close(value.code());
    co_return value;
  }
}

Task<Result<Millis>> Pool::time() {
  const Nanos deadline = port_.now() + options_.operation_deadline;
  while (!clock_.known()) {
    if (closing_ || port_.now() >= deadline) co_return why_not(nullptr);
    (void)co_await changed_.wait(deadline);
  }
  co_return clock();
}

// Changes a key. Changes of one key run one at a time. `attempt` is one try at a table, and returns whether the key
// existed, unless it knows better. `bytes` is about what an addition takes beside its key.
template <class Answer, class Attempt>
Task<Answer> Pool::change(std::string_view key, Operation operation, std::uint64_t bytes, Attempt attempt) {
  Account account(*this, operation);
  const std::uint64_t hash = Gates::hash(key);
  Gates::Pass pass = gates_.enter_now(hash);
  if (!pass) pass = co_await gates_.enter(hash, account.deadline);
  if (!pass) co_return account.late();
  for (;;) {
    std::optional<Borrowed> bond = borrow_now(key, account);
    if (!bond) {
      if (Status none = co_await borrow(key, account, bond); !none.ok()) co_return none;
    }
    const Result<bool> existed = co_await attempt(bond->table(), account);
    if (existed.code() == Code::out_of_memory && port_.now() < account.deadline) {
      const bool made = co_await make_room(bond->bond(), key.size() + bytes, account.deadline);
      if (made) account.retry();
      if (made) continue;
    } else if (existed.ok()) {
      if (operation != Operation::erase) used(account);
      if (!*existed && operation != Operation::erase) owe(bond->bond(), key.size() + bytes);
    } else {
      const bool retry = co_await again(existed.status(), *bond, account);
      if (retry) continue;
    }
    account.close(existed.code());
    if constexpr (std::is_same_v<Answer, Status>) {
      co_return existed.status();
    } else if constexpr (requires { attempt.existed(); }) {
      if (!existed.ok()) co_return existed.status();
      co_return attempt.existed();
    } else {
      co_return existed;
    }
  }
}

Task<Status> Pool::put(std::string_view key, std::string_view value, Millis expires) {
  if (!Stored::Tail(value, expires).empty()) return put_sealed(key, value, expires);
  return change<Status>(key, Operation::put, value.size(), [key, value](index::Table& table, Account& account) {
    return table.put(key, value, account.deadline, account.cost);
  });
}

Task<Status> Pool::put_sealed(std::string_view key, std::string_view value, Millis expires) {
  std::string kept;
  kept.reserve(value.size() + Stored::kMostTailBytes);
  kept += value;
  Stored::seal(kept, expires);
  co_return co_await change<Status>(key, Operation::put, kept.size(),
                                    [key, &kept](index::Table& table, Account& account) {
                                      return table.put(key, kept, account.deadline, account.cost);
                                    });
}

// Tells an editor the time whenever it decides: between the start of an operation and its decision lie reads, locks of
// others and lost races, and values expire meanwhile.
template <class Inner>
class Pool::Timed final : public Editor {
 public:
  Timed(Pool& pool, Inner& inner) : pool_(pool), inner_(inner) {}

  Edit edit(std::optional<std::string_view> value) override {
    inner_.set_now(pool_.clock());
    return inner_.edit(value);
  }
  bool wants_value() const override { return inner_.wants_value(); }
  NamedEdit* named() override {
    inner_.set_now(pool_.clock());
    return inner_.named();
  }

 private:
  Pool& pool_;
  Inner& inner_;
};

// An edit with a name, because what the table removes may have expired.
struct Pool::Removal {
  Removal(Pool& of, std::string_view which) : pool(of), key(which) {}
  Task<Result<bool>> operator()(index::Table& table, Account& account) {
    timed.emplace(pool, edit);
    return table.modify(key, *timed, account.deadline, account.cost);
  }
  bool existed() const { return edit.outcome().existed; }

  Pool& pool;
  std::string_view key;
  NamedEdit edit{NamedEdit::Name::remove, {}};
  std::optional<Timed<NamedEdit>> timed;  // it refers to this copy's edit
};

Task<Result<bool>> Pool::erase(std::string_view key) {
  return change<Result<bool>>(key, Operation::erase, 0, Removal(*this, key));
}

Task<Status> Pool::modify(std::string_view key, Editor& editor) {
  NamedEdit* const named = editor.named();
  if (named == nullptr) return modify_by_editor(key, editor);
  return change<Status>(key, Operation::modify, named->value().size(),
                        [key, timed = Timed(*this, *named)](index::Table& table, Account& account) mutable {
                          return table.modify(key, timed, account.deadline, account.cost);
                        });
}

Task<Status> Pool::modify_by_editor(std::string_view key, Editor& editor) {
  StoredEditor stored(editor);
  Timed timed(*this, stored);
  const auto attempt = [key, &timed](index::Table& table, Account& account) {
    return table.modify(key, timed, account.deadline, account.cost);
  };
  const Status status = co_await change<Status>(key, Operation::modify, kEdited, attempt);
  if (status.ok() && stored.refused()) co_return other_kind();
  co_return status;
}

Task<void> Pool::read_into(std::string_view key, Result<std::optional<Value>>& into) { into = co_await read(key); }

Task<Result<std::vector<std::optional<Value>>>> Pool::multi_read(std::vector<std::string_view> keys) {
  std::vector<Result<std::optional<Value>>> results(keys.size(), Result<std::optional<Value>>(std::optional<Value>()));
  task::Scope scope;
  for (std::size_t i = 0; i < keys.size(); ++i) scope.spawn(read_into(keys[i], results[i]));
  co_await scope.join();
  std::vector<std::optional<Value>> values;
  values.reserve(keys.size());
  for (Result<std::optional<Value>>& result : results) {
    if (!result.ok()) co_return result.status();
    values.push_back(std::move(*result));
  }
  co_return values;
}

Task<Result<std::uint64_t>> Pool::count() {
  Account account(*this, Operation::count);
  Status failure;
  std::uint64_t keys = 0;
  // Another epoch may have other nodes: then all of them are counted again.
  for (bool whole = false; failure.ok() && !whole;) {
    const std::uint64_t begun_in = epoch();
    keys = 0;
    whole = true;
    for (std::size_t node = 0; whole && failure.ok() && node < std::max<std::size_t>(1, link_of_node_.size()); ++node) {
      if (map_ && node < link_of_node_.size() && link_of_node_[node] == nullptr) continue;  // serves no table
      Result<Borrowed> bond = co_await borrow(node, account.deadline);
      if (!bond.ok()) {
        failure = bond.status();
        break;
      }
      const auto totals = co_await bond->table().count(account.deadline, account.cost);
      if (totals.ok()) {
        keys += totals->keys;
        whole = epoch() == begun_in;
      } else {
        whole = false;
        const bool retry = co_await again(totals.status(), *bond, account);
        if (!retry) failure = totals.status();
      }
    }
  }
  account.close(failure.code());
  if (!failure.ok()) co_return failure;
  co_return keys;
}

Task<std::vector<Pool::Repair>> Pool::repair(Nanos deadline) {
  std::vector<Repair> repairs;
  while (link_of_node_.empty() && !closing_ && port_.now() < deadline) (void)co_await changed_.wait(deadline);
  if (link_of_node_.empty()) repairs.push_back({.trouble = why_not(nullptr).message()});
  for (std::size_t node = 0; node < link_of_node_.size(); ++node) {
    if (link_of_node_[node] == nullptr) continue;  // serves no table
    Repair repair;
    repair.node = link_of_node_[node]->name;
    Result<Borrowed> bond = co_await borrow(node, deadline);
    Status status = bond.status();
    if (bond.ok()) {
      fabric::Cost nobodys;
      const auto swept = co_await bond->table().sweep(deadline, nobodys);
      status = swept.status();
      if (swept.ok()) {
        repair.slots_repaired = swept->repaired;
        repair.slots_left = swept->left;
        repair.trouble = swept->trouble;
      }
    }
    if (!status.ok()) repair.trouble = status.message();
    repairs.push_back(std::move(repair));
  }
  co_return repairs;
}

}  // namespace farpool::client
