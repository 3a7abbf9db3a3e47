// SPDX-License-Identifier: Apache-2.0
// The messages of the handshake: pure functions that parse and validate bytes from outside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "farpool/v1alpha1/agent.pb.h"
#include "farpool/v1alpha1/session.pb.h"
#include "session/session.h"

namespace farpool::session {

// Versions of all that clients and memory nodes say to each other: requests, greetings of lanes, chains and CALLs. A
// program speaks its own version and the two before. Version 4 tells both sides' versions.
inline constexpr std::uint32_t kOldestProtocolVersion = 3;
inline constexpr std::uint32_t kProtocolVersion = 4;
inline constexpr std::size_t kMaxRequestBytes = 4096;
inline constexpr std::size_t kMaxReplyBytes = 4 << 20;  // a map of some ten thousand nodes
inline constexpr std::size_t kMaxNameBytes = 253;       // of a Kubernetes object
inline constexpr std::uint32_t kMaxSessionLanes = 16;
inline constexpr std::uint32_t kMaxSlots = 4096;

// Returns a request that says nothing yet but the pool and the versions that this program speaks.
v1alpha1::SessionRequest begin_request(const std::string& pool_uid);

// Says which versions of protocol and memory this program works with.
void tell_versions(v1alpha1::Versions& versions);

// Returns the version that this program and the sender of a request speak, the newest of them; 0: there is none.
std::uint32_t agreed_version(const v1alpha1::SessionRequest& request);

// Returns a request with every field in its bounds, in a version that this program speaks; the registry decides whether
// to grant it.
base::Result<v1alpha1::SessionRequest> parse_request(std::string_view bytes);

// Returns a reply as it came; its code decides what else is in it.
base::Result<v1alpha1::SessionReply> parse_reply(std::string_view bytes);

// Returns ok, or the reply's refusal as a status that names the endpoint.
base::Status status_of(const v1alpha1::SessionReply& reply, std::string_view endpoint);

// Returns the grant of an accepted open, checked field by field; `expected_node` is the incarnation that the client
// asked for.
base::Result<Grant> parse_grant(const v1alpha1::SessionReply& reply, const std::string& endpoint,
                                std::uint64_t client_incarnation, std::uint64_t expected_node);

// Converts sixteen bytes of a secret from the wire.
base::HashSecret secret_from(std::string_view bytes);  // exactly 16
std::string secret_bytes(const base::HashSecret& secret);

}  // namespace farpool::session
