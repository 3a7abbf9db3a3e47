// SPDX-License-Identifier: Apache-2.0
#include "index/rewrite.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "index/heads.h"
#include "task/scope.h"

namespace farpool::index {

using base::Code;
using base::Nanos;
using base::Result;
using base::Status;
using task::Task;

namespace {

constexpr std::size_t kHeads = 32;  // keys that are read at once
constexpr std::size_t kAtOnce = 8;  // that are written anew at once

class Same final : public Editor {
 public:
  Edit edit(std::optional<std::string_view> value) override {
    return value ? Edit::put(std::string(*value)) : Edit::keep();
  }
};

Task<void> write_anew(const std::string& key, const Modify& modify, Status& status) {
  Same same;
  const Result<bool> existed = co_await modify(key, same);
  if (!existed.ok()) status = existed.status();
}

}  // namespace

Task<Status> rewrite(session::Session& session, const std::vector<std::uint64_t>& units, std::uint64_t block_bytes,
                     const Modify& modify, Nanos deadline, fabric::Cost& cost) {
  Status first;
  for (std::size_t from = 0; from < units.size(); from += kHeads) {
    std::vector<Head> heads;
    for (std::size_t i = from; i < std::min(units.size(), from + kHeads); ++i) {
      heads.push_back({.block = units[i], .most = block_bytes});
    }
    if (Status status = co_await read_heads(session, heads, deadline, cost); !status.ok()) co_return status;
    for (std::size_t next = 0; next < heads.size();) {
      std::array<Status, kAtOnce> done;
      task::Scope scope;
      for (std::size_t i = 0; i < kAtOnce && next < heads.size(); ++next) {
        if (heads[next].extent_bytes > 0) scope.spawn(write_anew(heads[next].key, modify, done[i++]));
      }
      co_await scope.join();
      for (Status& status : done) {
        if (first.ok() && !status.ok()) first = std::move(status);
      }
      // If there is no room for one, there is none for others.
      if (first.code() == Code::out_of_memory || !session.alive()) co_return first;
    }
  }
  co_return first;
}

}  // namespace farpool::index
