// SPDX-License-Identifier: Apache-2.0
// In the place of protocols/protocols.cc: CuckooDuo alone.
#include "protocols/protocols.h"

#include <array>

#include "index/cuckooduo/protocol.h"

namespace farpool::protocols {

std::span<const index::Protocol* const> all() {
  static const auto cuckooduo = cuckooduo::make_protocol(layout::Protocol{});
  static const std::array<const index::Protocol*, 1> kAll{cuckooduo.get()};
  return kAll;
}

}  // namespace farpool::protocols
