// SPDX-License-Identifier: Apache-2.0
// Which wires a daemon speaks, by its flags.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "apps/settings.h"
#include "base/result.h"
#include "fabric/fabric.h"
#include "fabric/verbs/device.h"
#include "net/loop.h"
#include "net/tls.h"

namespace farpool::apps {

struct WireSettings {
  std::string wire = "tcp";
  std::string device;
  std::string address;
  std::string interface;
  std::uint32_t traffic_class = 0;
  bool masked_cas = false;
  bool memory_windows = true;
  bool connection_manager = true;
  std::string shm_directory;
  base::Nanos spin = 20 * base::kMicrosecond;
};
void add_wire(CLI::App& app, WireSettings& settings);
base::Status check_wire(const WireSettings& settings);

// None where the wire needs none. The failure timeout is a memory node's; clients learn it with their lanes.
base::Result<std::shared_ptr<fabric::verbs::Device>> open_device(const WireSettings& settings,
                                                                 base::Nanos failure_timeout);
// A port on the loop, over the device if there is one.
base::Result<std::unique_ptr<fabric::Port>> make_port(const WireSettings& settings, net::Loop& loop,
                                                      std::shared_ptr<net::Tls> tls,
                                                      std::shared_ptr<fabric::verbs::Device> device);

}  // namespace farpool::apps
