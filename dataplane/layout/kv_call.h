// SPDX-License-Identifier: Apache-2.0
// The message of a key-value CALL, one for all protocols whose memory node or owner executes operations. Pure:
// no memory but the caller's, nothing allocated, and strict with what came from outside. The protocol says what a place,
// a generation, an argument of get and a hint are, and refuses what it has no operation for.
//
// OFFSET SIZE  request
//      0    1  op          KvOp
//      1    1  flags       of KvRequest
//      2    2  client      that attach has given; its lines are for changes
//      4    4  table       of the memory node, by number
//      8    8  place       where the client believes that the key is; a scan's position
//     16    8  generation  of what the client goes by, when it says so
//     24    8  request id  line and number (fabric/once.h); 0 for what changes nothing
//     32    8  version     with kIfVersion: what the entry must have; with kNow: the pool's time; else 0
//     40    8  argument    of the operation; else 0
//     48    8  move        the pool's last move of keys that the client knows of (docs/adr/0012)
//     56    4  key bytes   up to kMaxKeyBytes
//     60    4  value bytes up to kMaxValueBytes
//     64    k  key, zeros to a multiple of 8
//           v  value, zeros to a multiple of 8
//
// OFFSET SIZE  reply
//      0    2  status      KvStatus
//      2    2  flags       of KvReply
//      4    4  hint        what the client is to believe from now on
//      8    8  version     of the entry now; 0: there is none
//     16    8  number      that the operation came to
//     24    8  generation  that the memory node goes by
//     32    4  key bytes
//     36    4  value bytes
//     40    k  key, zeros to a multiple of 8
//           v  value, zeros to a multiple of 8
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "layout/regions.h"

namespace farpool::layout {

enum class KvOp : std::uint8_t {
  get = 1,         // what is at a place, whichever key it has; the argument is the protocol's
  find = 2,        // the key's value, wherever the key is
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
  scan = 13,       // the keys of places from `place` on; argument: of how many
  count = 14,      // replies with the number of keys, and their bytes as the version
  attach = 15,     // makes the session the owner of a client's lines; argument: the client's token
  detach = 16,     // forgets the client: no request of its will be asked again

  // Steps of a move of keys to other memory nodes, for the holder of the lease for moves. Each may be asked again.
  close = 17,   // from now on, one part of the table believes no client that knows only earlier moves. The place is the
                // part's number; replies with the next one's, 0 after the last
  leave = 18,   // from now on the key is read and not changed; replies with its value
  left = 19,    // removes a key that is leaving
  stay = 20,    // a key that is leaving may be changed again
  finish = 21,  // records that the move is finished
};
inline constexpr std::uint8_t kLastKvOp = 21;
constexpr bool changes(KvOp op) { return op >= KvOp::insert && op <= KvOp::add_float; }
constexpr bool moves(KvOp op) { return op >= KvOp::close; }
constexpr bool has_key(KvOp op) {
  return (op >= KvOp::find && op <= KvOp::add_float) || (op >= KvOp::leave && op <= KvOp::stay);
}
constexpr bool has_value(KvOp op) {
  return (op >= KvOp::insert && op <= KvOp::put) || (op >= KvOp::append && op <= KvOp::swap) || op == KvOp::add_float;
}
constexpr bool has_argument(KvOp op) {
  return op == KvOp::get || op == KvOp::add || op == KvOp::overlay || op == KvOp::scan || op == KvOp::attach;
}

enum class KvStatus : std::uint16_t {
  done = 0,
  absent = 1,       // there is no such key; nothing was done
  present = 2,      // an insert found the key
  version = 3,      // the entry has another version than kIfVersion asks for
  stale = 4,        // what the client goes by is old: it reads that again, and then asks again
  full = 5,         // the memory has no room: nothing was done
  running = 6,      // the same request is being carried out: ask again with its id
  forgotten = 7,    // a later request of the line was carried out: this one's outcome is not known any more
  not_integer = 8,  // the value does not allow the operation: nothing was done
  beyond_integer = 9,
  not_float = 10,
  not_finite = 11,
  beyond_value = 12,  // the new value would be longer than any may be
  old_map = 13,       // keys have moved since the last move that the client knows of; nothing was done
  moved = 14,         // the key is not here, and will not be until the next move; nothing was done
  leaving = 15,       // the key is on its way to another memory node: nothing was done, ask again

  // The request cannot be; nothing was done.
  malformed = 16,  // lengths, zeros and flags do not agree
  bad_op = 17,
  bad_place = 18,  // the table has no such place, or the key does not belong there
  long_key = 19,
  long_value = 20,
  no_room = 21,       // of what the client gave, for the reply
  not_attached = 22,  // the session does not own the client's lines
  bad_request_id = 23,
  no_client = 24,  // all lines belong to clients whose sessions live
  damaged = 25,    // the table's bytes cannot be what they should be
  bad_table = 26,
  no_lease = 27,    // the session does not hold the lease for moves
  other_kind = 28,  // the value is of a kind that the operation does not know (index/stored.h)
  no_owner = 29,    // the table has no owner now that could carry it out
  busy = 30,        // as many requests as there may be wait for the table's owner
  late = 31,        // the time that the client gave it has passed
};
inline constexpr KvStatus kLastKvStatus = KvStatus::late;
inline constexpr bool is_refusal(KvStatus status) { return status >= KvStatus::malformed; }
// For people: "the key is longer than 65536 bytes".
const char* text_of(KvStatus status);

struct KvRequestHead {
  std::uint8_t op = 0;
  std::uint8_t flags = 0;
  std::uint16_t client = 0;
  std::uint32_t table = 0;
  std::uint64_t place = 0;
  std::uint64_t generation = 0;
  std::uint64_t request_id = 0;
  std::uint64_t version = 0;
  std::uint64_t argument = 0;
  std::uint64_t move = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};
inline constexpr std::size_t kKvRequestHead = 64;
static_assert(sizeof(KvRequestHead) == kKvRequestHead && base::wire_safe<KvRequestHead>);

struct KvReplyHead {
  std::uint16_t status = 0;
  std::uint16_t flags = 0;
  std::uint32_t hint = 0;
  std::uint64_t version = 0;
  std::uint64_t number = 0;
  std::uint64_t generation = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};
inline constexpr std::size_t kKvReplyHead = 40;
static_assert(sizeof(KvReplyHead) == kKvReplyHead && base::wire_safe<KvReplyHead>);

struct KvRequest {
  static constexpr std::uint8_t kIfVersion = 1;  // change the entry only if it has `version`
  static constexpr std::uint8_t kLeaves = 2;     // by that move the key goes to another memory node
  static constexpr std::uint8_t kByMover = 4;    // an insert of a key that comes, by the holder of the lease for moves
  static constexpr std::uint8_t kNow = 8;        // a value that expired before the time in `version` counts as absent
  static constexpr std::uint8_t kFlags = kIfVersion | kLeaves | kByMover | kNow;

  KvOp op = KvOp::get;
  std::uint8_t flags = 0;
  std::uint16_t client = 0;
  std::uint32_t table = 0;
  std::uint64_t place = 0;
  std::uint64_t generation = 0;
  std::uint64_t request_id = 0;
  std::uint64_t version = 0;
  std::uint64_t argument = 0;
  std::uint64_t move = 0;
  base::Bytes key;
  base::Bytes value;
};

struct KvReply {
  static constexpr std::uint16_t kExisted = 1;  // the key was there before the change
  static constexpr std::uint16_t kElsewhere =
      2;                                       // key and value had no room: `number` says where the client READs them;
                                               // their lengths are here
  static constexpr std::uint16_t kAgain = 4;   // the outcome of an earlier request with this id
  static constexpr std::uint16_t kGrows = 8;   // the table will soon have another generation
  static constexpr std::uint16_t kWaits = 16;  // with `full`: room is waiting for an era
  static constexpr std::uint16_t kFresh = 32;  // of attach: the node remembers no request of this client
  static constexpr std::uint16_t kEmpty = 64;  // nothing is at the place
  static constexpr std::uint16_t kClosed = 128;  // a key that leaves by the client's move, and is not here, has left
  static constexpr std::uint16_t kOldMap = 256;  // keys have moved since the client's move: it must believe no miss
  static constexpr std::uint16_t kOwn = 0xfe00;  // the protocol's
  static constexpr std::uint16_t kFlags = 511 | kOwn;

  KvStatus status = KvStatus::done;
  std::uint16_t flags = 0;
  std::uint32_t hint = 0;
  std::uint64_t version = 0;
  std::uint64_t number = 0;
  std::uint64_t generation = 0;
  base::Bytes key;
  base::Bytes value;
  std::uint32_t key_bytes = 0;  // with kElsewhere or no_room, and in a parsed reply
  std::uint32_t value_bytes = 0;
};

constexpr std::size_t kv_request_bytes(std::size_t key_bytes, std::size_t value_bytes) {
  return kKvRequestHead + base::round_up(key_bytes, 8) + base::round_up(value_bytes, 8);
}
constexpr std::size_t kv_reply_bytes(std::size_t key_bytes, std::size_t value_bytes) {
  return kKvReplyHead + base::round_up(key_bytes, 8) + base::round_up(value_bytes, 8);
}
inline constexpr std::size_t kMaxKvRequest = kv_request_bytes(kMaxKeyBytes, kMaxValueBytes);

// Writes a request into `into` and sets `bytes` to its length. no_room: `into`, which is as long as the wire's longest
// CALL, is too short for it. Otherwise the reason why the request cannot be.
KvStatus put_kv_request(const KvRequest& request, base::MutableBytes into, std::size_t& bytes);
// Returns `done`, and key and value lie in `bytes`; or why the request is refused.
KvStatus get_kv_request(base::Bytes bytes, KvRequest& request);

// Writes a reply and returns its length. One whose key and value have no room becomes no_room with their lengths. `into`
// has room for a head.
std::size_t put_kv_reply(const KvReply& reply, base::MutableBytes into);
// Returns false if these bytes are no reply.
bool get_kv_reply(base::Bytes bytes, KvReply& reply);

}  // namespace farpool::layout
