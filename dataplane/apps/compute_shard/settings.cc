// SPDX-License-Identifier: Apache-2.0
#include "apps/compute_shard/settings.h"

#include <random>
#include <utility>

namespace farpool::apps {

using base::Code;
using base::Status;

std::uint64_t draw_process() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32 | device()) | 1;
}

void add_flags(CLI::App& app, ShardSettings& settings) {
  add_common(app, settings.common);
  add_wire(app, settings.wire);
  app.add_option_function<std::string>(
         "--bootstrap",
         [&settings](const std::string& text) {
           auto spec = parse_bootstrap(text);
           if (!spec.ok()) throw CLI::ValidationError("--bootstrap", spec.status().message());
           settings.bootstrap = std::move(*spec);
         },
         "host:port[,...] of memory nodes, or dns:name:port for every address of a name")
      ->required()
      ->type_name("ADDRESSES");
  app.add_option("--map-cache", settings.map_cache, "file that keeps the last known good addresses of memory nodes");
  app.add_option("--listen", settings.listen, "host:port of RESP, or none")->capture_default_str();
  app.add_option("--unix-socket", settings.unix_socket, "path of a socket for RESP");
  app.add_option("--unix-socket-mode", settings.unix_socket_mode,
                 "who may connect to it: 0666 is everybody who reaches it")
      ->check(CLI::IsMember({"0600", "0660", "0666"}))
      ->capture_default_str();
  app.add_option("--resp-tls-cert", settings.resp_tls.cert, "PEM file: TLS for RESP on the same port");
  app.add_option("--resp-tls-key", settings.resp_tls.key, "PEM file of its key");
  app.add_option(
      "--password-file", settings.password_file,
      "file with the RESP password, read again when it changes. FILE.also, if there is one, holds a second password "
      "that counts as well; if there is none, the password before a change counts for 10 more minutes. Without the "
      "flag there is no password");
  app.add_flag("--allow-empty-password", settings.allow_empty_password,
               "begin without a password while the password file is empty");
  app.add_option("--threads", settings.threads, "workers, each with its own sessions")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--max-connections", settings.resp.max_connections,
                 "so many clients at once; fewer where the process may not open so many files")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-pipeline", settings.resp.max_pipeline, "commands of a connection that may wait")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  add_size(app, "--max-reply-bytes", settings.resp.max_reply_bytes,
           "a command's reply is no longer than this (default 64Mi)");
  add_size(app, "--max-unread-bytes", settings.resp.max_unread_bytes,
           "a client that leaves so many bytes of replies unread is not read, and closed when it goes on to take none "
           "(default 128Mi)");
  add_size(app, "--max-held-bytes", settings.resp.max_held_bytes,
           "requests and replies of all clients: beyond that, clients that do not take their replies are closed "
           "(default 256Mi)");
  add_duration(app, "--operation-deadline", settings.operation_deadline,
               "an operation of the pool ends within this time (default 5s)");
  add_duration(
      app, "--drain", settings.drain,
      "after a signal to end: how long connections are still taken, for clients that do not know yet (default 5s)");
}

Status check(ShardSettings& settings) {
  if (Status status = check_wire(settings.wire); !status.ok()) return status;
  if (settings.listen == "none") settings.listen.clear();
  if (settings.listen.empty() && settings.unix_socket.empty()) {
    return {Code::invalid_argument, "nobody could connect: give --listen host:port, --unix-socket, or both"};
  }
  if (settings.resp_tls.cert.empty() != settings.resp_tls.key.empty()) {
    return {Code::invalid_argument, "--resp-tls-cert and --resp-tls-key are needed together"};
  }
  if (settings.operation_deadline < 10 * base::kMillisecond || settings.operation_deadline > 10 * 60 * base::kSecond) {
    return {Code::invalid_argument, "--operation-deadline must be from 10ms to 10m"};
  }
  if (settings.drain > 10 * 60 * base::kSecond) return {Code::invalid_argument, "--drain must be at most 10m"};
  if (settings.allow_empty_password && settings.password_file.empty()) {
    return {Code::invalid_argument, "--allow-empty-password says nothing without --password-file: leave it out"};
  }
  // With less the largest value could not be read.
  if (settings.resp.max_reply_bytes < 2 * settings.resp.max_value_bytes) {
    return {Code::invalid_argument, "--max-reply-bytes must be at least 2Mi"};
  }
  if (settings.resp.max_unread_bytes < settings.resp.max_reply_bytes ||
      settings.resp.max_held_bytes < settings.resp.max_unread_bytes) {
    return {Code::invalid_argument,
            "--max-unread-bytes must be at least --max-reply-bytes, and --max-held-bytes at least --max-unread-bytes"};
  }
  settings.resp.version = FARPOOL_VERSION;
  return {};
}

}  // namespace farpool::apps
