// SPDX-License-Identifier: Apache-2.0
#include "layout/kv_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/annotated_test.h"

namespace farpool::layout {
namespace {

using base::annotated;
using namespace std::literals;

KvRequest golden() {
  return {.op = KvOp::update,
          .flags = KvRequest::kIfVersion,
          .table = 7,
          .epoch = 0x0102030405060708,
          .hints = {0x11, 0x22},
          .request_id = 0x5003,
          .version = 9,
          .key = base::bytes_of("apple"sv),
          .value = base::bytes_of("red, round"sv)};
}

std::vector<std::byte> put(const KvRequest& request) {
  std::vector<std::byte> bytes(kMaxKvRequest);
  std::size_t length = 0;
  EXPECT_EQ(put_kv_request(request, bytes, length), KvStatus::done);
  bytes.resize(length);
  return bytes;
}

TEST(KvCall, MessagesHaveTheGoldenBytes) {
  EXPECT_EQ(put(golden()), annotated("kv_request.txt"));
  const KvReply reply{.flags = 3, .version = 10, .hint = 0x33, .value = base::bytes_of("green"sv)};
  std::array<std::byte, 64> bytes{};
  const std::size_t length = put_kv_reply(reply, bytes);
  EXPECT_EQ(std::vector(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)), annotated("kv_reply.txt"));
}

TEST(KvCall, RequestsSayWhatWasAsked) {
  const KvRequest asked = golden();
  const auto bytes = put(asked);
  KvRequest got;
  ASSERT_EQ(get_kv_request(bytes, got), KvStatus::done);
  EXPECT_EQ(got.op, asked.op);
  EXPECT_EQ(got.flags, asked.flags);
  EXPECT_EQ(got.table, asked.table);
  EXPECT_EQ(got.epoch, asked.epoch);
  EXPECT_EQ(got.hints, asked.hints);
  EXPECT_EQ(got.request_id, asked.request_id);
  EXPECT_EQ(got.version, asked.version);
  EXPECT_EQ(base::text_of(got.key), "apple");
  EXPECT_EQ(base::text_of(got.value), "red, round");
}

TEST(KvCall, KeysAndValuesAreBounded) {
  const std::string key(kMaxKeyBytes + 1, 'k'), value(kMaxValueBytes + 1, 'v');
  KvRequest request{.op = KvOp::put};
  std::vector<std::byte> bytes(kMaxKvRequest);
  std::size_t length = 0;
  request.key = base::bytes_of(key).first(kMaxKeyBytes);
  request.value = base::bytes_of(value).first(kMaxValueBytes);
  EXPECT_EQ(put_kv_request(request, bytes, length), KvStatus::done);
  EXPECT_EQ(length, kMaxKvRequest);
  EXPECT_EQ(put_kv_request(request, base::MutableBytes(bytes).first(kMaxKvRequest - 1), length), KvStatus::no_room);
  EXPECT_EQ(length, 0u);
  request.key = base::bytes_of(key);
  EXPECT_EQ(put_kv_request(request, bytes, length), KvStatus::long_key);
  request.key = {};
  EXPECT_EQ(put_kv_request(request, bytes, length), KvStatus::done) << "an empty key is a key";
  request.value = base::bytes_of(value);
  EXPECT_EQ(put_kv_request(request, bytes, length), KvStatus::long_value);
}

TEST(KvCall, BadRequestsAreRefusedWithAReason) {
  const auto good = put(golden());
  const auto with = [&](std::size_t at, auto value) {
    auto bytes = good;
    base::store(bytes.data() + at, value);
    return bytes;
  };
  auto longer = good, shorter = good;
  longer.resize(good.size() + 8);
  shorter.resize(good.size() - 8);
  const std::vector<std::pair<std::vector<std::byte>, KvStatus>> cases{
      {{}, KvStatus::malformed},
      {std::vector<std::byte>(kKvRequestHead - 1), KvStatus::malformed},
      {longer, KvStatus::malformed},
      {shorter, KvStatus::malformed},
      {with(0, std::uint8_t{0}), KvStatus::bad_op},
      {with(0, std::uint8_t{6}), KvStatus::bad_op},
      {with(0, static_cast<std::uint8_t>(KvOp::remove)), KvStatus::malformed},  // with a value
      {with(0, static_cast<std::uint8_t>(KvOp::get)), KvStatus::malformed},     // with a value and a version
      {with(1, std::uint8_t{0}), KvStatus::malformed},                          // a version without its flag
      {with(1, std::uint8_t{3}), KvStatus::malformed},
      {with(2, std::uint16_t{1}), KvStatus::malformed},
      {with(48, std::uint32_t{9}), KvStatus::malformed},  // the key reaches into the value
      {with(48, static_cast<std::uint32_t>(kMaxKeyBytes + 1)), KvStatus::long_key},
      {with(48, ~std::uint32_t{0}), KvStatus::long_key},
      {with(52, std::uint32_t{17}), KvStatus::malformed},
      {with(52, ~std::uint32_t{0}), KvStatus::long_value},
      {with(kKvRequestHead + 5, std::uint8_t{1}), KvStatus::malformed},  // behind the key
      {with(good.size() - 1, std::uint8_t{1}), KvStatus::malformed},     // behind the value
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    KvRequest request;
    EXPECT_EQ(get_kv_request(cases[i].first, request), cases[i].second)
        << "case " << i << ": " << text_of(get_kv_request(cases[i].first, request));
    EXPECT_TRUE(request.key.empty() && request.value.empty());
  }
}

TEST(KvCall, RepliesSayWhatCameOfIt) {
  const std::string value(100, 'v');
  std::array<std::byte, 256> bytes{};
  KvReply got;
  const KvReply reply{.status = KvStatus::version, .version = 4, .value = base::bytes_of(value)};
  const std::size_t length = put_kv_reply(reply, bytes);
  ASSERT_TRUE(get_kv_reply(base::Bytes(bytes).first(length), got));
  EXPECT_EQ(got.status, KvStatus::version);
  EXPECT_EQ(got.version, 4u);
  EXPECT_EQ(base::text_of(got.value), value);
  // A value that does not fit is told of.
  EXPECT_EQ(put_kv_reply(reply, base::MutableBytes(bytes).first(64)), kKvReplyHead);
  ASSERT_TRUE(get_kv_reply(base::Bytes(bytes).first(kKvReplyHead), got));
  EXPECT_EQ(got.status, KvStatus::no_room);
  EXPECT_EQ(got.value_bytes, 100u);
  EXPECT_TRUE(got.value.empty());
  // And what is no reply.
  for (const std::size_t wrong : {std::size_t{0}, kKvReplyHead - 1, kKvReplyHead + 8}) {
    EXPECT_FALSE(get_kv_reply(base::Bytes(bytes).first(wrong), got)) << wrong;
  }
  base::store(bytes.data(), std::uint16_t{8});
  EXPECT_FALSE(get_kv_reply(base::Bytes(bytes).first(kKvReplyHead), got)) << "no such status";
  base::store(bytes.data(), static_cast<std::uint16_t>(KvStatus::bad_table));
  EXPECT_FALSE(get_kv_reply(base::Bytes(bytes).first(kKvReplyHead), got)) << "a refusal with a value's length";
}

TEST(KvCall, EveryStatusHasItsWords) {
  std::vector<std::string> texts;
  for (std::uint16_t status = 0; status <= static_cast<std::uint16_t>(KvStatus::bad_request_id); ++status) {
    if (status > 7 && status < 16) continue;
    texts.emplace_back(text_of(static_cast<KvStatus>(status)));
    EXPECT_EQ(std::count(texts.begin(), texts.end(), texts.back()), 1);
    EXPECT_NE(texts.back(), "an unknown status");
  }
}

}  // namespace
}  // namespace farpool::layout
