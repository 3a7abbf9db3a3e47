// SPDX-License-Identifier: Apache-2.0
// From OpenSSL's certificates to identities. Internal to net.
#pragma once

#include <openssl/ssl.h>

#include "base/result.h"
#include "net/identity.h"

namespace farpool::net {

base::Result<Identity> identity_of(X509* certificate);
base::Result<Identity> peer_identity(SSL* ssl);

}  // namespace farpool::net
