// SPDX-License-Identifier: Apache-2.0
// An RDMA device as one process opens it: the device, its address, and what it can do.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/verbs/events.h"
#include "fabric/verbs/handshake.h"

namespace farpool::fabric::verbs {

struct DeviceOptions {
  std::string device;   // "mlx5_0"; empty: the first that has a fitting address
  std::string address;  // of the interface that the device belongs to; empty: see pick_gid
  std::uint8_t traffic_class = 0;
  bool masked_cas = false;     // tries the device's own, and uses it if it works: see masked_cas.h
  bool memory_windows = true;  // of a memory node: each lane gets keys of its own, if the device has windows
  bool connection_manager =
      true;  // lanes are connected by librdmacm, where both sides' addresses let it: see manager.h
  base::Nanos failure_timeout = 2 * base::kSecond;  // of the pool: the memory node's says how patient lanes are
};

// Chooses the entry of a device's table: by type RoCEv2 and this address, never by index, which changes whenever an
// address comes or goes. Without an address it prefers IPv4, then routed IPv6, then link-local. An error says why there
// is none, and which entries there are.
base::Result<ibv_gid_entry> pick_gid(std::span<const ibv_gid_entry> table, const std::string& address,
                                     const std::string& device);
bool is_ipv4(const ibv_gid& gid);
bool is_link_local(const ibv_gid& gid);
// Writes a GID for people: "10.0.0.3", "fe80::1".
std::string text_of(const ibv_gid& gid);
// Returns nothing for a virtual device, or if the node is unknown.
std::optional<int> numa_node_of(const std::string& device);
// Returns all entries of a device, of all its ports.
base::Result<std::vector<ibv_gid_entry>> gid_table(ibv_context* context);

class Device {
 public:
  // Opens a device. Errors say what is missing and how to get it.
  static base::Result<std::shared_ptr<Device>> open(const DeviceOptions& options);
  Device(const Device&) = delete;
  ~Device();

  const DeviceOptions& options() const { return options_; }
  ibv_context* context() const { return context_; }
  const ibv_device_attr& limits() const { return limits_; }
  // Returns the entry that now has the address: entries move when others come and go.
  base::Result<ibv_gid_entry> find_gid() const;
  // Says whether all of this memory can be registered at once, for peers to read and write; nothing stays registered.
  base::Status try_registration(base::MutableBytes memory) const;
  ibv_mtu mtu() const { return mtu_; }
  // Says whether lanes ask the device for masked CASes of its own, until one of them has seen that these do not work.
  bool masked_cas() const { return masked_cas_.load(std::memory_order_relaxed); }
  // Stops that; returns true the first time. Any thread.
  bool give_up_masked_cas() { return masked_cas_.exchange(false, std::memory_order_relaxed); }
  // Returns the most bytes that a memory window of type 2B may span; 0: there are none, or they must not be used.
  std::uint64_t largest_window() const { return largest_window_.load(std::memory_order_relaxed); }
  // Returns a descriptor that can be read when take_events has something to take.
  int events_descriptor() const { return context_->async_fd; }
  // Hands on the device's events, and returns what is for the log. Any thread.
  std::vector<std::string> take_events();
  DeviceEvents& events() { return events_; }
  void give_up_windows() { largest_window_.store(0, std::memory_order_relaxed); }
  std::string name() const;
  std::optional<int> numa_node() const { return numa_node_of(name()); }

 private:
  Device(ibv_context* context, DeviceOptions options)
      : options_(std::move(options)), context_(context), masked_cas_(options_.masked_cas) {}
  base::Status look();
  DeviceOptions options_;
  ibv_context* context_;
  ibv_device_attr limits_{};
  ibv_mtu mtu_ = IBV_MTU_1024;
  DeviceEvents events_;
  std::atomic<bool> masked_cas_;
  std::atomic<std::uint64_t> largest_window_{0};
};

// Owns an object of the library, and destroys it.
template <class T, int (*kDestroy)(T*)>
struct Destroyer {
  void operator()(T* object) const { kDestroy(object); }
};
template <class T, int (*kDestroy)(T*)>
using Owned = std::unique_ptr<T, Destroyer<T, kDestroy>>;
using ProtectionDomain = Owned<ibv_pd, ibv_dealloc_pd>;
using Registration = Owned<ibv_mr, ibv_dereg_mr>;
using Completions = Owned<ibv_cq, ibv_destroy_cq>;
using CompletionEvents = Owned<ibv_comp_channel, ibv_destroy_comp_channel>;

// Makes a descriptor non-blocking; returns false if that failed.
bool stop_blocking(int descriptor);

// Says what failed, with the operating system's reason, and what to do about the usual one.
base::Status failure(const std::string& what, int error);

base::Result<ProtectionDomain> make_protection_domain(const Device& device);
// Makes a completion channel whose descriptor does not block.
base::Result<CompletionEvents> make_completion_events(const Device& device);
// Registers memory, with remote access as in IBV_ACCESS_*. With a random base, peers name the memory by addresses that
// reveal nothing about this process.
base::Result<Registration> register_memory(ibv_pd* domain, void* memory, std::size_t bytes, int access);
base::Result<Registration> register_memory_at_random(ibv_pd* domain, void* memory, std::size_t bytes, int access,
                                                     std::uint64_t random, std::uint64_t& base);

}  // namespace farpool::fabric::verbs
