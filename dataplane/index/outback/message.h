// SPDX-License-Identifier: Apache-2.0
// What requests and replies of the key-value CALL (layout/kv_call.h) mean to Outback.
//
// The place is a bucket, the generation that of the locator, and the argument of get a slot. `stale` says that the
// client's locator is old. Replies bring the bucket's seed as the hint:
//
//    31       24 23                8 7        0
//   +-----------+-------------------+----------+
//   | zero    8 | version        16 | seed   8 |
//   +-----------+-------------------+----------+
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "index/outback/seed.h"
#include "layout/kv_call.h"

namespace farpool::outback {

using Op = layout::KvOp;
using Request = layout::KvRequest;
using Reply = layout::KvReply;
using Status = layout::KvStatus;
using layout::kKvReplyHead;
using layout::kMaxKvRequest;

inline constexpr std::uint16_t kCached = 512;  // flag of a reply: the bucket has keys in its overflow list

constexpr std::uint32_t hint_of(Seed seed) { return seed.value | std::uint32_t{seed.version} << 8; }
constexpr Seed seed_of(std::uint32_t hint) {
  return {static_cast<std::uint8_t>(hint), static_cast<std::uint16_t>(hint >> 8)};
}

// Returns false if these bytes are no reply of an Outback table.
bool get_reply(base::Bytes bytes, Reply& reply);

// The room for a reply. The memory node executes at once, in a reply, what fits it: a block of up to 4,080 bytes, on
// any wire. What is longer is read one-sidedly.
inline constexpr std::size_t kReplyRoom = 4096;
inline constexpr std::uint64_t kMostInlineBlock = kReplyRoom - 16;

// The keys of a scan's reply lie in its value, one behind the other; the reply's number is the next position, 0 after
// the last bucket. A key that had no room is named by its block, which the client READs.
//      0    4  bytes; kNamed is added if it is named, kExpires if its value expires
//      4    k  key, or 8: the address of the block that has it
//    4+k    8  with kExpires: when it does (index/stored.h)
struct ScanKey {
  static constexpr std::uint32_t kNamed = 1u << 31;
  static constexpr std::uint32_t kExpires = 1u << 30;
  base::Bytes key;  // empty if it is named
  std::uint32_t key_bytes = 0;
  std::uint64_t address = 0;  // 0: the key is here
  std::uint64_t expires = 0;  // 0: it does not
};
// Takes the next key off the front. Returns false at the end, and sets `bad` if the bytes are no keys of a scan.
bool next_scan_key(base::Bytes& rest, ScanKey& key, bool& bad);

}  // namespace farpool::outback
