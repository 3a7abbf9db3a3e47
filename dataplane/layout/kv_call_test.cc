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
  return {.op = KvOp::overlay,
          .flags = KvRequest::kIfVersion | KvRequest::kLeaves,
          .client = 3,
          .table = 7,
          .place = 0x1122,
          .generation = 0x0102030405060708,
          .request_id = 0x5003,
          .version = 9,
          .argument = 4,
          .move = 6,
          .key = base::bytes_of("apple"sv),
          .value = base::bytes_of("red, round"sv)};
}
KvReply golden_reply() {
  return {.flags = KvReply::kExisted | 0x0200,
          .hint = 0x33,
          .version = 10,
          .number = 11,
          .generation = 12,
          .key = base::bytes_of("apple"sv),
          .value = base::bytes_of("green"sv)};
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
  std::array<std::byte, 64> bytes{};
  const std::size_t length = put_kv_reply(golden_reply(), bytes);
  EXPECT_EQ(std::vector(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)), annotated("kv_reply.txt"));
}

TEST(KvCall, RequestsSayWhatWasAsked) {
  const KvRequest asked = golden();
  const auto bytes = put(asked);
  KvRequest got;
  ASSERT_EQ(get_kv_request(bytes, got), KvStatus::done);
  EXPECT_EQ(got.op, asked.op);
  EXPECT_EQ(got.flags, asked.flags);
  EXPECT_EQ(got.client, asked.client);
  EXPECT_EQ(got.table, asked.table);
  EXPECT_EQ(got.place, asked.place);
  EXPECT_EQ(got.generation, asked.generation);
  EXPECT_EQ(got.request_id, asked.request_id);
  EXPECT_EQ(got.version, asked.version);
  EXPECT_EQ(got.argument, asked.argument);
  EXPECT_EQ(got.move, asked.move);
  EXPECT_EQ(base::text_of(got.key), "apple");
  EXPECT_EQ(base::text_of(got.value), "red, round");
}

TEST(KvCall, KeysAndValuesAreBounded) {
  const std::string key(kMaxKeyBytes + 1, 'k'), value(kMaxValueBytes + 1, 'v');
  KvRequest request{.op = KvOp::put, .request_id = 0x5003};
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
      {with(0, std::uint8_t{kLastKvOp + 1}), KvStatus::bad_op},
      {with(0, static_cast<std::uint8_t>(KvOp::remove)), KvStatus::malformed},  // with a value and an argument
      {with(0, static_cast<std::uint8_t>(KvOp::put)), KvStatus::malformed},     // with an argument
      {with(0, static_cast<std::uint8_t>(KvOp::find)), KvStatus::malformed},    // with a version
      {with(0, static_cast<std::uint8_t>(KvOp::scan)), KvStatus::malformed},    // with a key
      {with(1, std::uint8_t{0}), KvStatus::malformed},                          // a version without its flag
      {with(1, std::uint8_t{1 | 8}), KvStatus::malformed},
      {with(1, std::uint8_t{1 | 4}), KvStatus::malformed},     // by the mover, who only inserts
      {with(48, std::uint64_t{0}), KvStatus::malformed},       // a key that leaves by no move
      {with(32, std::uint64_t{0}), KvStatus::malformed},       // a flag without its version
      {with(24, std::uint64_t{0}), KvStatus::bad_request_id},  // a change that could take effect twice
      {with(56, std::uint32_t{9}), KvStatus::malformed},       // the key reaches into the value
      {with(56, static_cast<std::uint32_t>(kMaxKeyBytes + 1)), KvStatus::long_key},
      {with(56, ~std::uint32_t{0}), KvStatus::long_key},
      {with(60, std::uint32_t{17}), KvStatus::malformed},
      {with(60, ~std::uint32_t{0}), KvStatus::long_value},
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

TEST(KvCall, WhatChangesNothingHasNoRequestId) {
  std::array<std::byte, kKvRequestHead> bytes{};
  std::size_t length = 0;
  for (const KvOp op : {KvOp::get, KvOp::scan, KvOp::count, KvOp::attach, KvOp::detach}) {
    EXPECT_EQ(put_kv_request({.op = op}, bytes, length), KvStatus::done);
    EXPECT_EQ(put_kv_request({.op = op, .request_id = 0x5003}, bytes, length), KvStatus::bad_request_id);
  }
}

TEST(KvCall, RepliesSayWhatCameOfIt) {
  std::array<std::byte, 64> bytes{};
  KvReply got;
  ASSERT_EQ(put_kv_reply(golden_reply(), bytes), kKvReplyHead + 16);
  ASSERT_TRUE(get_kv_reply(base::Bytes(bytes).first(kKvReplyHead + 16), got));
  EXPECT_EQ(got.flags, golden_reply().flags);
  EXPECT_EQ(got.hint, 0x33u);
  EXPECT_EQ(got.version, 10u);
  EXPECT_EQ(got.number, 11u);
  EXPECT_EQ(got.generation, 12u);
  EXPECT_EQ(base::text_of(got.key), "apple");
  EXPECT_EQ(base::text_of(got.value), "green");
  for (const std::size_t wrong : {std::size_t{0}, kKvReplyHead - 1, kKvReplyHead + 8}) {
    EXPECT_FALSE(get_kv_reply(base::Bytes(bytes).first(wrong), got)) << wrong;
  }
}

TEST(KvCall, RepliesSayHowLongIsWhatHadNoRoom) {
  std::array<std::byte, 64> bytes{};
  KvReply got;
  ASSERT_EQ(put_kv_reply(golden_reply(), base::MutableBytes(bytes).first(48)), kKvReplyHead);
  ASSERT_TRUE(get_kv_reply(base::Bytes(bytes).first(kKvReplyHead), got));
  EXPECT_EQ(got.status, KvStatus::no_room);
  KvReply elsewhere{.flags = KvReply::kElsewhere, .number = 4096, .key_bytes = 5, .value_bytes = 100};
  EXPECT_EQ(got.key_bytes, 5u);
  EXPECT_EQ(got.value_bytes, 5u);
  ASSERT_EQ(put_kv_reply(elsewhere, bytes), kKvReplyHead);
  ASSERT_TRUE(get_kv_reply(base::Bytes(bytes).first(kKvReplyHead), got));
  EXPECT_EQ(got.status, KvStatus::done);
  EXPECT_EQ(got.number, 4096u);
  EXPECT_EQ(got.key_bytes, 5u);
  EXPECT_EQ(got.value_bytes, 100u);
  EXPECT_TRUE(got.key.empty() && got.value.empty());
}

TEST(KvCall, BytesThatAreNoReplyAreRefused) {
  std::array<std::byte, 64> bytes{};
  const std::size_t length = put_kv_reply(golden_reply(), bytes);
  const auto refused = [&](std::size_t at, auto value, std::size_t cut = 0) {
    auto spoilt = bytes;
    base::store(spoilt.data() + at, value);
    KvReply got;
    EXPECT_FALSE(get_kv_reply(base::Bytes(spoilt).first(length - cut), got)) << "at " << at;
    EXPECT_TRUE(got.key.empty() && got.value.empty());
  };
  refused(0, std::uint16_t{28});
  refused(0, static_cast<std::uint16_t>(static_cast<std::uint16_t>(kLastKvStatus) + 1));
  refused(0, std::uint16_t{0xffff});
  refused(32, std::uint32_t{9});
  refused(32, ~std::uint32_t{0});
  refused(36, ~std::uint32_t{0});
  refused(kKvReplyHead + 5, std::uint8_t{1});                       // behind the key
  refused(length - 1, std::uint8_t{1});                             // behind the value
  refused(0, static_cast<std::uint16_t>(KvStatus::bad_table), 16);  // a refusal with a key's length
}

TEST(KvCall, EveryStatusHasItsWords) {
  std::vector<std::string> texts;
  for (std::uint16_t status = 0; status <= static_cast<std::uint16_t>(kLastKvStatus); ++status) {
    texts.emplace_back(text_of(static_cast<KvStatus>(status)));
    EXPECT_EQ(std::count(texts.begin(), texts.end(), texts.back()), 1);
    EXPECT_NE(texts.back(), "an unknown status");
  }
}

}  // namespace
}  // namespace farpool::layout
