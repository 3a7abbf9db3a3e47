// SPDX-License-Identifier: Apache-2.0
#include "fabric/session_port/greeting.h"

namespace farpool::fabric::session_port {
namespace {

constexpr std::uint32_t kMagic = 0x316c7066;  // "fpl1"

}  // namespace

void put_envelope(base::MutableBytes into, Envelope envelope) {
  base::store(into.data(), kMagic);
  base::store(into.data() + 4, envelope.kind);
  base::store(into.data() + 8, envelope.length);
  base::store(into.data() + 12, std::uint32_t{0});
}

std::optional<Envelope> get_envelope(base::Bytes header, std::size_t most) {
  if (header.size() < kEnvelopeBytes) return std::nullopt;
  const auto word = [&header](std::size_t offset) { return base::load<std::uint32_t>(header.data() + offset); };
  const Envelope envelope{.kind = word(4), .length = word(8)};
  if (word(0) != kMagic || word(12) != 0 || envelope.length > most) return std::nullopt;
  return envelope;
}

}  // namespace farpool::fabric::session_port
