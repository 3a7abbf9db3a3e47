// SPDX-License-Identifier: Apache-2.0
#include "index/outback/message.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

namespace farpool::outback {
namespace {

using namespace std::literals;

Request sample() {
  return {.op = Op::overlay,
          .flags = Request::kIfVersion,
          .client = 3,
          .bucket = 77,
          .generation = 5,
          .request_id = fabric::RequestId{2, 9}.word(),
          .version = 11,
          .argument = 4,
          .key = base::bytes_of("apple"sv),
          .value = base::bytes_of("red, round"sv)};
}
std::vector<std::byte> put(const Request& request) {
  std::vector<std::byte> bytes(256);
  std::size_t length = 0;
  EXPECT_EQ(put_request(request, bytes, length), Status::done);
  bytes.resize(length);
  return bytes;
}

TEST(OutbackMessage, RequestsSayWhatWasAsked) {
  const auto bytes = put(sample());
  EXPECT_EQ(bytes.size(), 48u + 8 + 16);
  Request got;
  ASSERT_EQ(get_request(bytes, got), Status::done);
  EXPECT_EQ(got.op, Op::overlay);
  EXPECT_EQ(got.client, 3);
  EXPECT_EQ(got.bucket, 77u);
  EXPECT_EQ(got.generation, 5u);
  EXPECT_EQ(got.request_id, sample().request_id);
  EXPECT_EQ(got.version, 11u);
  EXPECT_EQ(got.argument, 4u);
  EXPECT_EQ(base::text_of(got.key), "apple");
  EXPECT_EQ(base::text_of(got.value), "red, round");
}

TEST(OutbackMessage, RequestsThatCannotBeAreRefusedWithAReason) {
  const auto refused = [](Status expected, const std::function<void(RequestHead&)>& spoil, std::size_t cut = 0) {
    auto bytes = put(sample());
    auto head = base::load<RequestHead>(bytes.data());
    spoil(head);
    base::store(bytes.data(), head);
    Request got;
    EXPECT_EQ(get_request(base::Bytes(bytes).first(bytes.size() - cut), got), expected);
    EXPECT_TRUE(got.key.empty());
    EXPECT_STRNE(text_of(expected), "an unknown status");
  };
  refused(Status::bad_op, [](RequestHead& head) { head.op = 0; });
  refused(Status::bad_op, [](RequestHead& head) { head.op = kLastOp + 1; });
  refused(Status::malformed, [](RequestHead& head) { head.flags = 2; });
  refused(Status::malformed, [](RequestHead& head) { head.version = 0; });
  refused(Status::malformed, [](RequestHead& head) { head.op = static_cast<std::uint8_t>(Op::remove); });
  refused(Status::malformed, [](RequestHead& head) { head.op = static_cast<std::uint8_t>(Op::put); });
  refused(Status::malformed, [](RequestHead& head) { head.key_bytes = 4; });
  refused(Status::malformed, [](RequestHead& head) { head.value_bytes = 100; });
  refused(Status::long_key, [](RequestHead& head) { head.key_bytes = 65537; });
  refused(Status::long_value, [](RequestHead& head) { head.value_bytes = 1048577; });
  refused(Status::bad_request_id, [](RequestHead& head) { head.request_id = 5; });
  refused(
      Status::malformed, [](RequestHead&) {}, 8);
  refused(
      Status::malformed, [](RequestHead&) {}, 60);
}

TEST(OutbackMessage, RepliesCarrySeedAndVersionAndSayWhatHadNoRoom) {
  const Reply reply{.flags = Reply::kCached,
                    .seed = {.value = 200, .version = 60'000},
                    .version = 12,
                    .number = 13,
                    .generation = 5,
                    .key = base::bytes_of("apple"sv),
                    .value = base::bytes_of("red"sv)};
  std::array<std::byte, 64> bytes{};
  Reply got;
  ASSERT_EQ(put_reply(reply, bytes), 56u);
  ASSERT_TRUE(get_reply(base::Bytes(bytes).first(56), got));
  EXPECT_EQ(got.seed, reply.seed);
  EXPECT_EQ(got.version, 12u);
  EXPECT_EQ(got.number, 13u);
  EXPECT_EQ(base::text_of(got.key), "apple");
  EXPECT_EQ(base::text_of(got.value), "red");
  EXPECT_FALSE(get_reply(base::Bytes(bytes).first(48), got));
  ASSERT_EQ(put_reply(reply, base::MutableBytes(bytes).first(48)), kReplyHead);
  ASSERT_TRUE(get_reply(base::Bytes(bytes).first(kReplyHead), got));
  EXPECT_EQ(got.status, Status::no_room);
  EXPECT_EQ(got.value_bytes, 3u);
}

}  // namespace
}  // namespace farpool::outback
