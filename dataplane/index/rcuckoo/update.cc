// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/change.h"

namespace farpool::rcuckoo {

Task<Result<bool>> Table::update(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return change(
      *state_, key,
      {.kind = Operation::update, .if_present = Edit::Kind::put, .if_absent = Edit::Kind::keep, .value = value},
      deadline, cost);
}

}  // namespace farpool::rcuckoo
