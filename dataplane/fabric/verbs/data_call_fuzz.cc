// SPDX-License-Identifier: Apache-2.0
// Messages that arrive on the queue pairs of CALLs for data: whatever is read is written again unchanged.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "fabric/verbs/data_call.h"
#include "fabric/verbs/handshake.h"

namespace farpool::fabric::verbs {
namespace {

template <class Message>
void expect_same(base::Bytes message, const Message& read) {
  FARPOOL_CHECK(read.body.size() == message.size() - kDataHeadBytes);
  std::vector<std::byte> again(message.begin(), message.end());
  put_head(again, read);
  FARPOOL_CHECK(std::memcmp(again.data(), message.data(), message.size()) == 0);
}

}  // namespace
}  // namespace farpool::fabric::verbs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool::fabric::verbs;
  const farpool::base::Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto request = get_data_request(bytes)) expect_same(bytes, *request);
  if (const auto answer = get_data_answer(bytes)) expect_same(bytes, *answer);
  if (const auto request = get_request(bytes)) FARPOOL_CHECK(put(*request) == farpool::base::text_of(bytes));
  if (const auto reply = get_reply(bytes)) FARPOOL_CHECK(put(*reply) == farpool::base::text_of(bytes));
  return 0;
}
