// SPDX-License-Identifier: Apache-2.0
// The responder's side of the seam: what a memory node offers to a wire, and what a wire offers to a memory node. A
// wire calls its host on one thread only (the node's control thread), whichever threads execute verbs. CALLs for data
// bypass the host: they go to the service that the host names with a lane's rights.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/time.h"
#include "fabric/fabric.h"
#include "fabric/service.h"

namespace farpool::fabric {

// Names the peer of an authenticated exchange, from its certificate (all empty if TLS is off).
struct Peer {
  std::string pool_uid;
  std::string role;  // operator, client, node
  std::string name;
  bool authenticated = false;
  std::uint32_t sessions = 0;  // that clients of this name may have here at once; 0: the certificate names no bound
};

// A span of memory that a session may touch, under the key it was granted.
struct RegionRight {
  std::uint32_t id = 0;
  std::uint64_t key = 0;
  std::byte* base = nullptr;  // 8-byte aligned
  std::uint64_t bytes = 0;
  bool read_only = false;  // allows READs; every other verb on it is refused
};

struct LaneRights {
  std::uint64_t session_id = 0;
  std::vector<RegionRight> regions;
  // Executes the session's CALLs for data; without one they are refused. It outlives the wire.
  Service* service = nullptr;
};

class Host {
 public:
  virtual ~Host() = default;
  // Answers one request on the session port; calls `reply` exactly once, now or later, on the control thread.
  virtual void on_exchange(const Peer& peer, std::string request, std::function<void(std::string)> reply) = 0;
  // Spends a lane token.
  virtual std::optional<LaneRights> on_open_lane(const std::array<std::byte, 16>& token) = 0;
  // Returns the unspent lane tokens. A peer on a Unix socket, where no peer shows a certificate, proves that it knows
  // one.
  virtual std::vector<std::array<std::byte, 16>> unspent_tokens() const { return {}; }
  // Handles a control CALL of a session that is not fenced. Returns the length of the reply, or nothing to refuse: then
  // the lane ends.
  virtual std::optional<std::size_t> on_call(std::uint64_t session_id, std::uint32_t opcode, base::Bytes request,
                                             base::MutableBytes reply) = 0;
};

// The wire's server, as the memory node sees it.
class Responder {
 public:
  virtual ~Responder() = default;
  // Returns what lanes of this wire can do; their ports say the same.
  virtual Caps caps() const = 0;
  // Ends every lane of the session, and calls `done` on the control thread once no verb of it can execute any more and
  // its service has given back every CALL that it held.
  virtual void fence(std::uint64_t session_id, std::function<void()> done) = 0;
  // Runs `what` on the control thread at or after the given delay. For leases.
  virtual void after(base::Nanos delay, std::function<void()> what) = 0;
  // Places a region in the NIC's own memory, where clients reach it from now on. It begins as a copy of the given
  // words, which stay unchanged and only name it. The memory node calls this before the wire serves; the copy ends with
  // the process. unavailable: there is no such memory, or too little.
  virtual base::Status place_in_device(base::Bytes region) {
    (void)region;
    return {base::Code::unavailable, "on this wire there is no NIC that lends memory of its own"};
  }
  virtual base::Nanos now() const = 0;
  virtual std::uint64_t random() = 0;
};

}  // namespace farpool::fabric
