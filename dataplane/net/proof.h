// SPDX-License-Identifier: Apache-2.0
// Proofs that a peer knows a secret that must not cross the wire: for lanes over rings, on whose sockets peers show no
// certificates.
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
// Returns the first 16 bytes of an HMAC-SHA256 under `secret` over the purpose of the proof and both peers' nonces.
// Another purpose gives another proof, so no peer can send back what it received.
Proof prove(base::Bytes secret, std::string_view purpose, const Nonce& theirs = {}, const Nonce& ours = {});
// Compares two proofs in a time that does not depend on where they differ.
bool same_proof(base::Bytes a, base::Bytes b);

}  // namespace farpool::net
