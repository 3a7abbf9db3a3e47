// SPDX-License-Identifier: Apache-2.0
// The bytes with which every connection to a session port begins. Everything is little-endian. Pure: no sockets, and no
// memory but the caller's.
//
// OFFSET SIZE  greeting, and the reply to it
//      0    4  magic     "fpl1"
//      4    4  kind      greeting: 1 exchange, 2 lane, 3 lane of another wire, 4 proof; reply: 0 accepted, 1 refused
//      8    4  length    of the body that follows: a request or its reply; a lane's token, and what the other wire says
//     12    4  zero
//
// A lane over rings begins with two greetings, because its peers show no certificates on that socket, and its token
// never crosses. The first is a proof: the token's name, and a nonce. The memory node answers with its nonce, and its
// proof that it knows the token of that name. The second is a lane, whose body is the client's proof in place of the
// token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"

namespace farpool::fabric::session_port {

inline constexpr std::size_t kEnvelopeBytes = 16;
inline constexpr std::size_t kMaxRequestBytes = 64 * 1024;  // of an exchange
inline constexpr std::size_t kMaxAnswerBytes = 16u << 20;   // to an exchange
inline constexpr std::size_t kTokenBytes = 16;
inline constexpr std::size_t kProofBytes = 32;  // a name or proof, and a nonce

using Token = std::array<std::byte, kTokenBytes>;

enum class Greeting : std::uint32_t { exchange = 1, lane = 2, attach = 3, proof = 4 };
enum class Welcome : std::uint32_t { accepted = 0, refused = 1 };

// What proofs of a lane's token are for: see net/proof.h.
inline constexpr std::string_view kNameOfToken = "farpool lane token's name";
inline constexpr std::string_view kProofOfNode = "farpool lane memory node";
inline constexpr std::string_view kProofOfClient = "farpool lane client";

struct Envelope {
  std::uint32_t kind = 0;
  std::uint32_t length = 0;  // of the body that follows
};
void put_envelope(base::MutableBytes into, Envelope envelope);  // kEnvelopeBytes
// Returns nothing if the bytes cannot be an envelope, or if its body is longer than `most`.
std::optional<Envelope> get_envelope(base::Bytes header, std::size_t most);

}  // namespace farpool::fabric::session_port
