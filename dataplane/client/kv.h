// SPDX-License-Identifier: Apache-2.0
// What other rooms see of a pool: a key-value service. It belongs to one thread; every call is one operation of the
// index, atomic across all clients of the pool.
//
// A value may expire: a key whose value has is absent to every call but count(). The pool's clock decides, which all
// clients share within a bound (docs/adr/0038-expiry.md). A value is a string, or the image of another type
// (docs/adr/0039-hashes.md). One that the call does not take is an error, for which is_other_kind() holds; nothing was
// done.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "index/edit.h"
#include "index/named_edit.h"
#include "index/page.h"
#include "index/stored.h"
#include "task/task.h"

namespace farpool::client {

using index::Edit;
using index::Editor;
using index::kNoExpiry;
using index::Millis;
using index::NamedEdit;
using index::Page;
using index::Stored;
using index::Type;

inline base::Status other_kind() {
  return {base::Code::invalid_argument, "WRONGTYPE Operation against a key holding the wrong kind of value"};
}
inline bool is_other_kind(const base::Status& status) {
  return status.code() == base::Code::invalid_argument && status.message().starts_with("WRONGTYPE ");
}

// A value of any type: a string, or the image of another type.
struct Value {
  std::string text;
  Type type = Type::string;
  Millis expires = kNoExpiry;
  friend bool operator==(const Value&, const Value&) = default;
};

// Shows an editor a value and what is known of it, and makes what it decides into what is kept. A value that the editor
// puts expires as before, unless the editor says when.
class StoredEditor final : public Editor {
 public:
  explicit StoredEditor(Editor& editor) : editor_(editor) {}

  void set_now(Millis now) { now_ = now; }
  Edit edit(std::optional<std::string_view> kept) override {
    std::optional<Stored> stored;
    if (kept) stored = Stored::parse(*kept);
    const bool unknown = kept && !stored;
    if (stored && stored->expired(now_)) stored.reset();
    refused_ = unknown || (stored && !editor_.takes(stored->type));
    if (refused_) return Edit::keep();
    const About about = stored ? About{stored->type, stored->expires, now_} : About{.now = now_};
    editor_.show(about);
    Edit edit = editor_.edit(stored ? std::optional(stored->text) : std::nullopt);
    if (edit.kind == Edit::Kind::put) {
      Stored::seal(edit.value, edit.expires == Edit::kAsBefore ? about.expires : edit.expires, edit.type);
    }
    return edit;
  }
  // Says whether the value was of a kind that the editor does not take.
  bool refused() const { return refused_; }

 private:
  Editor& editor_;
  Millis now_ = 0;
  bool refused_ = false;
};

// Makes what is kept into a string; nothing if it has expired. Returns an error if it is of another kind.
inline base::Status open_stored(std::optional<std::string>& value, Millis now) {
  if (!value) return {};
  const std::optional<Stored> stored = Stored::parse(*value);
  if (!stored) return other_kind();
  if (stored->expired(now)) {
    value.reset();
  } else if (stored->type != Type::string) {
    return other_kind();
  } else {
    value->resize(stored->text.size());
  }
  return {};
}

// Makes what is kept into a value of its type; nothing if it has expired.
inline base::Result<std::optional<Value>> open_value(std::optional<std::string> kept, Millis now) {
  if (!kept) return std::optional<Value>();
  const std::optional<Stored> stored = Stored::parse(*kept);
  if (!stored) return other_kind();
  if (stored->expired(now)) return std::optional<Value>();
  Value value{.type = stored->type, .expires = stored->expires};
  kept->resize(stored->text.size());
  value.text = std::move(*kept);
  return std::optional(std::move(value));
}

class Kv {
 public:
  virtual ~Kv() = default;

  // Returns the string that the key has. The value may use the memory of `room`.
  virtual task::Task<base::Result<std::optional<std::string>>> get(std::string_view key, std::string room = {}) = 0;
  // Sets the key, whether or not it exists, and when it expires.
  virtual task::Task<base::Status> put(std::string_view key, std::string_view value, Millis expires = kNoExpiry) = 0;
  // Returns whether the key existed.
  virtual task::Task<base::Result<bool>> erase(std::string_view key) = 0;
  // Reads, decides and writes as one atomic step. With status unknown_outcome it may or may not have taken effect.
  // The editor sees strings or images of types that it takes, not what is kept.
  virtual task::Task<base::Status> modify(std::string_view key, Editor& editor) = 0;
  // Returns the key's value, whatever its type; nothing if there is no such key.
  virtual task::Task<base::Result<std::optional<Value>>> read(std::string_view key) = 0;
  // Returns the pool's time. Waits for it as an operation waits for a memory node.
  virtual task::Task<base::Result<Millis>> time() = 0;
  // Returns one value per key; reads them in parallel, each on its own (no snapshot across keys).
  virtual task::Task<base::Result<std::vector<std::optional<Value>>>> multi_read(
      std::vector<std::string_view> keys) = 0;
  // Returns the number of keys in the pool. It is exact when nothing changes, and includes every change that the same
  // client had acknowledged before the call. Keys that have expired count until they are removed.
  virtual task::Task<base::Result<std::uint64_t>> count() = 0;
  // Takes one step of a scan of the whole pool, of about so many keys: see index::Page. An error leaves the cursor as
  // it was; the caller may try the step again. Keys that have expired are on pages only if they are asked for.
  enum class Keys : std::uint8_t { live, all };
  virtual task::Task<base::Result<Page>> scan(std::uint64_t cursor, std::uint64_t count, Keys keys = Keys::live) = 0;
  // Returns some key by chance, though not every key with the same chance; nothing if there was none.
  virtual task::Task<base::Result<std::optional<std::string>>> any_key() = 0;
  // Returns a random number, of which every bit is drawn.
  virtual std::uint64_t random() = 0;
  // Returns the Redis name of what is done when there is no room for a write.
  virtual std::string_view eviction_policy() const { return "noeviction"; }
};

}  // namespace farpool::client
