// SPDX-License-Identifier: Apache-2.0
// The message of a key-value CALL, one for all protocols whose memory node or owner executes operations. Pure:
// no memory but the caller's, nothing allocated, and strict with what came from outside.
//
// OFFSET SIZE  request
//      0    1  op          KvOp
//      1    1  flags       of KvRequest
//      2    2  zero
//      4    4  table       its number in the shard map
//      8    8  epoch       of the map that the client goes by
//     16    8  hint 0      the protocol's: where the client believes that the key is
//     24    8  hint 1
//     32    8  request id  line and number (fabric/once.h); 0: it may be carried out again
//     40    8  version     with kIfVersion: what the entry must have; else 0
//     48    4  key bytes   up to kMaxKeyBytes
//     52    4  value bytes up to kMaxValueBytes
//     56    k  key, zeros to a multiple of 8
//           v  value, zeros to a multiple of 8
//
// OFFSET SIZE  reply
//      0    2  status      KvStatus
//      2    2  flags       the protocol's
//      4    4  value bytes; with status no_room: of the value that did not fit
//      8    8  version     of the entry now; 0: there is none
//     16    8  hint        the protocol's: what the client is to believe from now on
//     24    v  value, zeros to a multiple of 8
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "layout/regions.h"

namespace farpool::layout {

enum class KvOp : std::uint8_t {
  get = 1,
  put = 2,     // whether the key is there or not
  insert = 3,  // if the key is not there
  update = 4,  // if the key is there
  remove = 5,
};

enum class KvStatus : std::uint16_t {
  done = 0,
  absent = 1,     // there is no such key
  present = 2,    // an insert found the key
  version = 3,    // the entry has another version than kIfVersion asks for
  stale = 4,      // the client's map, or its hints, are old: it reads them again, and then asks again
  full = 5,       // the table has no room: nothing was done
  running = 6,    // the same request is being carried out: ask again with its id
  forgotten = 7,  // a later request of the line was carried out: this one's outcome is not known any more

  // The request cannot be; nothing was done.
  malformed = 16,  // lengths, zeros and flags do not agree
  bad_op = 17,
  bad_table = 18,
  long_key = 19,
  long_value = 20,
  no_room = 21,    // of what the client gave, for the value
  forbidden = 22,  // to this client
  bad_request_id = 23,
};
inline constexpr bool is_refusal(KvStatus status) { return status >= KvStatus::malformed; }
// For people: "the key is longer than 65536 bytes".
const char* text_of(KvStatus status);

struct KvRequestHead {
  std::uint8_t op = 0;
  std::uint8_t flags = 0;
  std::uint16_t zero = 0;
  std::uint32_t table = 0;
  std::uint64_t epoch = 0;
  std::array<std::uint64_t, 2> hints{};
  std::uint64_t request_id = 0;
  std::uint64_t version = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};
inline constexpr std::size_t kKvRequestHead = 56;
static_assert(sizeof(KvRequestHead) == kKvRequestHead && base::wire_safe<KvRequestHead>);

struct KvReplyHead {
  std::uint16_t status = 0;
  std::uint16_t flags = 0;
  std::uint32_t value_bytes = 0;
  std::uint64_t version = 0;
  std::uint64_t hint = 0;
};
inline constexpr std::size_t kKvReplyHead = 24;
static_assert(sizeof(KvReplyHead) == kKvReplyHead && base::wire_safe<KvReplyHead>);

struct KvRequest {
  static constexpr std::uint8_t kIfVersion = 1;  // change the entry only if it has `version`
  static constexpr std::uint8_t kFlags = kIfVersion;

  KvOp op = KvOp::get;
  std::uint8_t flags = 0;
  std::uint32_t table = 0;
  std::uint64_t epoch = 0;
  std::array<std::uint64_t, 2> hints{};
  std::uint64_t request_id = 0;
  std::uint64_t version = 0;
  base::Bytes key;
  base::Bytes value;
};

struct KvReply {
  KvStatus status = KvStatus::done;
  std::uint16_t flags = 0;
  std::uint64_t version = 0;
  std::uint64_t hint = 0;
  base::Bytes value;
  std::uint32_t value_bytes = 0;  // parsed: of the value, or with no_room of the one that did not fit
};

constexpr std::size_t kv_request_bytes(std::size_t key_bytes, std::size_t value_bytes) {
  return kKvRequestHead + base::round_up(key_bytes, 8) + base::round_up(value_bytes, 8);
}
constexpr std::size_t kv_reply_bytes(std::size_t value_bytes) { return kKvReplyHead + base::round_up(value_bytes, 8); }
inline constexpr std::size_t kMaxKvRequest = kv_request_bytes(kMaxKeyBytes, kMaxValueBytes);

// Writes a request into `into` and sets `bytes` to its length. long_key and long_value: beyond what any message
// carries; no_room: `into`, which is as long as the wire's longest CALL, is too short for it. malformed: a get or
// remove with a value, a version without its flag.
KvStatus put_kv_request(const KvRequest& request, base::MutableBytes into, std::size_t& bytes);
// `done`, and key and value lie in `bytes`; or why it is refused.
KvStatus get_kv_request(base::Bytes bytes, KvRequest& request);

// Writes a reply and returns its length. One whose value has no room becomes no_room with the value's length. `into`
// has room for a head.
std::size_t put_kv_reply(const KvReply& reply, base::MutableBytes into);
// False: these bytes are no reply.
bool get_kv_reply(base::Bytes bytes, KvReply& reply);

}  // namespace farpool::layout
