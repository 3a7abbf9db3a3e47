// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come as a reply: they are refused, or say what is then said again in the very same bytes; and the keys
// of a scan lie within them. layout/kv_call_fuzz.cc has requests.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "index/outback/message.h"

namespace farpool::outback {
namespace {

void expect_within(base::Bytes zone, base::Bytes whole) {
  FARPOOL_CHECK(zone.empty() ||
                (zone.data() >= whole.data() && zone.data() + zone.size() <= whole.data() + whole.size()));
}
bool same(base::Bytes a, base::Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

void run_reply(base::Bytes input) {
  Reply reply;
  if (!get_reply(input, reply)) return;
  expect_within(reply.key, input);
  expect_within(reply.value, input);
  base::Bytes rest = reply.value;
  ScanKey key;
  bool bad = false;
  std::size_t keys = 0;
  while (next_scan_key(rest, key, bad)) {
    expect_within(key.key, input);
    FARPOOL_CHECK(++keys <= input.size());
  }
  std::vector<std::byte> again(std::max(input.size(), kKvReplyHead));
  FARPOOL_CHECK(put_kv_reply(reply, again) == input.size());
  FARPOOL_CHECK(same(again, input));
}

}  // namespace
}  // namespace farpool::outback

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool;
  outback::run_reply(std::as_bytes(std::span(data, size)));
  return 0;
}
