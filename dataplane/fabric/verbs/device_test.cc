// SPDX-License-Identifier: Apache-2.0
// What needs no device: which of its addresses is used.
#include "fabric/verbs/device.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace farpool::fabric::verbs {
namespace {

ibv_gid_entry entry(std::uint32_t index, std::uint32_t type, const std::string& address) {
  ibv_gid_entry entry{.gid = {}, .gid_index = index, .port_num = 1, .gid_type = type, .ndev_ifindex = 2};
  if (address.find(':') == std::string::npos) {
    entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
    EXPECT_EQ(::inet_pton(AF_INET, address.c_str(), entry.gid.raw + 12), 1);
  } else {
    EXPECT_EQ(::inet_pton(AF_INET6, address.c_str(), entry.gid.raw), 1);
  }
  return entry;
}

std::vector<ibv_gid_entry> table() {
  return {entry(0, IBV_GID_TYPE_ROCE_V1, "10.0.0.3"), entry(1, IBV_GID_TYPE_ROCE_V2, "fe80::1"),
          entry(2, IBV_GID_TYPE_ROCE_V2, "2001:db8::7"), entry(3, IBV_GID_TYPE_ROCE_V2, "10.0.0.3"),
          entry(5, IBV_GID_TYPE_ROCE_V2, "10.0.0.4")};
}

TEST(PickGid, ByTypeAndAddress) {
  const auto index = [](const std::string& address) { return pick_gid(table(), address, "mlx5_0")->gid_index; };
  EXPECT_EQ(index("10.0.0.3"), 3u) << "not the RoCEv1 entry of the same address";
  EXPECT_EQ(index("10.0.0.4"), 5u);
  EXPECT_EQ(index("2001:db8::7"), 2u);
  EXPECT_EQ(index("fe80::1"), 1u);
}

TEST(PickGid, WithoutAddressIpv4ComesFirstAndLinkLocalLast) {
  auto entries = table();
  EXPECT_EQ(pick_gid(entries, "", "mlx5_0")->gid_index, 3u);
  entries.resize(3);
  EXPECT_EQ(pick_gid(entries, "", "mlx5_0")->gid_index, 2u);
  entries.resize(2);
  EXPECT_EQ(pick_gid(entries, "", "mlx5_0")->gid_index, 1u);
}

TEST(PickGid, SaysWhatThereIsInstead) {
  const auto other = pick_gid(table(), "10.0.0.9", "mlx5_0");
  EXPECT_EQ(other.code(), base::Code::unavailable);
  EXPECT_NE(other.status().message().find("10.0.0.9"), std::string::npos);
  EXPECT_NE(other.status().message().find("10.0.0.4"), std::string::npos);
  EXPECT_EQ(pick_gid(table(), "eth0", "mlx5_0").code(), base::Code::invalid_argument);
  const std::vector<ibv_gid_entry> v1{entry(0, IBV_GID_TYPE_ROCE_V1, "10.0.0.3")};
  EXPECT_EQ(pick_gid(v1, "", "mlx5_0").code(), base::Code::unavailable);
  EXPECT_EQ(pick_gid(v1, "10.0.0.3", "mlx5_0").code(), base::Code::unavailable);
}

}  // namespace
}  // namespace farpool::fabric::verbs
