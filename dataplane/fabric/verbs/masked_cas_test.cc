// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/masked_cas.h"

#include <endian.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace farpool::fabric::verbs {
namespace {

struct Cas {
  Cas() {
    part = {.addr = 0x7f11223344556677, .length = 8, .lkey = 0xa1b2c3d4};
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    request.wr.atomic = {.remote_addr = 0x1020304050607080, .compare_add = 0x31, .swap = 0x42, .rkey = 0xdeadbeef};
  }
  ibv_sge part{};
  ibv_send_wr request{};
};
constexpr Masks kMasks{.compare = 0xff, .swap = 0xf0f0};

TEST(MaskedCas, HasTheseBytes) {
  Cas cas;
  cas.request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
  const std::string want(
      "\x09\0\0\x14\x12\x34\x56\x05\0\0\0\x88\0\0\0\0"
      "\x10\x20\x30\x40\x50\x60\x70\x80\xde\xad\xbe\xef\0\0\0\0"
      "\0\0\0\0\0\0\0\x42\0\0\0\0\0\0\0\x31"
      "\0\0\0\0\0\0\xf0\xf0\0\0\0\0\0\0\0\xff"
      "\0\0\0\x08\xa1\xb2\xc3\xd4\x7f\x11\x22\x33\x44\x55\x66\x77",
      80);
  EXPECT_EQ(base::text_of(masked_cas_entry(0x123456, cas.request, kMasks)), want);
  cas.request.send_flags = 0;
  EXPECT_EQ(masked_cas_entry(0x123456, cas.request, kMasks)[11], std::byte{0});
}

// The same, put together from the structures and helpers of rdma-core's header. It has none for the part with the
// masks, which Linux has as four big-endian words: swap, compare, mask of the swap, mask of the compare.
TEST(MaskedCas, IsWhatTheLibrarysOwnLayoutsMake) {
  struct Whole {
    mlx5_wqe_ctrl_seg control;
    mlx5_wqe_raddr_seg remote;
    std::uint64_t swap, compare, swap_mask, compare_mask;
    mlx5_wqe_data_seg local;
  };
  static_assert(sizeof(Whole) == sizeof(MaskedCasEntry));
  Cas cas;
  cas.request.send_flags = IBV_SEND_SIGNALED;
  Whole whole{};
  mlx5dv_set_ctrl_seg(&whole.control, 0, MLX5_OPCODE_ATOMIC_MASKED_CS, 9, 0xabcdef, MLX5_WQE_CTRL_CQ_UPDATE,
                      sizeof whole / 16, 0, 0);
  whole.remote.raddr = htobe64(cas.request.wr.atomic.remote_addr);
  whole.remote.rkey = htobe32(cas.request.wr.atomic.rkey);
  whole.swap = htobe64(cas.request.wr.atomic.swap);
  whole.compare = htobe64(cas.request.wr.atomic.compare_add);
  whole.swap_mask = htobe64(kMasks.swap);
  whole.compare_mask = htobe64(kMasks.compare);
  mlx5dv_set_data_seg(&whole.local, cas.part.length, cas.part.lkey, cas.part.addr);
  MaskedCasEntry want;
  std::memcpy(want.data(), &whole, sizeof whole);
  EXPECT_EQ(masked_cas_entry(0xabcdef, cas.request, kMasks), want);
}

// A queue pair that notes what it is asked, and when its doorbell rings.
struct Noting {
  Noting() {
    pair.qp_base.qp_num = 0x77;
    pair.wr_start = [](ibv_qp_ex* qp) { of(qp).note("start"); };
    pair.wr_complete = [](ibv_qp_ex* qp) {
      of(qp).note("ring");
      return of(qp).answer;
    };
    pair.wr_rdma_read = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t at) { of(qp).verb("read", key, at); };
    pair.wr_rdma_write = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t at) { of(qp).verb("write", key, at); };
    pair.wr_atomic_cmp_swp = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t at, std::uint64_t compare,
                                std::uint64_t swap) {
      of(qp).verb("cas " + std::to_string(compare) + ">" + std::to_string(swap), key, at);
    };
    pair.wr_atomic_fetch_add = [](ibv_qp_ex* qp, std::uint32_t key, std::uint64_t at, std::uint64_t add) {
      of(qp).verb("add " + std::to_string(add), key, at);
    };
    pair.wr_send = [](ibv_qp_ex* qp) { of(qp).verb("send", 0, 0); };
    pair.wr_set_sge_list = [](ibv_qp_ex* qp, std::size_t count, const ibv_sge* parts) {
      for (std::size_t i = 0; i < count; ++i) of(qp).note("  " + std::to_string(parts[i].length) + " bytes");
    };
    pair.wr_set_inline_data_list = [](ibv_qp_ex* qp, std::size_t count, const ibv_data_buf* parts) {
      for (std::size_t i = 0; i < count; ++i) of(qp).note("  " + std::to_string(parts[i].length) + " bytes inline");
    };
    raw.wr_raw_wqe = [](mlx5dv_qp_ex* qp, const void* entry) {
      Noting& noting = *reinterpret_cast<Noting*>(reinterpret_cast<char*>(qp) - offsetof(Noting, raw));
      noting.entries.emplace_back();
      std::memcpy(noting.entries.back().data(), entry, sizeof(MaskedCasEntry));
      noting.note("raw");
    };
  }
  static Noting& of(ibv_qp_ex* qp) { return *reinterpret_cast<Noting*>(qp); }
  void note(const std::string& line) { said += line + "\n"; }
  void verb(const std::string& name, std::uint32_t key, std::uint64_t at) {
    note(name + " " + std::to_string(key) + ":" + std::to_string(at) + " id " + std::to_string(pair.wr_id) + " flags " +
         std::to_string(pair.wr_flags));
  }
  ibv_qp_ex pair{};  // first: `of` takes one for the other
  mlx5dv_qp_ex raw{};
  std::string said;
  std::vector<MaskedCasEntry> entries;
  int answer = 0;
};

TEST(MaskedCas, LeavesAmongOtherVerbsWithOneDoorbell) {
  std::array<ibv_sge, 2> parts{ibv_sge{.addr = 8, .length = 16, .lkey = 1},
                               ibv_sge{.addr = 9, .length = 24, .lkey = 1}};
  std::array<ibv_send_wr, 6> requests{};
  std::array<std::optional<Masks>, 6> masks{};
  for (ibv_send_wr& each : requests) {
    each.wr_id = 5;
    each.sg_list = parts.data();
    each.num_sge = 1;
  }
  requests[0].opcode = IBV_WR_RDMA_WRITE;
  requests[0].wr.rdma = {.remote_addr = 100, .rkey = 3};
  requests[0].send_flags = IBV_SEND_INLINE | IBV_SEND_FENCE;
  Cas cas;
  requests[1] = cas.request;
  masks[1] = kMasks;
  requests[2].opcode = IBV_WR_RDMA_READ;
  requests[2].wr.rdma = {.remote_addr = 200, .rkey = 3};
  requests[3].opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  requests[3].wr.atomic = {.remote_addr = 300, .compare_add = 1, .swap = 2, .rkey = 3};
  requests[4].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  requests[4].wr.atomic = {.remote_addr = 400, .compare_add = 7, .swap = 0, .rkey = 3};
  requests[5].opcode = IBV_WR_SEND;
  requests[5].num_sge = 2;
  requests[5].send_flags = IBV_SEND_SIGNALED;
  Noting noting;
  EXPECT_EQ(post_with_masks(noting.pair, noting.raw, requests, masks), 0);
  EXPECT_EQ(noting.said,
            "start\n"
            "write 3:100 id 5 flags 1\n  16 bytes inline\n"
            "raw\n"
            "read 3:200 id 5 flags 0\n  16 bytes\n"
            "cas 1>2 3:300 id 5 flags 0\n  16 bytes\n"
            "add 7 3:400 id 5 flags 0\n  16 bytes\n"
            "send 0:0 id 5 flags 2\n  16 bytes\n  24 bytes\n"
            "ring\n");
  ASSERT_EQ(noting.entries.size(), 1u);
  EXPECT_EQ(noting.entries[0], masked_cas_entry(0x77, cas.request, kMasks));
}

TEST(MaskedCas, SaysWhatTheDeviceSaysOfTheDoorbell) {
  Noting noting;
  noting.answer = ENOMEM;
  Cas cas;
  const std::array<std::optional<Masks>, 1> masks{kMasks};
  EXPECT_EQ(post_with_masks(noting.pair, noting.raw, std::span(&cas.request, 1), masks), ENOMEM);
}

// A device that does what the steps say.
MaskedCasTrial as_it_should_be() {
  MaskedCasTrial trial;
  trial.came = {0x0123'4567'89ab'cdef, 0x0123'4567'895a'5aef, 0x0123'4567'895a'5aef};
  trial.after = {0x0123'4567'895a'5aef, 0x0123'4567'895a'5aef, 0xabcd'4567'895a'5aef};
  return trial;
}

TEST(MaskedCasTrial, KnowsADeviceThatDoesWhatItSays) { EXPECT_EQ(as_it_should_be().judge(), ""); }

TEST(MaskedCasTrial, KnowsDevicesThatDoNot) {
  // Any word that is otherwise.
  for (std::size_t i = 0; i < MaskedCasTrial::kSteps.size(); ++i) {
    for (const int bit : {0, 20, 63}) {
      MaskedCasTrial came = as_it_should_be(), after = as_it_should_be();
      came.came[i] ^= 1ull << bit;
      after.after[i] ^= 1ull << bit;
      EXPECT_NE(came.judge().find("CAS " + std::to_string(i + 1) + " of its trial brought back"), std::string::npos);
      EXPECT_NE(after.judge().find("CAS " + std::to_string(i + 1) + " of its trial left"), std::string::npos);
    }
  }
  MaskedCasTrial swapped = as_it_should_be();
  for (std::uint64_t& word : swapped.came) word = __builtin_bswap64(word);
  EXPECT_NE(swapped.judge().find("in the other byte order"), std::string::npos) << swapped.judge();
  // One without masks: the first does not match, and nothing changes.
  MaskedCasTrial plain;
  plain.came = plain.after = {MaskedCasTrial::kWord, MaskedCasTrial::kWord, MaskedCasTrial::kWord};
  EXPECT_NE(plain.judge(), "");
  // Masks that change places.
  MaskedCasTrial crossed;
  std::uint64_t word = MaskedCasTrial::kWord;
  for (std::size_t i = 0; i < MaskedCasTrial::kSteps.size(); ++i) {
    const MaskedCasTrial::Step& step = MaskedCasTrial::kSteps[i];
    crossed.came[i] = word;
    if ((word & step.swap_mask) == (step.compare & step.swap_mask)) {
      word = (word & ~step.compare_mask) | (step.swap & step.compare_mask);
    }
    crossed.after[i] = word;
  }
  EXPECT_NE(crossed.judge(), "");
}

}  // namespace
}  // namespace farpool::fabric::verbs
