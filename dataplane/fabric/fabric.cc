// SPDX-License-Identifier: Apache-2.0
#include "fabric/fabric.h"

namespace farpool::fabric {

void Posting::await_suspend(std::coroutine_handle<> handle) noexcept {
  waiter = handle;
  lane.enqueue(*this);
}

}  // namespace farpool::fabric
