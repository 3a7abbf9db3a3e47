// SPDX-License-Identifier: Apache-2.0
// The first page of a memory node's memory: what it is, and how the rest is cut.
//
// OFFSET SIZE  superblock, 4096 bytes
//      0    8  magic        "farpool" and a zero
//      8    8  version      of everything in the memory; no other version is read
//     16    8  incarnation  of the memory node that formatted it; never 0
//     24    8  pool         hash of the pool's uid: memory of one pool is never taken for another's
//     32  208  geometry     layout/geometry.h, as it stands there
//    240 3848  zero
//   4088    8  checksum     CRC-64 of all that stands before
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "layout/geometry.h"

namespace farpool::layout {

inline constexpr std::uint64_t kMagic = 0x006c'6f6f'7072'6166;  // "farpool\0"
inline constexpr std::uint64_t kVersion = 7;

// Says of a memory's format that this program does not read it, and what to do.
std::string unreadable_format(std::uint64_t version);

struct Superblock {
  std::uint64_t incarnation = 0;
  std::uint64_t pool = 0;
  Geometry geometry;
  friend bool operator==(const Superblock&, const Superblock&) = default;
};

// What `Superblock::pool` holds for a pool's uid. Not a secret.
std::uint64_t pool_tag(std::string_view pool_uid);

std::array<std::byte, kPage> write_superblock(const Superblock& superblock);

// corrupt: what is wrong with the page, and what that means.
base::Result<Superblock> parse_superblock(base::Bytes page);

}  // namespace farpool::layout
