// SPDX-License-Identifier: Apache-2.0
// Any bytes that a peer sends as a greeting, or in answer to one, give the length of their body, within the bound, or
// are refused.
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "fabric/session_port/greeting.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace session_port = farpool::fabric::session_port;
  const farpool::base::Bytes input = std::as_bytes(std::span(data, size));
  for (const std::size_t most : {std::size_t{0}, std::size_t{4096}, session_port::kMaxAnswerBytes}) {
    const auto envelope = session_port::get_envelope(input, most);
    if (!envelope) continue;
    FARPOOL_CHECK(size >= session_port::kEnvelopeBytes && envelope->length <= most);
    std::array<std::byte, session_port::kEnvelopeBytes> again{};
    session_port::put_envelope(again, *envelope);
    FARPOOL_CHECK(std::memcmp(again.data(), input.data(), again.size()) == 0);
  }
  return 0;
}
