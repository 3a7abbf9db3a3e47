// SPDX-License-Identifier: Apache-2.0
// Facts that were found on machines, and what the doctor says of them.
#include "apps/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace farpool::apps {
namespace {

using fabric::verbs::DeviceFacts;
using fabric::verbs::RdmaFacts;
using testing::HasSubstr;

constexpr std::uint64_t kMi = 1ull << 20;

// SoftRoCE in a pod with IPC_LOCK.
RdmaFacts healthy() {
  RdmaFacts facts;
  facts.devices.push_back({.name = "rxe0",
                           .interface = "eth0",
                           .link_layer = "Ethernet",
                           .state = "PORT_ACTIVE",
                           .active = true,
                           .mtu = 4096,
                           .interface_mtu = 9000,
                           .addresses = {"fe80::1", "10.0.0.3"},
                           .atomics = DeviceFacts::Atomics::device,
                           .memory_windows = true,
                           .registered = 64 * kMi});
  facts.addresses = {{"lo", "127.0.0.1"}, {"eth0", "10.0.0.3"}, {"eth0", "fe80::1"}};
  facts.namespaces = RdmaFacts::Namespaces::shared;
  facts.memlock = 8 * kMi;
  facts.ipc_lock_effective = facts.ipc_lock_permitted = facts.ipc_lock_bounding = true;
  facts.huge_pages = {{.page = 2 * kMi, .pages = 0, .free = 0}, {.page = 1024 * kMi, .pages = 4, .free = 3}};
  return facts;
}

const Finding* find(const Diagnosis& diagnosis, const std::string& check, Level level) {
  for (const Finding& finding : diagnosis.findings) {
    if (finding.check == check && finding.level == level) return &finding;
  }
  return nullptr;
}

std::string text_of(const Diagnosis& diagnosis) {
  std::string text;
  for (const Finding& finding : diagnosis.findings) {
    text += std::string(name_of(finding.level)) + " " + finding.subject + " " + finding.check + ": " + finding.found +
            " -> " + finding.fix + "\n";
  }
  return text;
}

TEST(Diagnosis, WhatIsWellIsReady) {
  const Diagnosis diagnosis = diagnose(healthy(), {});
  EXPECT_TRUE(diagnosis.ready()) << text_of(diagnosis);
  for (const Finding& finding : diagnosis.findings) {
    EXPECT_LE(finding.level, Level::note) << finding.check << ": " << finding.found;
    EXPECT_EQ(finding.fix, "") << finding.check;
  }
  for (const char* check : {"devices", "link", "address", "mtu", "atomics", "registration", "ipc-lock"}) {
    EXPECT_NE(find(diagnosis, check, Level::good), nullptr) << check;
  }
  EXPECT_THAT(text_of(diagnosis), HasSubstr("3 of 4 pages of 1 GiB free"));
}

struct Ailment {
  const char* name;
  std::function<void(RdmaFacts&, Wanted&)> fall_ill;
  const char* check;
  Level level;
  const char* found;
  const char* fix;
};
class Ailments : public testing::TestWithParam<Ailment> {};

TEST_P(Ailments, AreFoundAndAFixIsNamed) {
  RdmaFacts facts = healthy();
  Wanted wanted;
  GetParam().fall_ill(facts, wanted);
  const Diagnosis diagnosis = diagnose(facts, wanted);
  const Finding* finding = find(diagnosis, GetParam().check, GetParam().level);
  ASSERT_NE(finding, nullptr) << text_of(diagnosis);
  EXPECT_THAT(finding->found, HasSubstr(GetParam().found));
  EXPECT_THAT(finding->fix, HasSubstr(GetParam().fix));
  EXPECT_EQ(diagnosis.ready(), GetParam().level != Level::problem) << text_of(diagnosis);
}

INSTANTIATE_TEST_SUITE_P(
    Diagnosis, Ailments,
    testing::Values(
        Ailment{"NoDevice", [](auto& f, auto&) { f.devices.clear(); }, "devices", Level::problem,
                "there is no RDMA device", "rdma link add rxe0 type rxe"},
        Ailment{"NoFileOfTheDevice",
                [](auto& f, auto&) {
                  f.devices.clear();
                  f.unseen = {"mlx5_0"};
                },
                "devices", Level::problem, "no file of it in /dev/infiniband", "ask for the device plugin's resource"},
        Ailment{"DeviceNotOpened",
                [](auto& f, auto&) { f.devices[0] = {.name = "mlx5_0", .unopened = "Operation not permitted"}; },
                "devices", Level::problem, "cannot be opened: Operation not permitted", "/dev/infiniband/uverbs"},
        Ailment{"AnotherDevice", [](auto&, auto& w) { w.device = "mlx5_0"; }, "devices", Level::problem, "only rxe0",
                "resource"},
        Ailment{"LinkDown",
                [](auto& f, auto&) {
                  f.devices[0].active = false;
                  f.devices[0].state = "PORT_DOWN";
                },
                "link", Level::problem, "PORT_DOWN", "ip link set eth0 up"},
        Ailment{"InfiniBand", [](auto& f, auto&) { f.devices[0].link_layer = "InfiniBand"; }, "link", Level::problem,
                "RoCEv2 alone", "type Ethernet"},
        Ailment{"NoAddress", [](auto& f, auto&) { f.devices[0].addresses.clear(); }, "address", Level::problem,
                "no address of type RoCEv2", "give eth0 an IP address"},
        Ailment{"AnotherAddress", [](auto&, auto& w) { w.address = "10.9.9.9"; }, "address", Level::problem,
                "no RoCEv2 address 10.9.9.9, only fe80::1, 10.0.0.3", "give eth0 that address"},
        Ailment{"NoInterface", [](auto&, auto& w) { w.interface = "rdma0"; }, "address", Level::problem,
                "no interface rdma0", "Multus"},
        Ailment{"InterfaceOfAnotherNic",
                [](auto& f, auto& w) {
                  w.interface = "rdma0";
                  f.addresses.push_back({"rdma0", "192.168.1.7"});
                },
                "address", Level::problem, "is of rdma0 (192.168.1.7)", "another NIC"},
        Ailment{"AddressesOfTheNode",
                [](auto& f, auto&) {
                  f.addresses = {{"eth0", "10.244.0.5"}};
                },
                "address", Level::warning, "outside of this network namespace",
                "attach the pod to a network on the NIC"},
        Ailment{"LinkLocalAlone", [](auto& f, auto&) { f.devices[0].addresses = {"fe80::1"}; }, "address",
                Level::warning, "link-local", "give eth0 an IP address"},
        Ailment{"SmallMtu",
                [](auto& f, auto&) {
                  f.devices[0].mtu = 1024;
                  f.devices[0].interface_mtu = 1500;
                },
                "mtu", Level::warning, "1024 bytes, as the MTU of eth0 is 1500", "MTU of 4200"},
        Ailment{"NoAtomics", [](auto& f, auto&) { f.devices[0].atomics = DeviceFacts::Atomics::none; }, "atomics",
                Level::problem, "no atomics", "compare-and-swap"},
        Ailment{"MemlockTooLow",
                [](auto& f, auto&) {
                  f.devices[0].unregistered = "Cannot allocate memory";
                  f.ipc_lock_effective = f.ipc_lock_permitted = f.ipc_lock_bounding = false;
                },
                "registration", Level::problem, "the limit on locked memory is 8 MiB, and IPC_LOCK is not effective",
                "capability IPC_LOCK"},
        Ailment{"UserNamespace",
                [](auto& f, auto&) {
                  f.devices[0].unregistered = "Cannot allocate memory";
                  f.user_namespace = true;
                },
                "registration", Level::problem, "memory cannot be registered", "hostUsers: true"},
        Ailment{"IpcLockOfAnotherUser",
                [](auto& f, auto&) {
                  f.uid = 65532;
                  f.ipc_lock_effective = f.ipc_lock_permitted = false;
                },
                "ipc-lock", Level::warning, "not effective, as this process is uid 65532", "uid 0"},
        Ailment{"NoIpcLock",
                [](auto& f, auto&) { f.ipc_lock_effective = f.ipc_lock_permitted = f.ipc_lock_bounding = false; },
                "ipc-lock", Level::warning, "not granted; the limit on locked memory is 8 MiB", "LimitMEMLOCK"},
        Ailment{"ExclusiveForTheSharedPlugin",
                [](auto& f, auto& w) {
                  f.namespaces = RdmaFacts::Namespaces::exclusive;
                  w.attachment = "SharedDevicePlugin";
                },
                "netns", Level::problem, "netns exclusive", "rdma system set netns shared"},
        Ailment{"SharedForSRIOV", [](auto&, auto& w) { w.attachment = "SRIOV"; }, "netns", Level::warning,
                "netns shared", "netns_mode=0"},
        Ailment{"NoHugePages",
                [](auto& f, auto& w) {
                  w.huge_page = 2 * kMi;
                  f.huge_pages_refused = "the kernel gave no huge page";
                },
                "huge-pages", Level::problem, "gave no huge page", "reserve pages of 2 MiB"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Diagnosis, ADeviceThatIsNotNeededStandsInNobodysWay) {
  RdmaFacts facts = healthy();
  DeviceFacts down = facts.devices[0];
  down.name = "mlx5_1";
  down.active = false;
  down.state = "PORT_DOWN";
  facts.devices.insert(facts.devices.begin(), down);
  facts.unseen = {"mlx5_2"};
  const Diagnosis best = diagnose(facts, {});
  EXPECT_TRUE(best.ready()) << text_of(best);
  EXPECT_EQ(best.findings.front().subject, "rxe0");
  EXPECT_THAT(text_of(best), HasSubstr("note mlx5_1 link: its port is PORT_DOWN"));
  const Diagnosis named = diagnose(facts, {.device = "mlx5_1"});
  EXPECT_FALSE(named.ready()) << text_of(named);
}

}  // namespace
}  // namespace farpool::apps
