// SPDX-License-Identifier: Apache-2.0
// A key and value that lie in the heap, self-verifying: a client that reads one after its block was reused can tell.
//
// OFFSET SIZE  extent
//      0    8  lengths    key bytes 32 | value bytes 32
//      8    8  checksum   CRC-64 over the block's address (in units), the lengths, the key and the value
//     16    k  key
//   16+k    v  value, then zeros to a multiple of 8
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "layout/word.h"

namespace farpool::layout {

inline constexpr std::uint64_t kExtentHeader = 16;

//    63                             32 31                              0
//   +---------------------------------+---------------------------------+
//   | value bytes                  32 | key bytes                    32 |
//   +---------------------------------+---------------------------------+
struct ExtentLengths {
  using Key = Field<0, 32>;
  using Value = Field<32, 32>;
  static_assert(tiles_a_word<Key, Value>);
  static constexpr std::uint64_t of(std::uint64_t key_bytes, std::uint64_t value_bytes) {
    return Key::put(key_bytes) | Value::put(value_bytes);
  }
  static constexpr std::uint64_t key(std::uint64_t word) { return Key::get(word); }
  static constexpr std::uint64_t value(std::uint64_t word) { return Value::get(word); }
};

constexpr std::uint64_t extent_bytes(std::uint64_t key_bytes, std::uint64_t value_bytes) {
  return base::round_up(kExtentHeader + key_bytes + value_bytes, 8);
}

// Fills `into` (exactly extent_bytes) for the block at `units`.
void write_extent(base::MutableBytes into, std::uint64_t units, base::Bytes key, base::Bytes value);

struct ExtentView {
  base::Bytes key;
  base::Bytes value;
};
// The extent in `bytes` if it is whole and belongs at `units`; nothing if torn, reused or never written.
std::optional<ExtentView> read_extent(base::Bytes bytes, std::uint64_t units);

}  // namespace farpool::layout
