// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/change.h"

namespace farpool::rcuckoo {

Task<Result<bool>> Table::remove(std::string_view key, Nanos deadline, Cost& cost) {
  return change(*state_, key,
                {.kind = Operation::remove, .if_present = Edit::Kind::erase, .if_absent = Edit::Kind::keep}, deadline,
                cost);
}

}  // namespace farpool::rcuckoo
