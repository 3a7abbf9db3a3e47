// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/device_memory.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace farpool::fabric::verbs {
namespace {

// A device that notes what it is asked, in the place of a NIC's driver.
struct Noting {
  Noting() {
    std::strcpy(device.name, "mlx5_7");
    driver.sz = sizeof driver;
    driver.context.device = &device;
    driver.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    driver.query_device_ex = [](ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* limits,
                                std::size_t) {
      limits->max_dm_size = now->most;
      return 0;
    };
    driver.alloc_dm = [](ibv_context*, ibv_alloc_dm_attr* asked) {
      now->note("alloc " + std::to_string(asked->length) + " aligned " + std::to_string(asked->log_align_req) +
                " mask " + std::to_string(asked->comp_mask));
      now->words.assign(asked->length, std::byte{0xcc});
      errno = now->refuses_to_lend;
      return errno != 0 ? nullptr : &now->memory;
    };
    driver.reg_dm_mr = [](ibv_pd* domain, ibv_dm* memory, std::uint64_t offset, std::size_t length, unsigned access) {
      EXPECT_EQ(domain, &now->domain);
      EXPECT_EQ(memory, &now->memory);
      now->note("register " + std::to_string(offset) + "+" + std::to_string(length) + " access " +
                std::to_string(access));
      errno = now->refuses_to_register;
      return errno != 0 ? nullptr : &now->registration;
    };
    driver.free_dm = [](ibv_dm*) {
      now->note("free");
      return 0;
    };
    memory.context = domain.context = registration.context = &driver.context;
    memory.memcpy_to_dm = [](ibv_dm*, std::uint64_t offset, const void* from, std::size_t length) {
      now->note("fill " + std::to_string(offset) + "+" + std::to_string(length));
      std::memcpy(now->words.data() + offset, from, length);
      if (now->forgets) now->words[5] ^= std::byte{1};
      return 0;
    };
    memory.memcpy_from_dm = [](void* to, ibv_dm*, std::uint64_t offset, std::size_t length) {
      now->note("look " + std::to_string(offset) + "+" + std::to_string(length));
      std::memcpy(to, now->words.data() + offset, length);
      return 0;
    };
    registration.rkey = 0xabcd;
    now = this;
  }
  ~Noting() { now = nullptr; }
  void note(const std::string& line) { said += line + "\n"; }

  static inline Noting* now = nullptr;
  ibv_device device{};
  verbs_context driver{};
  ibv_pd domain{};
  ibv_dm memory{};
  ibv_mr registration{};
  std::uint64_t most = 4096;
  int refuses_to_lend = 0, refuses_to_register = 0;
  bool forgets = false;
  std::vector<std::byte> words;
  std::string said;
};

const std::vector<std::byte> kWords(512, std::byte{0x5a});

TEST(DeviceMemory, IsFilledBeforeAnyoneCanReachItAndFreedAfterItsRegistration) {
  Noting noting;
  {
    const auto memory = DeviceMemory::make(&noting.domain, kWords);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_EQ((*memory)->key(), 0xabcdu);
    EXPECT_EQ((*memory)->bytes(), 512u);
    EXPECT_EQ(noting.words, kWords);
  }
  // Local write 1, remote write 2, remote read 4, remote atomic 8, and from zero 32: no more, or mlx5 refuses.
  EXPECT_EQ(noting.said,
            "alloc 512 aligned 3 mask 0\n"
            "fill 0+512\n"
            "look 0+512\n"
            "register 0+512 access 47\n"
            "deregister\n"
            "free\n");
}

TEST(DeviceMemory, SaysWhyThereIsNone) {
  struct Case {
    const char* says;
    std::uint64_t most = 4096;
    int refuses_to_lend = 0, refuses_to_register = 0;
    bool forgets = false;
    const char* last;  // that was asked
  };
  const Case cases[] = {
      {.says = "mlx5_7 has no memory of its own", .most = 0, .last = ""},
      {.says = "it has 504", .most = 504, .last = ""},
      {.says = "all processes share 4096 bytes", .refuses_to_lend = ENOMEM, .last = "alloc 512 aligned 3 mask 0\n"},
      {.says = "Invalid argument", .refuses_to_register = EINVAL, .last = "free\n"},
      {.says = "do not hold what was written", .forgets = true, .last = "free\n"},
  };
  for (const Case& each : cases) {
    Noting noting;
    noting.most = each.most;
    noting.refuses_to_lend = each.refuses_to_lend;
    noting.refuses_to_register = each.refuses_to_register;
    noting.forgets = each.forgets;
    const auto memory = DeviceMemory::make(&noting.domain, kWords);
    ASSERT_FALSE(memory.ok()) << each.says;
    EXPECT_EQ(memory.code(), base::Code::unavailable);
    EXPECT_NE(memory.status().message().find(each.says), std::string::npos) << memory.status().message();
    EXPECT_TRUE(noting.said.ends_with(each.last)) << noting.said;
    EXPECT_EQ(noting.said.empty(), std::string(each.last).empty()) << noting.said;
  }
}

}  // namespace
}  // namespace farpool::fabric::verbs

// The one function of these that is not of the device's table, which is the library's own. Nothing in this test program
// registers memory with a real device.
extern "C" int ibv_dereg_mr(ibv_mr* registration) {
  using farpool::fabric::verbs::Noting;
  EXPECT_EQ(registration, &Noting::now->registration);
  Noting::now->note("deregister");
  return 0;
}
