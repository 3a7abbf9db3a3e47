// SPDX-License-Identifier: Apache-2.0
#include "fabric/session_port/greeting.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/annotated_test.h"

namespace farpool::fabric::session_port {
namespace {

using base::annotated;

TEST(Greeting, HasTheGoldenBytes) {
  std::vector<std::byte> bytes(kEnvelopeBytes);
  put_envelope(bytes, {.kind = static_cast<std::uint32_t>(Greeting::lane), .length = 16});
  EXPECT_EQ(bytes, annotated("greeting.txt"));
  const auto envelope = get_envelope(bytes, 16);
  ASSERT_TRUE(envelope);
  EXPECT_EQ(envelope->kind, 2u);
  EXPECT_EQ(envelope->length, 16u);
  EXPECT_FALSE(get_envelope(bytes, 15)) << "a body longer than the bound";
  EXPECT_FALSE(get_envelope(base::Bytes(bytes).first(15), 16)) << "cut off";
  for (std::size_t i : {0u, 3u, 12u, 15u}) {
    auto broken = bytes;
    broken[i] ^= std::byte{1};
    EXPECT_FALSE(get_envelope(broken, 1 << 20)) << "byte " << i;
  }
}

}  // namespace
}  // namespace farpool::fabric::session_port
