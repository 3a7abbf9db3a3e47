// SPDX-License-Identifier: Apache-2.0
// The flags of farpool-compute-shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "apps/bootstrap.h"
#include "apps/settings.h"
#include "apps/wire.h"
#include "base/result.h"
#include "base/time.h"
#include "front/resp/server.h"
#include "net/tls.h"

namespace farpool::apps {

// Draws the number of one life of this process.
std::uint64_t draw_process();

struct ShardSettings {
  CommonSettings common;
  WireSettings wire;
  std::uint64_t process = draw_process();
  BootstrapSpec bootstrap;
  std::string map_cache;
  std::string listen = "[::]:6379";
  std::string unix_socket;
  std::string unix_socket_mode = "0660";
  net::TlsFiles resp_tls;
  std::string password_file;
  bool allow_empty_password = false;
  std::size_t threads = 1;
  base::Nanos operation_deadline = 5 * base::kSecond;
  base::Nanos drain = 5 * base::kSecond;
  front::resp::Settings resp;
};

void add_flags(CLI::App& app, ShardSettings& settings);
// Checks what flags say together, and fills in what follows from them.
base::Status check(ShardSettings& settings);

}  // namespace farpool::apps
