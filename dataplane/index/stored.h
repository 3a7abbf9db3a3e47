// SPDX-License-Identifier: Apache-2.0
// The form in which a pool keeps values that may expire (docs/adr/0038-expiry.md). Tables know nothing of it: to them a
// value is bytes. Pure.
//
// A value that ends with a byte below kFirstKind, or is empty, is a string that never expires: it is kept as it is.
// Otherwise its last byte says its kind:
//
//    0xf8   a string that never expires, before that byte
//    0xf9   a string, and 8 bytes before the kind when it expires: milliseconds of the pool's clock, little-endian
//    others have no meaning yet: they are refused, and never taken for strings
//
// No such byte occurs in UTF-8, so text is kept as it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace farpool::index {

// Milliseconds since 1970, by the pool's clock.
using Millis = std::uint64_t;
inline constexpr Millis kNoExpiry = 0;

struct Stored {
  static constexpr unsigned char kFirstKind = 0xf8;
  enum class Kind : unsigned char { plain = 0xf8, expires = 0xf9 };
  static constexpr std::size_t kPlainBytes = 1, kExpiryBytes = 9;

  std::string_view text;
  Millis expires = kNoExpiry;

  // Nothing: the value is of a kind that this program does not know.
  static std::optional<Stored> parse(std::string_view bytes) {
    if (bytes.empty()) return Stored{bytes, kNoExpiry};
    const auto kind = static_cast<unsigned char>(bytes.back());
    if (kind < kFirstKind) return Stored{bytes, kNoExpiry};
    if (kind == static_cast<unsigned char>(Kind::plain)) {
      return Stored{bytes.substr(0, bytes.size() - kPlainBytes), kNoExpiry};
    }
    if (kind != static_cast<unsigned char>(Kind::expires) || bytes.size() < kExpiryBytes) return std::nullopt;
    const std::string_view text = bytes.substr(0, bytes.size() - kExpiryBytes);
    const auto expires = base::load<Millis>(base::bytes_of(bytes).data() + text.size());
    if (expires == kNoExpiry) return std::nullopt;
    return Stored{text, expires};
  }
  bool expired(Millis now) const { return expires != kNoExpiry && now > expires; }

  // What is kept behind a string.
  class Tail {
   public:
    Tail(std::string_view text, Millis expires) {
      if (expires != kNoExpiry) {
        base::store(reinterpret_cast<std::byte*>(bytes_.data()), expires);
        bytes_[kExpiryBytes - 1] = static_cast<char>(Kind::expires);
        size_ = kExpiryBytes;
      } else if (!text.empty() && static_cast<unsigned char>(text.back()) >= kFirstKind) {
        bytes_[0] = static_cast<char>(Kind::plain);
        size_ = kPlainBytes;
      }
    }
    std::string_view bytes() const { return {bytes_.data(), size_}; }
    bool empty() const { return size_ == 0; }

   private:
    std::array<char, kExpiryBytes> bytes_{};
    std::size_t size_ = 0;
  };
  // Makes a string into what is kept.
  static void seal(std::string& text, Millis expires) { text += Tail(text, expires).bytes(); }
};

}  // namespace farpool::index
