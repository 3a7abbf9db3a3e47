// SPDX-License-Identifier: Apache-2.0
// Bytes in memory and on a wire. Everything multi-byte is little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace farpool::base {

static_assert(std::endian::native == std::endian::little, "layouts are little-endian and read in place");

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// A type whose object bytes are its meaning: it may be compared, hashed and sent as it lies.
template <class T>
inline constexpr bool wire_safe = std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>;

template <class T>
  requires wire_safe<T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
  requires wire_safe<T>
void store(std::byte* to, const T& value) {
  std::memcpy(to, &value, sizeof value);
}

template <class T>
  requires wire_safe<T>
Bytes bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
  requires wire_safe<T>
MutableBytes mutable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

inline Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

}  // namespace farpool::base
