// SPDX-License-Identifier: Apache-2.0
// The memory that a node lends: one zeroed mapping, for huge pages where the kernel has them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"

namespace farpool::node {

class Memory {
 public:
  // Private memory of this process.
  static base::Result<Memory> anonymous(std::uint64_t bytes);
  // A file `<name>.memory` on a memory-backed volume, made anew: what an earlier process left there is gone. All of it
  // is reserved at once, so that a full volume is an error here and not a signal later.
  static base::Result<Memory> on_volume(const std::string& directory, const std::string& name, std::uint64_t bytes);

  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Memory(const Memory&) = delete;
  ~Memory();

  base::MutableBytes span() const { return {data_, bytes_}; }

 private:
  Memory(void* data, std::uint64_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace farpool::node
