// SPDX-License-Identifier: Apache-2.0
// Describes a read-modify-write to an index of any protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace farpool::index {

// What an editor wants to do with a key.
struct Edit {
  static constexpr std::uint64_t kAsBefore = ~0ull;
  enum class Kind : std::uint8_t { keep, put, erase } kind = Kind::keep;
  std::string value;
  // When the new value expires (index/stored.h); tables, to which values are bytes, ignore it.
  std::uint64_t expires = kAsBefore;
  static Edit keep() { return {}; }
  static Edit put(std::string value, std::uint64_t expires = kAsBefore) {
    return {Kind::put, std::move(value), expires};
  }
  static Edit erase() { return {.kind = Kind::erase}; }
};

class NamedEdit;

// Looks at the value that a key has (nothing: the key is absent) while no other client can change it, and says what to
// do. It may run again if an attempt did nothing, and must then start afresh; its last answer is the one that took
// effect. It must not block or suspend.
class Editor {
 public:
  virtual ~Editor() = default;
  virtual Edit edit(std::optional<std::string_view> value) = 0;
  // Tells an editor of a pool's value, before edit(), when the value expires and which time it is (index/stored.h). A
  // table does not call it.
  virtual void show_times(std::uint64_t /*expires*/, std::uint64_t /*now*/) {}
  // Returns false if it only asks whether the key exists, and gets an empty view: that saves reading the value of an
  // extent.
  virtual bool wants_value() const { return true; }
  // Returns itself if it is a read-modify-write with a name: a memory node may be able to carry it out. nullptr: only
  // edit() knows what it does.
  virtual NamedEdit* named() { return nullptr; }
};

}  // namespace farpool::index
