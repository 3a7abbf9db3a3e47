// SPDX-License-Identifier: Apache-2.0
// Proofs that a peer knows a secret, where the secret itself must not cross: of lanes over rings, on whose sockets
// nobody shows a certificate.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/bytes.h"

namespace farpool::net {

using Proof = std::array<std::byte, 16>;
using Nonce = std::array<std::byte, 16>;

// Draws a nonce from the kernel.
Nonce draw_nonce();
// Returns the first 16 bytes of an HMAC-SHA256 under `secret` over what the proof is for and both peers' nonces.
// Another purpose gives another proof, so that no peer can send back what it was sent.
Proof prove(base::Bytes secret, std::string_view purpose, const Nonce& theirs = {}, const Nonce& ours = {});
// Compares in a time that does not depend on where the two differ.
bool same_proof(base::Bytes a, base::Bytes b);

}  // namespace farpool::net
