// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/change.h"

namespace farpool::rcuckoo {

// Proceeds like an update while the key exists or either of its rows has room; otherwise like an insert, with a path.
Task<Result<bool>> Table::put(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return change(*state_, key,
                {.kind = Operation::put, .if_present = Edit::Kind::put, .if_absent = Edit::Kind::put, .value = value},
                deadline, cost);
}

}  // namespace farpool::rcuckoo
