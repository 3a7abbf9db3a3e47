// SPDX-License-Identifier: Apache-2.0
// What rooms without cryptography know of a public key.
#pragma once

#include <string_view>

namespace farpool::base {

// Checks signatures with one public key. Any thread may call it.
class SignatureCheck {
 public:
  virtual ~SignatureCheck() = default;
  // Returns whether the holder of the private key has signed the text.
  virtual bool holds(std::string_view text, std::string_view signature) const = 0;
};

}  // namespace farpool::base
