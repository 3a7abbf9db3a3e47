// SPDX-License-Identifier: Apache-2.0
// The messages of CALLs for data: one SEND in each direction, over a queue pair of their own beside the lane's. Pure,
// and strict with bytes from outside. Little-endian.
//
// OFFSET SIZE  request                                    answer
//      0    8  cookie of the lane                         the same
//      8    8  request id (fabric/once.h)                 the same
//     16    4  opcode, from kFirstServiceOpcode           0 done, 1 refused
//     20    4  room for the reply                         why, as fabric::Refusal; 0 if done
//     24    4  bytes that follow                          the same; 0 if refused
//     28    4  zero                                       zero
//
// A lane has as many lines as CALLs that it may have in flight. Each line carries one CALL after another, numbered 1,
// 2, 3 ...: a number is used when the CALL before it has been answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "fabric/fabric.h"

namespace farpool::fabric::verbs {

inline constexpr std::size_t kDataHeadBytes = 32;
inline constexpr std::size_t kMaxDataBytes = 4096;  // that follow a head: a request, or its reply
inline constexpr std::size_t kMaxDataMessage = kDataHeadBytes + kMaxDataBytes;
inline constexpr std::uint32_t kMostDataCalls = 16;  // in flight on one lane
// Comes before a datagram in its receive buffer.
inline constexpr std::size_t kGlobalHeaderBytes = 40;

struct DataRequest {
  std::uint64_t cookie = 0;
  std::uint64_t id = 0;
  std::uint32_t opcode = 0;
  std::uint32_t room = 0;
  base::Bytes body;
};
struct DataAnswer {
  std::uint64_t cookie = 0;
  std::uint64_t id = 0;
  bool refused = false;
  Refusal why = Refusal::none;
  base::Bytes body;
};

// Writes the head alone, for a body of as many bytes behind it.
void put_head(base::MutableBytes into, const DataRequest& request);
void put_head(base::MutableBytes into, const DataAnswer& answer);
// Return nothing if the message is impossible. The body stays in place.
std::optional<DataRequest> get_data_request(base::Bytes message);
std::optional<DataAnswer> get_data_answer(base::Bytes message);

}  // namespace farpool::fabric::verbs
