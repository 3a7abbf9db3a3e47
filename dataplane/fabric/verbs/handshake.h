// SPDX-License-Identifier: Apache-2.0
// What the two sides of a lane exchange over the authenticated session port before any packet flows. Pure, and strict
// with bytes from outside. Little-endian; a GID has its form on the wire.
//
// OFFSET SIZE  both directions
//      0    4  magic     "fpv1"
//      4    4  queue pair number, 24 bits
//      8    4  first packet sequence number, 24 bits
//     12    1  path MTU, as ibv_mtu counts: 1 is 256, 5 is 4096
//     13    1  READs and atomics outstanding: wanted; granted
//     14    1  zero; exponent of the time-out of an acknowledgement
//     15    1  zero; how often one is waited for again, 0 to 6: 7 is for ever on some devices
//     16   16  GID
//     32    8  nonce of the client's; repeated
//     40    4  regions that follow
//     44    2  1 where the client can connect by librdmacm, or zero; the port to do so on, or zero: by what stands here
//     46    2  CALLs for data: 0 none; wanted, and then granted: 1 by a connected queue pair, 2 by datagrams
// and for each region 24 bytes: id (4), zero or remote key (4), the session's key or where the region begins (8), zero
// or 1 where it may be read and not changed (4), zero (4)
// and where there are CALLs for data
//      0    4  number of the queue pair for them, 24 bits
//      4    4  connected: first packet sequence number, 24 bits; datagrams: key of the queue pair
//      8    4  CALLs in flight: wanted; granted
//     12    4  bytes of a request, and of a reply: wanted; granted
//     16    8  zero; cookie, that each of their messages carries
//
// A memory node of a release without them takes what stands at 46 for a mistake. So a client asks for them only where
// the session was told that there are some (LaneGrant::calls).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"

namespace farpool::fabric::verbs {

using Gid = std::array<std::byte, 16>;

inline constexpr std::size_t kMaxRegions = 64;
// Not a region: a word of the lane's own, on which a client tries its device's masked CAS. It is requested under key 0.
inline constexpr std::uint32_t kTrialWord = 0xffff'ffff;
inline constexpr std::uint32_t kMask24 = 0xff'ffff;

// How to reach one side.
struct End {
  std::uint32_t queue_pair = 0;
  std::uint32_t sequence = 0;
  std::uint8_t mtu = 0;
  std::uint8_t depth = 0;
  Gid gid{};
};

// How CALLs for data travel.
enum class CallForm : std::uint16_t {
  connected = 1,  // on a reliable connection
  datagrams = 2,  // which may get lost, or arrive twice: the client sends again, the memory node recognizes it
};
struct CallEnd {
  CallForm form = CallForm::connected;
  std::uint32_t queue_pair = 0;
  std::uint32_t sequence = 0;  // or the queue pair's key
  std::uint32_t window = 0;    // CALLs in flight
  std::uint32_t bytes = 0;     // of a request, and of a reply
  std::uint64_t cookie = 0;
};

struct AttachRequest {
  End client;
  std::uint64_t nonce = 0;
  bool managed = false;  // the client has a connection manager
  struct Key {
    std::uint32_t region = 0;
    std::uint64_t key = 0;  // as granted to the session
  };
  std::vector<Key> keys;
  std::optional<CallEnd> calls = {};
};

// When a queue pair sends an unacknowledged packet again, and how often.
struct Patience {
  std::uint8_t timeout = 0;  // 4.096 us times two to this
  std::uint8_t retries = 0;
};
// Returns the longest patience that ends within half of the failure timeout: so a lane's failure is noticed before its
// client is taken for dead. Devices may wait up to four times as long as they are told.
Patience patience_within(base::Nanos failure_timeout);
// With less no patience fits: a lost packet is sent again after one millisecond at the earliest, or four.
inline constexpr base::Nanos kShortestFailureTimeout = 20 * base::kMillisecond;

struct AttachReply {
  End node;
  Patience patience;
  std::uint64_t nonce = 0;
  std::uint16_t manager_port = 0;  // of the memory node's connection manager, which waits for the claim; 0: none
  struct Place {
    std::uint32_t region = 0;
    std::uint32_t key = 0;  // of the device
    std::uint64_t begin = 0;
    bool read_only = false;  // the device knows, but lets a WRITE of nothing pass without a look at the key
  };
  std::vector<Place> places;
  std::optional<CallEnd> calls = {};  // of the form that was asked for, or none
};

std::string put(const AttachRequest& request);
std::string put(const AttachReply& reply);
// Return nothing if the bytes are impossible.
std::optional<AttachRequest> get_request(base::Bytes bytes);
std::optional<AttachReply> get_reply(base::Bytes bytes);

// What a connection request of librdmacm carries: the lane that it belongs to, as the session port told both sides. It
// travels in unauthenticated packets, and is good once, for the very queue pairs of that lane.
//
// OFFSET SIZE
//      0    4  magic "fpc1"
//      4    4  queue pair number of the memory node's
//      8    8  nonce of the client's
struct Claim {
  std::uint32_t queue_pair = 0;
  std::uint64_t nonce = 0;
};
inline constexpr std::size_t kClaimBytes = 16;
std::array<std::byte, kClaimBytes> put(const Claim& claim);
// Returns the claim. Devices pad what they carry with zeros, so there may be more bytes.
std::optional<Claim> get_claim(base::Bytes bytes);

}  // namespace farpool::fabric::verbs
