// SPDX-License-Identifier: Apache-2.0
#include "index/outback/message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace farpool::outback {
namespace {

using namespace std::literals;

TEST(OutbackMessage, RepliesCarryTheSeedOfABucketAndItsVersion) {
  const Seed seed{.value = 200, .version = 60'000};
  const Reply reply{
      .flags = kCached | Reply::kExisted, .hint = hint_of(seed), .version = 12, .value = base::bytes_of("red"sv)};
  std::array<std::byte, 64> bytes{};
  const std::size_t length = put_kv_reply(reply, bytes);
  Reply got;
  ASSERT_TRUE(get_reply(base::Bytes(bytes).first(length), got));
  EXPECT_EQ(seed_of(got.hint), seed);
  EXPECT_EQ(got.flags, kCached | Reply::kExisted);
  EXPECT_EQ(base::text_of(got.value), "red");
}

TEST(OutbackMessage, RepliesOfAnotherProtocolAreRefused) {
  std::array<std::byte, 64> bytes{};
  Reply got;
  for (const Reply& other : {Reply{.flags = 1024}, Reply{.hint = 1u << 24}}) {
    const std::size_t length = put_kv_reply(other, bytes);
    EXPECT_FALSE(get_reply(base::Bytes(bytes).first(length), got));
    EXPECT_EQ(got.flags, 0);
    EXPECT_EQ(got.hint, 0u);
  }
}

std::vector<std::byte> scan_key(std::uint32_t length, std::string_view text) {
  std::vector<std::byte> bytes(4 + text.size());
  base::store(bytes.data(), length);
  std::ranges::copy(base::bytes_of(text), bytes.begin() + 4);
  return bytes;
}

TEST(OutbackMessage, KeysOfAScanAreHereOrNamedByTheirBlock) {
  std::vector<std::byte> both = scan_key(5, "apple");
  const auto named = scan_key(ScanKey::kNamed | 300, "\x10\0\0\0\0\0\0\0"sv);
  both.insert(both.end(), named.begin(), named.end());
  base::Bytes rest = both;
  ScanKey key;
  bool bad = false;
  ASSERT_TRUE(next_scan_key(rest, key, bad));
  EXPECT_EQ(base::text_of(key.key), "apple");
  EXPECT_EQ(key.address, 0u);
  ASSERT_TRUE(next_scan_key(rest, key, bad));
  EXPECT_EQ(key.key_bytes, 300u);
  EXPECT_EQ(key.address, 16u);
  EXPECT_FALSE(next_scan_key(rest, key, bad));
  EXPECT_FALSE(bad);
}

TEST(OutbackMessage, BytesThatAreNoKeysOfAScanAreRefused) {
  for (const auto& bytes :
       {std::vector<std::byte>(3), scan_key(6, "apple"), scan_key(65'537, std::string(65'537, 'k')),
        scan_key(ScanKey::kNamed | 300, "short"), scan_key(ScanKey::kNamed | 300, std::string(8, '\0'))}) {
    base::Bytes rest = bytes;
    ScanKey key;
    bool bad = false;
    EXPECT_FALSE(next_scan_key(rest, key, bad));
    EXPECT_TRUE(bad);
  }
}

}  // namespace
}  // namespace farpool::outback
