// SPDX-License-Identifier: Apache-2.0
// The last page of a memory node's memory: what its next life needs and no client may see. It lies in no region.
//
// The page holds a record twice, and each is written over the older one, so that a process that is killed at any word
// leaves the record from before or the new one. A record of a formatted memory is the mark that formatting came to its
// end: it is written last.
//
// OFFSET SIZE  record, at 0 and at 2048 of the page
//      0    8  counter      raised by every writing; 0 while one is under way, and before the first
//      8    8  magic        as the superblock's
//     16    8  version      likewise; these three have the same places in every version, and the checksum follows the last field
//     24    8  incarnation  of the memory node that serves from this memory, or did last
//     32    8  pool         as the superblock's
//     40    8  epoch        of the newest shard map that it has followed
//     48    8  lives        incarnations that have served from this memory, this one among them; bit 63: no shard map
//                           that this memory followed has named one of them
//     56   16  table seed
//     72   16  pool secret
//     88    g  geometry     as the superblock's
//   88+g    8  checksum     CRC-64 of all before it
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/hash.h"
#include "layout/geometry.h"

namespace farpool::layout {

struct PrivateRecord {
  std::uint64_t incarnation = 0;
  std::uint64_t pool = 0;
  std::uint64_t epoch = 0;
  std::uint64_t lives = 0;  // below 2^63
  bool unnamed = false;     // no map has named a life of this memory: it is empty, whatever epoch it has followed
  base::HashSecret table_seed;
  base::HashSecret pool_secret;
  Geometry geometry;
  friend bool operator==(const PrivateRecord&, const PrivateRecord&) = default;
};

struct PrivatePage {
  bool written = false;                 // false: nobody has formatted this memory to the end
  std::optional<PrivateRecord> record;  // the newest that is whole
  std::uint64_t counter = 0;            // of that record
  bool damaged = false;                 // a record is not whole, and no kill explains that
  // The format of the newest record, if a program with another format wrote it; 0: none did. No record is read then.
  std::uint64_t other_format = 0;
};
PrivatePage read_private_page(base::Bytes page);

// Writes the record over the older one. `page` is the memory itself: its words change one after the other.
void write_private_page(base::MutableBytes page, const PrivateRecord& record);

}  // namespace farpool::layout
