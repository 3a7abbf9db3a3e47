// SPDX-License-Identifier: Apache-2.0
// Any page is either refused with a reason or describes regions that lie within the memory. Half of the inputs are
// sealed with a good checksum, or the fuzzer would never get past it.
#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/crc64.h"
#include "layout/superblock.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool;
  if (size == 0) return 0;
  layout::GeometryRequest request;
  request.memory_bytes = 64 << 20;
  auto page =
      layout::write_superblock({.incarnation = 1, .pool = 2, .geometry = layout::plan_geometry(request).value()});
  const bool seal = (data[0] & 1) != 0;
  // The input is XORed onto a good page: zero bytes leave it as it was.
  for (std::size_t i = 1; i < size && i - 1 < page.size(); ++i) page[i - 1] ^= std::byte{data[i]};
  if (seal) base::store(page.data() + page.size() - 8, base::crc64(base::Bytes(page).first(page.size() - 8)));
  const auto parsed = layout::parse_superblock(page);
  if (!parsed.ok()) {
    FARPOOL_CHECK(!parsed.status().message().empty());
    return 0;
  }
  for (const auto& span : parsed->geometry.region) {
    FARPOOL_CHECK(span.offset + span.bytes <= parsed->geometry.memory_bytes);
    FARPOOL_CHECK(span.bytes % 8 == 0);
  }
  FARPOOL_CHECK(layout::write_superblock(*parsed) == page);
  return 0;
}
