// SPDX-License-Identifier: Apache-2.0
// Shared by the daemons: flags with units, a TOML file of the same names, logging, and signals.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/signature.h"
#include "base/time.h"
#include "net/loop.h"
#include "net/tls.h"

namespace farpool::apps {

// A size: digits with an optional Ki, Mi or Gi. A duration: digits with ms, s or m.
base::Result<std::uint64_t> parse_size(const std::string& text);
base::Result<base::Nanos> parse_duration(const std::string& text);

// Options of one command line or file, each validated as it is read; an error names the flag.
void add_size(CLI::App& app, const std::string& flag, std::uint64_t& into, const std::string& what);
void add_duration(CLI::App& app, const std::string& flag, base::Nanos& into, const std::string& what);

// Flags that both daemons have.
struct CommonSettings {
  std::string name;
  std::string pool_uid;
  net::TlsFiles tls;
  bool insecure_plaintext = false;
  std::shared_ptr<const base::SignatureCheck> map_key;  // none: maps are not signed
  std::string agent_listen = "[::]:7401";
  std::string metrics_listen = "[::]:7402";
  std::string log_level = "info";
  std::string log_format = "json";
};
void add_common(CLI::App& app, CommonSettings& settings);
// Adds those of them that every daemon has, if it is part of a pool or not: metrics, logs, a file of flags, the version.
void add_process(CLI::App& app, CommonSettings& settings);

// Parses; on --help, --version or an error prints and returns the exit status, otherwise nothing.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

// Returns the address for other processes, in their form: `host:port` or `[v6]:port`. A port always ends it, so an IPv6
// number may come without its brackets, as a pod's own address does.
base::Result<std::string> advertised(const std::string& flag, const std::string& address);

// Checks the flags together: TLS files or --insecure-plaintext, and not both. Empty TLS when plaintext.
base::Result<std::shared_ptr<net::Tls>> load_tls(const CommonSettings& settings);

// One line of log has time, level, process name and message; JSON or text, written by a thread of its own.
void start_logging(const CommonSettings& settings);
void stop_logging();

// Calls `what` on the loop's thread at the first SIGTERM or SIGINT; the second ends the process at once.
void on_signal(net::Loop& loop, std::function<void(int)> what);

// Prints the error for a person, and logs nothing: for errors before logging has begun.
int fail(const std::string& program, const base::Status& status);

}  // namespace farpool::apps
