// SPDX-License-Identifier: Apache-2.0
#include "index/rcuckoo/change.h"

namespace farpool::rcuckoo {

// Runs the editor between the locked read and the write: no other client changes the key in between.
Task<Result<bool>> Table::modify(std::string_view key, Editor& editor, Nanos deadline, Cost& cost) {
  return change(*state_, key, {.kind = Operation::modify, .editor = &editor}, deadline, cost);
}

}  // namespace farpool::rcuckoo
