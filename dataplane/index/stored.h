// SPDX-License-Identifier: Apache-2.0
// The form in which a pool keeps values that may expire (docs/adr/0038-expiry.md). Tables know nothing of it: to them a
// value is bytes. Pure.
//
// A value that ends with a byte below kFirstKind, or is empty, is a string that never expires: it is kept as it is.
// Otherwise it has a tail, whose last byte says what is before it:
//
//    0xf8   a string that never expires
//    0xf9   a string, and 8 bytes that say when it expires: milliseconds of the pool's clock, little-endian
//    0xfa   the image of a value of another type, and 1 byte that says which one (Type)
//    0xfb   such an image, the byte of its type, and the 8 bytes of its expiry
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

// The type of a value, as its tail says it. Other numbers are types of later versions.
enum class Type : std::uint8_t { string = 0, hash = 1 };

struct Stored {
  static constexpr unsigned char kFirstKind = 0xf8, kLastKind = 0xfb;
  // Bits of a kind: what the tail has before it.
  static constexpr unsigned char kExpires = 1, kTyped = 2;
  static constexpr std::size_t kExpiryBytes = sizeof(Millis);
  static constexpr std::size_t kMostTailBytes = 1 + kExpiryBytes + 1;

  std::string_view text;  // the string, or the image
  Type type = Type::string;
  Millis expires = kNoExpiry;

  // Returns nothing if the value is of a kind that this program does not know.
  static std::optional<Stored> parse(std::string_view bytes) {
    if (bytes.empty()) return Stored{.text = bytes};
    const auto kind = static_cast<unsigned char>(bytes.back());
    if (kind < kFirstKind) return Stored{.text = bytes};
    const std::size_t expiry = (kind & kExpires) != 0 ? kExpiryBytes : 0, type = (kind & kTyped) != 0 ? 1 : 0;
    if (kind > kLastKind || bytes.size() < type + expiry + 1) return std::nullopt;
    Stored stored{.text = bytes.substr(0, bytes.size() - type - expiry - 1)};
    const char* const tail = bytes.data() + stored.text.size();
    if (type != 0) stored.type = static_cast<Type>(*tail);
    if (expiry != 0) stored.expires = base::load<Millis>(reinterpret_cast<const std::byte*>(tail) + type);
    // A tail says nothing that goes without saying.
    if (type != 0 && stored.type == Type::string) return std::nullopt;
    if (expiry != 0 && stored.expires == kNoExpiry) return std::nullopt;
    return stored;
  }
  bool expired(Millis now) const { return expires != kNoExpiry && now > expires; }

  // What is kept behind a string or an image.
  class Tail {
   public:
    Tail(std::string_view text, Millis expires, Type type = Type::string) {
      const bool typed = type != Type::string;
      if (typed) bytes_[size_++] = static_cast<char>(type);
      if (expires != kNoExpiry) {
        base::store(reinterpret_cast<std::byte*>(bytes_.data()) + size_, expires);
        size_ += kExpiryBytes;
      }
      const bool like_a_kind = !text.empty() && static_cast<unsigned char>(text.back()) >= kFirstKind;
      if (size_ == 0 && !like_a_kind) return;
      bytes_[size_++] = static_cast<char>(kFirstKind | (typed ? kTyped : 0) | (expires != kNoExpiry ? kExpires : 0));
    }
    std::string_view bytes() const { return {bytes_.data(), size_}; }
    bool empty() const { return size_ == 0; }

   private:
    std::array<char, kMostTailBytes> bytes_{};
    std::size_t size_ = 0;
  };
  // Makes a string or an image into what is kept.
  static void seal(std::string& text, Millis expires, Type type = Type::string) {
    text += Tail(text, expires, type).bytes();
  }
};

}  // namespace farpool::index
