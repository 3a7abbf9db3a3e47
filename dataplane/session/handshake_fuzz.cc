// SPDX-License-Identifier: Apache-2.0
// For any bytes on the session port: a request has every field in its bounds, or is refused with a reason.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "session/handshake.h"

namespace {

using farpool::session::parse_grant;
using farpool::session::parse_reply;
using farpool::session::parse_request;

void as_request(std::string_view bytes) {
  auto request = parse_request(bytes);
  if (!request.ok()) {
    FARPOOL_CHECK(!request.status().message().empty());
    return;
  }
  FARPOOL_CHECK(!request->pool_uid().empty());
  if (request->has_open()) {
    FARPOOL_CHECK(request->open().client_incarnation() != 0 && request->open().lanes() >= 1 &&
                  request->open().lanes() <= 16);
  }
  FARPOOL_CHECK(parse_request(request->SerializeAsString()).ok());
}

void as_reply(std::string_view bytes) {
  auto reply = parse_reply(bytes);
  if (!reply.ok()) return;
  (void)farpool::session::status_of(*reply, "node:7400");
  auto grant = parse_grant(*reply, "node:7400", 1, reply->grant().node_incarnation());
  if (!grant.ok()) return;
  FARPOOL_CHECK(grant->lane.regions.size() == 5 && grant->slots > 0 && grant->lease >= 2 * grant->tick);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  as_request(bytes);
  as_reply(bytes);
  return 0;
}
