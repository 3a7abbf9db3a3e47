// SPDX-License-Identifier: Apache-2.0
#include "net/signing_key.h"

#include <gtest/gtest.h>

#include <string>

namespace farpool::net {
namespace {

// RFC 8032, 7.1, test 2.
constexpr char kKey[] = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
constexpr unsigned char kSignature[] = {0x92, 0xa0, 0x09, 0xa9, 0xf0, 0xd4, 0xca, 0xb8, 0x72, 0x0e, 0x82, 0x0b, 0x5f,
                                        0x64, 0x25, 0x40, 0xa2, 0xb2, 0x7b, 0x54, 0x16, 0x50, 0x3f, 0x8f, 0xb3, 0x76,
                                        0x22, 0x23, 0xeb, 0xdb, 0x69, 0xda, 0x08, 0x5a, 0xc1, 0xe4, 0x3e, 0x15, 0x99,
                                        0x6e, 0x45, 0x8f, 0x36, 0x13, 0xd0, 0xf1, 0x1d, 0x8c, 0x38, 0x7b, 0x2e, 0xae,
                                        0xb4, 0x30, 0x2a, 0xee, 0xb0, 0x0d, 0x29, 0x16, 0x12, 0xbb, 0x0c, 0x00};

TEST(SigningKey, ChecksWhatTheStandardSigns) {
  const auto key = ed25519_key(kKey);
  ASSERT_TRUE(key.ok()) << key.status().message();
  const std::string text = "r", signature(reinterpret_cast<const char*>(kSignature), sizeof kSignature);
  EXPECT_TRUE((*key)->holds(text, signature));
  EXPECT_FALSE((*key)->holds("s", signature));
  EXPECT_FALSE((*key)->holds("", signature));
  for (std::size_t i = 0; i < signature.size(); ++i) {
    std::string other = signature;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE((*key)->holds(text, other)) << i;
  }
  for (const std::string& other : {std::string(), signature.substr(0, 63), signature + "x"}) {
    EXPECT_FALSE((*key)->holds(text, other)) << other.size();
  }
}

TEST(SigningKey, RefusesWhatIsNoKey) {
  for (const char* text :
       {"", "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw",
        "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zg==", "????w+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw="}) {
    EXPECT_EQ(ed25519_key(text).code(), base::Code::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace farpool::net
