// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <xxhash.h>

namespace farpool::base {

std::uint64_t keyed_hash(const HashSecret& secret, Bytes bytes) {
  // The low half seeds the hash; the high half hides its output from who can time rows.
  const std::uint64_t inner = XXH3_64bits_withSeed(bytes.data(), bytes.size(), secret.low);
  return mix(inner ^ secret.high);
}

}  // namespace farpool::base
