// SPDX-License-Identifier: Apache-2.0
// For tests of this room: a pool in one map, whose operations end at once or when the test says so.
#pragma once

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "client/kv.h"
#include "front/resp/one_key.h"

namespace farpool::front::resp {

class MemoryKv final : public client::Kv {
 public:
  std::map<std::string, std::string, std::less<>> map;  // what is kept: see index/stored.h
  client::Millis now = 0;                               // 0: as the host has it
  bool hold = false;                                    // operations wait until released
  base::Status failure;                                 // what every operation ends with, if not ok
  std::size_t fail_after = 0;                           // operations that still succeed before `failure` counts
  std::vector<std::string> log;                         // keys in the order in which operations took effect
  std::size_t most_held = 0;
  std::string policy = "noeviction";

  std::size_t held() const { return waiting_.size(); }
  // Lets the n-th of the held operations take effect and end.
  void release(std::size_t n) {
    const std::coroutine_handle<> handle = waiting_[n];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(n));
    handle.resume();
  }

  task::Task<base::Result<std::optional<std::string>>> get(std::string_view key, std::string = {}) override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    std::optional<std::string> value = find(key);
    if (base::Status failed = client::open_stored(value, clock()); !failed.ok()) co_return failed;
    co_return value;
  }
  task::Task<base::Result<std::optional<client::Value>>> read(std::string_view key) override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    co_return client::open_value(find(key), clock());
  }
  task::Task<base::Result<client::Millis>> time() override {
    if (!failure.ok() && fail_after == 0) co_return failure;
    co_return clock();
  }
  task::Task<base::Status> put(std::string_view key, std::string_view value, client::Millis expires) override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    log.emplace_back(key);
    std::string kept(value);
    client::Stored::seal(kept, expires);
    map.insert_or_assign(std::string(key), std::move(kept));
    co_return base::Status::Ok();
  }
  task::Task<base::Result<bool>> erase(std::string_view key) override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    log.emplace_back(key);
    drop_expired(key);
    co_return map.erase(std::string(key)) > 0;
  }
  task::Task<base::Status> modify(std::string_view key, client::Editor& editor) override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    std::optional<std::string> lost("a value that was lost"), none, kept = find(key);
    // An editor may be asked again after a lost race.
    (void)edit_kept(kept ? none : lost, editor, clock());
    const base::Status status = edit_kept(kept, editor, clock());
    if (!status.ok()) co_return status;
    log.emplace_back(key);
    if (kept) {
      map.insert_or_assign(std::string(key), std::move(*kept));
    } else {
      map.erase(std::string(key));
    }
    co_return base::Status::Ok();
  }
  task::Task<base::Result<std::vector<std::optional<client::Value>>>> multi_read(
      std::vector<std::string_view> keys) override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    std::vector<std::optional<client::Value>> values;
    for (const std::string_view key : keys) {
      base::Result<std::optional<client::Value>> value = client::open_value(find(key), clock());
      if (!value.ok()) co_return value.status();
      values.push_back(std::move(*value));
    }
    co_return values;
  }
  task::Task<base::Result<std::uint64_t>> count() override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    std::erase_if(map, [this](const auto& entry) { return is_expired(entry.second); });
    co_return map.size();
  }
  // The cursor is how many of the keys, in their order, come before.
  task::Task<base::Result<client::Page>> scan(std::uint64_t cursor, std::uint64_t count, Keys keys) override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    client::Page page;
    std::uint64_t number = 0;
    for (const auto& [key, value] : map) {
      if (number++ < cursor || (keys == Keys::live && is_expired(value))) continue;
      if (page.keys.size() == count) {
        page.next = number - 1;
        break;
      }
      page.keys.push_back(key);
    }
    co_return page;
  }
  task::Task<base::Result<std::optional<std::string>>> any_key() override {
    co_await Gate{*this};
    if (base::Status failed = next_failure(); !failed.ok()) co_return failed;
    for (const auto& [key, value] : map) {
      if (!is_expired(value)) co_return std::optional(key);
    }
    co_return std::nullopt;
  }
  std::uint64_t random() override { return random_.next(); }
  std::string_view eviction_policy() const override { return policy; }

 private:
  struct Gate {
    MemoryKv& kv;
    bool await_ready() const { return !kv.hold; }
    void await_suspend(std::coroutine_handle<> handle) const {
      kv.waiting_.push_back(handle);
      kv.most_held = std::max(kv.most_held, kv.waiting_.size());
    }
    void await_resume() const {}
  };

  base::Status next_failure() {
    if (failure.ok()) return {};
    if (fail_after > 0) {
      --fail_after;
      return {};
    }
    return failure;
  }
  client::Millis clock() const {
    if (now != 0) return now;
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<client::Millis>(std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
  }
  bool is_expired(std::string_view value) const {
    const std::optional<client::Stored> stored = client::Stored::parse(value);
    return stored && stored->expired(clock());
  }
  void drop_expired(std::string_view key) {
    const auto found = map.find(key);
    if (found != map.end() && is_expired(found->second)) map.erase(found);
  }
  std::optional<std::string> find(std::string_view key) const {
    const auto found = map.find(key);
    return found == map.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<std::coroutine_handle<>> waiting_;
  base::Random random_{1};
};

}  // namespace farpool::front::resp
