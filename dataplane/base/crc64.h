// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace farpool::base {

// CRC-64 (ECMA-182, reflected; ISA-L). `seed` chains a checksum over several spans.
std::uint64_t crc64(Bytes bytes, std::uint64_t seed = 0);

}  // namespace farpool::base
