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
      const std::size_t most = longest_call(op.opcode);
      if (ops.size() != 1 || op.local.size() > most || op.reply.size() > most) return false;
    } else if (op.verb == Verb::read || op.verb == Verb::write) {
      bytes += op.local.size();
    }
  }
  return bytes <= kMaxChainBytes;
}

Refusal why_no_chain(std::span<const Op> ops) {
  if (ops.size() != 1 || ops[0].verb != Verb::call) return Refusal::none;
  const std::size_t most = longest_call(ops[0].opcode);
  return ops[0].local.size() > most || ops[0].reply.size() > most ? Refusal::too_long : Refusal::none;
}

const char* text_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::none:
      return "no reason was given";
    case Refusal::too_long:
      return "the request or the room for its reply is too long";
    case Refusal::no_service:
      return "the memory node offers this session no service";
    case Refusal::too_many:
      return "the lane has too many CALLs in flight";
    case Refusal::unknown_opcode:
      return "the service knows no such opcode";
    case Refusal::malformed:
      return "the service cannot read the request";
  }
  return "an unknown reason";
}

}  // namespace farpool::fabric
