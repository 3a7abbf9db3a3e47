// SPDX-License-Identifier: Apache-2.0
// The pool as the commands of a transaction see it: one key, whose value they change one after the other in memory,
// before all of it is written by one edit. Nothing waits here: every call has ended when it returns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "client/kv.h"

namespace farpool::front::resp {

// Carries out an editor's decision about what is kept (index/stored.h). Returns an error, and changes nothing, if the
// value is of a kind that the editor does not take.
inline base::Status edit_kept(std::optional<std::string>& kept, client::Editor& editor, client::Millis now) {
  client::StoredEditor stored(editor);
  stored.set_now(now);
  if (editor.named() != nullptr) editor.named()->set_now(now);
  client::Editor& asked = editor.named() != nullptr ? editor : stored;
  client::Edit edit = asked.edit(kept ? std::optional(std::string_view(*kept)) : std::nullopt);
  if (stored.refused()) return client::other_kind();
  if (edit.kind == client::Edit::Kind::put) kept = std::move(edit.value);
  if (edit.kind == client::Edit::Kind::erase) kept.reset();
  return {};
}

class OneKey final : public client::Kv {
 public:
  // The key's view outlives it, as does the pool that random numbers come from. The value has not expired.
  OneKey(std::string_view key, std::optional<std::string> kept, client::Millis now, client::Kv& pool)
      : key_(key), kept_(std::move(kept)), now_(now), pool_(pool) {}

  // What the key is to have, in the form in which it is kept.
  const std::optional<std::string>& kept() const { return kept_; }

  task::Task<base::Result<std::optional<std::string>>> get(std::string_view key, std::string = {}) override {
    check(key);
    std::optional<std::string> value = kept_;
    if (base::Status failed = client::open_stored(value, now_); !failed.ok()) co_return failed;
    co_return value;
  }
  task::Task<base::Result<std::optional<client::Value>>> read(std::string_view key) override {
    check(key);
    co_return client::open_value(kept_, now_);
  }
  task::Task<base::Status> put(std::string_view key, std::string_view value, client::Millis expires) override {
    check(key);
    kept_.emplace(value);
    client::Stored::seal(*kept_, expires);
    co_return base::Status::Ok();
  }
  task::Task<base::Result<bool>> erase(std::string_view key) override {
    check(key);
    drop_expired();
    co_return std::exchange(kept_, std::nullopt).has_value();
  }
  task::Task<base::Status> modify(std::string_view key, client::Editor& editor) override {
    check(key);
    co_return edit_kept(kept_, editor, now_);
  }
  task::Task<base::Result<client::Millis>> time() override { co_return now_; }
  task::Task<base::Result<std::vector<std::optional<client::Value>>>> multi_read(
      std::vector<std::string_view> keys) override {
    std::vector<std::optional<client::Value>> values;
    for (const std::string_view key : keys) {
      check(key);
      base::Result<std::optional<client::Value>> value = client::open_value(kept_, now_);
      if (!value.ok()) co_return value.status();
      values.push_back(std::move(*value));
    }
    co_return values;
  }
  // No command of a transaction asks for more than its key.
  task::Task<base::Result<std::uint64_t>> count() override { co_return beyond(); }
  task::Task<base::Result<client::Page>> scan(std::uint64_t, std::uint64_t, Keys) override { co_return beyond(); }
  task::Task<base::Result<std::optional<std::string>>> any_key() override { co_return beyond(); }
  std::uint64_t random() override { return pool_.random(); }

 private:
  void check(std::string_view key) const { FARPOOL_CHECK(key == key_); }
  static base::Status beyond() {
    return {base::Code::invalid_argument, "a transaction has one key, and this asks for others"};
  }
  void drop_expired() {
    const std::optional<client::Stored> stored = kept_ ? client::Stored::parse(*kept_) : std::nullopt;
    if (stored && stored->expired(now_)) kept_.reset();
  }

  std::string_view key_;
  std::optional<std::string> kept_;
  client::Millis now_;
  client::Kv& pool_;
};

}  // namespace farpool::front::resp
