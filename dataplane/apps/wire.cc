// SPDX-License-Identifier: Apache-2.0
#include "apps/wire.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "fabric/tcp/port.h"
#include "fabric/verbs/port.h"

namespace farpool::apps {

void add_wire(CLI::App& app, WireSettings& settings) {
  app.add_option("--wire", settings.wire, "tcp, or verbs: RDMA over RoCEv2; all processes of a pool speak the same one")
      ->check(CLI::IsMember({"tcp", "verbs"}))
      ->capture_default_str();
  app.add_option("--rdma-device", settings.device, "by name, as mlx5_0; empty: the first with a fitting address");
  app.add_option("--rdma-address", settings.address,
                 "IP address of the device's interface to use; empty: its first of IPv4, else of IPv6");
  app.add_option("--traffic-class", settings.traffic_class, "of RDMA packets: DSCP times 4")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  add_duration(app, "--spin", settings.spin,
               "look for completions this long before sleeping; of verbs on a client (default 0ms)");
}

base::Result<std::shared_ptr<fabric::verbs::Device>> open_device(const WireSettings& settings,
                                                                 base::Nanos failure_timeout) {
  if (settings.wire != "verbs") return std::shared_ptr<fabric::verbs::Device>();
  auto device = fabric::verbs::Device::open({.device = settings.device,
                                             .address = settings.address,
                                             .traffic_class = static_cast<std::uint8_t>(settings.traffic_class),
                                             .failure_timeout = failure_timeout});
  if (!device.ok()) return base::Status(device.code(), "--wire verbs: " + device.status().message());
  spdlog::info("verbs by {}, address {}", (*device)->name(), fabric::verbs::text_of((*device)->gid().gid));
  return device;
}

base::Result<std::unique_ptr<fabric::Port>> make_port(const WireSettings& settings, net::Loop& loop,
                                                      std::shared_ptr<net::Tls> tls,
                                                      std::shared_ptr<fabric::verbs::Device> device) {
  if (device == nullptr) {
    return std::unique_ptr<fabric::Port>(std::make_unique<fabric::tcp::TcpPort>(loop, std::move(tls)));
  }
  auto port = fabric::verbs::VerbsPort::open(
      loop, std::move(tls), std::move(device),
      {.spin = settings.spin, .log = [](const std::string& line) { spdlog::warn("{}", line); }});
  if (!port.ok()) return port.status();
  return std::unique_ptr<fabric::Port>(std::move(*port));
}

}  // namespace farpool::apps
