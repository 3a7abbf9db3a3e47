// SPDX-License-Identifier: Apache-2.0
#include "net/address.h"

#include <charconv>

namespace farpool::net {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kRings = "shm:";
constexpr std::size_t kMaxPath = 107;  // of sockaddr_un

base::Status wrong(std::string_view text, const char* why) {
  return {base::Code::invalid_argument, "address '" + std::string(text.substr(0, 200)) + "' " + why +
                                            "; write host:port, [v6]:port, unix:/path or shm:/path"};
}

}  // namespace

base::Result<Address> Address::parse(std::string_view text) {
  Address address;
  address.rings = text.starts_with(kRings);
  if (address.rings || text.starts_with(kUnix)) {
    address.path = text.substr((address.rings ? kRings : kUnix).size());
    if (address.path.empty() || address.path.front() != '/') return wrong(text, "names no absolute path");
    if (address.path.size() > kMaxPath) return wrong(text, "has a path of more than 107 bytes");
    return address;
  }
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos || end + 1 >= text.size() || text[end + 1] != ':')
      return wrong(text, "has no ]:port");
    address.host = text.substr(1, end - 1);
    port = text.substr(end + 2);
  } else {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) return wrong(text, "has no port");
    if (text.find(':', colon + 1) != std::string_view::npos) return wrong(text, "has more than one colon");
    address.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (address.host.empty()) return wrong(text, "has no host");
  if (address.host.size() > 253) return wrong(text, "has a host of more than 253 bytes");
  for (const char c : address.host) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '/' || c == '[' || c == ']')
      return wrong(text, "has a host that is none");
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size())
    return wrong(text, "has a port outside 0 to 65535");
  return address;
}

std::string Address::text() const {
  if (local()) return std::string(rings ? kRings : kUnix) + path;
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace farpool::net
