// SPDX-License-Identifier: Apache-2.0
#include "apps/wire.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <utility>

#include "fabric/tcp/port.h"
#include "fabric/verbs/port.h"
#include "fabric/verbs/survey.h"
#include "net/address.h"

namespace farpool::apps {

using base::Code;
using base::Status;

void add_wire(CLI::App& app, WireSettings& settings) {
  app.add_option("--wire", settings.wire, "tcp, or verbs: RDMA over RoCEv2; all processes of a pool speak the same one")
      ->check(CLI::IsMember({"tcp", "verbs"}))
      ->capture_default_str();
  app.add_option("--rdma-device", settings.device, "by name, as mlx5_0; empty: the first with a fitting address");
  app.add_option("--rdma-address", settings.address,
                 "IP address of the device's interface to use; empty: its first of IPv4, else of IPv6");
  app.add_option("--rdma-interface", settings.interface,
                 "network interface of this pod whose address to use, in place of --rdma-address");
  app.add_option("--traffic-class", settings.traffic_class, "traffic class of RDMA packets: DSCP times 4")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  app.add_flag(
      "--rdma-masked-cas", settings.masked_cas,
      "ask an mlx5 NIC for its own masked CAS, which is tried first, where a CAS of a guessed word is sent otherwise; "
      "not yet run on hardware");
  app.add_option(
         "--rdma-memory-windows", settings.memory_windows,
         "memory nodes alone: give each lane keys that are good on no other, where the device has memory windows "
         "of type 2B; false: keys that are good on every lane")
      ->capture_default_str();
  app.add_option("--rdma-connection-manager", settings.connection_manager,
                 "connect lanes by librdmacm, where the RDMA device's address is one of this network namespace on both "
                 "sides; false, or elsewhere: by what the session port tells")
      ->capture_default_str();
  app.add_option("--shm-directory", settings.shm_directory,
                 "directory that memory nodes and their clients on one host share: lanes between them go over rings in "
                 "shared memory; empty: over TCP");
  add_duration(app, "--spin", settings.spin,
               "look at rings, or for completions of verbs, for this long before sleeping, as long as most waits are "
               "shorter than ten times that: latency for CPU; 0s: sleep at once (default 20us, at most 1s)");
}

Status check_wire(const WireSettings& settings) {
  if (settings.spin > base::kSecond) return {Code::invalid_argument, "--spin must be at most 1s"};
  if (!settings.address.empty() && !settings.interface.empty()) {
    return {Code::invalid_argument, "--rdma-address and --rdma-interface exclude each other: drop one"};
  }
  if (settings.shm_directory.empty()) return {};
  if (settings.wire == "verbs") {
    return {Code::invalid_argument,
            "--shm-directory with --wire verbs: words that a NIC changes by atomics are not changed by the memory "
            "node's processor; give one of them"};
  }
  const auto address = net::Address::parse(fabric::tcp::rings_address(settings.shm_directory, ~0ull));
  if (!address.ok()) return {Code::invalid_argument, "--shm-directory: " + address.status().message()};
  std::error_code error;
  if (!std::filesystem::is_directory(settings.shm_directory, error)) {
    return {Code::invalid_argument, "--shm-directory: " + settings.shm_directory + " is no directory"};
  }
  return {};
}

base::Result<std::shared_ptr<fabric::verbs::Device>> open_device(const WireSettings& settings,
                                                                 base::Nanos failure_timeout) {
  if (settings.wire != "verbs") return std::shared_ptr<fabric::verbs::Device>();
  std::string address = settings.address;
  if (!settings.interface.empty()) {
    auto found = fabric::verbs::address_of(fabric::verbs::interface_addresses(), settings.interface);
    if (!found.ok()) return Status(found.code(), "--rdma-interface: " + found.status().message());
    address = std::move(*found);
  }
  auto device = fabric::verbs::Device::open({.device = settings.device,
                                             .address = std::move(address),
                                             .traffic_class = static_cast<std::uint8_t>(settings.traffic_class),
                                             .masked_cas = settings.masked_cas,
                                             .memory_windows = settings.memory_windows,
                                             .connection_manager = settings.connection_manager,
                                             .failure_timeout = failure_timeout});
  if (!device.ok()) return Status(device.code(), "--wire verbs: " + device.status().message());
  spdlog::info("verbs by {}, address {}", (*device)->name(), (*device)->options().address);
  return device;
}

base::Result<std::unique_ptr<fabric::Port>> make_port(const WireSettings& settings, net::Loop& loop,
                                                      std::shared_ptr<net::Tls> tls,
                                                      std::shared_ptr<fabric::verbs::Device> device) {
  if (device == nullptr) {
    return std::unique_ptr<fabric::Port>(
        std::make_unique<fabric::tcp::TcpPort>(loop, std::move(tls), settings.shm_directory));
  }
  auto port = fabric::verbs::VerbsPort::open(loop, std::move(tls), std::move(device),
                                             {.log = [](const std::string& line) { spdlog::warn("{}", line); }});
  if (!port.ok()) return port.status();
  return std::unique_ptr<fabric::Port>(std::move(*port));
}

}  // namespace farpool::apps
