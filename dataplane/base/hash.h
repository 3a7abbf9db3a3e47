// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace farpool::base {

// A 128-bit secret from which hash functions derive. It travels only in a handshake: with it, one can fill one row.
struct HashSecret {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const HashSecret&, const HashSecret&) = default;
};

// XXH3-64 of the bytes under a seed that mixes both halves of the secret.
std::uint64_t keyed_hash(const HashSecret& secret, Bytes bytes);

// A bijective mix of one word (for deriving further hashes from one).
constexpr std::uint64_t mix(std::uint64_t word) {
  word ^= word >> 32;
  word *= 0xd6e8feb86659fd93ull;
  word ^= word >> 32;
  word *= 0xd6e8feb86659fd93ull;
  word ^= word >> 32;
  return word;
}

}  // namespace farpool::base
