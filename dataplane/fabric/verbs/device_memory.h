// SPDX-License-Identifier: Apache-2.0
// Words in the NIC's own memory, where atomics on them need not cross PCIe. They end with the process. Not yet run on
// hardware: SoftRoCE has none, so tests check the order of calls to libibverbs with functions that note them.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/verbs/device.h"

namespace farpool::fabric::verbs {

class DeviceMemory {
 public:
  // Registers memory that holds `words`, for peers of the domain to read, write and change by atomics. unavailable: the
  // device has none, or too little of what all processes share is left.
  static base::Result<std::unique_ptr<DeviceMemory>> make(ibv_pd* domain, base::Bytes words);

  std::uint64_t bytes() const { return bytes_; }
  // Returns the key; peers count from its beginning, because it has no address.
  std::uint32_t key() const { return registration_->rkey; }

 private:
  struct Free {
    void operator()(ibv_dm* memory) const { ::ibv_free_dm(memory); }
  };
  DeviceMemory() = default;
  std::uint64_t bytes_ = 0;
  // Destroyed from the bottom up: memory that is registered cannot be freed.
  std::unique_ptr<ibv_dm, Free> memory_;
  Registration registration_;
};

// Returns how much a device has for all processes; 0: none.
std::uint64_t device_memory_of(ibv_context* context);

}  // namespace farpool::fabric::verbs
