// SPDX-License-Identifier: Apache-2.0
#include "net/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <string>

#include "base/check.h"

namespace farpool::net {

Nonce draw_nonce() {
  Nonce nonce;
  // So few bytes come whole and uninterrupted; the kernel was seeded long ago.
  FARPOOL_CHECK(::getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

Proof prove(base::Bytes secret, std::string_view purpose, const Nonce& theirs, const Nonce& ours) {
  std::string text(purpose);
  text += '\0';
  text += base::text_of(base::Bytes(theirs));
  text += base::text_of(base::Bytes(ours));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  FARPOOL_CHECK(::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
                       &length) != nullptr);
  Proof proof;
  FARPOOL_CHECK(length >= proof.size());
  std::copy_n(std::as_bytes(std::span(digest)).begin(), proof.size(), proof.begin());
  return proof;
}

bool same_proof(base::Bytes a, base::Bytes b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace farpool::net
