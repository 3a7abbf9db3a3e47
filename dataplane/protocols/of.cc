// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "base/check.h"
#include "protocols/protocols.h"

namespace farpool::protocols {

const index::Protocol& of(layout::Protocol number) {
  const auto index = static_cast<std::size_t>(number);
  FARPOOL_CHECK(index < all().size() && all()[index]->number() == number);
  return *all()[index];
}

}  // namespace farpool::protocols
