// SPDX-License-Identifier: Apache-2.0
#include "apps/diagnosis.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <utility>

namespace farpool::apps {
namespace {

using fabric::verbs::DeviceFacts;
using fabric::verbs::HugePages;
using fabric::verbs::InterfaceAddress;
using fabric::verbs::RdmaFacts;
using Findings = std::vector<Finding>;

constexpr char kLockFix[] =
    "give the container the capability IPC_LOCK and run it as uid 0 with every other capability dropped, as the "
    "operator's RDMA pods are; or raise the limit (LimitMEMLOCK=infinity of the container runtime's unit, ulimit -l)";

std::string size_text(std::uint64_t bytes) {
  static constexpr std::array kUnits{"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + " " + kUnits[unit];
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

bool contains(const std::vector<std::string>& list, const std::string& what) {
  return std::ranges::find(list, what) != list.end();
}

std::string interface_of(const DeviceFacts& device) {
  return device.interface.empty() ? "its network interface" : device.interface;
}

std::string limit_of(const RdmaFacts& facts) {
  return facts.memlock ? "the limit on locked memory is " + size_text(*facts.memlock) : "locked memory has no limit";
}

void judge_link(const DeviceFacts& device, Findings& findings) {
  if (device.link_layer == "InfiniBand") {
    findings.push_back(
        {"link", device.name, Level::problem, "its port is InfiniBand; this version speaks RoCEv2 alone",
         "use a port of type Ethernet (VPI cards: mlxconfig LINK_TYPE_P1=2), or transport TCP over IPoIB"});
    return;
  }
  if (device.active) {
    findings.push_back({"link", device.name, Level::good, "its port is " + device.state, ""});
    return;
  }
  findings.push_back(
      {"link", device.name, Level::problem, "its port is " + (device.state.empty() ? "not to be asked" : device.state),
       "bring its network interface up: ip link set " + (device.interface.empty() ? "INTERFACE" : device.interface) +
           " up; if it is, look at cable and switch"});
}

// Returns the addresses of the process's own interface, if it is named.
std::vector<std::string> of_interface(const RdmaFacts& facts, const std::string& interface) {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& each : facts.addresses) {
    if (each.interface == interface) addresses.push_back(each.ip);
  }
  return addresses;
}

void judge_address(const DeviceFacts& device, const RdmaFacts& facts, const Wanted& wanted, Findings& findings) {
  const auto problem = [&](std::string found, std::string fix) {
    findings.push_back({"address", device.name, Level::problem, std::move(found), std::move(fix)});
  };
  if (!device.unread_addresses.empty()) return problem("its addresses cannot be read: " + device.unread_addresses, "");
  if (device.addresses.empty()) {
    return problem("it has no address of type RoCEv2", "give " + interface_of(device) + " an IP address");
  }
  const std::string there = joined(device.addresses);
  if (!wanted.address.empty() && !contains(device.addresses, wanted.address)) {
    return problem("it has no RoCEv2 address " + wanted.address + ", only " + there,
                   "give " + interface_of(device) + " that address, or --rdma-address one of these");
  }
  if (!wanted.interface.empty()) {
    const auto own = of_interface(facts, wanted.interface);
    if (own.empty()) {
      return problem("there is no interface " + wanted.interface + " with an address here",
                     "attach the pod to its network (annotation k8s.v1.cni.cncf.io/networks, with @" +
                         wanted.interface + "), and look at what Multus says in the pod's events");
    }
    if (std::ranges::none_of(own, [&](const std::string& ip) { return contains(device.addresses, ip); })) {
      return problem(
          "none of its RoCEv2 addresses (" + there + ") is of " + wanted.interface + " (" + joined(own) + ")",
          wanted.interface +
              " lies on another NIC than the device: let the network attachment's master and the device "
              "plugin's resource name the same one");
    }
  }
  const bool own = std::ranges::any_of(
      facts.addresses, [&](const InterfaceAddress& each) { return contains(device.addresses, each.ip); });
  if (!own) {
    findings.push_back({"address", device.name, Level::warning,
                        "its RoCEv2 addresses (" + there + ") are of interfaces outside of this network namespace",
                        "lanes go from the Kubernetes node's address, which SoftRoCE carries and NICs may not: attach "
                        "the pod to a network on the NIC (Multus with macvlan or SR-IOV)"});
    return;
  }
  const bool routable =
      std::ranges::any_of(device.addresses, [](const std::string& ip) { return !ip.starts_with("fe80:"); });
  if (!routable) {
    findings.push_back({"address", device.name, Level::warning, "its only RoCEv2 addresses are link-local: " + there,
                        "give " + interface_of(device) + " an IP address, so that other subnets can be reached"});
    return;
  }
  findings.push_back({"address", device.name, Level::good, "RoCEv2 addresses: " + there, ""});
}

void judge_mtu(const DeviceFacts& device, Findings& findings) {
  constexpr std::uint32_t kBest = 4096, kInterfaceForBest = 4200;
  if (device.mtu >= kBest || device.mtu == 0) {
    if (device.mtu > 0) {
      findings.push_back({"mtu", device.name, Level::good, "packets of " + std::to_string(device.mtu) + " bytes", ""});
    }
    return;
  }
  const std::string of_interface = device.interface_mtu == 0 ? ""
                                                             : ", as the MTU of " + interface_of(device) + " is " +
                                                                   std::to_string(device.interface_mtu);
  findings.push_back({"mtu", device.name, Level::warning,
                      "packets of " + std::to_string(device.mtu) + " bytes" + of_interface,
                      "set an MTU of " + std::to_string(kInterfaceForBest) + " or more on " + interface_of(device) +
                          ", on its peers and on the switch, for packets of 4096 bytes"});
}

void judge_atomics(const DeviceFacts& device, Findings& findings) {
  switch (device.atomics) {
    case DeviceFacts::Atomics::none:
      findings.push_back({"atomics", device.name, Level::problem, "it has no atomics",
                          "use a NIC with 64-bit compare-and-swap and fetch-and-add; on some they are switched on in "
                          "the firmware's settings"});
      return;
    case DeviceFacts::Atomics::device:
      findings.push_back({"atomics", device.name, Level::good, "atomics, not atomic against the processor's", ""});
      return;
    case DeviceFacts::Atomics::global:
      findings.push_back({"atomics", device.name, Level::good, "atomics, atomic against the processor's as well", ""});
  }
}

void judge_extras(const DeviceFacts& device, const RdmaFacts& facts, Findings& findings) {
  findings.push_back({"masked-cas", device.name, Level::note,
                      device.masked_cas
                          ? "an mlx5 device, which has a masked CAS of its own (--rdma-masked-cas; not yet "
                            "run on hardware)"
                          : "no masked CAS: locks are taken by CAS of a guessed word",
                      ""});
  findings.push_back({"device-memory", device.name, Level::note,
                      device.device_memory > 0
                          ? size_text(device.device_memory) + " of device memory, where locks may lie "
                                                              "(--lock-placement; not yet run on hardware)"
                          : "no device memory: locks lie in host memory",
                      ""});
  findings.push_back({"connections", device.name, Level::note,
                      device.unmanaged.empty()
                          ? "librdmacm connects lanes"
                          : "lanes are connected by what the session port tells: " + device.unmanaged,
                      ""});
  findings.push_back({"memory-windows", device.name, Level::note,
                      device.memory_windows ? "memory windows of type 2B: each lane has keys that are good on no other"
                                            : "no memory windows of type 2B: keys of regions are good on every lane; "
                                              "fences end queue pairs, and need none",
                      ""});
  if (facts.numa_nodes > 1) {
    findings.push_back({"numa", device.name, Level::note,
                        device.numa_node ? "it is at NUMA node " + std::to_string(*device.numa_node) + " of " +
                                               std::to_string(facts.numa_nodes)
                                         : "its NUMA node is not known",
                        ""});
  }
}

void judge_registration(const DeviceFacts& device, const RdmaFacts& facts, Findings& findings) {
  if (device.unregistered.empty()) {
    findings.push_back({"registration", device.name, Level::good, "registered " + size_text(device.registered), ""});
    return;
  }
  std::string fix = kLockFix;
  if (facts.ipc_lock_effective) {
    fix = facts.user_namespace
              ? "IPC_LOCK has no effect in a user namespace: set hostUsers: true for the pod"
              : "see the kernel's log; the cgroup's memory limit, or the device's own limits, may be reached";
  }
  findings.push_back({"registration", device.name, Level::problem,
                      "memory cannot be registered: " + device.unregistered + "; " + limit_of(facts) +
                          (facts.ipc_lock_effective ? "" : ", and IPC_LOCK is not effective"),
                      fix});
}

Findings judge_device(const DeviceFacts& device, const RdmaFacts& facts, const Wanted& wanted) {
  Findings findings;
  if (!device.unopened.empty()) {
    findings.push_back({"devices", device.name, Level::problem, "it cannot be opened: " + device.unopened,
                        "let this process open /dev/infiniband/uverbs*: the pod asks for the device plugin's resource "
                        "(a hostPath alone is not enough for an unprivileged pod)"});
    return findings;
  }
  findings.push_back({"devices", device.name, Level::good, "it can be opened", ""});
  judge_link(device, findings);
  judge_address(device, facts, wanted, findings);
  judge_mtu(device, findings);
  judge_atomics(device, findings);
  judge_registration(device, facts, findings);
  judge_extras(device, facts, findings);
  return findings;
}

void judge_process(const RdmaFacts& facts, Findings& findings) {
  const auto say = [&](Level level, std::string found, std::string fix) {
    findings.push_back({"ipc-lock", "process", level, std::move(found), std::move(fix)});
  };
  const std::string limit = limit_of(facts);
  if (facts.ipc_lock_effective && !facts.user_namespace) return say(Level::good, "IPC_LOCK is effective; " + limit, "");
  if (!facts.memlock) return say(Level::good, limit, "");
  std::string found = "IPC_LOCK is not granted; " + limit;
  if (facts.user_namespace && facts.ipc_lock_effective) {
    found = "IPC_LOCK is held in a user namespace alone, where it has no effect; " + limit;
  } else if (facts.ipc_lock_permitted || (facts.ipc_lock_bounding && facts.uid != 0)) {
    found =
        "IPC_LOCK is granted, and not effective, as this process is uid " + std::to_string(facts.uid) + "; " + limit;
  }
  say(Level::warning, found + ": no more than that can be registered", kLockFix);
}

void judge_namespaces(const RdmaFacts& facts, const Wanted& wanted, Findings& findings) {
  using Namespaces = RdmaFacts::Namespaces;
  if (facts.namespaces == Namespaces::unknown) return;
  const bool shared = facts.namespaces == Namespaces::shared;
  const std::string found = shared ? "RDMA devices are shared between network namespaces (rdma system: netns shared)"
                                   : "each RDMA device is of one network namespace (rdma system: netns exclusive)";
  if (shared && wanted.attachment == "SRIOV") {
    findings.push_back(
        {"netns", "kernel", Level::warning, found,
         "rdma-cni moves a virtual function's device into its pod in exclusive mode alone: boot the node "
         "with options ib_core netns_mode=0"});
  } else if (!shared && wanted.attachment == "SharedDevicePlugin") {
    findings.push_back({"netns", "kernel", Level::problem, found,
                        "k8s-rdma-shared-dev-plugin refuses that: rdma system set netns shared, while no other network "
                        "namespace is there (at boot: options ib_core netns_mode=1)"});
  } else {
    findings.push_back({"netns", "kernel", Level::note, found, ""});
  }
}

void judge_huge_pages(const RdmaFacts& facts, const Wanted& wanted, Findings& findings) {
  if (wanted.huge_page > 0) {
    const std::string size = size_text(wanted.huge_page);
    if (facts.huge_pages_refused.empty()) {
      findings.push_back({"huge-pages", "kernel", Level::good, "a page of " + size + " was had", ""});
    } else {
      findings.push_back(
          {"huge-pages", "kernel", Level::problem, facts.huge_pages_refused,
           "reserve pages of " + size +
               " on the Kubernetes node before the kubelet starts "
               "(hugepagesz= and hugepages= of the kernel's command line), and set hugePages of the memory "
               "pool, so that its pods ask for them"});
    }
    return;
  }
  std::vector<std::string> there;
  for (const HugePages& pages : facts.huge_pages) {
    if (pages.pages > 0) {
      there.push_back(std::to_string(pages.free) + " of " + std::to_string(pages.pages) + " pages of " +
                      size_text(pages.page) + " free");
    }
  }
  findings.push_back({"huge-pages", "kernel", Level::note, there.empty() ? "none are reserved" : joined(there), ""});
}

std::ptrdiff_t problems_in(const Findings& findings) {
  return std::ranges::count(findings, Level::problem, &Finding::level);
}

}  // namespace

std::string_view name_of(Level level) {
  static constexpr std::array<std::string_view, 4> kNames{"ok", "note", "warning", "problem"};
  return kNames[static_cast<std::size_t>(level)];
}

bool Diagnosis::ready() const { return problems_in(findings) == 0; }

Diagnosis diagnose(const RdmaFacts& facts, const Wanted& wanted) {
  Diagnosis diagnosis;
  Findings& findings = diagnosis.findings;
  std::vector<Findings> of_devices;
  std::vector<std::string> others;
  for (const DeviceFacts& device : facts.devices) {
    if (!wanted.device.empty() && device.name != wanted.device) {
      others.push_back(device.name);
      continue;
    }
    of_devices.push_back(judge_device(device, facts, wanted));
  }
  const auto best = std::ranges::min_element(of_devices, {}, problems_in);
  if (best != of_devices.end()) std::rotate(of_devices.begin(), best, std::next(best));
  for (std::size_t i = 0; i < of_devices.size(); ++i) {
    for (Finding& finding : of_devices[i]) {
      if (i > 0) finding.level = std::min(finding.level, Level::note);
      findings.push_back(std::move(finding));
    }
  }
  for (const std::string& name : facts.unseen) {
    if (!wanted.device.empty() && name != wanted.device) continue;
    findings.push_back({"devices", name, of_devices.empty() ? Level::problem : Level::note,
                        "the kernel has it, and there is no file of it in /dev/infiniband that this process could open",
                        "in a pod: ask for the device plugin's resource (network.attachment of the pool), which brings "
                        "/dev/infiniband/uverbs*; on the machine: modprobe ib_uverbs"});
  }
  if (findings.empty()) {
    const bool named = !wanted.device.empty() && !others.empty();
    findings.push_back(
        {"devices", wanted.device.empty() ? "kernel" : wanted.device, Level::problem,
         named ? "there is no such RDMA device, only " + joined(others) : "there is no RDMA device",
         "in a pod: ask for the device plugin's resource (network.attachment of the pool), and let "
         "nodeSelector choose Kubernetes nodes with a NIC; on the machine: load the NIC's driver (mlx5_ib), "
         "or SoftRoCE: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE"});
  }
  judge_process(facts, findings);
  judge_namespaces(facts, wanted, findings);
  judge_huge_pages(facts, wanted, findings);
  return diagnosis;
}

}  // namespace farpool::apps
