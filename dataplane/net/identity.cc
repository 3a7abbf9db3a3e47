// SPDX-License-Identifier: Apache-2.0
#include "net/identity.h"

#include <algorithm>
#include <charconv>

namespace farpool::net {
namespace {

constexpr std::string_view kScheme = "farpool://";
constexpr std::size_t kMaxPart = 253;

bool plain(std::string_view part) {
  return !part.empty() && part.size() <= kMaxPart && std::all_of(part.begin(), part.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
  });
}

}  // namespace

std::optional<Identity> parse_identity(std::string_view uri) {
  if (!uri.starts_with(kScheme)) return std::nullopt;
  uri.remove_prefix(kScheme.size());
  const std::size_t first = uri.find('/');
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t second = uri.find('/', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view pool = uri.substr(0, first);
  const std::string_view role = uri.substr(first + 1, second - first - 1);
  const std::string_view name = uri.substr(second + 1);
  if (!plain(pool) || !plain(name)) return std::nullopt;
  if (role != kRoleOperator && role != kRoleClient && role != kRoleNode) return std::nullopt;
  return Identity{
      .pool_uid = std::string(pool), .role = std::string(role), .name = std::string(name), .authenticated = true};
}

std::optional<std::uint32_t> parse_sessions(std::string_view unit) {
  if (!unit.starts_with(kSessionsPrefix)) return std::nullopt;
  unit.remove_prefix(kSessionsPrefix.size());
  std::uint32_t sessions = 0;
  const auto [end, error] = std::from_chars(unit.data(), unit.data() + unit.size(), sessions);
  if (error != std::errc() || end != unit.data() + unit.size() || unit.starts_with('0') || sessions > kMostSessions) {
    return std::nullopt;
  }
  return sessions;
}

}  // namespace farpool::net
