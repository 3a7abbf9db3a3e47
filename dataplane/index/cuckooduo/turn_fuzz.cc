// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come as a turn, as the reply to one, or as a record: they are refused, or say what is then said again in
// the very same bytes. layout/kv_call_fuzz.cc has the requests themselves.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "index/cuckooduo/message.h"
#include "index/cuckooduo/record.h"

namespace farpool::cuckooduo {
namespace {

bool same(base::Bytes a, base::Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

void run_turn(base::Bytes input) {
  const auto turn = get_turn(input);
  if (!turn) return;
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < turn->count(); ++i) answers.push_back(turn->answer(i));
  std::vector<std::byte> again(kLongestTurn);
  const std::size_t bytes = put_turn(*turn, answers, again);
  FARPOOL_CHECK(same(base::Bytes(again).first(bytes), input));
}

void run_reply(base::Bytes input) {
  auto requests = TurnRequests::parse(input);
  if (!requests) return;
  std::vector<std::byte> again(input.size());
  TurnReply reply(requests->status(), again);
  while (requests->left() > 0) FARPOOL_CHECK(reply.add(requests->next()));
  FARPOOL_CHECK(reply.bytes() == input.size() && same(again, input));
}

void run_change(base::Bytes input) {
  layout::KvRequest request;
  if (get_kv_request(input, request) != layout::KvStatus::done) return;
  if (check_change(request, 0) != layout::KvStatus::done) return;
  FARPOOL_CHECK(layout::changes(request.op) && request.table == 0);
}

void run_record(base::Bytes input) {
  if (input.size() != Record::kBytes) return;
  const auto record = read_record(input, 1);
  if (!record) return;
  std::vector<std::byte> again(Record::kBytes);
  put_record(again, 1, *record);
  FARPOOL_CHECK(same(base::Bytes(again).first(Record::kDoneAt), input.first(Record::kDoneAt)));
}

}  // namespace
}  // namespace farpool::cuckooduo

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool;
  if (size == 0) return 0;
  const base::Bytes input = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0:
      cuckooduo::run_turn(input);
      break;
    case 1:
      cuckooduo::run_reply(input);
      break;
    case 2:
      cuckooduo::run_change(input);
      break;
    default:
      cuckooduo::run_record(input);
  }
  return 0;
}
