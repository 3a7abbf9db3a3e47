// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "index/cuckooduo/record.h"

namespace farpool::cuckooduo {
namespace {

using namespace std::literals;
using layout::KvReply;
using layout::KvStatus;

std::vector<std::byte> turn_bytes(const Turn& turn, const std::vector<Answer>& answers) {
  std::vector<std::byte> bytes(kLongestTurn);
  bytes.resize(put_turn(turn, answers, bytes));
  return bytes;
}

TEST(CuckooDuoMessage, ATurnBringsAnswers) {
  const std::vector<Answer> answers = {{.ticket = 7, .record = 3, .flags = KvReply::kExisted},
                                       {.ticket = ~0ull, .record = ~0u, .status = layout::kLastKvStatus}};
  const std::vector<std::byte> bytes = turn_bytes({.table = 5, .closing = true, .term = 9}, answers);
  ASSERT_EQ(bytes.size(), kTurnHead + 2 * kAnswerBytes);
  const auto turn = get_turn(bytes);
  ASSERT_TRUE(turn.has_value());
  EXPECT_EQ(turn->table, 5u);
  EXPECT_TRUE(turn->closing);
  EXPECT_EQ(turn->term, 9u);
  ASSERT_EQ(turn->count(), 2u);
  EXPECT_EQ(turn->answer(0), answers[0]);
  EXPECT_EQ(turn->answer(1), answers[1]);
  EXPECT_FALSE(get_turn(turn_bytes({}, {}))->closing);
}

TEST(CuckooDuoMessage, BytesThatAreNoTurnAreRefused) {
  const std::vector<std::byte> good = turn_bytes({}, std::vector<Answer>(2));
  ASSERT_TRUE(get_turn(good).has_value());
  const auto refused = [&good](std::size_t at, std::uint16_t value) {
    std::vector<std::byte> bytes = good;
    base::store(bytes.data() + at, value);
    return !get_turn(bytes).has_value();
  };
  EXPECT_TRUE(refused(4, 2)) << "flags";
  EXPECT_TRUE(refused(6, 1)) << "fewer answers than follow";
  EXPECT_TRUE(refused(6, 3)) << "more";
  EXPECT_TRUE(
      refused(kTurnHead + 12, static_cast<std::uint16_t>(static_cast<std::uint16_t>(layout::kLastKvStatus) + 1)));
  EXPECT_TRUE(refused(kTurnHead + 14, KvReply::kAgain)) << "a flag that an owner does not know";
  EXPECT_FALSE(get_turn(base::Bytes(good).first(good.size() - 1)).has_value());
  EXPECT_FALSE(get_turn(base::Bytes(good).first(kTurnHead - 1)).has_value());
  std::vector<std::byte> many(kTurnHead + (kMostAnswers + 1) * kAnswerBytes);
  base::store(many.data() + 6, static_cast<std::uint16_t>(kMostAnswers + 1));
  EXPECT_FALSE(get_turn(many).has_value());
}

TEST(CuckooDuoMessage, AReplyHasRequestsAsLongAsThereIsRoom) {
  const auto one = base::bytes_of("eight by"sv), two = base::bytes_of("not a whole word"sv).first(11);
  std::vector<std::byte> room(kTurnReplyHead + 2 * kHandedHead + 8 + 16);
  TurnReply reply(KvStatus::done, room);
  EXPECT_TRUE(reply.add({.ticket = 1, .record = 2, .request = one}));
  EXPECT_TRUE(reply.add({.ticket = 3, .record = 4, .again = true, .request = two}));
  EXPECT_FALSE(reply.add({.request = {}})) << "there is no room for a head";
  EXPECT_EQ(reply.requests(), 2u);
  ASSERT_EQ(reply.bytes(), room.size());
  auto requests = TurnRequests::parse(room);
  ASSERT_TRUE(requests.has_value());
  EXPECT_EQ(requests->status(), KvStatus::done);
  ASSERT_EQ(requests->left(), 2u);
  Handed handed = requests->next();
  EXPECT_TRUE(handed.ticket == 1 && handed.record == 2 && !handed.again);
  EXPECT_TRUE(std::ranges::equal(handed.request, one));
  handed = requests->next();
  EXPECT_TRUE(handed.ticket == 3 && handed.record == 4 && handed.again);
  EXPECT_TRUE(std::ranges::equal(handed.request, two));
  EXPECT_EQ(requests->left(), 0u);
}

TEST(CuckooDuoMessage, BytesThatAreNoReplyAreRefused) {
  std::vector<std::byte> good(kTurnReplyHead + kHandedHead + 8);
  TurnReply reply(KvStatus::done, good);
  ASSERT_TRUE(reply.add({.ticket = 1, .request = base::bytes_of("seven b"sv)}));
  ASSERT_TRUE(TurnRequests::parse(good).has_value());
  const auto refused = [&good](std::size_t at, std::uint8_t value) {
    std::vector<std::byte> bytes = good;
    base::store(bytes.data() + at, value);
    return !TurnRequests::parse(bytes).has_value();
  };
  EXPECT_TRUE(refused(0, 200)) << "status";
  EXPECT_TRUE(refused(0, static_cast<std::uint8_t>(KvStatus::no_lease))) << "a refusal with requests";
  EXPECT_TRUE(refused(2, 2)) << "requests";
  EXPECT_TRUE(refused(2, 0));
  EXPECT_TRUE(refused(4, 1)) << "zero";
  EXPECT_TRUE(refused(kTurnReplyHead + 12, 2)) << "flags";
  EXPECT_TRUE(refused(kTurnReplyHead + 16, 9)) << "bytes";
  EXPECT_TRUE(refused(kTurnReplyHead + 19, 255));
  EXPECT_TRUE(refused(kTurnReplyHead + 20, 1)) << "zero";
  EXPECT_TRUE(refused(good.size() - 1, 1)) << "padding";
  EXPECT_FALSE(TurnRequests::parse(base::Bytes(good).first(good.size() - 8)).has_value());
  EXPECT_FALSE(TurnRequests::parse(base::Bytes(good).first(kTurnReplyHead - 1)).has_value());
  TurnReply none(KvStatus::no_lease, good);
  EXPECT_EQ(TurnRequests::parse(base::Bytes(good).first(none.bytes()))->status(), KvStatus::no_lease);
}

// --- Records

std::vector<std::byte> record_bytes(const Record& record, std::uint32_t number) {
  std::vector<std::byte> bytes(Record::kBytes);
  put_record(bytes, number, record);
  if (record.done) base::store(bytes.data() + Record::kDoneAt, record.ticket);
  return bytes;
}

TEST(CuckooDuoRecord, SaysWhatARequestWas) {
  for (const Record& record : {Record{.ticket = 5, .version = 9, .pairs = 2, .existed = true},
                               Record{.ticket = 6, .version = 9, .pairs = 1, .done = true},
                               Record{.ticket = 7, .version = 12, .existed = true, .done = true}}) {
    EXPECT_EQ(read_record(record_bytes(record, 3), 3), record);
    EXPECT_EQ(read_record(record_bytes(record, 3), 4), std::nullopt) << "it is another record's";
  }
  EXPECT_EQ(read_record(std::vector<std::byte>(Record::kBytes), 0), std::nullopt);
}

TEST(CuckooDuoRecord, ATornOneSaysNothing) {
  const auto before = record_bytes({.ticket = 5, .version = 9, .pairs = 2, .existed = true, .done = true}, 3);
  const auto after = record_bytes({.ticket = 6, .version = 20, .pairs = 1}, 3);
  for (unsigned landed = 0; landed < 16; ++landed) {
    std::vector<std::byte> bytes = before;
    for (std::size_t word = 0; word < 4; ++word) {
      if ((landed >> word & 1) != 0) std::copy_n(after.data() + 8 * word, 8, bytes.data() + 8 * word);
    }
    const auto record = read_record(bytes, 3);
    EXPECT_EQ(record.has_value(), landed == 0 || landed == 15) << landed;
    if (landed == 15) EXPECT_FALSE(record->done) << "that was the request before";
  }
}

TEST(CuckooDuoRecord, ItsPairsDecide) {
  const Record update{.version = 9, .pairs = 2}, insert{.version = 9, .pairs = 1}, remove{.version = 9};
  EXPECT_TRUE(update.decides(9) && update.decides(10));
  EXPECT_FALSE(update.decides(8) || update.decides(11));
  EXPECT_TRUE(insert.decides(9));
  EXPECT_FALSE(insert.decides(8) || insert.decides(10));
  EXPECT_TRUE(remove.decides(9));
  EXPECT_FALSE(remove.decides(8) || remove.decides(10));
}

}  // namespace
}  // namespace farpool::cuckooduo
