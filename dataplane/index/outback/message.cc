// SPDX-License-Identifier: Apache-2.0
#include "index/outback/message.h"

namespace farpool::outback {

bool get_reply(base::Bytes bytes, Reply& reply) {
  if (get_kv_reply(bytes, reply) && (reply.flags & Reply::kOwn & ~kCached) == 0 && reply.hint >> 24 == 0) return true;
  reply = {};
  return false;
}

bool next_scan_key(base::Bytes& rest, ScanKey& key, bool& bad) {
  key = {};
  if (rest.empty()) return false;
  bad = true;
  if (rest.size() < 4) return false;
  const auto word = base::load<std::uint32_t>(rest.data());
  key.key_bytes = word & ~(ScanKey::kNamed | ScanKey::kExpires);
  const std::size_t here = (word & ScanKey::kNamed) != 0 ? 8 : key.key_bytes;
  const std::size_t behind = (word & ScanKey::kExpires) != 0 ? 8 : 0;
  if (key.key_bytes > layout::kMaxKeyBytes || rest.size() - 4 < here + behind) return false;
  if ((word & ScanKey::kNamed) != 0) {
    key.address = base::load<std::uint64_t>(rest.data() + 4);
    if (key.address == 0) return false;
  } else {
    key.key = rest.subspan(4, here);
  }
  if (behind != 0) {
    key.expires = base::load<std::uint64_t>(rest.data() + 4 + here);
    if (key.expires == 0) return false;
  }
  rest = rest.subspan(4 + here + behind);
  bad = false;
  return true;
}

}  // namespace farpool::outback
