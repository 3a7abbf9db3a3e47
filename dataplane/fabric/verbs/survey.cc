// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/survey.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

#include "base/huge_pages.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/manager.h"

namespace farpool::fabric::verbs {
namespace {

namespace fs = std::filesystem;

// Returns the first line of a file of /proc or /sys; empty if it cannot be read.
std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

template <class Number>
std::optional<Number> number_of(std::string_view text, int base = 10) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

std::vector<std::string> names_in(const fs::path& directory, std::string_view prefix = "") {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with(prefix)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

void look_at_process(RdmaFacts& facts) {
  facts.uid = ::geteuid();
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) facts.memlock = limit.rlim_cur;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto holds = [&line](std::string_view name, bool& into) {
      if (!line.starts_with(name)) return;
      const auto at = line.find_first_not_of(" \t", name.size());
      if (at == std::string::npos) return;
      into = (number_of<std::uint64_t>(std::string_view(line).substr(at), 16).value_or(0) >> CAP_IPC_LOCK & 1) != 0;
    };
    holds("CapEff:", facts.ipc_lock_effective);
    holds("CapPrm:", facts.ipc_lock_permitted);
    holds("CapBnd:", facts.ipc_lock_bounding);
  }
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t inside = 0, outside = 0, length = 0;
  if (map >> inside >> outside >> length) facts.user_namespace = inside != 0 || outside != 0 || length < 0xffffffff;
  facts.numa_nodes = static_cast<unsigned>(
      std::ranges::count_if(names_in("/sys/devices/system/node", "node"),
                            [](const std::string& name) { return number_of<int>(name.substr(4)).has_value(); }));
  facts.numa_nodes = std::max(facts.numa_nodes, 1u);
}

void look_at_huge_pages(RdmaFacts& facts, std::uint64_t wanted) {
  const fs::path all = "/sys/kernel/mm/hugepages";
  for (const std::string& name : names_in(all, "hugepages-")) {
    const auto kib = number_of<std::uint64_t>(std::string_view(name).substr(std::strlen("hugepages-")));
    if (!kib) continue;
    facts.huge_pages.push_back({.page = *kib << 10,
                                .pages = number_of<std::uint64_t>(line_of(all / name / "nr_hugepages")).value_or(0),
                                .free = number_of<std::uint64_t>(line_of(all / name / "free_hugepages")).value_or(0)});
  }
  if (wanted == 0) return;
  if (const auto page = base::map_huge_pages(wanted, wanted); page.ok()) {
    ::munmap(*page, wanted);
  } else {
    facts.huge_pages_refused = page.status().message();
  }
}

void try_registration(DeviceFacts& facts, ibv_context* context, std::uint64_t bytes) {
  const ProtectionDomain domain(::ibv_alloc_pd(context));
  if (domain == nullptr) {
    facts.unregistered = std::string("no protection domain: ") + std::strerror(errno);
    return;
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    facts.unregistered = std::string("no memory to try it with: ") + std::strerror(errno);
    return;
  }
  {
    constexpr unsigned kAccess =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const Registration registration(::ibv_reg_mr(domain.get(), memory, bytes, kAccess));
    if (registration == nullptr) {
      facts.unregistered = std::strerror(errno);
    } else {
      facts.registered = bytes;
    }
  }
  ::munmap(memory, bytes);
}

void look_at_limits(DeviceFacts& facts, ibv_context* context) {
  ibv_device_attr_ex limits{};
  if (::ibv_query_device_ex(context, nullptr, &limits) != 0) return;
  const ibv_atomic_cap atomics = limits.orig_attr.atomic_cap;
  facts.atomics = atomics == IBV_ATOMIC_GLOB  ? DeviceFacts::Atomics::global
                  : atomics == IBV_ATOMIC_HCA ? DeviceFacts::Atomics::device
                                              : DeviceFacts::Atomics::none;
  facts.memory_windows = (limits.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
  facts.device_memory = limits.max_dm_size;
}

void look_at_port(DeviceFacts& facts, ibv_context* context, const std::vector<InterfaceAddress>& own) {
  std::uint8_t number = 1;
  const auto table = gid_table(context);
  if (!table.ok()) facts.unread_addresses = table.status().message();
  if (table.ok() && !table->empty()) number = static_cast<std::uint8_t>(table->front().port_num);
  ibv_port_attr port{};
  if (::ibv_query_port(context, number, &port) == 0) {
    facts.active = port.state == IBV_PORT_ACTIVE;
    facts.state = ::ibv_port_state_str(port.state);
    facts.link_layer = port.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "Ethernet";
    facts.mtu = 128u << port.active_mtu;
  }
  if (!table.ok()) return;
  for (const ibv_gid_entry& entry : *table) {
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    facts.addresses.push_back(text_of(entry.gid));
    const auto at = std::ranges::find(own, facts.addresses.back(), &InterfaceAddress::ip);
    if (facts.interface.empty() && at != own.end()) facts.interface = at->interface;
  }
  const fs::path port_path = fs::path("/sys/class/infiniband") / facts.name / "ports" / std::to_string(number);
  if (facts.interface.empty()) facts.interface = line_of(port_path / "gid_attrs/ndevs/0");
  if (!facts.interface.empty()) {
    facts.interface_mtu =
        number_of<std::uint32_t>(line_of(fs::path("/sys/class/net") / facts.interface / "mtu")).value_or(0);
  }
}

DeviceFacts look_at(ibv_device* listed, const RdmaFacts& facts, const SurveyOptions& options) {
  DeviceFacts device{.name = ::ibv_get_device_name(listed)};
  errno = 0;
  const std::unique_ptr<ibv_context, int (*)(ibv_context*)> context(::ibv_open_device(listed), ::ibv_close_device);
  if (context == nullptr) {
    device.unopened = std::strerror(errno != 0 ? errno : EIO);
    return device;
  }
  look_at_limits(device, context.get());
  look_at_port(device, context.get(), facts.addresses);
  device.masked_cas = ::mlx5dv_is_supported(listed);
  device.numa_node = numa_node_of(device.name);
  try_registration(device, context.get(), options.register_bytes);
  const auto opened = Device::open({.device = device.name});
  const base::Status managed = opened.ok() ? ConnectionManager::open(**opened).status() : opened.status();
  if (!managed.ok()) device.unmanaged = managed.message();
  return device;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(first, ::freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (each->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      ::inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof text);
    } else {
      continue;
    }
    addresses.push_back({.interface = each->ifa_name, .ip = text});
  }
  return addresses;
}

base::Result<std::string> address_of(std::span<const InterfaceAddress> addresses, const std::string& interface) {
  const auto rank = [](const std::string& ip) {
    return ip.find(':') == std::string::npos ? 0 : ip.starts_with("fe80:") ? 2 : 1;
  };
  const InterfaceAddress* best = nullptr;
  std::string there;
  for (const InterfaceAddress& each : addresses) {
    if (each.interface != interface) {
      if (there.find(each.interface) == std::string::npos) there += (there.empty() ? "" : ", ") + each.interface;
    } else if (best == nullptr || rank(each.ip) < rank(best->ip)) {
      best = &each;
    }
  }
  if (best != nullptr) return best->ip;
  return base::Status(base::Code::unavailable,
                      "there is no interface " + interface + " with an IP address here, only " + there +
                          ": attach the pod to the network of the RDMA device (Multus makes it from the annotation "
                          "k8s.v1.cni.cncf.io/networks), or name one of these");
}

RdmaFacts survey(const SurveyOptions& options) {
  RdmaFacts facts;
  look_at_process(facts);
  look_at_huge_pages(facts, options.huge_page);
  facts.addresses = interface_addresses();
  const std::string mode = line_of("/sys/module/ib_core/parameters/netns_mode");
  if (mode == "Y") facts.namespaces = RdmaFacts::Namespaces::shared;
  if (mode == "N") facts.namespaces = RdmaFacts::Namespaces::exclusive;

  int count = 0;
  ibv_device** list = ::ibv_get_device_list(&count);
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> owned(list, ::ibv_free_device_list);
  for (int i = 0; list != nullptr && i < count; ++i) facts.devices.push_back(look_at(list[i], facts, options));
  for (std::string& name : names_in("/sys/class/infiniband")) {
    if (std::ranges::find(facts.devices, name, &DeviceFacts::name) == facts.devices.end()) {
      facts.unseen.push_back(std::move(name));
    }
  }
  return facts;
}

}  // namespace farpool::fabric::verbs
