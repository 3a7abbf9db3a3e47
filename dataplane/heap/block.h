// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace farpool::heap {

struct Block {
  std::uint64_t units = 0;  // offset in the heap region in units of 64 bytes; what an index entry stores
  std::uint64_t bytes = 0;  // usable
  friend bool operator==(const Block&, const Block&) = default;
};

// What a block is for. A full heap still serves replacements when it refuses additions.
enum class Purpose : std::uint8_t {
  addition,
  replacement,  // of a published block that is freed soon after, and is no smaller
};

}  // namespace farpool::heap
