// SPDX-License-Identifier: Apache-2.0
// Describes a read-modify-write to an index of any protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "index/stored.h"

namespace farpool::index {

// What an editor wants to do with a key.
struct Edit {
  static constexpr Millis kAsBefore = ~0ull;
  enum class Kind : std::uint8_t { keep, put, erase } kind = Kind::keep;
  std::string value;
  // When the new value expires, and of which type it is (index/stored.h); tables, to which values are bytes, ignore both.
  Millis expires = kAsBefore;
  Type type = Type::string;
  static Edit keep() { return {}; }
  static Edit put(std::string value, Millis expires = kAsBefore, Type type = Type::string) {
    return {Kind::put, std::move(value), expires, type};
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
  // Returns whether it edits a pool's value of that type: all others are refused, and edit() does not see them. A table
  // does not call it.
  virtual bool takes(Type type) const { return type == Type::string; }
  // Tells an editor of a pool's value, before edit(), what is known of the value beside its text, and which time it is
  // (index/stored.h). A table does not call it.
  struct About {
    Type type = Type::string;
    Millis expires = kNoExpiry;
    Millis now = 0;
  };
  virtual void show(const About&) {}
  // Returns false if it only asks whether the key exists, and gets an empty view: that saves reading the value of an
  // extent.
  virtual bool wants_value() const { return true; }
  // Returns itself if it is a read-modify-write with a name: a memory node may be able to carry it out. nullptr: only
  // edit() knows what it does.
  virtual NamedEdit* named() { return nullptr; }
};

}  // namespace farpool::index
