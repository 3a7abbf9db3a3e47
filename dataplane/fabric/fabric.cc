// SPDX-License-Identifier: Apache-2.0
#include "fabric/fabric.h"

namespace farpool::fabric {

void Posting::await_suspend(std::coroutine_handle<> handle) noexcept {
  waiter = handle;
  lane.enqueue(*this);
}

bool is_chain(std::span<const Op> ops) {
  if (ops.empty() || ops.size() > kMaxChain) return false;
  std::uint64_t bytes = 0;
  for (const Op& op : ops) {
    if (op.verb == Verb::call) {
      if (ops.size() != 1 || op.local.size() > kMaxCallBytes || op.reply.size() > kMaxCallBytes) return false;
    } else if (op.verb == Verb::read || op.verb == Verb::write) {
      bytes += op.local.size();
    }
  }
  return bytes <= kMaxChainBytes;
}

}  // namespace farpool::fabric
