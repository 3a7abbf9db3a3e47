// SPDX-License-Identifier: Apache-2.0
#include "session/handshake.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "layout/operation_slot.h"
#include "layout/regions.h"
#include "layout/superblock.h"

namespace farpool::session {
namespace {

using base::Code;
using base::Status;
using v1alpha1::SessionReply;
using v1alpha1::SessionRequest;

Status bad(std::string why) { return {Code::invalid_argument, "handshake refused: " + std::move(why)}; }
Status corrupt(const std::string& endpoint, std::string why) {
  return {Code::corrupt, "memory node " + endpoint + " sent a grant that cannot be: " + std::move(why)};
}

// Says whether a name is plain printable text: names end up in logs and in messages for people.
bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

Status check_name(const char* field, std::string_view text, bool may_be_empty) {
  if (text.empty() && !may_be_empty) return bad(std::string(field) + " is empty");
  if (text.size() > kMaxNameBytes) {
    return bad(std::string(field) + " has " + std::to_string(text.size()) + " bytes, at most " +
               std::to_string(kMaxNameBytes) + " are allowed");
  }
  if (!printable(text)) return bad(std::string(field) + " has bytes that are not printable ASCII");
  return {};
}

Status check_token(std::string_view token) {
  if (token.empty() || token.size() == 16) return {};
  return bad("a lane token has 16 bytes, not " + std::to_string(token.size()));
}

Status check_open(const v1alpha1::OpenSession& open) {
  if (open.client_incarnation() == 0)
    return bad("client_incarnation is 0: draw a random one for each life of a client");
  if (open.node_incarnation() == 0) return bad("node_incarnation is 0: take it from the shard map");
  if (open.epoch() == 0) return bad("epoch is 0: read the shard map first");
  if (open.lanes() == 0 || open.lanes() > kMaxSessionLanes) {
    return bad(std::to_string(open.lanes()) + " lanes wanted, 1 to " + std::to_string(kMaxSessionLanes) +
               " are possible");
  }
  if (Status status = check_token(open.previous_token()); !status.ok()) return status;
  return check_name("client_name", open.client_name(), true);
}

Status check_close(const v1alpha1::CloseSession& close) {
  if (close.session_id() == 0) return bad("session_id is 0");
  if (close.client_incarnation() == 0) return bad("client_incarnation is 0");
  return check_token(close.token());
}

const char* name_of_code(SessionReply::Code code) {
  switch (code) {
    case SessionReply::CODE_BAD_REQUEST:
      return "bad request";
    case SessionReply::CODE_WRONG_POOL:
      return "wrong pool";
    case SessionReply::CODE_STALE_EPOCH:
      return "stale epoch";
    case SessionReply::CODE_WRONG_INCARNATION:
      return "wrong incarnation";
    case SessionReply::CODE_NOT_SERVING:
      return "not serving";
    case SessionReply::CODE_TOO_MANY_SESSIONS:
      return "too many sessions";
    case SessionReply::CODE_FENCED:
      return "fenced";
    case SessionReply::CODE_FORBIDDEN:
      return "forbidden";
    case SessionReply::CODE_PROCESS_FENCED:
      return "fenced for good";
    case SessionReply::CODE_OVER_QUOTA:
      return "over quota";
    default:
      return "an unknown code";
  }
}

Code code_of(SessionReply::Code code) {
  switch (code) {
    case SessionReply::CODE_OK:
      return Code::ok;
    case SessionReply::CODE_BAD_REQUEST:
      return Code::invalid_argument;
    case SessionReply::CODE_WRONG_POOL:
    case SessionReply::CODE_FORBIDDEN:
      return Code::forbidden;
    case SessionReply::CODE_STALE_EPOCH:
    case SessionReply::CODE_WRONG_INCARNATION:
    case SessionReply::CODE_FENCED:
      return Code::stale;
    case SessionReply::CODE_PROCESS_FENCED:
      return Code::fenced;
    case SessionReply::CODE_NOT_SERVING:
    case SessionReply::CODE_TOO_MANY_SESSIONS:
    case SessionReply::CODE_OVER_QUOTA:
      return Code::unavailable;
    default:
      return Code::corrupt;
  }
}

std::string range(std::uint32_t oldest, std::uint32_t newest) {
  return oldest == newest ? std::to_string(oldest) : std::to_string(oldest) + " to " + std::to_string(newest);
}

}  // namespace

SessionRequest begin_request(const std::string& pool_uid) {
  SessionRequest request;
  request.set_protocol_version(kOldestProtocolVersion);
  request.set_newest_version(kProtocolVersion);
  request.set_pool_uid(pool_uid);
  return request;
}

void tell_versions(v1alpha1::Versions& versions) {
  versions.set_oldest_protocol(kOldestProtocolVersion);
  versions.set_newest_protocol(kProtocolVersion);
  versions.set_oldest_memory_format(layout::kVersion);
  versions.set_newest_memory_format(layout::kVersion);
}

std::uint32_t agreed_version(const SessionRequest& request) {
  const std::uint32_t newest =
      std::min(std::max(request.protocol_version(), request.newest_version()), kProtocolVersion);
  return newest < std::max(request.protocol_version(), kOldestProtocolVersion) ? 0 : newest;
}

base::Result<SessionRequest> parse_request(std::string_view bytes) {
  if (bytes.size() > kMaxRequestBytes) {
    return bad("the request has " + std::to_string(bytes.size()) + " bytes, at most " +
               std::to_string(kMaxRequestBytes) + " are allowed");
  }
  SessionRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return bad("the request does not parse");
  if (request.newest_version() != 0 && request.newest_version() < request.protocol_version()) {
    return bad("newest_version is " + std::to_string(request.newest_version()) +
               ", which is before the oldest version of the client, " + std::to_string(request.protocol_version()));
  }
  if (agreed_version(request) == 0) {
    return bad("the client speaks protocol version " +
               range(request.protocol_version(), std::max(request.protocol_version(), request.newest_version())) +
               ", and this memory node " + range(kOldestProtocolVersion, kProtocolVersion) +
               ": run both in versions of farpool that are closer to each other");
  }
  if (Status status = check_name("pool_uid", request.pool_uid(), false); !status.ok()) return status;
  Status status;
  switch (request.what_case()) {
    case SessionRequest::kReadMap:
      break;
    case SessionRequest::kOpen:
      status = check_open(request.open());
      break;
    case SessionRequest::kClose:
      status = check_close(request.close());
      break;
    case SessionRequest::WHAT_NOT_SET:
      status = bad("it says neither read_map nor open nor close");
      break;
  }
  if (!status.ok()) return status;
  return request;
}

base::Result<SessionReply> parse_reply(std::string_view bytes) {
  SessionReply reply;
  if (bytes.size() > kMaxReplyBytes || !reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Status(Code::corrupt,
                  "the memory node's reply of " + std::to_string(bytes.size()) + " bytes does not parse");
  }
  return reply;
}

base::Status status_of(const SessionReply& reply, std::string_view endpoint) {
  const Code code = code_of(reply.code());
  if (code == Code::ok) return {};
  std::string text(endpoint);
  text.append(": ").append(name_of_code(reply.code()));
  if (!reply.message().empty() && reply.message().size() <= 1024 && printable(reply.message())) {
    text.append(": ").append(reply.message());
  }
  return {code, std::move(text)};
}

base::Result<Grant> parse_grant(const SessionReply& reply, const std::string& endpoint,
                                std::uint64_t client_incarnation, std::uint64_t expected_node) {
  if (!reply.has_grant()) return corrupt(endpoint, "there is none");
  // A memory node that knows only one version goes by the request's.
  const std::uint32_t version = reply.protocol_version() != 0 ? reply.protocol_version() : kOldestProtocolVersion;
  if (version < kOldestProtocolVersion || version > kProtocolVersion) {
    return corrupt(endpoint, "protocol version " + std::to_string(version) + ", and the client speaks " +
                                 range(kOldestProtocolVersion, kProtocolVersion));
  }
  const auto& from = reply.grant();
  if (from.session_id() == 0) return corrupt(endpoint, "session_id is 0");
  if (from.node_incarnation() != expected_node)
    return corrupt(endpoint, "it is of another incarnation than was asked for");
  if (from.lease_ms() == 0 || from.tick_ms() == 0 || from.tick_ms() > from.lease_ms() / 2) {
    return corrupt(endpoint, "a lease of " + std::to_string(from.lease_ms()) + " ms cannot be kept by ticks of " +
                                 std::to_string(from.tick_ms()) + " ms");
  }
  if (from.failure_timeout_ms() == 0) return corrupt(endpoint, "failure_timeout_ms is 0");
  if (from.slots() == 0 || from.slots() > kMaxSlots) return corrupt(endpoint, std::to_string(from.slots()) + " slots");
  if (from.pool_secret().size() != 16 || from.table_seed().size() != 16)
    return corrupt(endpoint, "a secret is not 16 bytes");
  if (from.lane_tokens_size() < 1 || from.lane_tokens(0).size() != 16)
    return corrupt(endpoint, "no lane token of 16 bytes");

  Grant grant;
  grant.protocol_version = version;
  grant.session_id = from.session_id();
  grant.client_incarnation = client_incarnation;
  grant.node_incarnation = from.node_incarnation();
  grant.lease = from.lease_ms() * base::kMillisecond;
  grant.tick = from.tick_ms() * base::kMillisecond;
  grant.failure_timeout = from.failure_timeout_ms() * base::kMillisecond;
  grant.slots = from.slots();
  grant.slots_offset = from.slots_offset();
  grant.era = from.era();
  grant.pool_secret = secret_from(from.pool_secret());
  grant.table_seed = secret_from(from.table_seed());
  grant.lane.endpoint = endpoint;
  grant.lane.session_id = from.session_id();
  grant.lane.node_incarnation = from.node_incarnation();
  grant.lane.calls = from.calls();
  std::memcpy(grant.lane.token.data(), from.lane_tokens(0).data(), 16);
  std::uint64_t slot_bytes = 0;
  for (const auto& region : from.regions()) {
    if (region.region() >= layout::kRegions)
      return corrupt(endpoint, "unknown region " + std::to_string(region.region()));
    if (region.key() == 0 || region.bytes() % 8 != 0) {
      return corrupt(endpoint, "region " + std::to_string(region.region()) + " without key or of odd size");
    }
    for (const auto& other : grant.lane.regions) {
      if (other.id == region.region()) return corrupt(endpoint, "region " + std::to_string(other.id) + " twice");
    }
    grant.lane.regions.push_back({region.region(), region.bytes(), region.key()});
    grant.read_only |= region.read_only() ? 1u << region.region() : 0;
    if (region.region() == layout::kSlots) slot_bytes = region.bytes();
  }
  if (grant.lane.regions.size() != layout::kRegions) return corrupt(endpoint, "a region is missing");
  const std::uint64_t own = std::uint64_t{grant.slots} * sizeof(layout::OperationSlot);
  if (grant.slots_offset % sizeof(layout::OperationSlot) != 0 || grant.slots_offset > slot_bytes ||
      own > slot_bytes - grant.slots_offset) {
    return corrupt(endpoint, "the slots lie outside their region");
  }
  return grant;
}

base::HashSecret secret_from(std::string_view bytes) {
  FARPOOL_CHECK(bytes.size() == 16);
  base::HashSecret secret;
  std::memcpy(&secret.low, bytes.data(), 8);
  std::memcpy(&secret.high, bytes.data() + 8, 8);
  return secret;
}

std::string secret_bytes(const base::HashSecret& secret) {
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &secret.low, 8);
  std::memcpy(bytes.data() + 8, &secret.high, 8);
  return bytes;
}

}  // namespace farpool::session
