// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come as the request or the reply of a key-value CALL: they are refused with a reason, or say what is
// then said again in the very same bytes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "layout/kv_call.h"

namespace farpool::layout {
namespace {

void expect_within(base::Bytes part, base::Bytes whole) {
  FARPOOL_CHECK(part.empty() ||
                (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size()));
}
bool same(base::Bytes a, base::Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

void run_request(base::Bytes input) {
  KvRequest request;
  const KvStatus status = get_kv_request(input, request);
  if (status != KvStatus::done) {
    FARPOOL_CHECK(is_refusal(status) && std::strlen(text_of(status)) > 0);
    FARPOOL_CHECK(request.key.empty() && request.value.empty());
    return;
  }
  expect_within(request.key, input);
  expect_within(request.value, input);
  std::vector<std::byte> again(input.size());
  std::size_t bytes = 0;
  FARPOOL_CHECK(put_kv_request(request, again, bytes) == KvStatus::done && bytes == input.size());
  FARPOOL_CHECK(same(again, input));
}

void run_reply(base::Bytes input) {
  KvReply reply;
  if (!get_kv_reply(input, reply)) return;
  expect_within(reply.key, input);
  expect_within(reply.value, input);
  std::vector<std::byte> again(std::max(input.size(), kKvReplyHead));
  FARPOOL_CHECK(put_kv_reply(reply, again) == input.size());
  FARPOOL_CHECK(same(again, input));
}

}  // namespace
}  // namespace farpool::layout

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool;
  if (size == 0) return 0;
  const base::Bytes input = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] % 2 == 0) {
    layout::run_request(input);
  } else {
    layout::run_reply(input);
  }
  return 0;
}
