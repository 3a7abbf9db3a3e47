// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/change.h"

namespace farpool::rcuckoo {

// Locks both rows of the key, so that no other client can add the same key in its other row, and reads them. Only if both are full, it also reads what else their
// locks cover, and after that locks the rows of a cuckoo path.
Task<Result<bool>> Table::insert(std::string_view key, std::string_view value, Nanos deadline, Cost& cost) {
  return add(*state_, key, value, false, deadline, cost);
}

Task<Result<bool>> add(Table::State& state, std::string_view key, std::string_view value, bool arrives, Nanos deadline,
                       Cost& cost) {
  Result<bool> existed = co_await change(state, key,
                                         {.kind = Operation::insert,
                                          .if_present = Edit::Kind::keep,
                                          .if_absent = Edit::Kind::put,
                                          .value = value,
                                          .expects_absent = true,
                                          .arrives = arrives},
                                         deadline, cost);
  if (!existed.ok()) co_return existed;
  co_return !*existed;
}

}  // namespace farpool::rcuckoo
