// SPDX-License-Identifier: Apache-2.0
#include "roce/format.h"

namespace farpool::roce {

unsigned headers_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::send_last_immediate:
    case Opcode::send_only_immediate:
    case Opcode::send_last_invalidate:
    case Opcode::send_only_invalidate:
    case Opcode::write_last_immediate:
    case Opcode::uc_send_last_immediate:
    case Opcode::uc_send_only_immediate:
    case Opcode::uc_write_last_immediate:
      return has_immediate;
    case Opcode::write_first:
    case Opcode::write_only:
    case Opcode::read_request:
    case Opcode::atomic_write:
    case Opcode::uc_write_first:
    case Opcode::uc_write_only:
      return has_reth;
    case Opcode::write_only_immediate:
    case Opcode::uc_write_only_immediate:
      return has_reth | has_immediate;
    case Opcode::compare_swap:
    case Opcode::fetch_add:
      return has_atomic;
    case Opcode::masked_compare_swap:
      return has_atomic | has_masks;
    case Opcode::read_response_first:
    case Opcode::read_response_last:
    case Opcode::read_response_only:
    case Opcode::acknowledge:
      return has_aeth;
    case Opcode::atomic_acknowledge:
      return has_aeth | has_prior;
    case Opcode::ud_send_only:
      return has_deth;
    case Opcode::ud_send_only_immediate:
      return has_deth | has_immediate;
    default:
      return 0;
  }
}

std::size_t bytes_of(unsigned headers) {
  return (headers & has_deth ? kDethBytes : 0) + (headers & has_reth ? kRethBytes : 0) +
         (headers & has_atomic ? kAtomicBytes : 0) + (headers & has_masks ? kMasksBytes : 0) +
         (headers & has_aeth ? kAethBytes : 0) + (headers & has_prior ? kAtomicAckBytes : 0) +
         (headers & has_immediate ? kImmediateBytes : 0);
}

bool is_response(Opcode opcode) {
  return opcode >= Opcode::read_response_first && opcode <= Opcode::atomic_acknowledge;
}

bool is_request(Opcode opcode) {
  return (opcode < Opcode::uc_send_first && !is_response(opcode)) || opcode == Opcode::masked_compare_swap;
}

bool is_atomic(Opcode opcode) {
  return opcode == Opcode::compare_swap || opcode == Opcode::fetch_add || opcode == Opcode::masked_compare_swap;
}

bool is_write(Opcode opcode) { return opcode >= Opcode::write_first && opcode <= Opcode::write_only_immediate; }

bool ends_message(Opcode opcode) {
  switch (opcode) {
    case Opcode::send_first:
    case Opcode::send_middle:
    case Opcode::write_first:
    case Opcode::write_middle:
    case Opcode::read_response_first:
    case Opcode::read_response_middle:
      return false;
    default:
      return true;
  }
}

}  // namespace farpool::roce
