// SPDX-License-Identifier: Apache-2.0
// Names the holder of a certificate: one URI among its subject alternative names, farpool://<pool-uid>/<role>/<name>.
#pragma once

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
};

// Parses a name strictly: the scheme in lower case, exactly three parts, a known role; pool and name have 1 to 253
// characters, all of them letters, digits, `-`, `.` or `_`. Decodes and folds nothing.
std::optional<Identity> parse_identity(std::string_view uri);

}  // namespace farpool::net
