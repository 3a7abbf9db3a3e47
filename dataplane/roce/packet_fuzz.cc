// SPDX-License-Identifier: Apache-2.0
// Whatever frame comes: it is refused with a reason, or is written again in the very same bytes. With right checksums
// it stays the same but for them, and then they hold.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "roce/cm.h"
#include "roce/packet.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farpool;
  const base::Bytes frame = std::as_bytes(std::span(data, size));
  roce::Packet packet;
  const roce::Refusal refusal = roce::parse(frame, packet);
  FARPOOL_CHECK(std::strlen(roce::text_of(refusal)) > 0);
  if (refusal != roce::Refusal::none) return 0;
  std::vector<std::byte> again(size);
  FARPOOL_CHECK(roce::build(packet, again) == size);
  FARPOOL_CHECK(std::equal(again.begin(), again.end(), frame.begin()));
  FARPOOL_CHECK(roce::build(packet, base::MutableBytes(again).first(size - 1)) == 0);
  (void)roce::sums_hold(frame, packet);
  (void)roce::parse_cm(packet);
  FARPOOL_CHECK(roce::build_sealed(packet, again) == size);
  roce::Packet sealed;
  FARPOOL_CHECK(roce::parse(again, sealed) == roce::Refusal::none && roce::sums_hold(again, sealed));
  return 0;
}
