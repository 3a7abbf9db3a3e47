// SPDX-License-Identifier: Apache-2.0
// The flags of farpool-swordbox.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/settings.h"
#include "base/result.h"
#include "swordbox/settings.h"

namespace farpool::apps {

struct SwordboxSettings {
  CommonSettings common;
  swordbox::Settings box;
  std::string clients_interface, servers_interface;
  // Capture of a connection; empty: none.
  std::string capture;
  std::optional<roce::Address> capture_client, capture_server;
  std::optional<std::uint32_t> capture_client_queue_pair, capture_server_queue_pair;
  std::uint64_t capture_bytes = 64 << 20;  // of each file
  // Replay of a capture; empty: packets come from interfaces.
  std::string replay, output;
};

// An address: a number of IPv4 or IPv6.
base::Result<roce::Address> parse_server(const std::string& text);
// A range: SERVER@FIRST+BYTES, as in 10.0.0.1@0x7f0000001000+4Ki or fd00::1@4096+8.
base::Result<swordbox::Range> parse_range(const std::string& text);

// Adds all flags, and the subcommand `replay`.
void add_swordbox(CLI::App& app, SwordboxSettings& settings);
// Checks the flags together. Errors: invalid_argument.
base::Status check_swordbox(const SwordboxSettings& settings);

}  // namespace farpool::apps
