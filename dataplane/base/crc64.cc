// SPDX-License-Identifier: Apache-2.0
#include "base/crc64.h"

#include <isa-l/crc64.h>

namespace farpool::base {

std::uint64_t crc64(Bytes bytes, std::uint64_t seed) {
  return crc64_ecma_refl(seed, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace farpool::base
