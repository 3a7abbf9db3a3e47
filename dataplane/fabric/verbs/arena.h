// SPDX-License-Identifier: Apache-2.0
// The registered memory of one port: slabs within one stretch of addresses, so that a buffer's address alone gives its
// key.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "fabric/buffer.h"
#include "fabric/verbs/device.h"

namespace farpool::fabric::verbs {

class Arena final : public SlabSource {
 public:
  static constexpr std::size_t kSlabBytes = 2u << 20;
  static constexpr std::size_t kReachBytes = 64ull << 30;  // of addresses; memory is taken as it is needed

  // The domain outlives the arena.
  static base::Result<std::unique_ptr<Arena>> make(ibv_pd* domain);
  Arena(const Arena&) = delete;
  ~Arena() override;

  std::size_t slab_bytes() const override { return kSlabBytes; }
  std::byte* slab(std::size_t bytes) override;

  // Returns the local key of memory within one buffer; the address must lie in a buffer.
  std::uint32_t key_of(const void* at) const {
    const auto slab = (reinterpret_cast<std::uintptr_t>(at) - begin_) / kSlabBytes;
    FARPOOL_CHECK(slab < keys_.size());
    return keys_[slab];
  }

 private:
  Arena(ibv_pd* domain, std::uintptr_t begin) : domain_(domain), begin_(begin) {}
  ibv_pd* domain_;
  std::uintptr_t begin_;
  std::vector<std::uint32_t> keys_;  // of each slab
  std::vector<Registration> registrations_;
};

}  // namespace farpool::fabric::verbs
