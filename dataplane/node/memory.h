// SPDX-License-Identifier: Apache-2.0
// The memory that a node lends: one mapping, for huge pages where the kernel has them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"
#include "node/progress.h"

namespace farpool::node {

class Memory {
 public:
  // Private memory of this process, zero; of huge pages of this size, if any.
  static base::Result<Memory> anonymous(std::uint64_t bytes, std::uint64_t huge_page = 0);

  // What becomes of memory that an earlier process left on the volume.
  enum class Earlier : std::uint8_t {
    kept,      // as it is, if that process had formatted it to the end
    replaced,  // by zeros
  };
  // A file `<name>.memory` on a memory-backed volume, which outlives the process. All of it is reserved at once, so
  // that a full volume is an error here and not a signal later. unavailable: another process lends it.
  // invalid_argument: kept memory has another size. The volume is of huge pages (hugetlbfs) exactly if their size is
  // given.
  static base::Result<Memory> on_volume(const std::string& directory, const std::string& name, std::uint64_t bytes,
                                        Earlier earlier = Earlier::kept, std::uint64_t huge_page = 0,
                                        const Progress& progress = {});

  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        file_(std::exchange(other.file_, -1)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(file_, other.file_);
    return *this;
  }
  Memory(const Memory&) = delete;
  ~Memory();

  base::MutableBytes span() const { return {data_, bytes_}; }

 private:
  Memory(void* data, std::uint64_t bytes, int file)
      : data_(static_cast<std::byte*>(data)), bytes_(bytes), file_(file) {}
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int file_ = -1;  // open as long as the memory is lent: its lock keeps other processes away
};

// The file of a memory node that has ended, or a copy of one, to be looked at and never written. While it is open no
// memory node takes the file up.
class MemoryImage {
 public:
  // unavailable: it cannot be read, or a memory node lends it.
  static base::Result<MemoryImage> open(const std::string& path);

  MemoryImage(MemoryImage&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        file_(std::exchange(other.file_, -1)) {}
  MemoryImage& operator=(MemoryImage&&) = delete;
  ~MemoryImage();

  base::Bytes span() const { return {data_, bytes_}; }

 private:
  MemoryImage(const void* data, std::uint64_t bytes, int file)
      : data_(static_cast<const std::byte*>(data)), bytes_(bytes), file_(file) {}
  const std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int file_ = -1;
};

}  // namespace farpool::node
