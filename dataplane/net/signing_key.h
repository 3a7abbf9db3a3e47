// SPDX-License-Identifier: Apache-2.0
// Checks the operator's signatures, with Ed25519 (RFC 8032).
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "base/signature.h"

namespace farpool::net {

// Returns the public key whose 32 bytes the base64 holds. invalid_argument: it holds no key.
base::Result<std::shared_ptr<const base::SignatureCheck>> ed25519_key(std::string_view base64);

}  // namespace farpool::net
