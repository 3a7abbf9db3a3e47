// SPDX-License-Identifier: Apache-2.0
#include "apps/bootstrap.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <utility>

#include "apps/files.h"

namespace farpool::apps {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr auto kWhileSeeking = std::chrono::seconds(1);
constexpr auto kWhenSatisfied = std::chrono::seconds(15);
constexpr std::size_t kMaxAddresses = 4096;

bool is_port(const std::string& text) {
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos) return false;
  const int port = std::stoi(text);
  return port > 0 && port < 65536;
}

// Returns "host" and "port" of "host:port"; both are empty if the text has another form.
std::pair<std::string, std::string> split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return {};
  std::pair<std::string, std::string> parts{address.substr(0, colon), address.substr(colon + 1)};
  // A bare IPv6 address has colons of its own: it needs brackets.
  if (parts.first.find(':') != std::string::npos && (parts.first.front() != '[' || parts.first.back() != ']'))
    return {};
  return is_port(parts.second) ? parts : std::pair<std::string, std::string>();
}

}  // namespace

Result<BootstrapSpec> parse_bootstrap(const std::string& text) {
  BootstrapSpec spec;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    begin = end + 1;
    const bool by_name = one.starts_with("dns:");
    auto [host, port] = split(by_name ? one.substr(4) : one);
    if (host.empty()) {
      return Status(Code::invalid_argument,
                    "\"" + one + "\" is not host:port or dns:name:port, with a port from 1 to 65535");
    }
    if (by_name) {
      spec.names.push_back({std::move(host), std::move(port)});
    } else {
      spec.fixed.push_back(one);
    }
  }
  return spec;
}

std::vector<std::string> resolve(const BootstrapSpec& spec, std::string& trouble) {
  std::vector<std::string> addresses = spec.fixed;
  for (const BootstrapSpec::Name& name : spec.names) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failed = getaddrinfo(name.name.c_str(), name.port.c_str(), &hints, &found);
    if (failed != 0) {
      if (!trouble.empty()) trouble += "; ";
      trouble += "the name " + name.name + " does not resolve: " + gai_strerror(failed);
      continue;
    }
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      std::array<char, NI_MAXHOST> host;
      if (getnameinfo(at->ai_addr, at->ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
      addresses.push_back(at->ai_family == AF_INET6 ? "[" + std::string(host.data()) + "]:" + name.port
                                                    : std::string(host.data()) + ":" + name.port);
    }
    freeaddrinfo(found);
  }
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  if (addresses.size() > kMaxAddresses) addresses.resize(kMaxAddresses);
  return addresses;
}

std::vector<std::string> read_addresses(const std::string& path) {
  std::vector<std::string> addresses;
  std::ifstream file(path);
  for (std::string line; addresses.size() < kMaxAddresses && std::getline(file, line);) {
    if (!split(line).first.empty()) addresses.push_back(line);
  }
  return addresses;
}

Status write_addresses(const std::string& path, const std::vector<std::string>& addresses) {
  std::string lines;
  for (const std::string& address : addresses) lines += address + "\n";
  const Status status = replace_file(path, lines);
  return status.ok() ? status
                     : Status(status.code(), "the addresses of memory nodes are not kept: " + status.message());
}

Resolver::Resolver(BootstrapSpec spec, std::function<void(std::vector<std::string>, const std::string&)> found,
                   std::function<bool()> satisfied)
    : spec_(std::move(spec)), found_(std::move(found)), satisfied_(std::move(satisfied)), thread_([this] { run(); }) {}

Resolver::~Resolver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void Resolver::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    std::string trouble;
    std::vector<std::string> addresses = resolve(spec_, trouble);
    found_(std::move(addresses), trouble);
    const auto pause = satisfied_() ? kWhenSatisfied : kWhileSeeking;
    lock.lock();
    stop_.wait_for(lock, pause, [this] { return stopping_; });
  }
}

}  // namespace farpool::apps
