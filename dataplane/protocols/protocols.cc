// SPDX-License-Identifier: Apache-2.0
// One line for each index protocol, by its number, and nothing else: a test links another list (protocols/toy).
#include "protocols/protocols.h"

#include <array>

#include "index/outback/protocol.h"
#include "index/race/protocol.h"
#include "index/rcuckoo/protocol.h"

namespace farpool::protocols {

std::span<const index::Protocol* const> all() {
  static const std::array kAll{
      &rcuckoo::protocol(),
      &race::protocol(),
      &outback::protocol(),
  };
  return kAll;
}

}  // namespace farpool::protocols
