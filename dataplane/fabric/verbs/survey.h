// SPDX-License-Identifier: Apache-2.0
// Reports what a process has of RDMA: its devices, and what they need of the kernel and the container. Facts only;
// another room judges them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace farpool::fabric::verbs {

struct InterfaceAddress {
  std::string interface;
  std::string ip;
};

struct DeviceFacts {
  enum class Atomics : std::uint8_t { none, device, global };

  std::string name;
  std::string unopened;    // why it cannot be opened; then nothing else is known of it
  std::string interface;   // of its port; empty: not known
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string state;       // of its port, as the library has it
  bool active = false;
  std::uint32_t mtu = 0;               // of RDMA packets, bytes
  std::uint32_t interface_mtu = 0;     // 0: not known
  std::vector<std::string> addresses;  // of type RoCEv2
  std::string unread_addresses;        // why there are none to be read
  Atomics atomics = Atomics::none;     // global: atomic against the processor's, too
  bool masked_cas = false;             // the device's own
  bool memory_windows = false;         // of type 2B
  std::uint64_t device_memory = 0;     // bytes
  std::optional<int> numa_node;        // none: virtual, or not known
  std::string unmanaged;               // why librdmacm connects no lanes from it; empty: it does
  std::string unregistered;            // why memory could not be registered
  std::uint64_t registered = 0;        // bytes that could
};

struct HugePages {
  std::uint64_t page = 0;  // bytes
  std::uint64_t pages = 0;
  std::uint64_t free = 0;
};

struct RdmaFacts {
  enum class Namespaces : std::uint8_t { unknown, shared, exclusive };

  std::vector<DeviceFacts> devices;
  std::vector<std::string> unseen;  // the kernel has them, this process cannot open their files
  std::vector<InterfaceAddress> addresses;
  Namespaces namespaces = Namespaces::unknown;
  std::optional<std::uint64_t> memlock;  // none: no limit
  std::uint32_t uid = 0;
  bool ipc_lock_effective = false;
  bool ipc_lock_permitted = false;
  bool ipc_lock_bounding = false;
  bool user_namespace = false;  // capabilities do not reach beyond it
  std::vector<HugePages> huge_pages;
  std::string huge_pages_refused;  // why a page of the size that was asked for could not be had
  unsigned numa_nodes = 1;
};

struct SurveyOptions {
  std::uint64_t register_bytes = 64ull << 20;
  std::uint64_t huge_page = 0;  // to be tried; 0: none
};
// Returns the addresses of this network namespace.
std::vector<InterfaceAddress> interface_addresses();
// Returns the address that lanes go from: IPv4 first, then routed IPv6, then link-local.
base::Result<std::string> address_of(std::span<const InterfaceAddress> addresses, const std::string& interface);

// Registers memory with each device, and frees it again.
RdmaFacts survey(const SurveyOptions& options);

}  // namespace farpool::fabric::verbs
