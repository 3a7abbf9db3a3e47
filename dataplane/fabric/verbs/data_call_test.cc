// SPDX-License-Identifier: Apache-2.0
#include "fabric/verbs/data_call.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace farpool::fabric::verbs {
namespace {

constexpr std::string_view kBody = "body";

std::vector<std::byte> request_of(DataRequest request) {
  request.body = base::bytes_of(kBody);
  std::vector<std::byte> message(kDataHeadBytes + kBody.size());
  put_head(message, request);
  std::memcpy(message.data() + kDataHeadBytes, kBody.data(), kBody.size());
  return message;
}
std::vector<std::byte> answer_of(DataAnswer answer) {
  if (!answer.refused) answer.body = base::bytes_of(kBody);
  std::vector<std::byte> message(kDataHeadBytes + answer.body.size());
  put_head(message, answer);
  if (!answer.refused) std::memcpy(message.data() + kDataHeadBytes, kBody.data(), kBody.size());
  return message;
}
std::vector<std::byte> changed(std::vector<std::byte> message, std::size_t at, std::uint32_t word) {
  base::store(message.data() + at, word);
  return message;
}

TEST(DataCall, IsReadAsItWasWritten) {
  const auto request = request_of({.cookie = 1ull << 63, .id = 77, .opcode = kFirstServiceOpcode, .room = 9});
  const auto asked = get_data_request(request);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->cookie, 1ull << 63);
  EXPECT_EQ(asked->id, 77u);
  EXPECT_EQ(asked->opcode, kFirstServiceOpcode);
  EXPECT_EQ(asked->room, 9u);
  EXPECT_EQ(base::text_of(asked->body), kBody);

  const auto done = get_data_answer(answer_of({.cookie = 3, .id = 78}));
  ASSERT_TRUE(done);
  EXPECT_EQ(done->cookie, 3u);
  EXPECT_EQ(done->id, 78u);
  EXPECT_FALSE(done->refused);
  EXPECT_EQ(done->body.size(), kBody.size());
  const auto refused = get_data_answer(answer_of({.refused = true, .why = Refusal::malformed}));
  ASSERT_TRUE(refused);
  EXPECT_TRUE(refused->refused);
  EXPECT_EQ(refused->why, Refusal::malformed);
}

TEST(DataCall, HasTheseBytes) {
  const auto request = request_of({.cookie = 0x0102030405060708, .id = 0x1122, .opcode = 0x1ff, .room = 0x10});
  EXPECT_EQ(std::string(base::text_of(base::Bytes(request))),
            std::string("\x08\x07\x06\x05\x04\x03\x02\x01\x22\x11\0\0\0\0\0\0\xff\x01\0\0\x10\0\0\0\x04\0\0\0\0\0\0\0"
                        "body",
                        36));
}

TEST(DataCall, RefusesRequestsThatCannotBe) {
  const auto good = request_of({.id = 1, .opcode = kFirstServiceOpcode});
  ASSERT_TRUE(get_data_request(good));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(get_data_request(base::Bytes(good).first(bytes))) << bytes << " bytes";
  }
  auto longer = good;
  longer.push_back({});
  EXPECT_FALSE(get_data_request(longer));
  EXPECT_FALSE(get_data_request(changed(good, 16, kFirstServiceOpcode - 1))) << "an opcode of the host's";
  EXPECT_FALSE(get_data_request(changed(good, 24, 3)));
  EXPECT_FALSE(get_data_request(changed(good, 24, ~0u)));
  EXPECT_FALSE(get_data_request(changed(good, 28, 1)));
}

TEST(DataCall, RefusesAnswersThatCannotBe) {
  const auto done = answer_of({.id = 1}), refused = answer_of({.id = 1, .refused = true, .why = Refusal::too_long});
  ASSERT_TRUE(get_data_answer(done) && get_data_answer(refused));
  for (std::size_t bytes = 0; bytes < done.size(); ++bytes) {
    EXPECT_FALSE(get_data_answer(base::Bytes(done).first(bytes))) << bytes << " bytes";
  }
  EXPECT_FALSE(get_data_answer(changed(done, 16, 2)));
  EXPECT_FALSE(get_data_answer(changed(done, 16, 1))) << "refused, with a body";
  EXPECT_FALSE(get_data_answer(changed(done, 20, 1))) << "done, with a reason";
  EXPECT_FALSE(get_data_answer(changed(done, 28, 1)));
  EXPECT_FALSE(get_data_answer(changed(refused, 20, static_cast<std::uint32_t>(kLastRefusal) + 1)));
}

}  // namespace
}  // namespace farpool::fabric::verbs
