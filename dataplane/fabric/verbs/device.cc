// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "base/check.h"

namespace farpool::fabric::verbs {
namespace {

using base::Code;
using base::Result;
using base::Status;

// Converts an address to a GID; returns false if it is none.
bool gid_of(const std::string& address, ibv_gid& gid) {
  std::memset(&gid, 0, sizeof gid);
  if (::inet_pton(AF_INET6, address.c_str(), gid.raw) == 1) return true;
  gid.raw[10] = gid.raw[11] = 0xff;
  return ::inet_pton(AF_INET, address.c_str(), gid.raw + 12) == 1;
}

}  // namespace

bool is_ipv4(const ibv_gid& gid) {
  static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0;
}
bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

std::string text_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(gid)) {
    ::inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  }
  return text;
}

Result<ibv_gid_entry> pick_gid(std::span<const ibv_gid_entry> table, const std::string& address,
                               const std::string& device) {
  ibv_gid wanted{};
  if (!address.empty() && !gid_of(address, wanted)) {
    return Status(Code::invalid_argument,
                  "\"" + address + "\" is no IP address: give that of the RDMA device's interface");
  }
  const auto rank = [](const ibv_gid& gid) { return is_ipv4(gid) ? 0 : is_link_local(gid) ? 2 : 1; };
  const ibv_gid_entry* best = nullptr;
  std::string there;
  for (const ibv_gid_entry& entry : table) {
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    there += (there.empty() ? "" : ", ") + text_of(entry.gid);
    if (!address.empty()) {
      if (std::memcmp(entry.gid.raw, wanted.raw, sizeof wanted.raw) == 0) return entry;
    } else if (best == nullptr || rank(entry.gid) < rank(best->gid)) {
      best = &entry;
    }
  }
  if (best != nullptr) return *best;
  if (there.empty()) {
    return Status(Code::unavailable, device + " has no RoCEv2 address: give its network interface an IP address");
  }
  return Status(Code::unavailable, device + " has no RoCEv2 address " + address + ", only " + there +
                                       ": name one of these, or give its network interface that one");
}

std::optional<int> numa_node_of(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/device/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

Result<std::vector<ibv_gid_entry>> gid_table(ibv_context* context) {
  std::vector<ibv_gid_entry> table(1024);  // the system call takes no more than 64 KiB
  const ssize_t entries = ::ibv_query_gid_table(context, table.data(), table.size(), 0);
  if (entries < 0) {
    return failure(std::string(::ibv_get_device_name(context->device)) + ": its addresses", static_cast<int>(-entries));
  }
  table.resize(static_cast<std::size_t>(entries));
  return table;
}

Status failure(const std::string& what, int error) {
  std::string message = what + ": " + std::strerror(error);
  if (error == ENOMEM) message += " (is the limit on locked memory too low? raise memlock, or give IPC_LOCK)";
  if (error == EACCES || error == EPERM) message += " (may this process open /dev/infiniband/uverbs*?)";
  return {Code::unavailable, message};
}

Result<std::shared_ptr<Device>> Device::open(const DeviceOptions& options) {
  int count = 0;
  ibv_device** list = ::ibv_get_device_list(&count);
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> owned(list, ::ibv_free_device_list);
  if (list == nullptr || count == 0) {
    return Status(Code::unavailable,
                  "there is no RDMA device here: the pod needs one of its node (an RDMA resource), the node a NIC or "
                  "SoftRoCE (rdma link add rxe0 type rxe netdev eth0), and /dev/infiniband has to be seen");
  }
  Status why(Code::unavailable, "there is no RDMA device \"" + options.device + "\"");
  for (int i = 0; i < count; ++i) {
    const std::string name = ::ibv_get_device_name(list[i]);
    if (!options.device.empty() && options.device != name) continue;
    errno = 0;
    ibv_context* context = ::ibv_open_device(list[i]);
    if (context == nullptr) {
      why = failure("RDMA device " + name + " cannot be opened", errno != 0 ? errno : EIO);
      continue;
    }
    std::shared_ptr<Device> device(new Device(context, options));
    why = device->look();
    if (why.ok()) return device;
  }
  return why;
}

bool stop_blocking(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0;
}

std::vector<std::string> Device::take_events() {
  std::vector<std::string> lines = events_.take(context_);
  for (std::string& line : lines) line = name() + " " + line;
  return lines;
}

Status Device::look() {
  if (!stop_blocking(context_->async_fd)) return failure(name() + ": events that do not block", errno);
  if (const int error = ::ibv_query_device(context_, &limits_)) return failure(name() + ": its limits", error);
  const auto gid = find_gid();
  if (!gid.ok()) return gid.status();
  // The chosen address stays, whatever other addresses come.
  options_.address = text_of(gid->gid);
  ibv_port_attr port{};
  if (const int error = ::ibv_query_port(context_, static_cast<std::uint8_t>(gid->port_num), &port)) {
    return failure(name() + ": its port", error);
  }
  if (port.state != IBV_PORT_ACTIVE) {
    return {Code::unavailable, name() + ": port " + std::to_string(gid->port_num) + " is " +
                                   ::ibv_port_state_str(port.state) + ": bring its network interface up"};
  }
  mtu_ = port.active_mtu;
  if (options_.memory_windows && (limits_.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0) {
    constexpr std::uint64_t kOfMlx5 = 2ull << 30;  // its library refuses more
    largest_window_ = ::mlx5dv_is_supported(context_->device) ? kOfMlx5 : ~0ull;
  }
  if (limits_.atomic_cap == IBV_ATOMIC_NONE) return {Code::unavailable, name() + " has no atomics"};
  return {};
}

Result<ibv_gid_entry> Device::find_gid() const {
  const auto table = gid_table(context_);
  if (!table.ok()) return table.status();
  return pick_gid(*table, options_.address, name());
}

Status Device::try_registration(base::MutableBytes memory) const {
  const auto domain = make_protection_domain(*this);
  if (!domain.ok()) return domain.status();
  constexpr int kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  return register_memory(domain->get(), memory.data(), memory.size(), kAccess).status();
}

Device::~Device() { ::ibv_close_device(context_); }

std::string Device::name() const { return ::ibv_get_device_name(context_->device); }

Result<ProtectionDomain> make_protection_domain(const Device& device) {
  ProtectionDomain domain(::ibv_alloc_pd(device.context()));
  if (domain == nullptr) return failure(device.name() + ": a protection domain", errno);
  return domain;
}

Result<CompletionEvents> make_completion_events(const Device& device) {
  CompletionEvents events(::ibv_create_comp_channel(device.context()));
  if (events == nullptr) return failure(device.name() + ": a completion channel", errno);
  if (!stop_blocking(events->fd)) {
    return failure(device.name() + ": a completion channel that does not block", errno);
  }
  return events;
}

Result<Registration> register_memory(ibv_pd* domain, void* memory, std::size_t bytes, int access) {
  Registration registration(::ibv_reg_mr(domain, memory, bytes, static_cast<unsigned>(access)));
  if (registration == nullptr) return failure("registering " + std::to_string(bytes) + " bytes of memory", errno);
  return registration;
}

Result<Registration> register_memory_at_random(ibv_pd* domain, void* memory, std::size_t bytes, int access,
                                               std::uint64_t random, std::uint64_t& base) {
  // Page tables want the low bits unchanged, up to the largest pages; the bits above them are drawn, with room for the
  // region below the top.
  constexpr std::uint64_t kKept = (1ull << 30) - 1, kTop = 1ull << 62;
  FARPOOL_CHECK(bytes < kTop / 2);
  const std::uint64_t low = reinterpret_cast<std::uintptr_t>(memory) & kKept;
  base = ((random % (kTop / 2)) & ~kKept) + kKept + 1 + low;
  Registration registration(::ibv_reg_mr_iova(domain, memory, bytes, base, static_cast<unsigned>(access)));
  if (registration == nullptr) return failure("registering a region of " + std::to_string(bytes) + " bytes", errno);
  return registration;
}

}  // namespace farpool::fabric::verbs
