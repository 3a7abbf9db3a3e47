// SPDX-License-Identifier: Apache-2.0
#include "layout/operation_slot.h"

#include "base/crc64.h"

namespace farpool::layout {

void OperationSlot::seal() { checksum = base::crc64(base::bytes_of(*this).first(offsetof(OperationSlot, checksum))); }

bool OperationSlot::whole() const {
  return checksum == base::crc64(base::bytes_of(*this).first(offsetof(OperationSlot, checksum)));
}

}  // namespace farpool::layout
