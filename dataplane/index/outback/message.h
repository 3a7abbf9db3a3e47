// SPDX-License-Identifier: Apache-2.0
// Requests and replies of Outback's CALL. Pure: no memory but the caller's, nothing allocated, and strict with what came
// from outside. Limits of keys and values are layout/regions.h's.
//
// OFFSET SIZE  request
//      0    1  op          Op
//      1    1  flags       of Request
//      2    2  client      that attach has given; its lines are for changes
//      4    4  bucket      where the client's locator has the key; a scan's position
//      8    8  generation  of the locator
//     16    8  request id  line and number (fabric/once.h); 0 for what changes nothing
//     24    8  version     with kIfVersion: what the entry must have; else 0
//     32    8  argument    of the operation; else 0
//     40    4  key bytes
//     44    4  value bytes
//     48    k  key, zeros to a multiple of 8
//           v  value, zeros to a multiple of 8
//
// OFFSET SIZE  reply
//      0    2  status      Status
//      2    2  flags       of Reply
//      4    4  seed        of the bucket: value 8, version 16, zero 8
//      8    8  version     of the entry now; 0: there is none
//     16    8  number      that the operation came to
//     24    8  generation  of the locator that the memory node goes by
//     32    4  key bytes
//     36    4  value bytes
//     40    k  key, zeros to a multiple of 8
//           v  value, zeros to a multiple of 8
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "fabric/once.h"
#include "index/outback/seed.h"
#include "layout/regions.h"

namespace farpool::outback {

enum class Op : std::uint8_t {
  get = 1,         // the block in a slot, whichever key it has; argument: the slot
  find = 2,        // the make-up get: the key's value, wherever it is in the bucket
  insert = 3,      // if the key is not there (SETNX)
  update = 4,      // if the key is there
  put = 5,         // whether the key is there or not
  remove = 6,      //
  add = 7,         // INCRBY: the argument, as a signed integer; replies with the sum
  append = 8,      // replies with the length
  overlay = 9,     // SETRANGE: the value from the argument on; replies with the length
  swap = 10,       // GETSET: replies with the value before
  take = 11,       // GETDEL: likewise
  add_float = 12,  // INCRBYFLOAT: the value is a number in text; replies with the sum in text
  scan = 13,       // the keys of buckets from `bucket` on; argument: of how many
  count = 14,      // replies with the number of keys, and their bytes as the version
  attach = 15,     // makes the session the owner of a client's lines; argument: the client's token
  detach = 16,     // forgets the client: no request of its will be asked again
};
inline constexpr std::uint8_t kLastOp = 16;
constexpr bool changes(Op op) { return op >= Op::insert && op <= Op::add_float; }
constexpr bool has_key(Op op) { return op >= Op::find && op <= Op::add_float; }
constexpr bool has_value(Op op) {
  return (op >= Op::insert && op <= Op::put) || (op >= Op::append && op <= Op::swap) || op == Op::add_float;
}
constexpr bool has_argument(Op op) {
  return op == Op::get || op == Op::add || op == Op::overlay || op == Op::scan || op == Op::attach;
}

enum class Status : std::uint16_t {
  done = 0,
  absent = 1,       // there is no such key; nothing was done
  present = 2,      // an insert found the key
  version = 3,      // the entry has another version than kIfVersion asks for
  stale = 4,        // the client's locator is old: it reads the new one, and asks again
  full = 5,         // the memory has no room: nothing was done
  running = 6,      // the same request is being carried out: ask again with its id
  forgotten = 7,    // a later request of the line was carried out: this one's outcome is not known any more
  not_integer = 8,  // the value does not allow the operation: nothing was done
  beyond_integer = 9,
  not_float = 10,
  not_finite = 11,
  beyond_value = 12,  // the new value would be longer than any may be

  // The request cannot be; nothing was done.
  malformed = 16,  // lengths, zeros and flags do not agree
  bad_op = 17,
  bad_bucket = 18,  // there is no such bucket or slot, or the key does not belong there
  long_key = 19,
  long_value = 20,
  no_room = 21,       // of what the client gave, for the reply
  not_attached = 22,  // the session does not own the client's lines
  bad_request_id = 23,
  no_client = 24,  // all lines belong to clients whose sessions live
  damaged = 25,    // the table's bytes cannot be what they should be
};
inline constexpr bool is_refusal(Status status) { return status >= Status::malformed; }
// For people: "the key is longer than 65536 bytes".
const char* text_of(Status status);

struct RequestHead {
  std::uint8_t op = 0;
  std::uint8_t flags = 0;
  std::uint16_t client = 0;
  std::uint32_t bucket = 0;
  std::uint64_t generation = 0;
  std::uint64_t request_id = 0;
  std::uint64_t version = 0;
  std::uint64_t argument = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};
inline constexpr std::size_t kRequestHead = 48;
static_assert(sizeof(RequestHead) == kRequestHead && base::wire_safe<RequestHead>);

struct ReplyHead {
  std::uint16_t status = 0;
  std::uint16_t flags = 0;
  std::uint32_t seed = 0;
  std::uint64_t version = 0;
  std::uint64_t number = 0;
  std::uint64_t generation = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};
inline constexpr std::size_t kReplyHead = 40;
static_assert(sizeof(ReplyHead) == kReplyHead && base::wire_safe<ReplyHead>);

struct Request {
  static constexpr std::uint8_t kIfVersion = 1;  // change the entry only if it has `version`
  static constexpr std::uint8_t kFlags = kIfVersion;

  Op op = Op::get;
  std::uint8_t flags = 0;
  std::uint16_t client = 0;
  std::uint32_t bucket = 0;
  std::uint64_t generation = 0;
  std::uint64_t request_id = 0;
  std::uint64_t version = 0;
  std::uint64_t argument = 0;
  base::Bytes key;
  base::Bytes value;
};

struct Reply {
  static constexpr std::uint16_t kCached = 1;     // the bucket has keys in its overflow list
  static constexpr std::uint16_t kEmpty = 2;      // the slot is empty
  static constexpr std::uint16_t kExisted = 4;    // the key was there before the change
  static constexpr std::uint16_t kElsewhere = 8;  // key and value had no room: `number` is the address of their block,
                                                  // which the client READs; their lengths are here
  static constexpr std::uint16_t kAgain = 16;     // the outcome of an earlier request with this id
  static constexpr std::uint16_t kGrows = 32;     // the table will soon have another locator
  static constexpr std::uint16_t kWaits = 64;     // with `full`: room is waiting for an era
  static constexpr std::uint16_t kFresh = 128;    // of attach: the node remembers no request of this client
  static constexpr std::uint16_t kFlags = 255;

  Status status = Status::done;
  std::uint16_t flags = 0;
  Seed seed;
  std::uint64_t version = 0;
  std::uint64_t number = 0;
  std::uint64_t generation = 0;
  base::Bytes key;
  base::Bytes value;
  std::uint32_t key_bytes = 0;  // with kElsewhere, and in a parsed reply
  std::uint32_t value_bytes = 0;
};

constexpr std::size_t request_bytes(std::size_t key_bytes, std::size_t value_bytes) {
  return kRequestHead + base::round_up(key_bytes, 8) + base::round_up(value_bytes, 8);
}
constexpr std::size_t reply_bytes(std::size_t key_bytes, std::size_t value_bytes) {
  return kReplyHead + base::round_up(key_bytes, 8) + base::round_up(value_bytes, 8);
}
inline constexpr std::size_t kMostRequest = request_bytes(layout::kMaxKeyBytes, layout::kMaxValueBytes);

// Writes a request into `into` and sets `bytes` to its length. no_room: `into` is too short for it. Otherwise the reason
// why the request cannot be.
Status put_request(const Request& request, base::MutableBytes into, std::size_t& bytes);
// Returns `done`, and key and value lie in `bytes`; or why the request is refused.
Status get_request(base::Bytes bytes, Request& request);

// Writes a reply and returns its length. One whose key and value have no room becomes no_room with their lengths. `into`
// has room for a head.
std::size_t put_reply(const Reply& reply, base::MutableBytes into);
// Returns false if these bytes are no reply.
bool get_reply(base::Bytes bytes, Reply& reply);

// The keys of a scan's reply lie in its value, one behind the other; the reply's number is the next position, 0 after
// the last bucket. A key that had no room is named by its block, which the client READs.
//      0    4  bytes; kNamed is added if it is named
//      4    k  key, or 8: the address of the block that has it
struct ScanKey {
  static constexpr std::uint32_t kNamed = 1u << 31;
  base::Bytes key;  // empty if it is named
  std::uint32_t key_bytes = 0;
  std::uint64_t address = 0;  // 0: the key is here
};
// Takes the next key off the front. Returns false at the end, and sets `bad` if the bytes are no keys of a scan.
bool next_scan_key(base::Bytes& rest, ScanKey& key, bool& bad);

}  // namespace farpool::outback
