// SPDX-License-Identifier: Apache-2.0
#include "layout/operation_slot.h"

#include "base/crc64.h"

namespace farpool::layout {
namespace {

std::uint64_t claim_of(const OperationSlot& slot) {
  return base::crc64(std::as_bytes(std::span(slot.lock_word)),
                     base::crc64(base::bytes_of(slot.state), base::crc64(base::bytes_of(slot.holder))));
}
std::uint64_t checksum_of(const OperationSlot& slot) {
  return base::crc64(base::bytes_of(slot).subspan(kSlotPlan.offset, kSlotPlan.bytes - 8));
}

}  // namespace

void OperationSlot::seal_claim() { claim = claim_of(*this); }

void OperationSlot::seal_plan() {
  plan = number();
  checksum = checksum_of(*this);
}

bool OperationSlot::claims() const { return holder != 0 && claim == claim_of(*this); }

bool OperationSlot::covers(std::uint64_t offset, std::uint64_t mask) const {
  for (const HeldLocks& held : lock_word) {
    if (held.offset == offset && (held.mask & mask) != 0) return true;
  }
  return false;
}

bool OperationSlot::planned() const { return claims() && plan == number() && checksum == checksum_of(*this); }

}  // namespace farpool::layout
