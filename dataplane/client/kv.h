// SPDX-License-Identifier: Apache-2.0
// What other rooms see of a pool: a key-value service. It belongs to one thread; every call is one operation of the
// index, atomic across all clients of the pool.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "index/edit.h"
#include "index/named_edit.h"
#include "index/page.h"
#include "task/task.h"

namespace farpool::client {

using index::Edit;
using index::Editor;
using index::NamedEdit;
using index::Page;

class Kv {
 public:
  virtual ~Kv() = default;

  // The value may use the memory of `room`.
  virtual task::Task<base::Result<std::optional<std::string>>> get(std::string_view key, std::string room = {}) = 0;
  // Sets the key, whether or not it exists.
  virtual task::Task<base::Status> put(std::string_view key, std::string_view value) = 0;
  // Returns whether the key existed.
  virtual task::Task<base::Result<bool>> erase(std::string_view key) = 0;
  // Reads, decides and writes as one atomic step. With status unknown_outcome it may or may not have taken effect.
  virtual task::Task<base::Status> modify(std::string_view key, Editor& editor) = 0;
  // Returns one value per key; reads them in parallel, each on its own (no snapshot across keys).
  virtual task::Task<base::Result<std::vector<std::optional<std::string>>>> multi_get(
      std::vector<std::string_view> keys) = 0;
  // Returns the number of keys in the pool. It is exact when nothing changes, and includes every change that the same
  // client had acknowledged before the call.
  virtual task::Task<base::Result<std::uint64_t>> count() = 0;
  // Takes one step of a scan of the whole pool, of about so many keys: see index::Page. An error leaves the cursor as
  // it was; the caller may try the step again.
  virtual task::Task<base::Result<Page>> scan(std::uint64_t cursor, std::uint64_t count) = 0;
  // Returns some key by chance, though not every key with the same chance; nothing if there was none.
  virtual task::Task<base::Result<std::optional<std::string>>> any_key() = 0;
};

}  // namespace farpool::client
