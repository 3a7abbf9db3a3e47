// SPDX-License-Identifier: Apache-2.0
#include "net/signing_key.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include <array>
#include <utility>

namespace farpool::net {
namespace {

constexpr std::size_t kKeyBytes = 32, kKeyText = 44;  // base64 of 32 bytes, with one sign of padding

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

class Ed25519 final : public base::SignatureCheck {
 public:
  explicit Ed25519(std::unique_ptr<EVP_PKEY, FreeKey> key) : key_(std::move(key)) {}

  bool holds(std::string_view text, std::string_view signature) const override {
    const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
    const auto* signed_by = reinterpret_cast<const unsigned char*>(signature.data());
    const auto* message = reinterpret_cast<const unsigned char*>(text.data());
    const bool good = context != nullptr &&
                      EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key_.get()) == 1 &&
                      EVP_DigestVerify(context.get(), signed_by, signature.size(), message, text.size()) == 1;
    ERR_clear_error();
    return good;
  }

 private:
  std::unique_ptr<EVP_PKEY, FreeKey> key_;
};

}  // namespace

base::Result<std::shared_ptr<const base::SignatureCheck>> ed25519_key(std::string_view base64) {
  std::array<unsigned char, kKeyText> bytes{};
  std::unique_ptr<EVP_PKEY, FreeKey> key;
  // 33 decoded bytes, of which one is padding, are a key.
  if (base64.size() == kKeyText && base64.back() == '=' && base64[kKeyText - 2] != '=' &&
      EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(base64.data()), kKeyText) == kKeyBytes + 1) {
    key.reset(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, bytes.data(), kKeyBytes));
  }
  ERR_clear_error();
  if (key == nullptr) {
    return base::Status(base::Code::invalid_argument,
                        "it is not the base64 of an Ed25519 public key, which has 32 bytes");
  }
  return std::shared_ptr<const base::SignatureCheck>(std::make_shared<Ed25519>(std::move(key)));
}

}  // namespace farpool::net
