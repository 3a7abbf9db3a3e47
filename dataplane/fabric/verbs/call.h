// SPDX-License-Identifier: Apache-2.0
// CALL on SEND and RECV. A lane has one CALL out at a time and the other side one receive for it, posted before it can
// come: nobody is ever not ready to receive, and no client can take the receives of another.
//
// OFFSET SIZE  request                            reply
//      0    4  opcode                             0 done, 1 refused
//      4    4  room for the reply                 bytes that follow
//      8    8  number: 1, 2, 3 ... on each lane   the same
// followed by the bytes.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace farpool::fabric::verbs {

struct CallHead {
  std::uint32_t opcode = 0;
  std::uint32_t room = 0;
  std::uint64_t number = 0;
};
struct AnswerHead {
  std::uint32_t refused = 0;
  std::uint32_t bytes = 0;
  std::uint64_t number = 0;
};
inline constexpr std::size_t kCallHeadBytes = 16;
static_assert(sizeof(CallHead) == kCallHeadBytes && base::wire_safe<CallHead>);
static_assert(sizeof(AnswerHead) == kCallHeadBytes && base::wire_safe<AnswerHead>);

}  // namespace farpool::fabric::verbs
