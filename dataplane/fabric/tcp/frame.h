// SPDX-License-Identifier: Apache-2.0
// The bytes of a lane of the tcp wire, behind the greeting (fabric/session_port/greeting.h). Everything is
// little-endian, and its length a multiple of 8. Pure: no sockets, and no memory but the caller's.
//
// OFFSET SIZE  chain: client to memory node, once the lane is open
//      0    4  length    of the frame, header included
//      4    2  verbs     1 or more
//      6    2  zero
//      8    8  id        1, 2, 3 ... on each lane; the reply repeats it
// and for each verb
//      0    1  verb      fabric::Verb
//      1    1  fence     0 or 1
//      2    2  zero
//      4    4  region    CALL: opcode
//      8    8  offset    CALL: room for the reply
//     16    8  key       of the region; CALL: zero
// followed by
//   READ        length
//   WRITE, CALL length, that many bytes, zeros to a multiple of 8
//   CAS         compare, swap
//   masked CAS  compare, compare mask, swap, swap mask
//   FAA         addend
//
// OFFSET SIZE  reply: memory node to client, in the order of the chains; to a CALL for data, at any time
//      0    4  length    of the frame, header included
//      4    2  outcome   0 done, 1 refused
//      6    2  zero; of a CALL that is refused: why, as fabric::Refusal
//      8    8  id
// and, when done, for each verb: READ the bytes; atomics the word before; CALL length, bytes, zeros to a multiple of 8;
// WRITE nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "fabric/fabric.h"

namespace farpool::fabric::tcp {

inline constexpr std::size_t kHeaderBytes = 16;          // of chains and replies
inline constexpr std::size_t kMaxFrameBytes = 8u << 20;  // chains and replies

// Returns the length that the first kHeaderBytes of a chain or reply claim, or 0 if no frame begins so.
std::size_t frame_length(base::Bytes header);

// Returns the length of a chain's frame, or 0 if no frame can carry the chain: it has no verbs, too many, or too many
// bytes in either direction.
std::size_t chain_length(std::span<const Op> ops);
using Keys = std::span<const LaneGrant::Region>;
void put_chain(base::MutableBytes into, std::uint64_t id, std::span<const Op> ops, Keys keys);  // exactly chain_length

// One verb of a received chain; its bytes stay where they arrived.
struct VerbView {
  Verb verb = Verb::read;
  bool fence = false;
  std::uint32_t region = 0;  // CALL: opcode
  std::uint64_t offset = 0;  // CALL: room for the reply
  std::uint64_t key = 0;
  std::uint64_t length = 0;  // READ, WRITE, CALL
  base::Bytes data;          // WRITE, CALL
  std::uint64_t compare = 0, compare_mask = 0, swap = 0, swap_mask = 0;
};

struct ChainView {
  std::uint64_t id = 0;
  bool too_long =
      false;  // more verbs than kMaxChain: well-formed and to be refused; the first kMaxChain stand in `verbs`
  std::size_t count = 0;
  std::array<VerbView, kMaxChain> verbs;
};
// Returns false if the frame (of exactly frame_length) is no chain.
bool get_chain(base::Bytes frame, ChainView& into);

struct ReplyHeader {
  std::uint32_t length = 0;
  bool refused = false;
  Refusal why = Refusal::none;
  std::uint64_t id = 0;
};
void put_reply_header(base::MutableBytes into, ReplyHeader header);  // kHeaderBytes
std::optional<ReplyHeader> get_reply_header(base::Bytes frame);

// The most CALLs for data that a lane may have in flight. They bound what a turn of both sides carries with one system
// call, so there are more than a worker's clients usually ask for at once.
inline constexpr std::uint32_t kCallsInFlight = 1024;

// Returns the length of the reply to a chain without CALL that is done, header included.
std::size_t reply_length(const ChainView& chain);
std::size_t call_reply_length(std::size_t bytes);
// A reply to a CALL: put_call_reply writes all of it except its bytes, which the caller puts behind the first
// kCallReplyHeaderBytes.
inline constexpr std::size_t kCallReplyHeaderBytes = kHeaderBytes + 8;
void put_call_reply(base::MutableBytes into, std::uint64_t id, std::size_t bytes);  // exactly call_reply_length

// Takes a whole `done` reply apart into the buffers of the chain that it answers. Returns false, and stores nothing, if
// it does not fit the chain.
bool take_reply(base::Bytes frame, std::span<const Op> ops, std::uint32_t& call_reply_bytes);

}  // namespace farpool::fabric::tcp
