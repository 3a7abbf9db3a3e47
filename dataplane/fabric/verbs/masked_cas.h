// SPDX-License-Identifier: Apache-2.0
// Masked CAS by the device itself, which mlx5 NICs have and no common verb offers: a work queue entry of ours, posted
// as a raw one through mlx5dv among requests that libibverbs builds. Not yet run on hardware: tests compare the bytes
// with the layouts of rdma-core and Linux, and the posting with functions that note their calls.
//
// OFFSET SIZE  big-endian
//      0    4  control: opcode modifier 9 (an extended atomic of 8 bytes), index (the library's), opcode 0x14
//      4    4           queue pair number, length of the entry in units of 16 bytes
//      8    3           zero; signature is the library's
//     11    1           flags: 0x08 reports, 0x80 fenced
//     12    4           zero
//     16    8  remote:  address
//     24    4           key
//     28    4           zero
//     32    8  atomic:  swap
//     40    8           compare
//     48    8           bits that are swapped
//     56    8           bits that are compared
//     64    4  local:   length, 8
//     68    4           key
//     72    8           address
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace farpool::fabric::verbs {

struct Masks {
  std::uint64_t compare = 0;
  std::uint64_t swap = 0;
};

using MaskedCasEntry = std::array<std::byte, 80>;
// Returns the entry for a request that is an ordinary CAS except for its masks.
MaskedCasEntry masked_cas_entry(std::uint32_t queue_pair, const ibv_send_wr& request, Masks masks);

// Rings once for all of the requests; the requests with masks are masked CASes. Returns 0, or the error; then none of
// them is sent.
int post_with_masks(ibv_qp_ex& pair, mlx5dv_qp_ex& raw, std::span<const ibv_send_wr> requests,
                    std::span<const std::optional<Masks>> masks);

// The trial that a device must pass before lanes rely on its masked CAS: three of them on a word made for it, with a
// READ behind each. One matches, one does not, and one compares nothing; their masks differ, and bits outside of the
// masks would betray a device that ignores them.
struct MaskedCasTrial {
  static constexpr std::uint64_t kWord = 0x0123'4567'89ab'cdef;  // what it is at first
  struct Step {
    std::uint64_t compare = 0, compare_mask = 0, swap = 0, swap_mask = 0;
  };
  static constexpr std::array<Step, 3> kSteps{{
      {.compare = 0xffff'ffff'ffff'cdef, .compare_mask = 0xffff, .swap = 0x5a5a'5a5a'5a5a'5a5a, .swap_mask = 0xff'ff00},
      {.compare = 0xffff'ffff'ffff'cdef, .compare_mask = 0xffff, .swap = ~0ull, .swap_mask = ~0ull},
      {.compare = ~0ull, .compare_mask = 0, .swap = 0xabcd'0000'0000'1234, .swap_mask = 0xffff'0000'0000'0000},
  }};
  std::array<std::uint64_t, kSteps.size()> came{};   // the word before, as each brought it back
  std::array<std::uint64_t, kSteps.size()> after{};  // as it was read
  // Returns what is wrong; nothing, if all is right.
  std::string judge() const;
};
// The operations that a queue pair has to be made for, besides raw entries.
inline constexpr std::uint64_t kSendOperations = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE |
                                                 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                                 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND;

}  // namespace farpool::fabric::verbs
