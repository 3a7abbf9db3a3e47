// SPDX-License-Identifier: Apache-2.0
// CALL on SEND and RECV. A lane has one CALL out at a time. A memory node has a receive for each lane that it admits,
// posted before the CALL can come, so that it is always ready to receive. All lanes of a memory node share those
// receives, which are small. If a request does not fit, the memory node fetches it by a READ from where its client
// says, when it has room: large requests wait at the client.
//
// OFFSET SIZE  request                                       reply
//      0    4  opcode                                        0 done, 1 refused
//      4    4  room for the reply                            bytes that follow
//      8    8  number: 1, 2, 3 ... on each lane              the same
//     16    4  bytes of the request; up to 208 of them follow
//     20    4  where there are more: key of the client's
//     24    8  and address under that key
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace farpool::fabric::verbs {

struct CallHead {
  std::uint32_t opcode = 0;
  std::uint32_t room = 0;
  std::uint64_t number = 0;
  std::uint32_t bytes = 0;
  std::uint32_t key = 0;
  std::uint64_t address = 0;
};
struct AnswerHead {
  std::uint32_t refused = 0;
  std::uint32_t bytes = 0;
  std::uint64_t number = 0;
};
inline constexpr std::size_t kCallHeadBytes = 32;
inline constexpr std::size_t kAnswerHeadBytes = 16;
static_assert(sizeof(CallHead) == kCallHeadBytes && base::wire_safe<CallHead>);
static_assert(sizeof(AnswerHead) == kAnswerHeadBytes && base::wire_safe<AnswerHead>);

// A receive holds less than the smallest packet can carry: a message of several packets does not fit from its first
// packet on, so none can occupy a receive while it waits for the rest.
inline constexpr std::size_t kReceiveBytes = 240;
inline constexpr std::size_t kSmallestMtu = 256;
static_assert(kReceiveBytes < kSmallestMtu);
// The longest request that travels with its head, and the longest reply that needs no room of its own.
inline constexpr std::size_t kNearBytes = kReceiveBytes - kCallHeadBytes;
inline constexpr std::size_t kNearReplyBytes = kReceiveBytes - kAnswerHeadBytes;

}  // namespace farpool::fabric::verbs
