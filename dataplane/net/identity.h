// SPDX-License-Identifier: Apache-2.0
// Names the holder of a certificate: one URI among its subject alternative names, farpool://<pool-uid>/<role>/<name>. The
// subject may say besides how many sessions the holder's clients may have at each memory node: an organizational unit
// farpool-sessions:<number>. Programs that do not know of it read the URI alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace farpool::net {

inline constexpr std::string_view kRoleOperator = "operator";
inline constexpr std::string_view kRoleClient = "client";
inline constexpr std::string_view kRoleNode = "node";

struct Identity {
  std::string pool_uid;
  std::string role;  // operator, client or node
  std::string name;
  bool authenticated = false;
  std::uint32_t sessions = 0;  // that its clients may have at each memory node; 0: the certificate names no bound
};

// Parses a name strictly: the scheme in lower case, exactly three parts, a known role; pool and name have 1 to 253
// characters, all of them letters, digits, `-`, `.` or `_`. Decodes and folds nothing.
std::optional<Identity> parse_identity(std::string_view uri);

inline constexpr std::string_view kSessionsPrefix = "farpool-sessions:";
inline constexpr std::uint32_t kMostSessions = 1 << 20;

// Parses an organizational unit that begins with kSessionsPrefix: a number from 1 to kMostSessions follows, in digits
// without a sign or leading zeros, and nothing else.
std::optional<std::uint32_t> parse_sessions(std::string_view unit);

}  // namespace farpool::net
