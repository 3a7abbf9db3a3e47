// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/masked_cas.h"

#include <bit>
#include <cstdio>
#include <cstring>

#include "base/check.h"

namespace farpool::fabric::verbs {
namespace {

// Extended atomics have the logarithm of their length, less two, in the modifier.
constexpr std::uint8_t kEightBytes = 8 | (3 - 2);
constexpr std::uint8_t kReports = MLX5_WQE_CTRL_CQ_UPDATE, kFenced = MLX5_WQE_CTRL_FENCE;

template <class T>
void put(MaskedCasEntry& entry, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    entry[at + i] = static_cast<std::byte>(value >> (8 * (sizeof value - 1 - i)));
  }
}

void post_one(ibv_qp_ex& pair, const ibv_send_wr& request) {
  switch (request.opcode) {
    case IBV_WR_RDMA_READ:
      pair.wr_rdma_read(&pair, request.wr.rdma.rkey, request.wr.rdma.remote_addr);
      break;
    case IBV_WR_RDMA_WRITE:
      pair.wr_rdma_write(&pair, request.wr.rdma.rkey, request.wr.rdma.remote_addr);
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      pair.wr_atomic_cmp_swp(&pair, request.wr.atomic.rkey, request.wr.atomic.remote_addr,
                             request.wr.atomic.compare_add, request.wr.atomic.swap);
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      pair.wr_atomic_fetch_add(&pair, request.wr.atomic.rkey, request.wr.atomic.remote_addr,
                               request.wr.atomic.compare_add);
      break;
    case IBV_WR_SEND:
      pair.wr_send(&pair);
      break;
    default:
      FARPOOL_CHECK(false);
  }
  const auto parts = static_cast<std::size_t>(request.num_sge);
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    std::array<ibv_data_buf, 2> inlined{};
    FARPOOL_CHECK(parts <= inlined.size());
    for (std::size_t i = 0; i < parts; ++i) {
      inlined[i] = {.addr = reinterpret_cast<void*>(request.sg_list[i].addr), .length = request.sg_list[i].length};
    }
    pair.wr_set_inline_data_list(&pair, parts, inlined.data());
  } else {
    pair.wr_set_sge_list(&pair, parts, request.sg_list);
  }
}

}  // namespace

MaskedCasEntry masked_cas_entry(std::uint32_t queue_pair, const ibv_send_wr& request, Masks masks) {
  MaskedCasEntry entry{};
  const bool reports = (request.send_flags & IBV_SEND_SIGNALED) != 0;
  const bool fenced = (request.send_flags & IBV_SEND_FENCE) != 0;
  put(entry, 0, static_cast<std::uint32_t>(kEightBytes << 24 | MLX5_OPCODE_ATOMIC_MASKED_CS));
  put(entry, 4, static_cast<std::uint32_t>(queue_pair << 8 | entry.size() / 16));
  put(entry, 11, static_cast<std::uint8_t>((reports ? kReports : 0) | (fenced ? kFenced : 0)));
  put(entry, 16, request.wr.atomic.remote_addr);
  put(entry, 24, request.wr.atomic.rkey);
  put(entry, 32, request.wr.atomic.swap);
  put(entry, 40, request.wr.atomic.compare_add);
  put(entry, 48, masks.swap);
  put(entry, 56, masks.compare);
  put(entry, 64, request.sg_list[0].length);
  put(entry, 68, request.sg_list[0].lkey);
  put(entry, 72, request.sg_list[0].addr);
  return entry;
}

int post_with_masks(ibv_qp_ex& pair, mlx5dv_qp_ex& raw, std::span<const ibv_send_wr> requests,
                    std::span<const std::optional<Masks>> masks) {
  FARPOOL_CHECK(masks.size() == requests.size());
  pair.wr_start(&pair);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    pair.wr_id = requests[i].wr_id;
    pair.wr_flags = requests[i].send_flags & ~static_cast<unsigned>(IBV_SEND_INLINE);
    if (masks[i]) {
      const MaskedCasEntry entry = masked_cas_entry(pair.qp_base.qp_num, requests[i], *masks[i]);
      raw.wr_raw_wqe(&raw, entry.data());
    } else {
      post_one(pair, requests[i]);
    }
  }
  return pair.wr_complete(&pair);
}

std::string MaskedCasTrial::judge() const {
  const auto hex = [](std::uint64_t word) {
    std::array<char, 19> text{};
    std::snprintf(text.data(), text.size(), "0x%016llx", static_cast<unsigned long long>(word));
    return std::string(text.data());
  };
  std::uint64_t word = kWord;
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    const Step& step = kSteps[i];
    const std::string which = "masked CAS " + std::to_string(i + 1) + " of its trial ";
    if (came[i] != word) {
      return which + "brought back " + hex(came[i]) + " where " + hex(word) + " stood" +
             (came[i] == __builtin_bswap64(word) ? ", in the other byte order" : "");
    }
    if ((word & step.compare_mask) == (step.compare & step.compare_mask)) {
      word = (word & ~step.swap_mask) | (step.swap & step.swap_mask);
    }
    if (after[i] != word) return which + "left " + hex(after[i]) + " where " + hex(word) + " should be";
  }
  return {};
}

}  // namespace farpool::fabric::verbs
