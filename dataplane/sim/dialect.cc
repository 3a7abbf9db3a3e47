// SPDX-License-Identifier: Apache-2.0
// One line for each index protocol, by its number.
#include "sim/dialect.h"

#include <array>

#include "base/check.h"
#include "sim/dialects.h"

namespace farpool::sim {

const Dialect& dialect_of(layout::Protocol protocol) {
  static const std::array kAll{
      &rcuckoo_dialect(),
      &race_dialect(),
      &outback_dialect(),
  };
  FARPOOL_CHECK(static_cast<std::size_t>(protocol) < kAll.size());
  return *kAll[static_cast<std::size_t>(protocol)];
}

std::string title_of(layout::Protocol protocol) {
  return protocol == layout::Protocol{} ? std::string() : dialect_of(protocol).title();
}

std::string flag_of(layout::Protocol protocol) {
  if (protocol == layout::Protocol{}) return {};
  return "--protocol " + std::string(layout::shape_of(protocol).name) + " ";
}

}  // namespace farpool::sim
